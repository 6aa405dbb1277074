package router

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
)

const (
	// maxWatched bounds the resources that one client subscribes to.
	maxWatched = 1000
	// watchTimeout is how long a server may take to accept a subscription before
	// the client hears that it did not.
	watchTimeout = 6 * time.Second
	// maxUnion and maxUnionBytes bound what is listened for at one server for one
	// principal: a worker takes no more, and it has to fit into one message.
	maxUnion      = 10_000
	maxUnionBytes = 4 << 20
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
	unclear map[string]struct{} // exposed URIs that mean nothing just now
	changed map[change]struct{} // about maxPending at most
	closed  bool
}

// change is one of a resource that is subscribed to, by its exposed URI, or of a
// part of it, by the URI that its server gives the part; "" is the whole.
type change struct{ subscribed, part string }

// topic is what an exposed URI means.
type topic struct {
	upstream *upstream
	own      string
	listed   bool // its server lists it
}

// watch begins to watch for a client. The watching must be closed.
func (e *engine) watch(scope string, c caller) *watching {
	ch := make(chan struct{}, 1)
	return &watching{C: ch, c: ch, watches: e.watches, scope: scope, caller: c, topics: make(map[string]topic), unclear: make(map[string]struct{}), changed: make(map[change]struct{})}
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
// there to be asked: it will be, and then the client is told.
func (w *watching) add(ctx context.Context, uris []string) []string {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	answers := make([]<-chan struct{}, len(uris))
	for i, uri := range uris {
		answers[i] = w.want(uri, false)
	}
	var honoured []string
	for i, uri := range uris {
		if answers[i] == nil {
			continue
		}
		select {
		case <-answers[i]:
		case <-ctx.Done():
		}
		if w.isTaken(uri) {
			honoured = append(honoured, uri)
		} else {
			w.remove(uri)
		}
	}
	return honoured
}

// isTaken reports whether the client hears of the resource, or will.
func (w *watching) isTaken(uri string) bool {
	w.watches.mu.Lock()
	defer w.watches.mu.Unlock()
	t, ok := w.topics[uri]
	if !ok {
		return false
	}
	in := t.upstream.wants[t.own]
	c := in.clients[w]
	if !in.taken && in.unreachable && t.listed {
		c.late = true
	}
	return in.taken || c.late
}

// want subscribes to one exposed URI, without waiting. The channel is closed when
// it is known whether the server takes it; it is nil if the client cannot subscribe.
// With late the client has subscribed before, and is told of a change once the
// server tells: it may have missed one.
func (w *watching) want(uri string, late bool) (answered <-chan struct{}) {
	e := w.watches.engine
	to, asleep, err := e.locate(w.scope, w.caller, uri)
	asleep = asleep || !e.conn.Connected()
	w.watches.mu.Lock()
	defer w.watches.mu.Unlock()
	if w.closed || w.watches.base.Err() != nil {
		return nil
	}
	if err != nil {
		if _, known := w.unclear[uri]; late && !known {
			w.unclear[uri] = struct{}{} // take tries again
			w.signal()
		}
		return nil
	}
	if t, ok := w.topics[uri]; ok {
		return t.upstream.wants[t.own].answered
	}
	u := w.watches.upstreamLocked(upstreamKey{to.Server, w.caller.principal})
	in := u.wants[to.URI]
	switch {
	case len(w.topics) >= maxWatched, asleep && !to.Listed && !late && (in == nil || !in.taken),
		in == nil && (len(u.wants) >= maxUnion || u.size+len(to.URI) > maxUnionBytes):
		u.signal() // it may have been made for nothing
		return nil
	case in == nil:
		in = &interest{clients: make(map[*watching]*client), answered: make(chan struct{})}
		u.wants[to.URI] = in
		u.size += len(to.URI)
	case in.settled && !in.taken && !late && !asleep: // ask again, for this one
		in.settled, in.answered, in.retry = false, make(chan struct{}), time.Time{}
	}
	delete(w.unclear, uri)
	w.topics[uri] = topic{u, to.URI, to.Listed}
	late = late || asleep && !in.taken
	in.clients[w] = &client{uri: uri, late: late}
	if late && in.taken {
		in.tellLocked(func(c *client) bool { return c.late })
	}
	u.signal()
	if late {
		done := make(chan struct{})
		close(done)
		return done
	}
	return in.answered
}

// remove ends the subscription to one exposed URI.
func (w *watching) remove(uri string) {
	w.watches.mu.Lock()
	defer w.watches.mu.Unlock()
	w.dropLocked(uri)
}

func (w *watching) dropLocked(uri string) {
	delete(w.unclear, uri)
	t, ok := w.topics[uri]
	if !ok {
		return
	}
	delete(w.topics, uri)
	if in := t.upstream.wants[t.own]; in != nil {
		if delete(in.clients, w); len(in.clients) == 0 {
			delete(t.upstream.wants, t.own)
			t.upstream.size -= len(t.own)
		}
	}
	t.upstream.signal()
}

// set subscribes to these URIs and no others, without waiting.
func (w *watching) set(uris []string) {
	wanted := make(map[string]bool, len(uris))
	for _, uri := range uris {
		wanted[uri] = true
	}
	w.watches.mu.Lock()
	for uri := range w.topics {
		if !wanted[uri] {
			w.dropLocked(uri)
		}
	}
	maps.DeleteFunc(w.unclear, func(uri string, _ struct{}) bool { return !wanted[uri] })
	w.watches.mu.Unlock()
	for _, uri := range uris {
		w.want(uri, true)
	}
}

// take returns the exposed URIs of what changed, as far as the client may still
// read it (M4). If something has to wait, since its server is away just now or
// nobody knows what its URI means, again says when to take once more.
func (w *watching) take() (uris []string, again <-chan struct{}) {
	e := w.watches.engine
	view := e.registry.View()
	w.watches.mu.Lock()
	changed := w.changed
	w.changed = make(map[change]struct{})
	topics := make(map[change]topic, len(changed))
	for c := range changed {
		if t, ok := w.topics[c.subscribed]; ok {
			topics[c] = t
		}
	}
	unclear := slices.Collect(maps.Keys(w.unclear))
	w.watches.mu.Unlock()
	waits := false
	for _, uri := range unclear {
		waits = w.want(uri, true) == nil || waits
	}
	told := make(map[string]struct{}, len(changed))
	for c, t := range topics {
		switch uri, asleep := w.readable(c, t); {
		case uri != "":
			told[uri] = struct{}{}
		case asleep:
			waits = true
			w.watches.mu.Lock()
			if w.topics[c.subscribed] == t {
				w.changed[c] = struct{}{}
			}
			w.watches.mu.Unlock()
		}
	}
	if waits {
		again = view.Superseded()
	}
	return slices.Sorted(maps.Keys(told)), again
}

// readable is the URI under which the client is told of a change, "" if it is not:
// because it may not read that any more, or because the server is asleep, when
// reading would fail.
func (w *watching) readable(c change, t topic) (uri string, asleep bool) {
	e, server := w.watches.engine, t.upstream.server
	means := func(exposed, own string) (ok, asleep bool) {
		to, asleep, err := e.locate(w.scope, w.caller, exposed)
		return err == nil && to.Server == server && to.URI == own, asleep
	}
	ok, asleep := means(c.subscribed, t.own)
	switch {
	case !ok || asleep:
		return "", ok
	case c.part == "":
		return c.subscribed, false
	}
	part := e.list(w.scope, w.caller).set.ExposeURI(server, c.part)
	if ok, asleep := means(part, c.part); ok && !asleep {
		return part, false
	}
	// A part that nobody can name here is one of the whole, unless it is hidden.
	if s := e.registry.View().Get(server); s != nil {
		if p := s.Projection(); p.OffersItem(catalog.KindResource, c.part, w.caller.principal) {
			return c.subscribed, false
		}
	}
	return "", false
}

// maxPending bounds what waits for one client. Beyond it the resource that was
// subscribed to stands for its parts.
const maxPending = 2 * maxWatched

func (w *watching) tellLocked(c change) {
	if len(w.changed) >= maxPending {
		c.part = ""
	}
	w.changed[c] = struct{}{}
	w.signal()
}

func (w *watching) signal() {
	select {
	case w.c <- struct{}{}:
	default:
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
