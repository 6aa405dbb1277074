package router

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

const oneServer = "policy: allow_all\nservers:\n  a: {builtin: clock}\n"

// A call reaches the worker as the caller wrote it but for the name, and the
// answer comes back byte for byte.
func TestCallPassesBytes(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, oneServer)
	result := `{"resultType":"complete", "content":[{"type":"new kind","n":12345678901234567890123}],"_meta":{"x":1.0e2}}`
	s := h.start("a", func(_ context.Context, in *bus.Incoming) (bus.Reply, error) {
		m, _ := mcp.ParseMessage(in.Body, mcp.Strict)
		return bus.Reply{Body: mcp.AppendResult(nil, m.ID, jsontext.Value(result))}, nil
	}, "do.it")
	for _, id := range []string{`1`, `"1"`, `-7`, `12345678901234567890123`, `"\u00e9\""`, `""`} {
		req := &request{
			id: jsontext.Value(id), method: mcp.MethodToolsCall, name: "a__do_it", caller: caller{principal: "alice", era: mcp.EraLegacy},
			params: jsontext.Value(`{ "future":[1e400], "name" : "a__do_it","arguments":{"n":12345678901234567890,"name":"x"},"_meta":{"traceparent":"00-ab-cd-01","tracestate":"k=v","toolhub/taint":["web"],"com.example/x":{} } }`),
		}
		a := h.engine.do(h.ctx(), req, nil)
		if want := `{"jsonrpc":"2.0","id":` + id + `,"result":` + result + `}`; string(a.body) != want || a.err != nil {
			t.Errorf("answer %s, %v\nwant   %s", a.body, a.err, want)
		}
		in := <-s.calls
		want := `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":` + strings.Replace(string(req.params), `"a__do_it"`, `"do.it"`, 1) + `}`
		if string(in.Body) != want {
			t.Errorf("the worker got %s\nwant            %s", in.Body, want)
		}
		m := in.Meta
		if m.Principal != "alice" || m.ClientEra != mcp.EraLegacy || m.ToolSet != h.engine.list("", req.caller).set.ID ||
			m.Traceparent != "00-ab-cd-01" || m.Tracestate != "k=v" || fmt.Sprint(m.Taint) != "[web]" || m.CallID == "" {
			t.Errorf("metadata %+v", m)
		}
	}
}

func TestCallNotifications(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, oneServer)
	const n = 500
	h.start("a", func(ctx context.Context, in *bus.Incoming) (bus.Reply, error) {
		for i := range n {
			if err := in.Notify(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":%d}}`, i)); err != nil {
				return bus.Reply{}, err
			}
		}
		return echo(ctx, in)
	}, "t")
	var got []string
	a := h.engine.do(h.ctx(), toolRequest("1", "a__t", "{}"), func(body []byte) { got = append(got, string(body)) })
	if a.err != nil || len(got) != n {
		t.Fatalf("%d notifications before the answer %s, want %d", len(got), a.body, n)
	}
	for i, body := range got {
		if want := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":%d}}`, i); body != want {
			t.Fatalf("notification %d is %s", i, body)
		}
	}
}

// Clients that use the same ids and progress tokens at the same time get their
// own, whichever server they call.
func TestCallsDoNotCross(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  a: {builtin: clock}\n  b: {builtin: clock}\n")
	together := make(chan struct{})
	var arrived sync.WaitGroup
	handle := func(ctx context.Context, in *bus.Incoming) (bus.Reply, error) {
		arrived.Done()
		<-together
		m, _ := mcp.ParseMessage(in.Body, mcp.Strict)
		mark := mcp.FieldString(mcp.Field(m.Params, "arguments"), "mark")
		for i := range 3 {
			_ = in.Notify(fmt.Appendf(nil, `{"note":"%s %d %s"}`, mark, i, in.Meta.Server))
		}
		return echo(ctx, in)
	}
	h.start("a", handle, "t")
	h.start("b", handle, "t")
	const clients, calls = 8, 25
	arrived.Add(clients * calls)
	go func() { arrived.Wait(); close(together) }()
	var wg sync.WaitGroup
	for c := range clients {
		for i := range calls {
			wg.Go(func() {
				server := string(rune('a' + (c+i)%2))
				mark := fmt.Sprintf("client-%d-call-%d", c, i)
				var notes []string
				a := h.engine.do(h.ctx(), toolRequest(fmt.Sprint(i), server+"__t", `{"mark":"`+mark+`"}`), func(b []byte) { notes = append(notes, string(b)) })
				if !strings.HasPrefix(string(a.body), fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result"`, i)) || strings.Count(string(a.body), mark) != 1 {
					t.Errorf("%s got %s", mark, a.body)
				}
				for n := range 3 {
					if len(notes) != 3 || notes[n] != fmt.Sprintf(`{"note":"%s %d %s"}`, mark, n, server) {
						t.Errorf("%s got notifications %q", mark, notes)
						return
					}
				}
			})
		}
	}
	wg.Wait()
}

