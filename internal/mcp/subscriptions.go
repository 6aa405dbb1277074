package mcp

import (
	"context"
	"slices"
	"strings"
	"sync"
)

// ExtensionTasks is the extension of tasks that outlive their requests.
const ExtensionTasks = "io.modelcontextprotocol/tasks"

// topic is something that a server can be asked to tell about: a resource, by its
// URI, or a task, by its id.
type topic struct {
	task bool
	id   string
}

func compareTopics(a, b topic) int {
	switch {
	case a.task == b.task:
		return strings.Compare(a.id, b.id)
	case b.task:
		return -1
	}
	return 1
}

// interest is a topic that somebody wants, or did a moment ago.
type interest struct {
	topic
	// wanted says that somebody still does, and held that the server tells.
	wanted, held bool
	// established says that it was held once: it is kept, and what may have been
	// missed is made up for.
	established bool
	// asked says that the server is being asked just now.
	asked bool
	// refused says that the server did not take an established one again. It is
	// asked anew when everything is.
	refused bool

	// waiters wait for answered, which is closed when it is established, or when
	// err is set and nothing of it is left.
	waiters  int
	answered chan struct{}
	err      error
}

// subscriptions are what of a server's resources and tasks its connection listens
// for. They are what is wanted; a driver, of which there is one for each era,
// brings that about.
type subscriptions struct {
	wake chan struct{} // has a token when a driver may have something to do

	mu     sync.Mutex
	topics map[topic]*interest
}

func newSubscriptions() *subscriptions {
	return &subscriptions{wake: make(chan struct{}, 1), topics: make(map[topic]*interest)}
}

func (s *subscriptions) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Subscribe implements [Conn].
func (h *hop) Subscribe(ctx context.Context, uri string) error {
	if h.opts.OnResourceUpdated == nil || !h.info.Load().subscribes() {
		return h.notSubscribable("the server %q has no subscriptions to resources", h.opts.Server)
	}
	return h.subscribe(ctx, topic{id: uri})
}

// Unsubscribe implements [Conn].
func (h *hop) Unsubscribe(uri string) { h.subs.unsubscribe(topic{id: uri}) }

// SubscribeTask implements [Conn].
func (h *hop) SubscribeTask(ctx context.Context, id string) error {
	if h.opts.OnTask == nil || !h.modern() || !h.info.Load().Tasks() {
		return h.notSubscribable("the server %q does not tell of tasks", h.opts.Server)
	}
	return h.subscribe(ctx, topic{task: true, id: id})
}

// UnsubscribeTask implements [Conn].
func (h *hop) UnsubscribeTask(id string) { h.subs.unsubscribe(topic{task: true, id: id}) }

// IsPartOf reports whether uri is below whole, so that an update of it concerns
// whoever subscribed to whole (server/resources, subscriptions).
func IsPartOf(uri, whole string) bool {
	rest, ok := strings.CutPrefix(uri, whole)
	return ok && rest != "" && (strings.HasSuffix(whole, "/") || strings.IndexByte("/?#", rest[0]) >= 0)
}

// ReasonNotSubscribable: the server does not tell of this, or of nothing at all.
const ReasonNotSubscribable = "not_subscribable"

func (h *hop) notSubscribable(format string, args ...any) *Fault {
	f := NewFault(KindInvalid, ReasonNotSubscribable, format, args...)
	f.Server = h.opts.Server
	return f
}

func (h *hop) subscribe(ctx context.Context, t topic) error {
	s := h.subs
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	in := s.topics[t]
	if in == nil {
		in = &interest{topic: t, answered: make(chan struct{})}
		s.topics[t] = in
	}
	if !in.wanted {
		in.wanted = true
		s.signal()
	}
	if in.established {
		s.mu.Unlock()
		return nil
	}
	in.waiters++
	s.mu.Unlock()
	var err error
	select {
	case <-in.answered:
		return in.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-h.done:
		err = h.gone(h.Err())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.waiters--; in.waiters == 0 && !in.established {
		s.dropLocked(in)
	}
	return err
}

func (s *subscriptions) unsubscribe(t topic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in := s.topics[t]; in != nil && in.wanted {
		s.dropLocked(in)
	}
}

// dropLocked says that nobody wants it any more.
func (s *subscriptions) dropLocked(in *interest) {
	in.wanted = false
	if !in.held && !in.asked {
		s.forgetLocked(in, errUnsubscribed)
	}
	s.signal()
}

var errUnsubscribed = NewFault(KindUnavailable, ReasonCancelled, "the subscription was given up")

// forgetLocked takes out what the server does not tell of, and answers who waits.
func (s *subscriptions) forgetLocked(in *interest, err error) {
	if s.topics[in.topic] == in {
		delete(s.topics, in.topic)
	}
	if !in.established && in.err == nil {
		in.err = err
		close(in.answered)
	}
}

// The functions below are the driver's.

// tookLocked says that the server tells of it from now on. It reports whether something
// may have been missed before.
func (s *subscriptions) tookLocked(in *interest) (missed bool) {
	in.asked, in.refused = false, false
	missed = in.established && !in.held
	in.held = true
	if !in.established {
		in.established = true
		close(in.answered)
	}
	return missed && in.wanted
}

// failedLocked says that the server did not take it. One that was established
// stays wanted; final says that it is not to be asked for again soon.
func (s *subscriptions) failedLocked(in *interest, err error, final bool) {
	in.asked, in.held = false, false
	if in.established && in.wanted {
		in.refused = final
		return
	}
	s.forgetLocked(in, err)
}

// lostLocked says that the server has forgotten it, if it ever knew.
func (s *subscriptions) lostLocked(in *interest) {
	in.held, in.refused = false, false
	if !in.wanted && !in.asked {
		s.forgetLocked(in, errUnsubscribed)
	}
}

// sortedLocked are the interests for which ok holds, in an order that is always
// the same.
func (s *subscriptions) sortedLocked(ok func(*interest) bool) []*interest {
	var list []*interest
	for _, in := range s.topics {
		if ok(in) {
			list = append(list, in)
		}
	}
	slices.SortFunc(list, func(a, b *interest) int { return compareTopics(a.topic, b.topic) })
	return list
}

// uris are the resources among the topics.
func uris(list []*interest) []string {
	var out []string
	for _, in := range list {
		if !in.task {
			out = append(out, in.id)
		}
	}
	return out
}

// subscribes reports whether the server lets clients subscribe to resources.
func (i *ServerInfo) subscribes() bool {
	return string(Field(Field(i.Capabilities, "resources"), "subscribe")) == "true"
}

// isTaskMethod reports whether a request is about a task, which its header
// Mcp-Name then names (extension tasks).
func isTaskMethod(method string) bool {
	return method == MethodTasksGet || method == MethodTasksUpdate || method == MethodTasksCancel
}

// Tasks reports whether the server declared the extension of tasks.
func (i *ServerInfo) Tasks() bool {
	return i.Era == EraModern && Field(Field(i.Capabilities, "extensions"), ExtensionTasks) != nil
}

// LegacyTasks reports whether tools of the server can be called as tasks of
// 2025-11-25 (basic/utilities/tasks).
func (i *ServerInfo) LegacyTasks() bool {
	requests := Field(Field(i.Capabilities, "tasks"), "requests")
	return i.Era == EraLegacy && Field(Field(requests, "tools"), "call") != nil
}
