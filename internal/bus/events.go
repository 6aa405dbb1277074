package bus

import (
	"context"
	"errors"
	"time"
)

// Event is something that happened in the hub.
type Event struct {
	// ID is unique; "" makes Emit choose one.
	ID string
	// Time is when it happened; zero makes Emit set it.
	Time time.Time
	// Kind (server, catalog, tool, call, …), Subject (the id of what it
	// happened to) and What (up, published, …) make the subject of the message.
	Kind, Subject, What string
	// Source is the identity of the process; "" makes Emit set it.
	Source string
	// Data is encoded as JSON; it must not be changed after Emit. From
	// [Conn.Events] it is a jsontext.Value, nil if there was none.
	Data any
}

// Emit publishes an event. It never blocks: events beyond what can be sent are
// dropped and counted.
func (c *Conn) Emit(e Event) {}

// EventsDropped is how many events Emit has dropped.
func (c *Conn) EventsDropped() uint64 { return 0 }

// Events calls f for each event that matches filter (see [EventFilter]), in
// order, until ctx ends: those kept since that long ago and then new ones; a
// since of 0 is new ones only. It returns ctx's cause.
func (c *Conn) Events(ctx context.Context, filter string, since time.Duration, f func(Event)) error {
	return errors.New("not yet")
}