func TestUnknownNameSendsNothing(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: {deny: [a/hidden], allow: ['*/*']}\nservers:\n  a: {builtin: clock, tools: {exclude: ['a/filtered']}}\n")
	s := h.start("a", echo, "t", "hidden", "filtered")
	for _, name := range []string{"t", "a__x", "a.t", "a__T", "a__hidden", "a__filtered", "b__t", "a__t\u200b", strings.Repeat("x", 1000)} {
		req := toolRequest("1", name, "{}")
		a := h.engine.do(h.ctx(), req, nil)
		if a.err == nil || a.err.Code != mcp.CodeInvalidParams || !strings.Contains(a.err.Message, "unknown tool") || len(a.body) > 400 {
			t.Errorf("%.20q: %s", name, a.body)
		}
	}
	for _, params := range []string{`{}`, `{"arguments":{}}`} {
		a := h.engine.do(h.ctx(), &request{id: jsontext.Value("1"), method: mcp.MethodToolsCall, params: jsontext.Value(params)}, nil)
		if a.err == nil || a.err.Code != mcp.CodeInvalidParams || !strings.Contains(a.err.Message, "params.name") {
			t.Errorf("%s: %s", params, a.body)
		}
	}
	for _, meta := range []string{`{"toolhub/toolset":1}`, `{"toolhub/taint":"a"}`, `{"toolhub/taint":[1]}`} {
		req := toolRequest("1", "a__t", "{}")
		req.params = jsontext.Value(`{"name":"a__t","_meta":` + meta + `}`)
		if a := h.engine.do(h.ctx(), req, nil); a.err == nil || a.err.Code != mcp.CodeInvalidParams || !strings.Contains(a.err.Message, "toolhub/t") {
			t.Errorf("%s: %s", meta, a.body)
		}
	}
	for _, method := range []string{"tools/nonsense", "ping", "initialize", "proxy/health"} {
		a := h.engine.do(h.ctx(), &request{id: jsontext.Value("1"), method: method}, nil)
		if a.err == nil || a.err.Code != mcp.CodeMethodNotFound {
			t.Errorf("%s: %s", method, a.body)
		}
	}
	s.none()
}

