package bus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// watched is the view that a test builds from what Watch delivers.
type watched struct {
	t testing.TB

	mu      sync.Mutex
	view    map[string]string // guarded by mu
	live    bool              // guarded by mu
	changed chan struct{}     // guarded by mu; closed when any of it changes
}

func watch(t testing.TB, c *Conn, bucket, filter string) *watched {
	t.Helper()
	w := &watched{t: t, view: map[string]string{}, changed: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Watch(ctx, bucket, filter, w.apply, w.state) }()
	t.Cleanup(func() {
		cancel()
		if err := within(t, "the end of Watch", done); !errors.Is(err, context.Canceled) && !errors.Is(err, nats.ErrConnectionClosed) {
			t.Errorf("Watch: %v", err)
		}
	})
	return w
}

func (w *watched) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *watched) apply(batch []Entry) {
	w.change(func() {
		once := map[string]bool{}
		for _, e := range batch {
			if once[e.Key] {
				w.t.Errorf("%s is twice in one batch", e.Key)
			}
			once[e.Key] = true
			if _, had := w.view[e.Key]; e.Deleted {
				if !had {
					w.t.Errorf("%s was deleted and never there", e.Key)
				}
				delete(w.view, e.Key)
			} else {
				w.view[e.Key] = string(e.Value)
			}
		}
	})
}

func (w *watched) state(live bool, _ string) { w.change(func() { w.live = live }) }

// until waits for a live view that is want, and returns how long it took.
func (w *watched) until(what string, ok func(view map[string]string, live bool) bool) time.Duration {
	w.t.Helper()
	began := time.Now()
	timeout := time.After(patience)
	for {
		w.mu.Lock()
		holds, changed := ok(w.view, w.live), w.changed
		w.mu.Unlock()
		if holds {
			return time.Since(began)
		}
		select {
		case <-changed:
		case <-timeout:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.t.Fatalf("%s: never; the view has %d keys, live is %v", what, len(w.view), w.live)
		}
	}
}

func (w *watched) untilIs(what string, want map[string]string) time.Duration {
	w.t.Helper()
	return w.until(what, func(view map[string]string, live bool) bool { return live && maps.Equal(view, want) })
}

func TestWatch(t *testing.T) {
	t.Parallel()
	c := startServer(t, inProcess).connect(t, "w1", nil)
	empty := watch(t, c, BucketPolicy, ">")
	empty.untilIs("an empty bucket", map[string]string{})
	want := map[string]string{}
	for i := range 20 {
		k, v := Key(KeyServer, fmt.Sprint(i%10)), fmt.Sprint(i)
		c.mustPut(t, BucketReg, k, v, PutOptions{})
		want[k] = v
	}
	c.mustPut(t, BucketReg, Key(KeyOwn, "x"), "other", PutOptions{})
	w := watch(t, c, BucketReg, KeyFilter(KeyServer))
	both := watch(t, c, BucketReg, KeyFilter(KeyServer)+" "+KeyFilter(KeyOwn))
	w.untilIs("the snapshot", want)
	c.mustPut(t, BucketReg, Key(KeyServer, "3"), "changed", PutOptions{})
	if err := c.Delete(t.Context(), BucketReg, Key(KeyServer, "4"), PutOptions{}); err != nil {
		t.Fatal(err)
	}
	want[Key(KeyServer, "3")] = "changed"
	delete(want, Key(KeyServer, "4"))
	w.untilIs("the changes", want)
	c.mustPut(t, BucketReg, Key(KeyServer, "short"), "x", PutOptions{TTL: time.Second})
	w.until("a key that will expire", func(v map[string]string, _ bool) bool { return v[Key(KeyServer, "short")] == "x" })
	w.untilIs("it has expired", want)
	want[Key(KeyOwn, "x")] = "other"
	both.untilIs("two filters", want)
}

