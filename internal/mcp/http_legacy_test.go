package mcp

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// TestHTTPSession: a session is opened once, used by all, and ended by Close.
func TestHTTPSession(t *testing.T) {
	w := serveWeb(t, legacyWeb(func(a *webAnswer, m *Message) {
		if a.r.Method == http.MethodPost {
			a.result(m, `{}`)
		} else {
			a.text(405, "")
		}
	}))
	c, err := ConnectHTTP(t.Context(), HTTPTarget{URL: w.URL}, ConnectOptions{OnListChanged: func(ListKind) { t.Error("a change") }})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "GET", func() bool { return w.count("GET") == 1 })
	for range 3 {
		if _, err := c.Call(t.Context(), logging("a", "error")); err != nil {
			t.Error(err)
		}
	}
	closeConn(t, c)
	want := "POST server/discover, POST initialize, POST notifications/initialized, POST logging/setLevel, POST tools/call, POST tools/call, POST tools/call, DELETE"
	if got := strings.Replace(w.requests(), "GET, ", "", 1); got != want { // and a single GET: 405 is final
		t.Errorf("requests\n%s, want\n%s", got, want)
	}
	for request, headers := range w.headers {
		for _, h := range headers {
			version, session := "2025-11-25", "s1"
			switch request {
			case "POST " + MethodDiscover:
				version, session = "2026-07-28", ""
			case "POST " + MethodInitialize:
				version, session = "", ""
			}
			if h.Get(HeaderVersion) != version || h.Get(HeaderSession) != session {
				t.Errorf("%s: version %q, session %q", request, h.Get(HeaderVersion), h.Get(HeaderSession))
			}
			if request != "POST "+MethodDiscover && (h.Get(HeaderMethod) != "" || h.Get(HeaderName) != "") {
				t.Errorf("%s has modern headers: %v", request, h)
			}
		}
	}
}

// TestHTTPSessionLost: a session that the server forgot is renewed once for all
// calls that noticed, and each of them is sent again, once.
func TestHTTPSessionLost(t *testing.T) {
	w := serveWeb(t, legacyWeb(func(a *webAnswer, m *Message) { a.result(m, `{"session":"`+a.r.Header.Get(HeaderSession)+`"}`) }))
	c := connectWeb(t, w, ConnectOptions{})
	for round := 1; round <= 2; round++ {
		if _, err := c.Call(t.Context(), &Call{Method: "test/expire"}); err != nil {
			t.Fatal(err)
		}
		before := w.count("POST " + MethodInitialize)
		var group sync.WaitGroup
		for range 10 {
			group.Go(func() {
				result, err := c.Call(t.Context(), toolCall("a"))
				wantOutcome(t, "call", result, err, fmt.Sprintf(`{"session":"s%d"}`, 2*round+1))
			})
		}
		group.Wait()
		if n := w.count("POST "+MethodInitialize) - before; n != 1 {
			t.Errorf("initialize was sent %d times", n)
		}
	}
}

// TestHTTPSessionLostLate: a call that hears of it when the session is already
// renewed uses the new one.
func TestHTTPSessionLostLate(t *testing.T) {
	renewed := make(chan struct{})
	var w *web
	w = serveWeb(t, func(a *webAnswer, m *Message) {
		session := a.r.Header.Get(HeaderSession)
		switch {
		case m.Method == MethodInitialize:
			a.Header().Set(HeaderSession, fmt.Sprintf("s%d", w.count("POST "+MethodInitialize)))
			a.result(m, legacyInitialize)
		case m.IsNotification():
			a.WriteHeader(202)
		case session != "s1":
			a.result(m, `{"session":"`+session+`"}`)
		default:
			if FieldString(m.Params, "name") == "late" {
				<-renewed
			}
			a.text(404, "")
		}
	})
	c := connectWeb(t, w, ConnectOptions{Era: EraChoice(EraLegacy)})
	var group sync.WaitGroup
	group.Go(func() {
		result, err := c.Call(t.Context(), toolCall("late"))
		wantOutcome(t, "late", result, err, `{"session":"s2"}`)
	})
	waitFor(t, "call", func() bool { return w.count("POST "+MethodToolsCall) == 1 })
	result, err := c.Call(t.Context(), toolCall("first"))
	wantOutcome(t, "first", result, err, `{"session":"s2"}`)
	close(renewed)
	group.Wait()
	if n := w.count("POST " + MethodInitialize); n != 2 {
		t.Errorf("initialize was sent %d times", n)
	}
}

