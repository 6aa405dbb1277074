package bus

import (
	"hash/maphash"
	"sync"

	"github.com/nats-io/nats.go"
)

const maxEarly = 256

// runningCalls are the calls that can be cancelled.
type runningCalls struct {
	mu   sync.Mutex
	byID map[string]*Incoming // guarded by mu
	// early are the last ids that were to be cancelled and did not run: a
	// cancellation may overtake its call between two subscriptions. Guarded by mu.
	early map[string]struct{}
	ring  [maxEarly]string // guarded by mu; the ids in early, oldest at next
	next  int              // guarded by mu
}

// add registers a call and reports whether it was cancelled before.
func (r *runningCalls) add(in *Incoming) (cancelled bool) {
	id := in.Meta.CallID
	if id == "" {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID == nil {
		r.byID = make(map[string]*Incoming)
	}
	r.byID[id] = in
	_, cancelled = r.early[id]
	return cancelled
}

func (r *runningCalls) remove(in *Incoming) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID[in.Meta.CallID] == in {
		delete(r.byID, in.Meta.CallID)
	}
}

// cancelCall is the callback of the subject that cancellations come by.
func (c *Conn) cancelCall(msg *nats.Msg) {
	id := string(msg.Data)
	r := &c.running
	r.mu.Lock()
	in := r.byID[id]
	if in == nil && id != "" {
		if r.early == nil {
			r.early = make(map[string]struct{}, maxEarly)
		}
		delete(r.early, r.ring[r.next])
		r.early[id] = struct{}{}
		r.ring[r.next] = id
		r.next = (r.next + 1) % maxEarly
	}
	r.mu.Unlock()
	if in != nil {
		in.cancel(cancelled)
	}
}

// maxRecent is how many calls recentCalls remembers.
const maxRecent = 1 << 16

// recentCalls remembers which call ids were taken. It keeps hashes: with 64 bits,
// a call is refused by mistake once in 2^48 calls.
type recentCalls struct {
	mu    sync.Mutex
	seed  maphash.Seed      // guarded by mu
	reply map[uint64]uint64 // guarded by mu; id → where its answer goes
	ring  []uint64          // guarded by mu; ids, oldest at next
	next  int               // guarded by mu
}

// add remembers a call. known says that its id was taken before, same that it
// even has the same reply subject.
func (r *recentCalls) add(id, reply string) (known, same bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reply == nil {
		r.seed = maphash.MakeSeed()
		r.reply = make(map[uint64]uint64)
	}
	hid, hreply := maphash.String(r.seed, id), maphash.String(r.seed, reply)
	if old, ok := r.reply[hid]; ok {
		return true, old == hreply
	}
	r.reply[hid] = hreply
	if len(r.ring) < maxRecent {
		r.ring = append(r.ring, hid)
		return false, false
	}
	delete(r.reply, r.ring[r.next])
	r.ring[r.next] = hid
	r.next = (r.next + 1) % maxRecent
	return false, false
}
