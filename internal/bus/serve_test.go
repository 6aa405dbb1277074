package bus

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"toolhub/internal/mcp"
)

func TestDrainLetsRunningCallsFinish(t *testing.T) {
	t.Parallel()
	_, caller, worker := pair(t, inProcess)
	started, release := make(chan struct{}), make(chan struct{})
	service := serve(t, worker, 0, func(ctx context.Context, _ *Incoming) (Reply, error) {
		close(started)
		select {
		case <-release:
		case <-ctx.Done():
			return Reply{}, context.Cause(ctx)
		}
		return Reply{Body: response("finished")}, nil
	})
	done := async(t.Context(), caller, toEcho(request(1)), nil)
	within(t, "the call", started)
	drained := make(chan error, 1)
	go func() { drained <- service.Drain(t.Context()) }()
	eventually(t, "new calls find nobody", func() bool {
		_, err := caller.Call(t.Context(), toEcho(request(2)), nil)
		f, ok := errors.AsType[*mcp.Fault](err)
		return ok && f.Reason == ReasonNoResponders
	})
	select {
	case err := <-drained:
		t.Fatalf("Drain returned %v while a call runs", err)
	case o := <-done:
		t.Fatalf("the running call ended: %v", o.err)
	default:
	}
	close(release)
	if o := within(t, "the running call", done); o.err != nil || string(o.reply.Body) != string(response("finished")) {
		t.Errorf("got %q, %v", o.reply.Body, o.err)
	}
	if err := within(t, "Drain", drained); err != nil {
		t.Error(err)
	}
	if n := len(worker.endpoints()); n != 0 {
		t.Errorf("%d services are still known", n)
	}
	service.Stop() // is no harm after it
}

func TestDrainIsBounded(t *testing.T) {
	t.Parallel()
	_, caller, worker := pair(t, inProcess)
	started := make(chan struct{})
	service := serve(t, worker, 0, func(ctx context.Context, _ *Incoming) (Reply, error) {
		close(started)
		<-ctx.Done()
		return Reply{}, context.Cause(ctx)
	})
	done := async(t.Context(), caller, toEcho(request(1)), nil)
	within(t, "the call", started)
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	if err := service.Drain(ctx); !errors.Is(err, enough) {
		t.Errorf("Drain: %v", err)
	}
	service.Stop()
	wantFault(t, within(t, "the call", done).err, mcp.KindUnavailable, "stopping")
	_, err := caller.Call(t.Context(), toEcho(request(2)), nil)
	wantFault(t, err, mcp.KindUnavailable, ReasonNoResponders)
}

// TestDrainUnderLoad: no call that a drained service has taken fails, and none
// is lost without a word.
func TestDrainUnderLoad(t *testing.T) {
	t.Parallel()
	_, caller, worker := pair(t, inProcess)
	service := serve(t, worker, 0, func(context.Context, *Incoming) (Reply, error) { return Reply{Body: response("")}, nil })
	results := make(chan error, 8)
	for range cap(results) {
		go func() {
			for {
				if _, err := caller.Call(t.Context(), toEcho(request(1)), nil); err != nil {
					results <- err
					return
				}
			}
		}()
	}
	eventually(t, "calls", func() bool { return service.microStats().Requests > 100 })
	if err := service.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range cap(results) {
		wantFault(t, within(t, "a caller", results), mcp.KindUnavailable, ReasonNoResponders)
	}
}

func TestCloseCancelsCallsAndRefusesWork(t *testing.T) {
	t.Parallel()
	_, caller, worker := pair(t, inProcess)
	started := make(chan struct{})
	serve(t, worker, 0, func(ctx context.Context, _ *Incoming) (Reply, error) {
		close(started)
		<-ctx.Done()
		return Reply{}, context.Cause(ctx)
	})
	done := async(t.Context(), caller, toEcho(request(1)), nil)
	within(t, "the call", started)
	worker.Close()
	wantFault(t, within(t, "the call", done).err, mcp.KindUnavailable, "stopping")

	if _, err := worker.Serve("late", "", 0, nil); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("Serve: %v", err)
	}
	_, err := worker.Call(t.Context(), toEcho(request(1)), nil)
	wantFault(t, err, mcp.KindUnavailable, ReasonDisconnected)
	if _, err := worker.Put(t.Context(), BucketReg, "a", nil, PutOptions{}); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("Put: %v", err)
	}
	if err := worker.Watch(t.Context(), BucketReg, ">", func([]Entry) {}, nil); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("Watch: %v", err)
	}
	worker.Emit(Event{Kind: "a", Subject: "b", What: "c"})
	if n := worker.EventsDropped(); n != 1 {
		t.Errorf("%d events count as dropped", n)
	}
	if _, err := worker.AcquireLease(t.Context(), "w", "1", nil, time.Second); err == nil {
		t.Error("a lease was acquired")
	}
	worker.Close()
}

func TestCallerClosesMidCall(t *testing.T) {
	t.Parallel()
	_, caller, worker := pair(t, inProcess)
	started, release := make(chan struct{}), make(chan struct{})
	serve(t, worker, 0, func(context.Context, *Incoming) (Reply, error) {
		close(started)
		<-release
		return Reply{}, nil
	})
	done := async(t.Context(), caller, toEcho(request(1)), nil)
	within(t, "the call", started)
	caller.Close()
	wantFault(t, within(t, "the call", done).err, mcp.KindUnavailable, mcp.ReasonOutcomeUnknown)
	close(release)
}

// TestReplyWaitsForTheConnection: a worker that is cut off for a moment while a
// call runs still answers it: the caller, who is not cut off, is waiting.
func TestReplyWaitsForTheConnection(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	p := startProxy(t, s)
	caller := s.connect(t, "router.r1", nil)
	worker := s.connect(t, "w1", func(c *Config) { c.URL = p.url() })
	started, release := make(chan struct{}), make(chan struct{})
	serve(t, worker, 0, func(ctx context.Context, _ *Incoming) (Reply, error) {
		close(started)
		<-release
		return Reply{Body: response("late")}, ctx.Err()
	})
	done := async(t.Context(), caller, toEcho(request(1)), nil)
	within(t, "the call", started)
	p.cut()
	eventually(t, "the loss is seen", func() bool { return !worker.calls.nc.IsConnected() })
	close(release)
	if o := within(t, "the reply", done); o.err != nil || string(o.reply.Body) != string(response("late")) {
		t.Errorf("got %q, %v", o.reply.Body, o.err)
	}
}

// TestStopWithoutAConnection: a process that is cut off can end all the same.
func TestStopWithoutAConnection(t *testing.T) {
	t.Parallel()
	s, caller, worker := pair(t, nil)
	started, ended := make(chan struct{}), make(chan error, 1)
	service := serve(t, worker, 0, func(ctx context.Context, _ *Incoming) (Reply, error) {
		close(started)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return Reply{}, context.Cause(ctx)
	})
	done := async(t.Context(), caller, toEcho(request(1)), nil)
	within(t, "the call", started)
	s.stop()
	wantFault(t, within(t, "the call", done).err, mcp.KindUnavailable, mcp.ReasonOutcomeUnknown)
	eventually(t, "the loss is seen", func() bool { return !worker.Connected() })
	began := time.Now()
	service.Stop()
	wantFault(t, within(t, "the handler's end", ended), mcp.KindUnavailable, "stopping")
	worker.Close()
	if took := time.Since(began); took > 2*unsubscribeTimeout {
		t.Errorf("it took %v to stop", took)
	}
}
