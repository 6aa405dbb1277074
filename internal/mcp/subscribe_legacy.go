package mcp

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// maxSubscribing bounds the requests for subscriptions that are open at once.
const maxSubscribing = 8

// subscriber brings about the subscriptions of a legacy server, one request for
// each. What it is told of comes as notifications, at any time.
type subscriber struct {
	*hop
	call func(context.Context, *Call) (jsontext.Value, error)

	mu      sync.Mutex
	session int // grows with each new session, which knows of no subscription
	open    int // requests
	backoff backoff
	resume  time.Time // when those that failed are asked for again
}

// keepSubscribed begins to see to the subscriptions of a legacy server.
func (h *hop) keepSubscribed(call func(context.Context, *Call) (jsontext.Value, error)) {
	if h.opts.OnResourceUpdated == nil {
		return
	}
	h.subscriber = &subscriber{hop: h, call: call}
	h.spawn(h.subscriber.run)
}

func (s *subscriber) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(s.step())
		select {
		case <-s.subs.wake:
		case <-timer.C:
		case <-s.ctx.Done():
			return
		}
	}
}

// step sends the requests that are to be sent, as many as may be open. It returns
// how long until it wants to be called again, news or no news.
func (s *subscriber) step() time.Duration {
	const idle = time.Hour
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subs.mu.Lock()
	defer s.subs.mu.Unlock()
	wait := time.Until(s.resume)
	delayed := false
	for _, in := range s.subs.sortedLocked(func(in *interest) bool { return !in.asked && in.wanted != in.held && !in.refused }) {
		if in.wanted && in.established && wait > 0 {
			delayed = true
			continue
		}
		if s.open == maxSubscribing {
			break
		}
		s.open++
		in.asked = true
		session := s.session
		if in.wanted {
			s.spawn(func() { s.subscribe(in, session) })
		} else {
			s.spawn(func() { s.unsubscribe(in) })
		}
	}
	if delayed {
		return wait
	}
	return idle
}

func (s *subscriber) ask(method string, in *interest) error {
	_, err := s.call(s.ctx, &Call{
		Method: method, Params: append(AppendString(jsontext.Value(`{"uri":`), in.id), '}'), Timeout: s.opts.RequestTimeout,
	})
	return err
}

func (s *subscriber) subscribe(in *interest, session int) {
	began := time.Now()
	err := s.ask(MethodSubscribe, in)
	_, refused := errors.AsType[*Error](err)
	s.mu.Lock()
	s.open--
	s.subs.mu.Lock()
	missed := false
	switch {
	case err == nil && session != s.session:
		in.asked = false // it was the session before, perhaps
	case err == nil:
		s.backoff = backoff{}
		missed = s.subs.tookLocked(in)
	default:
		s.subs.failedLocked(in, err, refused)
		if !refused {
			s.resume = time.Now().Add(s.backoff.next(time.Since(began), 0))
		}
	}
	if !in.wanted && !in.held && !in.asked {
		s.subs.forgetLocked(in, errUnsubscribed)
	}
	s.subs.mu.Unlock()
	s.mu.Unlock()
	s.subs.signal()
	if missed {
		s.updated(in.id)
	}
}

// unsubscribe ends a subscription, whatever the server says to it.
func (s *subscriber) unsubscribe(in *interest) {
	if err := s.ask(MethodUnsubscribe, in); err != nil {
		s.log.Debug("couldn't end a subscription", "error", err)
	}
	s.mu.Lock()
	s.open--
	s.subs.mu.Lock()
	in.asked = false
	s.subs.lostLocked(in)
	s.subs.mu.Unlock()
	s.mu.Unlock()
	s.subs.signal()
}

// renewed says that there is a new session, which has to be told everything anew.
func (s *subscriber) renewed() {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.session++
	s.resume = time.Time{}
	s.subs.mu.Lock()
	for _, in := range s.subs.topics {
		s.subs.lostLocked(in)
	}
	s.subs.mu.Unlock()
	s.mu.Unlock()
	s.subs.signal()
}

// missed says that for a while nothing was heard of what changed.
func (s *subscriber) missed() {
	if s == nil {
		return
	}
	s.subs.mu.Lock()
	held := s.subs.sortedLocked(func(in *interest) bool { return in.held && in.wanted })
	s.subs.mu.Unlock()
	s.updated(uris(held)...)
}
