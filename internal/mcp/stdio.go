package mcp

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Pipe leads to a server that speaks newline-delimited JSON (2026-07-28,
// basic/transports/stdio): a process that the caller started, or anything else.
type Pipe struct {
	// Out is the server's standard input, In its standard output. Closing either
	// must end a Read or Write of it that blocks.
	Out io.WriteCloser
	In  io.ReadCloser
}

func (p *Pipe) close() {
	_ = p.Out.Close()
	_ = p.In.Close()
}

// ConnectStdio makes a connection to the server behind pipe, which it owns from
// now on: it is closed when the connection ends, or with the error. ctx bounds
// the handshake. An error with [ReasonHandshake] says that the server hung up
// during it; some legacy servers do when the first request is not initialize,
// so that a new process with the era pinned to legacy may fare better.
//
// A write never blocks a call beyond its ctx; a server that stops reading is
// noticed by the timeouts of the calls to it.
func ConnectStdio(ctx context.Context, pipe Pipe, opts ConnectOptions) (Conn, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		pipe.close()
		return nil, err
	}
	c := &stdioConn{hop: newHop(opts), pipe: pipe, out: newOutbox(), calls: make(map[uint64]*pendingCall)}
	c.spawn(c.read)
	c.spawn(c.write)
	if err := c.handshake(ctx); err != nil {
		why := c.Err()
		_ = c.end(nil)
		pipe.close()
		c.tasks.Wait()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if why != nil {
			return nil, Unavailable(opts.Server, ReasonHandshake, "the server ended the connection during the handshake: %v", why)
		}
		return nil, c.named(err)
	}
	if c.modern() {
		c.keepListening(c.listen, false)
	} else {
		c.keepSubscribed(c.Call)
	}
	return c, nil
}

type stdioConn struct {
	*hop
	pipe    Pipe
	out     *outbox
	dialect dialect // fixed after the handshake
	turns   turns
	level   levelState

	callsMu sync.Mutex
	calls   map[uint64]*pendingCall // by our id
	// alone is the call that runs alone, nil when none does: what the server
	// sends without naming a call belongs to it.
	alone *pendingCall
}

// pendingCall is a call that waits for its answer. The reader puts what belongs
// to it into inbox; when that is full it waits, so that a flood slows down the
// server and not the memory.
type pendingCall struct {
	exchange
	inbox chan inbound
	gone  chan struct{} // closed when nobody reads inbox any more
}

func newPendingCall() *pendingCall {
	return &pendingCall{inbox: make(chan inbound, 16), gone: make(chan struct{})}
}

type inbound struct {
	m   *Message
	err error
}

func (c *stdioConn) Call(ctx context.Context, call *Call) (jsontext.Value, error) {
	x := newPendingCall()
	if err := c.begin(ctx, &x.exchange, call, &c.dialect); err != nil {
		return nil, err
	}
	takes, alone := c.turnOf(x)
	if takes {
		if err := c.turns.take(x.ctx, alone, c.opts.QueueTimeout, x.Waited); err != nil {
			defer x.finish()
			if errors.Is(err, errNoTurn) {
				return nil, &Fault{
					Kind: KindTimeout, Reason: ReasonStdioQueue, Retryable: true, Server: c.opts.Server,
					Message: "the call waited " + c.opts.QueueTimeout.String() + " for its turn on the server's stdio connection and was not sent",
				}
			}
			return nil, x.gaveUp(false)
		}
		defer c.turns.give(alone)
	}
	defer x.finish() // before the turn goes to the next one
	if c.dialect.era == EraLegacy {
		if err := c.level.raise(&x.exchange, c.ask); err != nil {
			return nil, err
		}
	}
	return c.roundTrip(x, alone)
}

// turnOf says whether a call has to wait for a turn, and for one of its own.
// On a legacy connection only what may make the server do something takes part:
// lists and pings go past the queue. On a modern one only calls that want log
// messages do: those name no call either, but no other call can have them.
func (c *stdioConn) turnOf(x *pendingCall) (takes, alone bool) {
	logs := x.level != 0 && c.Info().Has("logging")
	if c.dialect.era != EraLegacy {
		return logs, logs
	}
	takes = runsCode(x.Method)
	return takes, takes && (x.asks || logs)
}

