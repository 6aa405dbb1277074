package integration_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"toolhub/integration/hubproc"
)

// natsServer runs a NATS server, as the operator of a distributed hub does, and
// returns its URL.
func natsServer(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command(binary("nats-server"), "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", dir+"/js", "--ports_file_dir", dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var ports struct{ NATS []string }
	eventually(t, func() error {
		files, err := filepath.Glob(dir + "/*.ports")
		if err != nil || len(files) == 0 {
			return fmt.Errorf("the NATS server doesn't say where it listens: %v", err)
		}
		data, err := os.ReadFile(files[0])
		if err != nil {
			return err
		}
		if err := json.Unmarshal(data, &ports); err != nil || len(ports.NATS) == 0 {
			return fmt.Errorf("%s: %v", data, err)
		}
		return nil
	})
	return ports.NATS[0]
}

// program runs one of the hub's programs against the NATS server of the file.
func program(t *testing.T, name, yaml string, endpoint bool) *hubproc.Hub {
	t.Helper()
	return startProgram(t, hubproc.Config{Binary: binary(name), Dir: t.TempDir(), YAML: yaml, Args: []string{"{file}"}, NoEndpoint: !endpoint})
}

// TestDistributed runs the parts of a hub as processes of their own: two routers
// and two workers, none of them special.
func TestDistributed(t *testing.T) {
	t.Parallel()
	url := natsServer(t)
	dir := t.TempDir() // of the servers, wherever they run
	yaml := fmt.Sprintf(`hub: far
nats: {url: %q}
policy: {deny: [bad/pid], allow: ["*/*"]}
restart_backoff: {initial: 10ms, max: 100ms}
servers:
  bad: {command: %q, args: [-pid, %q]}
  testbed: {builtin: testbed}
`, url, binary("badserver"), dir+"/bad.pid")
	// The definition comes from a hub in one process, which then goes away.
	definer := startProgram(t, hubproc.Config{Binary: binary("hub"), Dir: t.TempDir(), YAML: yaml})
	offered(t, definer, "bad__good", "testbed__echo")
	stop(t, definer)
	noProcess(t, dir)

	one, two := program(t, "hub-router", yaml, true), program(t, "hub-router", yaml, true)
	for _, router := range []*hubproc.Hub{one, two} {
		names, err := router.Tools(soon(t))
		if err != nil || len(names) > 0 {
			t.Errorf("without a worker the list is %v, %v, want none", names, err)
		}
	}
	worker := program(t, "hub-worker", yaml, false)
	for _, router := range []*hubproc.Hub{one, two} {
		offered(t, router, "bad__good", "testbed__echo")
		says(t, router, "bad__good", "{}", "fine")
		if _, _, err := router.Call(soon(t), "bad__pid", "{}"); err == nil {
			t.Error("a denied tool can be called")
		}
	}

	// A session of one router works on the other, and outlives its own.
	session, err := one.Initialize(soon(t), "/mcp", "{}")
	if err != nil {
		t.Fatal(err)
	}
	onTwo := func() {
		t.Helper()
		r, err := two.SessionRequest(soon(t), "/mcp", session, "tools/call", `{"name":"testbed__echo","arguments":{"text":"elsewhere"}}`)
		if err != nil || r.Error != nil || !strings.Contains(string(r.Result), "elsewhere") {
			t.Errorf("the session of the other router: %v, %v", err, r)
		}
	}
	onTwo()
	listening := subscribe(t.Context(), t, two, "/mcp")
	moved, err := two.Subscribe(t.Context(), "/mcp", session)
	if err != nil {
		t.Fatalf("the stream of a session that began at the other router: %v", err)
	}
	listening = append(listening, subscriber{"the session of the other router", moved})
	says(t, one, "testbed__add_tool", `{"name":"extra"}`, "added")
	for _, s := range listening {
		s.changes(t, 1)
	}
	one.Kill()
	onTwo()

	// A second worker, and then the first is killed: its servers are elsewhere soon.
	second := program(t, "hub-worker", yaml, false)
	if err := syscall.Kill(worker.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-worker.Done()
	eventually(t, func() error {
		got, _, err := two.Call(soon(t), "bad__good", "{}")
		if err == nil && got != "fine" {
			err = fmt.Errorf("bad__good says %q", got)
		}
		return err
	})
	offered(t, two, "bad__good", "testbed__echo")
	if running := hubproc.Processes(dir); count(running, dir+"/bad.pid") != 2 { // a reaper and its server
		t.Errorf("after the death of a worker there are\n%s", strings.Join(running, "\n"))
	}
	// One that drains hands over: nothing is listed once nobody is left.
	stop(t, second)
	withdrawn(t, two, "bad__good")
	_, _, err = two.Call(soon(t), "bad__good", "{}")
	if e, ok := err.(*hubproc.Error); !ok || e.Data.Kind != "unavailable" {
		t.Errorf("a call without a worker: %v, want unavailable", err)
	}
	noProcess(t, dir)
	stop(t, two)
}
