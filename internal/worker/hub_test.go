package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/bus/embedded"
	"toolhub/internal/config"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// patience is how long tests wait for what must happen.
const patience = 30 * time.Second

// testHub is a NATS server, a worker, and what a router sees of it.
type testHub struct {
	t      testing.TB
	nats   *embedded.Server
	conn   *bus.Conn // of the router
	reg    *registry.Registry
	events *eventLog
	worker *testWorker
	log    *slog.Logger
	dir    string // of the NATS server
}

// startNATS starts the server, again if it was shut down, on port or any free one.
func (h *testHub) startNATS(port int) {
	h.t.Helper()
	srv, err := embedded.Start(context.Background(), embedded.Config{StateDir: h.dir, Port: port})
	if err != nil {
		h.t.Fatal(err)
	}
	h.nats = srv
}

// newTestHub starts a hub with the configuration and one worker, w1.
func newTestHub(t testing.TB, yaml string) *testHub {
	t.Helper()
	h := newIdleHub(t)
	h.apply(yaml)
	h.worker = h.startWorker("w1")
	return h
}

// newIdleHub starts a hub without a worker.
func newIdleHub(t testing.TB) *testHub {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	h := &testHub{t: t, log: log, dir: t.TempDir()}
	h.startNATS(0)
	t.Cleanup(func() { h.nats.Shutdown() })
	h.conn = h.connect("router-1")
	h.reg = registry.New(h.conn, nil)
	h.background(func(ctx context.Context) error { return h.reg.Run(ctx) })
	if err := h.reg.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.events = &eventLog{changed: make(chan struct{})}
	h.background(func(ctx context.Context) error { return h.conn.Events(ctx, "", time.Hour, h.events.add) })
	return h
}

func (h *testHub) connect(identity string) *bus.Conn {
	h.t.Helper()
	conn, err := bus.Connect(context.Background(), bus.Config{Hub: "test", Identity: identity, URL: h.nats.URL(), NKeyFile: h.nats.NKeyFile()})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(conn.Close)
	return conn
}

// background runs f until the end of the test.
func (h *testHub) background(f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	h.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			h.t.Errorf("background: %v", err)
		}
	})
}

// testWorker is a worker that runs.
type testWorker struct {
	conn *bus.Conn
	stop context.CancelCauseFunc
	done chan struct{}
	err  error // set before done is closed
}

var errTestEnds = errors.New("the test ends")

func (h *testHub) startWorker(id string) *testWorker {
	h.t.Helper()
	w := &testWorker{conn: h.connect(id), done: make(chan struct{})}
	ctx, cancel := context.WithCancelCause(context.Background())
	w.stop = cancel
	go func() {
		defer close(w.done)
		w.err = Run(ctx, Config{Conn: w.conn, Logger: h.log.With("worker", id)})
	}()
	h.t.Cleanup(func() {
		cancel(errTestEnds)
		select {
		case <-w.done:
		case <-time.After(patience):
			h.t.Errorf("worker %s does not end", id)
		}
	})
	return w
}

func (h *testHub) apply(yaml string) {
	h.t.Helper()
	f, err := config.Parse("hub.yaml", []byte(yaml))
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := registry.Apply(h.t.Context(), h.conn, f); err != nil {
		h.t.Fatal(err)
	}
}

// until waits for a view in which ok holds.
func (h *testHub) until(what string, ok func(*registry.View) bool) *registry.View {
	h.t.Helper()
	timeout := time.After(patience)
	for {
		v := h.reg.View()
		if ok(v) {
			return v
		}
		select {
		case <-v.Superseded():
		case <-timeout:
			var states []string
			for _, s := range v.Servers {
				states = append(states, fmt.Sprintf("%s: %s %+v", s.ID(), s.State(), s.Status))
			}
			h.t.Fatalf("the view never shows: %s; it shows %s", what, strings.Join(states, "; "))
		}
	}
}

// ready waits until the server takes calls.
func (h *testHub) ready(id string) *registry.Server {
	h.t.Helper()
	return h.until(id+" ready", func(v *registry.View) bool { return v.Get(id) != nil && v.Get(id).Ready() }).Get(id)
}

// state waits until the server is in the state.
func (h *testHub) state(id string, state registry.State) *registry.Server {
	h.t.Helper()
	return h.until(id+" "+string(state), func(v *registry.View) bool { return v.Get(id) != nil && v.Get(id).State() == state }).Get(id)
}

// testCall is a call as a router makes it.
type testCall struct {
	server, tool string
	args         string            // "" is {}
	meta         map[string]string // raw values, beside the capabilities
	caps         string            // "" is {}
	extra        string            // further members of params, with a comma in front
	principal    string
	epoch        uint64 // 0 is the current one
	subject      string // "" is that of the call
	id           string
	notify       func(body []byte)
	ctx          context.Context
}