// A server that is known and not ready is unavailable at once (K5), however it
// came not to be ready.
func TestNotReadyIsUnavailable(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, oneServer)
	s := h.start("a", echo, "t")
	unavailable := func(what string) {
		t.Helper()
		start := time.Now()
		a := h.engine.do(h.ctx(), toolRequest("1", "a__t", "{}"), nil)
		if f := faultIn(a); f == nil || f.Kind != mcp.KindUnavailable || f.Server != "a" || !f.Retryable {
			t.Errorf("%s: %s", what, a.body)
		}
		if took := time.Since(start); took > 100*time.Millisecond {
			t.Errorf("%s: took %v", what, took)
		}
	}
	for _, st := range []registry.Status{
		{State: registry.StateDown, Reason: "lost"},
		{State: registry.StateFailed, Attempts: 3},
		{State: registry.StateStarting},
		{State: registry.StateDegraded, Withheld: true},
	} {
		s.status(st)
		h.until("not ready", func(v *registry.View) bool { return v.Get("a").Status.State == st.State })
		unavailable(string(st.State))
		if got := h.names("", caller{}); got != "" {
			t.Errorf("%s: listed are %q", st.State, got)
		}
	}
	s.status(registry.Status{State: registry.StateUp})
	h.until("ready", s.isReady)
	if got := h.names("", caller{}); got != "a__t" {
		t.Fatalf("listed are %q", got)
	}
	s.none()

	s.unclaim()
	h.until("given up", func(v *registry.View) bool { return v.Get("a").Own == nil })
	unavailable("nobody's")
	fresh := h.claim("a", echo)
	h.until("claimed", func(v *registry.View) bool { return v.Get("a").Epoch() == fresh.epoch })
	unavailable("claimed, without a catalog")

	h.apply("policy: allow_all\nservers: {}\n")
	h.until("removed", func(v *registry.View) bool { return v.Get("a") == nil })
	a := h.engine.do(h.ctx(), toolRequest("1", "a__t", "{}"), nil)
	if a.err == nil || a.err.Code != mcp.CodeInvalidParams || faultIn(a) != nil {
		t.Errorf("of a removed server: %s", a.body)
	}
	s.none()
	fresh.none()
}

// The endpoint of one server that was never up knows no names, so none is
// unknown: what comes is unavailable, and worth another try (K5).
func TestNeverUpIsUnavailable(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, oneServer)
	call := func(scope, name string) answer {
		req := toolRequest("1", name, "{}")
		req.scope = scope
		return h.engine.do(h.ctx(), req, nil)
	}
	unavailable := func(what string) {
		t.Helper()
		for _, caller := range []mcp.Era{mcp.EraModern, mcp.EraLegacy} {
			req := toolRequest("1", "t", "{}")
			req.scope, req.caller.era = "a", caller
			a := h.engine.do(h.ctx(), req, nil)
			if f := faultIn(a); f == nil || f.Kind != mcp.KindUnavailable || f.Server != "a" || !f.Retryable {
				t.Errorf("%s: %s", what, a.body)
			}
		}
	}
	unavailable("nobody's")
	s := h.claim("a", echo)
	h.until("claimed", func(v *registry.View) bool { return v.Get("a").Epoch() == s.epoch })
	unavailable("claimed")
	s.status(registry.Status{State: registry.StateFailed, Attempts: 3, Reason: "no such file"})
	h.until("failed", func(v *registry.View) bool { return v.Get("a").State() == registry.StateFailed })
	unavailable("failed")
	if a := call("", "nope"); a.err == nil || a.err.Code != mcp.CodeInvalidParams || faultIn(a) != nil {
		t.Errorf("of the whole hub: %s", a.body)
	}
	s.none()
	s.publish(defs("t"))
	s.status(registry.Status{State: registry.StateUp})
	h.until("ready", s.isReady)
	if a := call("a", "t"); a.err != nil {
		t.Errorf("once it is up: %s", a.body)
	}
	if a := call("a", "nope"); a.err == nil || a.err.Code != mcp.CodeInvalidParams || faultIn(a) != nil {
		t.Errorf("a name that is unknown: %s", a.body)
	}
}

// What cannot have run is tried with the owner that is there by now.
func TestStaleViewIsRetriedOnce(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, oneServer)
	old := h.start("a", echo, "t")
	stale := h.engine.registry.View().Get("a")
	old.service.Stop()

	req := func() *bus.Request {
		return &bus.Request{Body: mcp.AppendRequest(nil, mcp.IntID(1), mcp.MethodToolsCall, jsontext.Value(`{"name":"t"}`))}
	}
	_, err := h.engine.deliver(h.ctx(), stale, mcp.MethodToolsCall, "", req(), nil)
	if f, ok := errors.AsType[*mcp.Fault](err); !ok || f.Kind != mcp.KindUnavailable || f.Reason != bus.ReasonNoResponders || f.Server != "a" {
		t.Errorf("without an owner: %v", err)
	}
	fresh := h.start("a", echo, "t")
	reply, err := h.engine.deliver(h.ctx(), stale, mcp.MethodToolsCall, "", req(), nil)
	if err != nil || !strings.Contains(string(reply.Body), `"echo"`) {
		t.Errorf("with a new owner: %s, %v", reply.Body, err)
	}
	if len(fresh.calls) != 1 {
		t.Errorf("the new owner got %d calls, want 1", len(fresh.calls))
	}
	old.none()
}

