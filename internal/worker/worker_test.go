package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"toolhub/internal/bus"
	"toolhub/internal/config"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

func TestServersOfEachKind(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  bed: {builtin: testbed}\n  old: {builtin: testbed, era: legacy}\n  proc: "+child("testbed")+"\n")
	for _, id := range []string{"bed", "old", "proc"} {
		s := h.ready(id)
		if s.State() != registry.StateUp || s.Own.Worker != "w1" || len(s.Catalog.Tools) < 10 || s.Status.Info == nil {
			t.Errorf("%s: %s of %s with %d tools", id, s.State(), s.Own.Worker, len(s.Catalog.Tools))
		}
		if got := h.text(id, "echo", `{"text":"hello"}`); got != "hello" {
			t.Errorf("%s: echo gives %q", id, got)
		}
	}
	if era := h.ready("old").Status.Info.Era; era != mcp.EraLegacy {
		t.Errorf("old speaks %s", era)
	}
	started := h.event("call", "bed", "started", 1)
	finished := h.event("call", "bed", "finished", 1)
	if field(finished, "outcome") != `"ok"` || field(finished, "call_id") != field(started, "call_id") || field(finished, "tool") != `"echo"` ||
		field(finished, "duration_ms") == "" || strings.Contains(fmt.Sprint(finished.Data, started.Data), "hello") {
		t.Errorf("events of the call: %s, %s", started.Data, finished.Data)
	}
	h.event("server", "proc", "up", 1)
	h.event("lease", "w1", "acquired", 1)
	h.event("catalog", "bed", "published", 1)
}

// A changed configuration touches nothing that is as it was.
func TestReconcile(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  a: "+child("testbed")+"\n  b: "+child("testbed")+"\n  c: {builtin: clock}\n")
	pid := func(id string) string { return h.text(id, "pid", "") }
	a, b := pid("a"), pid("b")
	epochA, epochB := h.ready("a").Epoch(), h.ready("b").Epoch()
	h.ready("c")

	// a is the same, b has other limits and its own policy, c left, d is new.
	h.apply("policy: allow_all\nservers:\n  a: " + child("testbed") + "\n  b: " + child("testbed", "timeout: 10s", "policy: {allow: ['b/pid', 'b/echo']}") + "\n  d: {builtin: dice}\n")
	h.ready("d")
	h.until("c gone", func(v *registry.View) bool { return v.Get("c") == nil })
	if pid("a") != a || pid("b") != b || h.ready("a").Epoch() != epochA || h.ready("b").Epoch() != epochB {
		t.Error("an unchanged connection was made anew")
	}
	h.untilFault(testCall{server: "b", tool: "slow"}, mcp.KindDenied)
	h.untilNoKey(bus.Key(bus.KeyOwn, "c"))
	entries, err := h.conn.List(t.Context(), bus.BucketReg, bus.Key(bus.KeyCatalog, "c")+" "+bus.Key(bus.KeyStatus, "c", "w1"))
	if err != nil || len(entries) != 0 {
		t.Errorf("left behind of the removed server: %v, %v", entries, err)
	}

	// Another environment is another process.
	changed := strings.Replace(child("testbed"), "GORACE", "ANSWER: \"42\", GORACE", 1)
	h.apply("policy: allow_all\nservers:\n  a: " + changed + "\n")
	h.until("a in a new epoch", func(v *registry.View) bool { return v.Get("a").Ready() && v.Get("a").Epoch() != epochA })
	if pid("a") == a {
		t.Error("a changed process runs on")
	}
	n, _ := strconv.Atoi(a)
	waitGone(t, n)
}

// untilNoKey waits until a key of the bucket reg is gone.
func (h *testHub) untilNoKey(key string) {
	h.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		_, err := h.conn.Get(h.t.Context(), bus.BucketReg, key)
		if errors.Is(err, bus.ErrNotFound) {
			return
		} else if time.Now().After(deadline) {
			h.t.Fatalf("%s is still there: %v", key, err)
		}
	}
}

