package router

import (
	"context"
	"errors"
	"log/slog"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nuid"
	"golang.org/x/sync/errgroup"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/config"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// request is one request of a client, already in modern form: a front has
// parsed it strictly and put all that a session knows (log level, capabilities,
// version) into params._meta.
type request struct {
	id     jsontext.Value // the caller's own, raw; it goes over the bus and comes back in the answer
	method string
	params jsontext.Value // modern form
	name   string         // params.name, "" if none
	uri    string         // params.uri, likewise
	scope  string         // "" the whole hub, else the id of the one server whose own names hold
	caller caller
}

// caller is who makes a request, and how.
type caller struct {
	principal string // as authenticated, "" for nobody in particular
	era       mcp.Era
}

// answer is a whole JSON-RPC response. err is set for an error response; its
// code chooses the HTTP status.
type answer struct {
	body []byte
	err  *mcp.Error
}

// engine answers requests. All methods may be called concurrently.
type engine struct {
	conn       *bus.Conn
	log        *slog.Logger
	registry   *registry.Registry
	lists      *lists
	changes    *changes
	watches    *watches
	serverInfo jsontext.Value
}

func newEngine(conn *bus.Conn, log *slog.Logger) *engine {
	reg := registry.New(conn, log)
	lists := newLists(conn, reg, log)
	e := &engine{
		conn: conn, log: log, registry: reg, lists: lists,
		changes: newChanges(conn, lists), serverInfo: mcp.ServerInfoJSON(programName, Version()),
	}
	e.watches = newWatches(e)
	return e
}

// run keeps the engine current until ctx ends, and returns when all it started
// has ended.
func (e *engine) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.registry.Run(ctx) })
	g.Go(func() error { return e.changes.run(ctx) })
	g.Go(func() error { return e.watches.run(ctx) })
	g.Go(func() error { return e.watchOwners(ctx) })
	return g.Wait()
}

// settings are those of the hub; the defaults as long as they are not known.
func (e *engine) settings() config.Settings {
	if v := e.registry.View(); v.Configured {
		return v.Settings
	}
	return config.Settings{}.WithDefaults()
}

// maxMessageBytes bounds what a client may send, on every transport.
func (e *engine) maxMessageBytes() int {
	if v := e.registry.View(); v.Configured {
		return int(v.Settings.MaxMessageBytes)
	}
	return mcp.DefaultMaxMessageBytes
}

// do answers one request. It blocks on nothing but the call itself (and, in the
// first moments of a router, on its first View). notify gets whole JSON-RPC
// notifications in order, on the goroutine of do, all before do returns. When
// ctx ends, the call is cancelled at the server.
func (e *engine) do(ctx context.Context, req *request, notify func(body []byte)) answer {
	if err := e.registry.WaitSynced(ctx); err != nil {
		return e.failed(ctx, req, err)
	}
	if err := e.known(req.scope); err != nil {
		return e.failed(ctx, req, err)
	}
	var body []byte
	var err error
	switch kind, ok := catalog.ListedBy(req.method); {
	case ok:
		body, err = e.listPage(req, kind)
	case routes[req.method] != nil:
		var reply bus.Reply
		if reply, err = e.call(ctx, req, notify); err == nil {
			return answerOf(reply)
		}
	case req.method == mcp.MethodDiscover:
		d := e.discover(req.scope)
		body = mcp.AppendResult(nil, req.id, d.Result())
	case req.method == methodHealth && wantsHealth(req.params):
		body = mcp.AppendResult(nil, req.id, e.health(req.scope))
	default:
		err = mcp.MethodNotFound(req.method)
	}
	if err != nil {
		return e.failed(ctx, req, err)
	}
	return answer{body: body}
}

// answerOf is the reply of a server, whose bytes are the answer.
func answerOf(reply bus.Reply) answer {
	a := answer{body: reply.Body}
	if reply.IsError {
		a.err = &mcp.Error{Code: mcp.CodeInternal}
		if m, err := mcp.ParseMessage(reply.Body, mcp.Lenient); err == nil && m.Err != nil {
			a.err = m.Err
		}
	}
	return a
}

// failed is the answer for a request that failed here or on the way.
func (e *engine) failed(ctx context.Context, req *request, err error) answer {
	rpc, ok := errors.AsType[*mcp.Error](err)
	if !ok {
		rpc = e.fault(ctx, req, err).RPC()
	}
	return answer{body: mcp.AppendError(nil, req.id, rpc), err: rpc}
}

