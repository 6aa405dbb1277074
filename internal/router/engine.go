package router

import (
	"context"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// request is one request of a client, already in modern form: a front has
// parsed it strictly and put all that a session knows (log level, capabilities,
// version) into params._meta.
type request struct {
	id     jsontext.Value // the caller's own, raw; it goes over the bus and comes back in the answer
	method string
	params jsontext.Value // modern form
	name   string         // params.name, "" if none
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

// discovery is what the hub, or one server of it, says of itself.
type discovery struct {
	instructions string         // "" for none
	capabilities jsontext.Value // a JSON object
	serverInfo   jsontext.Value // a JSON object with name and version
}

// engine answers requests. All methods may be called concurrently.
type engine struct{}

// do answers one request. It blocks on nothing but the call itself. notify gets
// whole JSON-RPC notifications in order, on the goroutine of do, all before do
// returns. When ctx ends, the call is cancelled at the server.
func (e *engine) do(ctx context.Context, req *request, notify func(body []byte)) answer {
	panic("not yet")
}

// discover is what the scope says of itself; the legacy front makes the result
// of initialize of it.
func (e *engine) discover(scope string) discovery { panic("not yet") }

// known is a not_found fault for a scope that is no defined server, else nil.
func (e *engine) known(scope string) error { panic("not yet") }

// subscribe watches the caller's own list of tools in scope. The subscription
// must be closed.
func (e *engine) subscribe(scope string, c caller) *subscription { panic("not yet") }
