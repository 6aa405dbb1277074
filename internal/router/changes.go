package router

import (
	"context"
	"sync"
	"time"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
)

// changeInterval is the least time between two tokens of one subscription.
const changeInterval = 100 * time.Millisecond

// listSet is a set of the lists of which clients are told that they changed.
type listSet uint8

const (
	toolsList listSet = 1 << iota
	promptsList
	resourcesList // resources and templates
	allLists      = toolsList | promptsList | resourcesList
)

// changeNotices are the notifications about the lists.
var changeNotices = []struct {
	list   listSet
	method string
	filter string // the member of a subscriptions/listen that asks for it
}{
	{toolsList, mcp.NotifyToolsChanged, "toolsListChanged"},
	{promptsList, mcp.NotifyPromptsChanged, "promptsListChanged"},
	{resourcesList, mcp.NotifyResourcesChanged, "resourcesListChanged"},
}

// digests are those of the lists, each with the place of its bit.
type digests [3]string

func digestsOf(set *catalog.ToolSet) digests {
	return digests{set.ID, set.Digest(catalog.KindPrompt), set.Digest(catalog.KindResource) + set.Digest(catalog.KindTemplate)}
}

// changed are the lists in which d is not other.
func (d digests) changed(other digests) listSet {
	var set listSet
	for i := range d {
		if d[i] != other[i] {
			set |= 1 << i
		}
	}
	return set
}

// subscription tells of changes of one caller's own lists. C gets one token when
// there is something for take, the first at once, then at most one per
// changeInterval; the last change is never lost.
type subscription struct {
	C <-chan struct{}

	changes *changes
	key     listKey
	wanted  listSet
	c       chan struct{} // has room for one token: more would say the same

	// Guarded by changes.mu.
	pending listSet   // what changed since the last token
	ready   listSet   // what the token is about
	told    time.Time // when the last one was given
}

// take returns the lists that have changed.
func (s *subscription) take() listSet {
	s.changes.mu.Lock()
	defer s.changes.mu.Unlock()
	ready := s.ready
	s.ready = 0
	return ready
}

// Close ends the subscription. It may be called more than once.
func (s *subscription) Close() {
	s.changes.mu.Lock()
	defer s.changes.mu.Unlock()
	g := s.changes.groups[s.key]
	if g == nil {
		return
	}
	delete(g.members, s)
	if len(g.members) == 0 && s.key != (listKey{}) {
		delete(s.changes.groups, s.key)
	}
}

// group is everybody who watches one list.
type group struct {
	known   digests // of the lists that members know of
	members map[*subscription]struct{}
}

// changes compares, for all lists that somebody watches, those of each new View
// with the ones before.
type changes struct {
	conn  *bus.Conn
	lists *lists
	// own watches the hub's list of tools, for the event about it.
	own *subscription

	mu     sync.Mutex
	groups map[listKey]*group // guarded by mu
}

func newChanges(conn *bus.Conn, lists *lists) *changes {
	c := &changes{conn: conn, lists: lists, groups: make(map[listKey]*group)}
	c.own = c.subscribe(listKey{}, toolsList)
	return c
}

// subscribe watches the caller's own lists in scope. The subscription must be
// closed.
func (e *engine) subscribe(scope string, c caller, wanted listSet) *subscription {
	return e.changes.subscribe(listKey{scope: scope, principal: c.principal}, wanted)
}

func (c *changes) subscribe(key listKey, wanted listSet) *subscription {
	ch := make(chan struct{}, 1)
	s := &subscription{C: ch, c: ch, changes: c, key: key, wanted: wanted}
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil {
		g = &group{known: digestsOf(c.lists.get(key).set), members: make(map[*subscription]struct{})}
		c.groups[key] = g
	}
	g.members[s] = struct{}{}
	return s
}

// run watches until ctx ends.
func (c *changes) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		v := c.lists.registry.View()
		timer.Stop()
		if wait, ok := c.tell(time.Now()); ok {
			timer.Reset(wait)
		}
		select {
		case <-v.Superseded():
		case <-timer.C:
		case <-c.own.C:
			c.own.take()
			c.emit()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tell finds changes and gives the tokens that are due. ok says that more are due
// after wait.
func (c *changes) tell(now time.Time) (wait time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, g := range c.groups {
		present := digestsOf(c.lists.get(key).set)
		changed := present.changed(g.known)
		g.known = present
		for s := range g.members {
			s.pending |= changed & s.wanted
			if s.pending == 0 {
				continue
			}
			if left := changeInterval - now.Sub(s.told); left > 0 {
				if !ok || left < wait {
					wait, ok = left, true
				}
				continue
			}
			s.ready |= s.pending
			s.pending, s.told = 0, now
			select {
			case s.c <- struct{}{}:
			default: // the last token was not taken yet, and says the same
			}
		}
	}
	return wait, ok
}

// listEvent is the data of the event list.<router>.changed.
type listEvent struct {
	ToolSet string `json:"toolset"`
	Tools   int    `json:"tools"`
}

func (c *changes) emit() {
	set := c.lists.get(listKey{}).set
	c.conn.Emit(bus.Event{
		Kind: "list", Subject: c.conn.Identity(), What: "changed",
		Data: listEvent{ToolSet: set.ID, Tools: len(set.Entries)},
	})
}
