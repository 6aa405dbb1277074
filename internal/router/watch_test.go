package router

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// shelf is a worker whose server lets resources be listened to, all but those
// that end in "static".
type shelf struct {
	*server
	mu      sync.Mutex
	listens map[*bus.Incoming][]string
	leave   chan struct{} // closed when it goes
	refused []string      // besides
	opened  int
}

// refuse makes these the resources that nobody can listen to from now on.
func (s *shelf) refuse(uris ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = uris
}

func (h *testHub) shelf(id string) *shelf {
	h.t.Helper()
	s := &shelf{listens: make(map[*bus.Incoming][]string), leave: make(chan struct{})}
	s.server = h.claim(id, s.serve)
	s.publishLists(libraryLists())
	s.status(registry.Status{State: registry.StateUp})
	return s
}

func (s *shelf) serve(ctx context.Context, in *bus.Incoming) (bus.Reply, error) {
	m, err := mcp.ParseMessage(in.Body, mcp.Strict)
	if err != nil || m.Method != mcp.MethodListen {
		return library(ctx, in)
	}
	uris, _ := stringList(mcp.Field(mcp.Field(m.Params, "notifications"), "resourceSubscriptions"))
	s.mu.Lock()
	uris = slices.DeleteFunc(uris, func(uri string) bool {
		return strings.HasSuffix(uri, "static") || slices.Contains(s.refused, uri)
	})
	s.listens[in] = uris
	s.opened++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.listens, in)
	}()
	list := make([]string, len(uris))
	for i, uri := range uris {
		list[i] = string(mcp.QuoteString(uri))
	}
	_ = in.Notify(mcp.AppendRequest(nil, nil, mcp.NotifyAcknowledged, jsontext.Value(`{"notifications":{"resourceSubscriptions":[`+strings.Join(list, ",")+`]}}`)))
	select {
	case <-ctx.Done():
		return bus.Reply{}, context.Cause(ctx)
	case <-s.leave:
		return bus.Reply{Body: mcp.AppendResult(nil, m.ID, jsontext.Value(`{"resultType":"complete"}`))}, nil
	}
}

// touch tells of an update, and returns how many listen.
func (s *shelf) touch(uri string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for in, uris := range s.listens {
		if slices.ContainsFunc(uris, func(u string) bool { return u == uri || mcp.IsPartOf(uri, u) }) {
			_ = in.Notify(mcp.AppendRequest(nil, nil, mcp.NotifyResourceUpdated, jsontext.Value(`{"uri":`+string(mcp.QuoteString(uri))+`}`)))
			n++
		}
	}
	return n
}

func (s *shelf) listening() (uris []string, calls int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, list := range s.listens {
		uris = append(uris, list...)
	}
	slices.Sort(uris)
	return uris, len(s.listens)
}

// heard waits for updates, in any number of tokens.
func (h *testHub) heard(w *watching, want ...string) {
	h.t.Helper()
	var got, news []string
	var again <-chan struct{}
	for timeout := time.After(patience); len(got) < len(want); {
		select {
		case <-w.C:
			news, again = w.take()
			got = append(got, news...)
		case <-again:
			news, again = w.take()
			got = append(got, news...)
		case <-timeout:
			h.t.Fatalf("heard of %v only, not of %v", got, want)
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		h.t.Errorf("heard of %v, want %v", got, want)
	}
}

func proxied(server string, uris ...string) []string {
	out := make([]string, len(uris))
	for i, uri := range uris {
		out[i] = "mcp-proxy://" + server + "/" + uri
	}
	return out
}

const watchHub = "policy: {allow: ['*/*'], deny: ['*/resource:lib:secret']}\nservers:\n  lib: {builtin: clock}\n"

// TestWatchingOneCall: however many clients want however much, one call per
// server and principal is open, about all of it, and each client hears of its own.
func TestWatchingOneCall(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, watchHub)
	s := h.shelf("lib")
	h.until("lib ready", s.isReady)
	var clients []*watching
	for i := range 50 {
		w := h.engine.watch("", caller{})
		defer w.Close()
		uris := proxied("lib", "lib:a", fmt.Sprintf("lib:shelf/%d", i), "lib:static", "lib:secret", "lib:book/7")
		got := w.add(h.ctx(), append(uris, "none:such", "mcp-proxy://other/x:y"))
		if want := proxied("lib", "lib:a", fmt.Sprintf("lib:shelf/%d", i)); !slices.Equal(got, want) {
			t.Fatalf("honoured are %v, want %v", got, want) // a book is ambiguous
		}
		clients = append(clients, w)
	}
	h.eventually("one call about everything", func() bool {
		uris, calls := s.listening()
		return calls == 1 && len(uris) == 51
	})
	for i := range clients {
		s.touch(fmt.Sprintf("lib:shelf/%d", i))
	}
	s.touch("lib:a/part")
	for i, w := range clients {
		h.heard(w, proxied("lib", "lib:a/part", fmt.Sprintf("lib:shelf/%d", i))...)
	}
	// Who goes leaves nothing behind.
	for _, w := range clients {
		w.Close()
	}
	h.eventually("nobody listens any more", func() bool {
		h.engine.watches.mu.Lock()
		defer h.engine.watches.mu.Unlock()
		_, calls := s.listening()
		return calls == 0 && len(h.engine.watches.upstreams) == 0
	})
}

