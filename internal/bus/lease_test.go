package bus

import (
	"errors"
	"testing"
	"time"
)

func TestLease(t *testing.T) {
	t.Parallel()
	s := startServer(t, inProcess)
	w1, w2 := s.connect(t, "w1", nil), s.connect(t, "w2", nil)
	seen := watch(t, w2, BucketReg, KeyFilter(KeyLease))
	a, err := w1.AcquireLease(t.Context(), "w1", "i1", []byte("a"), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	b, err := w2.AcquireLease(t.Context(), "w2", "i1", []byte("b"), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w2.AcquireLease(t.Context(), "w1", "i1", nil, time.Second); !errors.Is(err, ErrConflict) {
		t.Errorf("a second lease of one incarnation: %v", err)
	}
	if a.Key() != Key(KeyLease, "w1", "i1") {
		t.Errorf("the key is %s", a.Key())
	}
	seen.untilIs("both", map[string]string{a.Key(): "a", b.Key(): "b"})
	// It outlives its TTL by being renewed: more renewals than fit into one TTL.
	first, err := w1.Get(t.Context(), BucketReg, a.Key())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "renewals", func() bool {
		e, err := w1.Get(t.Context(), BucketReg, a.Key())
		if err != nil {
			t.Fatalf("the lease is gone: %v", err)
		}
		return e.Created.Sub(first.Created) > 2*time.Second
	})
	if err := a.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := seen.untilIs("one is released", map[string]string{b.Key(): "b"}); took > 500*time.Millisecond && !raceEnabled {
		t.Errorf("others saw it after %v, should be at once", took)
	}
	select {
	case <-a.Lost():
		t.Error("a lease that was released counts as lost")
	case <-b.Lost():
		t.Error("the other lease was lost")
	default:
	}
	if err := a.Release(t.Context()); err != nil {
		t.Errorf("a second Release: %v", err)
	}
}

// TestLeaseIsLostBeforeItCanMove: when the server is unreachable, the holder
// gives up before the server would let others see the lease end.
func TestLeaseIsLostBeforeItCanMove(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	p := startProxy(t, s)
	holder := s.connect(t, "w1", func(c *Config) { c.URL = p.url() })
	other := s.connect(t, "w2", nil)
	seen := watch(t, other, BucketReg, KeyFilter(KeyLease))
	l, err := holder.AcquireLease(t.Context(), "w1", "i1", []byte("a"), 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	seen.untilIs("the lease", map[string]string{l.Key(): "a"})
	lost := make(chan time.Time, 1)
	go func() { <-l.Lost(); lost <- time.Now() }()
	p.ln.Close()
	p.cut()
	seen.untilIs("others see it end", map[string]string{})
	moved := time.Now()
	select {
	case at := <-lost:
		if at.After(moved) {
			t.Errorf("the holder knew %v too late", at.Sub(moved))
		}
	default:
		t.Error("others saw the lease end before its holder did")
		<-lost
	}
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("Release of a lost lease: %v", err)
	}
}

// TestLeaseThatIsTaken: a lease that somebody removed is lost at the next renewal.
func TestLeaseThatIsTaken(t *testing.T) {
	t.Parallel()
	s := startServer(t, inProcess)
	w1, w2 := s.connect(t, "w1", nil), s.connect(t, "w2", nil)
	l, err := w1.AcquireLease(t.Context(), "w1", "i1", nil, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := w2.Delete(t.Context(), BucketReg, l.Key(), PutOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, "the loss", l.Lost())
}

// TestLeaseSurvivesARestart: an outage shorter than the lease changes nothing.
func TestLeaseSurvivesARestart(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	c := s.connect(t, "w1", nil)
	l, err := c.AcquireLease(t.Context(), "w1", "i1", nil, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	before, err := c.Get(t.Context(), BucketReg, l.Key())
	if err != nil {
		t.Fatal(err)
	}
	s.stop()
	s.start()
	eventually(t, "it is renewed again", func() bool {
		e, err := c.Get(t.Context(), BucketReg, l.Key())
		if err != nil {
			t.Fatal(err)
		}
		return e.Rev > before.Rev
	})
	select {
	case <-l.Lost():
		t.Error("the lease is lost")
	default:
	}
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}
