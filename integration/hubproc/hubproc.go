// Package hubproc runs the hub's programs as real processes, for tests and for
// the conformance runner. It sees a hub as its users do: a command, a file, an
// endpoint, exit codes.
//
//	Build ──► Start(Config) ──► Hub ─┬─ Post, Call, Tools   one MCP request each
//	                                 ├─ Operator            one command of the operator's
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

// Config says how to run a hub, or a part of one.
type Config struct {
	// Binary is the path of the program.
	Binary string
	// Dir is a folder for this hub alone: its file is Dir/hub.yaml, its state is
	// in Dir/state. The hub's processes are found by this path.
	Dir string
	// YAML is the configuration, without listen and state_dir: the hub takes a
	// free port and a state folder in Dir. {dir} in it stands for Dir.
	YAML string
	// Args are those of the program; {file} stands for the file with the
	// configuration. Without any they are up {file}.
	Args []string
	// NoEndpoint says that the program serves no MCP to wait for.
	NoEndpoint bool
	// Env is added to the environment.
	Env []string
}

// Hub is a running hub.
type Hub struct {
	// URL is the endpoint's base, without /mcp.
	URL string
	// Dir is the folder of the hub.
	Dir string

	cfg  Config
	cmd  *exec.Cmd
	log  output
	done chan struct{} // closed once the process has ended and err is set
	err  error
}

var announced = regexp.MustCompile(`(http://127\.0\.0\.1:\d+)/mcp\b`)

// Start writes the file, starts the program and waits until it has said where
// its endpoint is and /readyz agrees. The error has what the program wrote.
func Start(ctx context.Context, cfg Config) (*Hub, error) {
	h := &Hub{Dir: cfg.Dir, cfg: cfg, done: make(chan struct{})}
	file, err := cfg.Write()
	if err != nil {
		return nil, err
	}
	args := []string{"up", file}
	if cfg.Args != nil {
		args = nil
		for _, arg := range cfg.Args {
			args = append(args, strings.ReplaceAll(arg, "{file}", file))
		}
	}
	h.log.changed = make(chan struct{})
	h.cmd = exec.Command(cfg.Binary, args...)
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
	if cfg.NoEndpoint {
		return h, nil
	}
	if err := h.ready(ctx); err != nil {
		h.Kill()
		return nil, fmt.Errorf("%w\n%s", err, h.Log())
	}
	return h, nil
}

// Again starts the program anew, with the same configuration and state.
func (h *Hub) Again(ctx context.Context) (*Hub, error) { return Start(ctx, h.cfg) }

// Configure replaces the configuration file; see [Config].YAML.
func (h *Hub) Configure(yaml string) error {
	h.cfg.YAML = yaml
	_, err := h.cfg.Write()
	return err
}

// Write writes the configuration file as an editor does, so that there is never
// half of it, and returns its path.
func (c *Config) Write() (file string, err error) {
	file = filepath.Join(c.Dir, "hub.yaml")
	if err := os.WriteFile(file+".new", []byte("listen: 127.0.0.1:0\nstate_dir: state\n"+strings.ReplaceAll(c.YAML, "{dir}", c.Dir)), 0o600); err != nil {
		return "", err
	}
	return file, os.Rename(file+".new", file)
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
			return fmt.Errorf("%s ended: %v", filepath.Base(h.cmd.Path), h.err)
		case <-ctx.Done():
			return fmt.Errorf("%s didn't say where its endpoint is", filepath.Base(h.cmd.Path))
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

// Operator runs a command of the operator's (servers, call, …) for this hub.
func (h *Hub) Operator(ctx context.Context, args ...string) (stdout, stderr string, code int) {
	cmd := exec.CommandContext(ctx, h.cfg.Binary, append(args, "--state-dir", filepath.Join(h.Dir, "state"))...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		return "", err.Error(), -1
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// PID is the hub's process id.
func (h *Hub) PID() int { return h.cmd.Process.Pid }

// Log is what the hub wrote to stdout and stderr so far.
func (h *Hub) Log() string {
	log, _ := h.log.read()
	return log
}

// Logged waits until the hub has written text.
func (h *Hub) Logged(ctx context.Context, text string) error {
	for {
		log, changed := h.log.read()
		if strings.Contains(log, text) {
			return nil
		}
		select {
		case <-changed:
		case <-h.done:
			if log, _ := h.log.read(); strings.Contains(log, text) {
				return nil
			}
			return fmt.Errorf("%s ended without writing %q", filepath.Base(h.cmd.Path), text)
		case <-ctx.Done():
			return fmt.Errorf("%s didn't write %q", filepath.Base(h.cmd.Path), text)
		}
	}
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
		return fmt.Errorf("%s had ended before: %v", filepath.Base(h.cmd.Path), h.err)
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
		return fmt.Errorf("%s didn't end after SIGTERM", filepath.Base(h.cmd.Path))
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