func (c *testCall) body() []byte {
	meta := []string{`"` + mcp.MetaProtocolVersion + `":"` + mcp.LatestModern + `"`, `"` + mcp.MetaClientCapabilities + `":` + or(c.caps, "{}")}
	var names []string
	for name := range c.meta {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		meta = append(meta, fmt.Sprintf("%q:%s", name, c.meta[name]))
	}
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{%s}%s}}`,
		or(c.id, "7"), c.tool, or(c.args, "{}"), strings.Join(meta, ","), c.extra)
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// do makes the call and returns its result.
func (h *testHub) do(c testCall) (jsontext.Value, error) {
	h.t.Helper()
	subject := c.subject
	if subject == "" {
		epoch := c.epoch
		if epoch == 0 {
			epoch = h.ready(c.server).Epoch()
		}
		subject = bus.CallSubject("test", c.server, epoch, mcp.MethodToolsCall)
	}
	if c.ctx == nil {
		return h.ask(subject, c.body(), c.principal, c.notify)
	}
	return h.request(c.ctx, subject, c.body(), c.principal, c.notify)
}

// ask makes a request and waits for its answer.
func (h *testHub) ask(subject string, body []byte, principal string, notify func([]byte)) (jsontext.Value, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return h.request(ctx, subject, body, principal, notify)
}

func (h *testHub) request(ctx context.Context, subject string, body []byte, principal string, notify func([]byte)) (jsontext.Value, error) {
	reply, err := h.conn.Call(ctx, &bus.Request{Subject: subject, Body: body, Worker: "w1", Meta: bus.Meta{Principal: principal}}, notify)
	if err != nil {
		return nil, err
	}
	m, err := mcp.ParseMessage(reply.Body, mcp.Lenient)
	if err != nil {
		return nil, err
	}
	if m.Err != nil {
		return nil, m.Err
	}
	return m.Result, nil
}

// text calls a tool and returns the text of its result.
func (h *testHub) text(server, tool, args string) string {
	h.t.Helper()
	value, err := h.do(testCall{server: server, tool: tool, args: args})
	if err != nil {
		h.t.Fatalf("%s/%s: %v", server, tool, err)
	}
	return textOf(value)
}

// textOf is the text of the first content of a result.
func textOf(result jsontext.Value) string {
	content := mcp.Field(result, "content")
	dec := jsontext.NewDecoder(strings.NewReader(string(content)))
	if _, err := dec.ReadToken(); err != nil || dec.PeekKind() != '{' {
		return ""
	}
	first, err := dec.ReadValue()
	if err != nil {
		return ""
	}
	return mcp.FieldString(first, "text")
}

func faultOf(t testing.TB, err error) *mcp.Fault {
	t.Helper()
	f, ok := errors.AsType[*mcp.Fault](err)
	if !ok {
		t.Fatalf("%v (%T) is no fault", err, err)
	}
	return f
}

// eventLog has the events of the hub.
type eventLog struct {
	mu      sync.Mutex
	events  []bus.Event
	changed chan struct{} // closed with the next event
}

func (l *eventLog) add(e bus.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *eventLog) all(kind, subject, what string) ([]bus.Event, chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []bus.Event
	for _, e := range l.events {
		if e.Kind == kind && e.Subject == subject && (what == "" || e.What == what) {
			found = append(found, e)
		}
	}
	return found, l.changed
}

// event waits for the nth event (from 1) of that name.
func (h *testHub) event(kind, subject, what string, n int) bus.Event {
	h.t.Helper()
	timeout := time.After(patience)
	for {
		found, changed := h.events.all(kind, subject, what)
		if len(found) >= n {
			return found[n-1]
		}
		select {
		case <-changed:
		case <-timeout:
			h.t.Fatalf("event %s.%s.%s came %d times, wanted %d", kind, subject, what, len(found), n)
		}
	}
}

// field is a member of an event's data as raw JSON.
func field(e bus.Event, name string) string {
	v, _ := e.Data.(jsontext.Value)
	return string(mcp.Field(v, name))
}

// child is the YAML of a stdio server that is the test binary as the child of
// that name, with more lines of YAML.
func child(name string, more ...string) string {
	env := []string{}
	for k, v := range childEnviron(name) {
		env = append(env, fmt.Sprintf("%s: %q", k, v))
	}
	slices.Sort(env)
	return fmt.Sprintf("{command: %q, env: {%s}%s}", os.Args[0], strings.Join(env, ", "), strings.Join(append([]string{""}, more...), ", "))
}

func discardEvents(bus.Event) {}

func discardLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

// serverOf is a server of a view with the configuration, without a policy.
func serverOf(c config.Server) *registry.Server { return &registry.Server{Config: c} }
