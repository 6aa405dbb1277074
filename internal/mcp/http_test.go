package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// TestHTTPEra: what a server may answer to server/discover, and what it is then.
func TestHTTPEra(t *testing.T) {
	initialize := func(a *webAnswer, m *Message) {
		switch m.Method {
		case MethodInitialize:
			a.result(m, legacyInitialize)
		case NotifyInitialized:
			a.WriteHeader(202)
		default:
			a.text(405, "")
		}
	}
	first := func(discover webScript) webScript {
		return func(a *webAnswer, m *Message) {
			if m.Method == MethodDiscover {
				discover(a, m)
			} else {
				initialize(a, m)
			}
		}
	}
	rpc := func(status int, id string, code int64, data string) webScript {
		return first(func(a *webAnswer, m *Message) {
			if id == "" {
				id = string(m.ID)
			}
			a.json(status, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"no","data":%s}}`, id, code, data))
		})
	}
	plain := func(status int) webScript { return first(func(a *webAnswer, m *Message) { a.text(status, "no") }) }
	tests := []struct {
		name   string
		era    EraChoice
		script webScript
		want   string
	}{
		{"modern JSON", "", modernWeb(nil), "2026-07-28"},
		{"modern stream", "", first(func(a *webAnswer, m *Message) { a.resultEvent(m, modernDiscover) }), "2026-07-28"},
		{"pinned legacy", EraChoice(EraLegacy), initialize, "2025-11-25"},
		{"pinned modern", EraChoice(EraModern), rpc(200, "", CodeMethodNotFound, "1"), "protocol/not_modern"},
		{"pinned modern, plain 400", EraChoice(EraModern), plain(400), "transport/http_status"},
		{"plain 400", "", plain(400), "2025-11-25"},
		{"plain 404", "", plain(404), "2025-11-25"},
		{"plain 405", "", plain(405), "2025-11-25"},
		{"plain 415", "", plain(415), "2025-11-25"},
		{"plain 500", "", plain(500), "2025-11-25"},
		{"no session", "", rpc(400, "null", -32000, "1"), "2025-11-25"},
		{"method not found with 200", "", rpc(200, "", CodeMethodNotFound, "1"), "2025-11-25"},
		{"method not found with 404", "", rpc(404, "", CodeMethodNotFound, "1"), "2025-11-25"},
		{"invalid request", "", rpc(400, "null", CodeInvalidRequest, "1"), "2025-11-25"},
		{"empty result", "", first(func(a *webAnswer, m *Message) { a.result(m, `{}`) }), "2025-11-25"},
		{"HTML", "", first(func(a *webAnswer, m *Message) { _, _ = io.WriteString(a, "<html>") }), "2025-11-25"},
		{"202", "", first(func(a *webAnswer, m *Message) { a.WriteHeader(202) }), "2025-11-25"},
		{"crash", "", first(func(a *webAnswer, m *Message) { a.drop() }), "2025-11-25"},
		{"mute", "", first(func(a *webAnswer, m *Message) { <-a.r.Context().Done() }), "2025-11-25"},
		{"other modern version", "", rpc(400, "", CodeUnsupportedVersion, `{"supported":["2027-01-01"]}`), "protocol/unsupported_version"},
		{"legacy version", "", rpc(400, "", CodeUnsupportedVersion, `{"supported":["2025-06-18"]}`), "2025-11-25"},
		{"header mismatch", "", rpc(400, "", CodeHeaderMismatch, "1"), "no (JSON-RPC error -32020)"},
		{"401", "", plain(401), "auth/unauthorized"},
		{"403", "", plain(403), "auth/forbidden"},
		{"429", "", plain(429), "rate_limited/too_many_requests"},
		{"redirect", "", plain(302), "transport/redirect"},
		{"bad session id", "", first(func(a *webAnswer, m *Message) { a.text(400, "") }), "2025-11-25"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := serveWeb(t, test.script)
			c, err := ConnectHTTP(t.Context(), HTTPTarget{URL: w.URL}, ConnectOptions{Era: test.era, ProbeTimeout: 300 * time.Millisecond})
			if err == nil {
				defer closeConn(t, c)
				if got := c.Info().Version; got != test.want {
					t.Errorf("version %s, want %s", got, test.want)
				}
				return
			}
			if got := outcome(nil, err); got != test.want {
				t.Errorf("error %s (%v), want %s", got, err, test.want)
			}
		})
	}
}

func TestHTTPUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	_ = l.Close()
	_, err = ConnectHTTP(t.Context(), HTTPTarget{URL: url}, ConnectOptions{})
	wantOutcome(t, "refused", nil, err, "transport/connect")
	if f, _ := asFault(err); f == nil || !f.Retryable || strings.Contains(f.Message, "secret") {
		t.Errorf("fault %+v", f)
	}

	// A server that goes away: what was not sent can be repeated.
	w := serveWeb(t, modernWeb(func(a *webAnswer, m *Message) { a.result(m, `{}`) }))
	c := connectWeb(t, w, ConnectOptions{})
	w.Close()
	if _, err = c.Call(t.Context(), toolCall("a")); outcome(nil, err) == "unavailable/outcome_unknown" {
		// It went into a connection that was just being closed.
		_, err = c.Call(t.Context(), toolCall("a"))
	}
	if f, _ := asFault(err); f == nil || f.Kind != KindTransport || !f.Retryable {
		t.Errorf("error %v", err)
	}
	select {
	case <-c.Done():
		t.Error("the connection has ended")
	default:
	}

	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errGaveUp)
	defer cancel()
	_, err = ConnectHTTP(ctx, HTTPTarget{URL: "http://example.invalid/", DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}, ConnectOptions{})
	if err != errGaveUp {
		t.Errorf("a dial that hangs: %v", err)
	}
}

// TestHTTPTarget: what cannot be a target, or would leak a credential.
func TestHTTPTarget(t *testing.T) {
	token := func(context.Context) (string, error) { return "t", nil }
	for name, test := range map[string]struct {
		target HTTPTarget
		want   string
	}{
		"relative":      {HTTPTarget{URL: "/mcp"}, "invalid/url"},
		"other scheme":  {HTTPTarget{URL: "ftp://h/"}, "invalid/url"},
		"no host":       {HTTPTarget{URL: "http:///x"}, "invalid/url"},
		"unparsable":    {HTTPTarget{URL: "http://[::1/secret"}, "invalid/url"},
		"user info":     {HTTPTarget{URL: "https://u:secret@h/"}, "invalid/url"},
		"fragment":      {HTTPTarget{URL: "https://h/#secret"}, "invalid/url"},
		"plain http":    {HTTPTarget{URL: "http://example.com/", Token: token}, "invalid/plain_http"},
		"not loopback":  {HTTPTarget{URL: "http://127.0.0.1.example.com/", Token: token}, "invalid/plain_http"},
		"authorization": {HTTPTarget{URL: "https://h/", Headers: map[string]string{"authorization": "secret"}}, "invalid/headers"},
		"mcp":           {HTTPTarget{URL: "https://h/", Headers: map[string]string{"mcp-session-id": "secret"}}, "invalid/headers"},
		"accept":        {HTTPTarget{URL: "https://h/", Headers: map[string]string{"Accept-Encoding": "gzip"}}, "invalid/headers"},
		"hop":           {HTTPTarget{URL: "https://h/", Headers: map[string]string{"Transfer-Encoding": "chunked"}}, "invalid/headers"},
		"repeats":       {HTTPTarget{URL: "https://h/", Headers: map[string]string{"idempotency-key": "1"}}, "invalid/headers"},
		"bad name":      {HTTPTarget{URL: "https://h/", Headers: map[string]string{"a b": "x"}}, "invalid/headers"},
		"injection":     {HTTPTarget{URL: "https://h/", Headers: map[string]string{"X": "a\r\nsecret: b"}}, "invalid/headers"},
	} {
		_, err := ConnectHTTP(t.Context(), test.target, ConnectOptions{Server: "s"})
		wantOutcome(t, name, nil, err, test.want)
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error holds a secret: %v", name, err)
		}
	}
	for _, host := range []string{"localhost", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]"} {
		target := HTTPTarget{URL: "http://" + host + ":1/", Token: token}
		if _, err := target.parse(); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// TestHTTPHeaders: what a modern request carries, byte for byte.
func TestHTTPHeaders(t *testing.T) {
	w := serveWeb(t, modernWeb(func(a *webAnswer, m *Message) { a.result(m, `{}`) }))
	var current string
	var failure error
	type key struct{}
	c, err := ConnectHTTP(t.Context(), HTTPTarget{
		URL: w.URL, Headers: map[string]string{"x-team": "blue"},
		Token: func(ctx context.Context) (string, error) {
			if v, ok := ctx.Value(key{}).(string); ok {
				return v, nil // it is the call's own ctx
			}
			return current, failure
		},
	}, ConnectOptions{Client: Implementation{Name: "hub", Version: "9"}})
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(t, c)
	if got := w.headers["POST "+MethodDiscover][0].Get("Authorization"); got != "" {
		t.Errorf("an empty token is none, sent was %q", got)
	}
	call := &Call{
		Method:  MethodToolsCall,
		Params:  jsontext.Value(`{"arguments":{"n":12345678901234567890, "n2" :1.0},"name":"größe","x":[ ],"_meta":{"progressToken":"t","io.modelcontextprotocol/protocolVersion":"2099-01-01","io.modelcontextprotocol/clientCapabilities":{"sampling":{}},"traceparent":"00-1-2-03"}}`),
		Headers: map[string]string{"Mcp-Param-Region": "eu"},
	}
	if _, err := c.Call(context.WithValue(t.Context(), key{}, "tok"), call); err != nil {
		t.Fatal(err)
	}
	m, h := w.calls[MethodToolsCall][0], w.headers["POST "+MethodToolsCall][0]
	want := `{"arguments":{"n":12345678901234567890, "n2" :1.0},"name":"größe","x":[ ],"_meta":{"progressToken":` + string(m.ID) +
		`,"io.modelcontextprotocol/clientCapabilities":{"sampling":{}},"traceparent":"00-1-2-03","io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"hub","version":"9"}}}`
	if string(m.Params) != want {
		t.Errorf("params\n%s, want\n%s", m.Params, want)
	}
	for name, want := range map[string]string{
		"Accept": "application/json, text/event-stream", "Accept-Encoding": "identity", "Content-Type": "application/json",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "=?base64?Z3LDtsOfZQ==?=",
		"Mcp-Param-Region": "eu", "X-Team": "blue", "Authorization": "Bearer tok", "Mcp-Session-Id": "",
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for name, test := range map[string]struct {
		token   string
		err     error
		headers map[string]string
		want    string
	}{
		"newline":        {token: "secret\n", want: "auth/invalid_token"},
		"failing":        {err: errors.New("secret"), want: "auth/no_token"},
		"typed":          {err: NewFault(KindAuth, "consent", "go there"), want: "auth/consent"},
		"other header":   {headers: map[string]string{"Authorization": "x"}, want: "invalid/headers"},
		"header value":   {headers: map[string]string{"Mcp-Param-X": "a\nb"}, want: "invalid/headers"},
		"header no name": {headers: map[string]string{"Mcp-Param-a b": "x"}, want: "invalid/headers"},
	} {
		current, failure = test.token, test.err
		_, err := c.Call(t.Context(), &Call{Method: MethodToolsCall, Headers: test.headers})
		wantOutcome(t, name, nil, err, test.want)
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error holds a secret: %v", name, err)
		}
	}
	if n := w.count("POST tools/call"); n != 1 {
		t.Errorf("%d calls were sent", n)
	}
	for _, params := range []string{`[]`, `{"a":`, `{"_meta":1}`, `{"_meta":{"progressToken":[]}}`, `{"_meta":{"io.modelcontextprotocol/logLevel":"loud"}}`} {
		_, err := c.Call(t.Context(), &Call{Method: MethodToolsCall, Params: jsontext.Value(params)})
		wantOutcome(t, params, nil, err, "invalid/params")
	}
}

// TestHTTPFaults: what a fault says besides its kind.
func TestHTTPFaults(t *testing.T) {
	w := serveWeb(t, modernWeb(func(a *webAnswer, m *Message) {
		switch FieldString(m.Params, "name") {
		case "429":
			a.Header().Set("Retry-After", "7")
			a.text(429, "")
		case "429 date":
			a.Header().Set("Retry-After", time.Now().Add(time.Minute).UTC().Format(http.TimeFormat))
			a.text(429, "")
		case "429 for ever":
			a.Header().Set("Retry-After", "99999999999999999999")
			a.text(429, "")
		case "429 for long":
			a.Header().Set("Retry-After", "9999999999")
			a.text(429, "")
		case "401":
			a.Header().Add("WWW-Authenticate", `Bearer resource_metadata="https://h/x"`)
			a.Header().Add("WWW-Authenticate", `Basic`)
			a.text(401, "")
		}
	}))
	c := connectWeb(t, w, ConnectOptions{})
	fault := func(name string) *Fault {
		_, err := c.Call(t.Context(), toolCall(name))
		f, ok := asFault(err)
		if !ok {
			t.Fatalf("%s: %v", name, err)
		}
		return f
	}
	if f := fault("429"); f.RetryAfter() != 7*time.Second {
		t.Errorf("%+v", f)
	}
	if f := fault("429 date"); f.RetryAfter() < 55*time.Second || f.RetryAfter() > time.Minute {
		t.Errorf("%+v", f)
	}
	if f := fault("429 for ever"); f.RetryAfter() != 0 {
		t.Errorf("%+v", f)
	}
	if f := fault("429 for long"); f.RetryAfter() != 24*time.Hour {
		t.Errorf("%+v", f)
	}
	if f := fault("401"); string(f.Details) != `{"status":401,"challenges":["Bearer resource_metadata=\"https://h/x\"","Basic"]}` {
		t.Errorf("%s", f.Details)
	}
}

// TestHTTPOrder: many calls at once, each with its own stream; what is on it
// comes before the answer, in order.
func TestHTTPOrder(t *testing.T) {
	const calls, steps = 8, 100
	w := serveWeb(t, modernWeb(func(a *webAnswer, m *Message) {
		for i := range steps {
			a.event(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, m.ID, i)
			a.event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"debug","data":1}}`)
			a.event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":%d}}`, i)
			a.event(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"another's","progress":1}}`)
			a.event(`{"jsonrpc":"2.0","method":"notifications/custom","params":{"big":12345678901234567890}}`)
		}
		a.resultEvent(m, `{"is":`+string(Field(m.Params, "name"))+`}`)
	}))
	c := connectWeb(t, w, ConnectOptions{})
	var want []string
	for i := range steps {
		want = append(want,
			fmt.Sprintf(`notifications/progress{"progressToken":[1],"progress":%d}`, i),
			fmt.Sprintf(`notifications/message{"level":"error","data":%d}`, i),
			`notifications/custom{"big":12345678901234567890}`)
	}
	var group sync.WaitGroup
	for i := range calls {
		group.Go(func() {
			token := fmt.Sprintf(`"t%d"`, i)
			call := &Call{
				Method: MethodToolsCall,
				Params: jsontext.Value(fmt.Sprintf(`{"name":"n%d","_meta":{"progressToken":%s,"io.modelcontextprotocol/logLevel":"info"}}`, i, token)),
			}
			var got []string
			call.Notify = func(method string, params jsontext.Value) {
				got = append(got, strings.Replace(method+string(params), token, "[1]", 1))
			}
			result, err := c.Call(t.Context(), call)
			wantOutcome(t, "call", result, err, fmt.Sprintf(`{"is":"n%d"}`, i))
			if !slices.Equal(got, want) {
				t.Errorf("call %d got %d notifications, want %d", i, len(got), len(want))
			}
		})
	}
	group.Wait()
}

// TestHTTPCancelModern: the closed connection tells the server, at every stage;
// no notification is sent, and other calls do not notice.
func TestHTTPCancelModern(t *testing.T) {
	started := make(chan struct{}, 1)
	told := make(chan struct{}, 1)
	w := serveWeb(t, modernWeb(func(a *webAnswer, m *Message) {
		switch FieldString(m.Params, "name") {
		case "header":
		case "body":
			a.json(200, `{"jsonrpc"`)
			a.ResponseWriter.(http.Flusher).Flush()
		case "stream":
			a.raw("data: x\n\n")
		default:
			a.result(m, `{}`)
			return
		}
		started <- struct{}{}
		<-a.r.Context().Done()
		told <- struct{}{}
	}))
	c := connectWeb(t, w, ConnectOptions{})
	for _, stage := range []string{"header", "body", "stream"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			<-started
			cancel(errGaveUp)
		}()
		if _, err := c.Call(ctx, toolCall(stage)); err != errGaveUp {
			t.Errorf("%s: %v", stage, err)
		}
		select {
		case <-told:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the server was not told", stage)
		}
		result, err := c.Call(t.Context(), toolCall("other"))
		wantOutcome(t, "another call", result, err, `{}`)
	}
	if n := w.count("POST " + NotifyCancelled); n != 0 {
		t.Errorf("%d notifications", n)
	}
	// Close does the same to what is under way.
	result := make(chan error, 1)
	go func() {
		_, err := c.Call(t.Context(), toolCall("stream"))
		result <- err
	}()
	<-started
	closeConn(t, c)
	wantOutcome(t, "call at Close", nil, <-result, "unavailable/outcome_unknown")
	<-told
}

// TestHTTPReuse: connections are used again, also after streams.
func TestHTTPReuse(t *testing.T) {
	w := serveWeb(t, modernWeb(func(a *webAnswer, m *Message) {
		if FieldString(m.Params, "name") == "stream" {
			a.resultEvent(m, `{}`)
			<-time.After(time.Millisecond) // the end comes a little later
		} else {
			a.result(m, `{}`)
		}
	}))
	var mu sync.Mutex
	dials := 0
	c, err := ConnectHTTP(t.Context(), HTTPTarget{URL: w.URL, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		dials++
		mu.Unlock()
		return new(net.Dialer).DialContext(ctx, network, address)
	}}, ConnectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(t, c)
	for i := range 50 {
		name := "json"
		if i%2 == 0 {
			name = "stream"
		}
		if _, err := c.Call(t.Context(), toolCall(name)); err != nil {
			t.Fatal(err)
		}
	}
	if dials > 20 { // a slow machine may lose some of the 25 streams
		t.Errorf("%d connections for 50 calls", dials)
	}
}

// TestHTTPEraChange: a modern connection ends when its server has become another.
func TestHTTPEraChange(t *testing.T) {
	downgraded := false
	w := serveWeb(t, func(a *webAnswer, m *Message) {
		switch {
		case downgraded:
			a.json(400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: no session"}}`)
		case m.Method == MethodDiscover:
			a.result(m, modernDiscover)
		}
	})
	c := connectWeb(t, w, ConnectOptions{})
	if _, err := c.Call(t.Context(), &Call{Method: MethodDiscover}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
		t.Fatal("ended")
	default:
	}
	downgraded = true
	if _, err := c.Call(t.Context(), &Call{Method: MethodDiscover}); err == nil {
		t.Error("no error")
	}
	<-c.Done()
	wantOutcome(t, "Err", nil, c.Err(), "protocol/not_modern")
}

// TestHTTPVersionRefused: a server that refuses our version and yet names it is
// asked again, once.
func TestHTTPVersionRefused(t *testing.T) {
	for name, test := range map[string]struct {
		refusals int
		want     string
	}{
		"once": {1, ""}, "always": {9, "protocol/unsupported_version"},
	} {
		refusals := test.refusals
		w := serveWeb(t, func(a *webAnswer, m *Message) {
			if refusals--; refusals >= 0 {
				a.json(400, `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"error":{"code":-32022,"message":"no","data":{"supported":["2026-07-28"]}}}`)
				return
			}
			a.result(m, modernDiscover)
		})
		c, err := ConnectHTTP(t.Context(), HTTPTarget{URL: w.URL}, ConnectOptions{})
		if err == nil {
			closeConn(t, c)
		}
		wantOutcome(t, name, nil, err, test.want)
		if n, want := w.count("POST "+MethodDiscover), 2; n != want {
			t.Errorf("%s: asked %d times, want %d", name, n, want)
		}
	}
}
