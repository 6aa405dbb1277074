package mcp

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const subscribeDiscover = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true},"extensions":{"io.modelcontextprotocol/tasks":{}}}}`

// asked is what a subscriptions/listen request asks for.
type asked struct {
	Notifications struct {
		Resources []string `json:"resourceSubscriptions,omitzero"`
		Tasks     []string `json:"taskIds,omitzero"`
		Tools     bool     `json:"toolsListChanged,omitzero"`
	} `json:"notifications"`
}

func askedFor(m *Message) asked {
	var a asked
	if err := json.Unmarshal(m.Params, &a, lenientOptions); err != nil {
		panic(err)
	}
	return a
}

func (a *asked) String() string {
	text := strings.Join(a.Notifications.Resources, " ") + strings.Join(a.Notifications.Tasks, " ")
	if a.Notifications.Tools {
		text = strings.TrimSpace("tools " + text)
	}
	return text
}

// acknowledgement is the first message of the stream that m opens.
func acknowledgement(m *Message, a asked) string {
	b, err := json.Marshal(a)
	if err != nil {
		panic(err)
	}
	params, err := Edit(b, Change{"_meta", jsontext.Value(`{"` + MetaSubscriptionID + `":` + string(m.ID) + `}`)})
	if err != nil {
		panic(err)
	}
	return string(AppendRequest(nil, nil, NotifyAcknowledged, params))
}

// heard is what a connection tells of, in order.
type heard struct {
	mu   sync.Mutex
	list []string
}

func (h *heard) add(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(h.list, what)
}

func (h *heard) take() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := strings.Join(h.list, " ")
	h.list = nil
	return all
}

func (h *heard) options() ConnectOptions {
	return ConnectOptions{
		Server:            "s",
		OnListChanged:     func(kind ListKind) { h.add(string(kind)) },
		OnResourceUpdated: func(uri string) { h.add(uri) },
		OnTask:            func(params jsontext.Value) { h.add("task " + FieldString(params, "taskId")) },
	}
}

func subscribeAll(t *testing.T, c Conn, uris ...string) []string {
	t.Helper()
	errs := make([]string, len(uris))
	var group sync.WaitGroup
	for i, uri := range uris {
		group.Go(func() {
			errs[i] = outcome(nil, c.Subscribe(t.Context(), uri))
		})
	}
	group.Wait()
	return errs
}

// listeners is a modern HTTP server that knows which streams are open, and does
// with each what answer says.
type listeners struct {
	mu     sync.Mutex
	open   map[int]*openListen
	opened []string // what was asked for, in order
	most   int      // streams that were open at once
	none   bool     // at some time after the first stream there was none
}

type openListen struct {
	asked asked
	send  chan string // events
	drop  chan struct{}
}

// serve answers a listen request; acknowledge says what is, and false that there
// is nothing to acknowledge since it has answered already.
func (l *listeners) serve(a *webAnswer, m *Message, acknowledge func(n int, want asked) (asked, bool)) {
	want := askedFor(m)
	l.mu.Lock()
	n := len(l.opened) + 1
	l.opened = append(l.opened, want.String())
	l.mu.Unlock()
	honoured, ok := acknowledge(n, want)
	if !ok {
		return
	}
	o := &openListen{asked: honoured, send: make(chan string, 64), drop: make(chan struct{})}
	l.mu.Lock()
	l.open[n] = o
	l.most = max(l.most, len(l.open))
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.open, n)
		l.none = l.none || len(l.open) == 0
	}()
	a.event("%s", acknowledgement(m, honoured))
	for {
		select {
		case event := <-o.send:
			a.event("%s", event)
		case <-o.drop:
			a.raw("retry: 1\n\n")
			return
		case <-a.r.Context().Done():
			return
		}
	}
}

// sole is the one stream that is open, once there is no other.
func (l *listeners) sole(t *testing.T, want string) *openListen {
	t.Helper()
	var o *openListen
	waitFor(t, "sole stream "+want, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, o = range l.open {
		}
		return len(l.open) == 1 && o.asked.String() == want
	})
	return o
}

// check checks that there was a stream at any time, and never more than it takes.
func (l *listeners) check(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.none || l.most > 3 { // the server may hear late of the end of an old one
		t.Errorf("nothing was listened for at some time: %v; at most %d streams at once", l.none, l.most)
	}
}

func (l *listeners) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.opened)
}

func (l *listeners) web(t *testing.T, acknowledge func(a *webAnswer, m *Message, n int, want asked) (asked, bool)) *web {
	l.open = make(map[int]*openListen)
	return serveWeb(t, func(a *webAnswer, m *Message) {
		switch m.Method {
		case MethodDiscover:
			a.result(m, subscribeDiscover)
		case MethodListen:
			l.serve(a, m, func(n int, want asked) (asked, bool) { return acknowledge(a, m, n, want) })
		}
	})
}

func acknowledgeAll(_ *webAnswer, _ *Message, _ int, want asked) (asked, bool) { return want, true }

func numbered(n int) []string {
	var uris []string
	for i := range n {
		uris = append(uris, fmt.Sprintf("r:%02d", i))
	}
	return uris
}

func updatedEvent(uri string) string {
	return `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"` + uri + `"}}`
}

// TestHTTPSubscribe: one stream has all that is wanted. The next one is there
// before it ends, however many want something at once.
func TestHTTPSubscribe(t *testing.T) {
	var l listeners
	var h heard
	w := l.web(t, acknowledgeAll)
	c := connectWeb(t, w, h.options())
	l.sole(t, "tools")
	uris := numbered(50)
	for i, err := range subscribeAll(t, c, uris...) {
		if err != "" {
			t.Errorf("%s: %s", uris[i], err)
		}
	}
	all := "tools " + strings.Join(uris, " ")
	o := l.sole(t, all)
	if n := l.count(); n > 4 {
		t.Errorf("%d streams were opened for 50 subscriptions at once", n)
	}
	subscribeAll(t, c, "r:07", "r:07") // are there
	o.send <- updatedEvent("r:07")
	o.send <- `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	waitFor(t, "update", func() bool { return h.take() == "r:07 tools" })

	if err := c.SubscribeTask(t.Context(), "t1"); err != nil {
		t.Error(err)
	}
	o = l.sole(t, all+"t1")
	o.send <- `{"jsonrpc":"2.0","method":"notifications/tasks","params":{"taskId":"t1","status":"working"}}`
	waitFor(t, "task", func() bool { return h.take() == "task t1" })
	if got := string(Field(Field(w.calls[MethodListen][l.count()-1].Params, "_meta"), MetaClientCapabilities)); got != `{"extensions":{"io.modelcontextprotocol/tasks":{}}}` {
		t.Errorf("capabilities %s", got)
	}
	c.UnsubscribeTask("t1")
	for _, uri := range uris[1:] {
		c.Unsubscribe(uri)
	}
	l.sole(t, "tools r:00")
	c.Unsubscribe("r:00")
	l.sole(t, "tools")
	l.check(t)
	if got := h.take(); got != "" {
		t.Errorf("nothing was missed, but it tells of %s", got)
	}
	closeConn(t, c)
	if err := c.Subscribe(t.Context(), "r:01"); !IsKind(err, KindUnavailable) {
		t.Errorf("on a closed connection: %v", err)
	}
}