// TestWatchSurvivesARestart: the view is right soon after the server is back.
func TestWatchSurvivesARestart(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	c := s.connect(t, "w1", nil)
	want := map[string]string{"a": "1", "b": "1"}
	for k, v := range want {
		c.mustPut(t, BucketReg, k, v, PutOptions{})
	}
	w := watch(t, c, BucketReg, ">")
	w.untilIs("the snapshot", want)
	for round := range 3 {
		s.stop()
		w.until("the loss is told", func(_ map[string]string, live bool) bool { return !live })
		s.start()
		other := s.raw(t) // writes before the watcher is back
		js, err := jetstream.New(other)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), "$KV."+BucketName("test", BucketReg)+".a", fmt.Append(nil, round)); err != nil {
			t.Fatal(err)
		}
		want["a"] = fmt.Sprint(round)
		if took := w.untilIs("after the restart", want); took > 3*time.Second {
			t.Errorf("the view was wrong for %v", took)
		}
	}
}

// TestWatchNoticesAPurge: a purge leaves no markers of what it removes.
func TestWatchNoticesAPurge(t *testing.T) {
	t.Parallel()
	c := startServer(t, inProcess).connect(t, "w1", nil)
	for i := range 10 {
		c.mustPut(t, BucketReg, Key(KeyServer, fmt.Sprint(i)), "old", PutOptions{})
	}
	w := watch(t, c, BucketReg, ">")
	w.until("the snapshot", func(v map[string]string, live bool) bool { return live && len(v) == 10 })
	stream, err := c.js.Stream(t.Context(), "KV_"+BucketName("test", BucketReg))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.mustPut(t, BucketReg, "new", "1", PutOptions{})
	w.untilIs("only what came after the purge", map[string]string{"new": "1"})
}

// TestWatchNoticesAWipe: a bucket that was lost with all its keys, whether the
// server restarted or an operator removed it.
func TestWatchNoticesAWipe(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	c := s.connect(t, "w1", nil)
	for i := range 100 {
		c.mustPut(t, BucketReg, Key(KeyServer, fmt.Sprint(i)), "old", PutOptions{})
	}
	w := watch(t, c, BucketReg, ">")
	w.until("the snapshot", func(v map[string]string, live bool) bool { return live && len(v) == 100 })
	s.stop()
	s.wipe()
	s.start()
	w.untilIs("an empty bucket, made again", map[string]string{})
	first := c.mustPut(t, BucketReg, "new", "1", PutOptions{})
	if first != 1 {
		t.Errorf("the first revision of the new bucket is %d", first)
	}
	w.untilIs("a key of the new bucket", map[string]string{"new": "1"})

	// Again while connected; the key gets the same revision and another value.
	if err := c.js.DeleteKeyValue(t.Context(), BucketName("test", BucketReg)); err != nil {
		t.Fatal(err)
	}
	w.untilIs("an empty bucket, made again", map[string]string{})
	c.mustPut(t, BucketReg, "new", "2", PutOptions{})
	w.untilIs("the key of the third bucket", map[string]string{"new": "2"})
}

