package router

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
)

// A session that one router opened is served by every other, also when the
// first is dead (M5).
func TestSessionOnAnyRouter(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r1, r2 := b.router("r1"), b.router("r2")
	c := b.client()
	session := b.initialize(c, r1.url, "2025-06-18", `{"elicitation":{},"experimental":{"x":1},"tasks":{}}`)
	if _, body := b.exchange(c, sessionPost(t.Context(), r1.url, session, `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"debug"}}`)); !strings.Contains(body, `"result":{}`) {
		t.Fatal(body)
	}
	r1.stop()
	// Everything that the session knows is in what the server gets.
	_, body := b.exchange(c, sessionPost(t.Context(), r2.url, session, `{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"meta","_meta":{"own":[1],"progressToken":7,"io.modelcontextprotocol/protocolVersion":"2025-06-18"}}}`))
	for _, want := range []string{
		`\"own\":[1]`, `\"progressToken\":7`, `\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\"`,
		`\"io.modelcontextprotocol/clientCapabilities\":{\"elicitation\":{},\"experimental\":{\"x\":1}}`,
		`\"io.modelcontextprotocol/clientInfo\":{\"name\":\"test\",\"version\":\"1\"}`, `\"io.modelcontextprotocol/logLevel\":\"debug\"`, `"id":"a"`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in %s", want, body)
		}
	}
	if strings.Contains(body, "resultType") {
		t.Errorf("modern members reach a legacy client: %s", body)
	}
}

// What a result has that the initialize era has not is left out, and all else
// stays byte for byte.
func TestLegacyResults(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.router("r1")
	c := b.client()
	session := b.initialize(c, r.url, "2025-11-25", "{}")
	call := func(tool string) string {
		t.Helper()
		res, body := b.exchange(c, sessionPost(t.Context(), r.url, session, `{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"`+tool+`"}}`))
		if res.StatusCode != 200 || res.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s", res.Status, body)
		}
		return body
	}
	if got, want := call("array"), `{"jsonrpc":"2.0","id":9,"result":{"content":[],"x":12345678901234567890,"_meta":{"own":1}}}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := call("capable"); !strings.Contains(got, `"code":-32600`) || !strings.Contains(got, `\"sampling\"`) {
		t.Errorf("%s", got)
	}
	if got := call("rpcfail"); !strings.Contains(got, `{"code":-32602,"message":"no","data":{"n":12345678901234567890}}`) {
		t.Errorf("%s", got)
	}
	if got := call("again"); !strings.Contains(got, "called with xx") {
		t.Errorf("%s", got)
	}
	_, list := b.exchange(c, sessionPost(t.Context(), r.url, session, `{"jsonrpc":"2.0","id":9,"method":"tools/list"}`))
	if !strings.Contains(list, `"tools":[{"name":"echo"`) || strings.Contains(list, "ttlMs") || strings.Contains(list, "resultType") {
		t.Errorf("%s", list)
	}
	// An error behind an event is an event.
	e := b.open(c, sessionPost(t.Context(), r.url, session, sessionCall("fail")))
	e.message("progress")
	e.message(`"id":9`, `"error"`)
}

func TestDeleteEndsSessionEverywhere(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r1, r2 := b.router("r1"), b.router("r2")
	c := b.client()
	session := b.initialize(c, r1.url, "2025-11-25", "{}")
	stream := b.open(c, streamGet(t.Context(), r2.url, session))
	if got := stream.next(); got != ": ok" {
		t.Fatalf("%q", got)
	}
	call := b.open(c, sessionPost(t.Context(), r2.url, session, sessionCall("wait")))
	call.message("progress")
	b.tells("began")
	del := streamGet(t.Context(), r1.url, session)
	del.Method = http.MethodDelete
	if res, body := b.exchange(c, del); res.StatusCode != 204 {
		t.Fatalf("%s %s", res.Status, body)
	}
	b.tells("cancelled")
	for got := stream.next(); got != ""; got = stream.next() {
		t.Errorf("%q", got)
	}
	call.message(`"id":9`, `"error"`)
	for _, r := range []*running{r1, r2} {
		if res, _ := b.exchange(c, sessionPost(t.Context(), r.url, session, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)); res.StatusCode != 404 {
			t.Errorf("%s: %s after DELETE", r.url, res.Status)
		}
	}
}