// fault is err as a caller may see it. What is of no known kind goes to the log,
// and the caller gets an id to ask for.
func (e *engine) fault(ctx context.Context, req *request, err error) *mcp.Fault {
	if f, ok := errors.AsType[*mcp.Fault](err); ok {
		return f
	}
	if ctx.Err() != nil {
		return mcp.NewFault(mcp.KindUnavailable, mcp.ReasonCancelled, "the request was cancelled")
	}
	id := nuid.Next()
	e.log.Error("request failed inside", "error_id", id, "method", req.method, "scope", req.scope, "error", err)
	return mcp.NewFault(mcp.KindTransport, "internal", "internal error, see the log of %s for %s", e.conn.Identity(), id)
}

// known is a not_found fault for a scope that is no defined server, else nil.
func (e *engine) known(scope string) error {
	if scope == "" || e.registry.View().Get(scope) != nil {
		return nil
	}
	return unknownServer(scope)
}

func unknownServer(id string) *mcp.Fault {
	return mcp.NewFault(mcp.KindNotFound, "unknown_server", "there is no server %.64q", id)
}

// list has the caller's lists in scope.
func (e *engine) list(scope string, c caller) *list {
	return e.lists.get(listKey{scope: scope, principal: c.principal})
}

// paramHeaders are the arguments of a tool that a modern HTTP request mirrors in
// headers; none for an unknown name.
func (e *engine) paramHeaders(scope string, c caller, name string) []mcp.ParamHeader {
	if entry, ok := e.list(scope, c).set.Resolve(name); ok {
		return entry.Tool.Headers
	}
	return nil
}

// metaToolSet is the key of _meta that names a list of tools or prompts, and the
// one that a call or a prompts/get was made against.
const metaToolSet = "toolhub/toolset"

// listPage is the whole answer to a request for a list: the envelope around a page
// that is rendered once.
func (e *engine) listPage(req *request, kind catalog.Kind) ([]byte, error) {
	params, err := mcp.ParseParams(req.params)
	if err != nil {
		return nil, err
	}
	set := e.list(req.scope, req.caller).set
	modern := req.caller.era != mcp.EraLegacy
	page := (*catalog.ToolSet).Page
	if !modern {
		page = (*catalog.ToolSet).LegacyPage
	}
	defs, next, err := page(set, kind, params.Cursor, params.HasCursor, e.registry.View().Settings.PageSize)
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, len(req.id)+len(defs)+len(next)+len(e.serverInfo)+320)
	b = append(b, `{"jsonrpc":"2.0","id":`...)
	b = append(b, req.id...)
	b = append(b, `,"result":{`...)
	if modern {
		b = append(b, `"resultType":"complete",`...)
	}
	b = append(mcp.AppendString(b, kind.Listing().Member), ':')
	b = append(b, defs...)
	if next != "" {
		b = append(b, `,"nextCursor":`...)
		b = mcp.AppendString(b, next)
	}
	if modern {
		b = appendHint(b, e.hint(set, kind))
	}
	// A list whose items are called by name says which it is (K2).
	id := ""
	if kind == catalog.KindTool || kind == catalog.KindPrompt {
		id = set.Digest(kind)
	}
	if id != "" {
		b = append(b, `,"_meta":{"`+metaToolSet+`":"`...)
		b = append(append(b, id...), '"')
	}
	if modern {
		if id == "" {
			b = append(b, `,"_meta":{`...)
		} else {
			b = append(b, ',')
		}
		b = append(b, `"`+mcp.MetaServerInfo+`":`...)
		b = append(b, e.serverInfo...)
	}
	if modern || id != "" {
		b = append(b, '}')
	}
	return append(b, "}}"...), nil
}

// hint says how a list may be kept (L6): not at all where it depends on the
// caller, else as the servers allow.
func (e *engine) hint(set *catalog.ToolSet, kind catalog.Kind) catalog.Hint {
	if e.lists.arePersonal() {
		return catalog.Hint{}
	}
	return set.Hint(kind)
}

func appendHint(b []byte, h catalog.Hint) []byte {
	b = strconv.AppendInt(append(b, `,"ttlMs":`...), h.TTLMS, 10)
	if h.Public {
		return append(b, `,"cacheScope":"public"`...)
	}
	return append(b, `,"cacheScope":"private"`...)
}
