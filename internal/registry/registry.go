package registry

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/config"
	"toolhub/internal/policy"
)

// Registry watches the hub's shared state. Its View is current to within a
// round trip of NATS while [Registry.Run] runs.
type Registry struct {
	conn     *bus.Conn
	log      *slog.Logger
	packer   *zstd.Encoder
	unpacker *zstd.Decoder
	view     atomic.Pointer[View]
	synced   chan struct{} // closed with the first complete View

	// mu guards the fields below, the raw material of the View: whoever changes
	// any of them builds the next View before letting go.
	mu        sync.Mutex
	live      map[string]bool // by bucket: its watch has delivered all
	settings  *config.Settings
	defs      map[string]*Definition
	leases    map[incarnation]bool
	owns      map[string]*Own
	statuses  map[statusKey]*Status
	manifests map[string]*manifest
	parts     map[string]bus.Entry
	catalogs  map[string]*catalog.Catalog // of manifests[id], nil while a part is missing
	compiled  map[string]*compiled        // by server id, "" for the hub
}

// incarnation is one life of a worker.
type incarnation struct{ worker, id string }

type statusKey struct{ server, worker string }

// compiled is what follows from one definition under one version of the
// settings, worked out once.
type compiled struct {
	settings *config.Settings
	def      *Definition

	config config.Server
	policy *policy.Policy
	filter *catalog.Selection
}

// New makes a Registry on conn. Nothing is read before [Registry.Run].
// A nil log discards.
func New(conn *bus.Conn, log *slog.Logger) *Registry {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	r := &Registry{
		conn: conn, log: log, synced: make(chan struct{}),
		live: map[string]bool{}, defs: map[string]*Definition{}, leases: map[incarnation]bool{}, owns: map[string]*Own{},
		statuses: map[statusKey]*Status{}, manifests: map[string]*manifest{}, parts: map[string]bus.Entry{},
		catalogs: map[string]*catalog.Catalog{}, compiled: map[string]*compiled{},
	}
	r.packer, r.unpacker = newPacker()
	r.view.Store(&View{superseded: make(chan struct{})})
	return r
}

// View is the hub as last seen; before the first sync it is empty.
func (r *Registry) View() *View { return r.view.Load() }