// TestHTTPSessionGone: what comes of it when a session cannot be renewed, or is
// lost again at once.
func TestHTTPSessionGone(t *testing.T) {
	for _, test := range []struct {
		name  string
		lost  webScript // answers to tools/call
		again webScript // answers to the second initialize
		want  string
		calls int
		ended bool
	}{
		{"again and again", func(a *webAnswer, m *Message) { a.text(404, "") }, nil, "transport/http_status", 2, false},
		{"by 400", func(a *webAnswer, m *Message) {
			a.json(400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}`)
		}, nil, "transport/http_status", 2, false},
		{"by 404 and an error with an id", func(a *webAnswer, m *Message) {
			a.json(404, string(AppendError(nil, m.ID, &Error{Code: -32001, Message: "Session not found"})))
		}, nil, "transport/http_status", 2, false},
		{"no, the method is unknown", func(a *webAnswer, m *Message) {
			a.json(404, string(AppendError(nil, m.ID, MethodNotFound("tools/call"))))
		}, nil, `method not found: "tools/call" (JSON-RPC error -32601)`, 1, false},
		{"no, it is another 400", func(a *webAnswer, m *Message) {
			a.json(400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}`)
		}, nil, `Parse error (JSON-RPC error -32700)`, 1, false},
		{"no session any more", func(a *webAnswer, m *Message) { a.text(404, "") }, func(a *webAnswer, m *Message) {
			a.json(400, string(AppendError(nil, m.ID, MethodNotFound("initialize"))))
		}, "unavailable/backend_unavailable", 1, true},
		{"down", func(a *webAnswer, m *Message) { a.text(404, "") }, func(a *webAnswer, m *Message) { a.text(503, "") }, "transport/http_status", 1, false},
		{"mute", func(a *webAnswer, m *Message) { a.text(404, "") }, func(a *webAnswer, m *Message) { <-a.r.Context().Done() }, "timeout/timeout", 1, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var w *web
			w = serveWeb(t, func(a *webAnswer, m *Message) {
				switch {
				case m.Method == MethodInitialize && test.again != nil && w.count("POST "+MethodInitialize) > 1:
					test.again(a, m)
				case m.Method == MethodInitialize:
					a.Header().Set(HeaderSession, "s")
					a.result(m, legacyInitialize)
				case m.Method == MethodToolsCall:
					test.lost(a, m)
				case m.IsNotification():
					a.WriteHeader(202)
				}
			})
			c := connectWeb(t, w, ConnectOptions{Era: EraChoice(EraLegacy), RequestTimeout: 200 * time.Millisecond})
			result, err := c.Call(t.Context(), toolCall("a"))
			wantOutcome(t, "call", result, err, test.want)
			if n := w.count("POST tools/call"); n != test.calls {
				t.Errorf("the call was sent %d times, want %d", n, test.calls)
			}
			if test.ended {
				<-c.Done()
			} else if c.Err() != nil {
				t.Errorf("ended: %v", c.Err())
			}
		})
	}
}

func TestHTTPBadSession(t *testing.T) {
	for _, id := range []string{"a b", strings.Repeat("x", 1025), "ü"} {
		w := serveWeb(t, func(a *webAnswer, m *Message) {
			a.Header().Set(HeaderSession, id)
			a.result(m, legacyInitialize)
		})
		_, err := ConnectHTTP(t.Context(), HTTPTarget{URL: w.URL}, ConnectOptions{Era: EraChoice(EraLegacy)})
		wantOutcome(t, short(id), nil, err, "protocol/invalid_session_id")
	}
}

