package router

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
	"toolhub/internal/policy"
	"toolhub/internal/registry"
)

const (
	// Between two attempts to listen to a server there is a pause that doubles.
	firstWatchPause, lastWatchPause = 50 * time.Millisecond, 5 * time.Second
	// What a server has refused it is asked for again after a pause that doubles.
	firstRefusedPause, lastRefusedPause = time.Second, time.Minute
)

// upstream is the subscriptions/listen to one server for one principal. Its
// goroutine (run) lasts as long as somebody wants something.
type upstream struct {
	watches *watches
	upstreamKey

	wake   chan struct{} // has a token when wants has changed
	events chan listenEvent

	// Guarded by watches.mu.
	wants map[string]*interest // by the server's own URI
	size  int                  // bytes of these URIs
}

// interest is one resource that clients want to hear of. Guarded by watches.mu.
type interest struct {
	clients  map[*watching]*client
	taken    bool          // the server tells of it
	answered chan struct{} // closed when the server has taken it or refused it
	settled  bool          // answered is closed
	// missed says that it may have changed since the server told of it.
	missed bool
	// unreachable says that the server could not be asked the last time.
	unreachable bool
	// After a refusal those who stay have it asked for again at retry.
	retry time.Time
	pause time.Duration
}

// client is how one client knows a resource.
type client struct {
	uri  string // exposed
	late bool   // it is to be told of a change as soon as the server tells of any
}

// tellLocked tells the clients for which ok holds that the resource may have changed.
func (in *interest) tellLocked(ok func(*client) bool) {
	for w, c := range in.clients {
		if ok(c) {
			c.late = false
			w.tellLocked(change{subscribed: c.uri})
		}
	}
}

func (in *interest) settleLocked(taken bool) {
	in.taken = taken
	if !in.settled {
		in.settled = true
		close(in.answered)
	}
}

func (w *watches) upstreamLocked(key upstreamKey) *upstream {
	u := w.upstreams[key]
	if u == nil {
		u = &upstream{watches: w, upstreamKey: key, wake: make(chan struct{}, 1), events: make(chan listenEvent), wants: make(map[string]*interest)}
		w.upstreams[key] = u
		w.group.Go(u.run)
	}
	return u
}

func (u *upstream) signal() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// listenCall is one subscriptions/listen on the bus.
type listenCall struct {
	uris   map[string]bool
	cancel context.CancelFunc
}

// listenEvent is news of a call: what the server acknowledged, or its end.
type listenEvent struct {
	call  *listenCall
	acked []string // nil for the end
	err   error
}

// run keeps one call open about all that is wanted. When more is wanted, the next
// one is opened and acknowledged before the present one ends, so nothing is missed
// by that; after a drop everything may have changed.
func (u *upstream) run() {
	w := u.watches
	var current, next *listenCall
	var delay time.Duration
	var resume time.Time // no call is opened before
	var seen serverState
	gap := false
	calls := sync.WaitGroup{}
	ctx, cancel := context.WithCancel(w.base)
	defer calls.Wait()
	defer cancel()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		view, now := w.engine.registry.View(), time.Now()
		if state := stateOf(view.Get(u.server)); state != seen {
			seen = state
			u.forgive() // what it refused it may take now
		}
		due, ok := u.survey(current)
		if !ok {
			return
		}
		if due.Before(resume) {
			due = resume
		}
		wait := idle
		if due.After(now) {
			wait = due.Sub(now)
		} else if next == nil {
			if s, err := w.engine.ready(u.server); err == nil {
				next = u.open(ctx, &calls, bus.CallSubject(w.engine.conn.Hub(), u.server, s.Epoch(), mcp.MethodListen), s.Own.Worker)
			}
		}
		timer.Reset(wait)
		select {
		case <-u.wake:
		case <-view.Superseded():
		case <-timer.C:
		case e := <-u.events:
			switch {
			case e.acked != nil && e.call == next:
				u.acknowledged(e.call, e.acked, gap)
				if current != nil {
					current.cancel()
				}
				current, next, gap, delay = next, nil, false, 0
			case e.acked != nil:
			case e.call == next, e.call == current:
				if e.call == current {
					current, gap = nil, true
				} else {
					next = nil
				}
				u.failed(e.call, e.err)
				w.engine.log.Debug("listening to a server ended, it will be done again", "server", u.server, "error", e.err)
				delay = min(max(2*delay, firstWatchPause), lastWatchPause)
				resume = time.Now().Add(delay/2 + rand.N(delay))
			}
		case <-ctx.Done():
			return
		}
	}
}

// idle is how long an upstream waits for news that has nothing to do.
const idle = time.Hour

// serverState is what decides whether a server may take what it has refused.
type serverState struct {
	epoch   uint64
	policy  *policy.Policy
	catalog *catalog.Catalog
}

func stateOf(s *registry.Server) serverState {
	if s == nil {
		return serverState{}
	}
	return serverState{s.Epoch(), s.Policy, s.Catalog}
}

