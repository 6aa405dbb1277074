package catalog

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// Catalog is what one server lists. It is immutable: everything in it may be
// read concurrently and nothing may be changed.
type Catalog struct {
	// Server is the operator's id of the server.
	Server string
	// Revision is a digest of all the rest: two catalogs with one revision
	// are equal.
	Revision string
	// Info is what the server says of itself. Nothing is decided by that but what
	// an invalid x-mcp-header annotation means, see ReasonInvalidHeader.
	Info mcp.ServerInfo
	// Tools are the accepted tools in the server's order.
	Tools []Tool
	// Resources, Templates and Prompts are the accepted others, likewise.
	Resources, Templates, Prompts []Item
	// Hints are what the server says about keeping its lists.
	Hints map[Kind]Hint
	// Rejected are the definitions left out, by kind and in the server's order.
	Rejected []Rejected

	byName    map[string]int // tools
	resources map[string]int
	prompts   map[string]int
}

// Reason says in one word why a tool is left out or changed.
type Reason string

// The reasons.
const (
	// ReasonInvalidName: the name is not 1 to 128 characters of [A-Za-z0-9_.-] (N1).
	ReasonInvalidName Reason = "invalid_name"
	// ReasonInvalidDefinition: the definition breaks the protocol's schema of a tool.
	ReasonInvalidDefinition Reason = "invalid_definition"
	// ReasonDuplicateName: the server lists the name more than once.
	ReasonDuplicateName Reason = "duplicate_name"
	// ReasonCollision: another tool has the same exposed name (N4).
	ReasonCollision Reason = "collision"
	// ReasonInvalidHeader: an x-mcp-header annotation breaks the protocol's
	// rules. The tool of a modern server over HTTP is left out, as the protocol
	// demands of whoever calls it; elsewhere it stays, without its annotations.
	ReasonInvalidHeader Reason = "invalid_header"
	// ReasonTaskRequired: the tool can only be called as a task, and its server has none.
	ReasonTaskRequired Reason = "task_required"
	// ReasonInvalidURI: the URI of a resource is none.
	ReasonInvalidURI Reason = "invalid_uri"
	// ReasonUnsupportedTemplate: the URI template is none of RFC 6570, or is too long.
	ReasonUnsupportedTemplate Reason = "unsupported_template"
	// ReasonNullMember: an optional member is null, which the protocol does
	// not allow; the tool stays, without that member.
	ReasonNullMember Reason = "null_member"
)

// Rejected is one tool, resource, template or prompt that is left out of a list.
type Rejected struct {
	Server string `json:"server"`
	// Kind is what it is, "" for a tool.
	Kind Kind `json:"kind,omitempty"`
	// Tool is the server's own name or URI, "" where the definition has none.
	Tool string `json:"tool,omitempty"`
	// Index is the position in the server's list, from 0.
	Index  int    `json:"index"`
	Reason Reason `json:"reason"`
	// Detail says what is wrong and what would be right.
	Detail string `json:"detail"`
}

// Note is something that was mended in a tool that stays.
type Note struct {
	Reason Reason
	Detail string
}

// New makes the catalog of a server from its definitions. It never fails: a
// definition that cannot be offered is in Rejected instead. It aliases the
// definitions.
//
// A name or URI that a server lists more than once is rejected altogether, since
// nobody knows which definition is meant; only where the definitions are equal
// byte for byte the first one stays.
func New(server string, info mcp.ServerInfo, lists Lists) *Catalog {
	c := &Catalog{Server: server, Info: info, Hints: lists.Hints}
	c.add(lists)
	c.sortRejected()
	// Capabilities that are no JSON are as good as none: they cannot be written.
	if c.Info.Capabilities != nil && !c.Info.Capabilities.IsValid() {
		c.Info.Capabilities = nil
	}
	if data, err := c.Encode(); err == nil {
		c.Revision = revision(data)
	}
	return c
}

// Items counts all that is offered, of every kind (L9).
func (c *Catalog) Items() int {
	return len(c.Tools) + len(c.Resources) + len(c.Templates) + len(c.Prompts)
}

// Counts is how much of each kind a server offers.
type Counts struct {
	Tools     int `json:"tools"`
	Resources int `json:"resources,omitzero"`
	Templates int `json:"templates,omitzero"`
	Prompts   int `json:"prompts,omitzero"`
}

