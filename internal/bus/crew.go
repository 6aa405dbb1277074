package bus

import (
	"context"
	"sync/atomic"
)

// maxIdle bounds the goroutines that wait for calls.
const maxIdle = 64

// crew runs calls, each on a goroutine of its own that is used again for a later
// one: growing the stack of a new goroutine anew with every call costs as much as
// the bus itself.
type crew struct {
	conn *Conn
	work chan job // without a buffer: a job is taken only by one who waits for it
	idle atomic.Int64
}

type job struct {
	in  *Incoming
	ctx context.Context
}

func newCrew(c *Conn) *crew { return &crew{conn: c, work: make(chan job)} }

// run never blocks. The service of the call waits for its end.
func (c *crew) run(ctx context.Context, in *Incoming) {
	j := job{in, ctx}
	select {
	case c.work <- j:
		return
	default:
	}
	if !c.conn.spawn(func() { c.member(j) }) { // the Conn is closing, and nobody is kept any more
		go in.run(ctx)
	}
}

func (c *crew) member(j job) {
	for {
		j.in.run(j.ctx)
		j = job{}
		if c.idle.Add(1) > maxIdle {
			c.idle.Add(-1)
			return
		}
		select {
		case j = <-c.work:
			c.idle.Add(-1)
		case <-c.conn.closing:
			return
		}
	}
}
