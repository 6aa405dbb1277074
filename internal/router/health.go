package router

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// The extension by which a client may ask how the hub is (M7).
const (
	extensionHealth = "toolhub/health"
	methodHealth    = "proxy/health"
)

// wantsHealth reports whether the client negotiated the extension.
func wantsHealth(params jsontext.Value) bool {
	capabilities := mcp.Field(mcp.Field(params, "_meta"), mcp.MetaClientCapabilities)
	for _, member := range []string{"extensions", "experimental"} { // by era
		if mcp.Field(mcp.Field(capabilities, member), extensionHealth) != nil {
			return true
		}
	}
	return false
}

// health is how the servers are on the whole. Which they are, and what is wrong
// with them, is for operators.
func (e *engine) health(scope string) jsontext.Value {
	servers, up, ready := 0, 0, 0
	for _, s := range e.registry.View().Servers {
		if scope != "" && s.ID() != scope {
			continue
		}
		servers++
		if s.Ready() {
			ready++
			if s.State() == registry.StateUp {
				up++
			}
		}
	}
	status := "degraded"
	switch {
	case up == servers:
		status = "up"
	case ready == 0:
		status = "down"
	}
	return fmt.Appendf(nil, `{"resultType":"complete","status":%q,"servers":%d,"up":%d,"degraded":%d,"down":%d}`, status, servers, up, ready-up, servers-ready)
}
