package mcp

import (
	"io"
	"sync"
)

// outbox is what waits to be written to a stdio server. Its one writer is the
// only one that a server can block by not reading; a caller that gives up takes
// its message back as long as it is whole.
type outbox struct {
	mu     sync.Mutex
	urgent []*outMessage // cancellations and answers: in front of all calls
	calls  []*outMessage // one for each call that waits, so bounded by them
	wake   chan struct{} // holds a token when something is queued
}

type outMessage struct {
	body []byte // with the newline
	sent bool   // at least partly
}

// maxUrgent bounds the urgent messages to a server that does not read.
const maxUrgent = 256

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

// push queues a call, whose body it takes over.
func (o *outbox) push(body []byte) *outMessage {
	m := &outMessage{body: frame(body)}
	o.mu.Lock()
	o.calls = append(o.calls, m)
	o.mu.Unlock()
	o.signal()
	return m
}

// jump queues a message in front of all calls. It reports false if there are too
// many already.
func (o *outbox) jump(body []byte) bool {
	m := &outMessage{body: frame(body)}
	o.mu.Lock()
	ok := len(o.urgent) < maxUrgent
	if ok {
		o.urgent = append(o.urgent, m)
	}
	o.mu.Unlock()
	o.signal()
	return ok
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// withdraw takes m back, and reports whether no byte of it was sent.
func (o *outbox) withdraw(m *outMessage) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if m.sent {
		return false
	}
	for i, q := range o.calls {
		if q == m {
			o.calls = append(o.calls[:i], o.calls[i+1:]...)
			break
		}
	}
	return true
}

// take moves the next messages into buf, as many as make one write worth while.
func (o *outbox) take(buf []byte) []byte {
	const enough = 16 << 10
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, queue := range []*[]*outMessage{&o.urgent, &o.calls} {
		for len(*queue) > 0 && len(buf) < enough {
			m := (*queue)[0]
			(*queue)[0] = nil
			*queue = (*queue)[1:]
			m.sent = true
			if len(buf) == 0 && len(m.body) >= enough {
				return m.body // not worth a copy
			}
			buf = append(buf, m.body...)
		}
	}
	return buf
}

// run writes until done is closed or writing fails.
func (o *outbox) run(w io.Writer, done <-chan struct{}) error {
	var buf []byte
	for {
		select {
		case <-done:
			return nil
		case <-o.wake:
		}
		for {
			batch := o.take(buf[:0])
			if len(batch) == 0 {
				break
			}
			if _, err := w.Write(batch); err != nil {
				return err
			}
			if cap(batch) <= 64<<10 {
				buf = batch
			}
		}
	}
}

// frame makes body one line. A newline in JSON can only be white space.
func frame(body []byte) []byte {
	for i, c := range body {
		if c == '\n' || c == '\r' {
			body[i] = ' '
		}
	}
	return append(body, '\n')
}
