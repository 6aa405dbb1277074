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

	lists     [kinds]*list
	owners    map[string]*resourceOwner
	originals []*resourceOwner // whose URIs are exposed as they are
}

// list is the list of a kind.
func (s *ToolSet) list(kind Kind) *list {
	if i := kind.place(); i >= 0 {
		return s.lists[i]
	}
	return &list{kind: kind}
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
	s := &ToolSet{owners: make(map[string]*resourceOwner, len(sources))}
	owners := make([]resourceOwner, len(sources))
	for i := range sources {
		src, o := &sources[i], &owners[i]
		s.Rejected = append(s.Rejected, src.Catalog.Rejected...)
		o.Source, o.original = src, src.URIs == URIsOriginal
		s.owners[src.Server] = o
		if o.original {
			s.originals = append(s.originals, o)
		}
	}
	for i, kind := range Kinds() {
		s.lists[i] = s.build(kind, sources, hubPrefix)
	}
	tools := s.lists[toolList]
	s.ID, s.Entries = tools.id, tools.entries
	return s
}

// build makes one list.
func (s *ToolSet) build(kind Kind, sources []Source, hubPrefix string) *list {
	l := &list{kind: kind}
	most := 0
	for i := range sources {
		most += sources[i].Catalog.count(kind)
	}
	if most == 0 {
		l.finish()
		return l
	}
	l.entries = make([]Entry, 0, most)
	l.byName = make(map[string]int, most)
	b := builder{set: s, list: l, shared: make(map[string]int), index: make([]int, 0, most)}
	for i := range sources {
		src := &sources[i]
		before, own := len(l.entries), src.Catalog.count(kind)
		switch kind {
		case KindTool:
			for n := range src.Catalog.Tools {
				if t := &src.Catalog.Tools[n]; src.Hidden == nil || !src.Hidden(t) {
					b.named(src, n, t.Name, hubPrefix, Entry{Tool: t, proxied: src.URIs != URIsOriginal})
				}
			}
		case KindPrompt:
			for n := range src.Catalog.Prompts {
				if it := &src.Catalog.Prompts[n]; !src.hidden(kind, it.Key) {
					b.named(src, n, it.Key, hubPrefix, Entry{Item: it})
				}
			}
		default:
			items := src.Catalog.List(kind)
			for n := range items {
				if it := &items[n]; !src.hidden(kind, it.Key) {
					b.located(src, n, Entry{Item: it})
				}
			}
		}
		if hint, given := src.Catalog.Hints[kind]; given || own > 0 {
			hint.Public = hint.Public && len(l.entries)-before == own // else some caller sees more than another
			b.hint(hint)
		}
	}
	if len(b.shared) > 0 {
		b.dropShared()
	}
	l.finish()
	return l
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
	hinted bool           // list.hint is that of some source
}

// hint adds what one source says about keeping the list.
func (b *builder) hint(h Hint) {
	if b.hinted {
		h = b.list.hint.and(h)
	}
	b.list.hint, b.hinted = h, true
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
	if o, _ := b.set.ownerIn(e.Exposed); o != nil && o.Source != src {
		b.reject(&e, n, ReasonCollision, fmt.Sprintf("a %s of this form means one of server %s", keyWord(e.Item.Kind), o.Server))
		return
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
		b = appendPart(appendPart(appendPart(appendPart(b[:0], e.Exposed), e.Server), key), digest)
		if e.Tool != nil {
			l.differs = l.differs || e.Tool.legacy != nil
			if e.proxied && e.Tool.exposedURIs != nil { // callers see another URI in the definition
				b = appendPart(b, proxyPrefix)
			}
		}
		h.Write(b)
		if n := len(l.servers); n == 0 || l.servers[n-1].server != e.Server {
			l.servers = append(l.servers, span{server: e.Server, from: i})
		}
		l.servers[len(l.servers)-1].to = i + 1
	}
	l.id = hex.EncodeToString(h.Sum(nil)[:16])
}

// appendPart keeps parts apart by their lengths.
func appendPart(b []byte, part string) []byte {
	b = binary.AppendUvarint(b, uint64(len(part)))
	return append(b, part...)
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
	part := &ToolSet{ID: l.id, Entries: l.entries}
	for i, kind := range Kinds() {
		part.lists[i] = &list{kind: kind}
	}
	part.lists[toolList] = l
	return part
}

// Resolve looks the exposed name of a tool up (N7).
func (s *ToolSet) Resolve(name string) (*Entry, bool) { return s.lists[toolList].resolve(name) }

// ResolvePrompt looks the exposed name of a prompt up.
func (s *ToolSet) ResolvePrompt(name string) (*Entry, bool) {
	return s.lists[promptList].resolve(name)
}

// List is the exposed list of a kind, in listing order.
func (s *ToolSet) List(kind Kind) []Entry { return s.list(kind).entries }

// Digest changes with every change of the list of a kind; for tools it is ID.
func (s *ToolSet) Digest(kind Kind) string { return s.list(kind).id }

// Hint is what the servers of the list together say about keeping it (L6): for
// the shortest of their times, and private if one of them says so, says nothing,
// or has something that is not in this list. What a server said counts from when it
// was asked, and other callers may see less for reasons of the hub's.
func (s *ToolSet) Hint(kind Kind) Hint { return s.list(kind).hint }
