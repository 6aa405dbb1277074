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
	// Prefix replaces all that stands before the tool in the server's exposed
	// names, the hub's prefix included; nil keeps it (N8). With "" the names are the server's own wherever the
	// naming's charset and length allow them; where they do not, they are
	// sanitised and shortened like any other.
	Prefix  *string
	Catalog *Catalog
	// Hidden reports tools that this caller must not see: the filter, and what
	// policy denies whatever the arguments (L2). It runs before naming, so a
	// hidden tool takes no name. Nil hides nothing.
	Hidden func(*Tool) bool
}

// Entry is one exposed tool.
type Entry struct {
	// Exposed is the name that callers use.
	Exposed string
	// Server is the id of the owning server.
	Server string
	// Tool is the server's own tool.
	Tool *Tool
}

// Def is the definition that callers see, see [Tool.AppendDef].
func (e *Entry) Def() jsontext.Value { return e.Tool.AppendDef(nil, e.Exposed) }

// Collision is an exposed name that several tools would have.
type Collision struct {
	Exposed string `json:"exposed"`
	// Tools are the tools left out because of it.
	Tools []Rejected `json:"tools"`
}

// ToolSet is an immutable flat list of exposed tools for one caller. All
// methods may be called concurrently.
type ToolSet struct {
	// ID is a digest of what callers can see: names, owners, definitions and
	// their order. Equal lists have equal ids on every router.
	ID string
	// Entries are the exposed tools in listing order.
	Entries []Entry
	// Collisions are the exposed names that nobody got, in listing order.
	Collisions []Collision
	// Rejected are all tools of the sources left out for a fault of theirs:
	// those of the catalogs, and those of the collisions. Hidden ones are not.
	Rejected []Rejected

	byName  map[string]int
	servers []span
	modern  pages
	legacy  pages
	// differs says that some definition has a legacy form of its own.
	differs bool
}

// span is where the entries of one server are.
type span struct {
	server   string
	from, to int
}

// Build makes the list of the sources, in their order. Names depend on nothing
// but prefix, server id and tool name, so no server renames another's tools.
// Tools that would share an exposed name are all left out (N4). The work is
// linear and parses nothing: it may be done for every change.
func Build(sources []Source, hubPrefix string) *ToolSet {
	s := &ToolSet{}
	most := 0
	for i := range sources {
		most += len(sources[i].Catalog.Tools)
	}
	s.Entries = make([]Entry, 0, most)
	s.byName = make(map[string]int, most)
	shared := make(map[string]int) // exposed name to index in s.Collisions
	var index []int                // of each entry in its catalog's tools
	for i := range sources {
		src := &sources[i]
		s.Rejected = append(s.Rejected, src.Catalog.Rejected...)
		for n := range src.Catalog.Tools {
			t := &src.Catalog.Tools[n]
			if src.Hidden != nil && src.Hidden(t) {
				continue
			}
			exposed := src.Naming.expose(hubPrefix, src.Prefix, src.Server, t.Name)
			if !src.Naming.valid(exposed) { // only a prefix that nobody validated does that
				s.Rejected = append(s.Rejected, Rejected{
					Server: src.Server, Tool: t.Name, Index: n, Reason: ReasonInvalidName,
					Detail: fmt.Sprintf("the exposed name %+q is not 1 to %d characters of %s; change the prefix", exposed, src.Naming.maxLen(), src.Naming.charset()),
				})
				continue
			}
			if _, taken := s.byName[exposed]; !taken {
				s.byName[exposed] = len(s.Entries)
			} else if _, known := shared[exposed]; !known {
				shared[exposed] = -1
			}
			s.Entries = append(s.Entries, Entry{Exposed: exposed, Server: src.Server, Tool: t})
			index = append(index, n)
		}
	}
	if len(shared) > 0 {
		s.dropShared(shared, index)
	}
	s.finish()
	return s
}

// dropShared takes the entries out whose exposed names others have too.
func (s *ToolSet) dropShared(shared map[string]int, index []int) {
	clear(s.byName)
	kept := s.Entries[:0]
	for i, e := range s.Entries {
		at, ok := shared[e.Exposed]
		if !ok {
			s.byName[e.Exposed] = len(kept)
			kept = append(kept, e)
			continue
		}
		if at < 0 {
			at = len(s.Collisions)
			shared[e.Exposed] = at
			s.Collisions = append(s.Collisions, Collision{Exposed: e.Exposed})
		}
		c := &s.Collisions[at]
		c.Tools = append(c.Tools, Rejected{Server: e.Server, Tool: e.Tool.Name, Index: index[i], Reason: ReasonCollision})
	}
	clear(s.Entries[len(kept):])
	s.Entries = kept
	for i := range s.Collisions {
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
func (s *ToolSet) finish() {
	h := sha256.New()
	var b []byte
	for i := range s.Entries {
		e := &s.Entries[i]
		b = b[:0]
		for _, part := range []string{e.Exposed, e.Server, e.Tool.Name, e.Tool.Digest} {
			b = binary.AppendUvarint(b, uint64(len(part)))
			b = append(b, part...)
		}
		h.Write(b)
		s.differs = s.differs || e.Tool.legacy != nil
		if n := len(s.servers); n == 0 || s.servers[n-1].server != e.Server {
			s.servers = append(s.servers, span{server: e.Server, from: i})
		}
		s.servers[len(s.servers)-1].to = i + 1
	}
	s.ID = hex.EncodeToString(h.Sum(nil)[:16])
}

// Resolve looks an exposed name up (N7).
func (s *ToolSet) Resolve(name string) (*Entry, bool) {
	i, ok := s.byName[name]
	if !ok {
		return nil, false
	}
	return &s.Entries[i], true
}
