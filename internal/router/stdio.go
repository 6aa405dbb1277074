package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// maxPipeRequests bounds the requests of one stdio client that run at once.
const maxPipeRequests = 1024

// local is who calls over stdio: whoever started the hub.
const local = "local"

// ServeStdio serves one client on in and out, in both eras at once, until in
// ends, out takes no more, or ctx or Run ends. A client that is gone cancels all
// that runs; otherwise running calls have the hub's drain_timeout to finish. Run must be running too.
func (r *Router) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	return r.fronts.servePipe(ctx, in, out)
}

// pipe is the one client of a stdio endpoint.
type pipe struct {
	f     *fronts
	lines *mcp.ServerPipe
	// life is that of everything that runs for the client.
	life context.Context
	end  context.CancelCauseFunc
	wg   sync.WaitGroup
	// stop ends what waits for changes.
	stop context.Context

	mu sync.Mutex
	// session is that of a client of the initialize era, nil before initialize. It
	// is known here only, and lasts as long as the pipe.
	session *session
	running map[string]context.CancelCauseFunc // by raw id
	closing bool                               // nothing new is started
}

// spawn runs task for the client, unless the pipe is closing.
func (p *pipe) spawn(task func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closing {
		p.wg.Go(task)
	}
	return !p.closing
}

// wait waits for all tasks.
func (p *pipe) wait() {
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	p.wg.Wait()
}

func (f *fronts) servePipe(ctx context.Context, in io.Reader, out io.Writer) error {
	if !f.pipes.add() {
		return nil // the router has stopped
	}
	defer f.pipes.remove()
	broken := make(chan struct{})
	p := &pipe{f: f, lines: mcp.NewServerPipe(in, &watchedWriter{Writer: out, broken: broken}, f.engine.maxMessageBytes), running: make(map[string]context.CancelCauseFunc)}
	p.life, p.end = context.WithCancelCause(f.base)
	defer p.end(nil)
	var stop context.CancelFunc
	p.stop, stop = context.WithCancel(ctx)
	defer stop()

	gone := mcp.NewFault(mcp.KindUnavailable, mcp.ReasonCancelled, "the client closed the connection")
	read := make(chan error, 1)
	go func() { read <- p.read(p.stop) }()
	var err error
	select {
	case err = <-read:
		stop()
		p.end(gone)
	case <-broken:
		stop()
		p.end(gone)
		p.wait()
		unread(in, read)
	case <-ctx.Done():
		p.drain(in, read, stop)
	case <-f.draining:
		p.drain(in, read, stop)
	}
	p.wait()
	return err
}

// drain lets what runs come to its end, and ends the reading.
func (p *pipe) drain(in io.Reader, read <-chan error, stop context.CancelFunc) {
	stop()
	idle := make(chan struct{})
	go func() {
		p.wait()
		close(idle)
	}()
	limit := time.NewTimer(p.f.engine.settings().DrainTimeout.Std())
	defer limit.Stop()
	select {
	case <-idle:
	case <-limit.C:
		p.end(mcp.Unavailable("", "stopping", "the router is stopping"))
		<-idle
	}
	unread(in, read)
}

// unread ends the reading of in. A file that cannot be interrupted, such as a
// terminal, keeps its reader until the process ends.
func unread(in io.Reader, read <-chan error) {
	if d, ok := in.(interface{ SetReadDeadline(t time.Time) error }); ok && d.SetReadDeadline(time.Now()) == nil {
		<-read
	} else if c, ok := in.(*io.PipeReader); ok {
		_ = c.Close()
		<-read
	}
}

// watchedWriter closes broken when a write fails: nobody is left to read.
type watchedWriter struct {
	io.Writer
	once   sync.Once
	broken chan struct{}
}

func (w *watchedWriter) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	if err != nil {
		w.once.Do(func() { close(w.broken) })
	}
	return n, err
}

// pipes counts the stdio clients that are served.
type pipes struct {
	mu     sync.Mutex
	n      int           // guarded by mu
	closed bool          // guarded by mu; no more are served
	none   chan struct{} // guarded by mu; closed when n is 0 after closed
}

func (p *pipes) add() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.n++
	return true
}

func (p *pipes) remove() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n--; p.n == 0 && p.closed {
		close(p.none)
	}
}

