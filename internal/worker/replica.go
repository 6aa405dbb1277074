package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/config"
	"toolhub/internal/mcp"
)

// replica keeps one connection to a server alive: it connects, watches over the
// connection, and connects anew, for as long as its server runs.
type replica struct {
	server *server
	// slot is its number, from 0. A server in both eras has two for each process.
	slot int
}

// era is what the connection is to speak.
func (r *replica) era() mcp.EraChoice {
	choice := r.server.definition().Config.Era
	switch {
	case choice != config.EraMirror:
		return mcp.EraChoice(choice)
	case r.slot%2 == 0:
		return mcp.EraChoice(mcp.EraModern)
	}
	return mcp.EraChoice(mcp.EraLegacy)
}

// reconnectEvery is the pause between two attempts to reach a server that is not
// ours to start (product rule D3).
const reconnectEvery = time.Second

// suspectEvery is how often calls that fail can cause a health probe.
const suspectEvery = time.Second

// run returns when stop has ended and the last connection is closed; hard cuts
// the closing short.
func (r *replica) run(stop, hard context.Context) {
	s := r.server
	var pace backoff.BackOff
	attempts := 0
	for stop.Err() == nil {
		started := time.Now()
		l, err := r.connect(stop)
		if err == nil {
			reason := r.watch(stop, l)
			if stop.Err() != nil {
				l.close(hard)
				return
			}
			s.do(func() { s.lost(l, reason) })
			err = l.lostReason(reason)
			l.close(hard)
			if time.Since(started) >= s.definition().Config.RestartBackoff.ResetAfter.Std() {
				attempts = 0
			}
		}
		if stop.Err() != nil {
			return
		}
		if attempts == 0 {
			pace = newPace(s.definition().Config.RestartBackoff)
		}
		attempts++
		delay, again := r.delay(err, pace)
		count := attempts // which goes on while the server's goroutine reads it
		s.do(func() { s.failed(r.slot, err, count, delay, again) })
		if !again {
			<-stop.Done()
			return
		}
		wait(stop, delay)
	}
}

// connect makes the connection within the startup timeout.
func (r *replica) connect(stop context.Context) (*link, error) {
	s := r.server
	timeout := s.definition().Config.StartupTimeout.Std()
	ctx, cancel := context.WithTimeoutCause(stop, timeout, fmt.Errorf("the server did not start within %v (startup_timeout)", timeout))
	defer cancel()
	s.do(func() { s.connecting(r.slot) })
	l, err := s.dial(ctx, r.era(), news{
		started:         func(p peer) { s.do(func() { s.started(r.slot, p) }) },
		listChanged:     func(kinds kindSet) { s.do(func() { s.listChanged(kinds) }) },
		resourceUpdated: s.watch.updated,
		taskChanged:     func(params jsontext.Value) { s.watch.taskChanged(r.slot, params) },
	})
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	l.slot = r.slot
	s.do(func() { s.connected(l) })
	return l, nil
}

// watch returns when the link is of no use any more, with the reason, or when
// stop has ended.
func (r *replica) watch(stop context.Context, l *link) string {
	s := r.server
	interval := func() time.Duration { return s.definition().Config.HealthInterval.Std() }
	var asked time.Time
	for next := time.Now().Add(interval()); ; {
		suspect, wake := l.suspect, next
		if quiet := asked.Add(suspectEvery); time.Now().Before(quiet) {
			suspect = nil
			if quiet.Before(next) {
				wake = quiet
			}
		}
		timer := time.NewTimer(time.Until(wake))
		select {
		case <-stop.Done():
			timer.Stop()
			return ""
		case <-l.conn.Done():
			timer.Stop()
			return "the connection was lost"
		case <-l.peerDone():
			timer.Stop()
			return "the process ended"
		case <-suspect:
			timer.Stop()
		case <-timer.C:
			if time.Now().Before(next) {
				continue
			}
		}
		asked = time.Now()
		next = asked.Add(interval())
		busy := l.busy.Load() > 0
		latency, err := l.probe(stop, s.definition().Config.RequestTimeout.Std())
		switch {
		case err == nil:
			s.do(func() { s.probed(latency) })
		case stop.Err() != nil:
			return ""
		case queued(err), mcp.IsKind(err, mcp.KindTimeout) && (busy || l.busy.Load() > 0):
			// A server may well be deaf while it works; its calls have time limits
			// of their own. The next probe will tell.
			s.log.Debug("health probe of a busy server went unanswered", "error", err)
		default:
			return "it does not answer: " + err.Error()
		}
	}
}

func queued(err error) bool {
	f, ok := errors.AsType[*mcp.Fault](err)
	return ok && f.Reason == mcp.ReasonStdioQueue
}

// delay is the wait before the next attempt, false if there is to be none. What
// is ours to start is paced by full jitter. What is not costs nothing to ask, so
// it is asked every second; but refused credentials are not tried at that pace,
// and a server that names a time is left alone that long.
func (r *replica) delay(err error, pace backoff.BackOff) (time.Duration, bool) {
	if _, permanent := errors.AsType[*backoff.PermanentError](err); permanent {
		return 0, false
	}
	if r.server.definition().ours() {
		return pace.NextBackOff(), true
	}
	f, ok := errors.AsType[*mcp.Fault](err)
	switch {
	case ok && f.Kind == mcp.KindAuth:
		return max(pace.NextBackOff(), reconnectEvery), true
	case ok && f.Kind == mcp.KindRateLimited:
		return max(f.RetryAfter(), reconnectEvery), true
	}
	return reconnectEvery, true
}

// newPace is full jitter: before attempt n a wait uniform in [0, Initial·2ⁿ⁻¹],
// at most Max. The library spreads its interval by ±RandomizationFactor, so half
// of each interval, spread by 1, is exactly that.
func newPace(b config.Backoff) backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(min(b.Initial.Std(), b.Max.Std())/2),
		backoff.WithMaxInterval(b.Max.Std()/2),
		backoff.WithMultiplier(2),
		backoff.WithRandomizationFactor(1),
		backoff.WithMaxElapsedTime(0),
	)
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
