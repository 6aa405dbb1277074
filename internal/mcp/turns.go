package mcp

import (
	"context"
	"sync"
	"time"
)

// turns hands out the turns of a stdio connection in FIFO order (product rule T2).
// On such a connection the server's log messages, and the requests of a legacy
// one, name no call, so a call that is to get them runs alone; the others run side
// by side. Of a modern server only the calls that want log messages take turns.
type turns struct {
	mu sync.Mutex
	// Either alone is set or shared counts the turns taken, never both.
	alone  bool
	shared int
	queue  []*waiter // in order of arrival; the first one cannot run yet
	// waited is that of the call that runs alone, nil if there is none or it does not
	// want to know.
	waited func()
}

type waiter struct {
	alone  bool
	waited func()
	ready  chan struct{} // closed when the turn is its own
}

// take waits for a turn, at most for limit. The error is errNoTurn when the
// limit is reached, or ctx's cause. After nil the caller must call give. While it
// runs alone, waited is called when somebody waits; it may be nil.
func (t *turns) take(ctx context.Context, alone bool, limit time.Duration, waited func()) error {
	t.mu.Lock()
	w := &waiter{alone: alone, waited: waited, ready: make(chan struct{})}
	if len(t.queue) == 0 && t.free(alone) {
		t.grant(w)
		t.mu.Unlock()
		return nil
	}
	t.queue = append(t.queue, w)
	if t.waited != nil {
		t.waited()
	}
	t.mu.Unlock()

	timer := time.NewTimer(limit)
	defer timer.Stop()
	var err error
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timer.C:
		err = errNoTurn
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, q := range t.queue {
		if q == w {
			t.queue = append(t.queue[:i], t.queue[i+1:]...)
			t.advance() // those behind it may have waited for it only
			return err
		}
	}
	t.release(alone) // it was granted in this very moment
	return err
}

// give hands a turn back.
func (t *turns) give(alone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.release(alone)
}

func (t *turns) release(alone bool) {
	if alone {
		t.alone, t.waited = false, nil
	} else {
		t.shared--
	}
	t.advance()
}

func (t *turns) advance() {
	for len(t.queue) > 0 && t.free(t.queue[0].alone) {
		w := t.queue[0]
		t.queue[0] = nil
		t.queue = t.queue[1:]
		t.grant(w)
		close(w.ready)
		if t.waited != nil && len(t.queue) > 0 {
			t.waited()
		}
	}
}

func (t *turns) free(alone bool) bool { return !t.alone && (!alone || t.shared == 0) }

func (t *turns) grant(w *waiter) {
	if w.alone {
		t.alone, t.waited = true, w.waited
	} else {
		t.shared++
	}
}

var errNoTurn = NewFault(KindTimeout, ReasonStdioQueue, "no turn in time")
