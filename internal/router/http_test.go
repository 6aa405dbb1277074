package router

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"toolhub/internal/mcp"
)

// Requests that are wrong, and what exactly answers them.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.router("r1")
	c := b.client()
	session := b.initialize(c, r.url, "2025-11-25", "{}")
	const v = "2026-07-28"
	meta := func(version string) string {
		return `"_meta":{"io.modelcontextprotocol/protocolVersion":"` + version + `","io.modelcontextprotocol/clientCapabilities":{}}`
	}
	list := func(version string) string {
		return `{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{` + meta(version) + `}}`
	}
	call := func(tool, args string) string {
		return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + args + `,` + meta(v) + `}}`
	}
	listH := []string{"Mcp-Protocol-Version", v, "Mcp-Method", "tools/list"}
	callH := func(h ...string) []string {
		return append([]string{"Mcp-Protocol-Version", v, "Mcp-Method", "tools/call"}, h...)
	}
	inSession := []string{"Mcp-Session-Id", session, "Mcp-Protocol-Version", "2025-11-25"}
	for _, tt := range []struct {
		name    string
		path    string // "" is /mcp
		method  string // "" is POST
		body    string
		headers []string
		status  int
		code    int  // 0 for a result or no body
		id      bool // the error has the request's id
		says    string
	}{
		// Modern.
		{name: "modern list", body: list(v), headers: listH, status: 200},
		{name: "modern call", body: call("echo", "{}"), headers: callH("Mcp-Name", "echo"), status: 200},
		{name: "session id is ignored", body: list(v), headers: append([]string{"Mcp-Session-Id", "x"}, listH...), status: 200},
		{name: "no version header", body: list(v), headers: []string{"Mcp-Method", "tools/list"}, status: 400, code: -32020, id: true},
		{name: "legacy version header", body: list(v), headers: []string{"Mcp-Protocol-Version", "2025-11-25", "Mcp-Method", "tools/list"}, status: 400, code: -32020, id: true},
		{name: "legacy version in the body", body: list("2025-11-25"), headers: listH, status: 400, code: -32020, id: true},
		{name: "two legacy versions without a session", body: list("2025-11-25"), headers: []string{"Mcp-Protocol-Version", "2025-11-25"}, status: 400, code: -32022, id: true},
		{name: "unknown version", body: list("v999.0.0"), headers: []string{"Mcp-Protocol-Version", "v999.0.0", "Mcp-Method", "tools/list"}, status: 400, code: -32022, id: true, says: `"requested":"v999.0.0"`},
		{name: "unknown version, other header", body: list("v999.0.0"), headers: listH, status: 400, code: -32020, id: true},
		{name: "no _meta", body: `{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{}}`, headers: listH, status: 400, code: -32602, id: true},
		{name: "no params", body: `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`, headers: listH, status: 400, code: -32602, id: true},
		{name: "no capabilities", body: `{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"` + v + `"}}}`, headers: listH, status: 400, code: -32602, id: true, says: "clientCapabilities"},
		{name: "no method header", body: list(v), headers: []string{"Mcp-Protocol-Version", v}, status: 400, code: -32020, id: true},
		{name: "other method header", body: list(v), headers: []string{"Mcp-Protocol-Version", v, "Mcp-Method", "TOOLS/LIST"}, status: 400, code: -32020, id: true},
		{name: "other name header", body: call("echo", "{}"), headers: callH("Mcp-Name", "wait"), status: 400, code: -32020, id: true},
		{name: "no name header", body: call("echo", "{}"), headers: callH(), status: 400, code: -32020, id: true},
		{name: "encoded name header", body: call("echo", "{}"), headers: callH("Mcp-Name", "=?base64?ZWNobw==?="), status: 200},
		{name: "no param header", body: call("mirror", `{"city":"Bonn"}`), headers: callH("Mcp-Name", "mirror"), status: 400, code: -32020, id: true},
		{name: "wrong param header", body: call("mirror", `{"city":"Bonn"}`), headers: callH("Mcp-Name", "mirror", "Mcp-Param-City", "Ulm"), status: 400, code: -32020, id: true},
		{name: "param header", body: call("mirror", `{"city":"Köln"}`), headers: callH("Mcp-Name", "mirror", "Mcp-Param-City", mcp.EncodeHeader("Köln")), status: 200},
		{name: "unknown tool", body: call("nope", "{}"), headers: callH("Mcp-Name", "nope"), status: 400, code: -32602, id: true},
		{name: "removed method", body: `{"jsonrpc":"2.0","id":7,"method":"ping","params":{` + meta(v) + `}}`, headers: []string{"Mcp-Protocol-Version", v, "Mcp-Method", "ping"}, status: 404, code: -32601, id: true},
		{name: "initialize as modern", body: `{"jsonrpc":"2.0","id":7,"method":"initialize","params":{` + meta(v) + `}}`, headers: []string{"Mcp-Protocol-Version", v, "Mcp-Method", "initialize"}, status: 404, code: -32601, id: true},
		{name: "modern notification", body: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, headers: []string{"Mcp-Protocol-Version", v}, status: 202},
		{name: "modern response", body: `{"jsonrpc":"2.0","id":7,"result":{}}`, headers: []string{"Mcp-Protocol-Version", v}, status: 400, code: -32600},
		{name: "modern GET", method: "GET", headers: []string{"Mcp-Protocol-Version", v}, status: 405, code: -32600},
		{name: "modern DELETE", method: "DELETE", headers: []string{"Mcp-Protocol-Version", v}, status: 405, code: -32600},
		{name: "listen without a filter", body: `{"jsonrpc":"2.0","id":7,"method":"subscriptions/listen","params":{` + meta(v) + `}}`, headers: []string{"Mcp-Protocol-Version", v, "Mcp-Method", "subscriptions/listen"}, status: 400, code: -32602, id: true},
		{name: "listen without a stream", body: `{"jsonrpc":"2.0","id":7,"method":"subscriptions/listen","params":{"notifications":{},` + meta(v) + `}}`, headers: []string{"Mcp-Protocol-Version", v, "Mcp-Method", "subscriptions/listen", "Accept", "application/json"}, status: 406, code: -32600, id: true},
		{name: "one server", path: "/s/t/mcp", body: call("echo", "{}"), headers: callH("Mcp-Name", "echo"), status: 200},
		{name: "no such server", path: "/s/x/mcp", body: call("echo", "{}"), headers: callH("Mcp-Name", "echo"), status: 404, code: -32602, says: "unknown_server"},

		// Any era.
		{name: "no JSON", body: `{"jsonrpc":`, headers: listH, status: 400, code: -32700},
		{name: "no UTF-8", body: "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"\xff\"}", headers: listH, id: true, status: 400, code: -32700, says: "UTF-8"},
		{name: "duplicate names", body: `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"a":1,"a":2}}}`, headers: listH, id: true, status: 400, code: -32700, says: "duplicate"},
		{name: "nesting bomb", body: `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"arguments":` + strings.Repeat(`[`, 100000) + strings.Repeat(`]`, 100000) + `}}`, headers: listH, id: true, status: 400, code: -32700, says: "nested"},
		{name: "batch", body: `[` + list(v) + `]`, headers: listH, status: 400, code: -32600, says: "batches"},
		{name: "empty", body: ``, headers: listH, status: 400, code: -32700},
		{name: "wrong content type", body: list(v), headers: append([]string{"Content-Type", "text/plain"}, listH...), status: 415, code: -32600},
		{name: "encoded", body: list(v), headers: append([]string{"Content-Encoding", "gzip"}, listH...), status: 415, code: -32600},
		{name: "accepts neither", body: list(v), headers: append([]string{"Accept", "text/html"}, listH...), status: 406, code: -32600},
		{name: "too big", body: `{"x":"` + strings.Repeat("x", mcp.DefaultMaxMessageBytes) + `"}`, headers: listH, status: 413, code: -32603, says: "8388608"},
		{name: "PUT", method: "PUT", status: 405, code: -32600},
		{name: "foreign origin", body: list(v), headers: append([]string{"Origin", "http://evil.example"}, listH...), status: 403, code: -32600},
		{name: "null origin", body: list(v), headers: append([]string{"Origin", "null"}, listH...), status: 403, code: -32600},
		{name: "origin that begins well", body: list(v), headers: append([]string{"Origin", "http://localhost.evil.example"}, listH...), status: 403, code: -32600},
		{name: "own origin", body: list(v), headers: append([]string{"Origin", "http://localhost:5173"}, listH...), status: 200},
		{name: "foreign host", body: list(v), headers: append([]string{"Host", "evil.example"}, listH...), status: 403, code: -32600},
		{name: "foreign host on the probe", path: "/healthz", method: "GET", headers: []string{"Host", "evil.example"}, status: 403, code: -32600},
		{name: "IPv6 host", body: list(v), headers: append([]string{"Host", "[::1]:80"}, listH...), status: 200},
		{name: "elsewhere", path: "/other", body: list(v), headers: listH, status: 404},

		// Legacy.
		{name: "session list", body: `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`, headers: inSession, status: 200},
		{name: "no session", body: `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`, status: 400, code: -32600, id: true, says: "Mcp-Session-Id"},
		{name: "ping without a session", body: `{"jsonrpc":"2.0","id":7,"method":"ping"}`, status: 200},
		{name: "unknown session", body: `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`, headers: []string{"Mcp-Session-Id", strings.Repeat("A", 26)}, status: 404, code: -32600},
		{name: "unknown session in front of all else", body: `garbage`, headers: []string{"Mcp-Session-Id", "../../etc", "Content-Type", "text/plain", "Accept", "text/html"}, status: 404, code: -32600},
		{name: "session of another endpoint", path: "/s/t/mcp", body: `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`, headers: inSession, status: 404, code: -32600},
		{name: "unknown legacy version", body: `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`, headers: []string{"Mcp-Session-Id", session, "Mcp-Protocol-Version", "1999-01-01"}, status: 400, code: -32022},
		{name: "session without a version", body: `{"jsonrpc":"2.0","id":7,"method":"ping"}`, headers: []string{"Mcp-Session-Id", session}, status: 200},
		{name: "unknown method", body: `{"jsonrpc":"2.0","id":7,"method":"nope"}`, headers: inSession, status: 200, code: -32601, id: true},
		{name: "modern method", body: `{"jsonrpc":"2.0","id":7,"method":"server/discover"}`, headers: inSession, status: 200, code: -32601, id: true},
		{name: "unknown tool in a session", body: `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"nope"}}`, headers: inSession, status: 200, code: -32602, id: true},
		{name: "wrong params", body: `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":7}}`, headers: inSession, status: 200, code: -32602, id: true},
		{name: "wrong level", body: `{"jsonrpc":"2.0","id":7,"method":"logging/setLevel","params":{"level":"loud"}}`, headers: inSession, status: 200, code: -32602, id: true},
		{name: "notification", body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`, headers: inSession, status: 202},
		{name: "late response", body: `{"jsonrpc":"2.0","id":"x","result":{}}`, headers: inSession, status: 202},
		{name: "initialize without capabilities", body: `{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"protocolVersion":"2025-06-18"}}`, status: 200, code: -32602, id: true},
		{name: "initialize without a version", body: `{"jsonrpc":"2.0","id":7,"method":"initialize"}`, status: 200, code: -32602, id: true},
		{name: "initialize with a foreign version", body: `{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{}}}`, status: 200, says: `"protocolVersion":"2025-11-25"`},
		{name: "GET without a session", method: "GET", status: 400, code: -32600},
		{name: "GET of JSON", method: "GET", headers: append([]string{"Accept", "application/json"}, inSession...), status: 406, code: -32600},
		{name: "DELETE without a session", method: "DELETE", status: 400, code: -32600},
		{name: "DELETE of nothing", method: "DELETE", headers: []string{"Mcp-Session-Id", strings.Repeat("B", 26)}, status: 404, code: -32600},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := tt.path
			if path == "" {
				path = "/mcp"
			}
			req := post(t.Context(), r.base+path, tt.body, tt.headers...)
			if h := req.Header.Get("Host"); h != "" {
				req.Host = h
			}
			if tt.method != "" {
				req.Method = tt.method
			}
			res, body := b.exchange(c, req)
			var code int
			if _, after, ok := strings.Cut(body, `"error":{"code":`); ok {
				_, _ = fmt.Sscan(after, &code)
			}
			if res.StatusCode != tt.status || code != tt.code {
				t.Errorf("status %d code %d, want %d %d: %.300s", res.StatusCode, code, tt.status, tt.code, body)
			}
			if want := map[bool]string{true: `"id":7`, false: `"id":null`}[tt.id]; tt.code != 0 && !strings.Contains(body, want) {
				t.Errorf("want %s: %.300s", want, body)
			}
			if !strings.Contains(body, tt.says) {
				t.Errorf("want %q: %.300s", tt.says, body)
			}
			if res.StatusCode == 405 && res.Header.Get("Allow") == "" {
				t.Error("no Allow")
			}
		})
	}
}

// Without notifications an answer is plain JSON; with them it is a stream, in
// order, and an error after one is an event too.
func TestAnswerForms(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.router("r1")
	c := b.client()
	res, body := b.exchange(c, modernPost(t.Context(), r.url, "echo", `{"n":12345678901234567890}`))
	if res.Header.Get("Content-Type") != "application/json" || body != `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","content":[{"type":"text","text":"{\"n\":12345678901234567890}"}]}}` {
		t.Errorf("%s %s", res.Header.Get("Content-Type"), body)
	}
	e := b.open(c, modernPost(t.Context(), r.url, "progress", `{}`))
	if e.res.Header.Get("X-Accel-Buffering") != "no" {
		t.Error("a proxy may buffer the stream")
	}
	for i := range 3 {
		e.message(`"notifications/progress"`, `"progressToken":"p"`, fmt.Sprintf(`"progress":%d`, i+1))
	}
	e.message(`"id":1`, `"done"`)
	if rest := e.next(); rest != "" {
		t.Errorf("after the response: %s", rest)
	}
	e = b.open(c, modernPost(t.Context(), r.url, "fail", `{}`))
	e.message(`"notifications/progress"`)
	e.message(`"id":1`, `"error":{"code":-32603`, `"kind":"timeout"`)
	e = b.open(c, modernPost(t.Context(), r.url, "rpcfail", `{}`))
	e.message(`"notifications/progress"`)
	e.message(`"error":{"code":-32602,"message":"no","data":{"n":12345678901234567890}}`)

	// A client that takes no stream gets the result alone, one that takes nothing else a stream.
	req := modernPost(t.Context(), r.url, "progress", `{}`)
	req.Header.Set("Accept", "application/json")
	if res, body := b.exchange(c, req); res.Header.Get("Content-Type") != "application/json" || !strings.Contains(body, "done") {
		t.Errorf("%s %s", res.Header.Get("Content-Type"), body)
	}
	req = modernPost(t.Context(), r.url, "echo", `{}`)
	req.Header.Set("Accept", "text/event-stream")
	b.open(c, req).message(`"id":1`)

	if res, body := b.exchange(c, modernPost(t.Context(), r.url, "capable", `{}`)); res.StatusCode != 400 || !strings.Contains(body, `"requiredCapabilities":{"sampling":{}}`) {
		t.Errorf("%s %s", res.Status, body)
	}
	if _, body := b.exchange(c, modernPost(t.Context(), r.url, "ask", `{}`)); !strings.Contains(body, `"requestState":"toolhub-park:worker-w1:secret"`) {
		t.Errorf("input_required is not passed on: %s", body)
	}
	if _, body := b.exchange(c, modernPost(t.Context(), r.url, "big", `{}`)); len(body) < 3<<20 {
		t.Errorf("%d bytes of 3 MiB", len(body))
	}
}

func TestModernDisconnectCancels(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.router("r1")
	c := b.client()
	ctx, cancel := context.WithCancel(t.Context())
	e := b.open(c, modernPost(ctx, r.url, "wait", `{}`))
	e.message(`"progress":1`)
	b.tells("began")
	cancel()
	b.tells("cancelled")

	// Also while nothing was written yet.
	ctx, cancel = context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if res, err := c.Do(modernPost(ctx, r.url, "slow", `{}`)); err == nil {
			res.Body.Close()
		}
	}()
	b.tells("slow began")
	cancel()
	b.tells("slow cancelled")
	<-gone
}

// A client that does not read gets its stream and its call ended; others never
// notice.
func TestSlowClient(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.routerWith("r1", func(r *Router) { r.fronts.writeTimeout = 300 * time.Millisecond })
	c := b.client()
	stuck := b.open(c, modernPost(t.Context(), r.url, "flood", `{}`))
	for range 20 {
		if _, body := b.exchange(c, modernPost(t.Context(), r.url, "echo", `{}`)); !strings.Contains(body, `"id":1`) {
			t.Fatal(body)
		}
	}
	b.tells("flood cancelled")
	stuck.message(`"progress":0`)
}

// A silent call becomes a stream with comments, so that nothing cuts it off.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.routerWith("r1", func(r *Router) {
		r.fronts.heart.first, r.fronts.heart.silence = 20*time.Millisecond, 20*time.Millisecond
	})
	c := b.client()
	e := b.open(c, modernPost(t.Context(), r.url, "slow", `{}`))
	for range 3 {
		if got := e.next(); got != ":" {
			t.Fatalf("%q, want a comment", got)
		}
	}
	b.letGo()
	for {
		got := e.next()
		if got == ":" {
			continue
		}
		if !strings.Contains(got, "slow is done") {
			t.Fatalf("%q", got)
		}
		break
	}
	// One that takes no stream gets plain JSON, however long it takes.
	req := modernPost(t.Context(), r.url, "slow", `{}`)
	req.Header.Set("Accept", "application/json")
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		if res, body := b.exchange(c, req); res.Header.Get("Content-Type") != "application/json" || !strings.Contains(body, "slow is done") {
			t.Errorf("%s %s", res.Header.Get("Content-Type"), body)
		}
	}()
	b.tells("slow began")
	b.tells("slow began")
	b.letGo()
	<-answered
}

func TestHealth(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.router("r1")
	c := b.client()
	get := func(path string) (int, string) {
		res, err := c.Get(r.base + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	if status, body := get("/healthz"); status != 200 {
		t.Errorf("healthz: %d %s", status, body)
	}
	if status, body := get("/readyz"); status != 200 || body != `{"ready":true,"missing":[]}` {
		t.Errorf("readyz: %d %s", status, body)
	}
	b.nats.Shutdown()
	b.eventually("NATS is gone", func() bool { return !r.conn.Connected() && !r.engine.registry.View().Live })
	if status, body := get("/readyz"); status != 503 || !strings.Contains(body, "NATS") {
		t.Errorf("readyz without NATS: %d %s", status, body)
	}
	if status, _ := get("/healthz"); status != 200 {
		t.Errorf("healthz without NATS: %d", status)
	}
	// Lists go on from what was seen last (D4).
	res, body := b.exchange(c, post(t.Context(), r.url, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+clientMeta+`}}`, "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/list"))
	if res.StatusCode != 200 || !strings.Contains(body, `"echo"`) {
		t.Errorf("list without NATS: %s %s", res.Status, body)
	}
}

// A handler that panics answers, and takes nothing down.
func TestPanic(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var log bytes.Buffer
	r := b.routerWith("r1", func(r *Router) {
		r.fronts.missing = func() []string { panic("the reason of it all") }
		r.fronts.log = textLog(&log)
	})
	c := b.client()
	res, err := c.Get(r.base + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if res.StatusCode != 500 || strings.Contains(string(body), "reason of it all") || !strings.Contains(string(body), `"code":-32603`) {
		t.Errorf("%s %s", res.Status, body)
	}
	r.stop()
	if !strings.Contains(log.String(), "the reason of it all") {
		t.Errorf("the log does not say why: %s", log.String())
	}
}

// What runs when the router is told to stop comes to its end, and streams that
// wait for changes end with a response.
func TestDrain(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.router("r1")
	c := b.client()
	listen := b.open(c, listenPost(t.Context(), r.url, `{"toolsListChanged":true}`))
	listen.message("acknowledged")
	type outcome struct{ body string }
	done := make(chan outcome, 1)
	go func() {
		_, body := b.exchange(c, modernPost(t.Context(), r.url, "slow", `{}`))
		done <- outcome{body}
	}()
	b.tells("slow began")
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.stop()
	}()
	listen.message(`"id":"l"`, `"resultType":"complete"`, `"io.modelcontextprotocol/subscriptionId":"l"`)
	if rest := listen.next(); rest != "" {
		t.Errorf("after the end: %s", rest)
	}
	select {
	case <-stopped:
		t.Error("the router stopped while a call ran")
	case got := <-done:
		t.Errorf("the call ended early: %s", got.body)
	default:
	}
	b.letGo()
	if got := <-done; !strings.Contains(got.body, "slow is done") {
		t.Errorf("%s", got.body)
	}
	<-stopped
}

// Calls in sessions, which no disconnect cancels, end when the time to drain is over.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.apply(bedHub + "drain_timeout: 50ms\n")
	r := b.router("r1")
	b.eventually("the settings are there", func() bool {
		return r.engine.registry.View().Settings.DrainTimeout.Std() == 50*time.Millisecond
	})
	c := b.client()
	session := b.initialize(c, r.url, "2025-11-25", "{}")
	ctx, cancel := context.WithCancel(t.Context())
	e := b.open(c, sessionPost(ctx, r.url, session, sessionCall("wait")))
	e.message(`"progress":1`)
	b.tells("began")
	cancel()
	r.stop()
	b.tells("cancelled")
}

func listenPost(ctx context.Context, url, filter string) *http.Request {
	return post(ctx, url, `{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":`+filter+`,`+clientMeta+`}}`,
		"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "subscriptions/listen")
}

func sessionCall(tool string) string {
	return `{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"` + tool + `","arguments":{},"_meta":{"progressToken":"p"}}}`
}