func (c *stdioConn) roundTrip(x *pendingCall, alone bool) (jsontext.Value, error) {
	x.reply = func(_ context.Context, body []byte) { c.jump(body) }
	c.callsMu.Lock()
	c.calls[x.id] = x
	if alone {
		c.alone = x
	}
	c.callsMu.Unlock()
	defer func() {
		c.callsMu.Lock()
		delete(c.calls, x.id)
		if alone {
			c.alone = nil
		}
		c.callsMu.Unlock()
		close(x.gone)
	}()
	queued := c.out.push(x.body)
	x.clock.start(x.Call, x.cancel)
	for {
		select {
		case in := <-x.inbox:
			if done, result, err := x.receive(in); done {
				return result, err
			}
		case <-x.ctx.Done():
			for range len(x.inbox) { // the answer may have come just before
				if done, result, err := x.receive(<-x.inbox); done {
					return result, err
				}
			}
			sent := !c.out.withdraw(queued)
			if x.wantsCancel(sent) {
				c.jump(x.cancellation())
			}
			return nil, x.gaveUp(sent)
		}
	}
}

// receive deals with what came for the call; done says that it is the end of it.
func (p *pendingCall) receive(in inbound) (done bool, result jsontext.Value, err error) {
	switch {
	case in.err != nil:
		return true, nil, in.err
	case p.handle(in.m):
		result, err = answer(in.m)
		return true, result, err
	}
	return false, nil, nil
}

// ask makes a request of the connection's own.
func (c *stdioConn) ask(ctx context.Context, method string, params jsontext.Value) (jsontext.Value, error) {
	return c.askAs(ctx, &c.dialect, &Call{Method: method, Params: params, Timeout: c.opts.RequestTimeout})
}

func (c *stdioConn) askAs(ctx context.Context, d *dialect, call *Call) (jsontext.Value, error) {
	x := newPendingCall()
	if err := c.begin(ctx, &x.exchange, call, d); err != nil {
		return nil, err
	}
	defer x.finish()
	return c.roundTrip(x, false)
}

// listenFarewell is how long the end of a stream that was given up is waited for.
const listenFarewell = time.Second

// listen is an [opener]. When ctx ends it waits until the server has ended the
// stream too, so that the next one finds nothing of it.
func (c *stdioConn) listen(ctx context.Context, params jsontext.Value, acknowledged func(jsontext.Value)) (time.Duration, error) {
	x := newPendingCall()
	if err := c.begin(c.ctx, &x.exchange, &Call{Method: MethodListen, Params: params, Notify: func(method string, params jsontext.Value) {
		if method == NotifyAcknowledged {
			acknowledged(params)
		}
	}}, &c.dialect); err != nil {
		return 0, err
	}
	defer x.finish()
	defer context.AfterFunc(ctx, func() {
		if c.ctx.Err() != nil {
			return
		}
		c.jump(x.cancellation())
		time.AfterFunc(listenFarewell, func() { x.cancel(nil) })
	})()
	_, err := c.roundTrip(x, false)
	return 0, err
}

func (c *stdioConn) jump(body []byte) {
	if !c.out.jump(body) {
		c.stats.dropped.Add(1)
		c.log.Warn("message dropped: the server does not read its input")
	}
}

func (c *stdioConn) write() {
	if err := c.out.run(c.pipe.Out, c.done); err != nil {
		c.fail(Unavailable(c.opts.Server, ReasonBackend, "couldn't write to the server: %v", err))
	}
}

func (c *stdioConn) read() {
	lines := newLineReader(c.pipe.In, c.opts.MaxMessageBytes)
	for {
		line, err := lines.next()
		if long, ok := errors.AsType[*longLineError](err); ok {
			c.tooLong(long)
			continue
		}
		if len(line) > 0 {
			m, parseErr := ParseMessage(line, Lenient)
			if parseErr != nil && !lines.open && c.invalid(line, parseErr) {
				c.stats.noise.Add(1)
			} else if parseErr != nil {
				if c.stats.noise.Add(1) == 1 {
					c.log.Warn("the server writes lines that are no JSON-RPC messages to its standard output; they are ignored", "bytes", len(line))
				}
			} else {
				c.dispatch(&m)
			}
		}
		if err != nil {
			why := "the server closed its output"
			if !errors.Is(err, io.EOF) {
				why = "couldn't read from the server: " + err.Error()
			}
			c.fail(Unavailable(c.opts.Server, ReasonBackend, "%s", why))
			return
		}
	}
}

