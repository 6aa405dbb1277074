package mcp

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestTurnsGivenUp: who leaves the queue holds up nobody behind.
func TestTurnsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns turns
		if err := turns.take(t.Context(), false, time.Second, nil); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		var group sync.WaitGroup
		group.Go(func() {
			if err := turns.take(ctx, true, time.Hour, nil); err != errGaveUp {
				t.Errorf("alone: %v", err)
			}
		})
		synctest.Wait()
		group.Go(func() { // it would run beside the first, but is behind the second
			if err := turns.take(t.Context(), false, time.Second, nil); err != nil {
				t.Errorf("shared: %v", err)
			}
		})
		synctest.Wait()
		cancel(errGaveUp)
		group.Wait()
	})
}

// TestTurnsRandom: whatever happens, nobody runs beside one that is alone, and
// in the end all turns are given back.
func TestTurnsRandom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			turns         turns
			mu            sync.Mutex
			alone, shared int
			group         sync.WaitGroup
		)
		for range 500 {
			group.Go(func() {
				wait := func(most time.Duration) { time.Sleep(rand.N(most)) }
				wait(time.Second)
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(100*time.Millisecond))
				defer cancel()
				exclusive := rand.N(2) == 0
				if err := turns.take(ctx, exclusive, rand.N(100*time.Millisecond), nil); err != nil {
					if !errors.Is(err, errNoTurn) && !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					return
				}
				count := &shared
				if exclusive {
					count = &alone
				}
				mu.Lock()
				*count++
				if alone > 1 || alone == 1 && shared > 0 {
					t.Errorf("%d alone and %d others", alone, shared)
				}
				mu.Unlock()
				wait(10 * time.Millisecond)
				mu.Lock()
				*count--
				mu.Unlock()
				turns.give(exclusive)
			})
		}
		group.Wait()
		if turns.alone || turns.shared != 0 || len(turns.queue) != 0 {
			t.Errorf("left: %+v", &turns)
		}
	})
}

// TestTurnsTellOfWaiters: who runs alone hears that somebody waits, whoever came
// first, and nobody else does.
func TestTurnsTellOfWaiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var turns turns
		waited := map[string]int{}
		take := func(name string) {
			if err := turns.take(t.Context(), true, time.Hour, func() { waited[name]++ }); err != nil {
				t.Error(err)
			}
		}
		take("first")
		if len(waited) > 0 {
			t.Errorf("nobody waits: %v", waited)
		}
		for _, name := range []string{"second", "third"} {
			go take(name)
			synctest.Wait()
		}
		if waited["first"] != 2 || len(waited) != 1 {
			t.Errorf("two wait: %v", waited)
		}
		turns.give(true)
		synctest.Wait()
		if waited["second"] != 1 || waited["first"] != 2 {
			t.Errorf("the third still waits: %v", waited)
		}
		turns.give(true)
		synctest.Wait()
		turns.give(true)
		if waited["third"] != 0 {
			t.Errorf("nobody waits for the third: %v", waited)
		}
	})
}