// A call whose owner changes, or dies, while it runs ends as outcome unknown.
func TestOwnerEndsInFlight(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		end  func(h *testHub, s *server)
	}{
		{"another epoch", func(h *testHub, s *server) { h.claim("a", echo) }},
		{"given up", func(h *testHub, s *server) { s.unclaim() }},
		{"removed", func(h *testHub, _ *server) { h.apply("policy: allow_all\nservers: {b: {builtin: clock}}\n") }},
		{"lease gone", func(h *testHub, _ *server) {
			if err := registry.EndIncarnations(h.ctx(), h.worker, h.worker.Identity()); err != nil {
				h.t.Fatal(err)
			}
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			h := newTestHub(t, "policy: allow_all\nservers:\n  a: {builtin: clock}\n  b: {builtin: clock}\n")
			release := make(chan struct{})
			block := func(ctx context.Context, in *bus.Incoming) (bus.Reply, error) {
				<-release
				return echo(ctx, in)
			}
			a, b := h.start("a", block, "t"), h.start("b", block, "t")
			toA, toB := make(chan answer, 1), make(chan answer, 1)
			go func() { toA <- h.engine.do(h.ctx(), toolRequest("1", "a__t", "{}"), nil) }()
			go func() { toB <- h.engine.do(h.ctx(), toolRequest("1", "b__t", "{}"), nil) }()
			<-a.calls
			<-b.calls
			row.end(h, a)
			h.until("the end of the epoch", func(v *registry.View) bool { return v.Get("a") == nil || v.Get("a").Epoch() != a.epoch })
			start := time.Now()
			got := <-toA
			if f := faultIn(got); f == nil || f.Kind != mcp.KindUnavailable || f.Reason != mcp.ReasonOutcomeUnknown || f.Retryable || f.Server != "a" {
				t.Errorf("%s", got.body)
			}
			if took := time.Since(start); took > time.Second {
				t.Errorf("took %v", took)
			}
			lost := row.name == "lease gone" // the worker's life is over, not just this epoch
			if !lost {
				close(release)
			}
			got = <-toB
			if lost {
				close(release)
			}
			if lost != (got.err != nil) {
				t.Errorf("the call to another server of the worker: %s", got.body)
			}
		})
	}
}

// A reply that was sent before its worker gave the server up is not lost,
// although the news of that may come first.
func TestReplyOutrunByNews(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, oneServer)
	for range 20 {
		release := make(chan struct{})
		s := h.start("a", func(ctx context.Context, in *bus.Incoming) (bus.Reply, error) {
			<-release
			return echo(ctx, in)
		}, "t")
		done := make(chan answer, 1)
		go func() { done <- h.engine.do(h.ctx(), toolRequest("1", "a__t", "{}"), nil) }()
		<-s.calls
		close(release)
		if err := s.service.Drain(h.ctx()); err != nil {
			t.Fatal(err)
		}
		s.unclaim()
		if a := <-done; a.err != nil {
			t.Fatalf("a drained call: %s", a.body)
		}
	}
}

func TestCancelReachesTheWorker(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, oneServer)
	ended := make(chan time.Time, 1)
	s := h.start("a", func(ctx context.Context, in *bus.Incoming) (bus.Reply, error) {
		<-ctx.Done()
		ended <- time.Now()
		return bus.Reply{}, context.Cause(ctx)
	}, "t")
	ctx, cancel := context.WithCancel(h.ctx())
	done := make(chan answer, 1)
	go func() { done <- h.engine.do(ctx, toolRequest("1", "a__t", "{}"), nil) }()
	<-s.calls
	start := time.Now()
	cancel()
	if took := (<-ended).Sub(start); took > 100*time.Millisecond {
		t.Errorf("the worker learns of it after %v", took)
	}
	if f := faultIn(<-done); f == nil || f.Reason != mcp.ReasonCancelled {
		t.Errorf("fault %v", f)
	}
}

