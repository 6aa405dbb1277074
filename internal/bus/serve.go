package bus

import (
	"context"
	"errors"
)

// Incoming is a call on the side that serves it.
type Incoming struct {
	Subject string
	Meta    Meta
	// Body is the JSON-RPC request; it has not been parsed.
	Body []byte
}

// Notify sends a notification, a whole JSON-RPC message, to the caller. It fails
// after the handler has returned and while the connection is down.
func (in *Incoming) Notify(body []byte) error { return errors.New("not yet") }

// Handler answers one call. ctx ends when the caller cancels, its deadline
// passes or the service stops. An [*mcp.Fault] reaches the caller as it is; of
// any other error it gets only an id, the text goes to the log.
type Handler func(ctx context.Context, in *Incoming) (Reply, error)

// Service takes the calls of one subject.
type Service struct{}

// Serve answers calls on subject, which may end in ">", each on a goroutine of
// its own; beyond limit at once (0 is no limit) they are refused as overloaded.
// With a queue, the members of that queue group share the calls; without one, a
// call id is answered once and a repetition is refused.
func (c *Conn) Serve(subject, queue string, limit int, h Handler) (*Service, error) {
	return nil, errors.New("not yet")
}

// Drain stops taking calls and waits for the running ones, or for ctx.
func (s *Service) Drain(ctx context.Context) error { return nil }

// Stop stops taking calls, cancels the running ones and waits for them.
func (s *Service) Stop() {}