// TestHTTPSubscribeDropped: a stream that is lost is opened again with all that
// was in it, and what may have been missed is told of.
func TestHTTPSubscribeDropped(t *testing.T) {
	t.Parallel()
	var l listeners
	var h heard
	again := make(chan struct{})
	attempts := make(chan struct{}, 2)
	var dropped atomic.Bool
	w := l.web(t, func(a *webAnswer, m *Message, n int, want asked) (asked, bool) {
		if !dropped.Load() {
			return want, true
		}
		attempts <- struct{}{}
		if len(attempts) == 1 { // not everything comes back at once
			a.text(503, "")
			return want, false
		}
		<-again
		return want, true
	})
	c := connectWeb(t, w, h.options())
	l.sole(t, "tools")
	subscribeAll(t, c, "r:1", "r:2")
	o := l.sole(t, "tools r:1 r:2")
	dropped.Store(true)
	close(o.drop)
	waitFor(t, "two attempts", func() bool { return len(attempts) == 2 })
	dropped.Store(false)
	// Those who want something meanwhile get it together with the rest.
	done := make(chan []string)
	go func() { done <- subscribeAll(t, c, "r:1", "r:3") }()
	c.Unsubscribe("r:2")
	close(again)
	if errs := <-done; !slices.Equal(errs, []string{"", ""}) {
		t.Errorf("errors %v", errs)
	}
	l.sole(t, "tools r:1 r:3")
	waitFor(t, "news", func() bool { return strings.HasPrefix(h.take(), "tools r:1") })
	if err := c.Subscribe(t.Context(), "r:2"); err != nil {
		t.Error(err)
	}
}