// One caller that does not take its notifications holds up nobody else.
func TestSlowSink(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, oneServer)
	h.start("a", func(ctx context.Context, in *bus.Incoming) (bus.Reply, error) {
		for range 10 {
			_ = in.Notify([]byte(`{"note":1}`))
		}
		return echo(ctx, in)
	}, "t")
	stuck, release, done := make(chan struct{}), make(chan struct{}), make(chan answer, 1)
	go func() {
		var once sync.Once
		done <- h.engine.do(h.ctx(), toolRequest("1", "a__t", "{}"), func([]byte) { once.Do(func() { close(stuck) }); <-release })
	}()
	<-stuck
	for range 100 {
		notes := 0
		if a := h.engine.do(h.ctx(), toolRequest("1", "a__t", "{}"), func([]byte) { notes++ }); a.err != nil || notes != 10 {
			t.Fatalf("%d notifications, %s", notes, a.body)
		}
	}
	close(release)
	if a := <-done; a.err != nil {
		t.Errorf("the slow caller: %s", a.body)
	}
}

// Whatever goes wrong is said in one of the two ways: the server's own error as
// it is, or a fault. Nothing else gets out.
func TestErrors(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, oneServer)
	const own = `{"code":-7,"message":"mine","data":{"n":12345678901234567890},"extra":true}`
	reply := func(body string, isError bool) func(id string) (bus.Reply, error) {
		return func(id string) (bus.Reply, error) {
			return bus.Reply{Body: []byte(strings.ReplaceAll(body, "ID", id)), IsError: isError}, nil
		}
	}
	fail := func(err error) func(string) (bus.Reply, error) {
		return func(string) (bus.Reply, error) { return bus.Reply{}, err }
	}
	for _, row := range []struct {
		name   string
		answer func(id string) (bus.Reply, error)
		want   string // the whole answer, or what is in it
		kind   mcp.Kind
	}{
		{"the server's own error", reply(`{"jsonrpc":"2.0","id":ID,"error":`+own+`}`, true), `{"jsonrpc":"2.0","id":"q","error":` + own + `}`, ""},
		{"denied", fail(mcp.NewFault(mcp.KindDenied, "policy", "no")), `"message":"no"`, mcp.KindDenied},
		{"unclassified", fail(errors.New("the password is hunter2")), "internal error", mcp.KindTransport},
		{"another id", reply(`{"jsonrpc":"2.0","id":99,"result":{"content":[]}}`, false), `{"jsonrpc":"2.0","id":"q","result":{"content":[]}}`, ""},
		{"an error with another id", reply(`{"jsonrpc":"2.0","id":99,"error":`+own+`}`, true), `{"jsonrpc":"2.0","id":"q","error":` + own + `}`, ""},
		{"a request", reply(`{"jsonrpc":"2.0","id":1,"method":"x"}`, false), "no JSON-RPC response", mcp.KindProtocol},
		{"garbage", reply(`<html>`, false), "no JSON-RPC response", mcp.KindProtocol},
		{"nothing", reply(``, false), "no JSON-RPC response", mcp.KindProtocol},
	} {
		current := make(chan func(string) (bus.Reply, error), 1)
		current <- row.answer
		s := h.start("a", func(_ context.Context, in *bus.Incoming) (bus.Reply, error) {
			m, _ := mcp.ParseMessage(in.Body, mcp.Strict)
			return (<-current)(string(m.ID))
		}, "t")
		a := h.engine.do(h.ctx(), toolRequest(`"q"`, "a__t", "{}"), nil)
		if !strings.Contains(string(a.body), row.want) || strings.Contains(string(a.body), "hunter2") {
			t.Errorf("%s: %s", row.name, a.body)
		}
		if strings.Contains(string(a.body), `"error":`) != (a.err != nil) {
			t.Errorf("%s: body and err disagree: %s, %v", row.name, a.body, a.err)
		}
		f := faultIn(a)
		if (f == nil) != (row.kind == "") || f != nil && (f.Kind != row.kind || f.Server != "a") {
			t.Errorf("%s: fault %+v", row.name, f)
		}
		s.service.Stop()
	}
}

