package router

import (
	"context"
	"errors"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
)

// delivery is an operation that reaches a server.
type delivery struct {
	method string
	key    string // the param that says what it is about
	// arguments says that it has the param arguments.
	arguments bool
}

var deliveries = map[string]delivery{
	"tools.call":     {mcp.MethodToolsCall, "name", true},
	"prompts.get":    {mcp.MethodPromptsGet, "name", true},
	"resources.read": {mcp.MethodResourcesRead, "uri", false},
}

// itemsList is the operation for the whole list of a kind as a principal sees it, or
// the part of one server, under exposed names and URIs.
func itemsList(kind catalog.Kind, member string) func(*api, jsontext.Value) (any, error) {
	return func(a *api, params jsontext.Value) (any, error) {
		var server, principal string
		if err := readParams(params, param{name: "server", text: &server}, param{name: "principal", text: &principal}); err != nil {
			return nil, err
		}
		if err := a.engine.known(server); err != nil {
			return nil, err
		}
		defs := []jsontext.Value{}
		for _, entry := range a.engine.list("", caller{principal: principal}).set.List(kind) {
			if server == "" || server == entry.Server {
				defs = append(defs, entry.Def())
			}
		}
		return map[string]any{member: defs}, nil
	}
}

// deliver makes a request of a server as a principal. What comes back is the
// server's answer; for a tool that is not there it is a result, too (K1), for the
// model that made it up.
func (a *api) deliver(ctx context.Context, in *bus.Incoming, m *mcp.Message, d *delivery) (bus.Reply, error) {
	var key, principal string
	var arguments, meta jsontext.Value
	want := []param{{name: d.key, text: &key, required: true}, {name: "principal", text: &principal}, {name: "_meta", object: &meta}}
	if d.arguments {
		want = slices.Insert(want, 1, param{name: "arguments", object: &arguments})
	}
	err := readParams(m.Params, want...)
	if err != nil {
		return bus.Reply{}, err
	}
	if meta, err = modernMeta(meta); err != nil {
		return bus.Reply{}, err
	}
	changes := []mcp.Change{{Name: d.key, Value: mcp.QuoteString(key)}}
	if arguments != nil {
		changes = append(changes, mcp.Change{Name: "arguments", Value: arguments})
	}
	params, err := mcp.Edit(nil, append(changes, mcp.Change{Name: "_meta", Value: meta})...)
	if err != nil {
		return bus.Reply{}, err
	}
	req := &request{id: m.ID, method: d.method, params: params, caller: caller{principal: principal, era: mcp.EraModern}}
	if d.key == "uri" {
		req.uri = key
	} else {
		req.name = key
	}
	reply, err := a.engine.call(ctx, req, func(body []byte) {
		_ = in.Notify(body) // that the caller cannot be reached shows at the end
	})
	if rpc, ok := errors.AsType[*mcp.Error](err); ok {
		// Everything else that can be wrong with the params was found above.
		if d.method == mcp.MethodToolsCall {
			return bus.Reply{Body: mcp.AppendResult(nil, m.ID, unknownResult(rpc.Message, a.unknown(key, principal)))}, nil
		}
		return bus.Reply{}, mcp.NewFault(mcp.KindNotFound, "unknown_item", "%s", rpc.Message)
	}
	if err != nil && ctx.Err() == nil {
		err = a.engine.fault(ctx, req, err)
	}
	return reply, err
}

// metaFault is the member of a result's _meta that tells a program what the text
// tells a model: the hub refused the call, and nothing was sent anywhere.
const metaFault = "toolhub/fault"

// unknownResult is the tool result for a name that is not in the list.
func unknownResult(text string, f *mcp.Fault) jsontext.Value {
	b := append([]byte(`{"resultType":"complete","isError":true,"content":[{"type":"text","text":`), mcp.QuoteString(text)...)
	b = append(b, `}],"_meta":{"`+metaFault+`":`...)
	b = append(b, f.RPC().Data...)
	return append(b, `}}`...)
}

// unknown says why a name is not in the list. An operator may know of a tool that
// the policy hides.
func (a *api) unknown(name, principal string) *mcp.Fault {
	hubPrefix, parts := recipe(a.engine.registry.View(), listKey{principal: principal})
	for i := range parts {
		parts[i].HideDenied = false
	}
	if entry, ok := catalog.Build(sources(parts, principal), hubPrefix).Resolve(name); ok {
		f := mcp.NewFault(mcp.KindDenied, "policy", "the policy denies every call of %s/%s, so it is not listed", entry.Server, entry.Tool.Name)
		f.Server = entry.Server
		return f
	}
	return mcp.NewFault(mcp.KindNotFound, "unknown_tool", "there is no tool %q", mcp.Shorten(name, maxShownName))
}

// modernMeta is meta with what a modern request must say.
func modernMeta(meta jsontext.Value) (jsontext.Value, error) {
	var changes []mcp.Change
	for _, c := range []mcp.Change{
		{Name: mcp.MetaProtocolVersion, Value: mcp.QuoteString(mcp.LatestModern)},
		{Name: mcp.MetaClientCapabilities, Value: jsontext.Value("{}")},
	} {
		if mcp.Field(meta, c.Name) == nil {
			changes = append(changes, c)
		}
	}
	return mcp.Edit(meta, changes...)
}
