package mcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// ConnectHTTP makes a connection to a Streamable HTTP server (2026-07-28 and
// 2025-11-25, basic/transports). ctx bounds the handshake only.
//
// Each call is one POST, whose answer is one JSON body or one event stream that
// is read on the caller's goroutine: what comes on it belongs to that call, and
// nothing that goes wrong with it concerns another. The connection itself ends
// only with Close.
//
// A server of MCP 2024-11-05 that speaks HTTP with SSE instead is found out by what
// it answers to that, unless the era is to be modern.
func ConnectHTTP(ctx context.Context, target HTTPTarget, opts ConnectOptions) (Conn, error) {
	given := opts
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	u, err := target.parse()
	if err != nil {
		f, _ := asFault(err)
		f.Server = opts.Server
		return nil, f
	}
	c := &httpConn{hop: newHop(opts), target: target, rt: target.transport(), fixed: make(http.Header)}
	c.request = &http.Request{URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	for name, value := range target.Headers {
		c.fixed.Set(name, value)
	}
	if c.fixed.Get("User-Agent") == "" {
		c.fixed.Set("User-Agent", "toolhub")
	}
	c.fixed.Set("Accept", "application/json, text/event-stream")
	c.fixed.Set("Accept-Encoding", "identity")
	if err := c.handshake(ctx); err != nil {
		_ = c.end(nil)
		c.tasks.Wait()
		if opts.Era != EraChoice(EraModern) && ctx.Err() == nil && mayBeSSE(err) {
			return c.connectSSE(ctx, given, c.named(err))
		}
		c.rt.CloseIdleConnections()
		return nil, c.named(err)
	}
	if c.modern() {
		c.keepListening(c.listen, true)
	}
	return c, nil
}

type httpConn struct {
	*hop
	target HTTPTarget
	rt     *http.Transport
	// request is what all requests have in common.
	request *http.Request
	// fixed is the headers of every request. Its values are shared by requests.
	fixed   http.Header
	dialect dialect // of a modern server; a session has its own

	session   atomic.Pointer[httpSession] // nil on a modern connection
	renewalMu sync.Mutex
	renewal   *renewal // in progress, nil when there is none

	// unended counts the streams in a row that the server left open after the
	// answer ([httpConn.drain]).
	unended atomic.Int32
}

// httpExchange is one call over HTTP.
type httpExchange struct {
	exchange
	session *httpSession // nil for a modern server and for initialize
	trace   httptrace.ClientTrace
	// sent says that there was a connection for the request, so that the server
	// may have got it. Only the goroutine of the call uses it.
	sent bool
	// sessionID is the one that the answer came with.
	sessionID string
	// retry is the reconnection time that the stream asked for, 0 for none.
	retry time.Duration
	// traffic hears of each read of the stream, nil if nobody wants to know.
	traffic func()
}

func (c *httpConn) Call(ctx context.Context, call *Call) (jsontext.Value, error) {
	s := c.session.Load()
	x := &httpExchange{session: s}
	if s == nil {
		if err := c.begin(ctx, &x.exchange, call, &c.dialect); err != nil {
			return nil, err
		}
		defer x.finish()
		result, err := c.exchange(x)
		if call.Method == MethodDiscover {
			c.checkEra(result, err)
		}
		return result, err
	}
	if err := c.begin(ctx, &x.exchange, call, &s.dialect); err != nil {
		return nil, err
	}
	defer x.finish()
	for again := false; ; again = true {
		if err := x.session.level.raise(&x.exchange, func(ctx context.Context, method string, params jsontext.Value) (jsontext.Value, error) {
			return c.ask(ctx, x.session, &Call{Method: method, Params: params})
		}); err != nil {
			return nil, err
		}
		result, err := c.exchange(x)
		lost, ok := errors.AsType[*sessionLostError](err)
		if !ok {
			return result, err
		}
		if again { // once is bad luck, twice is the server's way
			return nil, lost.fault
		}
		if err := c.renew(x); err != nil {
			return nil, err
		}
	}
}

// ask makes a request of the connection's own in the session s.
func (c *httpConn) ask(ctx context.Context, s *httpSession, call *Call) (jsontext.Value, error) {
	x := &httpExchange{session: s}
	return c.askAs(ctx, x, &s.dialect, call)
}

// askAs makes a request of the connection's own as x, which is new.
func (c *httpConn) askAs(ctx context.Context, x *httpExchange, d *dialect, call *Call) (jsontext.Value, error) {
	if call.Timeout == 0 {
		call.Timeout = c.opts.RequestTimeout
	}
	if err := c.begin(ctx, &x.exchange, call, d); err != nil {
		return nil, err
	}
	defer x.finish()
	result, err := c.exchange(x)
	if lost, ok := errors.AsType[*sessionLostError](err); ok {
		err = lost.fault
	}
	return result, err
}

// exchange sends the call and reads its answer. Besides the errors of Call it
// can be a [*sessionLostError].
func (c *httpConn) exchange(x *httpExchange) (jsontext.Value, error) {
	header := c.header(x.session)
	header["Content-Type"] = jsonType
	if x.era == EraModern {
		if err := c.modernHeaders(header, x); err != nil {
			return nil, err
		}
	} else {
		s := x.session
		x.reply = func(ctx context.Context, body []byte) { c.notify(ctx, s, body) }
		if s != nil && runsCode(x.Method) {
			s.running.enter(x)
			defer s.running.leave(x)
		}
	}
	x.clock.start(x.Call, x.cancel)
	x.trace.GetConn, x.trace.GotConn = x.getConn, x.gotConn
	resp, err := c.send(httptrace.WithClientTrace(x.ctx, &x.trace), x, http.MethodPost, header, x.body)
	if err != nil {
		return nil, c.broken(x, err)
	}
	if x.era == EraLegacy {
		x.sessionID = resp.Header.Get(HeaderSession)
	}
	return c.answer(x, resp)
}

// getConn is called before each attempt: the transport makes another one only
// if nothing was written in the last.
func (x *httpExchange) getConn(string)                { x.sent = false }
func (x *httpExchange) gotConn(httptrace.GotConnInfo) { x.sent = true }

// modernHeaders adds the headers that mirror the request.
func (c *httpConn) modernHeaders(header http.Header, x *httpExchange) error {
	values := [...]string{x.Method, EncodeHeader(x.name)}
	header[HeaderVersion] = modernVersion
	header[HeaderMethod] = values[0:1:1]
	if x.name != "" {
		header[HeaderName] = values[1:2:2]
	}
	for name, value := range x.Headers {
		key := http.CanonicalHeaderKey(name)
		if !strings.HasPrefix(key, HeaderParamPrefix) || !isToken(key) || !isHeaderValue(value) {
			return c.named(NewFault(KindInvalid, "headers", "%q is no Mcp-Param-* header, or its value is not encoded", name))
		}
		header[key] = []string{value}
	}
	return nil
}

// answer reads what a POST was answered with, and closes it.
func (c *httpConn) answer(x *httpExchange, resp *http.Response) (jsontext.Value, error) {
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	switch encoding := resp.Header.Get("Content-Encoding"); {
	case encoding != "" && !strings.EqualFold(encoding, "identity"):
		_ = resp.Body.Close()
		return nil, c.named(NewFault(KindProtocol, "content_encoding", "the server's answer has the content encoding %q although none was asked for", short(encoding)))
	case resp.StatusCode >= 300:
		return nil, c.refused(x, resp, kind)
	case resp.StatusCode == http.StatusOK && kind == "text/event-stream":
		return c.stream(x, resp)
	case resp.StatusCode == http.StatusOK && kind == "application/json":
		body, err := c.body(x, resp)
		if err != nil {
			return nil, err
		}
		m, err := ParseMessage(body, Lenient)
		if err != nil {
			return nil, invalidAnswer(c.opts.Server, err)
		}
		if !m.IsResponse() || !x.handle(&m) {
			return nil, c.named(NewFault(KindProtocol, "wrong_answer", "the server answered with a message that is not the response to the request"))
		}
		return answer(&m)
	case resp.StatusCode == http.StatusOK:
		_ = resp.Body.Close()
		return nil, c.named(NewFault(KindProtocol, "content_type", "the server answered with the content type %q, wanted is application/json or text/event-stream", short(kind)))
	default:
		_ = resp.Body.Close()
		return nil, c.named(NewFault(KindProtocol, "no_response", "the server answered a request with the status %d and no response", resp.StatusCode))
	}
}

// body reads a whole body into one buffer, as far as it is within the limit.
func (c *httpConn) body(x *httpExchange, resp *http.Response) ([]byte, error) {
	defer resp.Body.Close()
	limit := c.opts.MaxMessageBytes
	if resp.ContentLength > int64(limit) {
		return nil, c.tooLarge(strconv.FormatInt(resp.ContentLength, 10)+" bytes", limit)
	}
	body, err := readBody(resp.Body, resp.ContentLength, limit)
	switch {
	case err == nil:
		return body, nil
	case errors.Is(err, errTooLarge):
		return nil, c.tooLarge("more", limit)
	}
	return nil, c.broken(x, err)
}

func (c *httpConn) tooLarge(size string, limit int) error {
	c.stats.tooLarge.Add(1)
	return c.named(NewFault(KindMessageTooLarge, "body_too_large", "the server's answer has %s, the limit is %d bytes", size, limit))
}

var errTooLarge = errors.New("beyond the limit")

// readBody reads r to its end; size is how much it has, -1 if that is unknown.
func readBody(r io.Reader, size int64, limit int) ([]byte, error) {
	if size >= 0 {
		body := make([]byte, size)
		_, err := io.ReadFull(r, body)
		return body, err
	}
	body := make([]byte, 0, 4<<10)
	for {
		if len(body) == cap(body) {
			body = append(body, 0)[:len(body)]
		}
		n, err := r.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case len(body) > limit:
			return nil, errTooLarge
		case errors.Is(err, io.EOF):
			return body, nil
		case err != nil:
			return nil, err
		}
	}
}

