package router

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
)

const (
	// bodyTimeout is how long the body of a request may take.
	bodyTimeout = 60 * time.Second
	// writeTimeout is how long a client may take nothing of what is written to it.
	writeTimeout = 30 * time.Second
	// writeStep is how much may be written within one writeTimeout, so that a
	// slow client is told from one that takes nothing.
	writeStep = 256 << 10
	// What is left of the body of a refused request is read up to discardFactor
	// times the limit of a message and for discardTimeout, but for discardedAnyway
	// bytes, which net/http reads by itself.
	discardFactor   = 4
	discardTimeout  = 10 * time.Second
	discardedAnyway = 256 << 10
	// keptBody is the largest buffer that is kept for the next request, and the
	// largest one that a request gets before its body has come.
	keptBody = 1 << 20
)

// anonymous is who calls on an endpoint that asks for no credentials.
const anonymous = "anonymous"

// fronts are the sides of a router that clients see. They hold what connections
// need while they last; what must outlive them is in the bucket of sessions.
type fronts struct {
	conn   *bus.Conn
	log    *slog.Logger
	engine *engine
	// missing lists what the router still lacks to serve, empty when it is ready.
	missing  func() []string
	sessions *sessions
	heart    heart
	// writeTimeout is how long the client of a stream may take nothing.
	writeTimeout time.Duration

	// base is the life of calls that outlive the connection they came by.
	base context.Context
	end  context.CancelCauseFunc
	// draining is closed when no new calls are to be taken; streams that wait for
	// changes then end.
	draining chan struct{}
	drained  sync.Once
	// tasks are what the fronts run in the background.
	tasks sync.WaitGroup
	pipes pipes
}

func newFronts(conn *bus.Conn, log *slog.Logger, e *engine, missing func() []string) *fronts {
	f := &fronts{conn: conn, log: log, engine: e, missing: missing, draining: make(chan struct{}), writeTimeout: writeTimeout}
	f.base, f.end = context.WithCancelCause(context.Background())
	f.sessions = newSessions(conn, log, &f.tasks)
	f.heart.f = f
	f.heart.silence, f.heart.first = heartbeat, firstHeartbeat
	return f
}

// run keeps what the fronts need up to date until ctx ends.
func (f *fronts) run(ctx context.Context) error {
	svc, err := f.conn.Serve(bus.ServeSessionSubject(f.conn.Hub()), "", 0, f.sessions.remote)
	if err != nil {
		return fmt.Errorf("couldn't serve sessions: %w", err)
	}
	defer svc.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { f.heart.run(ctx) })
	return f.sessions.run(ctx)
}

// drain begins the end: streams that wait for changes end at once, and stdio
// clients are not read any more. Running calls go on.
func (f *fronts) drain() { f.drained.Do(func() { close(f.draining) }) }

// cancel ends the running calls that no connection's end cancels.
func (f *fronts) cancel() {
	f.end(mcp.Unavailable("", "stopping", "the router is stopping"))
}

// close ends everything that still runs and waits for it. Nothing may come in
// any more.
func (f *fronts) close() {
	f.drain()
	f.cancel()
	_ = f.drainPipes(context.Background())
	f.tasks.Wait()
}

// handler is the HTTP side of the router.
func (r *Router) handler() http.Handler { return r.fronts.handler() }