// untilFault repeats a call until it fails with a fault of the kind: a change of
// the definition takes a moment to get through.
func (h *testHub) untilFault(c testCall, kind mcp.Kind) *mcp.Fault {
	h.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		if _, err := h.do(c); mcp.IsKind(err, kind) {
			return faultOf(h.t, err)
		} else if time.Now().After(deadline) {
			h.t.Fatalf("the call never fails as %s, but with %v", kind, err)
		}
	}
}

// The definition of a server changes while a call runs: the call finishes.
func TestCallsFinishOnTheOldDefinition(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  a: "+child("testbed")+"\n")
	epoch := h.ready("a").Epoch()
	done := h.start(testCall{server: "a", tool: "block", args: `{"ms":700}`})
	h.apply("policy: allow_all\nservers:\n  a: " + child("testbed", "cwd: /") + "\n")
	if out := <-done; out.err != nil || textOf(out.value) != "blocked" {
		t.Errorf("the call ended with %s, %v", out.value, out.err)
	}
	h.until("a in a new epoch", func(v *registry.View) bool { return v.Get("a").Ready() && v.Get("a").Epoch() != epoch })
	// Nobody serves the old epoch.
	_, err := h.do(testCall{server: "a", tool: "echo", epoch: epoch})
	if f := faultOf(t, err); f.Reason != bus.ReasonNoResponders {
		t.Errorf("a call of the old epoch: %v", f)
	}
}

type outcome struct {
	value []byte
	err   error
}

// start makes a call in the background and waits until it runs.
func (h *testHub) start(c testCall) <-chan outcome {
	h.t.Helper()
	found, _ := h.events.all("call", c.server, "started")
	done := make(chan outcome, 1)
	c.epoch = h.ready(c.server).Epoch()
	go func() {
		value, err := h.do(c)
		done <- outcome{value, err}
	}()
	h.event("call", c.server, "started", len(found)+1)
	return done
}

func TestKilledChild(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nrestart_backoff: {initial: 200ms}\nservers:\n  a: "+child("testbed")+"\n  b: "+child("testbed")+"\n")
	victim, err := strconv.Atoi(h.text("a", "pid", ""))
	if err != nil {
		t.Fatal(err)
	}
	other := h.text("b", "pid", "")
	catalog := h.ready("a").Catalog.Revision
	calls := []<-chan outcome{h.start(testCall{server: "a", tool: "hang"}), h.start(testCall{server: "a", tool: "hang"})}
	killed := time.Now()
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, c := range calls {
		out := <-c
		f := faultOf(t, out.err)
		if f.Kind != mcp.KindUnavailable || f.Reason != mcp.ReasonOutcomeUnknown || f.Retryable || f.Server != "a" {
			t.Errorf("a call in flight: %+v", f)
		}
	}
	if took := time.Since(killed); took > 2*time.Second {
		t.Errorf("the calls in flight failed after %v", took)
	}
	h.event("server", "a", "down", 1)
	failed := h.event("server", "a", "failed", 1)
	if !strings.Contains(field(failed, "reason"), "signal 9") || field(failed, "attempt") != "1" {
		t.Errorf("the failure says %s", failed.Data)
	}
	s := h.until("a back", func(v *registry.View) bool {
		got, _ := h.events.all("server", "a", "up")
		return v.Get("a").Ready() && len(got) >= 2
	}).Get("a")
	if s.Catalog.Revision != catalog {
		t.Error("the catalog changed")
	}
	if h.text("a", "pid", "") == strconv.Itoa(victim) || h.text("b", "pid", "") != other {
		t.Error("the wrong process was started again")
	}
	waitGone(t, victim)
}

