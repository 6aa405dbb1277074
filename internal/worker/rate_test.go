package worker

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"toolhub/internal/mcp"
)

func TestRates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r rates
		want := func(tool, principal string, n int64) {
			t.Helper()
			if got := r.count(tool, principal, time.Now()); got != n {
				t.Errorf("after %v %s is at %d calls of %s, want %d", time.Since(r.start), principal, got, tool, n)
			}
		}
		want("send", "amy", 1)
		want("send", "amy", 2)
		want("send", "bob", 1)
		want("read", "amy", 1)
		time.Sleep(30 * time.Second)
		want("send", "amy", 3)
		time.Sleep(29*time.Second + 999*time.Millisecond)
		want("send", "amy", 4) // the first two still count
		time.Sleep(1001 * time.Millisecond)
		want("send", "amy", 3) // they are a minute and a second old
		time.Sleep(time.Hour)
		want("send", "amy", 1)
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { r.count("send", "amy", time.Now()) })
		}
		all.Wait()
		want("send", "amy", 102)
	})
}

// Against all calls in a list: never too few, and at most those of a second too many.
func TestRatesAreThoseOfTheCalls(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var r rates
		var calls []time.Time
		now := time.Unix(0, 0)
		for range rapid.IntRange(1, 60).Draw(t, "calls") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(20*time.Second)).Draw(t, "pause")))
			calls = append(calls, now)
			least, most := int64(0), int64(0)
			for _, c := range calls {
				if now.Sub(c) <= time.Minute {
					least++
				}
				if now.Sub(c) < time.Minute+time.Second {
					most++
				}
			}
			if got := r.count("t", "p", now); got < least || got > most {
				t.Fatalf("%d calls, there were %d to %d", got, least, most)
			}
		}
	})
}

// Whoever has many names does not fill the memory, and does not go uncounted.
func TestRatesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r rates
		for i := range 3 * maxRates {
			n := r.count("t", fmt.Sprint(i), time.Now())
			if want := max(1, int64(i-maxRates+1)); n != want {
				t.Fatalf("call %d: a rate of %d, want %d", i, n, want)
			}
		}
		if n := r.count("t", "7", time.Now()); n != 2 {
			t.Errorf("who was first is at %d", n)
		}
		if len(r.windows) != maxRates {
			t.Errorf("%d windows", len(r.windows))
		}
		time.Sleep(2 * time.Minute)
		for range 2 {
			r.count("t", "new", time.Now())
		}
		if len(r.windows) != 1 {
			t.Errorf("%d windows are left of those that nobody uses", len(r.windows))
		}
	})
}

// TestPolicyByRate: a worker counts what its policy asks for, refused calls too,
// by principal and tool.
func TestPolicyByRate(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, `policy: {deny: [{tool: "*/echo", when: "rate > 2"}], allow: ["*/*"]}
servers:
  a: {builtin: testbed}
  b: {builtin: testbed}
`)
	call := func(server, tool, principal string) error {
		_, err := h.do(testCall{server: server, tool: tool, args: `{"text":"x"}`, principal: principal})
		return err
	}
	for i := range 4 {
		err := call("a", "echo", "amy")
		if denied := mcp.IsKind(err, mcp.KindDenied); denied != (i >= 2) || !denied && err != nil {
			t.Errorf("call %d: %v", i+1, err)
		}
	}
	for _, other := range [][3]string{{"a", "echo", "bob"}, {"b", "echo", "amy"}, {"a", "add", "amy"}} {
		if err := call(other[0], other[1], other[2]); mcp.IsKind(err, mcp.KindDenied) {
			t.Errorf("%v: %v", other, err)
		}
	}
	if e := h.event("call", "a", "denied", 2); field(e, "rule") != `"deny[0]"` {
		t.Errorf("denied by %s", field(e, "rule"))
	}
}
