package catalog

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Source is one server's part of a [ToolSet].
type Source struct {
	Server string
	Naming Naming
	// Prefix replaces all that stands before the tool or prompt in the server's exposed
	// names, the hub's prefix included; nil keeps it (N8). With "" the names are the server's own wherever the
	// naming's charset and length allow them; where they do not, they are
	// sanitised and shortened like any other.
	Prefix *string
	// URIs says how the URIs of its resources are exposed.
	URIs    URIs
	Catalog *Catalog
	// Hidden reports tools that this caller must not see: the filter, and what
	// policy denies whatever the arguments (L2). It runs before naming, so a
	// hidden tool takes no name. Nil hides nothing.
	Hidden func(*Tool) bool
	// HiddenItem is Hidden for the other kinds, by their keys. It is asked about
	// URIs that are not listed, too, when one is to be resolved.
	HiddenItem func(kind Kind, key string) bool
}

func (s *Source) hidden(kind Kind, key string) bool {
	return s.HiddenItem != nil && s.HiddenItem(kind, key)
}

// Entry is one exposed tool, resource, template or prompt.
type Entry struct {
	// Exposed is the name, URI or URI template that callers use.
	Exposed string
	// Server is the id of the owning server.
	Server string
	// Tool is the server's own tool, nil if it is none.
	Tool *Tool
	// Item is what it is if it is no tool.
	Item *Item

	proxied bool // URIs in it are exposed ones
}

// Def is the definition that callers see.
func (e *Entry) Def() jsontext.Value { return e.appendDef(nil, false) }

func (e *Entry) appendDef(dst []byte, legacy bool) []byte {
	switch {
	case e.Tool == nil:
		return e.Item.AppendDef(dst, e.Exposed)
	case legacy:
		return e.Tool.AppendLegacyDef(dst, e.Exposed, e.proxied)
	}
	return e.Tool.AppendDef(dst, e.Exposed, e.proxied)
}

// own is the server's own key, the digest of the definition, and its size.
func (e *Entry) own() (key, digest string, size int) {
	if e.Tool != nil {
		return e.Tool.Name, e.Tool.Digest, len(e.Tool.Def)
	}
	return e.Item.Key, e.Item.Digest, len(e.Item.Def)
}

// Collision is an exposed name that several tools or prompts would have.
type Collision struct {
	Exposed string `json:"exposed"`
	// Tools are the tools left out because of it.
	Tools []Rejected `json:"tools"`
}

// ToolSet is an immutable flat list of exposed tools, resources, templates and
// prompts for one caller. All methods may be called concurrently.
type ToolSet struct {
	// ID is a digest of what callers can see of tools: names, owners, definitions and
	// their order. Equal lists have equal ids on every router.
	ID string
	// Entries are the exposed tools in listing order.
	Entries []Entry
	// Collisions are the exposed names that nobody got, in listing order.
	Collisions []Collision
	// Rejected are all tools of the sources left out for a fault of theirs:
	// those of the catalogs, and those of the collisions. Hidden ones are not.
	Rejected []Rejected

	lists     map[Kind]*list
	owners    map[string]*resourceOwner
	originals []string // owners whose URIs are exposed as they are
}

// list is the exposed list of one kind.
type list struct {
	kind    Kind
	id      string
	entries []Entry
	byName  map[string]int
	servers []span
	modern  pages
	legacy  pages
	// differs says that some definition has a legacy form of its own.
	differs bool
	hint    Hint
}

// span is where the entries of one server are.
type span struct {
	server   string
	from, to int
}

// Build makes the lists of the sources, in their order. Names depend on nothing
// but prefix, server id and tool name, so no server renames another's tools.
// Tools that would share an exposed name are all left out (N4), and so are
// prompts; of two resources with one URI the later one is (N9). The work is
// linear and parses nothing: it may be done for every change.
func Build(sources []Source, hubPrefix string) *ToolSet {
	s := &ToolSet{lists: make(map[Kind]*list, 4), owners: make(map[string]*resourceOwner, len(sources))}
	for i := range sources {
		src := &sources[i]
		s.Rejected = append(s.Rejected, src.Catalog.Rejected...)
		s.owners[src.Server] = &resourceOwner{Source: src, original: src.URIs == URIsOriginal}
		if src.URIs == URIsOriginal {
			s.originals = append(s.originals, src.Server)
		}
	}
	for _, kind := range Kinds() {
		s.lists[kind] = s.build(kind, sources, hubPrefix)
	}
	tools := s.lists[KindTool]
	s.ID, s.Entries = tools.id, tools.entries
	return s
}

