package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Lease is the claim of one incarnation of a process to be alive: the key
// lease.<worker>.<incarnation> of the bucket reg, renewed every TTL/5. An
// incarnation has one lease in its life; once lost it never comes back.
type Lease struct {
	conn   *Conn
	key    string
	value  []byte
	ttl    time.Duration
	margin time.Duration

	lost    chan struct{}
	release chan struct{} // closed by Release
	once    sync.Once
	done    chan struct{} // closed when the renewals have ended

	// These belong to the goroutine of the renewals until done is closed.
	rev   uint64
	acked time.Time // when the newest renewal that was acknowledged was sent
}

const (
	minMargin = 200 * time.Millisecond
	maxMargin = 2 * time.Second
)

// AcquireLease makes the lease and starts to renew it. value is stored with it.
// ttl is in whole seconds, 1 s at the least. It fails with [ErrConflict] if the
// incarnation has a lease already.
func (c *Conn) AcquireLease(ctx context.Context, worker, incarnation string, value []byte, ttl time.Duration) (*Lease, error) {
	l := &Lease{
		conn: c, key: Key(KeyLease, worker, incarnation), value: value, ttl: ttl,
		margin:  min(max(ttl/10, minMargin), maxMargin),
		lost:    make(chan struct{}),
		release: make(chan struct{}), done: make(chan struct{}),
	}
	// The lease runs from when the server stores it, which is not before this.
	sent := time.Now()
	ctx, cancel := context.WithTimeout(ctx, ttl)
	defer cancel()
	none := uint64(0)
	rev, err := c.Put(ctx, BucketReg, l.key, value, PutOptions{Revision: &none, TTL: ttl})
	if err != nil {
		return nil, fmt.Errorf("couldn't acquire the lease of %s: %w", worker, err)
	}
	l.rev, l.acked = rev, sent
	if !c.spawn(l.keep) {
		return nil, fmt.Errorf("couldn't acquire the lease of %s: %w", worker, nats.ErrConnectionClosed)
	}
	return l, nil
}

// Key is the key of the lease in the bucket reg.
func (l *Lease) Key() string { return l.key }

// Lost is closed before anybody else may see the lease end: when a renewal was
// refused, or when none was acknowledged for TTL less a margin. It is not
// closed by Release.
func (l *Lease) Lost() <-chan struct{} { return l.lost }

// keep renews the lease until it is released or lost.
func (l *Lease) keep() {
	defer close(l.done)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	results := make(chan error, 1)
	renewing := false
	var sent time.Time
	var rev uint64
	tick := time.NewTicker(l.ttl / 5)
	defer tick.Stop()
	end := time.NewTimer(l.left())
	defer end.Stop()
	// A renewal under way ends with ctx; l.rev is not to be changed after it.
	defer func() {
		cancel()
		if renewing {
			<-results
		}
	}()
	for {
		select {
		case <-l.release:
			return
		case <-l.conn.closing:
			return
		case <-end.C:
			l.lose("no renewal was acknowledged in time")
			return
		case <-tick.C:
			if l.left() <= 0 { // the machine slept
				l.lose("no renewal was acknowledged in time")
				return
			}
			if renewing {
				continue
			}
			renewing, sent = true, time.Now()
			expected, left := l.rev, l.left()
			go func() {
				ctx, cancel := context.WithTimeout(ctx, left)
				defer cancel()
				var err error
				rev, err = l.conn.Put(ctx, BucketReg, l.key, l.value, PutOptions{Revision: &expected, TTL: l.ttl})
				results <- err
			}()
		case err := <-results:
			renewing = false
			if errors.Is(err, ErrConflict) || errors.Is(err, ErrNotPermitted) {
				l.lose("a renewal was refused: " + err.Error())
				return
			}
			if err == nil {
				l.rev, l.acked = rev, sent
				end.Reset(l.left())
			}
		}
	}
}

// left is how long the lease is certainly held. Both clocks are asked: the
// monotonic one stands still while a machine sleeps, the other can be set.
func (l *Lease) left() time.Duration {
	now := time.Now()
	passed := max(now.Sub(l.acked), now.Round(0).Sub(l.acked.Round(0)))
	return l.ttl - l.margin - passed
}

func (l *Lease) lose(reason string) {
	l.conn.log.Error("lease lost", "key", l.key, "reason", reason)
	close(l.lost)
}

// Release ends the lease at once, so that others may take over.
func (l *Lease) Release(ctx context.Context) error {
	l.once.Do(func() { close(l.release) })
	select {
	case <-l.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-l.lost:
		return nil
	default:
	}
	// Without a condition: a renewal that was cut short may have been stored,
	// and no other process has this key.
	if err := l.conn.Delete(ctx, BucketReg, l.key, PutOptions{}); err != nil {
		return fmt.Errorf("couldn't release the lease: %w", err)
	}
	return nil
}