// A server that always fails at its start disturbs nobody, and its status says why.
func TestCrashLoop(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nrestart_backoff: {initial: 10ms, max: 20ms}\nservers:\n  bad: "+child("dies")+"\n  missing: {command: no-such-program-here}\n  good: {builtin: clock}\n")
	h.ready("good")
	epoch := h.ready("good").Epoch()
	s := h.until("bad failed often", func(v *registry.View) bool {
		return v.Get("bad").State() == registry.StateFailed && v.Get("bad").Status.Attempts >= 4
	}).Get("bad")
	if !strings.Contains(s.Status.Reason, "exit code 4") || !strings.Contains(s.Status.Reason, "cannot open the database") || s.Status.RetryAt.IsZero() {
		t.Errorf("status: %+v", s.Status)
	}
	if len(s.Status.Stderr) == 0 || s.Status.Stderr[0] != "cannot open the database" {
		t.Errorf("stderr: %q", s.Status.Stderr)
	}
	m := h.state("missing", registry.StateFailed)
	if !strings.Contains(m.Status.Reason, "no-such-program-here") {
		t.Errorf("missing program: %q", m.Status.Reason)
	}
	_, err := h.do(testCall{server: "bad", tool: "x", epoch: s.Epoch()})
	if f := faultOf(t, err); f.Kind != mcp.KindUnavailable || !f.Retryable {
		t.Errorf("a call to a failed server: %+v", f)
	}
	if h.ready("good").Epoch() != epoch {
		t.Error("the good server was touched")
	}
}

// A server that never answers holds up nobody.
func TestSlowServer(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  slow: "+child("sleep", "startup_timeout: 1s")+"\n  good: {builtin: clock}\n")
	h.ready("good")
	if s := h.reg.View().Get("slow"); s.Ready() {
		t.Error("a server that says nothing counts as ready")
	}
	s := h.state("slow", registry.StateFailed)
	if !strings.Contains(s.Status.Reason, "startup_timeout") {
		t.Errorf("reason: %q", s.Status.Reason)
	}
}

func TestDrain(t *testing.T) {
	t.Parallel()
	for name, drain := range map[string]func(*testHub) error{
		"end of ctx": func(h *testHub) error {
			h.worker.stop(errTestEnds)
			return nil
		},
		"by the bus": func(h *testHub) error {
			_, err := h.ask(bus.CtlSubject("test", "w1", ctlDrain), []byte(`{"jsonrpc":"2.0","id":1,"method":"drain"}`), "", nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newTestHub(t, "policy: allow_all\nservers:\n  a: "+child("testbed")+"\n  idle: {builtin: dice}\n")
			h.ready("idle")
			pid, _ := strconv.Atoi(h.text("a", "pid", ""))
			epoch := h.ready("a").Epoch()
			call := h.start(testCall{server: "a", tool: "block", args: `{"ms":600}`})
			if err := drain(h); err != nil {
				t.Fatal(err)
			}
			h.until("idle given up", func(v *registry.View) bool { return v.Get("idle").Own == nil })
			if _, err := h.do(testCall{server: "a", tool: "echo", epoch: epoch}); !mcp.IsKind(err, mcp.KindUnavailable) {
				t.Errorf("a new call while draining: %v", err)
			}
			if out := <-call; out.err != nil || textOf(out.value) != "blocked" {
				t.Errorf("the running call: %s, %v", out.value, out.err)
			}
			<-h.worker.done
			if name == "by the bus" && h.worker.err != nil || name != "by the bus" && h.worker.err != errTestEnds { //nolint:errorlint // that very error
				t.Errorf("Run returned %v", h.worker.err)
			}
			waitGone(t, pid)
			left, err := h.conn.List(t.Context(), bus.BucketReg, bus.KeyFilter(bus.KeyOwn)+" "+bus.KeyFilter(bus.KeyLease))
			if err != nil || len(left) != 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
			h.event("lease", "w1", "released", 1)
		})
	}
}

// A call that does not end in time is cut off, and no process stays behind.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\ndrain_timeout: 200ms\nservers:\n  a: "+child("testbed")+"\n")
	pid, _ := strconv.Atoi(h.text("a", "pid", ""))
	call := h.start(testCall{server: "a", tool: "hang"})
	h.worker.stop(errTestEnds)
	out := <-call
	if f := faultOf(t, out.err); f.Kind != mcp.KindUnavailable || f.Reason != mcp.ReasonOutcomeUnknown || f.Retryable {
		t.Errorf("the call that was cut off: %+v", f)
	}
	<-h.worker.done
	waitGone(t, pid)
}

