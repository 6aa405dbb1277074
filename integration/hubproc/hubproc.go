// Package hubproc runs `hub up` as a real process, for tests and for the
// conformance runner. It sees the hub as its users do: a command, a file, an
// endpoint, exit codes.
//
//	Build ──► Start(Config) ──► Hub ─┬─ Post, Call, Tools   one MCP request each
//	                                 ├─ Log                 what it wrote so far
//	                                 └─ Stop, Kill          and Processes must be none
package hubproc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Build compiles packages of this module, or of its dependencies, into dir. The
// binaries are called as the packages. Flags are for the go command, such as
// -race.
func Build(ctx context.Context, dir string, flags []string, packages ...string) error {
	args := append([]string{"build", "-o", dir + string(filepath.Separator)}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, packages...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("couldn't build %v: %w\n%s", packages, err, out)
	}
	return nil
}

// Config says how to run a hub.
type Config struct {
	// Binary is the path of the hub command.
	Binary string
	// Dir is a folder for this hub alone: its file is Dir/hub.yaml, its state is
	// in Dir/state. The hub's processes are found by this path.
	Dir string
	// YAML is the configuration, without listen and state_dir: the hub takes a
	// free port and a state folder in Dir.
	YAML string
	// Args follow `hub up FILE`.
	Args []string
	// Env is added to the environment.
	Env []string
}

// Hub is a running hub.
type Hub struct {
	// URL is the endpoint's base, without /mcp.
	URL string
	// Dir is the folder of the hub.
	Dir string

	cmd  *exec.Cmd
	log  output
	done chan struct{} // closed once the process has ended and err is set
	err  error
}

var announced = regexp.MustCompile(`(http://127\.0\.0\.1:\d+)/mcp\b`)

// Start writes the file, starts the hub and waits until it has said where its
// endpoint is and /readyz agrees. The error has what the hub wrote.
func Start(ctx context.Context, cfg Config) (*Hub, error) {
	yaml := "listen: 127.0.0.1:0\nstate_dir: state\n" + cfg.YAML
	file := filepath.Join(cfg.Dir, "hub.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		return nil, err
	}
	h := &Hub{Dir: cfg.Dir, done: make(chan struct{})}
	h.log.changed = make(chan struct{})
	h.cmd = exec.Command(cfg.Binary, append([]string{"up", file}, cfg.Args...)...)
	h.cmd.Env = append(os.Environ(), cfg.Env...)
	h.cmd.Stdout, h.cmd.Stderr = &h.log, &h.log
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's ^C is for the test
	// A child that outlives the hub must not keep Wait from returning.
	h.cmd.WaitDelay = time.Second
	if err := h.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		h.err = h.cmd.Wait()
		close(h.done)
	}()
	if err := h.ready(ctx); err != nil {
		h.Kill()
		return nil, fmt.Errorf("%w\n%s", err, h.Log())
	}
	return h, nil
}

func (h *Hub) ready(ctx context.Context) error {
	for h.URL == "" {
		log, changed := h.log.read()
		if m := announced.FindStringSubmatch(log); m != nil {
			h.URL = m[1]
			break
		}
		select {
		case <-changed:
		case <-h.done:
			return fmt.Errorf("hub up ended: %v", h.err)
		case <-ctx.Done():
			return errors.New("hub up didn't say where its endpoint is")
		}
	}
	return Until(ctx, func() error {
		return h.get(ctx, "/readyz")
	})
}

func (h *Hub) get(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.URL+path, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s says %s", path, res.Status)
	}
	return nil
}

// Until calls check until it returns nil, every 20 ms, and returns its last
// error when ctx ends first.
func Until(ctx context.Context, check func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// PID is the hub's process id.
func (h *Hub) PID() int { return h.cmd.Process.Pid }

// Log is what the hub wrote to stdout and stderr so far.
func (h *Hub) Log() string {
	log, _ := h.log.read()
	return log
}

// Done is closed when the process has ended.
func (h *Hub) Done() <-chan struct{} { return h.done }

// Signal sends a signal to the hub's process alone.
func (h *Hub) Signal(s os.Signal) error { return h.cmd.Process.Signal(s) }

// Stop asks the hub to end (SIGTERM) and returns its exit error, nil for 0.
// When ctx ends first the hub is killed and the error says so.
func (h *Hub) Stop(ctx context.Context) error {
	select {
	case <-h.done:
		return fmt.Errorf("hub up had ended before: %v", h.err)
	default:
	}
	if err := h.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-h.done:
		return h.err
	case <-ctx.Done():
		h.Kill()
		return errors.New("hub up didn't end after SIGTERM")
	}
}

// Kill ends the hub with SIGKILL and waits for it.
func (h *Hub) Kill() {
	_ = h.cmd.Process.Kill() // it may have ended by itself
	<-h.done
}

// FreeAddr returns a loopback address that was free a moment ago, for a
// program that cannot take port 0.
func FreeAddr() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

// output keeps what a process writes.
type output struct {
	mu      sync.Mutex // guards both
	text    strings.Builder
	changed chan struct{} // closed and replaced when text grows
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
	return o.text.Write(p)
}

func (o *output) read() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String(), o.changed
}
