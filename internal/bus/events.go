package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go/jetstream"
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

// EventsDropped is how many events were dropped, or sent without the server
// having said that it has stored them: those may be kept after all.
func (c *Conn) EventsDropped() uint64 { return c.emitter.dropped.Load() }

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