// header is what a request with the session s has in common with all others, but
// for the credentials, which [httpConn.send] adds.
func (c *httpConn) header(s *httpSession) http.Header {
	header := make(http.Header, len(c.fixed)+5) // no more than 8 have room in one piece
	maps.Copy(header, c.fixed)
	if s != nil {
		maps.Copy(header, s.header)
	}
	return header
}

// Header values that requests share; nobody changes them.
var (
	jsonType      = []string{"application/json"}
	modernVersion = []string{LatestModern}
)

// do makes one request; a redirect is an answer like any other.
func (c *httpConn) do(ctx context.Context, method string, header http.Header, body []byte) (*http.Response, error) {
	req := c.request.WithContext(ctx)
	req.Method, req.Header = method, header
	if body != nil {
		req.ContentLength = int64(len(body))
		// In this very form, which the transport sends in one piece with the header.
		req.Body = io.NopCloser(bytes.NewReader(body))
		// The transport uses it when nothing was written to a connection that
		// turned out to be closed already.
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	}
	return c.rt.RoundTrip(req)
}

// broken is the error of a call whose request or answer failed with err.
func (c *httpConn) broken(x *httpExchange, err error) error {
	if x.ctx.Err() != nil {
		c.tellCancelled(x)
		return x.gaveUp(x.sent)
	}
	if f, ok := asFault(err); ok { // of the credentials
		return f
	}
	if !x.sent {
		return &Fault{Kind: KindTransport, Reason: "connect", Retryable: true, Server: c.opts.Server, Message: "couldn't connect to the server: " + plainError(err)}
	}
	return OutcomeUnknown(c.opts.Server, "the connection broke before the answer was complete: %s", plainError(err))
}

