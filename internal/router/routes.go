package router

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// destination is where a request goes.
type destination struct {
	server string
	// change puts the server's own name or URI into the params, nil if that is what
	// is there already.
	change *mcp.Change
	// toolSet is the id of the ToolSet that the name was found in.
	toolSet string
}

// routes find the destination of the requests that go to servers, by method.
// toolSet is the id of the ToolSet that the caller says it was shown.
var routes = map[string]func(e *engine, req *request, toolSet string) (destination, error){
	mcp.MethodToolsCall:     (*engine).routeTool,
	mcp.MethodPromptsGet:    (*engine).routePrompt,
	mcp.MethodResourcesRead: (*engine).routeResource,
	mcp.MethodComplete:      (*engine).routeCompletion,
}

// routeTool looks a name up: in the ToolSet that the caller says it was shown (K2),
// if it is remembered, else in the caller's present one. A name whose server is
// known but not ready is unavailable (K5), any other is unknown (K1).
func (e *engine) routeTool(req *request, toolSet string) (destination, error) {
	if req.name == "" {
		return destination{}, mcp.InvalidParams("params.name is missing, it must be the name of a tool")
	}
	l := e.list(req.scope, req.caller)
	if toolSet != "" && toolSet != l.set.ID {
		if to, ok, known := e.lists.past.of(req.scope, toolSet, req.name); ok {
			return named(to.server, toolSet, req.name, to.tool), nil
		} else if known {
			return destination{}, unknown("tool", req.name)
		}
	}
	entry, err := e.find(req, (*catalog.ToolSet).Resolve, req.name)
	if err != nil {
		return destination{}, err
	}
	if entry != nil {
		return named(entry.Server, l.set.ID, req.name, entry.Tool.Name), nil
	}
	if to, ok := e.lists.past.latest(req.scope, req.name); ok {
		if _, err := e.ready(to.server); mcp.IsKind(err, mcp.KindUnavailable) {
			return destination{}, err
		}
	}
	return destination{}, unknown("tool", req.name)
}

func (e *engine) routePrompt(req *request, _ string) (destination, error) {
	if req.name == "" {
		return destination{}, mcp.InvalidParams("params.name is missing, it must be the name of a prompt")
	}
	entry, err := e.find(req, (*catalog.ToolSet).ResolvePrompt, req.name)
	switch {
	case err != nil:
		return destination{}, err
	case entry == nil:
		return destination{}, unknown("prompt", req.name)
	}
	return named(entry.Server, "", req.name, entry.Item.Key), nil
}

func (e *engine) routeResource(req *request, _ string) (destination, error) {
	if req.uri == "" {
		return destination{}, mcp.InvalidParams("params.uri is missing, it must be the URI of a resource")
	}
	to, err := e.findURI(req.scope, req.caller, req.uri)
	if err != nil {
		return destination{}, err
	}
	d := destination{server: to.Server}
	if to.URI != req.uri {
		d.change = &mcp.Change{Name: "uri", Value: mcp.QuoteString(to.URI)}
	}
	return d, nil
}

// routeCompletion goes by what the arguments are of (server/utilities/completion):
// a prompt, a template, or an instance of one.
func (e *engine) routeCompletion(req *request, _ string) (destination, error) {
	ref := mcp.Field(req.params, "ref")
	var server, own string
	change := func(member string) (destination, error) {
		edited, err := mcp.Edit(ref, mcp.Change{Name: member, Value: mcp.QuoteString(own)})
		return destination{server: server, change: &mcp.Change{Name: "ref", Value: edited}}, err
	}
	text := func(member string) (string, error) {
		v := mcp.Field(ref, member)
		if v.Kind() != '"' {
			return "", mcp.InvalidParams("params.ref." + member + " must be a string")
		}
		return mcp.Text(v), nil
	}
	switch mcp.FieldString(ref, "type") {
	case "ref/prompt":
		name, err := text("name")
		if err != nil {
			return destination{}, err
		}
		entry, err := e.find(req, (*catalog.ToolSet).ResolvePrompt, name)
		switch {
		case err != nil:
			return destination{}, err
		case entry == nil:
			return destination{}, unknown("prompt", name)
		}
		server, own = entry.Server, entry.Item.Key
		return change("name")
	case "ref/resource":
		uri, err := text("uri")
		if err != nil {
			return destination{}, err
		}
		entry, err := e.find(req, (*catalog.ToolSet).ResolveTemplate, uri)
		if err != nil {
			return destination{}, err
		}
		if entry != nil {
			server, own = entry.Server, entry.Item.Key
			return change("uri")
		}
		to, err := e.findURI(req.scope, req.caller, uri)
		if err != nil {
			return destination{}, err
		}
		server, own = to.Server, to.URI
		return change("uri")
	}
	return destination{}, mcp.InvalidParams(`params.ref.type must be "ref/prompt" or "ref/resource"`)
}

// named is the destination of a request about something with a name.
func named(server, toolSet, name, own string) destination {
	d := destination{server: server, toolSet: toolSet}
	if own != name {
		d.change = &mcp.Change{Name: "name", Value: mcp.QuoteString(own)}
	}
	return d
}

// find looks something up in the caller's present lists. The error says why its
// server does not take calls just now; nil without one that there is no such
// thing. Where a server whose lists are not known yet is all there is, anything
// may be one of its.
func (e *engine) find(req *request, resolve func(*catalog.ToolSet, string) (*catalog.Entry, bool), key string) (*catalog.Entry, error) {
	if entry, ok := resolve(e.list(req.scope, req.caller).set, key); ok {
		return entry, nil
	}
	if entry, ok := resolve(e.asleep(req.scope, req.caller), key); ok {
		_, err := e.ready(entry.Server)
		return entry, err
	}
	return nil, e.unlisted(req.scope)
}

// findURI is find for a resource; the error for one that is not there is that of
// [catalog.ToolSet.ResolveURI].
func (e *engine) findURI(scope string, c caller, uri string) (catalog.URITarget, error) {
	to, err := e.list(scope, c).set.ResolveURI(uri)
	if err == nil {
		return to, nil
	}
	if to, asleep := e.asleep(scope, c).ResolveURI(uri); asleep == nil {
		_, err := e.ready(to.Server)
		return to, err
	}
	if e := e.unlisted(scope); e != nil {
		return catalog.URITarget{}, e
	}
	return catalog.URITarget{}, err
}

// asleep has what the caller could use if all servers were ready.
func (e *engine) asleep(scope string, c caller) *catalog.ToolSet {
	return e.lists.get(listKey{scope: scope, principal: c.principal, asleep: true}).set
}

// unlisted is why the one server in scope has no lists yet, nil if it has or if it
// is not the only one.
func (e *engine) unlisted(scope string) error {
	if s := e.registry.View().Get(scope); s != nil && s.Catalog == nil {
		_, err := e.ready(scope)
		return err
	}
	return nil
}

func unknown(what, name string) *mcp.Error {
	return mcp.InvalidParams(fmt.Sprintf("unknown %s: %s", what, mcp.QuoteString(mcp.Shorten(name, maxShownName))))
}

// maxShownName bounds a name that an error repeats, in bytes.
const maxShownName = 130

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
