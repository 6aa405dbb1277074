package router

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// setWatched subscribes as the stream of a session does.
func (h *testHub) setWatched(uris ...string) *watching {
	w := h.engine.watch("", caller{})
	h.t.Cleanup(w.Close)
	w.set(uris)
	return w
}

func (h *testHub) down(s *server) {
	h.t.Helper()
	s.status(registry.Status{State: registry.StateDown})
	h.until(s.id+" down", func(v *registry.View) bool { return !v.Get(s.id).Ready() })
}

// silent fails if w has something to tell.
func (h *testHub) silent(w *watching) {
	h.t.Helper()
	if uris, _ := w.take(); len(uris) > 0 {
		h.t.Errorf("heard of %v", uris)
	}
}

// TestChangesWaitForTheServer: what changes while the server cannot be read is told
// of when it can.
func TestChangesWaitForTheServer(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, watchHub)
	s := h.shelf("lib")
	h.until("lib ready", s.isReady)
	w := h.engine.watch("", caller{})
	defer w.Close()
	uris := proxied("lib", "lib:a", "lib:shelf/1")
	w.add(h.ctx(), uris)
	h.down(s.server)
	s.touch("lib:a")
	s.touch("lib:shelf/1")
	h.eventually("both have come", func() bool {
		h.engine.watches.mu.Lock()
		defer h.engine.watches.mu.Unlock()
		return len(w.changed) == 2
	})
	h.silent(w)
	h.silent(w) // and keeps them
	// What was unsubscribed from meanwhile is of no interest any more.
	w.remove(uris[1])
	s.status(registry.Status{State: registry.StateUp})
	h.heard(w, uris[0])
}

// TestSubscribingToWhatIsAway: a resource that is listed is subscribed to at once,
// and told of when its server is back.
func TestSubscribingToWhatIsAway(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, watchHub)
	s := h.shelf("lib")
	h.until("lib ready", s.isReady)
	h.down(s.server)
	w := h.engine.watch("", caller{})
	defer w.Close()
	uris := proxied("lib", "lib:a", "lib:shelf/1")
	if got := w.add(h.ctx(), uris); !slices.Equal(got, uris[:1]) {
		t.Fatalf("honoured are %v", got)
	}
	// A session that subscribed earlier keeps what is not listed, too.
	session := h.setWatched(uris...)
	s.status(registry.Status{State: registry.StateUp})
	h.heard(w, uris[0])
	h.heard(session, uris...)
}

// TestSubscriptionsOfASessionWaitForTheirServer: a stream that is opened before
// anything is known of a server.
func TestSubscriptionsOfASessionWaitForTheirServer(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, watchHub)
	uris := proxied("lib", "lib:a", "lib:shelf/1")
	w := h.setWatched(append(uris, "none:such")...)
	s := h.shelf("lib")
	h.heard(w, uris...)
	s.touch("lib:shelf/1")
	h.heard(w, uris[1])
	w.set(uris[:1])
	if len(w.unclear) != 0 {
		t.Errorf("unclear: %v", w.unclear)
	}
}

// TestHungOwner: a server that does not answer has not taken a subscription,
// whether it lists the resource or not.
func TestHungOwner(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, watchHub)
	asked := make(chan struct{}, 10)
	s := h.claim("lib", func(ctx context.Context, _ *bus.Incoming) (bus.Reply, error) {
		asked <- struct{}{}
		<-ctx.Done()
		return bus.Reply{}, context.Cause(ctx)
	})
	s.publishLists(libraryLists())
	s.status(registry.Status{State: registry.StateUp})
	h.until("lib ready", s.isReady)
	w := h.engine.watch("", caller{})
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if got := w.add(ctx, proxied("lib", "lib:a", "lib:shelf/1")); got != nil {
		t.Errorf("honoured are %v", got)
	}
}

// TestRefusalIsNotForEver: what a server does not take again, when it is asked
// for another reason, is asked for again, and then told of.
func TestRefusalIsNotForEver(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, watchHub)
	s := h.shelf("lib")
	h.until("lib ready", s.isReady)
	w := h.engine.watch("", caller{})
	defer w.Close()
	uris := proxied("lib", "lib:a", "lib:shelf/1")
	w.add(h.ctx(), uris)
	s.refuse("lib:shelf/1")
	other := h.engine.watch("", caller{})
	defer other.Close()
	if got := other.add(h.ctx(), proxied("lib", "lib:shelf/2")); len(got) != 1 {
		t.Fatalf("honoured are %v", got)
	}
	h.eventually("it is not listened for", func() bool {
		uris, calls := s.listening()
		return calls == 1 && !slices.Contains(uris, "lib:shelf/1")
	})
	if got := other.add(h.ctx(), uris[1:]); got != nil {
		t.Errorf("honoured are %v", got)
	}
	s.refuse()
	lists := libraryLists()
	lists.Prompts = nil
	s.publishLists(lists) // it is another one now
	h.heard(w, uris[1])
	s.touch("lib:shelf/1")
	h.heard(w, uris[1])
	if got := other.add(h.ctx(), uris[1:]); len(got) != 1 {
		t.Errorf("honoured are %v", got)
	}
}