// WaitSynced waits until the View is complete for the first time.
func (r *Registry) WaitSynced(ctx context.Context) error {
	select {
	case <-r.synced:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Run keeps the View current until ctx ends, and returns when all it started
// has ended.
func (r *Registry) Run(ctx context.Context) error {
	defer r.unpacker.Close()
	g, ctx := errgroup.WithContext(ctx)
	watch := func(bucket string, apply func(bus.Entry)) {
		g.Go(func() error {
			return r.conn.Watch(ctx, bucket, ">",
				func(batch []bus.Entry) {
					r.mu.Lock()
					defer r.mu.Unlock()
					for _, e := range batch {
						apply(e)
					}
					r.publish()
				},
				func(live bool, reason string) {
					r.mu.Lock()
					defer r.mu.Unlock()
					if r.live[bucket] != live {
						r.log.Info("watch", "bucket", bucket, "live", live, "reason", reason)
					}
					r.live[bucket] = live
					r.publish()
				})
		})
	}
	watch(bus.BucketDefs, r.applyDef)
	watch(bus.BucketReg, r.applyReg)
	return g.Wait()
}

func (r *Registry) applyDef(e bus.Entry) {
	kind, names, ok := bus.ParseKey(e.Key)
	switch {
	case ok && kind == bus.KeySettings && len(names) == 0:
		r.settings = decode[config.Settings](r.log, e)
	case ok && kind == bus.KeyServer && len(names) == 1:
		id := names[0]
		d := decode[Definition](r.log, e)
		setOrDelete(r.defs, id, d, d != nil && d.Server.ID == id)
	}
}

func (r *Registry) applyReg(e bus.Entry) {
	kind, names, ok := bus.ParseKey(e.Key)
	if !ok {
		return
	}
	switch {
	case kind == bus.KeyLease && len(names) == 2:
		setOrDelete(r.leases, incarnation{names[0], names[1]}, true, !e.Deleted)
	case kind == bus.KeyOwn && len(names) == 1:
		own := decode[Own](r.log, e)
		if own != nil {
			own.Epoch = e.Rev
		}
		setOrDelete(r.owns, names[0], own, own != nil)
	case kind == bus.KeyStatus && len(names) == 2:
		status := decode[Status](r.log, e)
		setOrDelete(r.statuses, statusKey{names[0], names[1]}, status, status != nil)
	case kind == bus.KeyCatalog && len(names) == 1:
		old := r.manifests[names[0]]
		m := decode[manifest](r.log, e)
		if m == nil || old == nil || old.Revision != m.Revision {
			delete(r.catalogs, names[0])
		}
		setOrDelete(r.manifests, names[0], m, m != nil)
	case kind == bus.KeyPart && len(names) == 1:
		setOrDelete(r.parts, names[0], e, !e.Deleted)
	}
}

// publish builds the next View from what is known and makes it current.
func (r *Registry) publish() {
	old := r.view.Load()
	v := &View{
		Revision: old.Revision + 1,
		Live:     r.live[bus.BucketDefs] && r.live[bus.BucketReg],
		byID:     make(map[string]*Server, len(r.defs)),
		leases:   maps.Clone(r.leases), superseded: make(chan struct{}),
	}
	first := v.Live && !r.isSynced()
	if !v.Live && !r.isSynced() {
		return // half of the first load is nobody's business
	}
	if r.settings != nil {
		v.Settings = r.settings.WithDefaults()
		v.Policy = r.compile(hubItself).policy
		v.Configured = v.Policy != nil
	}
	for _, id := range slices.SortedFunc(maps.Keys(r.defs), func(a, b string) int { return r.defs[a].before(r.defs[b]) }) {
		s := r.server(id, v)
		v.Servers = append(v.Servers, s)
		v.byID[id] = s
	}
	for id := range r.compiled {
		if id != hubItself && v.byID[id] == nil {
			delete(r.compiled, id)
		}
	}
	r.view.Store(v)
	close(old.superseded)
	if first {
		close(r.synced)
	}
}

func (r *Registry) isSynced() bool {
	select {
	case <-r.synced:
		return true
	default:
		return false
	}
}

func (r *Registry) server(id string, v *View) *Server {
	c := r.compile(id)
	s := &Server{Definition: c.def, Config: c.config, Policy: c.policy, Filter: c.filter}
	if own := r.owns[id]; own != nil {
		s.Own = own
		s.ownerAlive = v.Alive(own.Worker, own.Incarnation)
		if st := r.statuses[statusKey{id, own.Worker}]; st != nil && st.Epoch == own.Epoch {
			s.Status = st
		}
		s.listed = r.manifests[id] != nil && r.manifests[id].Epoch == own.Epoch
	}
	if m := r.manifests[id]; m != nil {
		s.Catalog = r.catalog(id, m)
	}
	return s
}

// catalog is the decoded catalog of m, decoded once for each revision.
func (r *Registry) catalog(id string, m *manifest) *catalog.Catalog {
	if c := r.catalogs[id]; c != nil {
		return c
	}
	c, complete, err := r.unpack(id, m)
	if err != nil {
		r.log.Error("unreadable catalog", "server", id, "revision", m.Revision, "error", err)
		return nil
	}
	if complete {
		r.catalogs[id] = c
	}
	return c
}

// hubItself is the key of what the settings alone compile to.
const hubItself = ""

// compile works out what follows from the definition of server id, or from the
// settings alone for [hubItself]. It is done anew only when one of them has
// changed. A policy that does not compile is nil, which denies: config validates
// it, so only a foreign writer of the bucket can cause that.
func (r *Registry) compile(id string) *compiled {
	def := r.defs[id]
	if c := r.compiled[id]; c != nil && c.settings == r.settings && c.def == def {
		return c
	}
	c := &compiled{settings: r.settings, def: def}
	var settings config.Settings
	if r.settings != nil {
		settings = r.settings.WithDefaults()
	}
	own, tools := settings.Policy, settings.Tools
	if def != nil {
		c.config = def.Server.Effective(settings)
		own, tools = c.config.Policy, def.Server.Tools
	}
	if def != nil && def.Server.Policy == nil {
		c.policy = r.compile(hubItself).policy
	} else if spec, err := settings.Resolve(own); err != nil {
		r.log.Error("no policy", "server", id, "error", err)
	} else if c.policy, err = policy.Compile(spec); err != nil {
		r.log.Error("unusable policy", "server", id, "error", err)
		c.policy = nil
	}
	if tools == nil {
		tools = &catalog.Filter{}
	}
	var err error
	if c.filter, err = tools.Compile(); err != nil {
		r.log.Error("unusable tools filter, nothing is selected", "server", id, "error", err)
		c.filter, _ = (catalog.Filter{Exclude: []string{"*/*"}}).Compile() // a constant that compiles
	}
	if def != nil { // a server narrows what the hub selects and cannot widen it (C5)
		c.filter = c.filter.Within(r.compile(hubItself).filter)
	}
	r.compiled[id] = c
	return c
}

// decode is the value of e, nil for a deleted or unreadable one.
func decode[T any](log *slog.Logger, e bus.Entry) *T {
	if e.Deleted {
		return nil
	}
	v := new(T)
	if err := json.Unmarshal(e.Value, v); err != nil {
		log.Error("unreadable entry", "key", e.Key, "revision", e.Rev, "error", err)
		return nil
	}
	return v
}

func setOrDelete[K comparable, V any](m map[K]V, k K, v V, set bool) {
	if set {
		m[k] = v
	} else {
		delete(m, k)
	}
}
