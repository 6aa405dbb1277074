package integration_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"toolhub/integration/hubproc"
)

// quiet is how long a test listens for what must not come.
const quiet = 500 * time.Millisecond

// held is the definition of a badserver that doesn't start as long as the file
// {dir}/hold is there. It has a child that would survive it.
func held(id string) string {
	return fmt.Sprintf(`  %s:
    command: sh
    args: [-c, 'while [ -e "$DIR/hold" ]; do sleep 0.05; done; sleep 1000 & exec %s -pid "$DIR/%s.pid"']
    env: {DIR: "{dir}"}
`, id, binary("badserver"), id)
}

func hold(t *testing.T, h *hubproc.Hub) (release func()) {
	t.Helper()
	file := filepath.Join(h.Dir, "hold")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

// pidOf reads the process id that a badserver has written.
func pidOf(t *testing.T, h *hubproc.Hub, id string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.Dir, id+".pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(data))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// subscriber is a client that is told of changes of its list.
type subscriber struct {
	name    string
	methods <-chan string
}

// subscribe makes a client of each era listen until ctx ends.
func subscribe(ctx context.Context, t *testing.T, h *hubproc.Hub, path string) []subscriber {
	t.Helper()
	session, err := h.Initialize(soon(t), path, "{}")
	if err != nil {
		t.Fatal(err)
	}
	var all []subscriber
	for name, session := range map[string]string{"legacy": session, "modern": ""} {
		methods, err := h.Subscribe(ctx, path, session)
		if err != nil {
			t.Fatalf("%s at %s: %v", name, path, err)
		}
		all = append(all, subscriber{name + " at " + path, methods})
	}
	return all
}

// changes checks that the subscriber is told of n changes and no more.
func (s *subscriber) changes(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		select {
		case m, ok := <-s.methods:
			if !ok || m != "notifications/tools/list_changed" {
				t.Fatalf("%s: message %d is %q, stream open %v", s.name, i+1, m, ok)
			}
		case <-soon(t).Done():
			t.Fatalf("%s: was told of %d changes, want %d", s.name, i, n)
		}
	}
	select {
	case m, ok := <-s.methods:
		t.Errorf("%s: one message more than %d: %q, stream open %v", s.name, n, m, ok)
	case <-time.After(quiet):
	}
}

// TestKillOfAServer: kill -9 of a stdio server. Calls in flight fail at once and
// typed, the others feel nothing, its tools leave the list and come back, each of
// which every subscribed client is told once, and no child of it is left.
func TestKillOfAServer(t *testing.T) {
	t.Parallel()
	h := start(t, "policy: allow_all\nservers:\n"+held("bad")+"  dice: {builtin: dice}\n")
	offered(t, h, "bad__good", "dice__roll")

	// The others: a client that never stops calling.
	ctx, cancel := context.WithCancel(context.Background())
	var others sync.WaitGroup
	var rolls atomic.Int64
	defer func() {
		cancel()
		others.Wait()
		if rolls.Load() == 0 {
			t.Error("the other server answered nothing")
		}
	}()
	others.Go(func() {
		for ctx.Err() == nil {
			if _, _, err := h.Call(ctx, "dice__roll", "{}"); err != nil && ctx.Err() == nil {
				t.Errorf("the other server: %v", err)
				return
			}
			rolls.Add(1)
		}
	})
	merged, its, dices := subscribe(t.Context(), t, h, "/mcp"), subscribe(t.Context(), t, h, "/s/bad/mcp"), subscribe(t.Context(), t, h, "/s/dice/mcp")

	const inFlight = 5
	failed := make(chan error, inFlight)
	for range inFlight {
		go func() {
			_, _, err := h.Call(soon(t), "bad__never", "{}")
			failed <- err
		}()
	}
	eventually(t, func() error {
		out, _, _ := h.Operator(soon(t), "events", "--json", "call.bad.started")
		if n := strings.Count(out, `"never"`); n < inFlight {
			return fmt.Errorf("%d calls have reached the server", n)
		}
		return nil
	})
	release := hold(t, h)
	pid := pidOf(t, h, "bad")
	killed := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range inFlight {
		err := <-failed
		if e, ok := err.(*hubproc.Error); !ok || e.Data.Kind != "unavailable" || e.Data.Reason != "outcome_unknown" || e.Data.Retryable || e.Data.Server != "bad" {
			t.Errorf("a call in flight ended with %v (%+v), want unavailable, outcome_unknown of bad", err, e)
		}
	}
	if took := time.Since(killed); took > 5*time.Second {
		t.Errorf("calls in flight failed after %s", took)
	}
	withdrawn(t, h, "bad__good")
	_, _, err := h.Call(soon(t), "bad__good", "{}")
	if e, ok := err.(*hubproc.Error); !ok || e.Data.Kind != "unavailable" || !e.Data.Retryable || e.Data.Server != "bad" {
		t.Errorf("a call meanwhile: %v, want unavailable at once, a retry may help", err)
	}
	for _, s := range slices.Concat(merged, its) {
		s.changes(t, 1)
	}
	release()
	offered(t, h, "bad__good")
	for _, s := range slices.Concat(merged, its) {
		s.changes(t, 1)
	}
	for _, s := range dices {
		s.changes(t, 0) // their list is the same as ever
	}
	says(t, h, "bad__good", "{}", "fine")
	if now := pidOf(t, h, "bad"); now == pid {
		t.Error("the process is the same")
	}
	// Of the dead one nothing is left, not even the child it had started: one
	// reaper, one server and one child are the new one's.
	eventually(t, func() error {
		if sleeps := hubproc.Processes(h.Dir); count(sleeps, "sleep 1000") != 1 {
			return fmt.Errorf("there are\n%s", strings.Join(sleeps, "\n"))
		}
		return nil
	})
	for filter, text := range map[string]string{"server.bad.failed": `"attempt":1`, "call.bad.finished": "unavailable"} {
		eventually(t, func() error { return happened(t, h, filter, text) })
	}
}

func count(list []string, part string) (n int) {
	for _, s := range list {
		if strings.HasSuffix(strings.TrimSpace(s), part) {
			n++
		}
	}
	return n
}

// TestCrashRestart: kill -9 of the hub under load, and a start on the same state.
func TestCrashRestart(t *testing.T) {
	t.Parallel()
	yaml := fmt.Sprintf("policy: allow_all\nservers:\n  notes: {command: %q, args: [-dir, \"{dir}/notes\"]}\n%s  gone: {builtin: dice}\n  testbed: {builtin: testbed}\n", binary("notes"), held("bad"))
	h := start(t, yaml)
	offered(t, h, "notes__add_note", "bad__good", "gone__roll", "testbed__echo")
	says(t, h, "notes__add_note", `{"title":"before","text":"the crash"}`, "wrote")
	session, err := h.Initialize(soon(t), "/mcp", "{}")
	if err != nil {
		t.Fatal(err)
	}
	list := func(h *hubproc.Hub) (names []string, err error) {
		r, err := h.SessionRequest(soon(t), "/mcp", session, "tools/list", "{}")
		if err != nil {
			return nil, err
		}
		if r.Error != nil || r.Status != http.StatusOK {
			return nil, fmt.Errorf("tools/list of the session: %v", r)
		}
		var result struct{ Tools []struct{ Name string } }
		if err := unmarshal(string(r.Result), &result); err != nil {
			return nil, err
		}
		for _, tool := range result.Tools {
			names = append(names, tool.Name)
		}
		return names, nil
	}
	if _, err := list(h); err != nil {
		t.Fatal(err)
	}

	// Load of every kind: calls that end, calls that never do, streams that wait.
	subscribers := subscribe(t.Context(), t, h, "/mcp")
	ctx := soon(t)
	ended := make(chan error, 100)
	var clients sync.WaitGroup
	for i := range 12 {
		clients.Go(func() {
			for {
				tool := []string{"testbed__echo", "testbed__slow", "bad__good", "notes__list_notes", "bad__never", "testbed__hang"}[i%6]
				if _, _, err := h.Call(ctx, tool, map[bool]string{true: `{"ms":50,"steps":5}`, false: `{}`}[tool == "testbed__slow"]); err != nil {
					ended <- err
					return
				}
			}
		})
	}
	eventually(t, func() error {
		return firstOf(happened(t, h, "call.testbed.started", "hang"), happened(t, h, "call.bad.started", "never"), happened(t, h, "call.testbed.finished", "slow"))
	})
	release := hold(t, h) // after the restart, bad does not come up
	h.Kill()
	clients.Wait() // none hangs
	if ctx.Err() != nil {
		t.Error("calls in flight hung")
	}
	close(ended)
	for err := range ended {
		if e, ok := err.(*hubproc.Error); ok {
			t.Errorf("a call in flight was answered with %v by a hub that was killed", e)
		}
	}
	for _, s := range subscribers {
		for range s.methods { // it ends
		}
	}
	noProcess(t, h.Dir) // the servers are gone with their hub

	// Meanwhile somebody removes a server from the file.
	if err := h.Configure(strings.Replace(yaml, "  gone: {builtin: dice}\n", "", 1)); err != nil {
		t.Fatal(err)
	}
	again, err := h.Again(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	watch(t, again)
	// From its first answer on, no stale tool: none of a server that left the
	// file, none of a server that is not up, whatever the stored catalogs say.
	for range 50 {
		names, err := again.Tools(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasPrefix(name, "gone__") || strings.HasPrefix(name, "bad__") {
				t.Fatalf("%s is offered after the restart", name)
			}
		}
	}
	offered(t, again, "notes__add_note", "testbed__echo")
	// What is durable is there: the note, the session, the events of before.
	says(t, again, "notes__read_note", `{"title":"before"}`, "the crash")
	names, err := list(again)
	if err != nil {
		t.Errorf("the session of before the crash: %v", err)
	} else if !slices.Contains(names, "notes__add_note") || slices.Contains(names, "bad__good") || slices.Contains(names, "gone__roll") {
		t.Errorf("the session of before the crash lists %v", names)
	}
	if err := firstOf(happened(t, again, "server.gone.up", "gone"), happened(t, again, "server.gone.removed", "gone")); err != nil {
		t.Error(err)
	}
	_, _, err = again.Call(soon(t), "bad__good", "{}")
	if e, ok := err.(*hubproc.Error); !ok || e.Data.Kind != "unavailable" {
		t.Errorf("a call of a server that is not up: %v, want unavailable", err)
	}
	_, _, err = again.Call(soon(t), "gone__roll", "{}")
	if e, ok := err.(*hubproc.Error); !ok || e.Code != -32602 {
		t.Errorf("a call of a server that left the file: %v, want -32602", err)
	}
	release()
	offered(t, again, "bad__good")
	says(t, again, "bad__good", "{}", "fine")
	stop(t, again)
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestDrain: SIGTERM lets running calls finish, takes no new ones and ends with
// exit code 0.
func TestDrain(t *testing.T) {
	t.Parallel()
	h := start(t, "policy: allow_all\nservers:\n"+held("bad")+"  testbed: {builtin: testbed}\n")
	offered(t, h, "testbed__slow", "bad__good")
	progress := make(chan struct{}, 100)
	results := make(chan error, len(eras))
	for _, version := range eras {
		cs := connect(t, h.URL+"/mcp", version, &sdk.ClientOptions{
			ProgressNotificationHandler: func(context.Context, *sdk.ProgressNotificationClientRequest) { progress <- struct{}{} },
		})
		go func() {
			params := &sdk.CallToolParams{Name: "testbed__slow", Arguments: map[string]any{"ms": 2000, "steps": 20}}
			params.SetProgressToken("p" + version)
			res, err := cs.CallTool(soon(t), params)
			if err == nil && res.IsError {
				err = fmt.Errorf("isError: %v", res.Content)
			}
			results <- err
		}()
	}
	<-progress
	<-progress
	ended := make(chan error, 1)
	go func() { ended <- h.Stop(soon(t)) }()
	if err := h.Logged(soon(t), "stopping"); err != nil {
		t.Error(err)
	}
	for range eras {
		if err := <-results; err != nil {
			t.Errorf("a call that was running: %v", err)
		}
	}
	if err := <-ended; err != nil {
		t.Errorf("the hub ended with %v", err)
	}
	if _, _, err := h.Call(soon(t), "testbed__echo", "{}"); err == nil {
		t.Error("a hub that has ended takes a call")
	}
	noProcess(t, h.Dir)
}

// TestDrainIsBounded: a call that never ends keeps no hub alive.
func TestDrainIsBounded(t *testing.T) {
	t.Parallel()
	h := start(t, "policy: allow_all\ndrain_timeout: 300ms\nservers:\n"+held("bad")+"  testbed: {builtin: testbed}\n")
	offered(t, h, "testbed__hang", "bad__never")
	ended := make(chan error, 4)
	for _, tool := range []string{"testbed__hang", "bad__never"} {
		go func() {
			_, _, err := h.Call(soon(t), tool, "{}")
			ended <- err
		}()
	}
	eventually(t, func() error {
		return firstOf(happened(t, h, "call.testbed.started", "hang"), happened(t, h, "call.bad.started", "never"))
	})
	stop(t, h)
	for range 2 {
		if err := <-ended; err == nil {
			t.Error("a call that never ends has a result")
		}
	}
	noProcess(t, h.Dir)
}

// TestReload: a changed file touches only the servers that it changes, by SIGHUP
// and by itself, and a bad file changes nothing.
func TestReload(t *testing.T) {
	t.Parallel()
	const head = "policy: allow_all\nrestart_backoff: {initial: 10ms, max: 100ms}\nservers:\n"
	same := held("same")
	changed := func(how string) string { return held("changed") + "    era: " + how + "\n" }
	h := start(t, head+same+changed("auto")+"  old: {builtin: dice}\n")
	offered(t, h, "same__good", "changed__good", "old__roll")
	pid, other := pidOf(t, h, "same"), pidOf(t, h, "changed")
	subscribers := subscribe(t.Context(), t, h, "/s/same/mcp")

	// A call that runs through all of it.
	result := make(chan error, 1)
	go func() {
		_, _, err := h.Call(soon(t), "same__never", "{}")
		result <- err
	}()
	eventually(t, func() error { return happened(t, h, "call.same.started", "never") })

	if err := h.Configure(head + same + changed("legacy") + "  new: {builtin: dice}\n"); err != nil {
		t.Fatal(err)
	}
	offered(t, h, "same__good", "changed__good", "new__roll")
	withdrawn(t, h, "old__roll")
	eventually(t, func() error {
		if pidOf(t, h, "changed") == other {
			return fmt.Errorf("the server that was changed still runs as before")
		}
		return nil
	})
	offered(t, h, "changed__good")

	// The policy of one server, which needs no new connection.
	other = pidOf(t, h, "changed")
	if err := h.Configure(head + same + changed("legacy") + "    policy: {deny: [\"*/pid\"], allow: [\"*/*\"]}\n" + "  new: {builtin: dice}\n"); err != nil {
		t.Fatal(err)
	}
	withdrawn(t, h, "changed__pid")
	if now := pidOf(t, h, "changed"); now != other {
		t.Error("a change of its policy has restarted a server")
	}

	// A file that does not hold.
	if err := h.Configure(head + same + "  new: {builtin: nonsense}\n"); err != nil {
		t.Fatal(err)
	}
	if err := h.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if err := h.Logged(soon(t), "configuration not applied"); err != nil {
		t.Fatal(err)
	}
	offered(t, h, "same__good", "changed__good", "new__roll")

	if now := pidOf(t, h, "same"); now != pid {
		t.Errorf("the process of a server that no file changed was %d and is %d", pid, now)
	}
	for _, s := range subscribers {
		s.changes(t, 0)
	}
	select {
	case err := <-result:
		t.Errorf("the call that ran through all of it ended with %v", err)
	default:
	}
	if got, _, err := h.Call(soon(t), "same__pid", "{}"); err != nil || got != strconv.Itoa(pid) {
		t.Errorf("same__pid = %s, %v, want %d", got, err, pid)
	}
}

// TestNothingIsLeft: sessions, streams, calls that were given up and servers
// that died leave no file descriptor behind.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	h := start(t, fmt.Sprintf("policy: allow_all\nrestart_backoff: {initial: 1ms, max: 10ms}\nservers:\n  bad: {command: %q, args: [-pid, \"{dir}/bad.pid\"]}\n  testbed: {builtin: testbed}\n", binary("badserver")))
	round := func() {
		offered(t, h, "bad__good", "testbed__hang")
		ctx, cancel := context.WithCancel(context.Background())
		var all sync.WaitGroup
		for _, tool := range []string{"testbed__hang", "bad__never", "testbed__hang"} {
			all.Go(func() { _, _, _ = h.Call(ctx, tool, "{}") })
		}
		for _, s := range subscribe(ctx, t, h, "/mcp") {
			go func() {
				for range s.methods {
				}
			}()
		}
		for _, version := range eras {
			cs := connect(t, h.URL+"/mcp", version, &sdk.ClientOptions{ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) {}})
			callText(t, cs, "testbed__echo", map[string]any{"text": "x"})
			if err := cs.Close(); err != nil {
				t.Error(err)
			}
		}
		pid := pidOf(t, h, "bad")
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		cancel()
		all.Wait()
		eventually(t, func() error {
			if pidOf(t, h, "bad") == pid {
				return fmt.Errorf("bad is not back")
			}
			return nil
		})
		http.DefaultClient.CloseIdleConnections()
	}
	settled := func() int {
		n, last := 0, -1
		eventually(t, func() (err error) {
			offered(t, h, "bad__good")
			if n, err = hubproc.FDs(h.PID()); err == nil && n != last {
				last, err = n, fmt.Errorf("the number of file descriptors still changes")
			}
			return err
		})
		return n
	}
	round()
	before := settled()
	for range 10 {
		round()
	}
	// A few are the connections of clients just now.
	eventually(t, func() error {
		if after := settled(); after > before+8 {
			return fmt.Errorf("%d file descriptors, before %d", after, before)
		}
		return nil
	})
	eventually(t, func() error {
		if children := hubproc.Children(h.PID()); len(children) != 1 {
			return fmt.Errorf("the hub has the children %v, want the one of bad", children)
		}
		return nil
	})
}
