package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// collect takes n events that match filter.
func collect(t testing.TB, c *Conn, filter string, since time.Duration, n int) []Event {
	t.Helper()
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	timeout := time.AfterFunc(patience, func() { cancel(errors.New("too few events")) })
	defer timeout.Stop()
	var got []Event
	err := c.Events(ctx, filter, since, func(e Event) {
		if len(got) < n {
			got = append(got, e)
		}
		if len(got) == n {
			cancel(enough)
		}
	})
	if !errors.Is(err, enough) {
		t.Fatalf("got %d events of %d: %v", len(got), n, err)
	}
	return got
}

func TestEvents(t *testing.T) {
	t.Parallel()
	s := startServer(t, inProcess)
	c, reader := s.connect(t, "w1", nil), s.connect(t, "r1", nil)
	at := time.Now().Add(-time.Minute)
	c.Emit(Event{ID: "mine", Time: at, Kind: "server", Subject: "git.hub ü", What: "up", Source: "other", Data: map[string]int{"n": 1}})
	c.Emit(Event{Kind: "server", Subject: "x", What: "down", Data: jsontext.Value(`{"big":12345678901234567890}`)})
	c.Emit(Event{Kind: "call", Subject: "x", What: "started"})
	got := collect(t, reader, EventFilter(), time.Hour, 3)
	if e := got[0]; e.ID != "mine" || !e.Time.Equal(at) || e.Kind != "server" || e.Subject != "git.hub ü" || e.What != "up" || e.Source != "other" || string(e.Data.(jsontext.Value)) != `{"n":1}` {
		t.Errorf("got %+v", e)
	}
	if e := got[1]; e.Source != "w1" || e.ID == "" || time.Since(e.Time) > time.Minute || string(e.Data.(jsontext.Value)) != `{"big":12345678901234567890}` {
		t.Errorf("got %+v", e)
	}
	if e := got[2]; e.Data != nil || e.ID == got[1].ID {
		t.Errorf("got %+v", e)
	}
	for filter, want := range map[string]string{
		EventFilter("call"):                      "started",
		EventFilter("server", "*", "down"):       "down",
		EventFilter("server", "git.hub ü"):       "up",
		EventFilter("server", "git.hub ü", "up"): "up",
		"": "up",
	} {
		if got := collect(t, reader, filter, time.Hour, 1); got[0].What != want {
			t.Errorf("%s: got %+v", filter, got[0])
		}
	}
}

func TestEventsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	s := startServer(t, inProcess)
	c := s.connect(t, "w1", nil)
	const n = 5000 // several batches
	for i := range n {
		c.Emit(Event{Kind: "call", Subject: "s", What: "started", Data: i})
	}
	ids := map[string]bool{}
	for i, e := range collect(t, c, EventFilter(), time.Hour, n) {
		if string(e.Data.(jsontext.Value)) != fmt.Sprint(i) {
			t.Fatalf("event %d is %s", i, e.Data)
		}
		ids[e.ID] = true
	}
	if len(ids) != n || c.EventsDropped() != 0 {
		t.Errorf("%d ids, %d dropped", len(ids), c.EventsDropped())
	}
}

// TestEventsFromNowOn: without since, only what happens from now on; and Events
// goes on over a restart of the server without leaving any out.
func TestEventsFromNowOn(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	c := s.connect(t, "w1", nil)
	c.Emit(Event{Kind: "a", Subject: "old", What: "w"})
	collect(t, c, EventFilter(), time.Hour, 1)
	ctx, cancel := context.WithCancel(t.Context())
	got, done := make(chan Event, 10_000), make(chan error, 1)
	go func() { done <- c.Events(ctx, EventFilter(), 0, func(e Event) { got <- e }) }()
	// Nobody says when it has begun: events until one is seen.
	next := func(subject string) Event {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		timeout := time.After(patience)
		for {
			c.Emit(Event{Kind: "a", Subject: subject, What: "w"})
			select {
			case e := <-got:
				return e
			case <-tick.C:
			case <-timeout:
				t.Fatal("no event comes")
			}
		}
	}
	if e := next("new"); e.Subject != "new" {
		t.Errorf("got %+v", e)
	}
	s.stop()
	eventually(t, "the loss is seen", func() bool { return !c.events.nc.IsConnected() })
	c.Emit(Event{Kind: "a", Subject: "away", What: "w"})
	s.start()
	for within(t, "the event of the time between", got).Subject != "away" {
	}
	c.Emit(Event{Kind: "a", Subject: "last", What: "w"})
	for within(t, "the event after the restart", got).Subject != "last" {
	}
	cancel()
	if err := within(t, "the end of Events", done); !errors.Is(err, context.Canceled) {
		t.Errorf("Events: %v", err)
	}
}

