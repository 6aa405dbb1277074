package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

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

const (
	maxServerID = 32
	maxToolName = 128 // MCP, server/tools
	maxHubName  = 64  // what Anthropic, OpenAI and Gemini all take

	shortened    = "trunc_"
	shortenedLen = len(shortened) + 8
)

// ValidateServerID checks the rules of a server id (N5). The error says which
// one is broken.
func ValidateServerID(id string) error {
	say := func(format string, args ...any) error {
		return fmt.Errorf("server id %q: "+format, append([]any{id}, args...)...)
	}
	switch {
	case id == "":
		return errors.New(`server id "" is empty: it starts with a letter a-z, and goes on with a-z, 0-9 and _`)
	case id[0] < 'a' || id[0] > 'z':
		return say("it must start with a letter a-z")
	case len(id) > maxServerID:
		return say("it has %d characters, at most %d are allowed", len(id), maxServerID)
	}
	for _, r := range id {
		if !isServerChar(r) {
			return say("%q is not allowed, only a-z, 0-9 and _ are", r)
		}
	}
	switch { // both keep "__" between id and tool the only one that counts
	case strings.Contains(id, "__"):
		return say(`it must not contain "__", which separates server and tool in exposed names`)
	case strings.HasSuffix(id, "_"):
		return say(`it must not end in "_", which would blur the "__" behind it in exposed names`)
	}
	return nil
}

// ValidateToolName checks the charset rule of a tool's own name (N1). It keeps
// out look-alike letters, invisible characters, spaces and empty names.
func ValidateToolName(name string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case len(name) > maxToolName:
		return fmt.Errorf("the name has %d bytes, at most %d are allowed", len(name), maxToolName)
	}
	for i, r := range name {
		if !isToolChar(r) {
			return fmt.Errorf("the name %+q has %+q at byte %d, only A-Z, a-z, 0-9, _, . and - are allowed", name, r, i)
		}
	}
	return nil
}

// Validate checks a naming as configured; "" is the default, hub.
func (n Naming) Validate() error {
	switch n {
	case "", NamingHub, NamingMCP:
		return nil
	}
	return fmt.Errorf("naming %q is unknown, it is %q or %q", string(n), NamingHub, NamingMCP)
}

// ValidatePrefix checks a hub's or server's prefix: characters that exposed
// names of this naming may have, and room for a shortened name behind it.
func (n Naming) ValidatePrefix(prefix string) error {
	for i, r := range prefix {
		if !n.allows(r) {
			return fmt.Errorf("prefix %+q has %+q at byte %d, exposed names have %s only", prefix, r, i, n.charset())
		}
	}
	if most := n.maxLen() - shortenedLen; len(prefix) > most {
		return fmt.Errorf("prefix %q has %d bytes, at most %d leave room for a name behind it", prefix, len(prefix), most)
	}
	return nil
}

func (n Naming) allows(r rune) bool {
	return isToolChar(r) && (n == NamingMCP || r != '.')
}

func (n Naming) charset() string {
	if n == NamingMCP {
		return "A-Z, a-z, 0-9, _, . and -"
	}
	return "A-Z, a-z, 0-9, _ and -"
}

func (n Naming) maxLen() int {
	if n == NamingMCP {
		return maxToolName
	}
	return maxHubName
}

// valid reports whether name may be exposed, which is the last word on every name.
func (n Naming) valid(name string) bool {
	if name == "" || len(name) > n.maxLen() {
		return false
	}
	for _, r := range name {
		if !n.allows(r) {
			return false
		}
	}
	return true
}

// Sanitize maps every character outside [A-Za-z0-9_-] to "_".
func Sanitize(tool string) string {
	return strings.Map(func(r rune) rune {
		if NamingHub.allows(r) {
			return r
		}
		return '_'
	}, tool)
}

// expose is the exposed name of a tool: the hub's prefix, the server's part (id
// and separator), the tool. A server's own prefix stands in place of the first
// two (N8). What is too long is the prefix, "trunc_" and the first 8 hex digits
// of sha256(id, NUL, tool).
func (n Naming) expose(prefix string, own *string, id, tool string) string {
	between, name := id+"__", tool
	if n == NamingMCP {
		between = id + "."
	} else {
		name = Sanitize(tool)
	}
	if own != nil {
		prefix, between = *own, ""
	}
	if len(prefix)+len(between)+len(name) <= n.maxLen() {
		return prefix + between + name
	}
	sum := sha256.Sum256([]byte(id + "\x00" + tool))
	return prefix + shortened + hex.EncodeToString(sum[:4])
}

func isServerChar(r rune) bool {
	return 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '_'
}

func isToolChar(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '_' || r == '.' || r == '-'
}
