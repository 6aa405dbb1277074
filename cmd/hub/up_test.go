package main

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"toolhub/internal/mcp"
)

// What hub up needs and does not get is named, with the field to change, at once.
func TestUpThatCannotStart(t *testing.T) {
	t.Parallel()
	used, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { used.Close() })
	addr := used.Addr().String()
	for _, k := range []struct {
		name string
		yaml string
		args []string
		code int
		says []string
	}{
		{"a used port", configuration(everything), []string{"--listen", addr}, 1, []string{"listen: ", addr, "address already in use", "--listen"}},
		{"a used port of NATS", configuration(everything, "nats: {listen: '"+addr+"'}"), nil, 1, []string{"nats.listen ", addr, "address already in use"}},
		{"a state directory that is a file", configuration(everything), []string{"--state-dir", os.Args[0]}, 1, []string{"state_dir ", os.Args[0], "not a directory"}},
		{"a state directory below a file", configuration(everything), []string{"--state-dir", os.Args[0] + "/x"}, 1, []string{"state_dir ", "not a directory"}},
		{"a state directory that cannot be", configuration(everything), []string{"--state-dir", "/proc/toolhub"}, 1, []string{"state_dir ", "/proc/toolhub"}},
		{"no NATS at nats.url", configuration(everything, "nats: {url: 'nats://127.0.0.1:1'}"), nil, 1, []string{"couldn't connect to NATS", "127.0.0.1:1"}},
		{"listening to the world", configuration(everything), []string{"--listen", "0.0.0.0:0"}, 2, []string{"--listen: ", "not a loopback address"}},
		{"a bad file", configuration("polcy: allow_all", "timeout: 3", "servers: {a: {builtin: nothing}}"), nil, 2, []string{
			`hub.yaml:3: polcy: is not known here; did you mean "policy"?`, "hub.yaml:4: timeout: ", "hub.yaml:1: policy: is required",
		}},
		{"an unknown builtin", configuration(everything, "servers:", "  a: {builtin: clocks}"), nil, 2, []string{"hub.yaml:5: servers.a.builtin: there is no builtin server \"clocks\"; write one of ", "clock"}},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			h := start(t, t.TempDir(), k.yaml, k.args...)
			if code := h.ended(); code != k.code {
				t.Errorf("exit code %d, want %d", code, k.code)
			}
			for _, text := range k.says {
				if !strings.Contains(h.log(), text) {
					t.Errorf("no %q in\n%s", text, h.log())
				}
			}
			if strings.Contains(h.log(), "is running") {
				t.Errorf("it says that it runs:\n%s", h.log())
			}
		})
	}
}

func TestUpTwice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := start(t, dir, configuration(everything))
	first.says("is running", 1)
	second := start(t, dir, configuration(everything))
	if code := second.ended(); code != 1 || !strings.Contains(second.log(), "state_dir ") || !strings.Contains(second.log(), "another hub is using it") {
		t.Errorf("exit code %d\n%s", code, second.log())
	}
	if code, _, errs := first.ask("servers"); code != 0 {
		t.Errorf("the first one suffered: %s", errs)
	}
	first.stop()
	if code, _, errs := first.ask("servers"); code != exitUnavailable || !strings.Contains(errs, "hub up") {
		t.Errorf("a hub that has ended: %d %s", code, errs)
	}
	third := start(t, dir, configuration(everything))
	third.says("is running", 1)
	third.stop()
}

