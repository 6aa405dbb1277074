package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"toolhub/internal/bus"
	"toolhub/internal/config"
	"toolhub/internal/registry"
)

const (
	// maxCalls bounds the calls of one server that run at once; the bounds that
	// matter are the server's own.
	maxCalls = 4096
	// claimPause is the wait after a server could not be claimed.
	claimPause = 250 * time.Millisecond
	// sweepEvery is how often unused parts of catalogs are removed.
	sweepEvery = 10 * time.Minute
)

// incarnation is a worker from one lease to its end. Its goroutine (run) owns
// all fields below ended.
type incarnation struct {
	*worker
	name string
	lot  *lot
	// hard ends everything at once.
	hard context.Context
	kill context.CancelCauseFunc
	// hosted is hosts for other goroutines, by server id.
	hosted sync.Map // of *host
	orders chan order
	ended  chan *host

	hosts   map[string]*host
	retries map[string]time.Time // when a server that could not be claimed is tried again
	tasks   sync.WaitGroup
}

func newIncarnation(w *worker, name string) *incarnation {
	in := &incarnation{
		worker: w, name: name, lot: newLot(w.id, w.seal), orders: make(chan order), ended: make(chan *host),
		hosts: map[string]*host{}, retries: map[string]time.Time{},
	}
	in.hard, in.kill = context.WithCancelCause(context.Background())
	return in
}

// run claims and runs servers until ctx ends, the lease is lost or an order to
// drain comes. When it returns, nothing is left of what it started.
func (in *incarnation) run(ctx context.Context, lease *bus.Lease) error {
	defer in.kill(nil)
	hub := in.conn.Hub()
	at, err := in.conn.Serve(bus.ServeAtSubject(hub, in.id), "", maxCalls, in.handleAt)
	if err != nil {
		return err
	}
	defer at.Stop()
	stopControl, err := in.serveControl()
	if err != nil {
		return err
	}
	defer stopControl()
	sweeping, stopSweep := context.WithCancel(in.hard)
	defer in.tasks.Wait()
	defer stopSweep()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	for {
		view := in.registry.View()
		retry.Reset(in.reconcile(view))
		select {
		case <-view.Superseded():
		case <-retry.C:
		case h := <-in.ended:
			in.remove(h)
		case o := <-in.orders:
			if o.verb == ctlDrain {
				close(o.done)
				return in.drain(lease, errDrained)
			}
			in.obey(o)
		case <-sweep.C:
			in.tasks.Go(func() { in.sweep(sweeping) })
		case <-ctx.Done():
			return in.drain(lease, context.Cause(ctx))
		case <-lease.Lost():
			return in.abandon()
		}
	}
}

func (in *incarnation) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := in.registry.SweepParts(ctx, time.Now()); err != nil {
		in.log.Warn("couldn't sweep parts of catalogs", "error", err)
	}
}

// reconcile makes what runs here what the view says should, without touching
// what is as it should be. It returns when it wants to be called again, view or
// no view.
func (in *incarnation) reconcile(v *registry.View) time.Duration {
	const idle = time.Hour
	if !v.Live {
		return idle // a view that may be out of date is no reason to start or stop anything
	}
	settings := v.Settings
	if !v.Configured { // there is no policy, so no call is allowed; but nothing has to stop
		settings = config.Settings{}.WithDefaults()
	}
	next := idle
	processes, tools := 0, 0
	for i, s := range v.Servers {
		before := tools
		if s.Catalog != nil && (s.Status == nil || !s.Status.Withheld) {
			tools += s.Catalog.Items()
		}
		h := in.hosts[s.ID()]
		if own := s.Own; own != nil && own.Incarnation != in.name && v.Alive(own.Worker, own.Incarnation) {
			if h != nil && h.epoch.Load() != 0 && own.Epoch > h.epoch.Load() {
				h.abandon(errOverthrown)
			}
			continue
		}
		refusal, wants := "", 0
		if s.Config.Command != "" {
			wants = max(1, s.Config.Replicas)
		}
		switch {
		case i >= settings.MaxServers:
			refusal = fmt.Sprintf("server %q is refused: the hub takes %d servers (max_servers)", s.ID(), settings.MaxServers)
		case processes+wants > settings.MaxStdioServers && wants > 0:
			refusal = fmt.Sprintf("server %q is refused: with its %s there would be %d, and a worker runs %d (max_stdio_servers)", s.ID(), plural(wants, "process"), processes+wants, settings.MaxStdioServers)
		default:
			processes += wants
		}
		switch {
		case h != nil:
			h.follow(&settings, s, refusal, before)
		case time.Now().Before(in.retries[s.ID()]):
			next = min(next, time.Until(in.retries[s.ID()]))
		default:
			in.host(newDefinition(&settings, s, refusal), before)
		}
	}
	for id, h := range in.hosts {
		if v.Get(id) == nil {
			h.leave(errRemoved)
		}
	}
	for id := range in.retries {
		if v.Get(id) == nil {
			delete(in.retries, id)
		}
	}
	return next
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ses", n, word)
}

// host begins to claim and run a server.
func (in *incarnation) host(def *definition, before int) {
	h := newHost(in, def)
	h.server.update(def, before)
	in.hosts[def.ID()] = h
	in.hosted.Store(def.ID(), h)
	go func() {
		h.run()
		in.ended <- h
	}()
}

// remove forgets a server that has ended; the next reconcile starts it again if
// it should run.
func (in *incarnation) remove(h *host) {
	id := h.server.id
	delete(in.hosts, id)
	in.hosted.CompareAndDelete(id, h)
	delete(in.retries, id)
	if h.again > 0 {
		in.retries[id] = time.Now().Add(h.again)
	}
}

// drain gives everything up in order. The end of the lease cuts it short.
func (in *incarnation) drain(lease *bus.Lease, cause error) error {
	in.log.Info("worker drains", "servers", len(in.hosts), "reason", cause)
	for _, h := range in.hosts {
		h.leave(cause)
	}
	for len(in.hosts) > 0 {
		select {
		case h := <-in.ended:
			in.remove(h)
		case o := <-in.orders:
			close(o.done)
		case <-lease.Lost():
			_ = in.abandon()
		}
	}
	return cause
}

// abandon ends everything at once, since another worker may soon run it.
func (in *incarnation) abandon() error {
	in.log.Error("lease lost, all servers stop", "servers", len(in.hosts))
	in.kill(errLeaseLost)
	for len(in.hosts) > 0 {
		select {
		case h := <-in.ended:
			in.remove(h)
		case o := <-in.orders:
			close(o.done)
		}
	}
	return errLeaseLost
}

var (
	errRemoved    = errors.New("the server was removed")
	errChanged    = errors.New("the server's definition has changed")
	errOverthrown = errors.New("another worker owns the server")
)
