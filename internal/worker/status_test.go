package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/config"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// TestStderrInEveryState: a status has what the process wrote last, whether it
// runs, is being started or is being started again after it failed (T2).
func TestStderrInEveryState(t *testing.T) {
	t.Parallel()
	env := func(name, more string) string {
		return fmt.Sprintf(`{command: %q, era: legacy, env: {%s: %s, GORACE: atexit_sleep_ms=0, %s}}`, os.Args[0], childEnv, name, more)
	}
	h := newTestHub(t, fmt.Sprintf(`policy: allow_all
restart_backoff: {initial: 10ms, max: 50ms}
health_interval: 200ms
servers:
  up: %s
  slow: %s
  again: %s
`, env("leaky", "LEAK: none"), env("dieslater", `FILE: ""`), env("dieslater", fmt.Sprintf("FILE: %q", filepath.Join(t.TempDir(), "f")))))
	with := func(id string, state registry.State, attempts int, line string) *registry.Status {
		t.Helper()
		return h.until(fmt.Sprintf("%s %s with %q", id, state, line), func(v *registry.View) bool {
			s := v.Get(id)
			return s != nil && s.State() == state && s.Status != nil && s.Status.Attempts == attempts && slices.Contains(s.Status.Stderr, line)
		}).Get(id).Status
	}
	with("up", registry.StateUp, 0, "ready with ")
	with("slow", registry.StateStarting, 0, "waiting for the database")
	// Its new process says nothing, so what is known is what the last one said.
	st := with("again", registry.StateStarting, 1, "cannot open the database")
	if !strings.Contains(st.Reason, "exit code 4; it last wrote: cannot open the database") {
		t.Errorf("the status of a server that is started again is %+v", st)
	}
}

func TestNewestLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxStatusStderr/2)
	for _, tt := range []struct {
		lines []string
		want  int
	}{{nil, 0}, {[]string{"a", "b"}, 2}, {[]string{"a", long, long}, 2}, {[]string{long, "a", long}, 2}, {[]string{long + long + "y"}, 0}} {
		got := newest(tt.lines)
		if len(got) != tt.want || got != nil && !slices.Equal(got, tt.lines[len(tt.lines)-tt.want:]) || tt.want == 0 && got != nil {
			t.Errorf("%d of %d lines, want the last %d", len(got), len(tt.lines), tt.want)
		}
	}
}

// The latency is known with the first list, long before the first health probe,
// and anew after a reconnection.
func TestLatencyFromTheFirstList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		latency := 7 * time.Millisecond
		b := startBench(t, testDefinition(func(c *config.Server) { c.Command, c.URL = "", "http://x" }), func(call *mcp.Call) (jsontext.Value, error) {
			time.Sleep(latency)
			return jsontext.Value(oneTool), nil
		})
		measured := func() float64 {
			time.Sleep(3 * time.Second)
			synctest.Wait()
			out := make(chan registry.Status, 1)
			b.do(func() { out <- b.describe() })
			return (<-out).LatencyMS
		}
		if got := measured(); got != 7 {
			t.Errorf("the latency is %v ms", got)
		}
		latency = 9 * time.Millisecond
		b.lose()
		if got := measured(); got != 9 {
			t.Errorf("after a reconnection the latency is %v ms", got)
		}
	})
}

// With several replicas, one that fails tells why before one that is tried again.
func TestWorstReplica(t *testing.T) {
	t.Parallel()
	s := &server{links: make([]*link, 3), failures: make([]failure, 3)}
	trying := failure{reason: "old", attempts: 9, trying: true}
	for _, tt := range []struct {
		failures []failure
		want     string
	}{
		{[]failure{{}, {reason: "a", attempts: 1}, {}}, "a"},
		{[]failure{trying, {reason: "a", attempts: 1}, {reason: "b", attempts: 2}}, "b"},
		{[]failure{{}, {}, trying}, "old"},
		{[]failure{{reason: "a"}, trying, trying}, "a"},
	} {
		s.failures = tt.failures
		if f, missing := s.worst(); f.reason != tt.want || missing != 3 {
			t.Errorf("of %v the worst is %q, of %d", tt.failures, f.reason, missing)
		}
	}
}
