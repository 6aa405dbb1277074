package catalog

import "github.com/go-json-experiment/json/jsontext"

// Source is one server's part of a [ToolSet].
type Source struct {
	Server string
	Naming Naming
	// Prefix replaces the id and separator in the server's exposed names, nil
	// keeps them (N8). With "" the names are the server's own wherever the
	// naming's charset and length allow them; where they do not, they are
	// sanitised and shortened like any other.
	Prefix  *string
	Catalog *Catalog
	// Hidden reports tools that this caller must not see: the filter, and what
	// policy denies whatever the arguments (L2). It runs before naming, so a
	// hidden tool takes no name. Nil hides nothing.
	Hidden func(*Tool) bool
}

// Build makes the list of the sources, in their order. Names depend on nothing
// but prefix, server id and tool name, so no server renames another's tools.
// Tools that would share an exposed name are all left out (N4). The work is
// linear and parses nothing: it may be done for every change.
func Build(sources []Source, hubPrefix string) *ToolSet { panic("later") }

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
}

// Resolve looks an exposed name up (N7).
func (s *ToolSet) Resolve(name string) (*Entry, bool) { panic("later") }

// Page is one page of tools/list: the JSON array of definitions, and the cursor
// of the next page, "" on the last one. The array must not be changed; it is
// rendered once and then shared. A size of 0 or less is everything.
//
// A cursor holds all that is needed to go on, so it works on any router. One
// of another ToolSet goes on behind the tool it stopped at, or where that tool
// was. An absent cursor and "", which is never given out, start at the
// beginning. The error of any other string is a -32602 [*mcp.Error].
func (s *ToolSet) Page(cursor string, hasCursor bool, size int) (toolsJSON []byte, next string, err error) {
	panic("later")
}

// Format is a model API's way of writing tool definitions.
type Format string

// The formats.
const (
	// FormatAnthropic is the tools of Anthropic's Messages API.
	FormatAnthropic Format = "anthropic"
	// FormatOpenAI is the tools of OpenAI's Chat Completions API.
	FormatOpenAI Format = "openai"
	// FormatGemini is the tools of Gemini's generateContent, with parametersJsonSchema.
	FormatGemini Format = "gemini"
)

// Format is the whole list as the value of the tools member of a request to a
// model API. Schemas are the servers' own bytes. Tools whose exposed name no
// model API takes (only naming mcp makes such) are left out and reported. The
// error is that of an unknown format and names those known.
func (s *ToolSet) Format(format Format) (tools []byte, omitted []Rejected, err error) { panic("later") }