// TestEmitNeverBlocks: while the server is away events wait, and those beyond the
// queue are dropped and counted.
func TestEmitNeverBlocks(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	c := s.connect(t, "w1", nil)
	s.stop()
	eventually(t, "the loss is seen", func() bool { return !c.events.nc.IsConnected() })
	const n = 3 * maxQueuedEvents
	began := time.Now()
	for i := range n {
		c.Emit(Event{Kind: "a", Subject: "b", What: "c", Data: i})
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("%d events took %v", n, took)
	}
	kept := n - int(c.EventsDropped())
	if kept < maxQueuedEvents || kept > maxQueuedEvents+maxEventBatch { // some are in the hands of the emitter
		t.Errorf("%d events wait, the queue has %d", kept, maxQueuedEvents)
	}
	s.start()
	for i, e := range collect(t, c, EventFilter(), time.Hour, kept) {
		if string(e.Data.(jsontext.Value)) != fmt.Sprint(i) {
			t.Fatalf("event %d is %s", i, e.Data)
		}
	}
}

// TestUnacknowledgedEventsCount: what was sent on a connection that breaks before
// the server says that it is stored counts as dropped, whether or not it was; all
// else comes once and in order.
func TestUnacknowledgedEventsCount(t *testing.T) {
	t.Parallel()
	for _, stored := range []bool{false, true} {
		t.Run(fmt.Sprint("stored ", stored), func(t *testing.T) {
			t.Parallel()
			s := startServer(t, nil)
			reader := s.connect(t, "r1", nil)
			p := startProxy(t, s)
			c := s.connect(t, "w1", func(c *Config) { c.URL = p.url() })
			heard := c.events.nc.Stats().InMsgs
			c.Emit(Event{Kind: "a", Subject: "first", What: "w"})
			eventually(t, "the first is acknowledged", func() bool { return c.events.nc.Stats().InMsgs > heard })
			swallow := &p.deaf
			if stored {
				swallow = &p.mute
			}
			swallow.Store(true)
			before := c.events.nc.Stats().OutMsgs
			const n = 1000 // all of it, or its beginning, is one batch
			for i := range n {
				c.Emit(Event{Kind: "a", Subject: "s", What: "w", Data: i})
			}
			eventually(t, "a batch is sent", func() bool { return c.events.nc.Stats().OutMsgs > before })
			if stored {
				collect(t, reader, EventFilter("a", "s"), time.Hour, 1)
			}
			p.cut()
			swallow.Store(false)
			eventually(t, "it is counted", func() bool { return c.EventsDropped() > 0 })
			for i := range n {
				c.Emit(Event{Kind: "a", Subject: "s", What: "w", Data: n + i})
			}
			collect(t, reader, EventFilter("a", "s", "w"), time.Hour, n) // so that there is one to look for
			var got []Event
			eventually(t, "the last event", func() bool {
				info, err := reader.eventsJS.Stream(t.Context(), EventStream("test"))
				if err != nil {
					t.Fatal(err)
				}
				got = collect(t, reader, EventFilter("a", "s", "w"), time.Hour, int(info.CachedInfo().State.Msgs)-1) //nolint:gosec // small
				return string(got[len(got)-1].Data.(jsontext.Value)) == fmt.Sprint(2*n-1)
			})
			lost := int(c.EventsDropped()) //nolint:gosec // small
			// Where the batch went to both connections, some that count are there.
			if len(got) < 2*n-lost || !stored && len(got) == 2*n {
				t.Errorf("%d events of %d came, %d count as dropped", len(got), 2*n, lost)
			}
			last := -1
			for _, e := range got {
				var i int
				if _, err := fmt.Sscan(string(e.Data.(jsontext.Value)), &i); err != nil || i <= last {
					t.Fatalf("event %d comes after %d (%v)", i, last, err)
				}
				last = i
			}
		})
	}
}