// An incarnation that loses its lease ends all it runs; the next one begins anew.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  a: "+child("testbed")+"\n  b: {builtin: clock}\n")
	pid, _ := strconv.Atoi(h.text("a", "pid", ""))
	h.ready("b")
	first := h.ready("a")
	call := h.start(testCall{server: "a", tool: "hang"})
	// Another program takes the lease away, as NATS does when it hears nothing.
	key := bus.Key(bus.KeyLease, "w1", first.Own.Incarnation)
	if err := h.conn.Delete(t.Context(), bus.BucketReg, key, bus.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	out := <-call
	if f := faultOf(t, out.err); f.Reason != mcp.ReasonOutcomeUnknown {
		t.Errorf("the call in flight: %+v", f)
	}
	waitGone(t, pid)
	h.event("lease", "w1", "lost", 1)
	second := h.until("a again", func(v *registry.View) bool { return v.Get("a").Ready() && v.Get("a").Epoch() != first.Epoch() }).Get("a")
	if second.Own.Incarnation == first.Own.Incarnation {
		t.Error("the incarnation did not change")
	}
	if h.text("a", "pid", "") == strconv.Itoa(pid) {
		t.Error("the same process serves again")
	}
}

// NATS goes away for longer than the lease lives: everything stops in time, and
// begins anew by itself.
func TestNATSGone(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  a: "+child("testbed")+"\n  b: {builtin: clock}\n")
	pid, _ := strconv.Atoi(h.text("a", "pid", ""))
	h.ready("b")
	first := h.ready("a")
	_, digits, _ := strings.Cut(strings.TrimPrefix(h.nats.URL(), "nats://"), ":")
	port, err := strconv.Atoi(digits)
	if err != nil {
		t.Fatal(err)
	}
	call := h.start(testCall{server: "a", tool: "hang"})
	gone := time.Now()
	h.nats.Shutdown()
	if out := <-call; !mcp.IsKind(out.err, mcp.KindUnavailable) {
		t.Errorf("the call in flight: %v", out.err)
	}
	waitGone(t, pid)
	// Before the lease could move: it lives from its last renewal on.
	if took := time.Since(gone); took > defaultLeaseTTL {
		t.Errorf("the server ran for %v without NATS, the lease lives for %v", took, defaultLeaseTTL)
	}
	h.startNATS(port)
	second := h.until("a again", func(v *registry.View) bool { return v.Get("a").Ready() && v.Get("a").Epoch() != first.Epoch() }).Get("a")
	if second.Own.Incarnation == first.Own.Incarnation {
		t.Error("the incarnation did not change")
	}
	if got := h.text("a", "pid", ""); got == strconv.Itoa(pid) {
		t.Error("the same process serves again")
	}
	h.ready("b")
}

// A worker that dies without a word: its servers go to another one.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  a: {builtin: testbed}\n  b: {builtin: clock}\n")
	h.ready("a")
	h.ready("b")
	second := h.startWorker("w2")
	epoch := h.ready("a").Epoch()
	h.worker.stop(errTestEnds)
	<-h.worker.done
	for _, id := range []string{"a", "b"} {
		h.until(id+" with w2", func(v *registry.View) bool { return v.Get(id).Ready() && v.Get(id).Own.Worker == "w2" })
	}
	if h.ready("a").Epoch() <= epoch {
		t.Error("the epoch did not grow")
	}
	if got := h.text("a", "echo", `{"text":"x"}`); got != "x" {
		t.Errorf("echo gives %q", got)
	}
	second.stop(errTestEnds)
	<-second.done
}

