package bus

import (
	"context"
	"errors"
	"time"
)

// Lease is the claim of one incarnation of a process to be alive: the key
// lease.<worker>.<incarnation> of the bucket reg, renewed every TTL/5. An
// incarnation has one lease in its life; once lost it never comes back.
type Lease struct{}

// AcquireLease makes the lease and starts to renew it. value is stored with it.
// ttl is in whole seconds, 1 s at the least. It fails with [ErrConflict] if the
// incarnation has a lease already.
func (c *Conn) AcquireLease(ctx context.Context, worker, incarnation string, value []byte, ttl time.Duration) (*Lease, error) {
	return nil, errors.New("not yet")
}

// Key is the key of the lease in the bucket reg.
func (l *Lease) Key() string { return "" }

// Lost is closed before anybody else may see the lease end: when a renewal was
// refused, or when none was acknowledged for TTL less a margin. It is not
// closed by Release.
func (l *Lease) Lost() <-chan struct{} { return nil }

// Release ends the lease at once, so that others may take over.
func (l *Lease) Release(ctx context.Context) error { return errors.New("not yet") }
