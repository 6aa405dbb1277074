package router

import (
	"runtime/debug"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// programName is what the hub calls itself.
const programName = "toolhub"

// capabilities are what the hub offers: all that some server behind it may. Only
// the name differs by which an era knows an extension.
const (
	capabilities       = features + `,"extensions":{"` + mcp.ExtensionTasks + `":{},"` + extensionHealth + `":{}}}`
	legacyCapabilities = features + `,"experimental":{"` + extensionHealth + `":{}}}`

	features = `{"completions":{},"logging":{},"prompts":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"tools":{"listChanged":true}`
)

// maxInstructions bounds the instructions of all servers together, in bytes.
const maxInstructions = 64 << 10

// Version is the program's as a semantic version, 0.0.0 in a build without one.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		if v, ok := strings.CutPrefix(info.Main.Version, "v"); ok {
			return v
		}
	}
	return "0.0.0"
}

// discover is what the scope says of itself; the legacy front makes the result
// of initialize of it.
func (e *engine) discover(scope string) mcp.Discovery {
	return mcp.Discovery{
		Instructions: instructions(e.registry.View(), scope),
		Capabilities: jsontext.Value(capabilities),
		ServerInfo:   e.serverInfo,
	}
}

// instructions are those of one server, or those of all, each under its id.
func instructions(v *registry.View, scope string) string {
	if scope != "" {
		if s := v.Get(scope); s != nil && s.Ready() {
			return s.Catalog.Info.Instructions
		}
		return ""
	}
	var b strings.Builder
	for _, s := range v.Servers {
		if !s.Ready() {
			continue
		}
		text := strings.TrimSpace(s.Catalog.Info.Instructions)
		if text == "" || b.Len()+len(text) > maxInstructions {
			continue
		}
		if b.Len() == 0 {
			b.WriteString("The tools here are those of several servers. What some of the servers say about theirs:")
		}
		b.WriteString("\n\n## " + s.ID() + "\n\n" + text)
	}
	return b.String()
}