// Whatever a stale owner believes: once another claim is there, it stops.
func TestOverthrown(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  a: "+child("testbed")+"\n")
	pid, _ := strconv.Atoi(h.text("a", "pid", ""))
	old := h.ready("a").Epoch()
	lease, err := h.conn.AcquireLease(t.Context(), "w9", "other", nil, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	own := []byte(`{"worker":"w9","incarnation":"other","since":"2026-12-01T00:00:00Z"}`)
	if _, err := h.conn.Put(t.Context(), bus.BucketReg, bus.Key(bus.KeyOwn, "a"), own, bus.PutOptions{Revision: &old}); err != nil {
		t.Fatal(err)
	}
	waitGone(t, pid)
	h.untilNobody("a", old)
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.until("a back at w1", func(v *registry.View) bool { return v.Get("a").Ready() && v.Get("a").Own.Worker == "w1" })
}

// untilNobody waits until nobody serves the epoch.
func (h *testHub) untilNobody(server string, epoch uint64) {
	h.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		_, err := h.do(testCall{server: server, tool: "echo", epoch: epoch})
		if f, ok := err.(*mcp.Fault); ok && f.Reason == bus.ReasonNoResponders {
			return
		} else if time.Now().After(deadline) {
			h.t.Fatalf("epoch %d of %s is still served: %v", epoch, server, err)
		}
	}
}

// The limits of a file are checked when it is read; what was added beyond them
// otherwise is refused here.
func TestLimits(t *testing.T) {
	t.Parallel()
	h := newIdleHub(t)
	apply := func(yaml string) {
		t.Helper()
		f, err := config.Parse("hub.yaml", []byte("policy: allow_all\nservers:\n"+yaml))
		if err != nil {
			t.Fatal(err)
		}
		f.Settings.MaxServers, f.Settings.MaxStdioServers = 4, 3
		if _, err := registry.Apply(t.Context(), h.conn, f); err != nil {
			t.Fatal(err)
		}
	}
	apply("  a: " + child("testbed", "replicas: 2") + "\n  b: " + child("testbed", "replicas: 2") + "\n  one: " + child("testbed") + "\n  c: {builtin: clock}\n  d: {builtin: dice}\n")
	h.startWorker("w1")
	h.ready("a")
	h.ready("one") // there is room for it though not for b
	h.ready("c")
	for id, want := range map[string]string{"b": "with its 2 processes there would be 4, and a worker runs 3 (max_stdio_servers)", "d": "takes 4 servers (max_servers)"} {
		s := h.state(id, registry.StateFailed)
		if !strings.Contains(s.Status.Reason, want) || !strings.Contains(s.Status.Reason, `"`+id+`"`) {
			t.Errorf("%s: %q", id, s.Status.Reason)
		}
		_, err := h.do(testCall{server: id, tool: "x", epoch: s.Epoch()})
		if !mcp.IsKind(err, mcp.KindUnavailable) {
			t.Errorf("a call to the refused %s: %v", id, err)
		}
	}
	// Where there is room again, the server is taken.
	apply("  b: " + child("testbed", "replicas: 2") + "\n  d: {builtin: dice}\n")
	h.ready("b")
	h.ready("d")
}

func TestCatalogLimit(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nmax_catalog_items: 20\nrefetch_interval: 1ms\nservers:\n  clock: {builtin: clock}\n  one: {builtin: testbed}\n  two: {builtin: testbed}\n")
	first := h.ready("clock").Catalog.Tools
	h.ready("one")
	n := len(h.ready("one").Catalog.Tools)
	want := fmt.Sprintf(`server "two" is refused: it lists %d items, the servers before it have %d, and the hub takes 20 (max_catalog_items)`, n, n+len(first))
	s := h.until(want, func(v *registry.View) bool {
		st := v.Get("two").Status
		return st != nil && st.State == registry.StateFailed && st.Reason == want && !v.Get("two").Ready()
	}).Get("two")
	if _, err := h.do(testCall{server: "two", tool: "echo", epoch: s.Epoch()}); !mcp.IsKind(err, mcp.KindUnavailable) {
		t.Errorf("a call to the refused server: %v", err)
	}
	// A list that grows beyond the limit takes its own server out, not the ones before it.
	for i := range 20 - n - len(first) + 1 {
		h.text("one", "add_tool", fmt.Sprintf(`{"name":"more%d"}`, i))
	}
	h.state("one", registry.StateFailed)
	h.until("two has room", func(v *registry.View) bool { return v.Get("two").Ready() })
	if !h.ready("clock").Ready() {
		t.Error("the first server suffers from the limit")
	}
	h.apply("policy: allow_all\nmax_catalog_items: 100\nrefetch_interval: 1ms\nservers:\n  clock: {builtin: clock}\n  one: {builtin: testbed}\n  two: {builtin: testbed}\n")
	h.ready("one")
	h.ready("two")
}

