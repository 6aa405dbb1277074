package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/gofrs/flock"

	"toolhub/internal/bus"
	"toolhub/internal/bus/embedded"
	"toolhub/internal/config"
	"toolhub/internal/daemon"
	"toolhub/internal/mcp"
)

// connectTimeout bounds the way to the hub, not what is asked of it.
const connectTimeout = 5 * time.Second

// hubFlags say which hub an operator's command is for. Without any of them it
// is the one that runs on this machine.
type hubFlags struct {
	daemon.Bus
	StateDir string `name:"state-dir" type:"path" placeholder:"DIR" env:"TOOLHUB_STATE_DIR" help:"State directory of a hub on this machine."`
}

// operator is a connection to a hub's operator API.
type operator struct {
	conn *bus.Conn
	hub  string
}

// withOperator connects to the hub that the flags mean and runs f, which a
// signal interrupts.
func (h *hubFlags) withOperator(c *console, f func(ctx context.Context, o *operator) error) error {
	return daemon.Run(c.err, func(ctx context.Context) error {
		identity := "operator-" + strings.ToLower(rand.Text()[:10])
		cfg, err := h.busConfig(identity)
		if err != nil {
			return err
		}
		connectCtx, cancel := context.WithTimeout(ctx, connectTimeout)
		conn, err := bus.Connect(connectCtx, cfg)
		cancel()
		if err != nil {
			return &mcp.Fault{
				Kind: mcp.KindUnavailable, Reason: "no_connection", Retryable: true,
				Message: fmt.Sprintf("couldn't reach hub %q at %s: %v", cfg.Hub, cfg.URL, err),
			}
		}
		defer conn.Close()
		return f(ctx, &operator{conn: conn, hub: cfg.Hub})
	})
}

// busConfig is how to reach the hub that the flags mean.
func (h *hubFlags) busConfig(identity string) (bus.Config, error) {
	if h.NATS != "" {
		return h.Bus.Config(identity, nil, nil)
	}
	if h.NKey != "" || h.Creds != "" {
		return bus.Config{}, usageError{"--nkey and --creds go with --nats URL"}
	}
	r, err := h.running()
	if err != nil {
		return bus.Config{}, err
	}
	return bus.Config{Hub: r.Hub, Identity: identity, URL: r.NATS.URL, NKeyFile: r.NATS.NKey, CredsFile: r.NATS.Creds}, nil
}

// running finds the hub of this machine that the flags mean.
func (h *hubFlags) running() (*runningHub, error) {
	if h.StateDir != "" {
		r, err := readRunning(h.StateDir)
		if err == nil && h.Hub != "" && h.Hub != r.Hub {
			return nil, usageError{fmt.Sprintf("the state directory %s is that of hub %q, not %q", h.StateDir, r.Hub, h.Hub)}
		}
		return r, err
	}
	root, err := config.StateRoot()
	if err != nil {
		return nil, err
	}
	if h.Hub != "" {
		if err := config.ValidateHub(h.Hub); err != nil {
			return nil, usageError{err.Error()}
		}
		return readRunning(filepath.Join(root, h.Hub))
	}
	dirs, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("couldn't look for hubs: %w", err)
	}
	var found []*runningHub
	var names []string
	for _, d := range dirs {
		if r, err := readRunning(filepath.Join(root, d.Name())); err == nil {
			found = append(found, r)
			names = append(names, r.Hub)
		}
	}
	switch len(found) {
	case 0:
		return nil, mcp.NewFault(mcp.KindUnavailable, "no_hub", "no hub is running under %s; start one with: hub up FILE", root)
	case 1:
		return found[0], nil
	}
	return nil, usageError{fmt.Sprintf("several hubs are running: %s; say which with --hub NAME", strings.Join(names, ", "))}
}

// runningHub is what `hub up` leaves in its state directory while it runs, for
// the operator's commands on the same machine.
type runningHub struct {
	Hub string `json:"hub"`
	// Endpoint is the URL of the MCP endpoint, "" if the hub has none.
	Endpoint string      `json:"endpoint,omitzero"`
	NATS     config.NATS `json:"nats"`
}

const runningFile = "hub.json"

// write makes r known in dir.
func (r *runningHub) write(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, "."+runningFile)
	if err := os.WriteFile(tmp, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("couldn't write the state directory: %w", err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, runningFile)); err != nil {
		return fmt.Errorf("couldn't write the state directory: %w", err)
	}
	return nil
}

// readRunning reads what the hub in dir said of itself. The error is an
// unavailable fault if none runs there.
func readRunning(dir string) (*runningHub, error) {
	none := mcp.NewFault(mcp.KindUnavailable, "no_hub", "no hub is running with the state directory %s; start one with: hub up FILE", dir)
	data, err := os.ReadFile(filepath.Join(dir, runningFile))
	if errors.Is(err, fs.ErrNotExist) || !locked(filepath.Join(dir, embedded.LockFile)) {
		return nil, none
	} else if err != nil {
		return nil, fmt.Errorf("couldn't read the state directory: %w", err)
	}
	var r runningHub
	if err := json.Unmarshal(data, &r); err != nil || r.Hub == "" || r.NATS.URL == "" {
		return nil, fmt.Errorf("%s is damaged; a restart of the hub mends it", filepath.Join(dir, runningFile))
	}
	return &r, nil
}

// locked reports whether somebody holds the lock at path. Looking takes a
// shared lock, so that two who look do not see each other.
func locked(path string) bool {
	if _, err := os.Stat(path); err != nil {
		return false
	}
	l := flock.New(path)
	got, err := l.TryRLock()
	if got {
		_ = l.Unlock()
	}
	return err == nil && !got
}

// ask makes one request of the operator API. notify gets the notifications of
// the request; nil drops them. A zero timeout waits for as long as the hub does.
func (o *operator) ask(ctx context.Context, op string, params any, timeout time.Duration, notify func(method string, params jsontext.Value)) (jsontext.Value, error) {
	raw, err := json.Marshal(params, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("couldn't write the request: %w", err)
	}
	request := &bus.Request{
		Subject: bus.APISubject(o.hub, op),
		Body:    mcp.AppendRequest(nil, mcp.IntID(1), op, raw),
	}
	if timeout > 0 {
		request.Meta.Deadline = time.Now().Add(timeout)
	}
	reply, err := o.conn.Call(ctx, request, func(body []byte) {
		if notify == nil {
			return
		}
		if m, err := mcp.ParseMessage(body, mcp.Lenient); err == nil {
			notify(m.Method, m.Params)
		}
	})
	if err != nil {
		return nil, err
	}
	m, err := mcp.ParseMessage(reply.Body, mcp.Lenient)
	if err != nil {
		return nil, fmt.Errorf("the hub answered with what is no JSON-RPC: %w", err)
	}
	if m.Err != nil {
		if f := mcp.FaultOf(m.Err); f != nil {
			return nil, f
		}
		return nil, m.Err
	}
	return m.Result, nil
}

// listTimeout bounds requests that a router answers from what it holds.
const listTimeout = 10 * time.Second

// decode reads the part of an answer that a command shows. Members that it does
// not know are ignored: the hub may be newer.
func decode[T any](raw jsontext.Value) (T, error) {
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, fmt.Errorf("the hub answered with something unexpected: %w", err)
	}
	return v, nil
}
