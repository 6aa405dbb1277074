package bus

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
)

const (
	// maxEventBytes bounds one event.
	maxEventBytes = 64 << 10
	// maxQueuedEvents bounds the events that wait to be sent.
	maxQueuedEvents = 8192
	// maxEventBatch bounds the events that are sent without waiting: a server
	// holds 10,000 messages for one stream, from all its clients.
	maxEventBatch = 2048
	// ackTimeout bounds the wait for the server to have stored a batch, and
	// lastAckTimeout that of Close.
	ackTimeout     = 10 * time.Second
	lastAckTimeout = 2 * time.Second
	// gatherTime is how long an event waits for others to be sent with.
	gatherTime = 20 * time.Millisecond
	// resendPause is the time between two attempts to send what was not taken.
	resendPause = 50 * time.Millisecond
)

// emitter sends the events of a Conn.
//
// Only the last message of a batch asks for an acknowledgement, and nothing is
// sent before it came: the server would throw away without a word what its stream
// cannot take. What was certainly not stored is sent again, so that nothing comes
// twice; what may or may not have been stored counts as dropped.
type emitter struct {
	conn    *Conn
	queue   chan Event
	dropped atomic.Uint64
	prefix  string // of subjects
	source  string

	// All of this belongs to run.
	batch []Event // taken from the queue, not sent
	// proven is the connection, counted by reconnects, on which the stream has
	// acknowledged something. On any other it may not be there yet: one message
	// is sent, and no more before it was stored.
	proven uint64
	inbox  string // for acknowledgements, with its last dot
	acks   chan *nats.Msg
	asked  uint64       // acknowledgements
	buf    []byte       // of a whole event
	last   []byte       // of that which asks
	data   bytes.Buffer // of the data of an event
}

func newEmitter(c *Conn) *emitter {
	return &emitter{
		conn: c, queue: make(chan Event, maxQueuedEvents), acks: make(chan *nats.Msg, 16),
		prefix: eventPrefix(c.cfg.Hub), source: "toolhub/" + c.cfg.Hub + "/",
		inbox: c.events.nc.NewInbox() + ".",
	}
}

// start runs m until its Conn is closed.
func (m *emitter) start() error {
	if _, err := m.conn.events.nc.ChanSubscribe(m.inbox+"*", m.acks); err != nil {
		return fmt.Errorf("couldn't subscribe to acknowledgements of events: %w", err)
	}
	m.conn.spawn(m.run)
	return nil
}

// run sends events in batches: waking this goroutine, the connection and the
// server for each one would cost several times what the event itself does.
func (m *emitter) run() {
	gather := time.NewTimer(gatherTime)
	gather.Stop()
	for {
		select {
		case e := <-m.queue:
			m.batch = append(m.batch, e)
			if len(m.queue) < maxEventBatch {
				gather.Reset(gatherTime)
				select {
				case <-gather.C:
				case <-m.conn.closing:
				}
			}
		case <-m.conn.closing:
			if len(m.queue) == 0 {
				return
			}
		}
		for first := true; first || len(m.batch) > 0; first = false {
			select {
			case <-m.conn.events.ups():
			case <-m.conn.closing:
			}
			if !m.sendBatch() && !m.pause() {
				m.dropped.Add(uint64(len(m.batch) + len(m.queue))) //nolint:gosec // lengths
				return
			}
		}
	}
}

// pause reports false if the Conn is closed meanwhile.
func (m *emitter) pause() bool {
	timer := time.NewTimer(resendPause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-m.conn.closing:
		return false
	}
}

