package worker

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
	"toolhub/internal/policy"
)

const (
	// maxWatched bounds the resources that one subscriptions/listen is about.
	maxWatched = 10_000
	// subscribeTimeout is how long a server may take to accept a subscription.
	subscribeTimeout = 5 * time.Second
)

// watch is what is listened for at one server: each connection holds the union of
// what all listeners want.
type watch struct {
	server *server

	mu        sync.Mutex
	links     []*link
	wanted    map[string]int    // listeners by URI
	tasks     map[taskPlace]int // listeners by task
	listeners map[*listener]struct{}
}

// listener is one subscriptions/listen from the bus.
type listener struct {
	principal string
	signed    bool
	uris      map[string]struct{}
	wake      chan struct{} // has a token when there is something in news

	// tasks are the ids that the caller knows of the tasks that it wants to hear of.
	// Guarded by watch.mu.
	tasks map[taskPlace]string

	mu sync.Mutex
	// states are the newest ones of tasks, as the caller sees them, by id.
	states map[string]jsontext.Value
	news   map[string]string // URIs that changed, with what of uris they are, or are a part of
}

// listen answers subscriptions/listen (bus; server/subscriptions): it lasts until
// the caller or the server goes.
func (w *watch) listen(ctx context.Context, in *bus.Incoming, m *mcp.Message) (bus.Reply, error) {
	wanted, err := readWanted(m.Params, "resourceSubscriptions")
	if err != nil {
		return bus.Reply{}, err
	}
	tasks, err := readWanted(m.Params, "taskIds")
	if err != nil {
		return bus.Reply{}, err
	}
	if live := w.server.live.Load(); live.catalog == nil {
		return bus.Reply{}, live.unavailable
	}
	l := &listener{
		principal: in.Meta.Principal, signed: in.Meta.Signed,
		uris: make(map[string]struct{}), wake: make(chan struct{}, 1), news: make(map[string]string),
		tasks: make(map[taskPlace]string), states: make(map[string]jsontext.Value),
	}
	wanted = slices.DeleteFunc(wanted, func(uri string) bool { return !w.allows(l, uri) })
	w.mu.Lock()
	if w.listeners == nil {
		w.listeners, w.wanted, w.tasks = make(map[*listener]struct{}), make(map[string]int), make(map[taskPlace]int)
	}
	w.listeners[l] = struct{}{}
	for _, uri := range wanted {
		w.wanted[uri]++
		l.uris[uri] = struct{}{}
	}
	w.mu.Unlock()
	defer w.end(l)
	w.refuse(l, w.subscribe(ctx, wanted))
	var ack struct {
		Notifications struct {
			Resources []string `json:"resourceSubscriptions"`
			Tasks     []string `json:"taskIds,omitempty"`
		} `json:"notifications"`
	}
	ack.Notifications.Resources = l.subscribed()
	ack.Notifications.Tasks = w.subscribeTasks(ctx, l, tasks)
	honoured, err := json.Marshal(&ack)
	if err != nil {
		return bus.Reply{}, err
	}
	if err := in.Notify(notification(mcp.NotifyAcknowledged, honoured)); err != nil {
		return bus.Reply{}, err
	}
	for {
		select {
		case <-l.wake:
			news, states := l.take()
			for _, id := range slices.Sorted(maps.Keys(states)) {
				if err := in.Notify(notification(mcp.NotifyTask, states[id])); err != nil {
					return bus.Reply{}, err
				}
			}
			for _, uri := range slices.Sorted(maps.Keys(news)) {
				if own := news[uri]; !w.allows(l, uri) || own != uri && !w.allows(l, own) {
					continue // the rules have changed since
				}
				if err := in.Notify(notification(mcp.NotifyResourceUpdated, slices.Concat([]byte(`{"uri":`), mcp.QuoteString(uri), []byte("}")))); err != nil {
					return bus.Reply{}, err
				}
			}
		case <-ctx.Done():
			return bus.Reply{}, context.Cause(ctx)
		case <-w.server.leaving:
			return result(m.ID, jsontext.Value(`{"resultType":"complete"}`)), nil
		}
	}
}

// readWanted reads one of the lists that a subscriptions/listen is about.
func readWanted(params jsontext.Value, member string) ([]string, error) {
	notifications := mcp.Field(params, "notifications")
	if notifications.Kind() != '{' {
		return nil, wrongParam("notifications", "an object")
	}
	list := mcp.Field(notifications, member)
	if list == nil {
		return nil, nil
	}
	var uris []string
	if err := json.Unmarshal(list, &uris); err != nil || list.Kind() != '[' {
		return nil, wrongParam("notifications."+member, "a list of strings")
	}
	slices.Sort(uris)
	if uris = slices.Compact(uris); len(uris) > maxWatched {
		return nil, mcp.NewFault(mcp.KindInvalid, "invalid_params", "params.notifications.%s has %d members, at most %d are allowed", member, len(uris), maxWatched)
	}
	return uris, nil
}