func (f *fronts) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) { f.serveMCP(w, r, "") })
	mux.HandleFunc("/s/{server}/mcp", func(w http.ResponseWriter, r *http.Request) { f.serveMCP(w, r, r.PathValue("server")) })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, []byte(`{"alive":true}`)) })
	mux.HandleFunc("GET /readyz", f.serveReady)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer f.survive(w, r)
		if refusal := checkOrigin(r); refusal != "" {
			f.log.Warn("request refused", "reason", refusal, "host", r.Host, "origin", r.Header.Get("Origin"), "remote", r.RemoteAddr)
			f.refuseUnread(w, r, http.StatusForbidden, &mcp.Error{Code: mcp.CodeInvalidRequest, Message: refusal})
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// survive answers for a handler that panicked, as far as it still can.
func (f *fronts) survive(w http.ResponseWriter, r *http.Request) {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler {
		panic(p)
	}
	e := f.internal("handler panicked", "path", r.URL.Path, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	refuse(w, http.StatusInternalServerError, nil, e)
}

// internal logs what went wrong inside and returns what a client may see of it.
func (f *fronts) internal(message string, args ...any) *mcp.Error {
	id := rand.Text()[:12]
	f.log.Error(message, append(args, "error_id", id)...)
	return &mcp.Error{Code: mcp.CodeInternal, Message: "internal error, see the log of " + f.conn.Identity() + " for " + id}
}

func (f *fronts) serveReady(w http.ResponseWriter, _ *http.Request) {
	var s struct {
		Ready   bool     `json:"ready"`
		Missing []string `json:"missing"`
	}
	s.Missing = append([]string{}, f.missing()...)
	select {
	case <-f.draining:
		s.Missing = append(s.Missing, "the router is stopping")
	default:
	}
	s.Ready = len(s.Missing) == 0
	status := http.StatusOK
	if !s.Ready {
		status = http.StatusServiceUnavailable
	}
	body, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings encode
	}
	writeJSON(w, status, body)
}

// checkOrigin says what is wrong with where a request comes from, "" if nothing
// is. A web page must not reach the hub through its visitor's browser: neither
// directly, which shows in Origin, nor by a name that it made point here (DNS
// rebinding), which shows in Host.
func checkOrigin(r *http.Request) string {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	var at net.IP
	if tcp, ok := local.(*net.TCPAddr); ok {
		at = tcp.IP
	}
	if at.IsLoopback() && !isLoopbackHost(r.Host) {
		return fmt.Sprintf("the host %q is not this machine: an endpoint on a loopback address is reached as localhost, 127.0.0.1 or [::1]", r.Host)
	}
	origins := r.Header["Origin"]
	if len(origins) == 0 {
		return ""
	}
	u, err := url.Parse(origins[0])
	if err == nil && len(origins) == 1 && (u.Scheme == "http" || u.Scheme == "https") {
		if isLoopbackHost(u.Host) || at != nil && !at.IsUnspecified() && at.Equal(net.ParseIP(u.Hostname())) {
			return ""
		}
	}
	return fmt.Sprintf("requests from web pages of %q are not allowed", origins[0])
}

// isLoopbackHost reports whether host, with or without a port, names this machine.
func isLoopbackHost(host string) bool {
	if h, port, err := net.SplitHostPort(host); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err != nil && port != "" {
			return false
		}
		host = h
	}
	return mcp.IsLoopback(strings.TrimSuffix(host, "."))
}

// serveMCP is the endpoint of scope, in both eras.
func (f *fronts) serveMCP(w http.ResponseWriter, r *http.Request, scope string) {
	version := r.Header[mcp.HeaderVersion]
	modern := len(version) > 0 && mcp.EraOf(version[0]) == mcp.EraModern
	if scope != "" {
		if err := f.engine.known(scope); err != nil {
			f.refuseUnread(w, r, http.StatusNotFound, toError(err))
			return
		}
	}
	switch {
	case r.Method == http.MethodPost:
		f.servePost(w, r, scope, modern)
	case modern:
		w.Header().Set("Allow", "POST")
		refuse(w, http.StatusMethodNotAllowed, nil, &mcp.Error{Code: mcp.CodeInvalidRequest, Message: "MCP " + mcp.Version20260728 + " knows POST only; changes come by subscriptions/listen"})
	case r.Method == http.MethodGet:
		f.serveStream(w, r, scope)
	case r.Method == http.MethodDelete:
		f.serveDelete(w, r, scope)
	default:
		w.Header().Set("Allow", "POST, GET, DELETE")
		refuse(w, http.StatusMethodNotAllowed, nil, &mcp.Error{Code: mcp.CodeInvalidRequest, Message: "the endpoint knows POST, and in sessions GET and DELETE"})
	}
}

// bodies keeps buffers for request bodies.
var bodies = sync.Pool{New: func() any { b := make([]byte, 0, 4<<10); return &b }}

