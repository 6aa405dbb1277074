package mcp

import (
	"context"
	"errors"

	"github.com/go-json-experiment/json/jsontext"
)

// Conn is one connection to one MCP server, in one era: [ConnectStdio] and
// [ConnectHTTP] make them. All methods may be called concurrently.
type Conn interface {
	// Call sends one request and waits for its answer, the raw result. The
	// error is an [*Error] if the server answered with one, else a [*Fault];
	// when ctx ends first the server is told and the error is ctx's cause.
	// A call that may have reached the server when the connection broke is
	// reported with [ReasonOutcomeUnknown]; it is never sent twice.
	Call(ctx context.Context, call *Call) (jsontext.Value, error)
	// Info is what the server said of itself when the connection was made.
	Info() *ServerInfo
	// Done is closed when the connection is of no use any more; Err says why.
	Done() <-chan struct{}
	// Err is the reason why Done is closed, nil before and after Close.
	Err() error
	// Close ends the connection and waits, within ctx, for all that it started.
	// Calls in flight fail at once.
	Close(ctx context.Context) error
}

// Call is one request to a server.
type Call struct {
	Method string
	// Params is the raw params in modern form: _meta has the caller's own
	// progress token, log level, capabilities and trace context. The Conn
	// translates it into what its era and its connection need: own request id,
	// own progress token, protocol version.
	Params jsontext.Value
	// Notify gets the notifications that belong to this call, in order, with
	// the caller's own progress token restored; all of them come before Call
	// returns. It must not block for long. Nil drops them.
	Notify func(method string, params jsontext.Value)
	// Request answers a request that a legacy server makes during this call
	// (elicitation, sampling, roots). Nil refuses them with -32601.
	Request func(ctx context.Context, method string, params jsontext.Value) (jsontext.Value, *Error)
	// Headers are the Mcp-Param-* headers of a modern HTTP request, by name.
	Headers map[string]string
}

// ServerInfo is what a server says of itself in server/discover or initialize.
type ServerInfo struct {
	Era     Era    `json:"era"`
	Version string `json:"protocolVersion"`
	// Server is for display only.
	Server       Implementation `json:"serverInfo"`
	Instructions string         `json:"instructions,omitempty"`
	// Capabilities is the raw capabilities object.
	Capabilities jsontext.Value `json:"capabilities,omitempty"`
}

// Has reports whether the server declared the capability (tools, logging, …).
func (i *ServerInfo) Has(capability string) bool { return Field(i.Capabilities, capability) != nil }

func asFault(err error) (*Fault, bool) { return errors.AsType[*Fault](err) }
