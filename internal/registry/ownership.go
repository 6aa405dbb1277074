package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"toolhub/internal/bus"
)

// ErrOwned is returned by [Registry.Claim] for a server whose owner lives.
var ErrOwned = errors.New("server is owned by a live worker")

// EndIncarnations removes the leases of all earlier incarnations of worker.
// Only who knows that none of them can be alive may call it: `hub up` does, since
// it holds the lock of the state directory. Their servers can be claimed at once.
func EndIncarnations(ctx context.Context, conn *bus.Conn, worker string) error {
	leases, err := conn.List(ctx, bus.BucketReg, bus.Key(bus.KeyLease, worker)+".>")
	if err != nil {
		return fmt.Errorf("couldn't read the leases of worker %q: %w", worker, err)
	}
	for _, e := range leases {
		if err := conn.Delete(ctx, bus.BucketReg, e.Key, bus.PutOptions{}); err != nil {
			return fmt.Errorf("couldn't end %q: %w", e.Key, err)
		}
	}
	return nil
}

// Claim makes worker, which must hold the lease of incarnation, the owner of
// server and returns the epoch, the number that fences all it writes and serves
// as owner. To claim what it owns already changes the epoch. It returns
// [ErrOwned] while another live worker owns the server, and [bus.ErrConflict]
// when another claim came first.
func (r *Registry) Claim(ctx context.Context, worker, incarnation, server string) (epoch uint64, err error) {
	var revision uint64
	key := bus.Key(bus.KeyOwn, server)
	e, err := conn404(r.conn.Get(ctx, bus.BucketReg, key))
	if err != nil {
		return 0, fmt.Errorf("couldn't read the owner of %q: %w", server, err)
	}
	if e != nil {
		revision = e.Rev
		var own Own
		if err := json.Unmarshal(e.Value, &own); err == nil && own.Incarnation != incarnation {
			// The bucket, not the view, knows whether the owner's lease is there: a
			// view that lags behind would only make us wait, never claim too early.
			l, err := conn404(r.conn.Get(ctx, bus.BucketReg, bus.Key(bus.KeyLease, own.Worker, own.Incarnation)))
			if err != nil {
				return 0, fmt.Errorf("couldn't read the lease of %q: %w", own.Worker, err)
			}
			if l != nil {
				return 0, ErrOwned
			}
		}
	}
	data, err := json.Marshal(Own{Worker: worker, Incarnation: incarnation, Since: time.Now().UTC()})
	if err != nil {
		return 0, err
	}
	return r.conn.Put(ctx, bus.BucketReg, key, data, bus.PutOptions{Revision: &revision})
}

// Unclaim gives server up so that another worker can claim it at once. It is
// no error if the epoch is over already.
func (r *Registry) Unclaim(ctx context.Context, server string, epoch uint64) error {
	err := r.conn.Delete(ctx, bus.BucketReg, bus.Key(bus.KeyOwn, server), bus.PutOptions{Revision: &epoch})
	if errors.Is(err, bus.ErrConflict) {
		return nil
	}
	return err
}

// PublishStatus writes what the owner says of server. It returns
// [bus.ErrConflict] when the epoch is over.
func (r *Registry) PublishStatus(ctx context.Context, worker, server string, epoch uint64, s Status) error {
	s.Epoch = epoch
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	_, err = r.conn.Put(ctx, bus.BucketReg, bus.Key(bus.KeyStatus, server, worker), data, fenced(server, epoch))
	return err
}

// Forget removes what the owner has published of a server that is defined no
// more. It is no error if the epoch is over already.
func (r *Registry) Forget(ctx context.Context, worker, server string, epoch uint64) error {
	var errs []error
	for _, key := range []string{bus.Key(bus.KeyStatus, server, worker), bus.Key(bus.KeyCatalog, server)} {
		if err := r.conn.Delete(ctx, bus.BucketReg, key, fenced(server, epoch)); err != nil && !errors.Is(err, bus.ErrConflict) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func fenced(server string, epoch uint64) bus.PutOptions {
	return bus.PutOptions{FenceKey: bus.Key(bus.KeyOwn, server), FenceRev: epoch}
}

// conn404 turns "not found" into nil.
func conn404(e bus.Entry, err error) (*bus.Entry, error) {
	if errors.Is(err, bus.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &e, nil
}