// TestHTTPSubscribeRefused: what the server does not acknowledge, or refuses a
// stream for, nobody is subscribed to, and nobody else suffers.
func TestHTTPSubscribeRefused(t *testing.T) {
	t.Parallel()
	bad := func(uris []string) []string {
		return slices.DeleteFunc(slices.Clone(uris), func(uri string) bool { return !strings.HasPrefix(uri, "bad:") })
	}
	good := func(uris []string) []string {
		return slices.DeleteFunc(slices.Clone(uris), func(uri string) bool { return strings.HasPrefix(uri, "bad:") })
	}
	reject := func(a *webAnswer, m *Message, _ int, want asked) (asked, bool) {
		if b := bad(want.Notifications.Resources); len(b) > 0 {
			a.json(400, string(AppendError(nil, m.ID, &Error{Code: CodeInvalidParams, Message: "no " + strings.Join(b, ",")})))
			return want, false
		}
		return want, true
	}
	for _, test := range []struct {
		name   string
		answer func(a *webAnswer, m *Message, n int, want asked) (asked, bool)
		want   string
	}{
		{"left out", func(a *webAnswer, m *Message, _ int, want asked) (asked, bool) {
			want.Notifications.Resources = good(want.Notifications.Resources)
			return want, true
		}, "invalid/not_subscribable"},
		{"error", reject, "no bad:%s (JSON-RPC error -32602)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var l listeners
			var h heard
			c := connectWeb(t, l.web(t, test.answer), h.options())
			l.sole(t, "tools")
			uris := append(numbered(20), "bad:1", "bad:2")
			errs := subscribeAll(t, c, uris...)
			for i, uri := range uris {
				want := ""
				if number, isBad := strings.CutPrefix(uri, "bad:"); isBad {
					want = strings.Replace(test.want, "%s", number, 1)
				}
				if errs[i] != want {
					t.Errorf("%s: %q, want %q", uri, errs[i], want)
				}
			}
			o := l.sole(t, "tools "+strings.Join(numbered(20), " "))
			o.send <- updatedEvent("r:03")
			waitFor(t, "update", func() bool { return h.take() == "r:03" })
			l.check(t)
			if n := l.count(); n > 40 {
				t.Errorf("%d streams", n)
			}
			// Nothing of it is left, so it is asked for anew.
			n := l.count()
			if err := c.Subscribe(t.Context(), "bad:1"); err == nil || l.count() == n {
				t.Errorf("again: %v, %d streams", err, l.count()-n)
			}
		})
	}
	t.Run("everything", func(t *testing.T) {
		t.Parallel()
		var l listeners
		var h heard
		c := connectWeb(t, l.web(t, reject), h.options())
		var uris []string
		for i := range 200 {
			uris = append(uris, fmt.Sprintf("bad:%d", i))
		}
		for i, err := range subscribeAll(t, c, uris...) {
			if !strings.Contains(err, "-32602") {
				t.Errorf("%s: %s", uris[i], err)
			}
		}
		if n := l.count(); n > 3*maxRefusals {
			t.Errorf("%d streams", n)
		}
		l.sole(t, "tools")
	})
	t.Run("an established one", func(t *testing.T) {
		t.Parallel()
		// After a drop the server refuses it: the rest comes back, and it too, when
		// the server takes it again.
		var l listeners
		var h heard
		var mu sync.Mutex
		gone := ""
		c := connectWeb(t, l.web(t, func(a *webAnswer, m *Message, _ int, want asked) (asked, bool) {
			mu.Lock()
			defer mu.Unlock()
			if gone != "" && slices.Contains(want.Notifications.Resources, gone) {
				a.json(200, string(AppendError(nil, m.ID, InvalidParams("no"))))
				return want, false
			}
			return want, true
		}), h.options())
		subscribeAll(t, c, "r:1", "r:2", "r:3")
		o := l.sole(t, "tools r:1 r:2 r:3")
		h.take()
		mu.Lock()
		gone = "r:2"
		mu.Unlock()
		close(o.drop)
		o = l.sole(t, "tools r:1 r:3")
		if err := c.Subscribe(t.Context(), "r:2"); err != nil { // it is kept
			t.Error(err)
		}
		mu.Lock()
		gone = ""
		mu.Unlock()
		close(o.drop)
		l.sole(t, "tools r:1 r:2 r:3")
		waitFor(t, "news of it", func() bool { return strings.Contains(h.take(), "r:2") })
	})
}

