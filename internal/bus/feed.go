package bus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
)

const (
	heartbeat = 500 * time.Millisecond
	// silence is how long without any message a consumer counts as dead.
	silence = 3 * heartbeat
	// feedTimeout bounds the making of one consumer.
	feedTimeout = 1500 * time.Millisecond
	// orphanTTL is when the server removes a consumer whose process has died.
	orphanTTL   = 10 * time.Second
	backoffMin  = 50 * time.Millisecond
	backoffMax  = 500 * time.Millisecond
	resumeLimit = markerTTL / 2
	// auditInterval is how often a feed looks whether what it has is still there:
	// a purge of the stream leaves no markers.
	auditInterval = 3 * time.Second
)

// feed follows the messages of a stream for ever. The stock consumers are blind
// for up to 19 s after a restart of the server, can keep a key whose deletion
// they missed, and see nothing at all of a stream that was made anew. So this
// one makes a consumer of its own, a new one whenever anything is odd, and
// starts from the beginning whenever it cannot be sure to have missed nothing.
type feed struct {
	conn     *Conn
	link     *link
	js       jetstream.JetStream
	stream   string
	subjects []string
	noResume bool // never begin after the newest sequence seen
	// start says where a consumer begins that cannot resume.
	start func(cfg *jetstream.ConsumerConfig, info *jetstream.StreamInfo)
	// restart is called before the messages of such a consumer. fresh says that
	// the stream is not the one seen before, so that its sequences mean nothing.
	restart func(fresh bool)
	// apply gets messages in order. caughtUp says that with them everything
	// that the stream had is seen.
	apply func(batch []delivery, caughtUp bool)
	// state says whether all is well from here on.
	state func(live bool, reason string)
	// oldest is the least sequence of what the stream ought to have still, 0 if
	// nothing; nil for a feed that keeps nothing.
	oldest func() uint64

	created time.Time // of the stream
	last    uint64    // newest sequence seen
	alive   time.Time // when something was last heard
}

// delivery is one message of a stream.
type delivery struct {
	subject  string
	data     []byte
	header   nats.Header
	seq      uint64 // in the stream
	consumer uint64 // of the consumer, without gaps
	pending  uint64
	time     time.Time
	// control is of a status message: reply is where an answer goes, "" if none
	// is wanted; consumer is the last one sent.
	control bool
	reply   string
}

func (f *feed) run(ctx context.Context) error {
	reason := "start"
	backoff := backoffMin
	for {
		up := f.link.ups()
		select {
		case <-up:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-f.conn.closing:
			return nats.ErrConnectionClosed
		}
		live, err := f.attempt(ctx, reason)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if live {
			backoff = backoffMin
		}
		reason = err.Error()
		f.state(false, reason)
		wait := time.NewTimer(backoff + rand.N(backoff))
		if errors.Is(err, errLinkDown) {
			wait.Reset(0) // the wait is for the connection
		}
		select {
		case <-wait.C:
		case <-ctx.Done():
		case <-f.conn.closing:
		}
		wait.Stop()
		backoff = min(2*backoff, backoffMax)
	}
}

var errLinkDown = errors.New("disconnected")

