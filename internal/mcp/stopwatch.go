package mcp

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// stopwatch ends a call that takes too long (product rule K7): after idle
// without progress, and after total in any case. It stands still while the call
// waits for an answer of ours.
type stopwatch struct {
	idle, total time.Duration
	expire      context.CancelCauseFunc // gets a *Fault

	mu      sync.Mutex
	timer   *time.Timer // nil when there is no limit
	used    time.Duration
	since   time.Time // when used was last brought up to date
	paused  int
	stopped bool
}

// start begins to measure; with no limits it does nothing at all.
func (s *stopwatch) start(call *Call, expire context.CancelCauseFunc) {
	if call.Timeout <= 0 && call.MaxTotal <= 0 {
		return
	}
	s.idle, s.total, s.expire = call.Timeout, call.MaxTotal, expire
	if s.total <= 0 {
		s.total = s.idle
	}
	if s.idle <= 0 || s.idle > s.total {
		s.idle = s.total
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Now()
	s.timer = time.AfterFunc(s.idle, s.fire)
}

// progress starts the idle time anew.
func (s *stopwatch) progress() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer == nil || s.stopped || s.paused > 0 {
		return
	}
	s.update()
	s.timer.Reset(min(s.idle, s.total-s.used))
}

// pause and resume bracket a time that does not count; they nest. The idle time
// begins anew.
func (s *stopwatch) pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused++; s.paused == 1 && s.timer != nil {
		s.update()
		s.timer.Stop()
	}
}

func (s *stopwatch) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused--; s.paused == 0 && s.timer != nil && !s.stopped {
		s.since = time.Now()
		s.timer.Reset(max(0, min(s.idle, s.total-s.used)))
	}
}

func (s *stopwatch) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

// update needs mu.
func (s *stopwatch) update() {
	now := time.Now()
	s.used += now.Sub(s.since)
	s.since = now
}

func (s *stopwatch) fire() {
	s.mu.Lock()
	if s.stopped || s.paused > 0 {
		s.mu.Unlock()
		return
	}
	s.stopped = true
	s.update()
	used := s.used
	s.mu.Unlock()
	reason, limit := "timeout", s.idle
	if used >= s.total && s.idle < s.total {
		reason, limit = "max_total_timeout", s.total
	}
	f := NewFault(KindTimeout, reason, "no answer within %v (the timeout is %v since the last progress and %v in total)", limit, s.idle, s.total)
	d := []byte(`{"timeout_ms":`)
	d = appendMS(d, s.idle)
	d = append(d, `,"max_total_timeout_ms":`...)
	d = appendMS(d, s.total)
	d = append(d, `,"elapsed_ms":`...)
	d = appendMS(d, used)
	f.Details = jsontext.Value(append(d, '}'))
	s.expire(f)
}

func appendMS(b []byte, d time.Duration) []byte {
	return strconv.AppendInt(b, d.Milliseconds(), 10)
}
