package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
)

// bed is a hub without routers, with a worker that owns the server "t", whose
// tools are below.
type bed struct {
	*testHub
	server *server
	told   chan string // what calls of the tools wait, slow and flood went through
	// release lets one call of slow come to its end.
	release chan struct{}
}

const bedHub = `
hub: test
policy: allow_all
servers:
  t: {builtin: clock, prefix: ""}
`

func newBed(t testing.TB) *bed {
	t.Helper()
	return newBedOn(t, newIdleHub(t, bedHub))
}

func newBedOn(t testing.TB, h *testHub) *bed {
	t.Helper()
	b := &bed{testHub: h, told: make(chan string, 64), release: make(chan struct{})}
	b.server = b.startDefs("t", b.serve, bedDefs(bedTools...))
	at, err := b.worker.Serve(bus.ServeAtSubject("test", b.worker.Identity()), "", 0, b.serve)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(at.Stop)
	return b
}

func bedDefs(names ...string) []jsontext.Value {
	list := defs(names...)
	for i, name := range names {
		if name == "mirror" {
			list[i] = jsontext.Value(`{"name":"mirror","inputSchema":{"type":"object","properties":{"city":{"type":"string","x-mcp-header":"City"}}}}`)
		}
	}
	return list
}

var bedTools = []string{"echo", "progress", "wait", "slow", "meta", "ask", "fail", "rpcfail", "array", "again", "mirror", "big", "flood", "capable", "sample", "sample_modern"}

