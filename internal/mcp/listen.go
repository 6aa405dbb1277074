package mcp

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	// gatherTime is how long changes of what is wanted are gathered before the
	// server hears of them.
	gatherTime = 10 * time.Millisecond
	// ackTimeout is how long the first message of a listen stream is waited for.
	ackTimeout = 5 * time.Second
	// maxSurplus is how many topics that nobody wants any more may stay in a stream
	// that cannot be changed without a gap.
	maxSurplus = 16
	// maxRefusals is how many streams in a row a server may refuse until it is taken
	// to refuse all that was to be new in them.
	maxRefusals = 24
)

// opener runs one subscriptions/listen until ctx or the server ends it, and calls
// acknowledged when the server has begun to tell. It returns the reconnection time
// that the server asked for, if any.
type opener func(ctx context.Context, params jsontext.Value, acknowledged func(params jsontext.Value)) (retry time.Duration, err error)

// listener holds one subscriptions/listen of a modern server open, with all that
// is listened for, and opens it anew when that changes and after any drop. Its
// goroutine (run) owns the fields below events.
type listener struct {
	*hop
	open opener
	// overlap says that the new stream is opened before the old one ends, so that
	// nothing is missed. On a connection where all streams are one, some servers
	// (the Go SDK 1.8 among them) end all subscriptions with the first stream that
	// ends: there the old one ends first, and what may have been missed is made up
	// for.
	overlap bool
	events  chan listenEvent

	kinds    []ListKind // the lists that are listened for
	current  *listenStream
	next     *listenStream // not acknowledged yet
	closing  *listenStream // its end is waited for
	proven   bool          // a stream was acknowledged once
	dropped  bool          // there was a stream, and changes may have been missed since
	backoff  backoff
	resume   time.Time // nothing is opened before
	ackBy    time.Time // of next
	limit    int       // how many topics are added at once, 0 for all
	refusals int       // streams in a row that the server refused
	// suspect is the only new topic of a stream that was refused, and blame the
	// refusal: if the server takes the others without it, it was that.
	suspect *interest
	blame   error
}

// listenStream is one subscriptions/listen request.
type listenStream struct {
	cancel context.CancelFunc
	topics []*interest
	fresh  []*interest // those of topics that no stream had yet
	lost   []*interest // those that one had, which has ended
	began  time.Time
	empty  bool // the server acknowledged it and will tell of nothing
}

// listenEvent is news of a stream: its acknowledgement, or its end.
type listenEvent struct {
	stream *listenStream
	ack    jsontext.Value // the params, nil for the end
	retry  time.Duration
	err    error
}

// keepListening begins to listen to a modern server.
func (h *hop) keepListening(open opener, overlap bool) {
	l := &listener{hop: h, open: open, overlap: overlap, events: make(chan listenEvent)}
	if h.opts.OnListChanged != nil {
		l.kinds = h.info.Load().listChanged()
	}
	if len(l.kinds) > 0 || l.subscribable() {
		h.spawn(l.run)
	}
}

func (l *listener) subscribable() bool {
	info := l.info.Load()
	return l.opts.OnResourceUpdated != nil && info.subscribes() || l.opts.OnTask != nil && info.Tasks()
}

func (l *listener) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for l.ctx.Err() == nil {
		timer.Reset(l.step())
		select {
		case <-l.subs.wake:
			gather := time.NewTimer(gatherTime)
			select {
			case <-gather.C:
			case <-l.ctx.Done():
			}
			gather.Stop()
		case e := <-l.events:
			switch {
			case e.ack != nil:
				l.acknowledged(e.stream, e.ack)
			default:
				l.ended(e)
			}
		case <-timer.C:
			if s := l.next; s != nil && !time.Now().Before(l.ackBy) {
				l.log.Warn("the server does not acknowledge subscriptions/listen")
				l.acknowledged(s, nil) // it may tell of lists all the same
			}
		case <-l.ctx.Done():
		}
		if len(l.kinds) == 0 && !l.subscribable() && l.current == nil && l.next == nil && l.closing == nil {
			return
		}
	}
}

