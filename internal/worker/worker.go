package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"toolhub/internal/bus"
	"toolhub/internal/registry"
)

// Config says as whom a worker runs. Conn is required.
type Config struct {
	Conn *bus.Conn
	// ID names the worker among those of the hub, "" is the identity of Conn. No
	// two running workers may share it.
	ID string
	// Logger is for the operator; nil discards.
	Logger *slog.Logger
	// LeaseTTL is how long the worker's servers stay with it when it is not heard
	// of any more, in whole seconds. 0 is 5 s, which is for one NATS node; a
	// cluster may be without a leader for longer than that and needs 15 s.
	LeaseTTL time.Duration
}

// Validate reports what is wrong with c, naming the field.
func (c *Config) Validate() error {
	var errs []error
	if c.Conn == nil {
		errs = append(errs, errors.New("conn: is missing"))
	}
	if c.LeaseTTL != 0 && (c.LeaseTTL < time.Second || c.LeaseTTL%time.Second != 0) {
		errs = append(errs, fmt.Errorf("lease ttl: %v is not in whole seconds, or below 1s", c.LeaseTTL))
	}
	return errors.Join(errs...)
}

const (
	defaultLeaseTTL = 5 * time.Second
	// leasePause is the wait after a lease could not be had, mostly because NATS
	// is away.
	leasePause = 500 * time.Millisecond
	// releaseTimeout bounds what a worker still tells NATS at its end.
	releaseTimeout = 2 * time.Second
	// serviceVersion is what `nats micro` shows.
	serviceVersion = "0.1.0"
)

// errLeaseLost ends an incarnation: everything it runs stops before the lease
// can move to another worker.
var errLeaseLost = errors.New("the worker's lease was lost")

// errDrained ends a worker that was asked to end over the bus.
var errDrained = errors.New("the worker was asked to drain")

// Run runs a worker until ctx ends, and returns ctx's cause, or until it is
// asked over the bus to drain, which is no error. It ends in order: no new calls,
// running ones finish within the hub's drain_timeout, the servers stop, and
// other workers can claim them at once. A lost lease, which mostly means that
// NATS was away, ends everything at once; then a new incarnation begins.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	w := &worker{conn: cfg.Conn, id: cfg.ID, log: cfg.Logger, ttl: cfg.LeaseTTL}
	if w.id == "" {
		w.id = w.conn.Identity()
	}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	if w.ttl == 0 {
		w.ttl = defaultLeaseTTL
	}
	if err := w.conn.Advertise("toolhub-worker", serviceVersion, "Runs MCP servers for a hub"); err != nil {
		return fmt.Errorf("couldn't advertise the worker: %w", err)
	}
	w.registry = registry.New(w.conn, w.log)

	// The registry runs for longer than ctx: draining needs it.
	watching, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	var parts sync.WaitGroup
	defer parts.Wait()
	defer stop(nil)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	parts.Go(func() {
		if err := w.registry.Run(watching); watching.Err() == nil {
			cancel(fmt.Errorf("couldn't watch the hub: %w", err))
		}
	})
	if err := w.registry.WaitSynced(ctx); err != nil {
		return err
	}
	var err error
	if w.seal, err = w.conn.Seal(ctx); err != nil {
		return err
	}
	for {
		err := w.live(ctx)
		switch {
		case errors.Is(err, errDrained):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, errLeaseLost):
			return err
		}
	}
}

// worker is what all incarnations of a worker have in common.
type worker struct {
	conn     *bus.Conn
	id       string
	log      *slog.Logger
	ttl      time.Duration
	registry *registry.Registry
	seal     *bus.Seal
}

// live is one incarnation, from its lease to the end of all it has started.
func (w *worker) live(ctx context.Context) error {
	name := rand.Text()
	lease, err := w.acquire(ctx, name)
	if err != nil {
		return err
	}
	w.emitLease("acquired", name)
	w.log.Info("worker is up", "worker", w.id, "incarnation", name)
	ended := newIncarnation(w, name).run(ctx, lease)
	if isClosed(lease.Lost()) {
		w.emitLease("lost", name)
		return ended
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := lease.Release(ctx); err != nil {
		w.log.Warn("couldn't release the lease, it ends by itself", "error", err)
		return ended
	}
	w.emitLease("released", name)
	return ended
}

// acquire gets the lease of an incarnation, however long NATS is away.
func (w *worker) acquire(ctx context.Context, name string) (*bus.Lease, error) {
	said := ""
	for {
		lease, err := w.conn.AcquireLease(ctx, w.id, name, nil, w.ttl)
		if err == nil {
			return lease, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, bus.ErrNotPermitted) || errors.Is(err, bus.ErrConflict) {
			return nil, err
		}
		if text := err.Error(); text != said {
			said = text
			w.log.Warn("no lease yet, still trying", "error", err)
		}
		wait(ctx, leasePause)
	}
}

func (w *worker) emitLease(what, incarnation string) {
	w.conn.Emit(bus.Event{Kind: "lease", Subject: w.id, What: what, Data: map[string]string{"incarnation": incarnation}})
}