// While NATS is away lists stay and calls fail at once (D4).
func TestWithoutNATS(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, oneServer)
	h.start("a", echo, "t")
	h.nats.Shutdown()
	h.until("cut off", func(v *registry.View) bool { return !v.Live })
	start := time.Now()
	a := h.engine.do(h.ctx(), toolRequest("1", "a__t", "{}"), nil)
	if f := faultIn(a); f == nil || f.Kind != mcp.KindUnavailable || f.Server != "a" {
		t.Errorf("a call: %s", a.body)
	}
	a = h.engine.do(h.ctx(), &request{id: jsontext.Value("1"), method: mcp.MethodToolsList}, nil)
	if !strings.Contains(string(a.body), `"a__t"`) {
		t.Errorf("the list: %s", a.body)
	}
	if took := time.Since(start); took > 100*time.Millisecond {
		t.Errorf("took %v", took)
	}
}

// The continuation of a call that waits for input goes to the worker in which it
// waits, with its state untouched (K6).
func TestContinuation(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, oneServer)
	s := h.start("a", echo, "t")
	got := make(chan *bus.Incoming, 1)
	svc, err := h.worker.Serve(bus.ServeAtSubject("test", h.worker.Identity()), "", 0, func(ctx context.Context, in *bus.Incoming) (bus.Reply, error) {
		got <- in
		return echo(ctx, in)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer svc.Stop()
	req := toolRequest("1", "a__t", "{}")
	state := bus.ParkState(h.worker.Identity(), "secret")
	req.params = jsontext.Value(`{"name":"a__t","requestState":"` + state + `","inputResponses":{"k":{}}}`)
	if a := h.engine.do(h.ctx(), req, nil); a.err != nil {
		t.Fatalf("%s", a.body)
	}
	if in := <-got; in.Meta.Server != "a" || !strings.Contains(string(in.Body), `{"name":"t","requestState":"`+state+`","inputResponses":{"k":{}}}`) {
		t.Errorf("the worker got %+v %s", in.Meta, in.Body)
	}
	s.none()

	req.params = jsontext.Value(`{"name":"a__t","requestState":"` + bus.ParkState("worker-gone", "secret") + `"}`)
	if f := faultIn(h.engine.do(h.ctx(), req, nil)); f == nil || f.Kind != mcp.KindInvalid || f.Reason != "unknown_request_state" {
		t.Errorf("of a worker that is gone: %v", f)
	}
	s.none()

	req.params = jsontext.Value(`{"name":"a__t","requestState":"the server's own"}`)
	if a := h.engine.do(h.ctx(), req, nil); a.err != nil || len(s.calls) != 1 {
		t.Errorf("a server's own state: %s, %d calls", a.body, len(s.calls))
	}
}

// A continuation whose worker gives the server up ends as outcome unknown too.
func TestOwnerEndsUnderContinuation(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, oneServer)
	s := h.start("a", echo, "t")
	began := make(chan struct{})
	svc, err := h.worker.Serve(bus.ServeAtSubject("test", h.worker.Identity()), "", 0, func(ctx context.Context, _ *bus.Incoming) (bus.Reply, error) {
		close(began)
		<-ctx.Done()
		return bus.Reply{}, context.Cause(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer svc.Stop()
	req := toolRequest("1", "a__t", "{}")
	req.params = jsontext.Value(`{"name":"a__t","requestState":"` + bus.ParkState(h.worker.Identity(), "secret") + `"}`)
	done := make(chan answer, 1)
	go func() { done <- h.engine.do(h.ctx(), req, nil) }()
	<-began
	s.unclaim()
	if f := faultIn(<-done); f == nil || f.Reason != mcp.ReasonOutcomeUnknown || f.Server != "a" {
		t.Errorf("fault %v", f)
	}
}