// serve is the worker.
func (b *bed) serve(ctx context.Context, in *bus.Incoming) (bus.Reply, error) {
	m, err := mcp.ParseMessage(in.Body, mcp.Strict)
	if err != nil {
		return bus.Reply{}, err
	}
	params, err := mcp.ParseParams(m.Params)
	if err != nil {
		return bus.Reply{}, err
	}
	meta, err := mcp.ReadRequestMeta(params.Meta)
	if err != nil {
		return bus.Reply{}, err
	}
	notify := func(method, params string) {
		_ = in.Notify(mcp.AppendRequest(nil, nil, method, jsontext.Value(params)))
	}
	progress := func(n int) {
		if meta.ProgressToken != nil {
			notify(mcp.NotifyProgress, fmt.Sprintf(`{"progressToken":%s,"progress":%d}`, meta.ProgressToken, n))
		}
	}
	result := func(result string) (bus.Reply, error) {
		return bus.Reply{Body: mcp.AppendResult(nil, m.ID, jsontext.Value(result))}, nil
	}
	text := func(s string) (bus.Reply, error) {
		return result(`{"resultType":"complete","content":[{"type":"text","text":` + string(mcp.QuoteString(s)) + `}]}`)
	}
	switch params.Name {
	case "echo", "mirror":
		return text(string(params.Arguments))
	case "meta":
		return text(string(params.Meta))
	case "progress":
		for i := range 3 {
			progress(i + 1)
		}
		return text("done")
	case "slow":
		b.told <- "slow began"
		select {
		case <-ctx.Done():
			b.told <- "slow cancelled"
			return bus.Reply{}, context.Cause(ctx)
		case <-b.release:
			return text("slow is done")
		}
	case "wait":
		progress(1)
		b.told <- "began"
		<-ctx.Done()
		b.told <- "cancelled"
		return bus.Reply{}, context.Cause(ctx)
	case "ask":
		answers := mcp.Field(m.Params, "inputResponses")
		if answers == nil {
			progress(1)
			return result(`{"resultType":"input_required","inputRequests":{"who":{"method":"elicitation/create","params":{"mode":"form","message":"who?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}}},"requestState":"toolhub-park:worker-w1:secret"}`)
		}
		if state := mcp.FieldString(m.Params, "requestState"); state != "toolhub-park:worker-w1:secret" || !strings.Contains(in.Subject, ".at.") {
			return text("wrong state " + state + " at " + in.Subject)
		}
		return text("answers " + string(answers))
	case "sample": // asks for two things, and hears what was refused
		switch refused := mcp.Field(params.Meta, bus.MetaRefused); {
		case string(refused) == bus.RefusedAll:
			b.told <- "gave up at " + in.Subject
			return bus.Reply{}, mcp.NewFault(mcp.KindUnavailable, mcp.ReasonCancelled, "nobody comes back")
		case refused != nil:
			return text("refused " + string(refused) + " answered " + string(mcp.Field(m.Params, "inputResponses")))
		}
		return result(`{"resultType":"input_required","inputRequests":{"s":{"method":"sampling/createMessage","params":{"maxTokens":1}},"r":{"method":"roots/list"}},"requestState":"toolhub-park:worker-w1:secret"}`)
	case "sample_modern": // asks the same and does not wait
		return result(`{"resultType":"input_required","inputRequests":{"s":{"method":"sampling/createMessage","params":{"maxTokens":1}}},"requestState":"own"}`)
	case "again": // asks for nothing but to be called again, twice
		state := mcp.FieldString(m.Params, "requestState")
		if len(state) < 2 {
			return result(`{"resultType":"input_required","requestState":"` + state + `x"}`)
		}
		return text("called with " + state)
	case "capable":
		return bus.Reply{Body: mcp.AppendError(nil, m.ID, &mcp.Error{Code: mcp.CodeMissingCapability, Message: "needs more", Data: jsontext.Value(`{"requiredCapabilities":{"sampling":{}}}`)}), IsError: true}, nil
	case "fail":
		progress(1)
		return bus.Reply{}, mcp.NewFault(mcp.KindTimeout, "test", "it took too long")
	case "rpcfail":
		progress(1)
		return bus.Reply{Body: []byte(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"error":{"code":-32602,"message":"no","data":{"n":12345678901234567890}}}`), IsError: true}, nil
	case "array":
		return result(`{"content":[],"structuredContent":[1,2],"resultType":"complete","x":12345678901234567890,"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"b","version":"1"},"own":1}}`)
	case "big":
		return text(strings.Repeat("x", 3<<20))
	case "flood":
		for i := 0; ctx.Err() == nil; i++ {
			notify(mcp.NotifyProgress, fmt.Sprintf(`{"progressToken":%s,"progress":%d,"message":"%s"}`, meta.ProgressToken, i, strings.Repeat("y", 8<<10)))
			if i%100 == 0 {
				_ = pause(ctx, time.Millisecond) // so as not to take the machine
			}
		}
		b.told <- "flood cancelled"
		return bus.Reply{}, context.Cause(ctx)
	}
	return bus.Reply{}, mcp.NewFault(mcp.KindNotFound, "no_tool", "no tool %q", params.Name)
}

func (b *bed) tells(want string) {
	b.t.Helper()
	select {
	case got := <-b.told:
		if got != want {
			b.t.Fatalf("the worker says %q, want %q", got, want)
		}
	case <-time.After(patience):
		b.t.Fatalf("the worker never says %q", want)
	}
}

// letGo lets one call of slow come to its end.
func (b *bed) letGo() {
	b.t.Helper()
	select {
	case b.release <- struct{}{}:
	case <-time.After(patience):
		b.t.Fatal("no call waits to be let go")
	}
}

// eventually waits until ok holds.
func (b *bed) eventually(what string, ok func() bool) {
	b.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(patience); !ok(); {
		select {
		case <-tick.C:
		case <-timeout:
			b.t.Fatalf("never: %s", what)
		}
	}
}

// running is a router that runs.
type running struct {
	*Router
	url  string // of /mcp
	base string
	// stop ends the router and waits.
	stop func()
}

// router starts a router.
func (b *bed) router(identity string) *running {
	b.t.Helper()
	return b.routerWith(identity, func(*Router) {})
}

func (b *bed) routerWith(identity string, change func(*Router)) *running {
	b.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	r, err := New(Config{Conn: b.connect(identity), Listener: l})
	if err != nil {
		b.t.Fatal(err)
	}
	change(r)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var once sync.Once
	run := &running{Router: r, base: "http://" + l.Addr().String(), stop: func() {
		once.Do(func() {
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				b.t.Errorf("router %s: %v", identity, err)
			}
		})
	}}
	run.url = run.base + "/mcp"
	b.t.Cleanup(run.stop)
	if err := r.engine.registry.WaitSynced(context.Background()); err != nil {
		b.t.Fatal(err)
	}
	b.eventually("the server is ready", func() bool { return b.server.isReady(r.engine.registry.View()) })
	// One that is stopped before it serves has nothing to drain.
	health, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, run.base+"/healthz", http.NoBody)
	if err != nil {
		b.t.Fatal(err)
	}
	if res, _ := b.exchange(b.client(), health); res.StatusCode != http.StatusOK {
		b.t.Fatalf("the router does not serve: %s", res.Status)
	}
	return run
}

