package catalog

// Naming says how exposed names are made of server ids and tool names.
type Naming string

// The ways of naming.
const (
	// NamingHub is prefix + id + "__" + sanitize(tool), at most 64 bytes of
	// [A-Za-z0-9_-]: valid for every model API (N2, N3). "" means the same.
	NamingHub Naming = "hub"
	// NamingMCP is prefix + id + "." + tool, at most 128 bytes of
	// [A-Za-z0-9_.-], the charset of MCP itself (N8).
	NamingMCP Naming = "mcp"
)

// ValidateServerID checks the rules of a server id (N5). The error says which
// one is broken.
func ValidateServerID(id string) error { panic("later") }

// ValidateToolName checks the charset rule of a tool's own name (N1).
func ValidateToolName(name string) error { panic("later") }

// Validate checks a naming as configured; "" is the default, hub.
func (n Naming) Validate() error { panic("later") }

// ValidatePrefix checks a hub's or server's prefix: characters that exposed
// names of this naming may have, and room for a shortened name behind it.
func (n Naming) ValidatePrefix(prefix string) error { panic("later") }

// Sanitize maps every character outside [A-Za-z0-9_-] to "_".
func Sanitize(tool string) string { panic("later") }

// ExposedName is the name of a tool under hub naming with the hub's prefix:
// prefix + id + "__" + Sanitize(tool), and prefix + "trunc_" + hex8 where that
// is over 64 bytes, with the first 8 hex digits of sha256(id, NUL, tool).
func ExposedName(prefix, id, tool string) string { panic("later") }
