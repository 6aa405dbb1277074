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
	// Info is what the server says of itself. Nothing is decided by it.
	Info mcp.ServerInfo
	// Tools are the accepted tools in the server's order.
	Tools []Tool
	// Rejected are the definitions left out, in the server's order.
	Rejected []Rejected

	byName map[string]int
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
	// rules; the tool stays, without its annotations.
	ReasonInvalidHeader Reason = "invalid_header"
	// ReasonTaskRequired: the tool can only be called as a task, which is not offered.
	ReasonTaskRequired Reason = "task_required"
	// ReasonNullMember: an optional member is null, which the protocol does
	// not allow; the tool stays, without that member.
	ReasonNullMember Reason = "null_member"
)

// Rejected is one tool that is left out of a list.
type Rejected struct {
	Server string `json:"server"`
	// Tool is the server's own name, "" where the definition has none.
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

// New makes the catalog of a server from its tool definitions, complete and in
// the server's order. It never fails: a definition that cannot be offered is in
// Rejected instead of in Tools. It aliases the definitions.
//
// A name that a server lists more than once is rejected altogether, since
// nobody knows which definition a call would get; only where the definitions
// are equal byte for byte the first one stays.
func New(server string, info mcp.ServerInfo, toolDefs []jsontext.Value) *Catalog {
	c := &Catalog{Server: server, Info: info}
	c.add(toolDefs)
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

// add checks definitions and takes them, or rejects them.
func (c *Catalog) add(defs []jsontext.Value) {
	c.Tools = make([]Tool, 0, len(defs))
	c.byName = make(map[string]int, len(defs))
	index := make([]int, 0, len(defs)) // of each of c.Tools in defs
	twice := make(map[string]bool)
	reject := func(i int, name string, reason Reason, detail string) {
		c.Rejected = append(c.Rejected, Rejected{Server: c.Server, Tool: mcp.Shorten(name, maxToolName), Index: i, Reason: reason, Detail: detail})
	}
	var p toolParser
	for i, def := range defs {
		t, err := p.parse(def)
		if err != nil {
			reason := ReasonInvalidDefinition
			if f, ok := errors.AsType[*fault](err); ok {
				reason = f.reason
			}
			reject(i, t.Name, reason, err.Error())
			continue
		}
		first, again := c.byName[t.Name]
		switch {
		case !again:
			c.byName[t.Name] = len(c.Tools)
			c.Tools = append(c.Tools, t)
			index = append(index, i)
		case c.Tools[first].Digest == t.Digest:
			reject(i, t.Name, ReasonDuplicateName, fmt.Sprintf("the server lists this definition again, first at index %d", index[first]))
		default:
			twice[t.Name] = true
			reject(i, t.Name, ReasonDuplicateName, fmt.Sprintf("the server lists this name with another definition at index %d", index[first]))
		}
	}
	if len(twice) == 0 {
		return
	}
	kept := c.Tools[:0]
	clear(c.byName)
	for n := range c.Tools {
		t := &c.Tools[n]
		if twice[t.Name] {
			reject(index[n], t.Name, ReasonDuplicateName, "the server lists this name again with another definition")
			continue
		}
		c.byName[t.Name] = len(kept)
		kept = append(kept, *t)
	}
	clear(c.Tools[len(kept):])
	c.Tools = kept
}

func (c *Catalog) sortRejected() {
	slices.SortStableFunc(c.Rejected, func(a, b Rejected) int { return cmp.Compare(a.Index, b.Index) })
}

// Tool returns the tool with the server's own name.
func (c *Catalog) Tool(name string) (*Tool, bool) {
	i, ok := c.byName[name]
	if !ok {
		return nil, false
	}
	return &c.Tools[i], true
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
	size := 128 + len(info) + len(rejected)
	for i := range c.Tools {
		size += len(c.Tools[i].Def) + 1
	}
	b := append(make([]byte, 0, size), `{"format":`...)
	b = strconv.AppendInt(b, format, 10)
	b = append(b, `,"server":`...)
	b = mcp.AppendString(b, c.Server)
	b = append(b, `,"info":`...)
	b = append(b, info...)
	b = append(b, `,"rejected":`...)
	b = append(b, rejected...)
	b = append(b, `,"tools":[`...)
	for i := range c.Tools {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, c.Tools[i].Def...)
	}
	return append(b, "]}"...), nil
}

// Decode is the inverse of [Catalog.Encode]. The catalog aliases data. Members
// that it does not know are ignored; another format version is an error.
func Decode(data []byte) (*Catalog, error) {
	c := &Catalog{Revision: revision(data)}
	version, tools := "", jsontext.Value(nil)
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
		case "tools":
			tools = v
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
	defs, err := elements(tools)
	if err != nil {
		return nil, fmt.Errorf("couldn't decode the catalog of %s: tools: %w", c.Server, err)
	}
	c.add(defs) // a reader with stricter rules than the writer's holds to its own
	return c, nil
}

func revision(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}
