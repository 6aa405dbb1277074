package mcp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// httpSession is one session of a legacy server.
type httpSession struct {
	id      string      // "" for a server that gives none
	header  http.Header // what it adds to every request
	dialect dialect
	level   levelState
	running running
	// stop ends its standalone stream.
	stop context.CancelFunc
}

// handshake finds the era and opens the session of a legacy server.
func (c *httpConn) handshake(ctx context.Context) error {
	c.dialect = modernDialect(&c.opts)
	if c.opts.Era != EraChoice(EraLegacy) {
		info, err := discover(func() (jsontext.Value, error) {
			return c.askAs(ctx, new(httpExchange), &c.dialect, &Call{Method: MethodDiscover, Timeout: c.opts.ProbeTimeout})
		})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if info != nil {
			info.HTTP = true
			c.info.Store(info)
			return nil
		}
		if c.opts.Era == EraChoice(EraModern) {
			if f, ok := asFault(err); ok {
				return f
			}
			return errNotModern(err)
		}
		if err != nil && !mayBeLegacy(err) {
			return err
		}
	}
	s, err := c.open(ctx)
	if err != nil {
		return err
	}
	c.keepSubscribed(c.Call)
	c.install(s)
	return nil
}

// mayBeLegacy reports whether initialize may do better after server/discover
// failed with err: a legacy server can take an unknown request without a
// session in any way, even with a crash.
func mayBeLegacy(err error) bool {
	f, ok := asFault(err)
	if !ok {
		return false // a modern error
	}
	switch f.Kind {
	case KindAuth, KindRateLimited, KindMessageTooLarge, KindInvalid:
		return false
	case KindTransport:
		return f.Reason == "http_status"
	}
	return f.Reason != "unsupported_version"
}

// open makes a new session. The connection does not use it yet.
func (c *httpConn) open(ctx context.Context) (*httpSession, error) {
	d := legacyDialect(&c.opts)
	x := new(httpExchange)
	result, err := c.askAs(ctx, x, &d, &Call{Method: MethodInitialize, Params: initializeParams(&c.opts)})
	if err != nil {
		return nil, err
	}
	id := x.sessionID
	info, err := initialized(result)
	if err != nil {
		return nil, err
	}
	if id != "" && !isVisible(id, 1024) {
		return nil, NewFault(KindProtocol, "invalid_session_id", "the server's session id is not 1 to 1024 visible ASCII characters")
	}
	s := &httpSession{id: id, header: http.Header{HeaderVersion: {info.Version}}, dialect: d}
	s.dialect.version = info.Version
	if id != "" {
		s.header[HeaderSession] = []string{id}
	}
	if err := c.post(ctx, s, AppendRequest(nil, nil, NotifyInitialized, nil)); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		c.log.Debug("notifications/initialized was not accepted", "error", err)
	}
	info.HTTP = true
	c.info.Store(info)
	return s, nil
}

// install makes s the session of the connection and listens to it.
func (c *httpConn) install(s *httpSession) {
	ctx, stop := context.WithCancel(c.ctx)
	s.stop = stop
	c.session.Store(s)
	if c.opts.OnListChanged == nil && c.opts.OnResourceUpdated == nil {
		return
	}
	opened := make(chan struct{})
	c.spawn(func() {
		rd := newEventReader(nil, c.opts.MaxMessageBytes)
		open := sync.OnceFunc(func() { close(opened) })
		defer open()
		opens := 0
		c.reopen(func(again bool) (time.Duration, error) {
			err := c.standalone(ctx, s, rd, again, func() { opens++; open() })
			open() // or rather not
			switch {
			case ctx.Err() != nil:
				err = errNoStream // this session is over
			case errors.Is(err, errNoSession) && opens > 0 && s.id != "":
				c.renewing(s) // nobody may call for a long time
			}
			return rd.retry, err
		})
	})
	// Some servers ask their questions on this stream, and lose those that they
	// have before it is there.
	timer := time.NewTimer(standaloneWait)
	defer timer.Stop()
	select {
	case <-opened:
	case <-timer.C:
	case <-c.done:
	}
}

// standaloneWait is how long the calls of a new session are held back for its
// standalone stream: some servers send nothing on it, not even the header, before
// they have something to say.
const standaloneWait = 500 * time.Millisecond

// renewal is a new session on its way, which all calls that lost the old one
// wait for.
type renewal struct {
	done    chan struct{}
	session *httpSession
	err     error
}

// renew gives x another session than the one that it lost. The calls that lost
// the same one at the same time get the same new one.
func (c *httpConn) renew(x *httpExchange) error {
	r, s := c.renewing(x.session)
	if r == nil {
		x.session = s
		return nil
	}
	select {
	case <-r.done:
		x.session = r.session
		return r.err
	case <-x.ctx.Done():
		return x.gaveUp(false)
	}
}

// renewing begins to replace a session that the server does not know, if nobody
// has yet. Nil is for one that was replaced already, by the one returned.
func (c *httpConn) renewing(old *httpSession) (*renewal, *httpSession) {
	c.renewalMu.Lock()
	defer c.renewalMu.Unlock()
	if s := c.session.Load(); s != old {
		return nil, s
	}
	if c.renewal == nil {
		r := &renewal{done: make(chan struct{})}
		c.renewal = r
		c.log.Info("the server does not know the session any more, a new one is opened")
		// It serves all who wait, so it must outlive the call that came first. If
		// the connection is closing it never runs, and all who wait are ended.
		c.spawn(func() { c.replace(r, old) })
	}
	return c.renewal, nil
}