// TestHTTPNoSession: a server that gives no session id is as good.
func TestHTTPNoSession(t *testing.T) {
	w := serveWeb(t, func(a *webAnswer, m *Message) {
		switch {
		case m.Method == MethodInitialize:
			a.result(m, legacyInitialize)
		case m.IsNotification():
			a.WriteHeader(202)
		case FieldString(m.Params, "name") == "404":
			a.text(404, "")
		default:
			a.result(m, `{}`)
		}
	})
	c := connectWeb(t, w, ConnectOptions{Era: EraChoice(EraLegacy)})
	result, err := c.Call(t.Context(), toolCall("a"))
	wantOutcome(t, "call", result, err, `{}`)
	result, err = c.Call(t.Context(), toolCall("404"))
	wantOutcome(t, "call", result, err, "transport/http_status")
	closeConn(t, c)
	if got := w.requests(); got != "POST initialize, POST notifications/initialized, POST tools/call, POST tools/call" {
		t.Errorf("requests %s", got)
	}
}

// TestHTTPResume: a legacy stream that breaks off is taken up where it ended.
func TestHTTPResume(t *testing.T) {
	const event = "id: %s\nretry: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/custom\",\"params\":{\"at\":\"%s\"}}\n\n"
	for _, test := range []struct {
		name   string
		resume func(a *webAnswer, call *Message, n int)
		want   string
		gets   int
		events string
	}{
		{"answer", func(a *webAnswer, call *Message, _ int) { a.resultEvent(call, `{}`) }, `{}`, 1, "e0"},
		{"step by step", func(a *webAnswer, call *Message, n int) {
			if n == 5 {
				a.resultEvent(call, `{}`)
				return
			}
			a.raw(fmt.Sprintf(event, fmt.Sprintf("e%d", n), fmt.Sprintf("e%d", n)) + "id: half\ndata: {")
			a.drop()
		}, `{}`, 5, "e0 e1 e2 e3 e4"},
		{"without news", func(a *webAnswer, call *Message, n int) {
			if n == 3 {
				a.resultEvent(call, `{}`)
				return
			}
			a.raw(":\n\n")
		}, `{}`, 3, "e0"},
		{"in vain", func(a *webAnswer, call *Message, n int) { a.raw(":\n\n") }, "unavailable/outcome_unknown", 5, "e0"},
		{"refused", func(a *webAnswer, call *Message, n int) { a.text(404, "") }, "unavailable/outcome_unknown", 1, "e0"},
		{"no stream", func(a *webAnswer, call *Message, n int) { a.json(200, "{}") }, "unavailable/outcome_unknown", 1, "e0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n := 0
			var call *Message
			var ids []string
			w := serveWeb(t, legacyWeb(func(a *webAnswer, m *Message) {
				switch a.r.Method {
				case http.MethodPost:
					call = m
					a.raw(fmt.Sprintf(event, "e0", "e0"))
				case http.MethodGet:
					n++
					ids = append(ids, a.r.Header.Get("Last-Event-Id"))
					test.resume(a, call, n)
				}
			}))
			c := connectWeb(t, w, ConnectOptions{})
			var events []string
			x := toolCall("a")
			x.Notify = func(_ string, params jsontext.Value) { events = append(events, FieldString(params, "at")) }
			result, err := c.Call(t.Context(), x)
			wantOutcome(t, "call", result, err, test.want)
			if n != test.gets || strings.Join(events, " ") != test.events || w.count("POST tools/call") != 1 {
				t.Errorf("%d GETs with %v, events %v: %s", n, ids, events, w.requests())
			}
			for i, id := range ids {
				if want := events[min(i, len(events)-1)]; id != want {
					t.Errorf("GET %d resumes after %q, want %q", i, id, want)
				}
			}
		})
	}
}

