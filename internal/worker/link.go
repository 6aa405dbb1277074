package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// link is one live connection to a server, with the process behind it if that
// is ours. The goroutine of its [replica] owns it; calls borrow it.
type link struct {
	conn mcp.Conn
	peer peer // nil: the server is not ours to run
	// secrets are blotted out in the errors of conn and in what peer wrote.
	secrets *redactor
	// busy counts the calls in flight.
	busy atomic.Int64
	// slot is that of its [replica].
	slot int
	// suspect has a token when a call failed in a way that makes one ask whether
	// the server is still there.
	suspect chan struct{}
}

func newLink(conn mcp.Conn, p peer) *link {
	return &link{conn: conn, peer: p, suspect: make(chan struct{}, 1)}
}

// dialer makes one connection to a server. ctx bounds the making only. An error
// that trying again cannot mend is wrapped with backoff.Permanent.
type dialer func(ctx context.Context, era mcp.EraChoice, tell news) (*link, error)

// news is what a [dialer] tells, from any goroutine.
type news struct {
	// started is told of a process before there is a connection to it.
	started         func(peer)
	listChanged     func(kindSet)
	resourceUpdated func(uri string)
	taskChanged     func(params jsontext.Value)
}

func (l *link) era() mcp.Era { return l.conn.Info().Era }

// stderr is the last lines that the process wrote there, nil if there is none.
func (l *link) stderr() []string {
	if l.peer == nil {
		return nil
	}
	return l.peer.stderr()
}

// peerDone is closed when the process is gone; it is nil without one.
func (l *link) peerDone() <-chan struct{} {
	if l.peer == nil {
		return nil
	}
	return l.peer.done()
}

// call makes a call that counts as in flight.
func (l *link) call(ctx context.Context, request *mcp.Call) (jsontext.Value, error) {
	l.busy.Add(1)
	defer l.busy.Add(-1)
	value, err := l.conn.Call(ctx, request)
	if err != nil && ctx.Err() == nil && (mcp.IsKind(err, mcp.KindTransport) || mcp.IsKind(err, mcp.KindUnavailable)) {
		select {
		case l.suspect <- struct{}{}:
		default:
		}
	}
	return value, err
}

// close ends the connection and the process. Calls in flight fail at once. The
// end of ctx cuts all waiting short, and then the process is killed.
func (l *link) close(ctx context.Context) {
	if l.peer == nil {
		ctx, cancel := context.WithTimeout(ctx, closeTimeout)
		defer cancel()
		_ = l.conn.Close(ctx)
		return
	}
	// Side by side: closing the connection may wait for the process to end.
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		ctx, cancel := context.WithTimeout(ctx, stdinGrace+termGrace)
		defer cancel()
		_ = l.conn.Close(ctx)
	}()
	l.peer.stop(ctx)
	<-closed
}

// closeTimeout bounds the farewell to a server that is reached by URL.
const closeTimeout = 2 * time.Second

// lostReason says why the link, which is of no use any more, was lost: the end
// of the process, if that is what it was, else the connection's own reason.
func (l *link) lostReason(reason string) error {
	if err := l.conn.Err(); err != nil {
		reason = err.Error()
	}
	if l.peer == nil {
		return errors.New(reason)
	}
	select {
	case <-l.peer.done():
		return newExitError(l.peer.exitErr(), l.peer)
	case <-time.After(exitNews):
		return newExitError(errors.New(reason), l.peer)
	}
}

// exitNews is how long the news of a process's end may come after the end of
// its output.
const exitNews = 500 * time.Millisecond

// exitError is why a process of ours is of no use, with what it wrote last.
type exitError struct {
	reason error
	stderr []string
}

func newExitError(reason error, p peer) *exitError {
	return &exitError{reason: reason, stderr: p.stderr()}
}

// Error has the last line of stderr, which mostly tells what is wrong.
func (e *exitError) Error() string {
	for _, line := range slices.Backward(e.stderr) {
		if line = strings.TrimSpace(line); line != "" {
			return fmt.Sprintf("%v; it last wrote: %s", e.reason, line)
		}
	}
	return e.reason.Error()
}

func (e *exitError) Unwrap() error { return e.reason }

// probe asks the server, in its own era, whether it is there. An error that the
// server answers with is an answer.
func (l *link) probe(ctx context.Context, timeout time.Duration) (time.Duration, error) {
	call := &mcp.Call{Method: mcp.MethodPing, Timeout: timeout}
	if l.era() == mcp.EraModern {
		call.Method = mcp.MethodDiscover
	}
	start := time.Now()
	_, err := l.conn.Call(ctx, call)
	if _, answered := err.(*mcp.Error); answered {
		err = nil
	}
	return time.Since(start), err
}