// Counts counts what is offered by kind.
func (c *Catalog) Counts() Counts {
	return Counts{Tools: len(c.Tools), Resources: len(c.Resources), Templates: len(c.Templates), Prompts: len(c.Prompts)}
}

func (c *Catalog) count(kind Kind) int {
	if kind == KindTool {
		return len(c.Tools)
	}
	return len(c.List(kind))
}

// List is the accepted things of a kind that is not that of tools, in the
// server's order.
func (c *Catalog) List(kind Kind) []Item {
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

// add checks definitions and takes them, or rejects them.
func (c *Catalog) add(lists Lists) {
	p := &definitionParser{server: c.Server, mirrors: c.Info.HTTP && c.Info.Era == mcp.EraModern, tasks: c.Info.LegacyTasks()}
	c.Tools, c.byName = accept(c, "", lists.Tools, p.parse, func(t *Tool) (string, string) { return t.Name, t.Digest })
	items := func(kind Kind, defs []jsontext.Value) ([]Item, map[string]int) {
		return accept(c, kind, defs, func(def jsontext.Value) (Item, error) { return p.parseItem(kind, def) }, func(i *Item) (string, string) { return i.Key, i.Digest })
	}
	c.Resources, c.resources = items(KindResource, lists.Resources)
	c.Templates, _ = items(KindTemplate, lists.Templates)
	c.Prompts, c.prompts = items(KindPrompt, lists.Prompts)
}

// accept takes the definitions of one kind that hold, and rejects the others.
func accept[T any](c *Catalog, kind Kind, defs []jsontext.Value, parse func(jsontext.Value) (T, error), keyAndDigest func(*T) (string, string)) ([]T, map[string]int) {
	accepted := make([]T, 0, len(defs))
	byKey := make(map[string]int, len(defs))
	index := make([]int, 0, len(defs)) // of each of accepted in defs
	twice := make(map[string]bool)
	reject := func(i int, key string, reason Reason, detail string) {
		c.Rejected = append(c.Rejected, Rejected{Server: c.Server, Kind: kind, Tool: mcp.Shorten(key, maxToolName), Index: i, Reason: reason, Detail: detail})
	}
	for i, def := range defs {
		t, err := parse(def)
		accepted = append(accepted, t) // for now
		key, digest := keyAndDigest(&accepted[len(accepted)-1])
		first, again := byKey[key]
		if err == nil && !again {
			byKey[key] = len(accepted) - 1
			index = append(index, i)
			continue
		}
		accepted = accepted[:len(accepted)-1]
		if err != nil {
			reason := ReasonInvalidDefinition
			if f, ok := errors.AsType[*fault](err); ok {
				reason = f.reason
			}
			reject(i, key, reason, err.Error())
			continue
		}
		if _, was := keyAndDigest(&accepted[first]); was == digest {
			reject(i, key, ReasonDuplicateName, fmt.Sprintf("the server lists this definition again, first at index %d", index[first]))
			continue
		}
		twice[key] = true
		reject(i, key, ReasonDuplicateName, fmt.Sprintf("the server lists this %s with another definition at index %d", keyWord(kind), index[first]))
	}
	clear(accepted[len(accepted):cap(accepted)])
	if len(twice) == 0 {
		return accepted, byKey
	}
	kept := accepted[:0]
	clear(byKey)
	for n := range accepted {
		key, _ := keyAndDigest(&accepted[n])
		if twice[key] {
			reject(index[n], key, ReasonDuplicateName, "the server lists this "+keyWord(kind)+" again with another definition")
			continue
		}
		byKey[key] = len(kept)
		kept = append(kept, accepted[n])
	}
	clear(accepted[len(kept):])
	return kept, byKey
}

// keyWord is what things of a kind are known by.
func keyWord(kind Kind) string {
	switch kind {
	case KindResource:
		return "URI"
	case KindTemplate:
		return "URI template"
	}
	return "name"
}

func (c *Catalog) sortRejected() {
	slices.SortStableFunc(c.Rejected, func(a, b Rejected) int {
		return cmp.Or(cmp.Compare(a.Kind.place(), b.Kind.place()), cmp.Compare(a.Index, b.Index))
	})
}

// Tool returns the tool with the server's own name.
func (c *Catalog) Tool(name string) (*Tool, bool) {
	i, ok := c.byName[name]
	if !ok {
		return nil, false
	}
	return &c.Tools[i], true
}

// Resource returns the resource with the server's own URI.
func (c *Catalog) Resource(uri string) (*Item, bool) {
	i, ok := c.resources[uri]
	if !ok {
		return nil, false
	}
	return &c.Resources[i], true
}

// Prompt returns the prompt with the server's own name.
func (c *Catalog) Prompt(name string) (*Item, bool) {
	i, ok := c.prompts[name]
	if !ok {
		return nil, false
	}
	return &c.Prompts[i], true
}

// format is the version of the encoding. It changes only when an older reader
// would misunderstand a newer writer; members are added without.
const format = 1

// Encode is the catalog as JSON. Equal catalogs give equal bytes, and every
// definition is in it byte for byte. Revision is the digest of these bytes, and
// not in them.
func (c *Catalog) Encode() ([]byte, error) {
	info, err := json.Marshal(&c.Info, json.Deterministic(true), jsontext.PreserveRawStrings(true))
	if err != nil {
		return nil, fmt.Errorf("couldn't encode the server info of %s: %w", c.Server, err)
	}
	rejected, err := json.Marshal(c.Rejected, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		return nil, fmt.Errorf("couldn't encode the rejected tools of %s: %w", c.Server, err)
	}
	hints, err := json.Marshal(c.Hints, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("couldn't encode the hints of %s: %w", c.Server, err)
	}
	size := 256 + len(info) + len(rejected) + len(hints)
	for i := range c.Tools {
		size += len(c.Tools[i].Def) + 1
	}
	for _, items := range [][]Item{c.Resources, c.Templates, c.Prompts} {
		for i := range items {
			size += len(items[i].Def) + 1
		}
	}
	b := append(make([]byte, 0, size), `{"format":`...)
	b = strconv.AppendInt(b, format, 10)
	b = append(b, `,"server":`...)
	b = mcp.AppendString(b, c.Server)
	b = append(b, `,"info":`...)
	b = append(b, info...)
	b = append(b, `,"rejected":`...)
	b = append(b, rejected...)
	if len(c.Hints) > 0 {
		b = append(b, `,"hints":`...)
		b = append(b, hints...)
	}
	b = append(b, `,"tools":[`...)
	for i := range c.Tools {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, c.Tools[i].Def...)
	}
	b = append(b, ']')
	for _, list := range []struct {
		name  string
		items []Item
	}{{"resources", c.Resources}, {"templates", c.Templates}, {"prompts", c.Prompts}} {
		if len(list.items) == 0 {
			continue
		}
		b = append(append(append(b, `,"`...), list.name...), `":[`...)
		for i := range list.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, list.items[i].Def...)
		}
		b = append(b, ']')
	}
	return append(b, '}'), nil
}