// TestHTTPLegacyCancel: the server is told with the id that it knows.
func TestHTTPLegacyCancel(t *testing.T) {
	started := make(chan struct{})
	w := serveWeb(t, legacyWeb(func(a *webAnswer, m *Message) {
		if a.r.Method == http.MethodPost {
			a.raw(":\n\n")
			close(started)
			<-a.r.Context().Done()
		}
	}))
	c := connectWeb(t, w, ConnectOptions{})
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-started
		cancel(errGaveUp)
	}()
	if _, err := c.Call(ctx, toolCall("a")); err != errGaveUp {
		t.Errorf("error %v", err)
	}
	waitFor(t, "cancellation", func() bool { return w.count("POST "+NotifyCancelled) == 1 })
	if got, want := string(Field(w.calls[NotifyCancelled][0].Params, "requestId")), string(w.calls[MethodToolsCall][0].ID); got != want {
		t.Errorf("cancelled %s, the call is %s", got, want)
	}
}

// TestHTTPLegacyAsks: requests on a call's stream reach its caller, and the
// answers go back by POST.
func TestHTTPLegacyAsks(t *testing.T) {
	answers := make(chan *Message, 8)
	w := serveWeb(t, legacyWeb(func(a *webAnswer, m *Message) {
		if m.IsResponse() && a.r.Method == http.MethodPost {
			a.WriteHeader(202)
			answers <- m
			return
		}
		if m.Method != MethodToolsCall {
			return
		}
		a.event(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"?"}}`)
		a.event(`{"jsonrpc":"2.0","id":8,"method":"ping"}`)
		got := map[string]string{}
		for range 2 {
			m := <-answers
			got[string(m.ID)] = string(m.Result) + outcome(nil, m.errOrNil())
		}
		a.resultEvent(m, fmt.Sprintf(`{"q":%s,"ping":%s}`, got[`"q"`], got["8"]))
	}))
	c := connectWeb(t, w, ConnectOptions{})
	x := toolCall("a")
	x.Timeout = 10 * time.Second
	x.Request = func(_ context.Context, method string, params jsontext.Value) (jsontext.Value, *Error) {
		return jsontext.Value(`{"action":"decline","big":12345678901234567890}`), nil
	}
	result, err := c.Call(t.Context(), x)
	wantOutcome(t, "call", result, err, `{"q":{"action":"decline","big":12345678901234567890},"ping":{}}`)
}

// TestHTTPLegacyAsksAside: what a server asks on the standalone stream is for the
// one call that runs, from the first one on; where another has run beside it,
// nobody knows whose it is.
func TestHTTPLegacyAsksAside(t *testing.T) {
	questions, answers, second := make(chan string), make(chan *Message, 1), make(chan struct{})
	release := sync.OnceFunc(func() { close(second) })
	w := serveWeb(t, legacyWeb(func(a *webAnswer, m *Message) {
		switch {
		case m.IsResponse() && a.r.Method == http.MethodPost:
			a.WriteHeader(202)
			answers <- m
		case a.r.Method == http.MethodGet:
			a.raw(":\n\n")
			for {
				select {
				case q := <-questions:
					a.event("%s", q)
				case <-a.r.Context().Done():
					return
				}
			}
		case m.Method == "tools/list":
			<-second
			a.result(m, `{"tools":[]}`)
		case FieldString(m.Params, "name") == "other":
			<-second
			a.result(m, `{}`)
		case m.Method == MethodToolsCall:
			questions <- `{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"?"}}`
			answer := <-answers
			a.result(m, fmt.Sprintf(`{"id":%s,"got":%q}`, answer.ID, string(answer.Result)+outcome(nil, answer.errOrNil())))
		}
	}))
	defer release()
	c := connectWeb(t, w, ConnectOptions{OnListChanged: func(ListKind) {}})
	ask := func(want string) {
		t.Helper()
		x := toolCall("a")
		x.Timeout = 10 * time.Second
		x.Request = func(context.Context, string, jsontext.Value) (jsontext.Value, *Error) {
			return jsontext.Value(`{"action":"accept"}`), nil
		}
		result, err := c.Call(t.Context(), x)
		wantOutcome(t, "call", result, err, want)
	}
	var wg sync.WaitGroup
	beside := func(call *Call) {
		n := w.count("POST " + call.Method)
		wg.Go(func() {
			_, err := c.Call(t.Context(), call)
			wantOutcome(t, "beside", nil, err, "")
		})
		waitFor(t, "the call beside", func() bool { return w.count("POST "+call.Method) > n })
	}
	ask(`{"id":"q","got":"{\"action\":\"accept\"}"}`)
	beside(&Call{Method: "tools/list"}) // does nothing that needs an answer
	ask(`{"id":"q","got":"{\"action\":\"accept\"}"}`)
	beside(toolCall("other"))
	ask(`{"id":"q","got":"elicitation/create is refused: it belongs to no call that could answer it (JSON-RPC error -32601)"}`)
	release()
	wg.Wait()
	ask(`{"id":"q","got":"{\"action\":\"accept\"}"}`)
}

// TestHTTPLegacyStream: the standalone stream is heard, and opened again where
// it ended; one that hangs holds up nothing.
func TestHTTPLegacyStream(t *testing.T) {
	t.Run("heard", func(t *testing.T) {
		t.Parallel()
		answers := make(chan *Message, 1)
		var w *web
		w = serveWeb(t, legacyWeb(func(a *webAnswer, m *Message) {
			if a.r.Method == http.MethodPost {
				answers <- m
				return
			}
			if a.r.Method != http.MethodGet {
				return
			}
			if w.count("GET") == 1 {
				a.raw("id: g1\nretry: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n")
				a.event(`{"jsonrpc":"2.0","id":5,"method":"roots/list"}`)
				a.event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error"}}`)
				return
			}
			a.raw(":\n\n")
			<-a.r.Context().Done()
		}))
		changes := make(chan ListKind, 8)
		c := connectWeb(t, w, ConnectOptions{OnListChanged: func(kind ListKind) { changes <- kind }})
		if kind := <-changes; kind != ListTools {
			t.Errorf("%s changed", kind)
		}
		if m := <-answers; m.Err == nil || m.Err.Code != CodeMethodNotFound || string(m.ID) != "5" {
			t.Errorf("answer %+v", m)
		}
		if kind := <-changes; kind != ListTools { // opened again: one may have been missed
			t.Errorf("%s changed", kind)
		}
		if got := w.headers["GET"][1].Get("Last-Event-Id"); got != "g1" {
			t.Errorf("resumed after %q", got)
		}
		closeConn(t, c)
	})
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		w := serveWeb(t, legacyWeb(func(a *webAnswer, m *Message) {
			if a.r.Method == http.MethodGet {
				<-a.r.Context().Done() // not even a header
			} else {
				a.result(m, `{}`)
			}
		}))
		c := connectWeb(t, w, ConnectOptions{OnListChanged: func(ListKind) {}, ListenIdleTimeout: 50 * time.Millisecond})
		result, err := c.Call(t.Context(), toolCall("a"))
		wantOutcome(t, "call", result, err, `{}`)
		waitFor(t, "second GET", func() bool { return w.count("GET") > 1 })
	})
	t.Run("busy with comments", func(t *testing.T) {
		t.Parallel()
		done := make(chan int, 1)
		w := serveWeb(t, legacyWeb(func(a *webAnswer, m *Message) {
			if a.r.Method == http.MethodGet {
				done <- comments(a)
			}
		}))
		connectWeb(t, w, ConnectOptions{OnListChanged: func(ListKind) {}, ListenIdleTimeout: 300 * time.Millisecond})
		if n := <-done; n != 50 {
			t.Errorf("cut after %d comments", n)
		}
	})
	t.Run("of a lost session", func(t *testing.T) {
		t.Parallel()
		ended := make(chan struct{}, 8)
		w := serveWeb(t, legacyWeb(func(a *webAnswer, m *Message) {
			if a.r.Method == http.MethodGet {
				a.raw(":\n\n")
				<-a.r.Context().Done()
				ended <- struct{}{}
			} else {
				a.result(m, `{}`)
			}
		}))
		c := connectWeb(t, w, ConnectOptions{OnListChanged: func(ListKind) {}})
		waitFor(t, "GET", func() bool { return w.count("GET") == 1 })
		for _, method := range []string{"test/expire", MethodToolsList} {
			if _, err := c.Call(t.Context(), &Call{Method: method}); err != nil {
				t.Fatal(err)
			}
		}
		<-ended
		waitFor(t, "GET of the new session", func() bool { return w.count("GET") == 2 })
		if got := w.headers["GET"][1].Get(HeaderSession); got != "s3" {
			t.Errorf("session %s", got)
		}
	})
}