func (h *testHub) eventually(what string, ok func() bool) {
	h.t.Helper()
	timeout := time.After(patience)
	for !ok() {
		select {
		case <-time.After(2 * time.Millisecond):
		case <-timeout:
			h.t.Fatalf("never: %s", what)
		}
	}
}

// TestWatchingIsKept: over the end of the owner, whether it says farewell or not,
// and after it everything may have changed.
func TestWatchingIsKept(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, watchHub)
	s := h.shelf("lib")
	h.until("lib ready", s.isReady)
	w := h.engine.watch("", caller{})
	defer w.Close()
	uris := proxied("lib", "lib:a", "lib:shelf/1")
	if got := w.add(h.ctx(), uris); !slices.Equal(got, uris) {
		t.Fatalf("honoured are %v", got)
	}
	for _, farewell := range []bool{true, false} {
		if farewell {
			close(s.leave)
		}
		s.service.Stop()
		s.unclaim()
		s = h.shelf("lib")
		h.heard(w, uris...)
		s.touch("lib:shelf/1")
		h.heard(w, uris[1])
	}
	// What is listed may be subscribed to while its server is away.
	s.status(registry.Status{State: registry.StateDown})
	h.until("lib down", func(v *registry.View) bool { return !v.Get("lib").Ready() })
	late := h.engine.watch("", caller{})
	defer late.Close()
	honoured := make(chan []string, 1)
	go func() { honoured <- late.add(h.ctx(), proxied("lib", "lib:a", "lib:shelf/2")) }()
	h.eventually("it is wanted", func() bool {
		h.engine.watches.mu.Lock()
		defer h.engine.watches.mu.Unlock()
		return len(late.topics) == 1
	})
	s.status(registry.Status{State: registry.StateUp})
	if got := <-honoured; !slices.Equal(got, uris[:1]) {
		t.Errorf("honoured are %v", got)
	}
}

// TestWatchingIsCheckedAgain: nobody hears of what it may not read any more.
func TestWatchingIsCheckedAgain(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, watchHub)
	s := h.shelf("lib")
	h.until("lib ready", s.isReady)
	w := h.engine.watch("", caller{})
	defer w.Close()
	uris := proxied("lib", "lib:a", "lib:shelf/1")
	w.add(h.ctx(), uris)
	h.apply(strings.Replace(watchHub, "lib:secret", "lib:a", 1))
	h.until("the policy", func(*registry.View) bool {
		_, err := h.engine.list("", caller{}).set.ResolveURI(uris[0])
		return err != nil
	})
	s.touch("lib:a")
	s.touch("lib:shelf/1")
	h.heard(w, uris[1])
}

// TestWatchingIsBounded: a client that does not read keeps no more than a bound,
// and one cannot subscribe to more than another.
func TestWatchingIsBounded(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, watchHub)
	s := h.shelf("lib")
	h.until("lib ready", s.isReady)
	w := h.engine.watch("", caller{})
	defer w.Close()
	w.add(h.ctx(), proxied("lib", "lib:shelf/"))
	w.watches.mu.Lock()
	u := w.topics["mcp-proxy://lib/lib:shelf/"].upstream
	w.watches.mu.Unlock()
	for i := range 3 * maxPending {
		u.updated(fmt.Sprintf("lib:shelf/%d", i))
	}
	if uris, _ := w.take(); len(uris) < maxPending || len(uris) > maxPending+1 {
		t.Errorf("%d updates waited", len(uris))
	}
	var many []string
	for i := range maxWatched + 10 {
		many = append(many, fmt.Sprintf("mcp-proxy://lib/lib:shelf/%d", i))
	}
	if got := len(w.add(h.ctx(), many)); got != maxWatched-1 {
		t.Errorf("%d of %d are honoured", got, len(many))
	}
	if _, e := parseFilter(jsontext.Value(`{"notifications":{"resourceSubscriptions":["` + strings.Join(many, `","`) + `"]}}`)); e == nil || !strings.Contains(e.Message, "resourceSubscriptions has 1010 members") {
		t.Errorf("too many: %v", e)
	}
}

