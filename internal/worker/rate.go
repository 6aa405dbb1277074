package worker

import (
	"sync"
	"time"
)

// rates counts the calls of one server by tool and principal, for policies whose
// conditions look at the rate (P2). The zero value is ready.
type rates struct {
	mu      sync.Mutex
	start   time.Time // of second 0
	windows map[rateKey]*rateWindow
	// rest counts all those that there was no room for together: better too many
	// than too few, or whoever has many names could call without being counted.
	rest  rateWindow
	swept int64 // the second in which windows were last looked through
}

type rateKey struct{ tool, principal string }

const (
	// maxRates bounds the windows of one server, of some 300 bytes each.
	maxRates = 4096
	// rateSlots is a minute in seconds, and the one that has begun.
	rateSlots = 61
)

// count counts a call and returns how many there were in the last minute, this
// one included: to within a second, and never too few.
func (r *rates) count(tool, principal string, now time.Time) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.windows == nil {
		r.start, r.windows = now, make(map[rateKey]*rateWindow)
	}
	second := int64(now.Sub(r.start) / time.Second)
	key := rateKey{tool, principal}
	w := r.windows[key]
	if w == nil && len(r.windows) >= maxRates && second > r.swept {
		r.swept = second
		for k, w := range r.windows {
			if second-w.newest >= rateSlots {
				delete(r.windows, k)
			}
		}
	}
	switch {
	case w != nil:
	case len(r.windows) >= maxRates:
		w = &r.rest
	default:
		w = &rateWindow{newest: second}
		r.windows[key] = w
	}
	return w.add(second)
}

// rateWindow counts by second.
type rateWindow struct {
	slots  [rateSlots]uint32 // by second modulo their number
	newest int64             // the second of the last call
	total  int64             // of all slots
}

func (w *rateWindow) add(second int64) int64 {
	for gone := min(second-w.newest, rateSlots); gone > 0; gone-- {
		slot := &w.slots[(w.newest+gone)%rateSlots]
		w.total -= int64(*slot)
		*slot = 0
	}
	w.newest = max(w.newest, second)
	w.slots[w.newest%rateSlots]++
	w.total++
	return w.total
}