// attempt makes one consumer and follows it until something is odd.
func (f *feed) attempt(ctx context.Context, reason string) (live bool, err error) {
	down := f.link.downs()
	api, cancel := context.WithTimeout(ctx, feedTimeout)
	defer cancel()
	stream, err := f.js.Stream(api, f.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		// NATS has lost what it had stored. What this hub's processes know goes
		// on; they need somewhere to write it.
		err = f.conn.provision(ctx)
		if err == nil {
			stream, err = f.js.Stream(api, f.stream)
		}
	}
	if err != nil {
		return false, fmt.Errorf("couldn't look at the stream: %w", err)
	}
	info := stream.CachedInfo()
	fresh := !info.Created.Equal(f.created) || info.State.LastSeq < f.last
	full := fresh || f.noResume || f.last == 0 || !f.recent()

	q := newDeliveries()
	inbox := f.link.nc.NewInbox()
	sub, err := f.link.nc.Subscribe(inbox, q.receive)
	if err != nil {
		return false, fmt.Errorf("couldn't subscribe: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return false, err
	}
	cfg := jetstream.ConsumerConfig{
		Name: "toolhub-" + nuid.Next(), Description: "toolhub " + f.conn.Identity(),
		DeliverSubject: inbox, FilterSubjects: f.subjects, AckPolicy: jetstream.AckNonePolicy,
		FlowControl: true, IdleHeartbeat: heartbeat, MemoryStorage: true, Replicas: 1, InactiveThreshold: orphanTTL,
	}
	if full {
		f.start(&cfg, info)
	} else {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, f.last+1
	}
	cons, err := f.js.CreatePushConsumer(api, f.stream, cfg)
	if err != nil {
		return false, fmt.Errorf("couldn't make a consumer: %w", err)
	}
	defer f.remove(cfg.Name)
	if full {
		f.restart(fresh)
		f.created = info.Created
		f.last = 0
	}
	pending := cons.CachedInfo().NumPending
	if pending == 0 {
		// What was stored between the two questions shows in NumPending.
		f.last = max(f.last, info.State.LastSeq)
		f.apply(nil, true)
		f.state(true, reason)
		live = true
	}
	f.alive = time.Now()
	return f.follow(ctx, q, down, live, reason)
}

// follow takes what a consumer delivers.
func (f *feed) follow(ctx context.Context, q *deliveries, down <-chan struct{}, live bool, reason string) (bool, error) {
	var seen uint64 // consumer sequence
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	audit := time.NewTicker(auditInterval)
	defer audit.Stop()
	firsts := make(chan uint64, 1)
	var missing uint64 // what an audit found to be gone
	for {
		select {
		case <-audit.C:
			if f.oldest != nil && live {
				f.first(firsts)
			}
			continue
		case first := <-firsts:
			// Once can be a change that is on its way here. Twice it is a loss.
			if oldest := f.oldest(); oldest == 0 || oldest >= first {
				missing = 0
			} else if missing == oldest {
				f.alive = time.Time{} // so that nothing is resumed
				return live, errors.New("messages were purged")
			} else {
				missing = oldest
			}
			continue
		case <-ctx.Done():
			return live, context.Cause(ctx)
		case <-f.conn.closing:
			return live, nats.ErrConnectionClosed
		case <-down:
			return live, errLinkDown
		case <-quiet.C:
			return live, errors.New("no heartbeat")
		case <-q.wake:
		}
		quiet.Reset(silence)
		f.alive = time.Now()
		all := q.take()
		batch := all[:0]
		var odd error
		caughtUp := false
		for _, d := range all {
			if d.control {
				if d.reply != "" { // flow control: everything before it is dealt with now
					_ = f.link.nc.Publish(d.reply, nil)
				}
				if d.consumer > seen {
					odd = fmt.Errorf("message %d of the consumer was lost", seen+1)
					break
				}
				continue
			}
			if d.consumer != seen+1 {
				odd = fmt.Errorf("message %d of the consumer was lost", seen+1)
				break
			}
			seen++
			f.last = max(f.last, d.seq)
			caughtUp = caughtUp || d.pending == 0
			batch = append(batch, d)
		}
		if len(batch) > 0 {
			f.apply(batch, caughtUp && !live)
		}
		if odd != nil {
			return live, odd
		}
		if caughtUp && !live {
			live = true
			f.state(true, reason)
		}
	}
}

// first asks, in the background, for the first sequence that the stream has. That
// of an empty one is behind its last.
func (f *feed) first(answer chan<- uint64) {
	f.conn.spawn(func() {
		ctx, cancel := context.WithTimeout(context.Background(), feedTimeout)
		defer cancel()
		stream, err := f.js.Stream(ctx, f.stream)
		if err != nil {
			return // whether the stream is there, its heartbeats tell
		}
		state := stream.CachedInfo().State
		first := state.FirstSeq
		if state.Msgs == 0 {
			first = state.LastSeq + 1
		}
		select {
		case answer <- first:
		default:
		}
	})
}

// recent reports whether the markers of all deletions since f was last alive
// are still there. Both clocks are asked: the monotonic one stands still while
// a machine sleeps, the other can be set.
func (f *feed) recent() bool {
	now := time.Now()
	wall := now.Round(0).Sub(f.alive.Round(0))
	return now.Sub(f.alive) < resumeLimit && wall < resumeLimit && wall >= 0
}

// remove deletes a consumer that is of no use any more, in the background; the
// server does it later if this fails.
func (f *feed) remove(name string) {
	if !f.link.nc.IsConnected() {
		return
	}
	f.conn.spawn(func() {
		ctx, cancel := context.WithTimeout(context.Background(), feedTimeout)
		defer cancel()
		_ = f.js.DeleteConsumer(ctx, f.stream, name)
	})
}

// deliveries is the queue between the callback of a subscription, which never
// blocks, and the feed.
type deliveries struct {
	wake chan struct{} // has one element when there is something to take

	mu    sync.Mutex
	queue []delivery // guarded by mu
}

func newDeliveries() *deliveries { return &deliveries{wake: make(chan struct{}, 1)} }

func (q *deliveries) take() []delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.queue
	q.queue = nil
	return all
}

func (q *deliveries) receive(msg *nats.Msg) {
	d := delivery{subject: msg.Subject, data: msg.Data, header: msg.Header}
	if len(msg.Data) == 0 && headerGet(msg.Header, "Status") == "100" {
		d.control, d.reply = true, msg.Reply
		if stalled := headerGet(msg.Header, "Nats-Consumer-Stalled"); stalled != "" {
			d.reply = stalled
		}
		d.consumer, _ = strconv.ParseUint(headerGet(msg.Header, "Nats-Last-Consumer"), 10, 64)
	} else {
		md, err := msg.Metadata()
		if err != nil {
			return // not from the stream
		}
		d.seq, d.consumer, d.pending, d.time = md.Sequence.Stream, md.Sequence.Consumer, md.NumPending, md.Timestamp
	}
	q.mu.Lock()
	q.queue = append(q.queue, d)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}