// comments sends 50 comments in half a second, and returns how many it got rid of.
func comments(a *webAnswer) int {
	for i := range 50 {
		a.raw(":\n\n")
		select {
		case <-a.r.Context().Done():
			return i
		case <-time.After(10 * time.Millisecond):
		}
	}
	return 50
}

// TestHTTPListen: the modern stream of changes, likewise.
func TestHTTPListen(t *testing.T) {
	listening := func(answer func(a *webAnswer, m *Message, n int)) webScript {
		return func(a *webAnswer, m *Message) {
			switch m.Method {
			case MethodDiscover:
				a.result(m, modernDiscover)
			case MethodListen:
				answer(a, m, a.w.count("POST "+MethodListen))
			}
		}
	}
	ack := func(a *webAnswer, m *Message) {
		a.event(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"toolsListChanged":true},"_meta":{"io.modelcontextprotocol/subscriptionId":%s}}}`, m.ID)
	}
	t.Run("heard", func(t *testing.T) {
		t.Parallel()
		changes := make(chan ListKind, 8)
		w := serveWeb(t, listening(func(a *webAnswer, m *Message, n int) {
			ack(a, m)
			if n == 1 {
				a.event(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
				a.raw("retry: 1\n\n")
				return // ends without an answer
			}
			<-a.r.Context().Done()
		}))
		connectWeb(t, w, ConnectOptions{OnListChanged: func(kind ListKind) { changes <- kind }})
		<-changes
		<-changes // opened again
	})
	t.Run("silent", func(t *testing.T) {
		t.Parallel()
		w := serveWeb(t, listening(func(a *webAnswer, m *Message, n int) { <-a.r.Context().Done() }))
		connectWeb(t, w, ConnectOptions{OnListChanged: func(ListKind) {}, ListenIdleTimeout: 20 * time.Millisecond})
		waitFor(t, "second stream", func() bool { return w.count("POST "+MethodListen) > 1 })
	})
	t.Run("busy with comments", func(t *testing.T) {
		t.Parallel()
		done := make(chan int, 1)
		w := serveWeb(t, listening(func(a *webAnswer, m *Message, n int) {
			done <- comments(a)
			<-a.r.Context().Done()
		}))
		connectWeb(t, w, ConnectOptions{OnListChanged: func(ListKind) {}, ListenIdleTimeout: 300 * time.Millisecond})
		if n := <-done; n != 50 {
			t.Errorf("cut after %d comments", n)
		}
	})
	for name, answer := range map[string]func(a *webAnswer, m *Message, n int){
		"not found": func(a *webAnswer, m *Message, _ int) {
			a.json(404, string(AppendError(nil, m.ID, MethodNotFound("x"))))
		},
		"405": func(a *webAnswer, m *Message, _ int) { a.text(405, "") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan struct{})
			w := serveWeb(t, listening(answer))
			c := connectWeb(t, w, ConnectOptions{OnListChanged: func(ListKind) {}})
			go func() {
				c.(*httpConn).tasks.Wait() // the only one there is gives up
				close(ended)
			}()
			<-ended
			if n := w.count("POST " + MethodListen); n != 1 {
				t.Errorf("opened %d times", n)
			}
		})
	}
}

// TestHTTPCloseBounded: a server that does not answer the DELETE holds up Close
// for a second, and no longer.
func TestHTTPCloseBounded(t *testing.T) {
	w := serveWeb(t, legacyWeb(func(a *webAnswer, m *Message) { <-a.r.Context().Done() }))
	c, err := ConnectHTTP(t.Context(), HTTPTarget{URL: w.URL}, ConnectOptions{OnListChanged: func(ListKind) {}})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	closeConn(t, c)
	if took := time.Since(began); took < 900*time.Millisecond || took > 5*time.Second || w.count("DELETE") != 1 {
		t.Errorf("took %v: %s", took, w.requests())
	}
}
