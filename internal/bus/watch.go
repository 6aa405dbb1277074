package bus

import (
	"context"
	"errors"
)

// Watch follows the keys of a bucket that match filter (">" for all; several
// filters are separated by spaces) until ctx ends, and returns ctx's cause. It
// survives the loss of the connection, of the server and of the bucket itself.
//
// apply gets the changes in order, coalesced: at most one entry per key, the
// newest. A key that went is delivered with Deleted set, even if it went unseen.
// state(true, …) says that the view built from the batches is complete and
// current, state(false, reason) that it may be stale from now on. Both run on
// the caller's goroutine; state may be nil.
func (c *Conn) Watch(ctx context.Context, bucket, filter string, apply func(batch []Entry), state func(live bool, reason string)) error {
	return errors.New("not yet")
}
