package router

import (
	"crypto/sha256"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/policy"
	"toolhub/internal/registry"
)

// maxLists bounds the lists that are kept; beyond it they are built anew.
const maxLists = 1024

// listKey says which list: of what scope, for whom.
type listKey struct {
	scope string
	// principal is "" unless some policy looks at it, so that all share a list.
	principal string
	// asleep is the list of what cannot be called just now, since its server is
	// not ready. It is never shown, but its names are not unknown.
	asleep bool
}

// part is all that one server's part of a list follows from: equal parts make
// equal lists. The pointers are to immutable values that a View hands on to the
// next as long as nothing of them changes.
type part struct {
	registry.Projection
	catalog   *catalog.Catalog
	naming    catalog.Naming
	uris      catalog.URIs
	prefix    string
	hasPrefix bool
}

// list is one ToolSet with what it was made of.
type list struct {
	hubPrefix string
	parts     []part
	set       *catalog.ToolSet
}

// table has the lists under one View, as far as anybody has asked for them.
type table struct {
	view *registry.View
	// personal says that lists depend on the principal.
	personal bool
	lists    map[listKey]*list // never changes
	// older has lists of earlier Views, most of which are still right.
	older map[listKey]*list // guarded by lists.mu
}

// lists makes and keeps the lists of all callers. Who asks for one that is there
// takes two atomic loads and a look-up.
type lists struct {
	registry *registry.Registry
	conn     *bus.Conn
	log      *slog.Logger
	past     past
	current  atomic.Pointer[table]

	// mu is held while a list is made, so that it is made once.
	mu sync.Mutex
	// told has the collisions that were told of, by digest. Guarded by mu.
	told map[[sha256.Size]byte]struct{}
}

func newLists(conn *bus.Conn, reg *registry.Registry, log *slog.Logger) *lists {
	s := &lists{registry: reg, conn: conn, log: log, told: make(map[[sha256.Size]byte]struct{})}
	s.current.Store(&table{view: reg.View()})
	return s
}

// get is the list of a caller under the newest View.
func (s *lists) get(key listKey) *list {
	v := s.registry.View()
	if t := s.current.Load(); t.view == v {
		if l := t.lists[t.fold(key)]; l != nil {
			return l
		}
	}
	return s.make(v, key)
}

// fold makes one key of those of all callers that see the same.
func (t *table) fold(key listKey) listKey {
	if !t.personal {
		key.principal = ""
	}
	return key
}

// arePersonal reports whether lists depend on the principal, under the View of
// the list that was got last.
func (s *lists) arePersonal() bool { return s.current.Load().personal }

func (s *lists) make(v *registry.View, key listKey) *list {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.current.Load()
	if t.view.Revision < v.Revision {
		older := t.older
		if len(older)+len(t.lists) > maxLists {
			older = nil
		}
		if older == nil {
			older = make(map[listKey]*list, len(t.lists))
		}
		maps.Copy(older, t.lists)
		t = &table{view: v, personal: personal(v), older: older}
	}
	key = t.fold(key)
	if l := t.lists[key]; l != nil {
		return l // somebody else has made it meanwhile
	}
	l := &list{}
	l.hubPrefix, l.parts = recipe(t.view, key)
	if was := t.older[key]; was != nil && was.hubPrefix == l.hubPrefix && slices.Equal(was.parts, l.parts) {
		l = was
	} else {
		l.set = catalog.Build(sources(l.parts, key.principal), l.hubPrefix)
		s.replaced(key, was, l)
	}
	delete(t.older, key)
	next := &table{view: t.view, personal: t.personal, older: t.older}
	if len(t.lists) < maxLists {
		next.lists = maps.Clone(t.lists)
	}
	if next.lists == nil {
		next.lists = make(map[listKey]*list, 1)
	}
	next.lists[key] = l
	s.current.Store(next)
	return l
}

// replaced remembers what was offered before l, and tells of names in l that
// nobody got (N6).
func (s *lists) replaced(key listKey, was, l *list) {
	if key.asleep {
		return
	}
	for _, n := range []*names{&toolNames, &promptNames} {
		if was != nil && was.set.Digest(n.kind) != l.set.Digest(n.kind) {
			s.past.add(listID{key.scope, n.kind, was.set.Digest(n.kind)}, was.set.List(n.kind))
		}
	}
	if key.scope == "" && len(l.set.Collisions) > 0 {
		s.tellCollisions(l.set)
	}
}

// recipe is what a list is made of.
func recipe(v *registry.View, key listKey) (hubPrefix string, parts []part) {
	servers := v.Servers
	if key.scope != "" {
		servers = nil
		if s := v.Get(key.scope); s != nil {
			servers = []*registry.Server{s}
		}
	} else {
		hubPrefix = v.Settings.Prefix
	}
	for _, s := range servers {
		if s.Catalog == nil || s.Ready() == key.asleep {
			continue
		}
		p := part{Projection: s.Projection(), catalog: s.Catalog, naming: s.Config.Naming, uris: s.Config.URIs}
		if s.Config.Prefix != nil {
			p.prefix, p.hasPrefix = *s.Config.Prefix, true
		}
		if key.scope != "" { // one server alone is seen under its own names
			p.naming, p.prefix, p.hasPrefix, p.uris = catalog.NamingMCP, "", true, catalog.URIsOriginal
		}
		parts = append(parts, p)
	}
	return hubPrefix, parts
}

