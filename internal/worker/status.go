package worker

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// post is what the world is to know of a server.
type post struct {
	status  registry.Status
	catalog *catalog.Catalog // nil before the first
}

// publish posts status and catalog where they have changed, and tells of a
// change of state, and of each failed start, in an event.
func (s *server) publish() {
	next := post{status: s.describe(), catalog: s.catalog}
	if s.overfull != nil {
		next.catalog = s.posted.catalog
	}
	next.status.Since = s.posted.status.Since
	if next.status.State != s.posted.status.State {
		next.status.Since = time.Now().UTC()
	}
	if next.catalog == s.posted.catalog && reflect.DeepEqual(next.status, s.posted.status) {
		return
	}
	s.posted = next
	s.post(next)
	if st := next.status; st.State != s.emitted.State || st.Attempts > s.emitted.Attempts {
		s.emitted = st
		s.log.Info("server is "+string(st.State), "attempts", st.Attempts, "reason", st.Reason)
		s.emit(bus.Event{Kind: "server", Subject: s.id, What: string(st.State), Data: s.event(st)})
	}
}

// describe is the status just now, but for Since.
func (s *server) describe() registry.Status {
	var st registry.Status
	links := s.connections()
	f, missing := s.worst()
	if s.catalog != nil {
		st.Rejected = s.catalog.Rejected
	}
	if len(links) > 0 {
		st.Info = links[0].conn.Info()
		st.Stderr = newest(links[0].stderr())
		st.LatencyMS = float64(s.latency.Microseconds()) / 1000
	}
	switch {
	case len(links) == 0 && (f.reason == "" || f.trying):
		st.State, st.Reason, st.Attempts, st.Stderr = registry.StateStarting, f.reason, f.attempts, newest(f.output())
	case len(links) == 0 && (f.attempts == 0 && !f.final || !s.definition().ours()):
		st.State, st.Reason, st.Stderr = registry.StateDown, f.reason, newest(f.output())
	case len(links) == 0:
		st.State, st.Reason, st.Attempts, st.Stderr = registry.StateFailed, f.reason, f.attempts, newest(f.output())
		if !f.final {
			st.RetryAt = f.at.UTC()
		}
	case s.overfull != nil:
		st.State, st.Reason, st.Withheld = registry.StateFailed, s.overfull.Error(), true
	case !s.listed:
		st.State = registry.StateStarting
	case s.misses > 0:
		st.State, st.Reason, st.Withheld = registry.StateDegraded, s.missed, s.withheld()
	case missing > 0:
		st.State = registry.StateDegraded
		if lines := newest(f.output()); lines != nil {
			st.Stderr = lines // those of the ill one
		}
		st.Reason = fmt.Sprintf("%d of %d connections are missing: %s", missing, len(s.links), f.reason)
		if f.reason == "" {
			st.Reason = fmt.Sprintf("%d of %d connections are still being made", missing, len(s.links))
		}
	default:
		st.State = registry.StateUp
	}
	return st
}

// maxStatusStderr bounds the stderr in a status, which goes to all routers.
const maxStatusStderr = 8 << 10

// newest is the last lines that a status has room for, nil for none.
func newest(lines []string) []string {
	from, size := len(lines), 0
	for from > 0 && size+len(lines[from-1]) <= maxStatusStderr {
		from--
		size += len(lines[from])
	}
	if from == len(lines) {
		return nil
	}
	return lines[from:]
}

// worst is the failure of the replica that failed most often in a row, and how
// many replicas are without a connection. One that is being tried again is less
// bad than one that is not.
func (s *server) worst() (f failure, missing int) {
	for i, l := range s.links {
		if l != nil {
			continue
		}
		missing++
		g := s.failures[i]
		if missing == 1 || g.failing() && !f.failing() || g.failing() == f.failing() && g.attempts > f.attempts {
			f = g
		}
	}
	return f, missing
}

// serverEvent is the data of the events server.<id>.<state>.
type serverEvent struct {
	State  registry.State `json:"state"`
	Reason string         `json:"reason,omitempty"`
	// Attempt counts the failures in a row, DelayMS is the wait before the next start.
	Attempt int     `json:"attempt,omitzero"`
	DelayMS int64   `json:"delay_ms,omitzero"`
	Era     mcp.Era `json:"era,omitempty"`
	Version string  `json:"protocol_version,omitempty"`
	Tools   int     `json:"tools,omitzero"`
}

func (s *server) event(st registry.Status) serverEvent {
	e := serverEvent{State: st.State, Reason: st.Reason, Attempt: st.Attempts}
	if f, _ := s.worst(); st.State == registry.StateFailed {
		e.DelayMS = f.delay.Milliseconds()
	}
	if st.Info != nil {
		e.Era, e.Version = st.Info.Era, st.Info.Version
	}
	if st.State.Serving() && s.catalog != nil {
		e.Tools = len(s.catalog.Tools)
	}
	return e
}

// outbox writes posts to the registry, the newest only, so that a slow or
// absent NATS never holds up a server.
type outbox struct {
	writeCatalog func(context.Context, *catalog.Catalog) error
	writeStatus  func(context.Context, registry.Status) error

	mu   sync.Mutex
	next *post // not written yet
	wake chan struct{}
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

func (o *outbox) post(p post) {
	o.mu.Lock()
	o.next = &p
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// Bounds of one write to the registry, and the pause after one that failed.
const (
	writeTimeout = 5 * time.Second
	writePause   = 500 * time.Millisecond
)

// run writes until ctx ends. It returns [bus.ErrConflict] when another epoch
// has begun, so that nothing this one says counts any more.
func (o *outbox) run(ctx context.Context) error {
	revision := "" // of the catalog that is written
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-o.wake:
		}
		o.mu.Lock()
		p := o.next
		o.next = nil
		o.mu.Unlock()
		if p == nil {
			continue
		}
		err := o.write(ctx, p, &revision)
		switch {
		case errors.Is(err, bus.ErrConflict):
			return err
		case err != nil:
			o.mu.Lock()
			if o.next == nil {
				o.next = p
			}
			o.mu.Unlock()
			wait(ctx, writePause)
			select {
			case o.wake <- struct{}{}:
			default:
			}
		}
	}
}

// write writes the catalog before the status, since a server that is up with
// its old catalog would offer tools that are gone.
func (o *outbox) write(ctx context.Context, p *post, revision *string) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if p.catalog != nil && p.catalog.Revision != *revision {
		if err := o.writeCatalog(ctx, p.catalog); err != nil {
			return err
		}
		*revision = p.catalog.Revision
	}
	return o.writeStatus(ctx, p.status)
}
