package router

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
)

const (
	// maxWatched bounds the resources that one client subscribes to.
	maxWatched = 1000
	// watchTimeout is how long a server may take to accept a subscription before
	// the client hears that it did not.
	watchTimeout = 6 * time.Second
	// Between two attempts to listen to a server there is a pause that doubles.
	firstWatchPause, lastWatchPause = 50 * time.Millisecond, 5 * time.Second
)

// watches are the subscriptions to resources of all clients of this router. For
// each server and principal one subscriptions/listen is open on the bus, about
// all that its clients want.
//
//	watching (a client's stream) ──► upstream (server, principal) ──► worker ──► server
type watches struct {
	engine *engine
	base   context.Context // of all upstreams
	end    context.CancelFunc
	group  sync.WaitGroup // all upstreams

	mu        sync.Mutex
	upstreams map[upstreamKey]*upstream
}

type upstreamKey struct{ server, principal string }

func newWatches(e *engine) *watches {
	w := &watches{engine: e, upstreams: make(map[upstreamKey]*upstream)}
	w.base, w.end = context.WithCancel(context.Background())
	return w
}

// run ends all upstreams when ctx ends, and waits for them.
func (w *watches) run(ctx context.Context) error {
	<-ctx.Done()
	w.mu.Lock() // none is started from now on
	w.end()
	w.mu.Unlock()
	w.group.Wait()
	return context.Cause(ctx)
}

// watching is what one client subscribes to. C gets a token when there is
// something for take.
type watching struct {
	C <-chan struct{}

	watches *watches
	scope   string
	caller  caller
	c       chan struct{}

	// Guarded by watches.mu.
	topics  map[string]topic    // by exposed URI
	changed map[string]struct{} // exposed URIs; at most maxPending
	closed  bool
}

// topic is what an exposed URI means.
type topic struct {
	upstream *upstream
	own      string
}

// watch begins to watch for a client. The watching must be closed.
func (e *engine) watch(scope string, c caller) *watching {
	ch := make(chan struct{}, 1)
	return &watching{C: ch, c: ch, watches: e.watches, scope: scope, caller: c, topics: make(map[string]topic), changed: make(map[string]struct{})}
}

// Close ends all subscriptions of the client.
func (w *watching) Close() {
	w.watches.mu.Lock()
	defer w.watches.mu.Unlock()
	w.closed = true
	for uri := range w.topics {
		w.dropLocked(uri)
	}
}

// add subscribes to exposed URIs and returns those that their servers took, in
// order. A resource that its server lists is taken, too, when that is just not
// there to be asked: it will be.
func (w *watching) add(ctx context.Context, uris []string) []string {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	waits := make([]*interest, len(uris))
	listed := make([]bool, len(uris))
	for i, uri := range uris {
		waits[i], listed[i] = w.want(uri, false)
	}
	var honoured []string
	for i, uri := range uris {
		in := waits[i]
		if in == nil {
			continue
		}
		taken := listed[i]
		select {
		case <-in.answered:
			taken = w.watches.isTaken(in)
		case <-ctx.Done():
		}
		if taken {
			honoured = append(honoured, uri)
		} else {
			w.remove(uri)
		}
	}
	return honoured
}

func (w *watches) isTaken(in *interest) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return in.taken
}

// want subscribes to one exposed URI, without waiting. It returns nil for one that
// means nothing to this client. With late the client has subscribed before, and is
// told of a change once the server tells: it may have missed one.
func (w *watching) want(uri string, late bool) (in *interest, listed bool) {
	e := w.watches.engine
	to, err := e.list(w.scope, w.caller).set.ResolveURI(uri)
	if err != nil {
		if to, err = e.asleep(w.scope, w.caller).ResolveURI(uri); err != nil || !to.Listed {
			return nil, false
		}
	}
	w.watches.mu.Lock()
	defer w.watches.mu.Unlock()
	if w.closed || w.watches.base.Err() != nil || len(w.topics) >= maxWatched {
		return nil, false
	}
	if t, ok := w.topics[uri]; ok {
		return t.upstream.wants[t.own], to.Listed
	}
	u := w.watches.upstreamLocked(upstreamKey{to.Server, w.caller.principal})
	w.topics[uri] = topic{u, to.URI}
	if in = u.wants[to.URI]; in == nil {
		in = &interest{clients: make(map[*watching]*client), answered: make(chan struct{})}
		u.wants[to.URI] = in
	}
	in.clients[w] = &client{uri: uri, late: late}
	if late && in.taken {
		in.tellLocked(func(c *client) bool { return c.late })
	}
	u.signal()
	return in, to.Listed
}

// remove ends the subscription to one exposed URI.
func (w *watching) remove(uri string) {
	w.watches.mu.Lock()
	defer w.watches.mu.Unlock()
	w.dropLocked(uri)
}

func (w *watching) dropLocked(uri string) {
	t, ok := w.topics[uri]
	if !ok {
		return
	}
	delete(w.topics, uri)
	if in := t.upstream.wants[t.own]; in != nil {
		if delete(in.clients, w); len(in.clients) == 0 {
			delete(t.upstream.wants, t.own)
		}
	}
	t.upstream.signal()
}

// set subscribes to these URIs and no others, without waiting.
func (w *watching) set(uris []string) {
	w.watches.mu.Lock()
	for uri := range w.topics {
		if !slices.Contains(uris, uri) {
			w.dropLocked(uri)
		}
	}
	w.watches.mu.Unlock()
	for _, uri := range uris {
		w.want(uri, true)
	}
}

