package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// maxEventBytes bounds one event.
	maxEventBytes = 64 << 10
	// maxQueuedEvents bounds the events that wait to be sent.
	maxQueuedEvents = 8192
	// maxEventBatch bounds the events that are sent without waiting: a server
	// holds 10,000 messages for one stream, from all its clients.
	maxEventBatch = 2048
	// ackTimeout bounds the wait for the server to have stored a batch.
	ackTimeout = 2 * time.Second
	// gatherTime is how long an event waits for others to be sent with.
	gatherTime = 20 * time.Millisecond
)

// Event is something that happened in the hub. On the wire it is a CloudEvents
// 1.0 JSON object (docs/events.md):
//
//	{"specversion":"1.0","id":…,"source":"toolhub/<hub>/<identity>","type":"toolhub.<kind>.<what>",
//	 "subject":…,"time":…,"datacontenttype":"application/json","data":{…}}
type Event struct {
	// ID is unique; "" makes Emit choose one.
	ID string
	// Time is when it happened; zero makes Emit set it.
	Time time.Time
	// Kind (server, catalog, tool, call, …), Subject (the id of what it
	// happened to) and What (up, published, …) make the subject of the message.
	Kind, Subject, What string
	// Source is the identity of the process; "" makes Emit set it.
	Source string
	// Data is encoded as JSON; it must not be changed after Emit. From
	// [Conn.Events] it is a jsontext.Value, nil if there was none.
	Data any
}

// Emit publishes an event, within a few tens of milliseconds. It never blocks:
// while NATS is away or slow events wait in a bounded queue, and beyond it they
// are dropped and counted.
func (c *Conn) Emit(e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	select {
	case <-c.closing:
		c.emitter.dropped.Add(1)
		return
	default:
	}
	select {
	case c.emitter.queue <- e:
	default:
		c.emitter.dropped.Add(1)
	}
}

// EventsDropped is how many events Emit has dropped.
func (c *Conn) EventsDropped() uint64 { return c.emitter.dropped.Load() }

// emitter sends the events of a Conn.
type emitter struct {
	conn    *Conn
	queue   chan Event
	dropped atomic.Uint64
	buf     []byte       // of a whole event
	data    bytes.Buffer // of its data
	prefix  string       // of subjects
	source  string
}

func newEmitter(c *Conn) *emitter {
	return &emitter{
		conn: c, queue: make(chan Event, maxQueuedEvents),
		prefix: eventPrefix(c.cfg.Hub), source: "toolhub/" + c.cfg.Hub + "/",
	}
}

// run sends events in batches: waking this goroutine, the connection and the
// server for each one would cost several times what the event itself does.
func (m *emitter) run() {
	gather := time.NewTimer(gatherTime)
	gather.Stop()
	for {
		select {
		case e := <-m.queue:
			if len(m.queue) < maxEventBatch {
				gather.Reset(gatherTime)
				select {
				case <-gather.C:
				case <-m.conn.closing:
				}
			}
			select {
			case <-m.conn.events.ups():
			case <-m.conn.closing:
			}
			m.sendBatch(e)
		case <-m.conn.closing:
			for len(m.queue) > 0 {
				m.sendBatch(<-m.queue)
			}
			return
		}
	}
}

// sendBatch sends e and what is in the queue. Only the last message asks for an
// acknowledgement, and nothing is sent before it came: the server would throw
// away without a word what its stream cannot take.
func (m *emitter) sendBatch(e Event) {
	n := min(len(m.queue), maxEventBatch-1)
	for range n {
		m.send(&e, false)
		e = <-m.queue
	}
	m.send(&e, true)
}

func (m *emitter) send(e *Event, ack bool) {
	body, err := m.encode(e)
	if err == nil {
		nc, subject := m.conn.events.nc, m.subject(e)
		if ack {
			_, err = nc.Request(subject, body, ackTimeout)
		} else {
			err = nc.Publish(subject, body)
		}
	}
	if err != nil {
		m.dropped.Add(1)
		if !disconnected(err) {
			m.conn.log.Error("event dropped", "kind", e.Kind, "what", e.What, "error", err)
		}
	}
}

func (m *emitter) subject(e *Event) string {
	return eventSubject(m.prefix, e.Kind, e.Subject, e.What)
}

