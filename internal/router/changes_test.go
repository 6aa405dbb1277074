package router

import (
	"fmt"
	"testing"
	"time"

	"toolhub/internal/bus"
	"toolhub/internal/registry"
)

// next waits for a token.
func (h *testHub) next(s *subscription) {
	h.t.Helper()
	select {
	case <-s.C:
	case <-time.After(patience):
		h.t.Fatal("no change is told of")
	}
}

// quiet waits until all that has happened is told of, and fails if s is told of it.
func (h *testHub) quiet(s *subscription) {
	h.t.Helper()
	// A change of another list, told of after everything before it, and as late
	// as a token that had to wait.
	barrier := h.engine.subscribe("barrier", caller{}, toolsList)
	defer barrier.Close()
	for range 2 {
		b := h.claim("barrier", echo)
		b.publish(defs(fmt.Sprintf("b%d", b.epoch)))
		b.status(registry.Status{State: registry.StateUp})
		h.next(barrier)
	}
	select {
	case <-s.C:
		h.t.Error("a change is told of where there is none")
	default:
	}
}

const withBarrier = "policy: allow_all\nservers:\n  a: {builtin: clock}\n  b: {builtin: clock}\n  barrier: {builtin: clock, tools: {exclude: ['*/x']}}\n"

func TestOneTokenForOneChange(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, withBarrier)
	a := h.start("a", echo, "t")
	h.start("b", echo, "t")
	onlyA, onlyB, all := h.engine.subscribe("a", alice, toolsList), h.engine.subscribe("b", alice, toolsList), h.engine.subscribe("", alice, toolsList)
	defer onlyA.Close()
	defer onlyB.Close()
	defer all.Close()

	a.publish(defs("t", "u"))
	h.next(onlyA)
	h.next(all)
	if got := h.names("a", alice); got != "t u" {
		t.Errorf("with the token the list is %q", got)
	}
	h.quiet(onlyA)
	h.quiet(onlyB)

	// What changes nothing in the list is not told of.
	a.status(registry.Status{State: registry.StateDegraded, Reason: "slow"})
	a.publish(defs("t", "u"))
	h.quiet(onlyA)

	// It goes and comes back, each is told of.
	a.status(registry.Status{State: registry.StateDown})
	h.next(onlyA)
	a.status(registry.Status{State: registry.StateUp})
	h.next(onlyA)
	h.quiet(onlyA)

	onlyA.Close()
	onlyA.Close()
	a.publish(defs("t"))
	h.quiet(onlyA)
}

// Many changes in a row make few tokens, and behind the last one is the last list.
func TestChangesAreCoalesced(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, withBarrier)
	s := h.start("a", echo, "t")
	sub := h.engine.subscribe("", alice, toolsList)
	defer sub.Close()
	const changes = 60
	last := fmt.Sprintf("a__t%d", changes-1)
	published := make(chan struct{})
	go func() {
		defer close(published)
		for i := range changes {
			s.publish(defs(fmt.Sprintf("t%d", i)))
		}
	}()
	tokens := 0
	start := time.Now()
	for h.names("", alice) != last {
		h.next(sub)
		tokens++
	}
	<-published
	if took := time.Since(start); tokens > int(took/changeInterval)+2 || tokens > changes/2 {
		t.Errorf("%d tokens in %v, which is more than one per %v", tokens, took, changeInterval)
	}
}

// The last change is told of even when it comes right behind another.
func TestLastChangeIsNotLost(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, withBarrier)
	s := h.start("a", echo, "t")
	sub := h.engine.subscribe("", alice, toolsList)
	defer sub.Close()
	for i := range 10 {
		s.publish(defs(fmt.Sprintf("first%d", i)))
		h.next(sub)
		s.publish(defs(fmt.Sprintf("second%d", i)))
		h.next(sub)
		if got, want := h.names("", alice), fmt.Sprintf("a__second%d", i); got != want {
			t.Fatalf("with the second token the list is %q, want %q", got, want)
		}
	}
}

// A hub whose list changes says so in an event, whoever listens.
func TestListEvent(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, oneServer)
	log := h.events(bus.EventFilter("list"))
	h.start("a", echo, "t")
	set := h.engine.list("", caller{}).set
	log.until("the list of one tool", func(all []bus.Event) bool {
		for _, e := range all {
			if e.Subject == "router-r1" && e.What == "changed" && fmt.Sprintf("%s", e.Data) == fmt.Sprintf(`{"toolset":"%s","tools":1}`, set.ID) {
				return true
			}
		}
		return false
	})
}