// drainPipes takes no more stdio clients and waits for the last one, or for ctx.
func (f *fronts) drainPipes(ctx context.Context) error {
	p := &f.pipes
	p.mu.Lock()
	if !p.closed {
		p.closed, p.none = true, make(chan struct{})
		if p.n == 0 {
			close(p.none)
		}
	}
	p.mu.Unlock()
	select {
	case <-p.none:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// read takes messages until the end of the input, or ctx's.
func (p *pipe) read(ctx context.Context) error {
	for {
		line, err := p.lines.Read()
		if ctx.Err() != nil {
			return nil
		}
		if long, ok := errors.AsType[*mcp.LongLine](err); ok {
			p.write(mcp.AppendError(nil, long.ID, mcp.NewFault(mcp.KindMessageTooLarge, "message_too_large", "%v", long).RPC()))
			continue
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("couldn't read: %w", err)
		}
		p.take(line)
	}
}

// write writes one message. Where it fails the client is gone, which servePipe
// sees by itself.
func (p *pipe) write(body []byte) { _ = p.lines.Write(body) }

// take deals with one message.
func (p *pipe) take(line []byte) {
	defer func() {
		if r := recover(); r != nil {
			p.write(mcp.AppendError(nil, nil, p.f.internal("message panicked", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))))
		}
	}()
	m, err := mcp.ParseMessage(line, mcp.Strict)
	switch {
	case err != nil:
		p.write(mcp.AppendError(nil, mcp.RequestID(line), toError(err)))
	case m.IsResponse():
		if s := p.legacy(); s != nil && m.ID != nil {
			s.respond(m.ID, line)
		}
	case m.IsNotification():
		if m.Method == mcp.NotifyCancelled {
			p.cancel(mcp.Field(m.Params, "requestId"))
		}
	default:
		p.request(&m)
	}
}

func (p *pipe) legacy() *session {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.session
}

func (p *pipe) cancel(id jsontext.Value) {
	p.mu.Lock()
	cancel := p.running[string(id)]
	p.mu.Unlock()
	if cancel != nil {
		cancel(errClientCancelled)
	}
}

// request starts a request. What decides the era of the pipe is done before the
// next message is read.
func (p *pipe) request(m *mcp.Message) {
	params, err := mcp.ParseParams(m.Params)
	var meta mcp.RequestMeta
	if err == nil {
		meta, err = mcp.ReadRequestMeta(params.Meta)
	}
	if err != nil {
		p.write(mcp.AppendError(nil, m.ID, toError(err)))
		return
	}
	s := p.legacy()
	var serve func(ctx context.Context) []byte
	switch {
	case meta.Version != "" && (s == nil || mcp.EraOf(meta.Version) == mcp.EraModern):
		serve = func(ctx context.Context) []byte { return p.modern(ctx, m, &params, &meta) }
	case m.Method == mcp.MethodInitialize:
		p.initialize(m)
		return
	case s != nil:
		c := &legacyCall{f: p.f, record: s.record(), message: m, params: &params, send: p.lines.Write, expect: s.expect, change: s.change, watch: s.watch}
		serve = c.run
	case m.Method == mcp.MethodPing:
		p.write(mcp.AppendResult(nil, m.ID, jsontext.Value("{}")))
		return
	default:
		p.write(mcp.AppendError(nil, m.ID, mcp.InvalidParams("params._meta has no "+mcp.MetaProtocolVersion+", and no session was started with initialize: one of them must say which version is spoken")))
		return
	}
	key := string(m.ID)
	ctx, cancel := context.WithCancelCause(p.life)
	p.mu.Lock()
	_, taken := p.running[key]
	full := len(p.running) >= maxPipeRequests
	if !taken && !full {
		p.running[key] = cancel
	}
	p.mu.Unlock()
	switch {
	case taken:
		cancel(nil)
		p.write(mcp.AppendError(nil, m.ID, &mcp.Error{Code: mcp.CodeInvalidRequest, Message: "a request with this id is running already"}))
		return
	case full:
		cancel(nil)
		f := mcp.NewFault(mcp.KindOverloaded, "requests", "%d requests are running already, which is the limit", maxPipeRequests)
		f.Retryable = true
		p.write(mcp.AppendError(nil, m.ID, f.RPC()))
		return
	}
	p.spawn(func() {
		defer cancel(nil)
		body := p.survive(ctx, m, serve)
		cancelled := context.Cause(ctx) == error(errClientCancelled)
		p.mu.Lock()
		delete(p.running, key)
		p.mu.Unlock()
		if body != nil && !cancelled { // a cancelled request gets no response
			p.write(body)
		}
	})
}

// survive serves one request, and answers for a panic.
func (p *pipe) survive(ctx context.Context, m *mcp.Message, serve func(context.Context) []byte) (body []byte) {
	defer func() {
		if r := recover(); r != nil {
			body = mcp.AppendError(nil, m.ID, p.f.internal("request panicked", "method", m.Method, "panic", fmt.Sprint(r), "stack", string(debug.Stack())))
		}
	}()
	return serve(ctx)
}

func (p *pipe) modern(ctx context.Context, m *mcp.Message, params *mcp.Params, meta *mcp.RequestMeta) []byte {
	if e := meta.CheckModern(); e != nil {
		return mcp.AppendError(nil, m.ID, e)
	}
	c := caller{principal: local, era: mcp.EraModern}
	if m.Method == mcp.MethodListen {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(p.stop, cancel)()
		body := p.f.listenTo(ctx, "", c, m, p.lines.Write)
		if body == nil && p.life.Err() == nil && p.stop.Err() != nil { // it is us who end it
			body = (&listening{id: m.ID}).ended()
		}
		return body
	}
	return p.f.engine.do(ctx, &request{id: m.ID, method: m.Method, params: m.Params, name: params.Name, uri: params.URI, caller: c}, p.write).body
}

// initialize opens the session of the pipe and its stream of changes.
func (p *pipe) initialize(m *mcp.Message) {
	rec, e := newRecord(m.Params, "")
	if e != nil {
		p.write(mcp.AppendError(nil, m.ID, e))
		return
	}
	rec.Principal = local
	s := &session{rec: rec, stream: newStream(nil)}
	p.mu.Lock()
	again := p.session != nil
	if !again {
		p.session = s
	}
	p.mu.Unlock()
	if again {
		p.write(mcp.AppendError(nil, m.ID, &mcp.Error{Code: mcp.CodeInvalidRequest, Message: "the session was started already"}))
		return
	}
	// Before the client can list, so that no change behind its list is missed.
	sub := p.f.engine.subscribe("", caller{principal: local, era: mcp.EraLegacy}, allLists)
	p.write(mcp.AppendResult(nil, m.ID, p.f.welcome(rec)))
	watching := p.spawn(func() {
		defer sub.Close()
		p.f.stream(p.stop, "", s, s.stream, sub, p.lines.Write)
	})
	if !watching {
		sub.Close()
	}
}

// change changes the record of a session that no bucket keeps.
func (s *session) change(edit func(*record)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := *s.rec
	edit(&rec)
	s.setLocked(&rec)
	return nil
}