// step opens or ends a stream if it is time to. It returns how long until it
// wants to be called again, news or no news.
func (l *listener) step() time.Duration {
	const idle = time.Hour
	switch now := time.Now(); {
	case l.next != nil:
		return l.ackBy.Sub(now)
	case l.closing != nil:
		return idle
	case now.Before(l.resume):
		return l.resume.Sub(now)
	}
	s := l.subs
	s.mu.Lock()
	defer s.mu.Unlock()
	surplus := s.sortedLocked(func(in *interest) bool { return in.held && !in.wanted })
	held := s.sortedLocked(func(in *interest) bool { return in.held && in.wanted })
	lost := s.sortedLocked(func(in *interest) bool { return !in.held && in.wanted && !in.refused && in.established })
	fresh := s.sortedLocked(func(in *interest) bool { return !in.held && in.wanted && !in.refused && !in.established })
	switch {
	case l.suspect != nil && l.suspect.wanted && len(lost) > 0:
		fresh = nil
	case len(fresh) > 0:
		fresh = l.limited(fresh)
	default:
		lost = l.limited(lost)
	}
	nothing := len(l.kinds) == 0 && len(held) == 0 && len(lost) == 0 && len(fresh) == 0
	news := len(lost) + len(fresh)
	switch {
	case l.current == nil && nothing:
		return idle
	case l.current == nil: // lost, or the first
	case news == 0 && len(surplus) == 0 && !nothing:
		return idle
	case news == 0 && !l.overlap && len(surplus) <= maxSurplus && len(held) > 0:
		return idle
	case !l.overlap || nothing:
		l.current.cancel()
		l.closing, l.current = l.current, nil
		l.loseLocked()
		return idle
	}
	for _, in := range slices.Concat(lost, fresh) {
		in.asked = true
	}
	next := &listenStream{
		topics: s.sortedLocked(func(in *interest) bool { return in.wanted && (in.held || in.asked) }),
		fresh:  fresh, lost: lost, began: time.Now(),
	}
	l.next, l.ackBy = next, next.began.Add(min(ackTimeout, l.opts.RequestTimeout))
	l.start(next)
	return l.ackBy.Sub(next.began)
}

// limited is the first of list, if only so many may be added.
func (l *listener) limited(list []*interest) []*interest {
	if l.limit > 0 && len(list) > l.limit {
		return list[:l.limit]
	}
	return list
}

// start runs a stream in the background.
func (l *listener) start(s *listenStream) {
	ctx, cancel := context.WithCancel(l.ctx)
	s.cancel = cancel
	params := l.params(s)
	tell := func(e listenEvent) {
		e.stream = s
		select {
		case l.events <- e:
		case <-l.ctx.Done():
		}
	}
	l.spawn(func() {
		defer cancel()
		retry, err := l.open(ctx, params, func(ack jsontext.Value) {
			if ack == nil {
				ack = jsontext.Value("{}")
			}
			tell(listenEvent{ack: ack})
		})
		tell(listenEvent{retry: retry, err: err})
	})
}

// params are those of the request that opens s.
func (l *listener) params(s *listenStream) jsontext.Value {
	b := []byte(`{"notifications":{`)
	member := func(text string) {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(b, text...)
	}
	for _, kind := range l.kinds {
		member(`"` + string(kind) + `ListChanged":true`)
	}
	tasks := false
	for _, list := range []struct {
		name string
		task bool
	}{{"resourceSubscriptions", false}, {"taskIds", true}} {
		first := true
		for _, in := range s.topics {
			if in.task != list.task {
				continue
			}
			if first {
				member(`"` + list.name + `":[`)
				first = false
			} else {
				b = append(b, ',')
			}
			b = AppendString(b, in.id)
			tasks = tasks || in.task
		}
		if !first {
			b = append(b, ']')
		}
	}
	b = append(b, '}')
	if tasks { // whoever does not declare the extension is not told
		b = append(b, `,"_meta":{"`+MetaClientCapabilities+`":{"extensions":{"`+ExtensionTasks+`":{}}}}`...)
	}
	return append(b, '}')
}

// acknowledged makes s the current stream; what the server has not acknowledged,
// it will not tell of. Nil says that it acknowledges nothing at all.
func (l *listener) acknowledged(s *listenStream, params jsontext.Value) {
	if s != l.next {
		return // for the second time, or too late
	}
	var ack struct {
		Notifications struct {
			Resources []string `json:"resourceSubscriptions"`
			Tasks     []string `json:"taskIds"`
			Tools     bool     `json:"toolsListChanged"`
			Prompts   bool     `json:"promptsListChanged"`
			Lists     bool     `json:"resourcesListChanged"`
		} `json:"notifications"`
	}
	if err := json.Unmarshal(params, &ack, lenientOptions); err != nil && params != nil {
		l.log.Warn("the server's acknowledgement of subscriptions/listen cannot be read", "error", err)
	}
	honoured := make(map[topic]bool, len(s.topics))
	for _, uri := range ack.Notifications.Resources {
		honoured[topic{id: uri}] = true
	}
	for _, id := range ack.Notifications.Tasks {
		honoured[topic{task: true, id: id}] = true
	}
	kept := make(map[*interest]bool, len(s.topics))
	for _, in := range s.topics {
		kept[in] = true
	}
	var missed []*interest
	l.subs.mu.Lock()
	for _, in := range l.subs.topics {
		if in.held && !kept[in] {
			l.subs.lostLocked(in) // with the stream before
		}
	}
	for _, in := range s.topics {
		switch {
		case !honoured[in.topic]:
			l.subs.failedLocked(in, l.notSubscribable("the server does not acknowledge the subscription to %.200q", in.id), true)
		case l.subs.tookLocked(in):
			missed = append(missed, in)
		}
	}
	if in := l.suspect; in != nil {
		l.suspect = nil
		l.subs.failedLocked(in, l.blame, true)
	}
	l.subs.mu.Unlock()
	if old := l.current; old != nil {
		old.cancel()
	}
	l.current, l.next = s, nil
	l.proven = l.proven || params != nil
	l.limit, l.refusals = 0, 0
	n := &ack.Notifications
	s.empty = params != nil && len(honoured) == 0 && !n.Tools && !n.Prompts && !n.Lists
	if l.dropped {
		l.dropped = false
		l.changed(l.kinds...)
	}
	l.updated(uris(missed)...)
}

