package bus

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"toolhub/internal/mcp"
)

// unsubscribeTimeout bounds the wait for the last messages of a subscription.
const unsubscribeTimeout = 2 * time.Second

// Incoming is a call on the side that serves it.
type Incoming struct {
	Subject string
	Meta    Meta
	// Body is the JSON-RPC request; it has not been parsed.
	Body []byte

	service *Service
	reply   string
	span    span
	proof   proof
	cancel  context.CancelCauseFunc

	mu   sync.Mutex
	seq  int  // guarded by mu; number of the next reply
	done bool // guarded by mu; the final reply was sent
}

// Notify sends a notification, a whole JSON-RPC message, to the caller. It fails
// after the handler has returned and while the connection is down.
func (in *Incoming) Notify(body []byte) error { return in.send(kindNotify, body) }

// Handler answers one call. ctx ends when the caller cancels, its deadline
// passes or the service stops; the cause is an [*mcp.Fault]. An [*mcp.Fault]
// returned reaches the caller as it is; of any other error it gets only an id,
// the text goes to the log.
type Handler func(ctx context.Context, in *Incoming) (Reply, error)

// Service takes the calls of one subject.
type Service struct {
	conn    *Conn
	subject string
	queue   string
	server  string // of the subject, "" if it is not about one
	limit   int
	handle  Handler
	sub     *nats.Subscription
	gone    chan struct{} // closed when no more messages come

	// base is the parent of the ctx of every call: they end with the service.
	base context.Context
	end  context.CancelCauseFunc

	// latest is the subject of the newest call and about what it says: calls
	// of one method come in rows. Both belong to receive.
	latest string
	about  Subject

	stopped atomic.Bool // calls that still come are refused
	retired sync.Once   // unsubscribing

	mu      sync.Mutex
	current int           // guarded by mu; calls that run
	idle    chan struct{} // guarded by mu; closed when current is 0, nil if nobody waits

	stats stats
}

// Serve answers calls on subject, which may end in ">", each on a goroutine of
// its own; beyond limit at once (0 is no limit) they are refused as overloaded.
// With a queue, the members of that queue group share the calls; without one, a
// call id is answered once and a repetition is refused. When Serve returns, the
// server knows of the subscription.
func (c *Conn) Serve(subject, queue string, limit int, h Handler) (*Service, error) {
	s := &Service{conn: c, subject: subject, queue: queue, limit: limit, handle: h, gone: make(chan struct{})}
	s.stats.started = time.Now()
	if p, ok := ParseSubject(strings.TrimSuffix(subject, ">") + "_"); ok {
		s.server = p.Server
	}
	s.base, s.end = context.WithCancelCause(context.Background())
	c.mu.Lock()
	if c.services == nil {
		c.mu.Unlock()
		return nil, fmt.Errorf("couldn't serve %s: %w", subject, nats.ErrConnectionClosed)
	}
	c.services[s] = struct{}{}
	c.mu.Unlock()
	if err := s.subscribe(); err != nil {
		s.Stop()
		return nil, fmt.Errorf("couldn't serve %s: %w", subject, err)
	}
	return s, nil
}

func (s *Service) subscribe() error {
	nc := s.conn.calls.nc
	sub, err := nc.QueueSubscribe(s.subject, s.queue, s.receive)
	if err != nil {
		return err
	}
	sub.SetClosedHandler(func(string) { close(s.gone) })
	s.sub = sub
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return err
	}
	err = nc.FlushTimeout(apiTimeout)
	if err != nil && !disconnected(err) && nc.IsConnected() {
		return err
	}
	return nil // without a connection, it is subscribed as soon as there is one
}

