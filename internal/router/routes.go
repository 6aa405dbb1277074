package router

import (
	"fmt"

	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
)

// destination is where a request goes.
type destination struct {
	server string
	// change puts the server's own name or URI into the params, nil if that is what
	// is there already.
	change *mcp.Change
	// toolSet is the id of the list that the name was found in, "" if it is no name.
	toolSet string
}

// routes find the destination of the requests that go to servers, by method.
// toolSet is the id of the list that the caller says it was shown.
var routes = map[string]func(e *engine, req *request, toolSet string) (destination, error){
	mcp.MethodToolsCall:     (*engine).routeTool,
	mcp.MethodPromptsGet:    (*engine).routePrompt,
	mcp.MethodResourcesRead: (*engine).routeResource,
	mcp.MethodComplete:      (*engine).routeCompletion,
	mcp.MethodTasksGet:      (*engine).routeTask,
	mcp.MethodTasksUpdate:   (*engine).routeTask,
	mcp.MethodTasksCancel:   (*engine).routeTask,
}

func (e *engine) routeTool(req *request, toolSet string) (destination, error) {
	return e.routeName(req, &toolNames, toolSet)
}

func (e *engine) routePrompt(req *request, toolSet string) (destination, error) {
	return e.routeName(req, &promptNames, toolSet)
}

// names is a kind of thing that has a name.
type names struct {
	kind    catalog.Kind
	word    string
	resolve func(*catalog.ToolSet, string) (*catalog.Entry, bool)
}

var (
	toolNames   = names{catalog.KindTool, "tool", (*catalog.ToolSet).Resolve}
	promptNames = names{catalog.KindPrompt, "prompt", (*catalog.ToolSet).ResolvePrompt}
)

// routeName looks a name up: in the list that the caller says it was shown (K2),
// if it is remembered, else in the caller's present one. A name whose server is
// known but not ready is unavailable (K5), any other is unknown (K1).
func (e *engine) routeName(req *request, n *names, toolSet string) (destination, error) {
	if req.name == "" {
		return destination{}, mcp.InvalidParams("params.name is missing, it must be the name of a " + n.word)
	}
	present := e.list(req.scope, req.caller).set.Digest(n.kind)
	if toolSet != "" && toolSet != present {
		if to, ok, known := e.lists.past.of(listID{req.scope, n.kind, toolSet}, req.name); ok {
			return named(to.server, toolSet, req.name, to.name), nil
		} else if known {
			return destination{}, unknown(n.word, req.name)
		}
	}
	entry, err := e.findName(req, n, req.name)
	if err != nil {
		return destination{}, err
	}
	return named(entry.Server, present, req.name, ownName(entry)), nil
}

// findName is find for a name. What was offered before by a server that is not
// ready now is not unknown.
func (e *engine) findName(req *request, n *names, name string) (*catalog.Entry, error) {
	entry, err := e.find(req, n.resolve, name)
	if err != nil || entry != nil {
		return entry, err
	}
	if to, ok := e.lists.past.latest(req.scope, n.kind, name); ok {
		if _, err := e.ready(to.server); mcp.IsKind(err, mcp.KindUnavailable) {
			return nil, err
		}
	}
	return nil, unknown(n.word, name)
}

// ownName is what the server calls a tool or prompt.
func ownName(e *catalog.Entry) string {
	if e.Tool != nil {
		return e.Tool.Name
	}
	return e.Item.Key
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
		entry, err := e.findName(req, &promptNames, name)
		if err != nil {
			return destination{}, err
		}
		server, own = entry.Server, ownName(entry)
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
	to, asleep, err := e.locate(scope, c, uri)
	switch {
	case err == nil && asleep:
		_, err := e.ready(to.Server)
		return to, err
	case err == nil:
		return to, nil
	}
	if e := e.unlisted(scope); e != nil {
		return catalog.URITarget{}, e
	}
	return catalog.URITarget{}, err
}

// locate finds the owner of a resource, whether or not that is asleep. Whoever
// lists it has it, even asleep; an awake one that does not only may.
func (e *engine) locate(scope string, c caller, uri string) (to catalog.URITarget, asleep bool, err error) {
	to, err = e.list(scope, c).set.ResolveURI(uri)
	if err == nil && to.Listed {
		return to, false, nil
	}
	if sleeper, other := e.asleep(scope, c).ResolveURI(uri); other == nil && (err != nil || sleeper.Listed) {
		return sleeper, true, nil
	}
	return to, false, err
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