func (c *httpConn) replace(r *renewal, old *httpSession) {
	r.session, r.err = c.open(c.ctx) // each of its requests has its own time
	rpc, refused := errors.AsType[*Error](r.err)
	fault, ok := asFault(r.err)
	switch {
	case r.err == nil:
		old.stop()
		c.install(r.session)
		c.subscriber.renewed()
	case refused:
		r.err = Unavailable(c.opts.Server, ReasonBackend, "the session is lost and the server refuses a new one: %v", rpc)
	case ok:
		r.err = c.named(fault)
	default:
		r.err = Unavailable(c.opts.Server, ReasonBackend, "the session is lost and couldn't be renewed: %v", r.err)
	}
	if refused || ok && fault.Kind == KindProtocol {
		_ = c.end(r.err) // it may be a server of another era now: the owner finds out with a new connection
	}
	c.renewalMu.Lock()
	c.renewal = nil
	c.renewalMu.Unlock()
	close(r.done)
	if r.err == nil {
		c.changed(c.Info().listChanged()...) // who knows what the restart changed
	}
}

// checkEra ends the connection if an answer to server/discover shows that the
// server behind the URL is no modern one any more: a new connection finds out
// what it is.
func (c *httpConn) checkEra(result jsontext.Value, err error) {
	rpc, answered := errors.AsType[*Error](err)
	switch {
	case err != nil && !answered: // that says nothing about the era
	case answered && (rpc.Code == CodeInternal || rpc.Code == CodeHeaderMismatch || rpc.Code == CodeMissingCapability):
	default:
		if info, why := discovered(result, err); info == nil {
			_ = c.end(c.named(errNotModern(why)))
		}
	}
}

// bye ends the session, whether or not the server knows how.
func (c *httpConn) bye(ctx context.Context, s *httpSession) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	header := c.header(s)
	if c.authorize(ctx, header) != nil {
		return
	}
	if resp, err := c.do(ctx, http.MethodDelete, header, nil); err == nil {
		_ = resp.Body.Close()
	}
}

// standalone runs the GET stream of a session once, and calls opened when there is
// one. Nothing on it names a call.
func (c *httpConn) standalone(ctx context.Context, s *httpSession, rd *eventReader, again bool, opened func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	idle := time.AfterFunc(c.opts.ListenIdleTimeout, cancel)
	defer idle.Stop()
	resp, err := c.get(ctx, s, rd.lastID)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusOK && isEventStream(resp):
	case resp.StatusCode == http.StatusOK, resp.StatusCode == http.StatusMethodNotAllowed, resp.StatusCode == http.StatusNotImplemented:
		return errNoStream
	case resp.StatusCode == http.StatusNotFound:
		return errNoSession
	default:
		return errors.New("status " + resp.Status)
	}
	opened()
	if again {
		c.changed(c.Info().listChanged()...)
		c.subscriber.missed()
	}
	rd.reopen(&busyReader{resp.Body, idle, c.opts.ListenIdleTimeout})
	for {
		ev, err := rd.next()
		if err != nil {
			return err
		}
		m, err := c.parse(ev)
		switch {
		case err != nil:
		case m.IsRequest():
			if !s.running.take(&m) {
				c.notify(ctx, s, c.refusal(&m))
			}
		case m.IsNotification() && c.general(&m):
		default:
			c.stats.unattributed.Add(1)
		}
	}
}

// errNoSession is the answer of a server that does not know the session, or has no
// standalone streams.
var errNoSession = errors.New("status 404")

// listen is an [opener].
func (c *httpConn) listen(ctx context.Context, params jsontext.Value, acknowledged func(jsontext.Value)) (time.Duration, error) {
	x := new(httpExchange)
	if err := c.begin(ctx, &x.exchange, &Call{Method: MethodListen, Params: params, Notify: func(method string, params jsontext.Value) {
		if method == NotifyAcknowledged {
			acknowledged(params)
		}
	}}, &c.dialect); err != nil {
		return 0, err
	}
	defer x.finish()
	idle := time.AfterFunc(c.opts.ListenIdleTimeout, func() { x.cancel(errIdle) })
	defer idle.Stop()
	x.traffic = func() { idle.Reset(c.opts.ListenIdleTimeout) }
	_, err := c.exchange(x)
	if f, ok := asFault(err); ok && f.Reason == "http_status" && final(f) {
		err = errNoStream
	}
	return x.retry, err
}

var errIdle = errors.New("the stream was silent for too long")

// final reports whether a status says that there is no such thing.
func final(f *Fault) bool {
	status := string(Field(f.Details, "status"))
	return status == "404" || status == "405" || status == "501"
}

func (c *httpConn) get(ctx context.Context, s *httpSession, lastID string) (*http.Response, error) {
	header := c.header(s)
	header["Accept"] = []string{"text/event-stream"}
	if lastID != "" && len(lastID) <= 4<<10 && isHeaderValue(lastID) {
		header["Last-Event-Id"] = []string{lastID}
	}
	return c.send(ctx, nil, http.MethodGet, header, nil)
}

// busyReader puts off the idle timer with every byte.
type busyReader struct {
	io.Reader
	idle  *time.Timer
	limit time.Duration
}

func (r *busyReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.idle.Reset(r.limit)
	}
	return n, err
}
