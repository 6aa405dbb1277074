package mcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
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
func ConnectHTTP(ctx context.Context, target HTTPTarget, opts ConnectOptions) (Conn, error) {
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
	c := &httpConn{hop: newHop(opts), target: target, url: u, rt: target.transport(), fixed: make(http.Header)}
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
		c.rt.CloseIdleConnections()
		return nil, c.named(err)
	}
	if info := c.Info(); info.Era == EraModern {
		c.keepListening(info, c.listenOnce)
	}
	return c, nil
}

type httpConn struct {
	*hop
	target HTTPTarget
	url    *url.URL
	rt     *http.Transport
	// fixed is the headers of every request. Its values are shared by requests.
	fixed   http.Header
	dialect dialect // of a modern server; a session has its own

	session   atomic.Pointer[httpSession] // nil on a modern connection
	renewalMu sync.Mutex
	renewal   *renewal // in progress, nil when there is none
}

func (c *httpConn) Call(ctx context.Context, call *Call) (jsontext.Value, error) {
	s := c.session.Load()
	if s == nil {
		x, err := c.begin(ctx, call, &c.dialect)
		if err != nil {
			return nil, err
		}
		defer x.finish()
		return c.exchange(x, nil)
	}
	x, err := c.begin(ctx, call, &s.dialect)
	if err != nil {
		return nil, err
	}
	defer x.finish()
	for again := false; ; again = true {
		if err := s.level.raise(x, func(ctx context.Context, method string, params jsontext.Value) (jsontext.Value, error) {
			return c.ask(ctx, s, &Call{Method: method, Params: params})
		}); err != nil {
			return nil, err
		}
		result, err := c.exchange(x, s)
		lost, ok := errors.AsType[*sessionLostError](err)
		if !ok {
			return result, err
		}
		if again { // once is bad luck, twice is the server's way
			return nil, lost.fault
		}
		if s, err = c.renew(x, s); err != nil {
			return nil, err
		}
	}
}

// ask makes a request of the connection's own; s is nil for a modern one and for
// initialize.
func (c *httpConn) ask(ctx context.Context, s *httpSession, call *Call) (jsontext.Value, error) {
	d := &c.dialect
	if s != nil {
		d = &s.dialect
	}
	result, _, err := c.askAs(ctx, d, s, call)
	return result, err
}

// askAs also returns the session id of the answer.
func (c *httpConn) askAs(ctx context.Context, d *dialect, s *httpSession, call *Call) (jsontext.Value, string, error) {
	if call.Timeout == 0 {
		call.Timeout = c.opts.RequestTimeout
	}
	x, err := c.begin(ctx, call, d)
	if err != nil {
		return nil, "", err
	}
	defer x.finish()
	result, err := c.exchange(x, s)
	if lost, ok := errors.AsType[*sessionLostError](err); ok {
		err = lost.fault
	}
	return result, x.sessionID, err
}

// exchange sends the call and reads its answer. Besides the errors of Call it
// can be a [*sessionLostError].
func (c *httpConn) exchange(x *exchange, s *httpSession) (jsontext.Value, error) {
	x.reply = func(ctx context.Context, body []byte) { c.notify(ctx, s, body) }
	header, err := c.header(x.ctx, s)
	if err != nil {
		return nil, err
	}
	header["Content-Type"] = jsonType
	if x.era == EraModern {
		header[HeaderVersion] = []string{LatestModern}
		header[HeaderMethod] = []string{x.Method}
		if x.name != "" {
			header[HeaderName] = []string{EncodeHeader(x.name)}
		}
		for name, value := range x.Headers {
			key := http.CanonicalHeaderKey(name)
			if !strings.HasPrefix(key, HeaderParamPrefix) || !isToken(key) || !isHeaderValue(value) {
				return nil, c.named(NewFault(KindInvalid, "headers", "%q is no Mcp-Param-* header, or its value is not encoded", name))
			}
			header[key] = []string{value}
		}
	}
	x.clock.start(x.Call, func(f *Fault) { x.cancel(f) })
	var sent sentFlag
	resp, err := c.do(x.ctx, http.MethodPost, header, x.body, &sent)
	if err != nil {
		return nil, c.broken(x, s, sent.get(), err)
	}
	x.sessionID = resp.Header.Get(HeaderSession)
	return c.answer(x, s, resp)
}