// tellCancelled tells a legacy server that the call is given up; a modern one
// has seen it by the closed connection.
func (c *httpConn) tellCancelled(x *httpExchange) {
	if x.era != EraLegacy || !x.wantsCancel(x.sent) {
		return
	}
	s, body := x.session, x.cancellation()
	c.spawn(func() { c.notify(c.ctx, s, body) })
}

// plainError is the text of a network error without the URL.
func plainError(err error) string {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return "it was closed"
	}
	return short(err.Error())
}

// notifyTimeout bounds the POST of a notification or response, which nobody
// waits for.
const notifyTimeout = 10 * time.Second

// notify POSTs a message that has no answer. What the server says to it matters
// to nobody.
func (c *httpConn) notify(ctx context.Context, s *httpSession, body []byte) {
	if err := c.post(ctx, s, body); err != nil && ctx.Err() == nil {
		c.log.Debug("couldn't send a notification or response", "error", err)
	}
}

func (c *httpConn) post(ctx context.Context, s *httpSession, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	header := c.header(s)
	header["Content-Type"] = jsonType
	resp, err := c.send(ctx, nil, http.MethodPost, header, body)
	if err != nil {
		return err
	}
	c.drain(resp)
	if resp.StatusCode >= 300 {
		return errors.New("status " + resp.Status)
	}
	return nil
}

// Close ends the session of a legacy server, within a second, and waits for all
// that runs.
func (c *httpConn) Close(ctx context.Context) error {
	first := c.end(nil)
	if s := c.session.Load(); first && s != nil && s.id != "" {
		c.bye(ctx, s)
	}
	err := c.wait(ctx)
	c.rt.CloseIdleConnections()
	return err
}