// TestEventsWaitForTheStream: a server that is back before its stream is has not
// stored what it gets; it is sent again, none of it twice.
func TestEventsWaitForTheStream(t *testing.T) {
	t.Parallel()
	var log logs
	s := startServer(t, nil)
	c := s.connect(t, "w1", func(c *Config) { c.Logger = log.logger() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.eventsJS.DeleteStream(ctx, EventStream("test")); err != nil {
		t.Fatal(err)
	}
	const n = maxEventBatch + 500
	for i := range n {
		c.Emit(Event{Kind: "a", Subject: "b", What: "c", Data: i})
	}
	eventually(t, "the emitter finds out", func() bool { return c.EventsDropped() > 0 })
	lost := int(c.EventsDropped()) //nolint:gosec // small
	if err := c.provision(ctx); err != nil {
		t.Fatal(err)
	}
	for i, e := range collect(t, c, EventFilter(), time.Hour, n-lost) {
		if string(e.Data.(jsontext.Value)) != fmt.Sprint(lost+i) {
			t.Fatalf("event %d is %s", lost+i, e.Data)
		}
	}
	// The same after a new connection loses none at all.
	if err := c.eventsJS.DeleteStream(ctx, EventStream("test")); err != nil {
		t.Fatal(err)
	}
	s.stop()
	eventually(t, "the loss is seen", func() bool { return !c.events.nc.IsConnected() })
	for i := range n {
		c.Emit(Event{Kind: "a", Subject: "b", What: "again", Data: i})
	}
	s.start()
	eventually(t, "the emitter tries", func() bool { return c.Connected() && strings.Count(log.String(), "events wait") == 2 })
	if err := c.provision(ctx); err != nil {
		t.Fatal(err)
	}
	for i, e := range collect(t, c, EventFilter("a", "b", "again"), time.Hour, n) {
		if string(e.Data.(jsontext.Value)) != fmt.Sprint(i) {
			t.Fatalf("event %d is %s", i, e.Data)
		}
	}
	if got := int(c.EventsDropped()); got != lost { //nolint:gosec // small
		t.Errorf("%d events count as dropped, want %d", got, lost)
	}
}

func TestEventsThatCannotBe(t *testing.T) {
	t.Parallel()
	var log logs
	s := startServer(t, inProcess)
	c := s.connect(t, "w1", func(c *Config) { c.Logger = log.logger() })
	c.Emit(Event{Kind: "a", Subject: "big", What: "w", Data: strings.Repeat("x", maxEventBytes)})
	c.Emit(Event{Kind: "a", Subject: "chan", What: "w", Data: make(chan int)})
	c.Emit(Event{Kind: "a", Subject: "raw", What: "w", Data: jsontext.Value(`{"open":`)})
	// Events of others, in a form that is none.
	for _, body := range []string{"", "{", `{"id":""}`, `[]`} {
		if err := c.events.nc.Publish(eventSubject(eventPrefix("test"), "a", "foreign", "w"), []byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	c.Emit(Event{Kind: "a", Subject: "good", What: "w"})
	if got := collect(t, c, EventFilter(), time.Hour, 1); got[0].Subject != "good" {
		t.Errorf("got %+v", got[0])
	}
	if n := c.EventsDropped(); n != 3 {
		t.Errorf("%d events count as dropped, want 3", n)
	}
	if text := log.String(); strings.Count(text, "event dropped") != 3 {
		t.Errorf("the log has:\n%s", text)
	}
}

// TestCloseSendsWhatIsQueued: nothing that was emitted before is lost.
func TestCloseSendsWhatIsQueued(t *testing.T) {
	t.Parallel()
	s := startServer(t, inProcess)
	reader := s.connect(t, "r1", nil)
	c := s.connect(t, "w1", nil)
	const n = 3000
	for range n {
		c.Emit(Event{Kind: "a", Subject: "b", What: "c"})
	}
	c.Close()
	collect(t, reader, EventFilter(), time.Hour, n)
}

// TestEventStreamIsBounded: old events make room for new ones.
func TestEventStreamIsBounded(t *testing.T) {
	t.Parallel()
	s := startServer(t, inProcess)
	c := s.connect(t, "w1", func(c *Config) { c.EventBytes = 100 << 10 })
	const n = 1000
	for i := range n {
		c.Emit(Event{Kind: "a", Subject: "b", What: "c", Data: fmt.Sprint(i, strings.Repeat("x", 1000))})
	}
	eventually(t, "all are stored", func() bool {
		info, err := c.eventsJS.Stream(t.Context(), EventStream("test"))
		return err == nil && info.CachedInfo().State.LastSeq == n && info.CachedInfo().State.Bytes <= 100<<10
	})
}

// TestEventIsACloudEvent: what goes over the wire, as other programs see it.
func TestEventIsACloudEvent(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(o *server.Options) { o.DontListen = true })
	sub, err := s.raw(t).SubscribeSync(eventSubject(eventPrefix("test"), "server", "x y", "up"))
	if err != nil {
		t.Fatal(err)
	}
	c := s.connect(t, "w1", nil)
	c.Emit(Event{ID: "1", Time: time.Unix(1, 5000).UTC(), Kind: "server", Subject: "x y", What: "up", Data: struct {
		A int `json:"a"`
	}{1}})
	var msg *nats.Msg
	eventually(t, "the event", func() bool { msg, err = sub.NextMsg(patience); return err == nil })
	const want = `{"specversion":"1.0","id":"1","source":"toolhub/test/w1","type":"toolhub.server.up","subject":"x y","time":"1970-01-01T00:00:01.000005Z","datacontenttype":"application/json","data":{"a":1}}`
	if string(msg.Data) != want {
		t.Errorf("got  %s\nwant %s", msg.Data, want)
	}
	var any any
	if err := json.Unmarshal(msg.Data, &any); err != nil {
		t.Error(err)
	}
}
