package registry_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.uber.org/goleak"

	"toolhub/internal/bus"
	"toolhub/internal/bus/embedded"
	"toolhub/internal/catalog"
	"toolhub/internal/config"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hub is a NATS server with one connection and one registry on it.
type hub struct {
	*registry.Registry
	t    *testing.T
	srv  *embedded.Server
	conn *bus.Conn
}

func newHub(t *testing.T) *hub {
	t.Helper()
	srv, err := embedded.Start(t.Context(), embedded.Config{StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Shutdown)
	return join(t, srv, "worker.w1")
}

// join is one more process of the hub on srv.
func join(t *testing.T, srv *embedded.Server, identity string) *hub {
	t.Helper()
	conn, err := bus.Connect(t.Context(), bus.Config{Hub: "test", Identity: identity, InProcess: srv.InProcess(), NKeyFile: srv.NKeyFile()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	h := &hub{Registry: registry.New(conn, nil), t: t, srv: srv, conn: conn}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	if err := h.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	return h
}

// until waits for a view in which ok holds.
func (h *hub) until(what string, ok func(*registry.View) bool) *registry.View {
	h.t.Helper()
	timeout := time.After(time.Minute)
	for {
		v := h.View()
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

func (h *hub) apply(yaml string) registry.Diff {
	h.t.Helper()
	f, err := config.Parse("hub.yaml", []byte(yaml))
	if err != nil {
		h.t.Fatal(err)
	}
	d, err := registry.Apply(h.t.Context(), h.conn, f)
	if err != nil {
		h.t.Fatal(err)
	}
	return d
}

func (h *hub) lease(worker, incarnation string) *bus.Lease {
	h.t.Helper()
	l, err := h.conn.AcquireLease(h.t.Context(), worker, incarnation, nil, 3*time.Second)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = l.Release(context.Background()) })
	return l
}

func (h *hub) claim(worker, incarnation, server string) uint64 {
	h.t.Helper()
	epoch, err := h.Claim(h.t.Context(), worker, incarnation, server)
	if err != nil {
		h.t.Fatal(err)
	}
	return epoch
}

func (h *hub) serve(worker, server string, epoch uint64, tools ...string) {
	h.t.Helper()
	if err := h.PublishCatalog(h.t.Context(), epoch, listing(server, tools...)); err != nil {
		h.t.Fatal(err)
	}
	if err := h.PublishStatus(h.t.Context(), worker, server, epoch, registry.Status{State: registry.StateUp}); err != nil {
		h.t.Fatal(err)
	}
}

func listing(server string, tools ...string) *catalog.Catalog {
	var defs []jsontext.Value
	for _, name := range tools {
		defs = append(defs, jsontext.Value(fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"},"x":12345678901234567890}`, name)))
	}
	return catalog.New(server, mcp.ServerInfo{Era: mcp.EraModern, Version: mcp.LatestModern}, catalog.Lists{Tools: defs})
}

func ids(v *registry.View) string {
	var out []string
	for _, s := range v.Servers {
		out = append(out, s.ID())
	}
	return strings.Join(out, " ")
}

func ready(id string) func(*registry.View) bool {
	return func(v *registry.View) bool { return v.Get(id) != nil && v.Get(id).Ready() }
}

func gone(id string) func(*registry.View) bool {
	return func(v *registry.View) bool { return v.Get(id) == nil || !v.Get(id).Ready() }
}

func TestApply(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	if v := h.View(); v.Configured || len(v.Servers) != 0 || !v.Live {
		t.Fatalf("an empty hub shows %+v", v)
	}
	first := h.apply("policy: allow_all\nservers:\n  zeta: {builtin: clock}\n  alpha: {builtin: dice}\n")
	if fmt.Sprint(first.Added) != "[zeta alpha]" || !first.Settings {
		t.Errorf("first apply: %+v", first)
	}
	v := h.until("both servers", func(v *registry.View) bool { return v.Configured && len(v.Servers) == 2 })
	if ids(v) != "zeta alpha" {
		t.Errorf("order %q, want that of the file (L1)", ids(v))
	}
	if v.Policy == nil || v.Get("zeta").Policy != v.Policy {
		t.Error("a server without a policy of its own must have the hub's")
	}
	if v.Settings.MaxServers != 32 {
		t.Errorf("defaults are not filled in: max_servers is %d", v.Settings.MaxServers)
	}
	if d := h.apply("policy: allow_all\nservers:\n  zeta: {builtin: clock}\n  alpha: {builtin: dice}\n"); !reflect.DeepEqual(d, registry.Diff{}) {
		t.Errorf("the same file again changes %+v", d)
	}
	d := h.apply("policy: {allow: ['*/*']}\nservers:\n  alpha: {builtin: dice, policy: allow_all}\n")
	if fmt.Sprint(d.Changed, d.Removed, d.Added) != "[alpha] [zeta] []" || !d.Settings {
		t.Errorf("changed file: %+v", d)
	}
	v = h.until("zeta gone", func(v *registry.View) bool { return ids(v) == "alpha" && v.Get("alpha").Policy != v.Policy })
	if v.Policy.AllowAll() || !v.Get("alpha").Policy.AllowAll() {
		t.Error("the policies of hub and server are mixed up")
	}
}

// Whatever changes a policy in force is an event that says whose (E1).
func TestPolicyChangesAreEvents(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	// A server that no file knows goes by a named policy too.
	runtime, err := json.Marshal(registry.Definition{
		Server: config.Server{ID: "r", Builtin: "clock", Policy: &config.Policy{Name: "p"}}, Source: registry.SourceRuntime, Added: time.Now(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.conn.Put(t.Context(), bus.BucketDefs, bus.Key(bus.KeyServer, "r"), runtime, bus.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	events := make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.conn.Events(ctx, bus.EventFilter("policy", "test", "changed"), time.Hour, func(e bus.Event) { events <- fmt.Sprintf("%s", e.Data) })
	}()
	defer func() { cancel(); <-done }()
	hubs := "policies: {p: {deny: [a/x]}, q: {deny: [a/x]}}\n"
	for _, step := range []struct{ what, settings, servers, want string }{
		{"a new hub", "policy: allow_all\n" + hubs, "a: {builtin: clock}\n  b: {builtin: clock, policy: p}\n  c: {builtin: clock, policy: {deny: [c/y]}}\n", `{"settings":true,"servers":["r"]}`},
		{"a server's own policy", "policy: allow_all\n" + hubs, "a: {builtin: clock}\n  b: {builtin: clock, policy: p}\n  c: {builtin: clock, policy: {deny: [c/z]}}\n", `{"settings":false,"servers":["c"]}`},
		{"to the hub's, and from it", "policy: allow_all\n" + hubs, "a: {builtin: clock, policy: allow_all}\n  b: {builtin: clock, policy: p}\n  c: {builtin: clock}\n", `{"settings":false,"servers":["a","c"]}`},
		{"another name of the same rules, and lines", "policy: allow_all\n" + hubs, "d: {builtin: clock}\n  a: {builtin: clock, policy: allow_all}\n  b: {builtin: clock, policy: q}\n  c: {builtin: clock}\n", ""},
		{"the hub's own policy", "policy: {deny: [a/x]}\n" + hubs, "a: {builtin: clock, policy: allow_all}\n  b: {builtin: clock, policy: p}\n", `{"settings":true,"servers":[]}`},
		{"a named policy", "policy: {deny: [a/x]}\npolicies: {p: {deny: [a/w]}}\n", "a: {builtin: clock, policy: allow_all}\n  b: {builtin: clock, policy: p}\n", `{"settings":true,"servers":["b","r"]}`},
		{"nothing", "policy: {deny: [a/x]}\npolicies: {p: {deny: [a/w]}}\n", "a: {builtin: clock, policy: allow_all}\n  b: {builtin: clock, policy: p}\n", ""},
		{"the end", "policy: allow_all\npolicies: {p: {deny: [a/w]}}\n", "a: {builtin: clock}\n", `{"settings":true,"servers":["a"]}`},
	} {
		h.apply(step.settings + "servers:\n  " + step.servers)
		if step.want == "" {
			continue // the next event would be it
		}
		select {
		case got := <-events:
			if got != step.want {
				t.Errorf("%s: the event says %s, want %s", step.what, got, step.want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: no event", step.what)
		}
	}
}

func TestReadyNeedsLeaseStatusAndCatalogOfOneEpoch(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.apply("policy: allow_all\nservers:\n  a: {builtin: clock}\n")
	h.until("a defined", func(v *registry.View) bool { return v.Get("a") != nil })

	l1 := h.lease("w1", "i1")
	e1 := h.claim("w1", "i1", "a")
	h.until("owned", func(v *registry.View) bool { return v.Get("a").Epoch() == e1 })
	if h.View().Get("a").Ready() || h.View().Get("a").State() != registry.StateStarting {
		t.Error("a server without status and catalog counts as ready")
	}
	h.serve("w1", "a", e1, "old")
	v := h.until("ready", ready("a"))
	if got := v.Get("a").Catalog.Tools[0].Name; got != "old" {
		t.Errorf("tool %q", got)
	}

	// Another worker may not have it while the lease lives.
	if _, err := h.Claim(t.Context(), "w2", "i2", "a"); !errors.Is(err, registry.ErrOwned) {
		t.Fatalf("claim of an owned server: %v", err)
	}
	if err := l1.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	v = h.until("not ready without a lease", gone("a"))
	if v.Get("a").State() != registry.StateDown || v.Get("a").Epoch() != 0 {
		t.Errorf("without a lease: state %s, epoch %d", v.Get("a").State(), v.Get("a").Epoch())
	}

	h.lease("w2", "i2")
	e2 := h.claim("w2", "i2", "a")
	if e2 <= e1 {
		t.Fatalf("epoch went from %d to %d", e1, e2)
	}
	v = h.until("new owner", func(v *registry.View) bool { return v.Get("a").Epoch() == e2 })
	if v.Get("a").Ready() {
		t.Error("the catalog of the old epoch is still offered")
	}
	if c := v.Get("a").Catalog; c == nil || c.Tools[0].Name == "new" {
		t.Error("the names of the old epoch are forgotten")
	}
	// The stale owner is stopped by the server, whatever it believes.
	if err := h.PublishCatalog(t.Context(), e1, listing("a", "stale")); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("stale catalog: %v", err)
	}
	if err := h.PublishStatus(t.Context(), "w1", "a", e1, registry.Status{State: registry.StateUp}); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("stale status: %v", err)
	}
	if err := h.Unclaim(t.Context(), "a", e1); err != nil {
		t.Errorf("giving up what is over: %v", err)
	}
	h.serve("w2", "a", e2, "new")
	if got := h.until("ready again", ready("a")).Get("a").Catalog.Tools[0].Name; got != "new" {
		t.Errorf("tool %q", got)
	}
	if err := h.Unclaim(t.Context(), "a", e2); err != nil {
		t.Fatal(err)
	}
	h.until("given up", gone("a"))
}

func TestEndIncarnations(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.apply("policy: allow_all\nservers:\n  a: {builtin: clock}\n")
	l := h.lease("local", "killed")
	h.claim("local", "killed", "a")
	if err := registry.EndIncarnations(t.Context(), h.conn, "local"); err != nil {
		t.Fatal(err)
	}
	h.lease("local", "next")
	epoch := h.claim("local", "next", "a") // at once, although the old lease had time left
	h.until("new epoch", func(v *registry.View) bool { return v.Get("a") != nil && v.Get("a").Epoch() == epoch })
	<-l.Lost()
}

func TestLargeCatalog(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.apply("policy: allow_all\nservers:\n  big: {builtin: clock}\n")
	h.lease("w1", "i1")
	epoch := h.claim("w1", "i1", "big")
	// Names that do not compress, so that the catalog needs several parts.
	var defs []jsontext.Value
	var x uint64 = 88172645463325252
	for i := range 10_000 {
		var noise strings.Builder
		for range 6 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			fmt.Fprintf(&noise, "%016x", x)
		}
		defs = append(defs, jsontext.Value(fmt.Sprintf(`{"name":"t%d","description":%q,"inputSchema":{"type":"object"}}`, i, noise.String())))
	}
	want := catalog.New("big", mcp.ServerInfo{}, catalog.Lists{Tools: defs})
	if err := h.PublishCatalog(t.Context(), epoch, want); err != nil {
		t.Fatal(err)
	}
	if err := h.PublishStatus(t.Context(), "w1", "big", epoch, registry.Status{State: registry.StateUp}); err != nil {
		t.Fatal(err)
	}
	got := h.until("the large catalog", ready("big")).Get("big").Catalog
	if got.Revision != want.Revision || len(got.Tools) != len(want.Tools) {
		t.Fatalf("%d tools of revision %s arrived, want %d of %s", len(got.Tools), got.Revision, len(want.Tools), want.Revision)
	}
	parts := func() int {
		list, err := h.conn.List(t.Context(), bus.BucketReg, bus.KeyFilter(bus.KeyPart))
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	n := parts()
	if n < 2 {
		t.Fatalf("%d parts: the test wants several", n)
	}
	later := time.Now().Add(time.Hour)
	if err := h.SweepParts(t.Context(), later); err != nil || parts() != n {
		t.Errorf("the sweep took parts in use: %d of %d left, %v", parts(), n, err)
	}
	h.serve("w1", "big", epoch, "small")
	h.until("the small catalog", func(v *registry.View) bool { return len(v.Get("big").Catalog.Tools) == 1 })
	if err := h.SweepParts(t.Context(), time.Now()); err != nil || parts() != n {
		t.Errorf("the sweep took fresh parts: %d of %d left, %v", parts(), n, err)
	}
	if err := h.SweepParts(t.Context(), later); err != nil || parts() != 0 {
		t.Errorf("%d parts left behind, %v", parts(), err)
	}
}

// Whatever a foreign program writes into the buckets, the rest of the view stays.
func TestForeignEntries(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.apply("policy: allow_all\nservers:\n  a: {builtin: clock}\n  b: {builtin: dice}\n")
	h.lease("w1", "i1")
	h.serve("w1", "a", h.claim("w1", "i1", "a"), "fine")
	h.until("a ready", ready("a"))
	for _, e := range []struct{ bucket, key, value string }{
		{bus.BucketDefs, bus.Key(bus.KeyServer, "b"), `{"server":`},
		{bus.BucketDefs, bus.Key(bus.KeyServer, "c"), `{"server":{"id":"other"}}`},
		{bus.BucketDefs, "nonsense", `x`},
		{bus.BucketReg, bus.Key(bus.KeyOwn, "b"), `[]`},
		{bus.BucketReg, bus.Key(bus.KeyStatus, "a", "w2"), `{"state":"up","epoch":1}`},
		{bus.BucketReg, bus.Key(bus.KeyCatalog, "b"), `{"epoch":1,"inline":"AAAA"}`},
		{bus.BucketReg, "own", `1`},
		{bus.BucketReg, bus.Key(bus.KeyPart, "x"), strings.Repeat("x", 1000)},
	} {
		if _, err := h.conn.Put(t.Context(), e.bucket, e.key, []byte(e.value), bus.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	v := h.until("b gone", func(v *registry.View) bool { return v.Get("b") == nil })
	if !v.Get("a").Ready() || v.Get("c") != nil {
		t.Errorf("after foreign entries: %q, a ready: %v", ids(v), v.Get("a").Ready())
	}
	// Settings that cannot be read leave a hub that allows nothing.
	if _, err := h.conn.Put(t.Context(), bus.BucketDefs, bus.Key(bus.KeySettings), []byte(`{"policy":"nobody"}`), bus.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	v = h.until("no policy", func(v *registry.View) bool { return !v.Configured })
	if v.Policy != nil || v.Get("a").Policy != nil {
		t.Error("a hub with an unreadable policy still has one")
	}
}

// TestServerNarrowsNames: a server's filter cannot let in what the hub's leaves out (C5).
func TestServerNarrowsNames(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.apply("policy: allow_all\ntools: {exclude: ['*/drop_*']}\nservers:\n  a: {builtin: clock}\n  b: {builtin: clock, tools: {include: ['b/drop_all', 'b/read']}}\n")
	v := h.until("both servers", func(v *registry.View) bool { return v.Configured && len(v.Servers) == 2 })
	for tool, want := range map[string][2]bool{"read": {true, true}, "drop_all": {false, false}, "other": {true, false}} {
		if a, b := v.Get("a").Filter.Selects("a", tool), v.Get("b").Filter.Selects("b", tool); a != want[0] || b != want[1] {
			t.Errorf("%s: %v %v, want %v", tool, a, b, want)
		}
	}
}