// survey returns when a call is to be opened beside current, as far as what is
// wanted goes; ok is false, and the upstream at its end, if that is nothing.
func (u *upstream) survey(current *listenCall) (due time.Time, ok bool) {
	w := u.watches
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(u.wants) == 0 {
		delete(w.upstreams, u.upstreamKey)
		return due, false
	}
	if current == nil || len(current.uris) > 2*len(u.wants)+16 {
		return due, true
	}
	due = time.Now().Add(idle)
	for own, in := range u.wants {
		if (!current.uris[own] || !in.taken) && in.retry.Before(due) {
			due = in.retry
		}
	}
	return due, true
}

// forgive has everything asked for again that was refused.
func (u *upstream) forgive() {
	u.watches.mu.Lock()
	defer u.watches.mu.Unlock()
	for _, in := range u.wants {
		in.retry, in.pause = time.Time{}, 0
	}
}

// open begins a call. Its end and its acknowledgement come as events.
func (u *upstream) open(ctx context.Context, calls *sync.WaitGroup, subject, worker string) *listenCall {
	ctx, cancel := context.WithCancel(ctx)
	call := &listenCall{uris: make(map[string]bool), cancel: cancel}
	u.watches.mu.Lock()
	for own, in := range u.wants {
		call.uris[own] = true
		in.unreachable = false
	}
	u.watches.mu.Unlock()
	list, err := json.Marshal(slices.Sorted(maps.Keys(call.uris)))
	tell := func(e listenEvent) {
		e.call = call
		select {
		case u.events <- e:
		case <-ctx.Done():
		}
	}
	calls.Go(func() {
		defer cancel()
		if err != nil {
			tell(listenEvent{err: err})
			return
		}
		reply, err := u.watches.engine.conn.Call(ctx, &bus.Request{
			Subject: subject, Worker: worker, Sign: true, Meta: bus.Meta{Principal: u.principal, Server: u.server},
			Body: mcp.AppendRequest(nil, mcp.IntID(1), mcp.MethodListen, slices.Concat([]byte(`{"notifications":{"resourceSubscriptions":`), list, []byte("}}"))),
		}, func(body []byte) {
			m, err := mcp.ParseMessage(body, mcp.Lenient)
			if err != nil {
				return
			}
			switch m.Method {
			case mcp.NotifyAcknowledged:
				acked := []string{}
				if list, ok := stringList(mcp.Field(mcp.Field(m.Params, "notifications"), "resourceSubscriptions")); ok && list != nil {
					acked = list
				}
				tell(listenEvent{acked: acked})
			case mcp.NotifyResourceUpdated:
				u.updated(mcp.FieldString(m.Params, "uri"))
			}
		})
		if err == nil && reply.IsError {
			err = answerOf(reply).err
		}
		tell(listenEvent{err: err})
	})
	return call
}

// acknowledged takes over what the server tells of from now on. After a gap all of
// it may have changed.
func (u *upstream) acknowledged(call *listenCall, acked []string, gap bool) {
	told := make(map[string]bool, len(acked))
	for _, own := range acked {
		told[own] = true
	}
	u.watches.mu.Lock()
	defer u.watches.mu.Unlock()
	for own := range call.uris {
		in := u.wants[own]
		switch {
		case in == nil:
		case told[own]:
			missed := in.missed || in.taken && gap
			in.settleLocked(true)
			in.missed, in.pause = false, 0
			in.tellLocked(func(c *client) bool { return missed || c.late })
		default:
			in.refusedLocked()
		}
	}
}

// refusedLocked notes that the server does not tell of it, which those who
// subscribed before may not have to put up with for ever.
func (in *interest) refusedLocked() {
	in.missed = in.missed || in.taken
	in.settleLocked(false)
	in.pause = min(max(2*in.pause, firstRefusedPause), lastRefusedPause)
	in.retry = time.Now().Add(in.pause/2 + rand.N(in.pause))
}

// failed deals with what was new in a call that has ended.
func (u *upstream) failed(call *listenCall, err error) {
	_, refused := errors.AsType[*mcp.Error](err)
	for _, kind := range []mcp.Kind{mcp.KindInvalid, mcp.KindDenied, mcp.KindMessageTooLarge} {
		refused = refused || mcp.IsKind(err, kind)
	}
	u.watches.mu.Lock()
	defer u.watches.mu.Unlock()
	for own := range call.uris {
		switch in := u.wants[own]; {
		case in == nil || in.taken:
		case refused:
			in.refusedLocked()
		default: // it moves, or is away: the View will tell
			in.unreachable = true
		}
	}
}

// updated tells the clients whom it concerns that a resource has changed: itself,
// or a part of it.
func (u *upstream) updated(own string) {
	u.watches.mu.Lock()
	defer u.watches.mu.Unlock()
	tell := func(in *interest, part string) {
		for w, c := range in.clients {
			w.tellLocked(change{c.uri, part})
		}
	}
	if in := u.wants[own]; in != nil {
		tell(in, "")
	}
	for subscribed, in := range u.wants {
		if own != subscribed && mcp.IsPartOf(own, subscribed) {
			tell(in, own)
		}
	}
}