// TestPartsOfResources: a part is told of by its own URI, or as the whole if it has
// none here, but not if it is hidden.
func TestPartsOfResources(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, strings.Replace(watchHub, "lib:secret", "lib:*secret", 1))
	s := h.shelf("lib")
	h.until("lib ready", s.isReady)
	w := h.engine.watch("", caller{})
	defer w.Close()
	all := proxied("lib", "lib:book", "lib:shelf/")
	if got := w.add(h.ctx(), all); !slices.Equal(got, all) {
		t.Fatalf("honoured are %v", got)
	}
	s.touch("lib:shelf/secret")
	s.touch("lib:shelf/7")
	h.heard(w, "mcp-proxy://lib/lib:shelf/7")
	s.touch("lib:book/7") // several templates fit it
	h.heard(w, "mcp-proxy://lib/lib:book")
}

// TestPrincipalsHearTheirOwn: each principal is listened for as itself, and hears of
// nothing that the owner told another one.
func TestPrincipalsHearTheirOwn(t *testing.T) {
	t.Parallel()
	const principals = 50
	h := newTestHub(t, "policy: {allow: ['*/*'], deny: [{tool: '*/resource:lib:a', when: 'principal == \"p7\"'}]}\nservers:\n  lib: {builtin: clock}\n")
	s := h.shelf("lib")
	h.until("lib ready", s.isReady)
	clients := make([]*watching, principals)
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			clients[i] = h.engine.watch("", caller{principal: fmt.Sprintf("p%d", i)})
			want := proxied("lib", "lib:a", fmt.Sprintf("lib:shelf/%d", i))
			got := clients[i].add(h.ctx(), want)
			if i == 7 {
				want = want[1:]
			}
			if !slices.Equal(got, want) {
				t.Errorf("p%d: honoured are %v", i, got)
			}
		})
	}
	group.Wait()
	for _, w := range clients {
		defer w.Close()
	}
	s.mu.Lock()
	for in, uris := range s.listens {
		for _, uri := range uris {
			if n, ok := strings.CutPrefix(uri, "lib:shelf/"); ok && "p"+n != in.Meta.Principal {
				t.Errorf("%s listens for %s", in.Meta.Principal, uri)
			}
		}
	}
	s.mu.Unlock()
	// A worker that tells everybody everything is not believed.
	for i := range principals {
		s.mu.Lock()
		for in := range s.listens {
			_ = in.Notify(mcp.AppendRequest(nil, nil, mcp.NotifyResourceUpdated, fmt.Appendf(nil, `{"uri":"lib:shelf/%d"}`, i)))
		}
		s.mu.Unlock()
	}
	s.touch("lib:a")
	for i, w := range clients {
		want := proxied("lib", "lib:a", fmt.Sprintf("lib:shelf/%d", i))
		if i == 7 {
			want = want[1:]
		}
		h.heard(w, want...)
	}
}

// TestStdioSubscriptions: a session of the initialize era over stdio.
func TestStdioSubscriptions(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.apply("hub: test\n" + watchHub + "  t: {builtin: clock, prefix: \"\"}\n")
	b.eventually("lib defined", func() bool { return b.registry.View().Get("lib") != nil })
	s := b.shelf("lib")
	r := b.router("r1")
	b.eventually("lib ready", func() bool { return s.isReady(r.engine.registry.View()) })
	p := b.pipe(t.Context(), r)
	p.send(pipeInitialize)
	p.next(`"id":0`)
	const a = "mcp-proxy://lib/lib:a"
	ask := func(method, uri string) {
		p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"uri":%q}}`, method, uri))
	}
	ask(mcp.MethodSubscribe, "mcp-proxy://lib/lib:secret")
	p.next("-32002", `"uri":"mcp-proxy://lib/lib:secret"`)
	ask(mcp.MethodSubscribe, a)
	p.next(`"id":1`, `"result":{}`)
	s.touch("lib:a")
	p.next(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"` + a + `"}}`)
	ask(mcp.MethodUnsubscribe, a)
	p.next(`"id":1`, `"result":{}`)
	b.eventually("nobody listens any more", func() bool {
		_, calls := s.listening()
		return calls == 0
	})
	lists := libraryLists()
	lists.Templates = lists.Templates[:1]
	lists.Prompts = nil
	s.publishLists(lists)
	p.next("prompts/list_changed")
	p.next("resources/list_changed")
}

// TestStreamOfAnEndedSession: a stream that is opened while its session ends, ends
// with it.
func TestStreamOfAnEndedSession(t *testing.T) {
	t.Parallel()
	s := &session{rec: &record{}}
	s.finish()
	ctx, cancel := context.WithCancel(t.Context())
	s.replaceStream(cancel)
	select {
	case <-ctx.Done():
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
}