// dispatch brings a message to the call that it belongs to.
func (c *stdioConn) dispatch(m *Message) {
	var p *pendingCall
	switch {
	case m.IsResponse():
		if p = c.answered(m.ID); p == nil {
			c.stats.unknownID.Add(1)
			c.log.Debug("response without a request ignored")
			return
		}
	case m.IsRequest():
		if c.modern() { // such servers must not ask, and may not be answered
			c.stats.refused.Add(1)
			return
		}
		if p = c.soleOwner(m); p == nil {
			c.jump(c.refusal(m))
			return
		}
	case m.Method == NotifyProgress:
		p = c.byToken(Field(m.Params, MetaProgressToken))
	case m.Method == NotifyAcknowledged:
		p = c.byToken(Field(Field(m.Params, "_meta"), MetaSubscriptionID))
	case c.general(m):
		return
	default:
		p = c.soleOwner(m)
	}
	if p == nil {
		c.stats.unattributed.Add(1)
		return
	}
	p.put(inbound{m: m})
}

func (p *pendingCall) put(in inbound) {
	select {
	case p.inbox <- in:
	case <-p.gone:
	}
}

// answered finds the call that a response is for. A second response finds none.
func (c *stdioConn) answered(id jsontext.Value) *pendingCall {
	n, ok := ourID(id)
	if !ok {
		return nil
	}
	c.callsMu.Lock()
	defer c.callsMu.Unlock()
	p := c.calls[n]
	delete(c.calls, n)
	return p
}

func (c *stdioConn) byToken(token jsontext.Value) *pendingCall {
	n, ok := ourID(token)
	if !ok {
		return nil
	}
	c.callsMu.Lock()
	defer c.callsMu.Unlock()
	return c.calls[n]
}

// soleOwner is the call that a message without any reference to one certainly
// belongs to: on a legacy connection the one that runs alone; on a modern one
// the only call, or for a log message the only call that wants such messages.
// It is nil where more than one comes into question: what belongs to one caller
// must not reach another.
func (c *stdioConn) soleOwner(m *Message) *pendingCall {
	c.callsMu.Lock()
	defer c.callsMu.Unlock()
	if !c.modern() {
		return c.alone
	}
	var sole *pendingCall
	for _, p := range c.calls {
		if p.Method == MethodListen || m.Method == NotifyMessage && p.level == 0 {
			continue
		}
		if sole != nil {
			return nil
		}
		sole = p
	}
	return sole
}

// tooLong fails the call that a skipped line was for, as far as that is known.
func (c *stdioConn) tooLong(e *longLineError) {
	c.stats.tooLarge.Add(1)
	c.log.Warn("message from the server skipped: it is too large", "bytes", e.size, "limit", e.limit)
	if id := e.answeredID(); id != nil && !readClaim(e.head).request {
		if p := c.answered(id); p != nil {
			f := NewFault(KindMessageTooLarge, "line_too_large", "the server's answer has %d bytes, beyond the limit of %d bytes", e.size, e.limit)
			f.Server = c.opts.Server
			p.put(inbound{err: f})
		}
	}
}

// invalid fails the call that line, which is no JSON-RPC message, seems to
// answer, and reports whether there is such a call. One that names two of them
// says too little.
func (c *stdioConn) invalid(line []byte, why error) bool {
	claim := readClaim(line)
	if claim.request || !claim.answer {
		return false
	}
	c.callsMu.Lock()
	var sole *pendingCall
	several := false
	for _, id := range claim.ids {
		if n, ok := ourID(id); ok && c.calls[n] != nil {
			several = several || sole != nil && sole != c.calls[n]
			sole = c.calls[n]
		}
	}
	if several || sole == nil {
		c.callsMu.Unlock()
		return false
	}
	delete(c.calls, sole.id)
	c.callsMu.Unlock()
	sole.put(inbound{err: invalidAnswer(c.opts.Server, why)})
	return true
}

// fail ends the connection because it is broken.
func (c *stdioConn) fail(why *Fault) {
	if c.end(why) {
		c.pipe.close()
	}
}

// Close closes the server's input, which asks it to exit, and waits for the end
// of its output. When ctx ends first its output is closed too.
func (c *stdioConn) Close(ctx context.Context) error {
	_ = c.end(nil)
	_ = c.pipe.Out.Close()
	err := c.wait(ctx)
	_ = c.pipe.In.Close()
	if err != nil {
		c.tasks.Wait() // nothing can hold it up any more
	}
	return err
}
