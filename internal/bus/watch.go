package bus

import (
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Watch follows the keys of a bucket that match filter (">" for all; several
// filters are separated by spaces) until ctx ends, and returns ctx's cause. It
// survives the loss of the connection, of the server and of the bucket itself.
//
// apply gets the changes in order, coalesced: at most one entry per key, the
// newest. A key that went is delivered with Deleted set, even if it went unseen.
// state(true, …) says that the view built from the batches is complete and
// current, state(false, reason) that it may be stale from now on. Both run on
// the caller's goroutine; state may be nil.
func (c *Conn) Watch(ctx context.Context, bucket, filter string, apply func(batch []Entry), state func(live bool, reason string)) error {
	f, err := c.watcher(bucket, filter, apply, state)
	if err != nil {
		return fmt.Errorf("couldn't watch: %w", err)
	}
	return f.run(ctx)
}

func (c *Conn) watcher(bucket, filter string, apply func([]Entry), state func(bool, string)) (*feed, error) {
	b, err := c.bucket(bucket)
	if err != nil {
		return nil, err
	}
	filters := strings.Fields(filter)
	if len(filters) == 0 {
		return nil, fmt.Errorf("the filter of %s is empty, use %q for all keys", bucket, ">")
	}
	for i, f := range filters {
		filters[i] = b.subject(f)
	}
	if state == nil {
		state = func(bool, string) {}
	}
	v := &view{prefix: b.subject(""), have: make(map[string]uint64), apply: apply}
	return &feed{
		conn: c, link: c.control, js: c.js, stream: "KV_" + b.name, subjects: filters,
		start: func(cfg *jetstream.ConsumerConfig, _ *jetstream.StreamInfo) {
			cfg.DeliverPolicy = jetstream.DeliverLastPerSubjectPolicy
		},
		restart: v.restart, apply: v.take, state: state, oldest: v.oldest,
	}, nil
}

// view is what a watcher has delivered, as far as it needs that to tell what
// changed and what went.
type view struct {
	prefix string
	apply  func([]Entry)
	have   map[string]uint64 // key → revision delivered
	// seen are the keys of a complete delivery that is under way, nil otherwise.
	// The batches of it are held back, so that the view changes at once.
	seen map[string]struct{}
	held []delivery
}

// restart begins a complete delivery, after which keys that it had not are gone.
func (v *view) restart(fresh bool) {
	v.seen = make(map[string]struct{})
	v.held = nil
	if fresh { // a revision may be used again for something else
		for k := range v.have {
			v.have[k] = 0
		}
	}
}

// oldest is the least revision of the keys delivered, 0 if there is none.
func (v *view) oldest() uint64 {
	var least uint64
	for _, rev := range v.have {
		if least == 0 || rev < least {
			least = rev
		}
	}
	return least
}

func (v *view) take(batch []delivery, caughtUp bool) {
	if v.seen != nil {
		v.held = append(v.held, batch...)
		if !caughtUp {
			return
		}
		batch = v.held
	}
	newest := make(map[string]int, len(batch))
	for i, d := range batch {
		newest[d.subject] = i
	}
	out := make([]Entry, 0, len(newest))
	for i, d := range batch {
		if newest[d.subject] != i {
			continue
		}
		e := entryOf(strings.TrimPrefix(d.subject, v.prefix), d.data, d.header, d.seq, d.time)
		if v.seen != nil {
			v.seen[e.Key] = struct{}{}
		}
		rev, had := v.have[e.Key]
		switch {
		case e.Deleted && !had, had && rev == e.Rev:
			continue
		case e.Deleted:
			delete(v.have, e.Key)
		default:
			v.have[e.Key] = e.Rev
		}
		out = append(out, e)
	}
	if v.seen != nil {
		for k := range v.have {
			if _, ok := v.seen[k]; !ok {
				delete(v.have, k)
				out = append(out, Entry{Key: k, Deleted: true})
			}
		}
		v.seen, v.held = nil, nil
	}
	if len(out) > 0 {
		v.apply(out)
	}
}