// encode makes the message of an event in a buffer that is used again.
func (m *emitter) encode(e *Event) ([]byte, error) {
	id, source := e.ID, e.Source
	if id == "" {
		id = m.conn.newID()
	}
	if source == "" {
		source = m.conn.cfg.Identity
	}
	b := append(m.buf[:0], `{"specversion":"1.0","id":`...)
	b = appendString(b, id)
	b = append(b, `,"source":`...)
	b = appendString(b, m.source+source)
	b = append(b, `,"type":`...)
	b = appendString(b, "toolhub."+e.Kind+"."+e.What)
	b = append(b, `,"subject":`...)
	b = appendString(b, e.Subject)
	b = append(b, `,"time":"`...)
	b = e.Time.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, '"')
	if e.Data != nil {
		data, ok := e.Data.(jsontext.Value)
		if !ok {
			m.data.Reset()
			if err := json.MarshalWrite(&m.data, e.Data); err != nil {
				return nil, err
			}
			data = m.data.Bytes()
		} else if len(data) > 0 && !data.IsValid() {
			return nil, errors.New("its data is no JSON")
		}
		if len(data) > 0 {
			b = append(b, `,"datacontenttype":"application/json","data":`...)
			b = append(b, data...)
		}
	}
	b = append(b, '}')
	m.buf = b
	if len(b) > maxEventBytes {
		return nil, fmt.Errorf("the event has %d bytes, the limit is %d", len(b), maxEventBytes)
	}
	return b, nil
}

func appendString(b []byte, s string) []byte {
	out, _ := jsontext.AppendQuote(b, s) // its error only reports bytes that are not UTF-8
	return out
}

// cloudEvent is an Event on the wire.
type cloudEvent struct {
	ID      string         `json:"id"`
	Source  string         `json:"source"`
	Type    string         `json:"type"`
	Subject string         `json:"subject"`
	Time    time.Time      `json:"time"`
	Data    jsontext.Value `json:"data"`
}

// decode reads an event; what it is about is taken from the subject.
func (m *emitter) decode(subject string, body []byte) (Event, error) {
	p, ok := ParseSubject(subject)
	if !ok || p.Area != AreaEvent {
		return Event{}, fmt.Errorf("%.100q is no subject of an event", subject)
	}
	var w cloudEvent
	if err := json.Unmarshal(body, &w); err != nil {
		return Event{}, err
	}
	if w.ID == "" {
		return Event{}, errors.New("an event without an id")
	}
	e := Event{ID: w.ID, Time: w.Time, Kind: p.Kind, Subject: p.ID, What: p.What, Source: w.Source}
	if len(w.Source) > len(m.source) && w.Source[:len(m.source)] == m.source {
		e.Source = w.Source[len(m.source):]
	}
	if w.Data != nil {
		e.Data = w.Data
	}
	return e, nil
}

// Events calls f for each event that matches filter (see [EventFilter]), in
// order, until ctx ends: those kept since that long ago and then new ones; a
// since of 0 is new ones only. It returns ctx's cause. Events of a stream that
// was lost with its server, or that another program wrote in another form, are
// left out.
func (c *Conn) Events(ctx context.Context, filter string, since time.Duration, f func(Event)) error {
	if filter == "" {
		filter = ">"
	}
	var newest time.Time // of the events seen
	fd := &feed{
		conn: c, link: c.events, js: c.eventsJS, stream: EventStream(c.cfg.Hub), subjects: []string{c.emitter.prefix + filter},
		// A crash of the server loses the last events, whose sequences are used again.
		noResume: true,
		start: func(cfg *jetstream.ConsumerConfig, info *jetstream.StreamInfo) {
			if newest.IsZero() {
				newest = info.TimeStamp.Add(-since)
			}
			from := newest.Add(1)
			cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &from
		},
		restart: func(bool) {},
		state:   func(bool, string) {},
	}
	fd.apply = func(batch []delivery, _ bool) {
		for _, d := range batch {
			newest = d.time
			e, err := c.emitter.decode(d.subject, d.data)
			if err != nil {
				c.log.Warn("event not understood", "subject", d.subject, "error", err)
				continue
			}
			f(e)
		}
	}
	return fd.run(ctx)
}
