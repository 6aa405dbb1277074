package bus

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"toolhub/internal/mcp"
)

// Notifications of one call that its caller has not taken yet are bounded by
// these; further ones are dropped.
const (
	maxQueuedNotes     = 4096
	maxQueuedNoteBytes = 8 << 20
)

// mux is the inbox of a Conn: one subscription takes the replies of all calls.
// Its callback only sorts messages into the queues of their waiters.
type mux struct {
	prefix string // the inbox, with its last dot
	max    int    // bytes of one message

	dropped atomic.Uint64 // notifications

	mu      sync.Mutex
	next    uint64             // guarded by mu
	waiting map[uint64]*waiter // guarded by mu; by the last token of the subject
}

// waiter is one who waits for messages of his own subject below the inbox: a
// caller for replies, or the side that serves for the parts of a request.
type waiter struct {
	mux     *mux
	token   uint64
	subject string // of the call
	worker  string
	wake    chan struct{} // has one element when there is something new
	timer   *time.Timer
	header  nats.Header // of the call; used again

	// All of this is guarded by mux.mu.
	queue     []message // from head on
	head      int
	seq       int
	done      bool // nothing more is taken
	noteBytes int
	skipping  bool // a notification in parts that does not fit
	got       int  // bytes of the current message in parts
	part      span // the newest part of it
}

// message is one reply as the mux has understood it.
type message struct {
	kind  replyKind
	span  span
	body  []byte
	reply string
	fault *mcp.Fault // of kindBroken
	// foreign says that there was no HeaderReply.
	foreign bool
}

func newMux(prefix string, limit int) *mux {
	return &mux{prefix: prefix, max: limit, waiting: make(map[uint64]*waiter)}
}

// waiters are recycled: their channel, timer and header cost more than the call's own work.
var waiters = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &waiter{wake: make(chan struct{}, 1), timer: t, header: make(nats.Header)}
}}

// open registers a new waiter; close must be called.
func (m *mux) open(subject, worker string) *waiter {
	w := waiters.Get().(*waiter)
	w.mux, w.subject, w.worker = m, subject, worker
	w.seq, w.done, w.noteBytes, w.skipping, w.got, w.part = 0, false, 0, false, 0, span{}
	m.mu.Lock()
	m.next++
	w.token = m.next
	m.waiting[w.token] = w
	m.mu.Unlock()
	return w
}

func (w *waiter) close() {
	w.timer.Stop()
	w.mux.mu.Lock()
	delete(w.mux.waiting, w.token)
	clear(w.queue)
	w.queue, w.head = w.queue[:0], 0
	w.mux.mu.Unlock()
	select {
	case <-w.wake:
	default:
	}
	waiters.Put(w)
}

// inbox is the subject that replies to w go to.
func (w *waiter) inbox() string {
	var buf [128]byte
	b := append(buf[:0], w.mux.prefix...)
	return string(strconv.AppendUint(b, w.token, 10))
}

// deliver is the callback of the inbox. It must never block.
func (m *mux) deliver(msg *nats.Msg) {
	token, err := strconv.ParseUint(msg.Subject[len(m.prefix):], 10, 64)
	if err != nil {
		return
	}
	in := message{kind: kindResult, body: msg.Data, reply: msg.Reply, span: span{part: 1, parts: 1}}
	numbered := false
	seq := 0
	if v := headerGet(msg.Header, HeaderReply); v != "" {
		if in.kind, seq, in.span, numbered = decodeReply(v); !numbered {
			in = broken("a reply has the header %s: %.100q, which means nothing", HeaderReply, v)
		}
	} else if len(msg.Data) == 0 && headerGet(msg.Header, "Status") == "503" {
		in.kind = kindNoResponders
	} else {
		in.foreign = true
	}
	m.mu.Lock()
	w := m.waiting[token]
	if w == nil || w.done || !w.take(in, numbered, seq) {
		m.mu.Unlock()
		return
	}
	m.mu.Unlock()
	w.signal()
}