// readBody reads the body of a request, of at most limit bytes, into buf, which
// grows. The error is for the client, with its HTTP status.
func readBody(w http.ResponseWriter, r *http.Request, buf *[]byte, limit int) ([]byte, int, *mcp.Error) {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return nil, http.StatusUnsupportedMediaType, &mcp.Error{Code: mcp.CodeInvalidRequest, Message: fmt.Sprintf("a body with Content-Encoding %q is not taken, send it plain", enc)}
	}
	if r.ContentLength > int64(limit) {
		return nil, http.StatusRequestEntityTooLarge, tooLarge(fmt.Sprintf("%d bytes", r.ContentLength), limit)
	}
	setReadDeadline(w, time.Now().Add(bodyTimeout))
	b := (*buf)[:0]
	most := limit + 1 // with room to see the end
	if r.ContentLength >= 0 {
		most = int(r.ContentLength) + 1
	}
	if n := min(most, keptBody); n > cap(b) && r.ContentLength >= 0 {
		b = make([]byte, 0, n)
	}
	for {
		n, err := r.Body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if len(b) > limit {
			return nil, http.StatusRequestEntityTooLarge, tooLarge(fmt.Sprintf("more than %d bytes", limit), limit)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, http.StatusBadRequest, &mcp.Error{Code: mcp.CodeParse, Message: "the body of the request did not arrive"}
		}
		if len(b) == cap(b) {
			b = append(make([]byte, 0, min(2*cap(b), max(most, cap(b)+1))), b...)
		}
	}
	setReadDeadline(w, time.Time{})
	if cap(b) <= keptBody {
		*buf = b[:0]
	}
	return b, 0, nil
}

func tooLarge(size string, limit int) *mcp.Error {
	return mcp.NewFault(mcp.KindMessageTooLarge, "message_too_large", "the message of %s is beyond the limit of %d bytes (max_message_bytes)", size, limit).RPC()
}

func setReadDeadline(w http.ResponseWriter, t time.Time) {
	if c, ok := w.(interface{ SetReadDeadline(t time.Time) error }); ok {
		_ = c.SetReadDeadline(t)
	}
}

// setWriteDeadline gives a client time to take what is written next. Once one has
// run out its connection is of no use, so each write needs a deadline of its own.
func setWriteDeadline(w http.ResponseWriter, timeout time.Duration) {
	if c, ok := w.(interface{ SetWriteDeadline(t time.Time) error }); ok {
		_ = c.SetWriteDeadline(time.Now().Add(timeout))
	}
}

// patientWriter writes big messages in steps, each with a deadline of its own.
type patientWriter struct {
	w       http.ResponseWriter
	timeout time.Duration
}

func (p patientWriter) Write(b []byte) (int, error) {
	n := 0
	for len(b)-n > writeStep {
		m, err := p.w.Write(b[n : n+writeStep])
		n += m
		if err != nil {
			return n, err
		}
		setWriteDeadline(p.w, p.timeout)
	}
	m, err := p.w.Write(b[n:])
	return n + m, err
}

var (
	jsonType   = []string{"application/json"}
	streamType = []string{"text/event-stream"}
	noStore    = []string{"no-store"}
	noBuffer   = []string{"no"}
	closing    = []string{"close"}
)

// writeJSON writes a whole answer.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	setWriteDeadline(w, writeTimeout)
	h := w.Header()
	h["Content-Type"] = jsonType
	h["Cache-Control"] = noStore
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = patientWriter{w, writeTimeout}.Write(body) // a client that is gone is told nothing
}

// refuse answers a request that is not served.
func refuse(w http.ResponseWriter, status int, id jsontext.Value, e *mcp.Error) {
	writeJSON(w, status, mcp.AppendError(nil, id, e))
}

// refuseUnread is refuse for a request whose body may not have been read. Many
// clients write all of a body before they read the answer: if the connection were
// closed under them they would see that instead of it.
func (f *fronts) refuseUnread(w http.ResponseWriter, r *http.Request, status int, e *mcp.Error) {
	if 0 <= r.ContentLength && r.ContentLength < discardedAnyway {
		refuse(w, status, nil, e)
		return
	}
	w.Header()["Connection"] = closing // also, so that no rest is taken for a request
	refuse(w, status, nil, e)
	flusher, ok := w.(http.Flusher)
	if !ok || r.Header.Get("Expect") != "" {
		return // who asks before sending a body sends none
	}
	flusher.Flush()
	setReadDeadline(w, time.Now().Add(discardTimeout))
	_, _ = io.CopyN(io.Discard, r.Body, discardFactor*int64(f.engine.maxMessageBytes())) // best effort
}