func TestListChangedAndRefresh(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  modern: {builtin: testbed}\n  legacy: {builtin: testbed, era: legacy}\n")
	for _, id := range []string{"modern", "legacy"} {
		h.ready(id)
		h.text(id, "add_tool", `{"name":"fresh"}`)
		h.until(id+" lists the new tool", func(v *registry.View) bool {
			_, ok := v.Get(id).Catalog.Tool("fresh")
			return ok
		})
		if got := h.text(id, "fresh", ""); got != "fresh" {
			t.Errorf("%s: the new tool gives %q", id, got)
		}
		h.text(id, "remove_tool", `{"name":"fresh"}`)
		h.until(id+" lists it no more", func(v *registry.View) bool {
			_, ok := v.Get(id).Catalog.Tool("fresh")
			return !ok
		})
		_, err := h.do(testCall{server: id, tool: "fresh"})
		if f := faultOf(t, err); f.Kind != mcp.KindNotFound || f.Reason != "unknown_tool" {
			t.Errorf("%s: the removed tool: %+v", id, f)
		}
	}
	for body, want := range map[string]string{
		`{"jsonrpc":"2.0","id":1,"method":"refresh"}`:                                                `{"servers":["legacy","modern"]}`,
		`{"jsonrpc":"2.0","id":1,"method":"refresh","params":{"servers":["legacy","nobody"]}}`:       `{"servers":["legacy"]}`,
		`{"jsonrpc":"2.0","id":1,"method":"refresh","params":{"servers":["nobody"],"unknown":true}}`: `{"servers":[]}`,
	} {
		got, err := h.ask(bus.CtlSubject("test", bus.AnyIdentity, ctlRefresh), []byte(body), "", nil)
		if err != nil || string(got) != want {
			t.Errorf("%s: %s, %v", body, got, err)
		}
	}
	for _, body := range []string{``, `x`, `[]`, `{"jsonrpc":"2.0","method":"refresh"}`, `{"jsonrpc":"2.0","id":1,"method":"refresh","params":{"servers":7}}`} {
		if _, err := h.ask(bus.CtlSubject("test", "w1", ctlRefresh), []byte(body), "", nil); !mcp.IsKind(err, mcp.KindInvalid) {
			t.Errorf("%q: %v", body, err)
		}
	}
}

// A server behind a URL that goes away is noticed by the call that fails, and
// found again when it is back.
func TestURLGone(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	serve := func(l net.Listener) *http.Server {
		s := newTestbed(func() {})
		srv := &http.Server{Handler: sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{Stateless: true})}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = srv.Serve(l)
		}()
		t.Cleanup(func() {
			_ = srv.Close()
			<-done
		})
		return srv
	}
	srv := serve(l)
	h := newTestHub(t, "policy: allow_all\nservers:\n  web: {url: 'http://"+address+"/mcp'}\n")
	if got := h.text("web", "echo", `{"text":"x"}`); got != "x" {
		t.Fatalf("echo gives %q", got)
	}
	epoch := h.ready("web").Epoch()
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = h.do(testCall{server: "web", tool: "echo", epoch: epoch})
	if f := faultOf(t, err); f.Server != "web" || f.Kind != mcp.KindTransport && f.Kind != mcp.KindUnavailable {
		t.Errorf("a call while it is gone: %+v", f)
	}
	h.state("web", registry.StateDown)
	_, err = h.do(testCall{server: "web", tool: "echo", epoch: epoch})
	if f := faultOf(t, err); f.Kind != mcp.KindUnavailable || !f.Retryable {
		t.Errorf("a call while it is known to be gone: %+v", f)
	}
	if l, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	serve(l)
	if s := h.ready("web"); s.Epoch() != epoch {
		t.Error("the epoch changed")
	}
	if got := h.text("web", "echo", `{"text":"back"}`); got != "back" {
		t.Errorf("echo gives %q", got)
	}
}