// TestSubscribeNever: where nothing can be subscribed to, the error says so at once.
func TestSubscribeNever(t *testing.T) {
	var h heard
	for name, script := range map[string]webScript{"modern": modernWeb(nil), "legacy": legacyWeb(func(a *webAnswer, _ *Message) { a.text(405, "") })} {
		c := connectWeb(t, serveWeb(t, script), h.options())
		wantOutcome(t, name, nil, c.Subscribe(t.Context(), "r:1"), "invalid/not_subscribable")
		wantOutcome(t, name+" task", nil, c.SubscribeTask(t.Context(), "t"), "invalid/not_subscribable")
	}
	var l listeners
	c := connectWeb(t, l.web(t, acknowledgeAll), ConnectOptions{})
	wantOutcome(t, "nobody hears", nil, c.Subscribe(t.Context(), "r:1"), "invalid/not_subscribable")
	c.Unsubscribe("r:1")

	l = listeners{}
	c = connectWeb(t, l.web(t, func(a *webAnswer, _ *Message, _ int, want asked) (asked, bool) {
		a.text(404, "")
		return want, false
	}), h.options())
	wantOutcome(t, "no listen", nil, c.Subscribe(t.Context(), "r:1"), "invalid/not_subscribable")
}

// TestHTTPSubscribeGivenUp: who gives up waiting leaves nothing behind, and does
// not spoil it for others.
func TestHTTPSubscribeGivenUp(t *testing.T) {
	var l listeners
	var h heard
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	c := connectWeb(t, l.web(t, func(a *webAnswer, _ *Message, n int, want asked) (asked, bool) {
		if n > 1 {
			<-hold
		}
		return want, true
	}), h.options())
	l.sole(t, "tools")
	ctx, cancel := context.WithCancelCause(t.Context())
	lost := make(chan error, 2)
	go func() { lost <- c.Subscribe(ctx, "r:1") }()
	go func() { lost <- c.Subscribe(ctx, "r:2") }()
	kept := make(chan error, 1)
	waitFor(t, "request", func() bool { return l.count() == 2 })
	go func() { kept <- c.Subscribe(t.Context(), "r:2") }()
	waitFor(t, "waiters", func() bool {
		s := c.(*httpConn).subs
		s.mu.Lock()
		defer s.mu.Unlock()
		in := s.topics[topic{id: "r:2"}]
		return in != nil && in.waiters == 2
	})
	cancel(errGaveUp)
	for range 2 {
		if err := <-lost; err != errGaveUp {
			t.Errorf("error %v", err)
		}
	}
	release()
	if err := <-kept; err != nil {
		t.Error(err)
	}
	l.sole(t, "tools r:2")
	if err := c.Subscribe(ctx, "r:3"); err != errGaveUp {
		t.Errorf("error %v", err)
	}
}