// sendBatch sends what is in the queue, behind what is left of the batch before.
// It reports false if it left something, which was not stored.
func (m *emitter) sendBatch() bool {
	nc := m.conn.events.nc
	if !nc.IsConnected() {
		return false
	}
	for range min(len(m.queue), maxEventBatch-len(m.batch)) {
		m.batch = append(m.batch, <-m.queue)
	}
	connection := nc.Stats().Reconnects
	n := len(m.batch)
	if connection != m.proven {
		n = min(n, 1)
	}
	var err error
	for ; n > 0; n-- { // the last one must be one that can be sent
		if m.last, err = m.encode(m.last, &m.batch[n-1]); err == nil {
			break
		}
		m.drop(n-1, err)
		m.batch = slices.Delete(m.batch, n-1, n)
	}
	if n == 0 {
		return true
	}
	sent := 0
	for i := range n - 1 {
		if m.buf, err = m.encode(m.buf, &m.batch[i]); err == nil {
			err = nc.Publish(m.subject(&m.batch[i]), m.buf)
		}
		switch {
		case err == nil:
			sent++
		case disconnected(err):
			m.lose(sent, err)
			m.batch = slices.Delete(m.batch, 0, i)
			return false
		default:
			m.drop(i, err)
		}
	}
	err = m.ask(m.subject(&m.batch[n-1]), m.last)
	switch {
	case err == nil:
		m.proven = nc.Stats().Reconnects
		if m.proven != connection { // the others went to the connection that broke
			m.lose(sent, errLinkDown)
		}
		m.batch = slices.Delete(m.batch, 0, n)
		return true
	case disconnected(err) || errors.Is(err, nats.ErrNoResponders):
		if m.proven != unproven {
			m.conn.log.Warn("events wait, their stream takes nothing", "error", err)
		}
		m.proven = unproven
		m.lose(sent, err)
		m.batch = slices.Delete(m.batch, 0, n-1)
		return false
	case errors.Is(err, nats.ErrMaxPayload):
		m.drop(n-1, err)
	default:
		m.proven = unproven
		sent++
	}
	m.lose(sent, err)
	m.batch = slices.Delete(m.batch, 0, n)
	return true
}

const unproven = ^uint64(0)

// ask publishes a message and waits until it is stored. After
// [nats.ErrNoResponders], and if there was no connection, it is certainly not.
func (m *emitter) ask(subject string, body []byte) error {
	m.asked++
	reply := m.inbox + strconv.FormatUint(m.asked, 10)
	down, closing := m.conn.events.downs(), m.conn.closing
	if err := m.conn.events.nc.PublishRequest(subject, reply, body); err != nil {
		return err
	}
	timeout := time.NewTimer(ackTimeout)
	defer timeout.Stop()
	for {
		select {
		case msg := <-m.acks:
			switch {
			case msg.Subject != reply: // too late
			case len(msg.Data) == 0 && headerGet(msg.Header, "Status") == "503":
				return nats.ErrNoResponders
			case bytes.Contains(msg.Data, []byte(`"error"`)):
				return fmt.Errorf("the stream of events says %.300s", msg.Data)
			default:
				return nil
			}
		case <-down:
			return errLinkDown
		case <-timeout.C:
			return nats.ErrTimeout
		case <-closing:
			closing = nil
			timeout.Reset(lastAckTimeout)
		}
	}
}

// drop drops an event that cannot be sent.
func (m *emitter) drop(i int, err error) {
	m.dropped.Add(1)
	m.conn.log.Error("event dropped", "kind", m.batch[i].Kind, "what", m.batch[i].What, "error", err)
}

// lose counts events of which nobody knows whether they were stored.
func (m *emitter) lose(n int, err error) {
	if n > 0 {
		m.dropped.Add(uint64(n)) //nolint:gosec // a length
		m.conn.log.Warn("events not acknowledged, they count as dropped", "events", n, "error", err)
	}
}

func (m *emitter) subject(e *Event) string {
	return eventSubject(m.prefix, e.Kind, e.Subject, e.What)
}

// encode makes the message of an event in buf, which it returns as it is then.
func (m *emitter) encode(buf []byte, e *Event) ([]byte, error) {
	id, source := e.ID, e.Source
	if id == "" {
		id = m.conn.newID()
	}
	if source == "" {
		source = m.conn.cfg.Identity
	}
	b := append(buf[:0], `{"specversion":"1.0","id":`...)
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
				return b, err
			}
			data = m.data.Bytes()
		} else if len(data) > 0 && !data.IsValid() {
			return b, errors.New("its data is no JSON")
		}
		if len(data) > 0 {
			b = append(b, `,"datacontenttype":"application/json","data":`...)
			b = append(b, data...)
		}
	}
	b = append(b, '}')
	if len(b) > maxEventBytes {
		return b, fmt.Errorf("the event has %d bytes, the limit is %d", len(b), maxEventBytes)
	}
	return b, nil
}

func appendString(b []byte, s string) []byte {
	out, _ := jsontext.AppendQuote(b, s) // its error only reports bytes that are not UTF-8
	return out
}