// A process that serves a URL is started, watched and ended like one on stdio.
func TestLaunchedURL(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil { // free for the child
		t.Fatal(err)
	}
	h := newTestHub(t, "policy: allow_all\nrestart_backoff: {initial: 100ms}\nservers:\n  web: "+child("web", "args: ['"+address+"']", "url: 'http://"+address+"/mcp'")+"\n")
	pid, err := strconv.Atoi(h.text("web", "pid", ""))
	if err != nil {
		t.Fatal(err)
	}
	call := h.start(testCall{server: "web", tool: "hang"})
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if out := <-call; !mcp.IsKind(out.err, mcp.KindUnavailable) {
		t.Errorf("the call in flight: %v", out.err)
	}
	if e := h.event("server", "web", "failed", 1); !strings.Contains(field(e, "reason"), "signal 9") {
		t.Errorf("event %s", e.Data)
	}
	h.event("server", "web", "up", 2)
	second, err := strconv.Atoi(h.text("web", "pid", ""))
	if err != nil || second == pid {
		t.Fatalf("process %d after %d, %v", second, pid, err)
	}
	start := time.Now()
	h.worker.stop(errTestEnds)
	<-h.worker.done
	if took := time.Since(start); took > stdinGrace {
		t.Errorf("its end took %v, as if it had been asked over stdin first", took)
	}
	waitGone(t, second)
}

func TestReplicas(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nrestart_backoff: {initial: 100ms}\nservers:\n  pool: "+child("testbed", "replicas: 3")+"\n")
	h.state("pool", registry.StateUp)
	pids := map[string]bool{}
	var calls []<-chan outcome
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// Calls that hang make the next one go elsewhere, as soon as they run.
	for n := range 3 {
		for len(pids) == n {
			pids[h.text("pool", "pid", "")] = true
		}
		calls = append(calls, h.start(testCall{server: "pool", tool: "hang", ctx: ctx}))
	}
	cancel()
	for _, c := range calls {
		<-c
	}
	if len(pids) != 3 {
		t.Fatalf("the calls went to the processes %v, want 3", pids)
	}
	var victim int
	for pid := range pids {
		victim, _ = strconv.Atoi(pid)
	}
	if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s := h.state("pool", registry.StateDegraded)
	if !s.Ready() || !strings.Contains(s.Status.Reason, "1 of 3 connections") {
		t.Errorf("with one replica dead: ready %v, %q", s.Ready(), s.Status.Reason)
	}
	if got := h.text("pool", "echo", `{"text":"on"}`); got != "on" {
		t.Errorf("echo gives %q", got)
	}
	h.state("pool", registry.StateUp)

	// The answer to a question goes to the replica that asked, with its own state.
	asked, err := h.do(testCall{server: "pool", tool: "ask", caps: `{"elicitation":{}}`})
	if err != nil {
		t.Fatal(err)
	}
	state := mcp.Field(asked, "requestState")
	got, err := h.do(testCall{
		server: "pool", tool: "ask", caps: `{"elicitation":{}}`,
		extra: `,"requestState":` + string(state) + `,"inputResponses":{"name":{"action":"accept","content":{"name":"Ada"}}}`,
	})
	if err != nil || textOf(got) != "Hello, Ada!" {
		t.Errorf("the retry: %s, %v", got, err)
	}
}

func TestRunRefusesBadConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{{}, {Conn: &bus.Conn{}, LeaseTTL: time.Millisecond}, {Conn: &bus.Conn{}, LeaseTTL: 1500 * time.Millisecond}} {
		if err := Run(context.Background(), c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}