// receive is the callback of the subscription. It must not block.
func (s *Service) receive(msg *nats.Msg) {
	in := &Incoming{Subject: msg.Subject, Body: msg.Data, service: s, reply: msg.Reply}
	if msg.Reply == "" {
		return // nobody could get an answer
	}
	meta, span, err := decodeMeta(msg.Header)
	in.Meta, in.span, in.proof = meta, span, proofOf(headerGet(msg.Header, HeaderCall))
	if msg.Subject != s.latest {
		s.latest = msg.Subject
		s.about, _ = ParseSubject(msg.Subject)
	}
	in.Meta.Server, in.Meta.Method = s.about.Server, s.about.Method
	if err != nil {
		s.refuse(in, mcp.NewFault(mcp.KindInvalid, "call_header", "%v", err))
		return
	}
	switch {
	case !meta.Deadline.IsZero() && !meta.Deadline.After(time.Now()):
		s.refuse(in, mcp.NewFault(mcp.KindTimeout, "expired", "the deadline of the call had passed when it arrived"))
	case s.stopped.Load():
		s.refuse(in, mcp.Unavailable("", "stopping", "the process that served it is stopping"))
	case span.size > s.conn.mux.max:
		s.refuse(in, tooLarge("a request", span.size, s.conn.mux.max))
	case !s.begin():
		s.refuse(in, &mcp.Fault{
			Kind: mcp.KindOverloaded, Reason: "call_limit", Retryable: true,
			Message: fmt.Sprintf("%d calls are running already, which is the limit", s.limit),
		})
	default:
		if s.queue == "" && meta.CallID != "" {
			if known, same := s.conn.recent.add(meta.CallID, msg.Reply); known {
				s.finish()
				if !same { // else NATS repeated itself, and the answer is on its way
					s.refuse(in, mcp.NewFault(mcp.KindInvalid, "duplicate_call", "a call with the id %.100q was taken already", meta.CallID))
				}
				return
			}
		}
		ctx := s.start(in)
		s.conn.crew.run(ctx, in)
	}
}

// start makes the ctx of a call, which [Conn.cancelCall] can end from now on.
func (s *Service) start(in *Incoming) context.Context {
	ctx, cancel := context.WithCancelCause(s.base)
	in.cancel = cancel
	if s.conn.running.add(in) {
		cancel(cancelled)
	}
	return ctx
}

// Causes of the end of a ctx. They are shared by all calls: not to be changed.
var (
	cancelled   = mcp.NewFault(mcp.KindUnavailable, mcp.ReasonCancelled, "the caller cancelled the call")
	tookTooLong = mcp.NewFault(mcp.KindTimeout, "deadline", "the call took longer than the time allowed")
)

// refuse answers a call that is not run.
func (s *Service) refuse(in *Incoming, f *mcp.Fault) {
	s.stats.count(0, f)
	in.fail(f)
}

func (s *Service) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limit > 0 && s.current >= s.limit {
		return false
	}
	s.current++
	return true
}

func (s *Service) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current--; s.current == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// Running is how many calls run just now.
func (s *Service) Running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

func (in *Incoming) run(ctx context.Context) {
	s := in.service
	defer s.finish()
	defer s.conn.running.remove(in)
	defer in.cancel(nil)
	began := time.Now()
	if !in.Meta.Deadline.IsZero() {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadlineCause(ctx, in.Meta.Deadline, tookTooLong)
		defer stop()
	}
	err := in.complete(ctx)
	var reply Reply
	if err == nil {
		err = in.verify(ctx)
	}
	if err == nil {
		reply, err = in.handle(ctx)
	}
	if err == nil && len(reply.Body) > s.conn.mux.max {
		err = tooLarge("the reply", len(reply.Body), s.conn.mux.max)
	}
	if err != nil {
		f := in.faultOf(err)
		s.stats.count(time.Since(began), f)
		in.fail(f)
		return
	}
	kind := kindResult
	if reply.IsError {
		kind = kindError
	}
	s.stats.count(time.Since(began), nil)
	in.finish(ctx, kind, reply.Body)
}

// handle runs the handler and survives its panic.
func (in *Incoming) handle(ctx context.Context) (reply Reply, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("handler panicked: %v\n%s", r, debug.Stack())
		}
	}()
	return in.service.handle(ctx, in)
}

// faultOf makes of an error what the caller may see.
func (in *Incoming) faultOf(err error) *mcp.Fault {
	if f, ok := errors.AsType[*mcp.Fault](err); ok {
		return f
	}
	id := in.service.conn.newID()
	in.service.conn.log.Error("call failed inside", "error_id", id, "server", in.Meta.Server, "method", in.Meta.Method,
		"call_id", in.Meta.CallID, "error", err)
	return mcp.NewFault(mcp.KindTransport, "internal", "internal error, see the log of %s for %s", in.service.conn.Identity(), id)
}