func sources(parts []part, principal string) []catalog.Source {
	out := make([]catalog.Source, len(parts))
	for i := range parts {
		p := &parts[i]
		out[i] = catalog.Source{
			Server: p.Server, Naming: p.naming, URIs: p.uris, Catalog: p.catalog,
			Hidden:     func(t *catalog.Tool) bool { return !p.Offers(t, principal) },
			HiddenItem: func(kind catalog.Kind, key string) bool { return !p.OffersItem(kind, key, principal) },
		}
		if p.hasPrefix {
			out[i].Prefix = &p.prefix
		}
	}
	return out
}

// personal reports whether a list may depend on the principal: some condition
// that hides tools names it. (A condition cannot use what it does not name.)
func personal(v *registry.View) bool {
	seen := make(map[*policy.Policy]bool, 1)
	for _, s := range v.Servers {
		if s.Policy == nil || seen[s.Policy] {
			continue
		}
		seen[s.Policy] = true
		spec := s.Policy.Spec()
		for _, rules := range [][]policy.Rule{spec.Deny, spec.Ask, spec.Allow} {
			for _, r := range rules {
				if strings.Contains(r.When, "principal") || strings.Contains(r.When, "claims") {
					return true
				}
			}
		}
	}
	return false
}

// Bounds of an event about collisions.
const (
	maxToldNames = 100
	maxToldTools = 16
)

// collisionEvent is the data of the event toolset.<hub>.collision.
type collisionEvent struct {
	ToolSet string `json:"toolset"`
	// Count is the number of names, of which Names has the first.
	Count int             `json:"count"`
	Names []collidingName `json:"names"`
}

type collidingName struct {
	Exposed string   `json:"exposed"`
	Tools   []string `json:"tools"`
}

// tellCollisions tells of the collisions of a list, once.
func (s *lists) tellCollisions(set *catalog.ToolSet) {
	h := sha256.New()
	h.Write([]byte(set.ID))
	for i := range set.Collisions {
		h.Write([]byte("\x00" + set.Collisions[i].Exposed))
		for _, t := range set.Collisions[i].Tools {
			h.Write([]byte("\x01" + t.Server + "/" + t.Tool))
		}
	}
	sum := [sha256.Size]byte(h.Sum(nil))
	if _, known := s.told[sum]; known {
		return
	}
	if len(s.told) >= maxLists {
		clear(s.told)
	}
	s.told[sum] = struct{}{}
	e := collisionEvent{ToolSet: set.ID, Count: len(set.Collisions)}
	for i := range set.Collisions {
		c := &set.Collisions[i]
		name := collidingName{Exposed: c.Exposed}
		for _, t := range c.Tools {
			if len(name.Tools) < maxToldTools {
				name.Tools = append(name.Tools, t.Server+"/"+t.Tool)
			}
			s.conn.Emit(bus.Event{Kind: "tool", Subject: t.Server, What: "rejected", Data: t})
		}
		if len(e.Names) < maxToldNames {
			e.Names = append(e.Names, name)
		}
		s.log.Warn("tools collide, none of them is offered", "exposed", c.Exposed, "tools", name.Tools)
	}
	s.conn.Emit(bus.Event{Kind: "toolset", Subject: s.conn.Hub(), What: "collision", Data: e})
}

// target is what an exposed name means, with the server's own name.
type target struct{ server, name string }

// Bounds of what is remembered of lists that were offered before.
const (
	maxPastLists = 64
	maxPastNames = 250_000
)

// past remembers which names were offered before, so that a call means what its
// caller was shown (K2) even when the list has changed since.
type past struct {
	mu    sync.Mutex
	lists []pastList // guarded by mu; newest first
	names int        // guarded by mu; of all of them
}

// listID says which list of names was offered.
type listID struct {
	scope string
	kind  catalog.Kind
	id    string // [catalog.ToolSet.Digest]
}

type pastList struct {
	listID

	targets map[string]target
}

func (p *past) add(id listID, entries []catalog.Entry) {
	if len(entries) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l := pastList{listID: id}
	if i := slices.IndexFunc(p.lists, func(o pastList) bool { return o.listID == id }); i >= 0 {
		l = p.lists[i]
		p.lists = slices.Delete(p.lists, i, i+1)
	} else {
		l.targets = make(map[string]target, len(entries))
		for i := range entries {
			e := &entries[i]
			l.targets[e.Exposed] = target{e.Server, ownName(e)}
		}
		p.names += len(l.targets)
	}
	p.lists = slices.Insert(p.lists, 0, l)
	for n := len(p.lists); n > 1 && (n > maxPastLists || p.names > maxPastNames); n = len(p.lists) {
		p.names -= len(p.lists[n-1].targets)
		p.lists = slices.Delete(p.lists, n-1, n)
	}
}

// of looks a name up in one list; known says that the list is remembered.
func (p *past) of(id listID, name string) (t target, ok, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lists {
		if l.listID == id {
			t, ok = l.targets[name]
			return t, ok, true
		}
	}
	return target{}, false, false
}

// latest is what name meant when it was offered last.
func (p *past) latest(scope string, kind catalog.Kind, name string) (target, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lists {
		if l.scope != scope || l.kind != kind {
			continue
		}
		if t, ok := l.targets[name]; ok {
			return t, true
		}
	}
	return target{}, false
}
