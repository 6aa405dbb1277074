package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/bus/embedded"
	"toolhub/internal/catalog"
	"toolhub/internal/config"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// patience is how long tests wait for what must happen; nothing waits for it to pass.
const patience = 20 * time.Second

// testHub is a hub with a real NATS server, the engine of a router, and a worker
// that is played by the test: it claims, publishes and serves as a real one does.
type testHub struct {
	t      testing.TB
	nats   *embedded.Server
	conn   *bus.Conn // the router's
	engine *engine

	worker   *bus.Conn
	registry *registry.Registry // the worker's
}

func newTestHub(t testing.TB, yaml string) *testHub {
	t.Helper()
	h := newIdleHub(t, yaml)
	h.engine = newEngine(h.conn, h.discard())
	h.background(h.engine.run)
	if err := h.engine.registry.WaitSynced(h.ctx()); err != nil {
		t.Fatal(err)
	}
	return h
}

// newIdleHub is one whose router does not run yet.
func newIdleHub(t testing.TB, yaml string) *testHub {
	t.Helper()
	return newIdleHubOn(t, yaml, embedded.Config{})
}

func newIdleHubOn(t testing.TB, yaml string, nats embedded.Config) *testHub {
	t.Helper()
	h := &testHub{t: t}
	var err error
	nats.StateDir = t.TempDir()
	h.nats, err = embedded.Start(t.Context(), nats)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.nats.Shutdown)
	h.conn, h.worker = h.connect("router-r1"), h.connect("worker-w1")
	h.apply(yaml)
	h.registry = registry.New(h.worker, nil)
	h.background(h.registry.Run)
	if err := h.registry.WaitSynced(h.ctx()); err != nil {
		t.Fatal(err)
	}
	if _, err := h.worker.AcquireLease(h.ctx(), h.worker.Identity(), "i1", nil, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *testHub) discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// ctx bounds what a test waits for.
func (h *testHub) ctx() context.Context {
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	h.t.Cleanup(cancel)
	return ctx
}

func (h *testHub) connect(identity string) *bus.Conn {
	h.t.Helper()
	conn, err := bus.Connect(h.ctx(), bus.Config{Hub: "test", Identity: identity, InProcess: h.nats.InProcess(), NKeyFile: h.nats.NKeyFile()})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(conn.Close)
	return conn
}

func (h *testHub) background(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	h.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			h.t.Errorf("in the background: %v", err)
		}
	})
}

func (h *testHub) apply(yaml string) {
	h.t.Helper()
	f, err := config.Parse("hub.yaml", []byte(yaml))
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := registry.Apply(h.ctx(), h.worker, f); err != nil {
		h.t.Fatal(err)
	}
}

// until waits for a View of the router in which ok holds.
func (h *testHub) until(what string, ok func(*registry.View) bool) *registry.View {
	h.t.Helper()
	timeout := time.After(patience)
	for {
		v := h.engine.registry.View()
		if ok(v) {
			return v
		}
		select {
		case <-v.Superseded():
		case <-timeout:
			h.t.Fatalf("the view never shows: %s", what)
		}
	}
}

// server is one server of the test's worker, in one epoch.
type server struct {
	h       *testHub
	id      string
	epoch   uint64
	service *bus.Service
	calls   chan *bus.Incoming // all that came
}

// echo answers with the params that came.
func echo(_ context.Context, in *bus.Incoming) (bus.Reply, error) {
	m, err := mcp.ParseMessage(in.Body, mcp.Strict)
	if err != nil {
		return bus.Reply{}, err
	}
	return bus.Reply{Body: mcp.AppendResult(nil, m.ID, append(append([]byte(`{"resultType":"complete","echo":`), m.Params...), '}'))}, nil
}

// start claims the server, serves its calls with handle, and waits until the
// router takes it for ready.
func (h *testHub) start(id string, handle bus.Handler, tools ...string) *server {
	h.t.Helper()
	return h.startDefs(id, handle, defs(tools...))
}

func (h *testHub) startDefs(id string, handle bus.Handler, tools []jsontext.Value) *server {
	h.t.Helper()
	s := h.claim(id, handle)
	s.publish(tools)
	s.status(registry.Status{State: registry.StateUp})
	if h.engine != nil {
		h.until(id+" ready", s.isReady)
	}
	return s
}