// A disconnect does not cancel a call of a session, notifications/cancelled does,
// whichever router it comes to.
func TestLegacyCancel(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r1, r2 := b.router("r1"), b.router("r2")
	c := b.client()
	session := b.initialize(c, r1.url, "2025-11-25", "{}")
	other := b.initialize(c, r1.url, "2025-11-25", "{}")
	for _, at := range []*running{r1, r2} {
		ctx, cancel := context.WithCancel(t.Context())
		e := b.open(c, sessionPost(ctx, r1.url, session, sessionCall("wait")))
		e.message("progress")
		b.tells("began")
		cancel()
		// Another session's call with the same id is not meant.
		if res, _ := b.exchange(c, sessionPost(t.Context(), at.url, other, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}`)); res.StatusCode != 202 {
			t.Fatal(res.Status)
		}
		select {
		case got := <-b.told:
			t.Fatalf("%q although nobody cancelled", got)
		default:
		}
		if res, _ := b.exchange(c, sessionPost(t.Context(), at.url, session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}`)); res.StatusCode != 202 {
			t.Fatal(res.Status)
		}
		b.tells("cancelled")
	}
}

// The client is asked on the stream of its call, and its answer may come to
// another router.
func TestInputAcrossRouters(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r1, r2 := b.router("r1"), b.router("r2")
	c := b.client()
	session := b.initialize(c, r1.url, "2025-06-18", `{"elicitation":{}}`)
	for i, at := range []*running{r2, r1} {
		e := b.open(c, sessionPost(t.Context(), r1.url, session, sessionCall("ask")))
		e.message("progress")
		question := e.message(`"method":"elicitation/create"`, `"message":"[t] who?"`)
		if strings.Contains(question, `"mode"`) {
			t.Errorf("MCP 2025-06-18 has no modes: %s", question)
		}
		id := string(mcp.Field([]byte(question), "id"))
		// A response of another session is nobody's answer.
		foreign := b.initialize(c, at.url, "2025-06-18", `{"elicitation":{}}`)
		answer := `{"jsonrpc":"2.0","id":` + id + `,"result":{"action":"accept","content":{"name":"Ada %d","n":12345678901234567890}}}`
		for _, post := range []*http.Request{
			sessionPost(t.Context(), at.url, foreign, fmt.Sprintf(answer, 77)),
			sessionPost(t.Context(), at.url, session, fmt.Sprintf(answer, i)),
		} {
			if res, body := b.exchange(c, post); res.StatusCode != 202 {
				t.Fatalf("%s %s", res.Status, body)
			}
		}
		e.message(`"id":9`, fmt.Sprintf(`answers {\"who\":{\"action\":\"accept\",\"content\":{\"name\":\"Ada %d\",\"n\":12345678901234567890}}}`, i))
		if rest := e.next(); rest != "" {
			t.Errorf("after the response: %s", rest)
		}
		// Too late, which is no mistake.
		if res, body := b.exchange(c, sessionPost(t.Context(), at.url, session, fmt.Sprintf(answer, 99))); res.StatusCode != 202 {
			t.Fatalf("%s %s", res.Status, body)
		}
	}
	// An error of the client ends an elicitation as cancelled.
	e := b.open(c, sessionPost(t.Context(), r1.url, session, sessionCall("ask")))
	e.message("progress")
	id := string(mcp.Field([]byte(e.message("elicitation/create")), "id"))
	b.exchange(c, sessionPost(t.Context(), r2.url, session, `{"jsonrpc":"2.0","id":`+id+`,"error":{"code":-32601,"message":"no"}}`))
	e.message(`{\"action\":\"cancel\"}`)
	// A cancelled call withdraws its question.
	e = b.open(c, sessionPost(t.Context(), r1.url, session, sessionCall("ask")))
	e.message("progress")
	id = string(mcp.Field([]byte(e.message("elicitation/create")), "id"))
	b.exchange(c, sessionPost(t.Context(), r2.url, session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}`))
	e.message("notifications/cancelled", id)
	e.message(`"id":9`, `"error"`)
}

// What waits in a worker for answers hears what the client refuses, and that it
// gets none.
func TestRefusalReachesTheWaitingCall(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.router("r1")
	c := b.client()
	session := b.initialize(c, r.url, "2025-11-25", `{"sampling":{},"roots":{}}`)
	ask := func(session, tool string) (*messages, string, string) {
		e := b.open(c, sessionPost(t.Context(), r.url, session, sessionCall(tool)))
		ids := map[string]string{}
		for range 2 {
			question := e.message(`"method"`)
			ids[mcp.FieldString([]byte(question), "method")] = string(mcp.Field([]byte(question), "id"))
			if tool == "sample_modern" {
				break
			}
		}
		return e, ids[mcp.MethodSample], ids[mcp.MethodRootsList]
	}
	post := func(body string) {
		t.Helper()
		if res, got := b.exchange(c, sessionPost(t.Context(), r.url, session, body)); res.StatusCode != 202 {
			t.Fatalf("%s %s", res.Status, got)
		}
	}
	e, sample, roots := ask(session, "sample")
	post(`{"jsonrpc":"2.0","id":` + sample + `,"error":{"code":-1,"message":"the user says no","data":{"n":12345678901234567890}}}`)
	post(`{"jsonrpc":"2.0","id":` + roots + `,"result":{"roots":[]}}`)
	e.message(`"id":9`, `refused {\"s\":{\"code\":-1,\"message\":\"the user says no\",\"data\":{\"n\":12345678901234567890}}} answered {\"r\":{\"roots\":[]}}`)

	// One that cannot be told what was refused is the caller's to make again.
	e, sample, _ = ask(session, "sample_modern")
	post(`{"jsonrpc":"2.0","id":` + sample + `,"error":{"code":-1,"message":"the user says no"}}`)
	e.message(`"id":9`, `"error"`, "the user says no")

	at := "gave up at " + bus.AtSubject("test", "worker-w1", "t", mcp.MethodToolsCall)
	// The client cancels, ends its session, or cannot be asked at all.
	e, _, _ = ask(session, "sample")
	post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}`)
	e.message("notifications/cancelled")
	b.tells(at)
	ask(session, "sample")
	del := streamGet(t.Context(), r.url, session)
	del.Method = http.MethodDelete
	if res, body := b.exchange(c, del); res.StatusCode != 204 {
		t.Fatalf("%s %s", res.Status, body)
	}
	b.tells(at)
	session = b.initialize(c, r.url, "2025-11-25", `{"sampling":{}}`)
	if _, body := b.exchange(c, sessionPost(t.Context(), r.url, session, sessionCall("sample"))); !strings.Contains(body, `"code":-32600`) || !strings.Contains(body, "roots") {
		t.Errorf("%s", body)
	}
	b.tells(at)
}

func TestInputRefused(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.router("r1")
	c := b.client()
	ask := `{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"ask"}}`
	for capabilities, ok := range map[string]bool{`{}`: false, `{"elicitation":{}}`: true, `{"elicitation":{"url":{}}}`: false, `{"elicitation":{"form":{},"url":{}}}`: true, `{"sampling":{}}`: false} {
		session := b.initialize(c, r.url, "2025-11-25", capabilities)
		if ok {
			e := b.open(c, sessionPost(t.Context(), r.url, session, ask))
			e.message("elicitation/create")
			b.exchange(c, sessionPost(t.Context(), r.url, session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}`))
			e.message("notifications/cancelled")
			continue
		}
		if _, body := b.exchange(c, sessionPost(t.Context(), r.url, session, ask)); !strings.Contains(body, `"code":-32600`) || !strings.Contains(body, "elicitation") {
			t.Errorf("%s: %s", capabilities, body)
		}
	}
	session := b.initialize(c, r.url, "2025-11-25", `{"elicitation":{}}`)
	req := sessionPost(t.Context(), r.url, session, ask)
	req.Header.Set("Accept", "application/json")
	if _, body := b.exchange(c, req); !strings.Contains(body, "cannot be asked") {
		t.Errorf("a client without a stream is asked: %s", body)
	}
	// One of the oldest version cannot be asked, whatever it declares.
	session = b.initialize(c, r.url, "2025-03-26", `{"elicitation":{}}`)
	if _, body := b.exchange(c, sessionPost(t.Context(), r.url, session, ask)); !strings.Contains(body, `"code":-32600`) {
		t.Errorf("%s", body)
	}
}