// TestHTTPSubscribeUnacknowledged: a server that acknowledges nothing, in time or
// at all, still tells of lists.
func TestHTTPSubscribeUnacknowledged(t *testing.T) {
	var h heard
	w := serveWeb(t, func(a *webAnswer, m *Message) {
		switch m.Method {
		case MethodDiscover:
			a.result(m, subscribeDiscover)
		case MethodListen:
			a.event(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
			<-a.r.Context().Done()
		}
	})
	opts := h.options()
	opts.RequestTimeout = 50 * time.Millisecond
	c := connectWeb(t, w, opts)
	waitFor(t, "change", func() bool { return strings.HasPrefix(h.take(), "tools") })
	wantOutcome(t, "subscribe", nil, c.Subscribe(t.Context(), "r:1"), "invalid/not_subscribable")
}

// TestStdioSubscribe: on a connection where all streams are one, the old stream
// has ended before the next one begins, since some servers end everything with
// any of them; and what may have been missed is told of.
func TestStdioSubscribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		var mu sync.Mutex
		var open *Message
		var log []string
		c, p := connectPeer(t, func(p *peer, m *Message) {
			mu.Lock()
			defer mu.Unlock()
			switch m.Method {
			case MethodDiscover:
				p.result(m, subscribeDiscover)
			case MethodListen:
				if open != nil {
					t.Error("two streams at once")
				}
				open = m
				want := askedFor(m)
				log = append(log, want.String())
				p.line("%s", acknowledgement(m, want))
			case NotifyCancelled:
				if open != nil && string(Field(m.Params, "requestId")) == string(open.ID) {
					old := open
					open = nil
					go func() { // it takes its time to end
						time.Sleep(100 * time.Millisecond)
						p.result(old, `{"resultType":"complete"}`)
					}()
				}
			}
		}, h.options())
		defer closeConn(t, c)
		for i, err := range subscribeAll(t, c, numbered(50)...) {
			if err != "" {
				t.Errorf("r:%02d: %s", i, err)
			}
		}
		mu.Lock()
		// The first may have come with the first of them.
		if len(log) > 2 || log[len(log)-1] != "tools "+strings.Join(numbered(50), " ") {
			t.Errorf("streams %q", log)
		}
		log = nil
		mu.Unlock()
		h.take()
		p.line("%s", updatedEvent("r:07"))
		synctest.Wait()
		if got := h.take(); got != "r:07" {
			t.Errorf("heard %q", got)
		}
		// A few that nobody wants any more do no harm, and a gap would.
		for _, uri := range numbered(maxSurplus) {
			c.Unsubscribe(uri)
		}
		time.Sleep(time.Minute)
		mu.Lock()
		if log != nil {
			t.Errorf("streams %q", log)
		}
		mu.Unlock()
		for _, uri := range numbered(48) {
			c.Unsubscribe(uri)
		}
		time.Sleep(time.Minute)
		if got := h.take(); got != "tools r:48 r:49" {
			t.Errorf("heard %q", got)
		}
		if err := c.Subscribe(t.Context(), "r:50"); err != nil {
			t.Error(err)
		}
		c.Unsubscribe("r:48")
		c.Unsubscribe("r:49")
		c.Unsubscribe("r:50")
		time.Sleep(time.Minute)
		mu.Lock()
		if want := []string{"tools r:48 r:49", "tools r:48 r:49 r:50", "tools"}; !slices.Equal(log, want) {
			t.Errorf("streams %q", log)
		}
		// The server ends it: so it was asked to, or something is wrong with it.
		log = nil
		p.result(open, `{"resultType":"complete"}`)
		open = nil
		mu.Unlock()
		h.take()
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"tools"}; !slices.Equal(log, want) || h.take() != "tools" {
			t.Errorf("streams %q", log)
		}
	})
}

// TestStdioSubscribeNoFarewell: the end of a stream is not waited for endlessly.
func TestStdioSubscribeNoFarewell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		c, p := connectPeer(t, func(p *peer, m *Message) {
			switch m.Method {
			case MethodDiscover:
				p.result(m, subscribeDiscover)
			case MethodListen:
				p.line("%s", acknowledgement(m, askedFor(m)))
			}
		}, h.options())
		defer closeConn(t, c)
		for i := range 3 {
			if err := c.Subscribe(t.Context(), fmt.Sprintf("r:%d", i)); err != nil {
				t.Error(err)
			}
		}
		if got := askedFor(p.last(MethodListen)); got.String() != "tools r:0 r:1 r:2" {
			t.Errorf("asked for %s", got.String())
		}
	})
}