func (w *waiter) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take puts a message into the queue of w and reports whether it did. Called
// with mux.mu held.
func (w *waiter) take(in message, numbered bool, seq int) bool {
	if numbered {
		if seq != w.seq {
			in = broken("reply %d of the call was lost, reply %d came", w.seq, seq)
		}
		w.seq++
	}
	if in.span.parts > 1 {
		w.part.part++
		if in.span.part == 1 {
			w.part, w.got = in.span, 0
		}
		w.got += len(in.body)
		switch {
		case in.span != w.part:
			in = broken("part %d of %d came where part %d of %d belongs", in.span.part, in.span.parts, w.part.part, w.part.parts)
		case in.span.size > w.mux.max && in.kind != kindNotify: // a notification is dropped below
			in = message{kind: kindBroken, fault: tooLarge("a reply", in.span.size, w.mux.max)}
		case w.got > in.span.size || w.got < in.span.size && in.span.part == in.span.parts:
			in = broken("a message in parts has %d of the %d bytes it promised", w.got, in.span.size)
		}
	}
	switch {
	case in.kind == kindNotify:
		if in.span.part == 1 {
			size := max(len(in.body), in.span.size)
			w.skipping = len(w.queue)-w.head >= maxQueuedNotes || w.noteBytes+size > maxQueuedNoteBytes
			if w.skipping {
				w.mux.dropped.Add(1)
			}
		}
		if w.skipping {
			return false
		}
		w.noteBytes += len(in.body)
	case in.kind.final() && in.span.part == in.span.parts:
		w.done = true
	}
	if in.kind == kindBroken {
		w.done = true
	}
	if w.head > maxQueuedNotes {
		w.queue, w.head = append(w.queue[:0], w.queue[w.head:]...), 0
	}
	w.queue = append(w.queue, in)
	return true
}

func broken(format string, args ...any) message {
	return message{kind: kindBroken, fault: mcp.NewFault(mcp.KindProtocol, "bus_gap", format, args...), span: span{part: 1, parts: 1}}
}

func tooLarge(what string, size, limit int) *mcp.Fault {
	return mcp.NewFault(mcp.KindMessageTooLarge, "message_too_large", "%s of %d bytes is beyond the limit of %d bytes", what, size, limit)
}

// pop takes the next message from the queue.
func (w *waiter) pop() (message, bool) {
	w.mux.mu.Lock()
	defer w.mux.mu.Unlock()
	if w.head == len(w.queue) {
		return message{}, false
	}
	in := w.queue[w.head]
	w.queue[w.head] = message{}
	if w.head++; w.head == len(w.queue) {
		w.queue, w.head = w.queue[:0], 0
	}
	if in.kind == kindNotify {
		w.noteBytes -= len(in.body)
	}
	return in, true
}

// next waits for the next message. The error is ctx's cause, or errDeadline
// when the timer of w runs out.
func (w *waiter) next(ctx context.Context) (message, error) {
	for {
		if in, ok := w.pop(); ok {
			return in, nil
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return message{}, context.Cause(ctx)
		case <-w.timer.C:
			return message{}, errDeadline
		}
	}
}

// fail ends the waits that match with fault.
func (m *mux) fail(match func(*waiter) bool, fault *mcp.Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.waiting {
		if w.done || !match(w) {
			continue
		}
		w.done = true
		w.queue = append(w.queue, message{kind: kindBroken, fault: fault})
		w.signal()
	}
}

// assembler puts the parts of messages together.
type assembler struct{ buf []byte }

// add returns the whole message once its last part is there.
func (a *assembler) add(in message) (body []byte, whole bool) {
	if in.span.parts <= 1 {
		return in.body, true
	}
	if in.span.part == 1 {
		a.buf = make([]byte, 0, in.span.size)
	}
	a.buf = append(a.buf, in.body...)
	return a.buf, in.span.part == in.span.parts
}

// openParts registers a waiter for the parts of a request that follow first,
// which has got bytes.
func (m *mux) openParts(subject string, first span, got int) *waiter {
	w := m.open(subject, "")
	m.mu.Lock()
	w.seq, w.part, w.got = 1, first, got
	m.mu.Unlock()
	return w
}