// TestWatchSweepsPhantoms: a key whose deletion, and even the marker of it, went
// unseen by a watcher that was away for long.
func TestWatchSweepsPhantoms(t *testing.T) {
	t.Parallel()
	c := startServer(t, inProcess).connect(t, "w1", nil)
	view := map[string]string{}
	var stop context.CancelFunc
	f, err := c.watcher(BucketReg, ">", func(batch []Entry) {
		for _, e := range batch {
			if view[e.Key] = string(e.Value); e.Deleted {
				delete(view, e.Key)
			}
		}
	}, func(live bool, _ string) {
		if live {
			stop()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	follow := func() {
		var ctx context.Context
		ctx, stop = context.WithCancel(t.Context())
		if live, err := f.attempt(ctx, "test"); !live {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"gone", "kept", "changed"} {
		c.mustPut(t, BucketReg, key, "1", PutOptions{})
	}
	follow()
	b := c.buckets[BucketReg]
	if err := b.stream.Purge(t.Context(), jetstream.WithPurgeSubject(b.subject("gone"))); err != nil {
		t.Fatal(err)
	}
	c.mustPut(t, BucketReg, "changed", "2", PutOptions{})
	f.alive = f.alive.Add(-resumeLimit)
	follow()
	if want := map[string]string{"kept": "1", "changed": "2"}; !maps.Equal(view, want) {
		t.Errorf("got %v, want %v", view, want)
	}
}

// TestWatchMissesNothing: many writers, while connections break all the time.
func TestWatchMissesNothing(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	p := startProxy(t, s)
	direct := s.connect(t, "w1", nil)
	c := s.connect(t, "w2", func(cfg *Config) { cfg.URL = p.url() })
	w := watch(t, c, BucketReg, ">")
	var mu sync.Mutex
	want := map[string]string{}
	var wg sync.WaitGroup
	for writer := range 4 {
		wg.Go(func() {
			for i := range 300 {
				k, v := Key(KeyStatus, fmt.Sprint(writer), fmt.Sprint(i%17)), fmt.Sprint(i)
				if i%5 == 4 {
					if err := direct.Delete(t.Context(), BucketReg, k, PutOptions{}); err != nil {
						t.Error(err)
					}
				} else if _, err := direct.Put(t.Context(), BucketReg, k, []byte(v), PutOptions{}); err != nil {
					t.Error(err)
				}
				mu.Lock()
				if want[k] = v; i%5 == 4 {
					delete(want, k)
				}
				mu.Unlock()
				if i%60 == 30 {
					p.cut()
				}
			}
		})
	}
	wg.Wait()
	w.untilIs("what was written", want)
}

func TestWatchManyKeys(t *testing.T) {
	t.Parallel()
	s := startServer(t, inProcess)
	c := s.connect(t, "w1", nil)
	const n = 10_000
	b := c.buckets[BucketReg]
	for i := range n {
		if _, err := c.js.PublishAsync(b.subject(Key(KeyStatus, fmt.Sprint(i))), []byte("0123456789"), jetstream.WithStallWait(patience)); err != nil {
			t.Fatal(err)
		}
	}
	within(t, "the writes", c.js.PublishAsyncComplete())
	// Some are written again while they are delivered, so that the server skips them.
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				if _, err := c.Put(t.Context(), BucketReg, Key(KeyStatus, fmt.Sprint(n-1-i%n)), []byte("again"), PutOptions{}); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	w := watch(t, c, BucketReg, ">")
	took := w.until("all keys", func(v map[string]string, live bool) bool { return live && len(v) == n })
	close(stop)
	wg.Wait()
	t.Logf("%d keys in %v", n, took)
	list, err := c.List(t.Context(), BucketReg, ">")
	if err != nil || len(list) != n {
		t.Errorf("List: %d keys, %v", len(list), err)
	}
}

// TestWatchLeavesNoConsumer: consumers that are of no use are removed.
func TestWatchLeavesNoConsumer(t *testing.T) {
	t.Parallel()
	s := startServer(t, inProcess)
	c := s.connect(t, "w1", nil)
	for range 5 {
		if _, err := c.List(t.Context(), BucketReg, ">"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "no consumers", func() bool {
		info, err := c.buckets[BucketReg].stream.Info(t.Context())
		return err == nil && info.State.Consumers == 0
	})
}

func TestKVLostAnswer(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	p := startProxy(t, s)
	direct := s.connect(t, "w1", nil)
	c := s.connect(t, "w2", func(cfg *Config) { cfg.URL = p.url() })
	for _, rival := range []bool{false, true} {
		key := Key(KeyOwn, fmt.Sprint(rival))
		rev := direct.mustPut(t, BucketReg, key, "1", PutOptions{})
		p.mute.Store(true)
		type result struct {
			rev uint64
			err error
		}
		done := make(chan result, 1)
		go func() {
			got, err := c.Put(t.Context(), BucketReg, key, []byte("2"), PutOptions{Revision: &rev})
			done <- result{got, err}
		}()
		var stored Entry
		eventually(t, "the write is stored", func() bool {
			var err error
			stored, err = direct.Get(t.Context(), BucketReg, key)
			return err == nil && string(stored.Value) == "2"
		})
		if rival { // somebody has written on: the outcome is not known any more
			direct.mustPut(t, BucketReg, key, "3", PutOptions{Revision: &stored.Rev})
		}
		p.mute.Store(false)
		p.cut()
		r := within(t, "Put", done)
		if rival && !errors.Is(r.err, ErrConflict) {
			t.Errorf("a write that was written over: got %d, %v", r.rev, r.err)
		}
		if !rival && (r.err != nil || r.rev != stored.Rev) {
			t.Errorf("a write whose answer was lost: got %d, %v, want %d", r.rev, r.err, stored.Rev)
		}
	}
}
