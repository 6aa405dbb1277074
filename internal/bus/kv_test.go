package bus

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// mustPut writes a key.
func (c *Conn) mustPut(t testing.TB, bucket, key, value string, opts PutOptions) uint64 {
	t.Helper()
	rev, err := c.Put(t.Context(), bucket, key, []byte(value), opts)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func TestKVConditions(t *testing.T) {
	t.Parallel()
	c := startServer(t, inProcess).connect(t, "w1", nil)
	for _, bucket := range bucketNames() { // with and without history
		key := Key(KeyServer, "a.b c")
		if _, err := c.Get(t.Context(), bucket, key); !errors.Is(err, ErrNotFound) {
			t.Fatalf("Get of nothing: %v", err)
		}
		first := c.mustPut(t, bucket, key, "1", PutOptions{Revision: new(uint64(0))})
		e, err := c.Get(t.Context(), bucket, key)
		if err != nil || e.Key != key || string(e.Value) != "1" || e.Rev != first || e.Deleted || e.TTL != 0 || time.Since(e.Created) > time.Minute {
			t.Fatalf("got %+v, %v", e, err)
		}
		if _, err := c.Put(t.Context(), bucket, key, nil, PutOptions{Revision: new(uint64(0))}); !errors.Is(err, ErrConflict) {
			t.Errorf("a key that exists was created: %v", err)
		}
		second := c.mustPut(t, bucket, key, "2", PutOptions{Revision: &first})
		if second <= first {
			t.Errorf("revision %d came after %d", second, first)
		}
		if _, err := c.Put(t.Context(), bucket, key, nil, PutOptions{Revision: &first}); !errors.Is(err, ErrConflict) {
			t.Errorf("an old revision was replaced: %v", err)
		}
		if err := c.Delete(t.Context(), bucket, key, PutOptions{Revision: &first}); !errors.Is(err, ErrConflict) {
			t.Errorf("an old revision was deleted: %v", err)
		}
		if err := c.Delete(t.Context(), bucket, key, PutOptions{Revision: &second}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Get(t.Context(), bucket, key); !errors.Is(err, ErrNotFound) {
			t.Errorf("Get of a deleted key: %v", err)
		}
		third := c.mustPut(t, bucket, key, "3", PutOptions{Revision: new(uint64(0))})
		if third <= second {
			t.Errorf("revision %d came after %d", third, second)
		}
		if err := c.Delete(t.Context(), bucket, key, PutOptions{}); err != nil {
			t.Error(err)
		}
		if err := c.Delete(t.Context(), bucket, Key(KeyServer, "never"), PutOptions{}); err != nil {
			t.Errorf("Delete of nothing: %v", err)
		}
	}
}

func TestKVFences(t *testing.T) {
	t.Parallel()
	c := startServer(t, inProcess).connect(t, "w1", nil)
	own, status := Key(KeyOwn, "s"), Key(KeyStatus, "s")
	epoch := c.mustPut(t, BucketReg, own, "w1", PutOptions{Revision: new(uint64(0))})
	fence := PutOptions{FenceKey: own, FenceRev: epoch}
	c.mustPut(t, BucketReg, status, "up", fence)
	c.mustPut(t, BucketReg, status, "down", fence) // the fence is not the key's own revision
	next := c.mustPut(t, BucketReg, own, "w2", PutOptions{Revision: &epoch})
	if _, err := c.Put(t.Context(), BucketReg, status, []byte("stale"), fence); !errors.Is(err, ErrConflict) {
		t.Errorf("a past owner wrote: %v", err)
	}
	if err := c.Delete(t.Context(), BucketReg, status, fence); !errors.Is(err, ErrConflict) {
		t.Errorf("a past owner deleted: %v", err)
	}
	if e, err := c.Get(t.Context(), BucketReg, status); err != nil || string(e.Value) != "down" {
		t.Errorf("got %+v, %v", e, err)
	}
	if err := c.Delete(t.Context(), BucketReg, status, PutOptions{FenceKey: own, FenceRev: next}); err != nil {
		t.Error(err)
	}
	if err := c.Delete(t.Context(), BucketReg, own, PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(t.Context(), BucketReg, status, nil, PutOptions{FenceKey: own, FenceRev: next}); !errors.Is(err, ErrConflict) {
		t.Errorf("an owner wrote that had given up: %v", err)
	}
}

func TestKVRaceHasOneWinner(t *testing.T) {
	t.Parallel()
	s := startServer(t, inProcess)
	const writers, rounds = 8, 10
	var conns []*Conn
	for i := range writers {
		conns = append(conns, s.connect(t, fmt.Sprintf("w%d", i), nil))
	}
	for round := range rounds {
		key := Key(KeyOwn, fmt.Sprint(round/2)) // each key is created, then updated
		rev := uint64(0)
		if e, err := conns[0].Get(t.Context(), BucketReg, key); err == nil {
			rev = e.Rev
		}
		var wins, conflicts atomic.Int32
		var winner atomic.Uint64
		var wg sync.WaitGroup
		for _, c := range conns {
			wg.Go(func() {
				// All write the same value: only the write itself tells who won.
				switch got, err := c.Put(t.Context(), BucketReg, key, []byte("same"), PutOptions{Revision: &rev}); {
				case err == nil:
					wins.Add(1)
					winner.Store(got)
				case errors.Is(err, ErrConflict):
					conflicts.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if wins.Load() != 1 || conflicts.Load() != writers-1 {
			t.Fatalf("%d won, %d lost", wins.Load(), conflicts.Load())
		}
		if e, err := conns[0].Get(t.Context(), BucketReg, key); err != nil || e.Rev != winner.Load() {
			t.Fatalf("the key is at %d, the winner was told %d (%v)", e.Rev, winner.Load(), err)
		}
	}
}

func TestKVTimeToLive(t *testing.T) {
	t.Parallel()
	c := startServer(t, inProcess).connect(t, "w1", nil)
	key := Key(KeyLease, "w1", "1")
	began := time.Now()
	rev := c.mustPut(t, BucketReg, key, "x", PutOptions{Revision: new(uint64(0)), TTL: time.Second})
	// Renewed for twice as long as it would live.
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for time.Since(began) < 2500*time.Millisecond {
		<-tick.C
		rev = c.mustPut(t, BucketReg, key, "x", PutOptions{Revision: &rev, TTL: time.Second})
	}
	renewed := time.Now()
	if e, err := c.Get(t.Context(), BucketReg, key); err != nil || e.TTL != time.Second || e.Rev != rev {
		t.Fatalf("got %+v, %v", e, err)
	}
	eventually(t, "the key expires", func() bool {
		_, err := c.Get(t.Context(), BucketReg, key)
		return errors.Is(err, ErrNotFound)
	})
	if lived := time.Since(renewed); lived < 900*time.Millisecond {
		t.Errorf("it lived for %v", lived)
	}
	if _, err := c.Put(t.Context(), BucketReg, key, nil, PutOptions{Revision: &rev, TTL: time.Second}); !errors.Is(err, ErrConflict) {
		t.Errorf("a renewal after the end: %v", err)
	}
	if again := c.mustPut(t, BucketReg, key, "x", PutOptions{Revision: new(uint64(0))}); again <= rev {
		t.Errorf("revision %d came after %d", again, rev)
	}
}

func TestKVRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	c := startServer(t, inProcess).connect(t, "w1", nil)
	for what, f := range map[string]func() error{
		"no bucket": func() error { _, err := c.Get(t.Context(), "nope", "a"); return err },
		"empty key": func() error { _, err := c.Get(t.Context(), BucketReg, ""); return err },
		"long key": func() error {
			_, err := c.Put(t.Context(), BucketReg, strings.Repeat("a", 5000), nil, PutOptions{})
			return err
		},
		"wildcard":  func() error { _, err := c.Put(t.Context(), BucketReg, "a.>", nil, PutOptions{}); return err },
		"space":     func() error { return c.Delete(t.Context(), BucketReg, "a b", PutOptions{}) },
		"bad fence": func() error { _, err := c.Put(t.Context(), BucketReg, "a", nil, PutOptions{FenceKey: "*"}); return err },
		"big value": func() error {
			_, err := c.Put(t.Context(), BucketReg, "a", make([]byte, MaxValueBytes+1), PutOptions{})
			return err
		},
		"short TTL": func() error {
			_, err := c.Put(t.Context(), BucketReg, "a", nil, PutOptions{TTL: time.Millisecond})
			return err
		},
		"uneven TTL": func() error {
			_, err := c.Put(t.Context(), BucketReg, "a", nil, PutOptions{TTL: 1500 * time.Millisecond})
			return err
		},
		"both": func() error {
			_, err := c.Put(t.Context(), BucketReg, "a", nil, PutOptions{Revision: new(uint64(1)), FenceKey: "b"})
			return err
		},
		"watch":       func() error { return c.Watch(t.Context(), "nope", ">", nil, nil) },
		"empty watch": func() error { return c.Watch(t.Context(), BucketReg, " ", nil, nil) },
	} {
		if err := f(); err == nil || errors.Is(err, ErrConflict) || errors.Is(err, ErrNotFound) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if !c.Connected() {
		t.Error("the connection is lost")
	}
	c.mustPut(t, BucketReg, "big", strings.Repeat("x", MaxValueBytes), PutOptions{})
}

// TestKVWaitsForTheServer: a write that begins while the server is away is done
// when it is back, within its ctx.
func TestKVWaitsForTheServer(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	c := s.connect(t, "w1", nil)
	s.stop()
	done := make(chan error, 1)
	go func() {
		_, err := c.Put(t.Context(), BucketReg, "a", []byte("x"), PutOptions{Revision: new(uint64(0))})
		done <- err
	}()
	eventually(t, "the loss is seen", func() bool { return !c.Connected() })
	s.start()
	if err := within(t, "Put", done); err != nil {
		t.Error(err)
	}
	if e, err := c.Get(t.Context(), BucketReg, "a"); err != nil || string(e.Value) != "x" {
		t.Errorf("got %+v, %v", e, err)
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	c := startServer(t, inProcess).connect(t, "w1", nil)
	if list, err := c.List(t.Context(), BucketDefs, ">"); err != nil || len(list) != 0 {
		t.Fatalf("got %v, %v", list, err)
	}
	for _, id := range []string{"c", "a", "b", "a", "d"} {
		c.mustPut(t, BucketDefs, Key(KeyServer, id), id, PutOptions{})
	}
	c.mustPut(t, BucketDefs, Key(KeySettings), "s", PutOptions{})
	if err := c.Delete(t.Context(), BucketDefs, Key(KeyServer, "d"), PutOptions{}); err != nil {
		t.Fatal(err)
	}
	list, err := c.List(t.Context(), BucketDefs, KeyFilter(KeyServer))
	var got strings.Builder
	for _, e := range list {
		got.WriteString(string(e.Value))
	}
	if err != nil || got.String() != "cba" {
		t.Errorf("got %q, %v; want the keys as they were last written", got.String(), err)
	}
}

func TestHubsSeeNothingOfEachOther(t *testing.T) {
	t.Parallel()
	s := startServer(t, inProcess)
	a := s.connect(t, "w1", func(c *Config) { c.Hub = "a" })
	b := s.connect(t, "w1", func(c *Config) { c.Hub = "a-" })
	a.mustPut(t, BucketDefs, "k", "a", PutOptions{})
	if _, err := b.Get(t.Context(), BucketDefs, "k"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

// TestForeignBucketWithoutMarkers: a bucket that leases cannot work in is named,
// with what to do.
func TestForeignBucketWithoutMarkers(t *testing.T) {
	t.Parallel()
	s := startServer(t, inProcess)
	c := s.connect(t, "w1", nil)
	if err := c.js.DeleteKeyValue(t.Context(), BucketName("test", BucketReg)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: BucketName("test", BucketReg)}); err != nil {
		t.Fatal(err)
	}
	_, err := Connect(t.Context(), Config{Hub: "test", Identity: "w2", InProcess: s.ns})
	if err == nil || !strings.Contains(err.Error(), "limit_marker_ttl") || !strings.Contains(err.Error(), BucketName("test", BucketReg)) {
		t.Errorf("got %v", err)
	}
}
