package catalog

import (
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
// Rejected instead of in Tools.
func New(server string, info mcp.ServerInfo, toolDefs []jsontext.Value) *Catalog { panic("later") }

// Tool returns the tool with the server's own name.
func (c *Catalog) Tool(name string) (*Tool, bool) { panic("later") }

// Encode is the catalog as JSON. Equal catalogs give equal bytes, and every
// definition is in it byte for byte.
func (c *Catalog) Encode() ([]byte, error) { panic("later") }

// Decode is the inverse of [Catalog.Encode]. The catalog aliases data. Members
// that it does not know are ignored; another format version is an error.
func Decode(data []byte) (*Catalog, error) { panic("later") }