// answer reads what a POST was answered with, and closes it.
func (c *httpConn) answer(x *exchange, s *httpSession, resp *http.Response) (jsontext.Value, error) {
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	switch encoding := resp.Header.Get("Content-Encoding"); {
	case encoding != "" && !strings.EqualFold(encoding, "identity"):
		_ = resp.Body.Close()
		return nil, c.named(NewFault(KindProtocol, "content_encoding", "the server's answer has the content encoding %q although none was asked for", short(encoding)))
	case resp.StatusCode >= 300:
		return nil, c.refused(x, s, resp, kind)
	case resp.StatusCode == http.StatusOK && kind == "text/event-stream":
		return c.stream(x, s, resp)
	case resp.StatusCode == http.StatusOK && kind == "application/json":
		body, err := c.body(x, s, resp)
		if err != nil {
			return nil, err
		}
		m, err := ParseMessage(body, Lenient)
		if err != nil {
			return nil, c.named(NewFault(KindProtocol, "invalid_message", "the server's answer is no JSON-RPC message: %v", err))
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
func (c *httpConn) body(x *exchange, s *httpSession, resp *http.Response) ([]byte, error) {
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
	return nil, c.broken(x, s, true, err)
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

// header is what a request with the session s has in common with all others.
func (c *httpConn) header(ctx context.Context, s *httpSession) (http.Header, error) {
	header := make(http.Header, len(c.fixed)+6)
	maps.Copy(header, c.fixed)
	if s != nil {
		maps.Copy(header, s.header)
	}
	if c.target.Token == nil {
		return header, nil
	}
	token, err := c.target.Token(ctx)
	if err != nil {
		if f, ok := asFault(err); ok {
			return nil, c.named(f)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		c.log.Warn("no token for the server") // the error's text might hold a secret
		return nil, c.named(NewFault(KindAuth, "no_token", "there is no token for the server: the provider of it failed"))
	}
	if token == "" {
		return header, nil
	}
	if !isVisible(token, 64<<10) {
		return nil, c.named(NewFault(KindAuth, "invalid_token", "the token for the server holds a byte that is not visible ASCII, such as a newline at its end"))
	}
	header["Authorization"] = []string{"Bearer " + token}
	return header, nil
}

var jsonType = []string{"application/json"}

// do makes one request; a redirect is an answer like any other.
func (c *httpConn) do(ctx context.Context, method string, header http.Header, body []byte, sent *sentFlag) (*http.Response, error) {
	req := (&http.Request{
		Method: method, URL: c.url, Host: c.url.Host, Header: header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	if body != nil {
		req.ContentLength = int64(len(body))
		req.Body = newRequestBody(body, sent)
		// The transport uses it when nothing was written to a connection that
		// turned out to be closed already.
		req.GetBody = func() (io.ReadCloser, error) { return newRequestBody(body, sent), nil }
	}
	return c.rt.RoundTrip(req)
}

// sentFlag says whether a request may have left.
type sentFlag struct{ set atomic.Bool }

func (f *sentFlag) get() bool { return f.set.Load() }

// requestBody notices when the transport first reads it. Before, it has found
// no connection, and nothing has left: the header is written with the body.
type requestBody struct {
	bytes.Reader
	sent *sentFlag
}

func newRequestBody(body []byte, sent *sentFlag) *requestBody {
	b := &requestBody{sent: sent}
	b.Reset(body)
	return b
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.sent.set.Store(true)
	return b.Reader.Read(p)
}

func (b *requestBody) WriteTo(w io.Writer) (int64, error) {
	b.sent.set.Store(true)
	return b.Reader.WriteTo(w)
}

func (b *requestBody) Close() error { return nil }

// broken is the error of a call whose request or answer failed with err.
func (c *httpConn) broken(x *exchange, s *httpSession, sent bool, err error) error {
	if x.ctx.Err() != nil {
		c.tellCancelled(x, s, sent)
		return x.gaveUp(sent)
	}
	if !sent {
		return &Fault{Kind: KindTransport, Reason: "connect", Retryable: true, Server: c.opts.Server, Message: "couldn't connect to the server: " + plainError(err)}
	}
	return OutcomeUnknown(c.opts.Server, "the connection broke before the answer was complete: %s", plainError(err))
}

// tellCancelled tells a legacy server that the call is given up; a modern one
// has seen it by the closed connection.
func (c *httpConn) tellCancelled(x *exchange, s *httpSession, sent bool) {
	if x.era != EraLegacy || !x.wantsCancel(sent) {
		return
	}
	body := x.cancellation()
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
	header, err := c.header(ctx, s)
	if err != nil {
		return err
	}
	header["Content-Type"] = jsonType
	var sent sentFlag
	resp, err := c.do(ctx, http.MethodPost, header, body, &sent)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // so that the connection can be used again
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