func TestUpAnnounces(t *testing.T) { // R1
	t.Parallel()
	h := start(t, t.TempDir(), configuration("hub: mine", everything))
	h.says("Ctrl-C", 1)
	for _, want := range []string{
		`(?m)^hub mine is running$`, `(?m)^  endpoint  http://127\.0\.0\.1:[0-9]+/mcp$`, `(?m)^  nats      nats --server nats://127\.0\.0\.1:[0-9]+ --nkey \S+$`,
	} {
		if !regexp.MustCompile(want).MatchString(h.log()) {
			t.Errorf("no %s in\n%s", want, h.log())
		}
	}
	// Credentials are nobody else's.
	err := filepath.WalkDir(filepath.Join(h.dir, "state", "keys"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %s", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	h.stop()
}

// A changed file and SIGHUP are applied without a restart, and servers that did
// not change are not touched; a bad file changes nothing (R6).
func TestReload(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := start(t, dir, configuration(everything, "servers:", "  clock: {builtin: clock}", "  dice: {builtin: dice}"))
	h.eventually("dice__roll", "tools")
	clock := h.eventually("clock__now", "tools", "--server", "clock")
	before := stateOf(t, h, "clock")

	write(t, dir, configuration(everything, "servers:", "  clock: {builtin: clock}", "  dice: {builtin: dice, prefix: d_}", "  more: {builtin: dice}"))
	h.says("configuration applied", 1)
	h.eventually("d_roll", "tools")
	h.eventually("more__roll", "tools")

	write(t, dir, configuration(everything, "tmeout: 3s", "page_size: many", "servers:", "  clock: {command: x, builtin: clock}"))
	h.says("configuration not applied", 3)
	for _, want := range []string{"field=tmeout", "field=page_size", "field=servers.clock.builtin", "line=4", "line=5", "line=7"} {
		if !strings.Contains(h.log(), want) {
			t.Errorf("no %s in\n%s", want, h.log())
		}
	}
	if _, out, _ := h.ask("tools"); !strings.Contains(out, "d_roll") {
		t.Errorf("a bad file changed something:\n%s", out)
	}

	write(t, dir, configuration("policy: {deny: [dice/*], allow: ['*/*']}", "servers:", "  clock: {builtin: clock}", "  dice: {builtin: dice}"))
	h.says("configuration applied", 2)
	if code, _, errs := h.ask("call", "dice__roll"); code != exitDenied {
		t.Errorf("a new policy: %d %s", code, errs)
	}
	if err := h.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	h.says("configuration applied", 3)
	write(t, dir, configuration("hub: other", "policy: allow_all", "servers:", "  clock: {builtin: clock}"))
	h.says("configuration applied", 4)
	h.says("a change needs a restart of the hub", 1)

	if _, out, _ := h.ask("tools"); out != clock {
		t.Errorf("what is left:\n%s", out)
	}
	if after := stateOf(t, h, "clock"); after != before {
		t.Errorf("a server that did not change was touched: %+v became %+v", before, after)
	}
	h.stop()
}

type serverState struct {
	ID    string `json:"id"`
	State string `json:"state"`
	Since string `json:"since"`
	Epoch int    `json:"epoch"`
}

func stateOf(t *testing.T, h *upHub, id string) serverState {
	t.Helper()
	_, out, errs := h.ask("servers", "--json")
	var list struct{ Servers []serverState }
	if err := json.Unmarshal([]byte(out), &list, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatalf("%v: %s%s", err, out, errs)
	}
	for _, s := range list.Servers {
		if s.ID == id {
			return s
		}
	}
	t.Fatalf("no server %s: %s", id, out)
	return serverState{}
}

func TestUpStdio(t *testing.T) { // R4
	t.Parallel()
	h := start(t, t.TempDir(), configuration(everything, "servers:", "  clock: {builtin: clock}"), "--stdio")
	send := func(id uint64, method, params string) {
		if _, err := h.in.Write(append(mcp.AppendRequest(nil, mcp.IntID(id), method, []byte(params)), '\n')); err != nil {
			t.Fatal(err)
		}
	}
	send(1, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)
	h.says(`"id":1`, 1)
	h.eventually("clock__now", "tools")
	send(2, "tools/list", `{}`)
	h.says(`"id":2`, 1)
	for line := range strings.Lines(h.log()) {
		if strings.HasPrefix(line, "{") && strings.Contains(line, `"id":2`) && !strings.Contains(line, "clock__now") {
			t.Error(line)
		}
	}
	if strings.Contains(h.log(), "is running") || strings.Contains(h.log(), "endpoint") {
		t.Errorf("more than MCP on stdout:\n%s", h.log())
	}
	h.in.Close()
	if code := h.ended(); code != 0 {
		t.Errorf("the client went away: exit code %d\n%s", code, h.log())
	}
}

// A client that reads no more is gone, although it holds standard input open: the
// hub ends in order, and at once whatever runs for it.
func TestUpStdioClosedOutput(t *testing.T) { // R4
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, configuration("policy: allow_all", "drain_timeout: 10m", "servers:", "  t: {builtin: testbed}"))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "up", filepath.Join(dir, "hub.yaml"), "--state-dir", filepath.Join(dir, "state"), "--stdio")
	cmd.Env = append(os.Environ(), asHub+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	read, written, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	var errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = written, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	written.Close()
	h := &upHub{t: t, dir: dir}
	h.eventually("t__hang", "tools")
	lines := bufio.NewScanner(read)
	send := func(id uint64, method, params string) {
		t.Helper()
		if _, err := in.Write(append(mcp.AppendRequest(nil, mcp.IntID(id), method, []byte(params)), '\n')); err != nil {
			t.Fatal(err)
		}
	}
	send(1, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)
	send(2, "tools/call", `{"name":"t__hang","arguments":{}}`)
	send(3, "ping", `{}`)
	for lines.Scan() && !strings.Contains(lines.Text(), `"id":3`) {
	}
	read.Close()
	send(4, "ping", `{}`)
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		_ = cmd.Process.Kill()
		<-ended
		t.Fatalf("it does not end:\n%s", &errs)
	}
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("it ended with %s, want the exit code 0\n%s", cmd.ProcessState, &errs)
	}
	if strings.Contains(errs.String(), "level=ERROR") {
		t.Errorf("it was no orderly end:\n%s", &errs)
	}
	if _, err := os.Stat(filepath.Join(dir, "state", runningFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the hub still says that it runs: %v", err)
	}
}
