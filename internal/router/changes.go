package router

import (
	"context"
	"sync"
	"time"

	"toolhub/internal/bus"
)

// changeInterval is the least time between two tokens of one subscription.
const changeInterval = 100 * time.Millisecond

// subscription tells of changes of one caller's own list of tools. C gets one
// token for each change, the first at once, then at most one per
// changeInterval; the last change is never lost.
type subscription struct {
	C <-chan struct{}

	changes *changes
	key     listKey
	c       chan struct{} // has room for one token: more would say the same

	// Guarded by changes.mu.
	pending bool      // a change was not told of yet
	told    time.Time // when the last one was
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
	id      string // of the ToolSet that members know of
	members map[*subscription]struct{}
}

// changes compares, for each list that somebody watches, the ToolSet of each new
// View with the one before.
type changes struct {
	conn  *bus.Conn
	lists *lists
	// own watches the hub's list, for the event about it.
	own *subscription

	mu     sync.Mutex
	groups map[listKey]*group // guarded by mu
}

func newChanges(conn *bus.Conn, lists *lists) *changes {
	c := &changes{conn: conn, lists: lists, groups: make(map[listKey]*group)}
	c.own = c.subscribe(listKey{})
	return c
}

// subscribe watches the caller's own list of tools in scope. The subscription
// must be closed.
func (e *engine) subscribe(scope string, c caller) *subscription {
	return e.changes.subscribe(listKey{scope: scope, principal: c.principal})
}

func (c *changes) subscribe(key listKey) *subscription {
	ch := make(chan struct{}, 1)
	s := &subscription{C: ch, c: ch, changes: c, key: key}
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.groups[key]
	if g == nil {
		g = &group{id: c.lists.get(key).set.ID, members: make(map[*subscription]struct{})}
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
		id := c.lists.get(key).set.ID
		changed := id != g.id
		g.id = id
		for s := range g.members {
			s.pending = s.pending || changed
			if !s.pending {
				continue
			}
			if left := changeInterval - now.Sub(s.told); left > 0 {
				if !ok || left < wait {
					wait, ok = left, true
				}
				continue
			}
			s.pending, s.told = false, now
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