// Two clients with the same ids never get each other's messages (C5).
func TestNoCrossTalk(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r1, r2 := b.router("r1"), b.router("r2")
	c := b.client()
	var wg sync.WaitGroup
	for i := range 8 {
		r := []*running{r1, r2}[i%2]
		session := b.initialize(c, r.url, "2025-11-25", "{}")
		wg.Go(func() {
			for n := range 10 {
				want := fmt.Sprintf("client %d call %d", i, n)
				body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"progress","arguments":{},"_meta":{"progressToken":"` + want + `"}}}`
				e := b.open(c, sessionPost(t.Context(), r.url, session, body))
				for range 3 {
					e.message(`"progressToken":"` + want + `"`)
				}
				e.message(`"id":1`)
				echo := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"w":"` + want + `"}}}`
				if _, got := b.exchange(c, sessionPost(t.Context(), r.url, session, echo)); !strings.Contains(got, want) {
					t.Errorf("%s got %s", want, got)
				}
			}
		})
	}
	wg.Wait()
}

// Sessions that nobody uses go away by themselves, used ones stay (M1, S10).
func TestSessionExpiry(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	short := func(r *Router) {
		r.fronts.sessions.ttl = 5 * time.Second // a use of it must not be delayed for longer
		r.fronts.heart.first, r.fronts.heart.silence = 100*time.Millisecond, 100*time.Millisecond
	}
	r1, r2 := b.routerWith("r1", short), b.routerWith("r2", short)
	c := b.client()
	used := b.initialize(c, r1.url, "2025-11-25", "{}")
	stream := b.open(c, streamGet(t.Context(), r2.url, used))
	const many = 200
	var last string
	for range many {
		last = b.initialize(c, r1.url, "2025-11-25", "{}")
	}
	lost, err := r1.fronts.sessions.get(t.Context(), last)
	if err != nil {
		t.Fatal(err)
	}
	b.eventually("an unused session ends", func() bool {
		lost.mu.Lock()
		defer lost.mu.Unlock()
		return lost.ended
	})
	b.eventually("all of them are forgotten", func() bool {
		r1.fronts.sessions.mu.Lock()
		defer r1.fronts.sessions.mu.Unlock()
		return len(r1.fronts.sessions.byID) <= 1
	})
	for range 15 {
		stream.next()
	}
	for _, r := range []*running{r1, r2} {
		if res, body := b.exchange(c, sessionPost(t.Context(), r.url, used, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)); res.StatusCode != 200 {
			t.Errorf("the session with an open stream: %s %s", res.Status, body)
		}
		if res, _ := b.exchange(c, sessionPost(t.Context(), r.url, last, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)); res.StatusCode != 404 {
			t.Errorf("an expired session: %s", res.Status)
		}
	}
	left, err := b.worker.List(t.Context(), bus.BucketSessions, bus.KeyFilter(bus.KeySession))
	if err != nil || len(left) != 1 {
		t.Errorf("%d sessions are left (%v), want one", len(left), err)
	}
}