// TestLegacySubscribe: a legacy server gets a request for each resource, and tells
// of them when it likes.
func TestLegacySubscribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		var mu sync.Mutex
		now, most := 0, 0
		c, p := connectPeer(t, func(p *peer, m *Message) {
			switch m.Method {
			case MethodDiscover:
				p.fail(m, CodeMethodNotFound)
			case MethodInitialize:
				p.result(m, subscribeInitialize)
			case MethodSubscribe, MethodUnsubscribe:
				mu.Lock()
				now++
				most = max(most, now)
				mu.Unlock()
				go func() {
					time.Sleep(time.Second)
					mu.Lock()
					now--
					mu.Unlock()
					if strings.HasPrefix(FieldString(m.Params, "uri"), "bad:") {
						p.fail(m, CodeResourceNotFound)
						return
					}
					p.result(m, `{}`)
				}()
			}
		}, h.options())
		defer closeConn(t, c)
		for i, err := range subscribeAll(t, c, append(numbered(50), "bad:1")...) {
			if want := map[bool]string{true: "no (JSON-RPC error -32002)"}[i == 50]; err != want {
				t.Errorf("%d: %s", i, err)
			}
		}
		if most != maxSubscribing {
			t.Errorf("%d requests at once", most)
		}
		p.line("%s", updatedEvent("r:07"))
		synctest.Wait()
		if got := h.take(); got != "r:07" {
			t.Errorf("heard %q", got)
		}
		// The last wish counts, whatever is under way.
		for range 5 {
			c.Unsubscribe("r:00")
			if err := c.Subscribe(t.Context(), "r:00"); err != nil {
				t.Error(err)
			}
		}
		c.Unsubscribe("r:01")
		time.Sleep(500 * time.Millisecond)
		if err := c.Subscribe(t.Context(), "r:01"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		for _, uri := range []string{"r:00", "r:01"} {
			state := ""
			p.mu.Lock()
			for _, m := range p.got {
				if FieldString(m.Params, "uri") == uri {
					state = m.Method
				}
			}
			p.mu.Unlock()
			if state != MethodSubscribe {
				t.Errorf("%s: the last request is %s", uri, state)
			}
		}
		if got := h.take(); got != "r:01" && got != "r:01 r:00" && got != "r:00 r:01" { // there was a gap
			t.Errorf("heard %q", got)
		}
		wantOutcome(t, "task", nil, c.SubscribeTask(t.Context(), "t"), "invalid/not_subscribable")
	})
}

const subscribeInitialize = `{"protocolVersion":"2025-11-25","capabilities":{"resources":{"subscribe":true}},"serverInfo":{"name":"l","version":"2"}}`

// TestHTTPLegacySubscribe: subscriptions outlive their session, which is renewed
// when its stream finds it gone though nobody calls; and updates come by any stream.
func TestHTTPLegacySubscribe(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	session, subscribed := "", map[string][]string{} // by session
	streams := make(chan chan string, 8)
	w := serveWeb(t, func(a *webAnswer, m *Message) {
		mu.Lock()
		defer mu.Unlock()
		id := a.r.Header.Get(HeaderSession)
		switch {
		case m.Method == MethodDiscover:
			a.text(400, "")
		case m.Method == MethodInitialize:
			session = fmt.Sprintf("s%d", len(subscribed)+1)
			subscribed[session] = nil
			a.Header().Set(HeaderSession, session)
			a.result(m, subscribeInitialize)
		case id != session:
			a.text(404, "")
		case a.r.Method == http.MethodGet:
			events := make(chan string)
			streams <- events
			mu.Unlock()
			defer mu.Lock()
			a.raw("retry: 1\n\n")
			for {
				select {
				case event, ok := <-events:
					if !ok {
						return
					}
					a.event("%s", event)
				case <-a.r.Context().Done():
					return
				}
			}
		case m.Method == MethodSubscribe:
			subscribed[id] = append(subscribed[id], FieldString(m.Params, "uri"))
			a.result(m, `{}`)
		case m.Method == MethodToolsCall:
			a.event("%s", updatedEvent("r:2"))
			a.resultEvent(m, `{}`)
		default:
			a.WriteHeader(202)
		}
	})
	var h heard
	c := connectWeb(t, w, h.options())
	if errs := subscribeAll(t, c, "r:1", "r:2"); errs[0] != "" || errs[1] != "" {
		t.Errorf("errors %q", errs)
	}
	stream := <-streams
	stream <- updatedEvent("r:1")
	waitFor(t, "update on the stream", func() bool { return h.take() == "r:1" })
	if _, err := c.Call(t.Context(), toolCall("a")); err != nil {
		t.Error(err)
	}
	if got := h.take(); got != "r:2" {
		t.Errorf("on the stream of a call: %q", got)
	}
	close(stream)
	stream = <-streams
	waitFor(t, "what may have been missed", func() bool { return h.take() == "r:1 r:2" })
	mu.Lock()
	session = "another life"
	mu.Unlock()
	close(stream)
	stream = <-streams // of a new session
	waitFor(t, "the new session", func() bool {
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(subscribed["s2"])
		return slices.Equal(subscribed["s2"], []string{"r:1", "r:2"})
	})
	var all []string
	waitFor(t, "what may have been missed", func() bool {
		all = append(all, strings.Fields(h.take())...)
		return slices.Contains(all, "r:1") && slices.Contains(all, "r:2")
	})
	stream <- updatedEvent("r:1")
	waitFor(t, "update", func() bool { return h.take() == "r:1" })
}