// take returns the exposed URIs of what changed, as far as the client may still
// read it (M4).
func (w *watching) take() []string {
	w.watches.mu.Lock()
	uris := slices.Sorted(maps.Keys(w.changed))
	clear(w.changed)
	w.watches.mu.Unlock()
	set := w.watches.engine.list(w.scope, w.caller).set
	return slices.DeleteFunc(uris, func(uri string) bool {
		_, err := set.ResolveURI(uri)
		return err != nil
	})
}

// maxPending bounds what waits for one client. Beyond it the resource that was
// subscribed to stands for its parts.
const maxPending = 2 * maxWatched

func (w *watching) tellLocked(uri, subscribed string) {
	if len(w.changed) >= maxPending {
		uri = subscribed
	}
	w.changed[uri] = struct{}{}
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// upstream is the subscriptions/listen to one server for one principal. Its
// goroutine (run) lasts as long as somebody wants something.
type upstream struct {
	watches *watches
	upstreamKey

	wake   chan struct{} // has a token when wants has changed
	events chan listenEvent

	wants map[string]*interest // by the server's own URI; guarded by watches.mu
}

// interest is one resource that clients want to hear of. Guarded by watches.mu.
type interest struct {
	clients  map[*watching]*client
	taken    bool          // the server tells of it
	answered chan struct{} // closed when the server has taken it or refused it
	settled  bool          // answered is closed
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
			w.tellLocked(c.uri, c.uri)
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
	pausing, gap := false, false
	calls := sync.WaitGroup{}
	ctx, cancel := context.WithCancel(w.base)
	defer calls.Wait()
	defer cancel()
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	for {
		w.mu.Lock()
		if len(u.wants) == 0 {
			delete(w.upstreams, u.upstreamKey)
			w.mu.Unlock()
			return
		}
		news, surplus := false, current != nil && len(current.uris) > 2*len(u.wants)+16
		for own := range u.wants {
			news = news || current == nil || !current.uris[own]
		}
		uris := slices.Sorted(maps.Keys(u.wants))
		w.mu.Unlock()
		view := w.engine.registry.View()
		if next == nil && (news || surplus) && !pausing {
			if s, err := w.engine.ready(u.server); err == nil {
				next = u.open(ctx, &calls, bus.CallSubject(w.engine.conn.Hub(), u.server, s.Epoch(), mcp.MethodListen), s.Own.Worker, uris)
			}
		}
		select {
		case <-u.wake:
		case <-view.Superseded():
		case <-retry.C:
			pausing = false
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
				if e.err != nil { // else the server moves, which the View will tell
					u.refused(e.call, e.err)
				}
				w.engine.log.Debug("listening to a server ended, it will be done again", "server", u.server, "error", e.err)
				delay = min(max(2*delay, firstWatchPause), lastWatchPause)
				pausing = true
				retry.Reset(delay/2 + rand.N(delay))
			}
		case <-ctx.Done():
			return
		}
	}
}

// open begins a call. Its end and its acknowledgement come as events.
func (u *upstream) open(ctx context.Context, calls *sync.WaitGroup, subject, worker string, uris []string) *listenCall {
	ctx, cancel := context.WithCancel(ctx)
	call := &listenCall{uris: make(map[string]bool, len(uris)), cancel: cancel}
	list, err := json.Marshal(uris)
	for _, uri := range uris {
		call.uris[uri] = true
	}
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
		_, err := u.watches.engine.conn.Call(ctx, &bus.Request{
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
		tell(listenEvent{err: err})
	})
	return call
}

// acknowledged takes over what the server tells of from now on. After a gap all of
// it may have changed.
func (u *upstream) acknowledged(call *listenCall, acked []string, gap bool) {
	u.watches.mu.Lock()
	defer u.watches.mu.Unlock()
	for own := range call.uris {
		in := u.wants[own]
		if in == nil {
			continue
		}
		taken := slices.Contains(acked, own)
		missed := taken && in.taken && gap
		if in.settleLocked(taken); taken {
			in.tellLocked(func(c *client) bool { return missed || c.late })
		}
	}
}

// refused settles what was new in a call that the server refused as a whole.
func (u *upstream) refused(call *listenCall, err error) {
	if !mcp.IsKind(err, mcp.KindInvalid) && !mcp.IsKind(err, mcp.KindDenied) {
		return
	}
	u.watches.mu.Lock()
	defer u.watches.mu.Unlock()
	for own := range call.uris {
		if in := u.wants[own]; in != nil && !in.taken {
			in.settleLocked(false)
		}
	}
}

// updated tells the clients whom it concerns that a resource has changed: itself,
// or a part of it.
func (u *upstream) updated(own string) {
	w := u.watches
	w.mu.Lock()
	defer w.mu.Unlock()
	for subscribed, in := range u.wants {
		if own != subscribed && !mcp.IsPartOf(own, subscribed) {
			continue
		}
		for who, c := range in.clients {
			uri := c.uri
			if own != subscribed {
				uri = w.engine.list(who.scope, who.caller).set.ExposeURI(u.server, own)
			}
			who.tellLocked(uri, c.uri)
		}
	}
}

// subscribable checks, for a client that gets no acknowledgement of its own, that it
// can subscribe to a resource; taken is called while that is so.
func (e *engine) subscribable(ctx context.Context, scope string, c caller, uri string, taken func()) error {
	if _, err := e.findURI(scope, c, uri); err != nil {
		return err
	}
	w := e.watch(scope, c)
	defer w.Close()
	if len(w.add(ctx, []string{uri})) == 0 {
		return &mcp.Error{Code: mcp.CodeInvalidParams, Message: "the server takes no subscription to " + string(mcp.QuoteString(mcp.Shorten(uri, 200)))}
	}
	taken()
	return nil
}
