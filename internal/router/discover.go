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

// capabilities are what the hub offers, in both eras: its list of tools changes,
// and calls pass log messages on.
const capabilities = `{"logging":{},"tools":{"listChanged":true}}`

// maxInstructions bounds the instructions of all servers together, in bytes.
const maxInstructions = 64 << 10

// version is the program's as a semantic version, 0.0.0 in a build without one.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		if v, ok := strings.CutPrefix(info.Main.Version, "v"); ok {
			return v
		}
	}
	return "0.0.0"
}

func serverInfo() jsontext.Value {
	b := append([]byte(`{"name":`), mcp.QuoteString(programName)...)
	b = append(b, `,"version":`...)
	b = mcp.AppendString(b, version())
	return append(b, '}')
}

// discovery is what the hub, or one server of it, says of itself.
type discovery struct {
	instructions string         // "" for none
	capabilities jsontext.Value // a JSON object
	serverInfo   jsontext.Value // a JSON object with name and version
}

// discover is what the scope says of itself; the legacy front makes the result
// of initialize of it.
func (e *engine) discover(scope string) discovery {
	return discovery{
		instructions: instructions(e.registry.View(), scope),
		capabilities: jsontext.Value(capabilities),
		serverInfo:   e.serverInfo,
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

// discoverResult is the result of server/discover.
func (e *engine) discoverResult(scope string) jsontext.Value {
	d := e.discover(scope)
	b := append([]byte(nil), `{"resultType":"complete","supportedVersions":[`...)
	for i, v := range mcp.ModernVersions() {
		if i > 0 {
			b = append(b, ',')
		}
		b = mcp.AppendString(b, v)
	}
	b = append(b, `],"capabilities":`...)
	b = append(b, d.capabilities...)
	if d.instructions != "" {
		b = append(b, `,"instructions":`...)
		b = mcp.AppendString(b, d.instructions)
	}
	b = append(b, `,"ttlMs":0,"cacheScope":"private","_meta":{"`+mcp.MetaServerInfo+`":`...)
	b = append(b, d.serverInfo...)
	return append(b, `}}`...)
}