// ended deals with the end of a stream.
func (l *listener) ended(e listenEvent) {
	switch e.stream {
	case l.closing:
		l.closing = nil
	case l.next:
		l.next = nil
		l.failed(e)
	case l.current:
		l.current = nil
		l.subs.mu.Lock()
		l.loseLocked()
		l.subs.mu.Unlock()
		if e.stream.empty && e.err == nil {
			l.kinds = nil // it announces no list, whatever it declares
		}
		l.pause(e)
	}
}

// loseLocked says that the server tells of nothing any more. Called with subs.mu.
func (l *listener) loseLocked() {
	l.dropped = true
	for _, in := range l.subs.topics {
		l.subs.lostLocked(in)
	}
}

// failed deals with a stream that ended before it was acknowledged. Which of the
// topics the server dislikes is found out by asking for fewer of them, of the new
// ones first: those that it took once it mostly takes again.
func (l *listener) failed(e listenEvent) {
	fresh, lost := e.stream.fresh, e.stream.lost
	rpc, refused := errors.AsType[*Error](e.err)
	refused = refused || errors.Is(e.err, errNoStream) && !l.proven
	l.subs.mu.Lock()
	defer l.subs.mu.Unlock()
	why := e.err
	switch {
	case errors.Is(why, errNoStream):
		why = l.notSubscribable("the server has no subscriptions")
	case why == nil:
		why = l.named(NewFault(KindProtocol, "not_acknowledged", "the server ended the subscription without an acknowledgement"))
	}
	for _, in := range slices.Concat(fresh, lost) {
		in.asked = false
	}
	if !refused {
		// Bad luck: those who wait may try again, the rest is kept.
		for _, in := range slices.Concat(fresh, lost) {
			l.subs.failedLocked(in, why, false)
		}
		l.pause(e)
		return
	}
	l.refusals++
	suspects := fresh
	if len(fresh) == 0 {
		suspects = lost
	}
	switch {
	case l.refusals >= maxRefusals: // it would take one request for each
		l.suspect = nil
		for _, in := range l.subs.sortedLocked(func(in *interest) bool { return !in.held && !in.refused }) {
			l.subs.failedLocked(in, why, true)
		}
	case len(suspects) > 1:
		l.limit, l.suspect = (len(suspects)+1)/2, nil
	case len(fresh) == 1 && len(lost) > 0:
		l.suspect, l.blame = fresh[0], why
	case len(suspects) == 1:
		l.suspect = nil
		l.subs.failedLocked(suspects[0], why, true)
	case l.current == nil && (rpc == nil || errors.Is(maybeNoStream(rpc), errNoStream)):
		l.kinds = nil // there are no topics, and lists it will not announce
	default:
		l.pause(e)
	}
}

// pause puts off the next stream.
func (l *listener) pause(e listenEvent) {
	wait := l.backoff.next(time.Since(e.stream.began), e.retry)
	l.resume = time.Now().Add(wait)
	l.log.Debug("stream of changes ended, it will be opened again", "error", e.err, "delay", wait)
}

// errNoStream is the answer of a server that has no stream of that kind, which
// is final.
var errNoStream = errors.New("the server has no such stream")

// maybeNoStream is errNoStream if the server's answer to a listen request means
// that it knows no such thing.
func maybeNoStream(err error) error {
	if e, ok := errors.AsType[*Error](err); ok && (e.Code == CodeMethodNotFound || e.Code == CodeInvalidParams) {
		return errNoStream
	}
	return err
}

// backoff is the pauses between streams that end. The zero value is ready.
type backoff struct{ delay time.Duration }

// next is the pause after a stream that lasted so long, at the end of which the
// server asked for retry. A stream that lasted starts the back-off anew.
func (b *backoff) next(lasted, retry time.Duration) time.Duration {
	const first, most, lasting = time.Second, time.Minute, 10 * time.Second
	if b.delay == 0 || lasted >= lasting {
		b.delay = first
	}
	// Many connections may have lost the same server at once: spread them.
	wait := max(min(retry, most), b.delay/2+rand.N(b.delay))
	b.delay = min(2*b.delay, most)
	return wait
}

// reopen runs stream again and again until the connection closes or the server
// has none. Stream returns the delay that the server asked for, if any.
func (h *hop) reopen(stream func(again bool) (retry time.Duration, err error)) {
	var pauses backoff
	for again := false; h.ctx.Err() == nil; again = true {
		began := time.Now()
		retry, err := stream(again)
		if errors.Is(err, errNoStream) || h.ctx.Err() != nil {
			return
		}
		wait := pauses.next(time.Since(began), retry)
		h.log.Debug("stream of changes ended, it will be opened again", "error", err, "delay", wait)
		select {
		case <-h.ctx.Done():
		case <-time.After(wait):
		}
	}
}