// Two routers that change a session at once lose nothing.
func TestSessionConflict(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r1, r2 := b.router("r1"), b.router("r2")
	c := b.client()
	session := b.initialize(c, r1.url, "2025-11-25", "{}")
	levels := []string{"debug", "error"}
	var wg sync.WaitGroup
	for i, r := range []*running{r1, r2} {
		wg.Go(func() {
			for range 10 {
				body := `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"` + levels[i] + `"}}`
				if _, got := b.exchange(c, sessionPost(t.Context(), r.url, session, body)); !strings.Contains(got, `"result":{}`) {
					t.Errorf("%s", got)
				}
			}
		})
	}
	wg.Wait()
}

// Without NATS a session that is known goes on, and one that is not is not
// called unknown.
func TestSessionsWithoutNATS(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r1, r2 := b.router("r1"), b.router("r2")
	c := b.client()
	session := b.initialize(c, r1.url, "2025-11-25", "{}")
	b.nats.Shutdown()
	b.eventually("NATS is gone", func() bool {
		return !r1.conn.Connected() && !r2.conn.Connected() && !r2.engine.registry.View().Live
	})
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	if res, body := b.exchange(c, sessionPost(t.Context(), r1.url, session, list)); res.StatusCode != 200 || !strings.Contains(body, "echo") {
		t.Errorf("%s %s", res.Status, body)
	}
	if res, body := b.exchange(c, sessionPost(t.Context(), r2.url, session, list)); res.StatusCode != 503 || !strings.Contains(body, `"kind":"unavailable"`) {
		t.Errorf("%s %s", res.Status, body)
	}
	began := time.Now()
	if _, body := b.exchange(c, sessionPost(t.Context(), r1.url, session, sessionCall("echo"))); !strings.Contains(body, `"kind":"unavailable"`) {
		t.Errorf("%s", body)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("a call without NATS took %v to fail", took)
	}
}