// Decode is the inverse of [Catalog.Encode]. The catalog aliases data. Members
// that it does not know are ignored; another format version is an error.
func Decode(data []byte) (*Catalog, error) {
	c := &Catalog{Revision: revision(data)}
	version, lists := "", map[string]jsontext.Value{}
	err := mcp.EachField(data, func(name string, v jsontext.Value) error {
		switch name {
		case "format":
			version = string(v)
		case "server":
			c.Server = mcp.Text(v)
		case "info":
			return json.Unmarshal(v, &c.Info)
		case "rejected":
			return json.Unmarshal(v, &c.Rejected)
		case "hints":
			return json.Unmarshal(v, &c.Hints)
		case "tools", "resources", "templates", "prompts":
			lists[name] = v
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("couldn't decode a catalog: %w", err)
	}
	if version != strconv.Itoa(format) {
		return nil, fmt.Errorf("couldn't decode a catalog: its format is %.20q, this program reads %d", version, format)
	}
	if c.Server == "" {
		return nil, errors.New("couldn't decode a catalog: it names no server")
	}
	var defs Lists
	for name, into := range map[string]*[]jsontext.Value{"tools": &defs.Tools, "resources": &defs.Resources, "templates": &defs.Templates, "prompts": &defs.Prompts} {
		if lists[name] == nil && name != "tools" {
			continue
		}
		if *into, err = elements(lists[name]); err != nil {
			return nil, fmt.Errorf("couldn't decode the catalog of %s: %s: %w", c.Server, name, err)
		}
	}
	c.add(defs) // a reader with stricter rules than the writer's holds to its own
	return c, nil
}

func revision(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}
