package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"toolhub/internal/worker"
)

// asHub makes this test binary be the program itself.
const asHub = "TOOLHUB_TEST_AS_HUB"

func TestMain(m *testing.M) {
	worker.ReapMain()
	if os.Getenv(asHub) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// hub runs a command line in this process.
func hub(args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(args, &console{in: strings.NewReader(""), out: &o, err: &e})
	return code, o.String(), e.String()
}

// upHub is `hub up` as a process of its own.
type upHub struct {
	t    *testing.T
	dir  string
	cmd  *exec.Cmd
	in   io.WriteCloser
	done chan struct{} // closed once it has ended
	code int

	mu    sync.Mutex
	text  strings.Builder // guarded by mu: what it wrote so far
	wrote chan struct{}
}

// start runs `hub up` with dir/hub.yaml and further arguments.
func start(t *testing.T, dir, yaml string, args ...string) *upHub {
	t.Helper()
	write(t, dir, yaml)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := &upHub{t: t, dir: dir, done: make(chan struct{}), wrote: make(chan struct{}, 1)}
	h.cmd = exec.Command(self, append([]string{"up", filepath.Join(dir, "hub.yaml"), "--state-dir", filepath.Join(dir, "state")}, args...)...)
	h.cmd.Env = append(os.Environ(), asHub+"=1")
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	h.cmd.Stdout, h.cmd.Stderr = w, w
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(r); lines.Scan(); {
			h.mu.Lock()
			h.text.WriteString(lines.Text() + "\n")
			h.mu.Unlock()
			select {
			case h.wrote <- struct{}{}:
			default:
			}
		}
	}()
	go func() {
		_ = h.cmd.Wait()
		w.Close()
		<-read
		h.code = h.cmd.ProcessState.ExitCode()
		close(h.done)
	}()
	t.Cleanup(func() {
		_ = h.cmd.Process.Kill()
		<-h.done
	})
	return h
}

func write(t *testing.T, dir, yaml string) {
	t.Helper()
	// As editors do it: a new file in the place of the old one.
	path := filepath.Join(dir, "hub.yaml")
	if err := os.WriteFile(path+".new", []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func (h *upHub) log() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.String()
}

// says waits until the hub has written text n times.
func (h *upHub) says(text string, n int) {
	h.t.Helper()
	timeout := time.After(30 * time.Second)
	for strings.Count(h.log(), text) < n {
		select {
		case <-h.wrote:
		case <-h.done:
			if strings.Count(h.log(), text) < n {
				h.t.Fatalf("it ended with %d without %q:\n%s", h.code, text, h.log())
			}
		case <-timeout:
			h.t.Fatalf("it does not say %q:\n%s", text, h.log())
		}
	}
}

// ended waits for the end and returns the exit code.
func (h *upHub) ended() int {
	h.t.Helper()
	select {
	case <-h.done:
	case <-time.After(30 * time.Second):
		h.t.Fatalf("it does not end:\n%s", h.log())
	}
	return h.code
}

// stop ends it as systemd would.
func (h *upHub) stop() {
	h.t.Helper()
	if err := h.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		h.t.Fatal(err)
	}
	if code := h.ended(); code != 0 {
		h.t.Errorf("SIGTERM: exit code %d\n%s", code, h.log())
	}
}

// ask runs an operator's command at this hub.
func (h *upHub) ask(args ...string) (code int, out, errs string) {
	return hub(append(args, "--state-dir", filepath.Join(h.dir, "state"))...)
}

// eventually runs an operator's command until its output has text.
func (h *upHub) eventually(text string, args ...string) string {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		_, out, errs := h.ask(args...)
		if strings.Contains(out, text) {
			return out
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			h.t.Fatalf("hub %s does not show %q:\n%s%s\n%s", strings.Join(args, " "), text, out, errs, h.log())
		}
	}
}

// config is a file with these lines behind those that every test wants.
func configuration(lines ...string) string {
	return "listen: 127.0.0.1:0\nrestart_backoff: {initial: 50ms, max: 100ms}\n" + strings.Join(lines, "\n") + "\n"
}

const everything = "policy: {deny: [testbed/fail_rpc], ask: [testbed/ask], allow: ['*/*']}"

func fmtArgs(args []string) string { return fmt.Sprintf("hub %s", strings.Join(args, " ")) }
