package router

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

const (
	// heartbeat is how long a stream is silent before it gets a comment, and
	// firstHeartbeat how long an answer takes before it becomes a stream, so that
	// nothing in between takes the connection for dead.
	heartbeat      = 15 * time.Second
	firstHeartbeat = 10 * time.Second
)

var (
	errStreamEnded = errors.New("the stream has ended")
	errNoStream    = errors.New("the client takes no stream (Accept: text/event-stream)")
)

// reply is the answer to one HTTP request: plain JSON, unless something comes
// before the response, or takes so long that a comment has to. Then it is a
// stream of events with the response as the last one.
type reply struct {
	f       *fronts
	w       http.ResponseWriter
	accepts mcp.Accepts
	session *session // kept alive by the heartbeat; nil in the modern era

	// mu is held while something is written, which a slow client can make last
	// for writeTimeout.
	mu      sync.Mutex
	started bool // it is a stream
	done    bool // nothing more may be written
	err     error
	last    time.Time // of the last sign of life

	// Guarded by the heart's mutex.
	next, prev *reply
	beating    bool
}

// open begins the answer to a request. close must be called before its handler returns.
func (f *fronts) open(w http.ResponseWriter, accepts mcp.Accepts, s *session) *reply {
	p := &reply{f: f, w: w, accepts: accepts, session: s, last: time.Now()}
	f.heart.add(p)
	return p
}

// notify writes one message in front of the response.
func (p *reply) notify(body []byte) { _ = p.send(body) }

// send is notify for those who need to know that it was written.
func (p *reply) send(body []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.startLocked(); err != nil {
		return err
	}
	return p.wroteLocked(mcp.WriteEvent(patientWriter{p.w, p.f.writeTimeout}, body))
}

// start makes the answer a stream right away, with a comment as the first sign.
func (p *reply) start(first string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.startLocked(); err != nil {
		return err
	}
	_, err := p.w.Write([]byte(first))
	return p.wroteLocked(err)
}

// startLocked makes the answer a stream, if it is not one, and readies it for a write.
func (p *reply) startLocked() error {
	switch {
	case p.done:
		return errStreamEnded
	case p.err != nil:
		return p.err
	case !p.accepts.Stream:
		return errNoStream
	}
	setWriteDeadline(p.w, p.f.writeTimeout)
	if !p.started {
		h := p.w.Header()
		h["Content-Type"] = streamType
		h["Cache-Control"] = noStore
		h["X-Accel-Buffering"] = noBuffer
		p.w.WriteHeader(http.StatusOK)
		p.started = true
	}
	return nil
}

func (p *reply) wroteLocked(err error) error {
	if err == nil {
		err = http.NewResponseController(p.w).Flush()
	}
	if err != nil && p.err == nil {
		p.err = err
	}
	p.last = time.Now()
	return p.err
}

// finish writes the response, with status if nothing was written before.
func (p *reply) finish(status int, body []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return
	}
	defer func() { p.done = true }()
	if p.started || !p.accepts.JSON {
		if p.startLocked() == nil {
			_ = p.wroteLocked(mcp.WriteEvent(patientWriter{p.w, p.f.writeTimeout}, body))
		}
		return
	}
	writeJSON(p.w, status, body)
}

// close ends the answer to the request with id, whatever was written of it. It
// is deferred by the handler, and survives its panic.
func (p *reply) close(id jsontext.Value) {
	if r := recover(); r != nil {
		e := p.f.internal("handler panicked", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
		p.finish(http.StatusInternalServerError, mcp.AppendError(nil, id, e))
	}
	p.f.heart.remove(p)
	p.mu.Lock()
	p.done = true
	p.mu.Unlock()
}

// beat gives a sign of life.
func (p *reply) beat() {
	if p.session != nil {
		p.f.sessions.touch(p.session)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.startLocked() == nil {
		_ = p.wroteLocked(mcp.WriteComment(p.w))
		return
	}
	p.last = time.Now()
}

// heart gives the open replies their heartbeats: one timer for all of them.
type heart struct {
	f              *fronts
	silence, first time.Duration

	mu   sync.Mutex
	open *reply // guarded by mu; a list
}

func (h *heart) add(p *reply) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.next = h.open; p.next != nil {
		p.next.prev = p
	}
	h.open = p
}

func (h *heart) remove(p *reply) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.prev != nil {
		p.prev.next = p.next
	} else if h.open == p {
		h.open = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	}
	p.next, p.prev = nil, nil
}

func (h *heart) run(ctx context.Context) {
	tick := time.NewTicker(max(min(h.first, h.silence)/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			h.beat(now)
		}
	}
}

// beat starts the heartbeats that are due. Each is on a goroutine of its own,
// since a client that does not read blocks it.
func (h *heart) beat(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := h.open; p != nil; p = p.next {
		if p.beating || !p.due(now, h) {
			continue
		}
		p.beating = true
		h.f.tasks.Go(func() {
			p.beat()
			h.mu.Lock()
			p.beating = false
			h.mu.Unlock()
		})
	}
}

func (p *reply) due(now time.Time, h *heart) bool {
	if !p.mu.TryLock() {
		return false // something is being written
	}
	defer p.mu.Unlock()
	wait := h.silence
	if !p.started {
		wait = h.first
	}
	return !p.done && now.Sub(p.last) >= wait
}
