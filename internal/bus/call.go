package bus

import (
	"context"
	"errors"
	"time"

	"toolhub/internal/mcp"
)

// Request is one call.
type Request struct {
	// Subject is one of [CallSubject], [AtSubject] or [APISubject].
	Subject string
	// Body is a whole JSON-RPC request.
	Body []byte
	Meta Meta
	// Worker is the identity of the process that serves Subject, if it is
	// known: it gets the cancellation, and [Conn.Abandon] ends the call.
	Worker string
}

// Meta is what a call carries that is not MCP. A call from a program that is
// none of ours may have none of it.
type Meta struct {
	// CallID names the call. "" makes Call choose one.
	CallID string
	// Deadline is when the caller stops waiting. Zero is never.
	Deadline time.Time
	// Principal is who is calling, as authenticated; "" is unknown.
	Principal string
	// ClientEra is the era that the client speaks; "" is unknown.
	ClientEra mcp.Era
	// ToolSet is the id of the ToolSet that the name was resolved in.
	ToolSet string
	// Taint lists the servers whose output is in the context of the caller's model.
	Taint []string
	// Traceparent and Tracestate are the W3C trace context.
	Traceparent, Tracestate string
	// Server and Method are read from the subject, on the side that serves.
	Server, Method string
}

// Reply is the end of a call.
type Reply struct {
	// Body is a whole JSON-RPC response.
	Body []byte
	// IsError says that Body is an error response of the server itself.
	IsError bool
}

// Call makes one call and waits for its end. notify gets each notification, in
// order, on the caller's goroutine; nil drops them. An error is an [*mcp.Fault]:
//
//   - unavailable/no_responders: nobody serves the subject, the call never started;
//   - unavailable/outcome_unknown: the connection was lost while the call ran;
//   - timeout: Deadline has passed;
//   - whatever fault the side that serves replied with;
//
// or the cause of ctx, if ctx ended first. Then the other side is told to cancel.
func (c *Conn) Call(ctx context.Context, r *Request, notify func(body []byte)) (Reply, error) {
	return Reply{}, errors.New("not yet")
}

// Abandon ends, as unavailable/outcome_unknown, all calls of this Conn that wait
// for worker. It is for whoever learns that worker is dead.
func (c *Conn) Abandon(worker string) {}