// TestSubscriptions: clients of both eras, over routers of their choice.
func TestSubscriptions(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.apply("hub: test\n" + watchHub + "  t: {builtin: clock, prefix: \"\"}\n")
	b.eventually("lib defined", func() bool { return b.registry.View().Get("lib") != nil })
	s := b.shelf("lib")
	r1, r2 := b.router("r1"), b.router("r2")
	c := b.client()
	session := b.initialize(c, r1.url, mcp.LatestLegacy, `{}`)
	legacy := func(url, method, uri string) string {
		_, body := b.exchange(c, sessionPost(t.Context(), url, session, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"uri":%q}}`, method, uri)))
		return body
	}
	const a, one, ok = "mcp-proxy://lib/lib:a", "mcp-proxy://lib/lib:shelf/1", `"result":{}`
	for _, step := range []struct{ url, method, uri, want string }{
		{r1.url, mcp.MethodSubscribe, a, ok},
		{r1.url, mcp.MethodSubscribe, a, ok},
		{r2.url, mcp.MethodSubscribe, one, ok},
		{r2.url, mcp.MethodSubscribe, "mcp-proxy://lib/lib:secret", "-32002"},
		{r2.url, mcp.MethodSubscribe, "mcp-proxy://lib/lib:static", "-32602"},
		{r2.url, mcp.MethodSubscribe, "", "params.uri"},
		{r1.url, mcp.MethodUnsubscribe, "never:was", ok},
	} {
		if got := legacy(step.url, step.method, step.uri); !strings.Contains(got, step.want) {
			t.Errorf("%s %s: %s", step.method, step.uri, got)
		}
	}
	modern := b.open(c, listenPost(t.Context(), r1.url, `{"resourcesListChanged":true,"resourceSubscriptions":["`+a+`","none:such"]}`))
	modern.message("acknowledged", `{"resourcesListChanged":true,"resourceSubscriptions":["`+a+`"]}`)
	// The stream is on the other router, and what may have been missed is told first.
	stream := b.open(c, streamGet(t.Context(), r2.url, session))
	stream.message(": ok")
	stream.message("resources/updated", a)
	stream.message("resources/updated", one)
	b.eventually("all are listened for", func() bool { return s.touch("lib:shelf/1") == 1 })
	stream.message(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"` + one + `"}}`)
	s.touch("lib:a")
	modern.message("resources/updated", `"uri":"`+a+`"`, mcp.MetaSubscriptionID)
	stream.message("resources/updated", a)
	// What is subscribed to at one router is told of at the other, and no longer
	// when it is not.
	if got := legacy(r1.url, mcp.MethodSubscribe, "mcp-proxy://lib/lib:shelf/2"); !strings.Contains(got, ok) {
		t.Fatal(got)
	}
	stream.message("resources/updated", "shelf/2") // it may have changed on the way there
	if got := legacy(r1.url, mcp.MethodUnsubscribe, one); !strings.Contains(got, ok) {
		t.Fatal(got)
	}
	watches := r2.fronts.engine.watches
	b.eventually("the old one is not wanted", func() bool {
		watches.mu.Lock()
		defer watches.mu.Unlock()
		u := watches.upstreams[upstreamKey{"lib", anonymous}]
		return u != nil && u.wants["lib:shelf/1"] == nil && u.wants["lib:a"] != nil
	})
	s.touch("lib:shelf/1")
	s.touch("lib:a")
	stream.message(`"params":{"uri":"` + a + `"}`)
	// Each list for itself.
	lists := libraryLists()
	lists.Prompts = nil
	s.publishLists(lists)
	stream.message("prompts/list_changed")
	lists.Templates = lists.Templates[:1]
	s.publishLists(lists)
	modern.message("resources/updated", a)
	modern.message("resources/list_changed")
	stream.message("resources/list_changed")
}