// allows reports whether the listener may read the resource, by the rules as of now.
func (w *watch) allows(l *listener, uri string) bool {
	def := w.server.definition()
	if def.Policy == nil {
		return false
	}
	in := policy.Input{
		Server: w.server.id, Tool: catalog.PolicyName(catalog.KindResource, uri), Trusted: def.Config.Trusted,
		Principal: l.principal, TaintUnknown: !l.signed, Now: time.Now(),
	}
	return def.Policy.Decide(in).Effect == policy.Allow
}

// subscribe has all connections subscribe, and returns the URIs that none took.
// Without a connection those that the server lists are as good as taken: the next
// one will see to them.
func (w *watch) subscribe(ctx context.Context, uris []string) (refused []string) {
	w.mu.Lock()
	links := slices.Clone(w.links)
	w.mu.Unlock()
	if len(links) == 0 {
		listed := w.server.live.Load().catalog
		return slices.DeleteFunc(slices.Clone(uris), func(uri string) bool {
			_, ok := listed.Resource(uri)
			return ok
		})
	}
	ctx, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	taken := make([]atomic.Bool, len(uris))
	var group sync.WaitGroup
	for _, l := range links {
		for i, uri := range uris {
			group.Go(func() {
				if l.conn.Subscribe(ctx, uri) == nil {
					taken[i].Store(true)
				}
			})
		}
	}
	group.Wait()
	for i, uri := range uris {
		if !taken[i].Load() {
			refused = append(refused, uri)
		}
	}
	return refused
}

// refuse takes URIs out of what l listens for.
func (w *watch) refuse(l *listener, uris []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, uri := range uris {
		w.dropLocked(l, uri)
	}
}

// dropLocked ends one interest. Under the lock, so that no subscription of a later
// listener is undone: Unsubscribe never waits.
func (w *watch) dropLocked(l *listener, uri string) {
	delete(l.uris, uri)
	if w.wanted[uri]--; w.wanted[uri] > 0 {
		return
	}
	delete(w.wanted, uri)
	for _, l := range w.links {
		l.conn.Unsubscribe(uri)
	}
}

// end takes a listener out with all it wanted.
func (w *watch) end(l *listener) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.listeners, l)
	for uri := range l.uris {
		w.dropLocked(l, uri)
	}
	for at := range l.tasks {
		w.dropTaskLocked(l, at)
	}
}

// add has a new connection subscribe to all that is wanted, in the background.
// What changed while there was none nobody knows, so all of it may have.
func (w *watch) add(ctx context.Context, group *sync.WaitGroup, l *link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.links = append(w.links, l)
	w.addTasksLocked(ctx, group, l)
	for uri := range w.wanted {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, subscribeTimeout)
			defer cancel()
			if err := l.conn.Subscribe(ctx, uri); err != nil {
				w.server.log.Warn("couldn't subscribe to a resource again", "uri", uri, "error", l.secrets.error(err))
			}
			w.mu.Lock()
			if w.wanted[uri] == 0 { // nobody wants it any more
				l.conn.Unsubscribe(uri)
			}
			w.mu.Unlock()
			w.updated(uri)
		})
	}
}

// remove forgets a connection that is lost.
func (w *watch) remove(l *link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.links = slices.DeleteFunc(w.links, func(other *link) bool { return other == l })
}

// updated tells all whom it concerns that a resource changed. It does not block.
func (w *watch) updated(uri string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.listeners {
		if own, ok := l.concerned(uri); ok {
			l.tell(uri, own)
		}
	}
}

// concerned is the subscription that uri is covered by: of itself, or of what it
// is a part of (server/resources: the URI of an update may be that of a sub-resource).
// Called with watch.mu.
func (l *listener) concerned(uri string) (own string, ok bool) {
	if _, ok := l.uris[uri]; ok {
		return uri, true
	}
	for own := range l.uris {
		if mcp.IsPartOf(uri, own) {
			return own, true
		}
	}
	return "", false
}

// maxNews bounds what waits for one listener.
const maxNews = 2 * maxWatched

// tell adds a change. Beyond the bound, that of the whole stands for its parts.
func (l *listener) tell(uri, own string) {
	l.mu.Lock()
	if len(l.news) >= maxNews {
		uri = own
	}
	l.news[uri] = own
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// take returns what changed.
func (l *listener) take() (news map[string]string, states map[string]jsontext.Value) {
	l.mu.Lock()
	defer l.mu.Unlock()
	news, states = l.news, l.states
	l.news, l.states = make(map[string]string), make(map[string]jsontext.Value)
	return news, states
}

// subscribed is what is listened for; only the listener's own goroutine may ask.
func (l *listener) subscribed() []string {
	return slices.Sorted(maps.Keys(l.uris))
}