// build makes one list.
func (s *ToolSet) build(kind Kind, sources []Source, hubPrefix string) *list {
	l := &list{kind: kind, hint: Hint{Public: true}}
	most := 0
	for i := range sources {
		most += len(itemsOf(sources[i].Catalog, kind))
		if kind == KindTool {
			most += len(sources[i].Catalog.Tools)
		}
	}
	l.entries = make([]Entry, 0, most)
	l.byName = make(map[string]int, most)
	b := builder{set: s, list: l, shared: make(map[string]int), index: make([]int, 0, most)}
	for i := range sources {
		src := &sources[i]
		if kind == KindTool {
			for n := range src.Catalog.Tools {
				if t := &src.Catalog.Tools[n]; src.Hidden == nil || !src.Hidden(t) {
					b.named(src, n, t.Name, hubPrefix, Entry{Tool: t, proxied: src.URIs != URIsOriginal})
				}
			}
		}
		items := itemsOf(src.Catalog, kind)
		for n := range items {
			switch it := &items[n]; {
			case src.hidden(kind, it.Key):
			case kind == KindPrompt:
				b.named(src, n, it.Key, hubPrefix, Entry{Item: it})
			default:
				b.located(src, n, Entry{Item: it})
			}
		}
		l.hint = l.hint.and(src.Catalog.Hints[kind])
	}
	if len(b.shared) > 0 {
		b.dropShared()
	}
	l.finish()
	return l
}

func itemsOf(c *Catalog, kind Kind) []Item {
	switch kind {
	case KindResource:
		return c.Resources
	case KindTemplate:
		return c.Templates
	case KindPrompt:
		return c.Prompts
	}
	return nil
}

// and is what holds for a list that is made of two.
func (h Hint) and(other Hint) Hint {
	return Hint{TTLMS: min(h.TTLMS, other.TTLMS), Public: h.Public && other.Public}
}

// builder makes one list.
type builder struct {
	set    *ToolSet
	list   *list
	shared map[string]int // exposed name to index in set.Collisions
	index  []int          // of each entry in its catalog's list
}

// named takes an entry that has a name, which is to be exposed.
func (b *builder) named(src *Source, n int, name, hubPrefix string, e Entry) {
	e.Server = src.Server
	e.Exposed = src.Naming.expose(hubPrefix, src.Prefix, src.Server, name)
	if !src.Naming.valid(e.Exposed) { // only a prefix that nobody validated does that
		b.reject(&e, n, ReasonInvalidName,
			fmt.Sprintf("the exposed name %+q is not 1 to %d characters of %s; change the prefix", e.Exposed, src.Naming.maxLen(), src.Naming.charset()))
		return
	}
	if _, taken := b.list.byName[e.Exposed]; !taken {
		b.list.byName[e.Exposed] = len(b.list.entries)
	} else if _, known := b.shared[e.Exposed]; !known {
		b.shared[e.Exposed] = -1
	}
	b.add(e, n)
}

// located takes an entry that has a URI. Only servers that keep their own can clash.
func (b *builder) located(src *Source, n int, e Entry) {
	e.Server, e.Exposed = src.Server, e.Item.Key
	if src.URIs != URIsOriginal {
		e.Exposed = exposeURI(src.Server, e.Item.Key)
	}
	if first, taken := b.list.byName[e.Exposed]; taken {
		b.reject(&e, n, ReasonCollision, fmt.Sprintf("server %s has the same %s, and its URIs are exposed unchanged, too (uris: original)", b.list.entries[first].Server, keyWord(e.Item.Kind)))
		return
	}
	b.list.byName[e.Exposed] = len(b.list.entries)
	b.add(e, n)
}

func (b *builder) add(e Entry, n int) {
	b.list.entries = append(b.list.entries, e)
	b.index = append(b.index, n)
}

func (b *builder) reject(e *Entry, n int, reason Reason, detail string) {
	b.set.Rejected = append(b.set.Rejected, b.rejected(e, n, reason, detail))
}