func (s *server) isReady(v *registry.View) bool {
	got := v.Get(s.id)
	return got != nil && got.Ready() && got.Epoch() == s.epoch
}

func (h *testHub) claim(id string, handle bus.Handler) *server {
	h.t.Helper()
	epoch, err := h.registry.Claim(h.ctx(), h.worker.Identity(), "i1", id)
	if err != nil {
		h.t.Fatal(err)
	}
	s := &server{h: h, id: id, epoch: epoch, calls: make(chan *bus.Incoming, 10_000)}
	s.service, err = h.worker.Serve(bus.ServeSubject("test", id, epoch), "", 0, func(ctx context.Context, in *bus.Incoming) (bus.Reply, error) {
		select {
		case s.calls <- in:
		default: // benchmarks do not count
		}
		return handle(ctx, in)
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (s *server) publish(tools []jsontext.Value) {
	s.h.t.Helper()
	s.publishLists(catalog.Lists{Tools: tools})
}

func (s *server) publishLists(lists catalog.Lists) {
	s.h.t.Helper()
	info := mcp.ServerInfo{Era: mcp.EraModern, Version: mcp.LatestModern, Instructions: "use " + s.id}
	if err := s.h.registry.PublishCatalog(s.h.ctx(), s.epoch, catalog.New(s.id, info, lists)); err != nil {
		s.h.t.Fatal(err)
	}
}

func (s *server) status(st registry.Status) {
	s.h.t.Helper()
	if err := s.h.registry.PublishStatus(s.h.ctx(), s.h.worker.Identity(), s.id, s.epoch, st); err != nil {
		s.h.t.Fatal(err)
	}
}

func (s *server) unclaim() {
	s.h.t.Helper()
	if err := s.h.registry.Unclaim(s.h.ctx(), s.id, s.epoch); err != nil {
		s.h.t.Fatal(err)
	}
}

// none fails if any call came.
func (s *server) none() {
	s.h.t.Helper()
	select {
	case in := <-s.calls:
		s.h.t.Errorf("%s got a call: %s", s.id, in.Body)
	default:
	}
}

func defs(names ...string) []jsontext.Value {
	var out []jsontext.Value
	for _, name := range names {
		out = append(out, jsontext.Value(fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"},"x":12345678901234567890}`, name)))
	}
	return out
}

// toolRequest is a tools/call as a front makes it.
func toolRequest(id, name, arguments string) *request {
	return &request{
		id: jsontext.Value(id), method: mcp.MethodToolsCall, name: name,
		params: jsontext.Value(`{"name":"` + name + `","arguments":` + arguments + `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}`),
		caller: caller{principal: "alice", era: mcp.EraModern},
	}
}

// names are the exposed names in the caller's list.
func (h *testHub) names(scope string, c caller) string {
	var names []string
	for _, e := range h.engine.list(scope, c).set.Entries {
		names = append(names, e.Exposed)
	}
	return strings.Join(names, " ")
}

// faultIn is the fault that an answer carries, nil if it carries none.
func faultIn(a answer) *mcp.Fault {
	if a.err == nil {
		return nil
	}
	return mcp.FaultOf(a.err)
}

// events collects the events of the hub from now on that match filter.
func (h *testHub) events(filter string) *eventLog {
	h.t.Helper()
	l := &eventLog{t: h.t, changed: make(chan struct{}, 1)}
	h.background(func(ctx context.Context) error {
		return h.worker.Events(ctx, filter, time.Hour, func(e bus.Event) {
			l.mu.Lock()
			l.all = append(l.all, e)
			l.mu.Unlock()
			select {
			case l.changed <- struct{}{}:
			default:
			}
		})
	})
	return l
}

type eventLog struct {
	t       testing.TB
	changed chan struct{}

	mu  sync.Mutex
	all []bus.Event
}

// until waits until ok holds for what came.
func (l *eventLog) until(what string, ok func([]bus.Event) bool) []bus.Event {
	l.t.Helper()
	timeout := time.After(patience)
	for {
		l.mu.Lock()
		all := append([]bus.Event(nil), l.all...)
		l.mu.Unlock()
		if ok(all) {
			return all
		}
		select {
		case <-l.changed:
		case <-timeout:
			l.t.Fatalf("no event: %s; there are %v", what, all)
		}
	}
}