// complete fetches the parts of a request that did not fit into its message.
func (in *Incoming) complete(ctx context.Context) error {
	if in.span.parts <= 1 {
		return nil
	}
	c := in.service.conn
	size := int64(in.span.size)
	if c.assembling.Add(size) > maxAssembling(c.mux.max) {
		c.assembling.Add(-size)
		return &mcp.Fault{Kind: mcp.KindOverloaded, Reason: "request_bytes", Retryable: true, Message: "too many big requests arrive at once"}
	}
	defer c.assembling.Add(-size)
	w := c.mux.openParts(in.Subject, in.span, len(in.Body))
	defer w.close()
	a := assembler{buf: append(make([]byte, 0, in.span.size), in.Body...)}
	if err := in.publish(kindContinue, span{}, w.inbox(), nil); err != nil {
		return err
	}
	for {
		w.timer.Reset(partTimeout)
		part, err := w.next(ctx)
		switch {
		case err == errDeadline: //nolint:errorlint // never wrapped
			return mcp.NewFault(mcp.KindTimeout, "request_parts", "the rest of the request did not arrive")
		case err != nil:
			return err
		case part.kind == kindBroken:
			return part.fault
		case part.kind != kindMore || part.span.parts != in.span.parts || part.span.size != in.span.size:
			return mcp.NewFault(mcp.KindProtocol, "request_parts", "the parts of the request do not belong together")
		}
		if body, whole := a.add(part); whole {
			in.Body = body
			return nil
		}
	}
}

func maxAssembling(limit int) int64 { return 8 * int64(limit) }

// fail sends a fault as the final reply.
func (in *Incoming) fail(f *mcp.Fault) {
	if f.Server == "" && in.Meta.Server != "" {
		copied := *f
		copied.Server = in.Meta.Server
		f = &copied
	}
	m, err := mcp.ParseMessage(in.Body, mcp.Lenient)
	if err != nil {
		m.ID = nil
	}
	in.finish(in.service.base, kindFault, mcp.AppendError(nil, m.ID, f.RPC()))
}

// finish sends the final reply. While the connection is down it waits for it,
// as long as the caller may be waiting too.
func (in *Incoming) finish(ctx context.Context, kind replyKind, body []byte) {
	c := in.service.conn
	for {
		up := c.calls.ups()
		err := in.send(kind, body)
		if err == nil || errors.Is(err, errAnswered) {
			return
		}
		if !disconnected(err) {
			c.log.Warn("couldn't reply to a call", "server", in.Meta.Server, "method", in.Meta.Method, "call_id", in.Meta.CallID, "error", err)
			return
		}
		select {
		case <-up:
		case <-ctx.Done():
			return
		case <-c.closing:
			return
		}
	}
}

var errAnswered = errors.New("the call has been answered")

// send publishes one message to the caller, in parts if it is too big for one.
func (in *Incoming) send(kind replyKind, body []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.done {
		return errAnswered
	}
	limit := partLimit(in.service.conn.calls.nc, replyHeaderBytes)
	n := 1
	if len(body) > limit {
		n = split(len(body), limit)
	}
	size := len(body)
	for k := 1; k <= n; k++ {
		part := body[:min(limit, len(body))]
		body = body[len(part):]
		if err := in.publishLocked(kind, span{part: k, parts: n, size: size}, "", part); err != nil {
			return err
		}
	}
	in.done = kind.final()
	return nil
}

func (in *Incoming) publish(kind replyKind, s span, reply string, body []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.publishLocked(kind, s, reply, body)
}

// publishLocked sends one numbered reply. Called with in.mu held, which keeps
// the numbers in the order of the wire.
func (in *Incoming) publishLocked(kind replyKind, s span, reply string, body []byte) error {
	msg := &nats.Msg{Subject: in.reply, Reply: reply, Header: encodeReply(kind, in.seq, s), Data: body}
	if err := in.service.conn.calls.nc.PublishMsg(msg); err != nil {
		return err
	}
	in.seq++
	return nil
}

// retire stops the flow of calls; those that are on their way are still received.
func (s *Service) retire() {
	s.retired.Do(func() {
		if s.sub == nil {
			close(s.gone)
			return
		}
		nc := s.conn.calls.nc
		if nc.IsConnected() && s.sub.Drain() == nil {
			return
		}
		_ = s.sub.Unsubscribe()
	})
}

// Drain stops taking calls and waits for the running ones, or for ctx.
func (s *Service) Drain(ctx context.Context) error {
	s.retire()
	select {
	case <-s.gone:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-s.settled():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.forget()
	return nil
}

// settled is closed once no call runs.
func (s *Service) settled() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == 0 {
		done := make(chan struct{})
		close(done)
		return done
	}
	if s.idle == nil {
		s.idle = make(chan struct{})
	}
	return s.idle
}

// Stop stops taking calls, cancels the running ones and waits for them.
func (s *Service) Stop() {
	s.stopped.Store(true)
	s.retire()
	s.end(mcp.Unavailable("", "stopping", "the process that served the call is stopping"))
	timeout := time.NewTimer(unsubscribeTimeout)
	defer timeout.Stop()
	select {
	case <-s.gone:
	case <-timeout.C: // the connection broke just now; late messages are refused
	}
	<-s.settled()
	s.forget()
}

func (s *Service) forget() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	delete(s.conn.services, s)
}
