package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/config"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// host runs one server from its claim to its end: one epoch. The server's
// definition may change meanwhile as long as its connection stays the same.
type host struct {
	in     *incarnation
	log    *slog.Logger
	server *server
	outbox *outbox
	epoch  atomic.Uint64 // 0 until it is claimed

	// stop asks for an orderly end, hard is the end.
	stop  context.Context
	leave context.CancelCauseFunc
	hard  context.Context
	// abandon ends the host at once.
	abandon context.CancelCauseFunc
	// drainTimeout is the hub's, in nanoseconds.
	drainTimeout atomic.Int64

	at gate // calls that come by the worker's own subject

	// again is how long to wait before the server is claimed again, set by run.
	again time.Duration
}

func newHost(in *incarnation, def *definition) *host {
	secrets := &redactor{}
	h := &host{in: in, log: secrets.logger(in.log).With("server", def.ID()), outbox: newOutbox()}
	h.stop, h.leave = context.WithCancelCause(in.hard)
	h.hard, h.abandon = context.WithCancelCause(in.hard)
	h.drainTimeout.Store(int64(def.drainTimeout))
	dial := newDialer(&def.Config, secrets, h.log)
	h.server = newServer(def, dial, in.lot, in.conn.Emit, h.outbox.post, h.log)
	h.server.secrets = secrets
	return h
}

// follow brings the host up to date with the view, if that is possible without
// a new connection; else the host leaves, and another takes its place.
func (h *host) follow(settings *config.Settings, s *registry.Server, refusal string, before int) {
	old := h.server.definition()
	if old.same(settings, s, refusal) {
		h.server.update(old, before)
		return
	}
	def := newDefinition(settings, s, refusal)
	h.drainTimeout.Store(int64(def.drainTimeout))
	if old.connection() != def.connection() {
		h.leave(errChanged)
		return
	}
	h.server.update(def, before)
}

// run claims the server, runs it and gives it up.
func (h *host) run() {
	defer h.abandon(nil)
	defer h.leave(nil)
	in, id := h.in, h.server.id
	epoch, err := in.registry.Claim(h.stop, in.id, in.name, id)
	if err != nil {
		h.again = claimPause
		if !errors.Is(err, registry.ErrOwned) && !errors.Is(err, bus.ErrConflict) && h.stop.Err() == nil {
			h.log.Warn("couldn't claim the server", "error", err)
		}
		return
	}
	h.epoch.Store(epoch)
	h.log.Debug("server claimed", "epoch", epoch)
	service, err := in.conn.Serve(bus.ServeSubject(in.conn.Hub(), id, epoch), "", maxCalls, h.server.handle)
	if err != nil {
		h.again = claimPause
		h.log.Error("couldn't serve the calls of the server", "error", err)
		h.unclaim(epoch)
		return
	}
	h.outbox.writeCatalog = func(ctx context.Context, c *catalog.Catalog) error {
		return in.registry.PublishCatalog(ctx, epoch, c)
	}
	h.outbox.writeStatus = func(ctx context.Context, st registry.Status) error {
		return in.registry.PublishStatus(ctx, in.id, id, epoch, st)
	}
	running, stopServer := context.WithCancel(h.hard)
	var parts sync.WaitGroup
	parts.Go(func() { h.server.run(running, h.hard) })
	parts.Go(func() {
		if err := h.outbox.run(running); err != nil {
			h.log.Warn("the epoch is over, the server stops here", "epoch", epoch, "error", err)
			h.abandon(errOverthrown)
		}
	})
	select {
	case <-h.stop.Done():
		h.log.Info("server stops", "reason", context.Cause(h.stop))
		h.drain(service)
	case <-h.hard.Done():
	}
	// Both at once: what runs must end whether or not NATS is there.
	stopServer()
	parts.Go(service.Stop)
	h.at.close()
	parts.Wait()
	in.lot.drop(h.server)
	h.server.calls.Wait()
	h.at.wait(context.Background())
	if h.hard.Err() != nil {
		h.again = claimPause
		return
	}
	// A server that only changes stays ours: its next claim makes the next epoch.
	switch cause := context.Cause(h.stop); {
	case errors.Is(cause, errRemoved):
		h.forget(epoch)
		h.unclaim(epoch)
	case !errors.Is(cause, errChanged):
		h.unclaim(epoch)
	}
}

// drain takes no new calls and lets the running ones finish in their time.
func (h *host) drain(service *bus.Service) {
	ctx, cancel := context.WithTimeout(h.hard, time.Duration(h.drainTimeout.Load()))
	defer cancel()
	h.server.leave()
	h.at.close()
	if err := service.Drain(ctx); err != nil {
		h.log.Warn("calls did not finish in time and are cut off", "running", service.Running())
	}
	h.at.wait(ctx)
	// Nobody can come back for what waits: the server may still hear of it.
	h.in.lot.drop(h.server)
	h.server.calls.Wait()
}

func (h *host) forget(epoch uint64) {
	ctx, cancel := context.WithTimeout(h.hard, releaseTimeout)
	defer cancel()
	if err := h.in.registry.Forget(ctx, h.in.id, h.server.id, epoch); err != nil {
		h.log.Warn("couldn't remove what was published of the server", "error", err)
	}
}

func (h *host) unclaim(epoch uint64) {
	ctx, cancel := context.WithTimeout(h.hard, releaseTimeout)
	defer cancel()
	if err := h.in.registry.Unclaim(ctx, h.server.id, epoch); err != nil {
		h.log.Warn("couldn't give the server up, it is free when the lease ends", "error", err)
	}
}

// handleAt takes a call that has to reach this very worker.
func (in *incarnation) handleAt(ctx context.Context, call *bus.Incoming) (bus.Reply, error) {
	found, ok := in.hosted.Load(call.Meta.Server)
	if !ok {
		return bus.Reply{}, mcp.Unavailable(call.Meta.Server, mcp.ReasonBackend, "server %q does not run in this worker any more", call.Meta.Server)
	}
	h := found.(*host)
	if !h.at.enter() {
		return bus.Reply{}, mcp.Unavailable(h.server.id, mcp.ReasonBackend, "server %q is stopping", h.server.id)
	}
	defer h.at.leave()
	return h.server.handle(ctx, call)
}

// gate counts who is inside and can be closed.
type gate struct {
	mu     sync.Mutex
	inside int
	closed bool
	empty  chan struct{} // closed when it is closed and nobody is inside; nil while nobody waits
}

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.inside++
	}
	return !g.closed
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside--; g.inside == 0 && g.empty != nil {
		close(g.empty)
		g.empty = nil
	}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// wait waits, within ctx, until nobody is inside a closed gate.
func (g *gate) wait(ctx context.Context) {
	g.mu.Lock()
	if g.inside == 0 {
		g.mu.Unlock()
		return
	}
	if g.empty == nil {
		g.empty = make(chan struct{})
	}
	empty := g.empty
	g.mu.Unlock()
	select {
	case <-empty:
	case <-ctx.Done():
	}
}