func streamGet(ctx context.Context, url, session string) *http.Request {
	r := sessionPost(ctx, url, session, "")
	r.Method = http.MethodGet
	r.Header.Set("Accept", "text/event-stream")
	return r
}

// list_changed reaches streams of both eras on every router, only what was asked
// for, and once.
func TestListChanged(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r1, r2 := b.router("r1"), b.router("r2")
	c := b.client()
	legacy := b.open(c, streamGet(t.Context(), r1.url, b.initialize(c, r1.url, "2025-11-25", "{}")))
	if got := legacy.next(); got != ": ok" {
		t.Fatalf("%q", got)
	}
	modern := b.open(c, listenPost(t.Context(), r2.url, `{"toolsListChanged":true,"promptsListChanged":true,"resourceSubscriptions":["a:b"]}`))
	if got, want := modern.next(), `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"toolsListChanged":true,"promptsListChanged":true},"_meta":{"io.modelcontextprotocol/subscriptionId":"l"}}}`; got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	deaf := b.open(c, listenPost(t.Context(), r2.url, `{"toolsListChanged":false}`))
	deaf.message("acknowledged", `"notifications":{}`)
	b.server.publish(bedDefs("echo"))
	if got := legacy.next(); got != `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` {
		t.Errorf("%s", got)
	}
	if got, want := modern.next(), `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"l"}}}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	stopped := make(chan struct{})
	go func() { r2.stop(); close(stopped) }()
	deaf.message(`"resultType":"complete"`)
	modern.message(`"resultType":"complete"`)
	<-stopped
}

// A new stream of a session ends the one before, on any router.
func TestOneStreamPerSession(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r1, r2 := b.router("r1"), b.router("r2")
	c := b.client()
	session := b.initialize(c, r1.url, "2025-11-25", "{}")
	first := b.open(c, streamGet(t.Context(), r1.url, session))
	first.message(": ok")
	second := b.open(c, streamGet(t.Context(), r1.url, session))
	second.message(": ok")
	if got := first.next(); got != "" {
		t.Errorf("the first stream goes on: %q", got)
	}
	// However late a router hears of a stream elsewhere, the newest one stays.
	last := second
	for i := range 20 {
		next := b.open(c, streamGet(t.Context(), []*running{r2, r1}[i%2].url, session))
		next.message(": ok")
		if got := last.next(); got != "" {
			t.Fatalf("the stream before goes on: %q", got)
		}
		last = next
	}
	b.server.publish(bedDefs("echo"))
	last.message("list_changed")
}