// client is an HTTP client whose connections end with the test.
func (b *bed) client() *http.Client {
	tr := &http.Transport{}
	b.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 3 * patience} // of whole streams too: a test must not hang
}

const clientMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"progressToken":"p"}`

// modernPost is a modern tools/call.
func modernPost(ctx context.Context, url, tool, arguments string) *http.Request {
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + arguments + `,` + clientMeta + `}}`
	return post(ctx, url, body, "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", tool)
}

func post(ctx context.Context, url, body string, headers ...string) *http.Request {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		r.Header[http.CanonicalHeaderKey(headers[i])] = []string{headers[i+1]}
	}
	return r
}

// exchange sends a request and reads the whole answer.
func (b *bed) exchange(c *http.Client, r *http.Request) (*http.Response, string) {
	b.t.Helper()
	res, err := c.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatalf("reading: %v after %.200q", err, body)
	}
	return res, string(body)
}

// initialize opens a session.
func (b *bed) initialize(c *http.Client, url, version, capabilities string) string {
	b.t.Helper()
	res, body := b.exchange(c, post(context.Background(), url, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":`+capabilities+`,"clientInfo":{"name":"test","version":"1"}}}`))
	id := res.Header.Get("Mcp-Session-Id")
	if res.StatusCode != 200 || id == "" || !strings.Contains(body, `"protocolVersion":"`+version+`"`) {
		b.t.Fatalf("initialize: %s %q %s", res.Status, id, body)
	}
	return id
}

// sessionPost is one message of a session.
func sessionPost(ctx context.Context, url, session, body string) *http.Request {
	return post(ctx, url, body, "Mcp-Session-Id", session, "Mcp-Protocol-Version", "2025-11-25")
}

// messages reads the messages of a stream as they come.
type messages struct {
	t   testing.TB
	res *http.Response
	buf []byte
}

// open sends a request whose answer is a stream.
func (b *bed) open(c *http.Client, r *http.Request) *messages {
	b.t.Helper()
	res, err := c.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { res.Body.Close() })
	if kind := res.Header.Get("Content-Type"); kind != "text/event-stream" {
		body, _ := io.ReadAll(res.Body)
		b.t.Fatalf("no stream: %s %s %.300s", res.Status, kind, body)
	}
	return &messages{t: b.t, res: res}
}

// next is the data of the next event, "" at the end of the stream; a comment is
// returned with its colon.
func (e *messages) next() string {
	e.t.Helper()
	for {
		if i := bytes.Index(e.buf, []byte("\n\n")); i >= 0 {
			event := string(e.buf[:i])
			e.buf = e.buf[i+2:]
			return strings.TrimPrefix(event, "event: message\ndata: ")
		}
		chunk := make([]byte, 4096)
		n, err := e.res.Body.Read(chunk)
		e.buf = append(e.buf, chunk[:n]...)
		if n == 0 && err != nil {
			if len(e.buf) > 0 || !errors.Is(err, io.EOF) && !errors.Is(err, context.Canceled) {
				e.t.Fatalf("the stream breaks off: %v after %.100q", err, e.buf)
			}
			return ""
		}
	}
}

// message is next for a message that must have each of the parts.
func (e *messages) message(parts ...string) string {
	e.t.Helper()
	got := e.next()
	for _, p := range parts {
		if !strings.Contains(got, p) {
			e.t.Fatalf("message %.300q, want one with %q", got, p)
		}
	}
	return got
}

func textLog(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