func (b *builder) rejected(e *Entry, n int, reason Reason, detail string) Rejected {
	key, _, _ := e.own()
	r := Rejected{Server: e.Server, Tool: key, Index: n, Reason: reason, Detail: detail}
	if e.Item != nil {
		r.Kind = e.Item.Kind
	}
	return r
}

// dropShared takes the entries out whose exposed names others have too.
func (b *builder) dropShared() {
	l, s := b.list, b.set
	first := len(s.Collisions)
	clear(l.byName)
	kept := l.entries[:0]
	for i, e := range l.entries {
		at, ok := b.shared[e.Exposed]
		if !ok {
			l.byName[e.Exposed] = len(kept)
			kept = append(kept, e)
			continue
		}
		if at < 0 {
			at = len(s.Collisions)
			b.shared[e.Exposed] = at
			s.Collisions = append(s.Collisions, Collision{Exposed: e.Exposed})
		}
		c := &s.Collisions[at]
		c.Tools = append(c.Tools, b.rejected(&e, b.index[i], ReasonCollision, ""))
	}
	clear(l.entries[len(kept):])
	l.entries = kept
	for i := first; i < len(s.Collisions); i++ {
		c := &s.Collisions[i]
		names := make([]string, 0, len(c.Tools))
		for _, t := range c.Tools {
			names = append(names, t.Server+"/"+t.Tool)
		}
		detail := fmt.Sprintf("the exposed name %s would mean any of %s; rename a server id or filter tools out", c.Exposed, enumerate(names))
		for n := range c.Tools {
			c.Tools[n].Detail = detail
		}
		s.Rejected = append(s.Rejected, c.Tools...)
	}
}

func enumerate(names []string) string {
	const most = 8
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// finish makes all that follows from the entries.
func (l *list) finish() {
	h := sha256.New()
	var b []byte
	for i := range l.entries {
		e := &l.entries[i]
		key, digest, _ := e.own()
		b = b[:0]
		for _, part := range []string{e.Exposed, e.Server, key, digest} {
			b = binary.AppendUvarint(b, uint64(len(part)))
			b = append(b, part...)
		}
		h.Write(b)
		l.differs = l.differs || e.Tool != nil && e.Tool.legacy != nil
		if n := len(l.servers); n == 0 || l.servers[n-1].server != e.Server {
			l.servers = append(l.servers, span{server: e.Server, from: i})
		}
		l.servers[len(l.servers)-1].to = i + 1
	}
	l.id = hex.EncodeToString(h.Sum(nil)[:16])
	if len(l.entries) == 0 {
		l.hint = Hint{}
	}
}

func (l *list) resolve(exposed string) (*Entry, bool) {
	i, ok := l.byName[exposed]
	if !ok {
		return nil, false
	}
	return &l.entries[i], true
}

// ToolsOf has only the tools of one server, under the same names.
func (s *ToolSet) ToolsOf(server string) *ToolSet {
	l := &list{kind: KindTool, byName: make(map[string]int)}
	for _, e := range s.Entries {
		if e.Server == server {
			l.byName[e.Exposed] = len(l.entries)
			l.entries = append(l.entries, e)
		}
	}
	l.finish()
	return &ToolSet{ID: l.id, Entries: l.entries, lists: map[Kind]*list{
		KindTool: l, KindResource: {kind: KindResource}, KindTemplate: {kind: KindTemplate}, KindPrompt: {kind: KindPrompt},
	}}
}

// Resolve looks the exposed name of a tool up (N7).
func (s *ToolSet) Resolve(name string) (*Entry, bool) { return s.lists[KindTool].resolve(name) }

// ResolvePrompt looks the exposed name of a prompt up.
func (s *ToolSet) ResolvePrompt(name string) (*Entry, bool) { return s.lists[KindPrompt].resolve(name) }

// List is the exposed list of a kind, in listing order.
func (s *ToolSet) List(kind Kind) []Entry { return s.lists[kind].entries }

// Digest changes with every change of the list of a kind; for tools it is ID.
func (s *ToolSet) Digest(kind Kind) string { return s.lists[kind].id }

// Hint is what the servers of the list together say about keeping it (L6).
func (s *ToolSet) Hint(kind Kind) Hint { return s.lists[kind].hint }
