package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"toolhub/internal/mcp"
)

const testEpoch = 7

// echoServer serves the server "echo" in testEpoch on c.
func serve(t testing.TB, c *Conn, limit int, h Handler) *Service {
	t.Helper()
	s, err := c.Serve(ServeSubject("test", "echo", testEpoch), "", limit, h)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// toEcho is a call of it.
func toEcho(body []byte) *Request {
	return &Request{Subject: CallSubject("test", "echo", testEpoch, "tools/call"), Body: body, Worker: "w1"}
}

type outcome struct {
	reply Reply
	err   error
}

// async makes a call on a goroutine.
func async(ctx context.Context, c *Conn, r *Request, notify func([]byte)) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		reply, err := c.Call(ctx, r, notify)
		done <- outcome{reply, err}
	}()
	return done
}

func TestCallCarriesEverything(t *testing.T) {
	t.Parallel()
	_, caller, worker := pair(t, inProcess)
	deadline := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	got := make(chan *Incoming, 1)
	serve(t, worker, 0, func(ctx context.Context, in *Incoming) (Reply, error) {
		if d, ok := ctx.Deadline(); !ok || !d.Equal(deadline) {
			t.Errorf("the handler's deadline is %v, want %v", d, deadline)
		}
		got <- in
		return Reply{Body: response("hello")}, nil
	})
	r := toEcho(request(1))
	r.Meta = Meta{
		CallID: "c 1&", Deadline: deadline, Principal: "alice@例え.jp", ClientEra: mcp.EraLegacy, ToolSet: "ts", Taint: []string{"web", "mail"},
		Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Tracestate: "a=b",
	}
	reply, err := caller.Call(t.Context(), r, nil)
	if err != nil || string(reply.Body) != string(response("hello")) || reply.IsError {
		t.Fatalf("got %q, %v, %v", reply.Body, reply.IsError, err)
	}
	in := within(t, "the call", got)
	want := r.Meta
	want.Server, want.Method, want.Signed = "echo", "tools/call", true
	if fmt.Sprint(in.Meta) != fmt.Sprint(want) || !bytes.Equal(in.Body, r.Body) {
		t.Errorf("got %+v with %q, want %+v", in.Meta, in.Body, want)
	}
}

func TestNotificationsComeInOrderBeforeTheResult(t *testing.T) {
	t.Parallel()
	_, caller, worker := pair(t, inProcess)
	const n = 3000
	late := make(chan error, 1)
	serve(t, worker, 0, func(_ context.Context, in *Incoming) (Reply, error) {
		for i := range n {
			if err := in.Notify(fmt.Appendf(nil, `{"n":%d}`, i)); err != nil {
				return Reply{}, err
			}
		}
		go func() {
			for in.Notify([]byte(`{"late":true}`)) == nil { // until the handler has returned
			}
			late <- in.Notify([]byte(`{"late":true}`))
		}()
		return Reply{Body: response("done")}, nil
	})
	var seen int
	returned := false
	reply, err := caller.Call(t.Context(), toEcho(request(1)), func(body []byte) {
		if returned {
			t.Error("a notification came after the result")
		}
		if strings.Contains(string(body), "late") {
			return
		}
		if want := fmt.Sprintf(`{"n":%d}`, seen); string(body) != want {
			t.Errorf("got %s, want %s", body, want)
		}
		seen++
	})
	returned = true
	if err != nil || seen != n || !bytes.Equal(reply.Body, response("done")) {
		t.Fatalf("%d notifications, then %q, %v", seen, reply.Body, err)
	}
	if err := within(t, "the late notification", late); !errors.Is(err, errAnswered) {
		t.Errorf("Notify after the end: %v", err)
	}
}

func TestErrorsOfTheServerAndForeignReplies(t *testing.T) {
	t.Parallel()
	s, caller, _ := pair(t, inProcess)
	foreign := s.raw(t)
	reply := map[string]string{
		"result": `{"jsonrpc":"2.0","id":1,"result":{"text":"an \"error\" in words"}}`,
		"error":  `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no"}}`,
	}
	for kind, body := range reply {
		if _, err := foreign.Subscribe("foreign."+kind, func(m *nats.Msg) { _ = m.Respond([]byte(body)) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := foreign.Flush(); err != nil {
		t.Fatal(err)
	}
	for kind, body := range reply {
		got, err := caller.Call(t.Context(), &Request{Subject: "foreign." + kind, Body: request(1)}, nil)
		if err != nil || string(got.Body) != body || got.IsError != (kind == "error") {
			t.Errorf("%s: got %q, %v, %v", kind, got.Body, got.IsError, err)
		}
	}
}

// TestForeignCaller: `nats req` can call a tool, without any header.
func TestForeignCaller(t *testing.T) {
	t.Parallel()
	s, _, worker := pair(t, inProcess)
	serve(t, worker, 0, func(_ context.Context, in *Incoming) (Reply, error) {
		if in.Meta.CallID != "" || in.Meta.Principal != "" || in.Meta.Server != "echo" {
			t.Errorf("got %+v", in.Meta)
		}
		return Reply{Body: response("hi")}, nil
	})
	msg, err := s.raw(t).Request(CallSubject("test", "echo", testEpoch, "tools/call"), request(1), patience)
	if err != nil || !bytes.Equal(msg.Data, response("hi")) || len(msg.Header) > 0 {
		t.Fatalf("got %+v, %v", msg, err)
	}
}

func TestFaultsReachTheCaller(t *testing.T) {
	t.Parallel()
	var log logs
	s := startServer(t, inProcess)
	worker := s.connect(t, "w1", func(c *Config) { c.Logger = log.logger() })
	caller := s.connect(t, "router.r1", nil)
	var h atomic.Pointer[Handler]
	service := serve(t, worker, 0, func(ctx context.Context, in *Incoming) (Reply, error) { return (*h.Load())(ctx, in) })
	call := func(f Handler) (Reply, error) {
		h.Store(&f)
		return caller.Call(t.Context(), toEcho(request(1)), nil)
	}

	sent := &mcp.Fault{Kind: mcp.KindRateLimited, Reason: "slow_down", Message: "later", Retryable: true, RetryAfterMS: 1500}
	_, err := call(func(context.Context, *Incoming) (Reply, error) { return Reply{}, fmt.Errorf("wrapped: %w", sent) })
	f := wantFault(t, err, mcp.KindRateLimited, "slow_down")
	if f.Message != "later" || !f.Retryable || f.RetryAfterMS != 1500 || f.Server != "echo" || sent.Server != "" {
		t.Errorf("got %+v; the handler's own is %+v", f, sent)
	}

	reply, err := call(func(context.Context, *Incoming) (Reply, error) {
		return Reply{Body: []byte(`{"error":1}`), IsError: true}, nil
	})
	if err != nil || !reply.IsError || string(reply.Body) != `{"error":1}` {
		t.Errorf("got %q, %v, %v", reply.Body, reply.IsError, err)
	}

	const secret = "the password is hunter2"
	for what, handler := range map[string]Handler{
		"error": func(context.Context, *Incoming) (Reply, error) { return Reply{}, errors.New(secret) },
		"panic": func(context.Context, *Incoming) (Reply, error) { panic(secret) },
	} {
		_, err := call(handler)
		f := wantFault(t, err, mcp.KindTransport, "internal")
		id := f.Message[strings.LastIndexByte(f.Message, ' ')+1:]
		if strings.Contains(f.Message, "hunter2") {
			t.Errorf("%s: the caller is told the text of an internal error: %s", what, f.Message)
		}
		if text := log.String(); !strings.Contains(text, secret) || !strings.Contains(text, id) {
			t.Errorf("%s: the log has not both the text and the id %s:\n%s", what, id, text)
		}
	}
	if _, err := call(func(context.Context, *Incoming) (Reply, error) { return Reply{Body: response("alive")}, nil }); err != nil {
		t.Errorf("after a panic: %v", err)
	}
	eventually(t, "the calls end", func() bool { return service.Running() == 0 })
}

func TestNobodyServes(t *testing.T) {
	t.Parallel()
	_, caller, worker := pair(t, inProcess)
	serve(t, worker, 0, func(context.Context, *Incoming) (Reply, error) { return Reply{Body: response("")}, nil })
	began := time.Now()
	_, err := caller.Call(t.Context(), &Request{Subject: CallSubject("test", "echo", testEpoch+1, "tools/call"), Body: request(1)}, nil)
	f := wantFault(t, err, mcp.KindUnavailable, ReasonNoResponders)
	if f.Server != "echo" || !f.Retryable {
		t.Errorf("got %+v", f)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("took %v, should be known at once", took)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	_, caller, worker := pair(t, inProcess)
	started, ended := make(chan struct{}), make(chan error, 1)
	serve(t, worker, 0, func(ctx context.Context, in *Incoming) (Reply, error) {
		close(started)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return Reply{}, context.Cause(ctx)
	})
	for _, worker := range []string{"w1", ""} { // a caller may not know who serves
		started, ended = make(chan struct{}), make(chan error, 1)
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the client went away")
		r := toEcho(request(1))
		r.Worker = worker
		done := async(ctx, caller, r, nil)
		within(t, "the call", started)
		began := time.Now()
		cancel(why)
		if o := within(t, "the end of the call", done); !errors.Is(o.err, why) {
			t.Errorf("got %v, want the cause of ctx", o.err)
		}
		wantFault(t, within(t, "the cancellation", ended), mcp.KindUnavailable, mcp.ReasonCancelled)
		if took := time.Since(began); took > 100*time.Millisecond && !raceEnabled {
			t.Errorf("worker %q: the handler heard of it after %v", worker, took)
		}
	}
}

// TestEarlyCancel: a cancellation that overtakes its call ends it all the same.
func TestEarlyCancel(t *testing.T) {
	t.Parallel()
	s, caller, worker := pair(t, inProcess)
	serve(t, worker, 0, func(ctx context.Context, _ *Incoming) (Reply, error) {
		<-ctx.Done()
		return Reply{}, context.Cause(ctx)
	})
	nc := s.raw(t)
	if err := nc.Publish(CtlSubject("test", "w1", CtlCancel), []byte("early")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cancellation", func() bool {
		worker.running.mu.Lock()
		defer worker.running.mu.Unlock()
		_, ok := worker.running.early["early"]
		return ok
	})
	r := toEcho(request(1))
	r.Meta.CallID = "early"
	_, err := caller.Call(t.Context(), r, nil)
	wantFault(t, err, mcp.KindUnavailable, mcp.ReasonCancelled)
}

func TestDeadlinePassesOnBothSides(t *testing.T) {
	t.Parallel()
	_, caller, worker := pair(t, inProcess)
	ended := make(chan error, 1)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	serve(t, worker, 0, func(ctx context.Context, in *Incoming) (Reply, error) {
		<-ctx.Done()
		ended <- context.Cause(ctx)
		if in.Meta.Principal == "stubborn" {
			<-release
		}
		return Reply{}, context.Cause(ctx)
	})
	for _, principal := range []string{"", "stubborn"} {
		r := toEcho(request(1))
		r.Meta.Deadline, r.Meta.Principal = time.Now().Add(50*time.Millisecond), principal
		began := time.Now()
		_, err := caller.Call(t.Context(), r, nil)
		if f := wantFault(t, err, mcp.KindTimeout, "deadline"); f.Server != "echo" {
			t.Errorf("got %+v", f)
		}
		if took := time.Since(began); took < 48*time.Millisecond || took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		wantFault(t, within(t, "the handler's end", ended), mcp.KindTimeout, "deadline")
	}
}

func TestExpiredCallsAreNotRun(t *testing.T) {
	t.Parallel()
	s, caller, worker := pair(t, inProcess)
	service := serve(t, worker, 0, func(context.Context, *Incoming) (Reply, error) {
		t.Error("an expired call was run")
		return Reply{}, nil
	})
	r := toEcho(request(1))
	r.Meta.Deadline = time.Now().Add(-time.Second)
	_, err := caller.Call(t.Context(), r, nil)
	wantFault(t, err, mcp.KindTimeout, "expired")

	// One that expired on the way, as after a stall of the network.
	nc := s.raw(t)
	msg := &nats.Msg{Subject: r.Subject, Data: r.Body, Header: nats.Header{}}
	encodeMeta(msg.Header, &r.Meta, span{}, nil)
	answer, err := nc.RequestMsg(msg, patience)
	if err != nil {
		t.Fatal(err)
	}
	if kind, _, _, ok := decodeReply(headerGet(answer.Header, HeaderReply)); !ok || kind != kindFault {
		t.Fatalf("got %q with %s", answer.Header, answer.Data)
	}
	wantFault(t, decodeFault(answer.Data), mcp.KindTimeout, "expired")
	if m := service.microStats(); m.Requests != 1 || m.Errors != 1 {
		t.Errorf("the refusal is not counted: %+v", m)
	}
}

func TestRepeatedCallIDsAreRefused(t *testing.T) {
	t.Parallel()
	_, caller, worker := pair(t, inProcess)
	var runs atomic.Int32
	serve(t, worker, 0, func(context.Context, *Incoming) (Reply, error) {
		runs.Add(1)
		return Reply{Body: response("")}, nil
	})
	r := toEcho(request(1))
	r.Meta.CallID = "one"
	if _, err := caller.Call(t.Context(), r, nil); err != nil {
		t.Fatal(err)
	}
	_, err := caller.Call(t.Context(), r, nil)
	wantFault(t, err, mcp.KindInvalid, "duplicate_call")
	if n := runs.Load(); n != 1 {
		t.Errorf("the handler ran %d times", n)
	}
}

func TestLimitOfConcurrentCalls(t *testing.T) {
	t.Parallel()
	_, caller, worker := pair(t, inProcess)
	const limit = 3
	release := make(chan struct{})
	running := make(chan struct{}, limit)
	service := serve(t, worker, limit, func(context.Context, *Incoming) (Reply, error) {
		running <- struct{}{}
		<-release
		return Reply{Body: response("")}, nil
	})
	var calls []<-chan outcome
	for range limit {
		calls = append(calls, async(t.Context(), caller, toEcho(request(1)), nil))
		within(t, "a call", running)
	}
	_, err := caller.Call(t.Context(), toEcho(request(2)), nil)
	if f := wantFault(t, err, mcp.KindOverloaded, "call_limit"); !f.Retryable {
		t.Errorf("got %+v", f)
	}
	if n := service.Running(); n != limit {
		t.Errorf("%d calls run", n)
	}
	close(release)
	for _, c := range calls {
		if o := within(t, "a call", c); o.err != nil {
			t.Error(o.err)
		}
	}
	if _, err := caller.Call(t.Context(), toEcho(request(3)), nil); err != nil {
		t.Errorf("after the others have ended: %v", err)
	}
}

// TestGapInReplies: a reply that was lost is an error, never silence.
func TestGapInReplies(t *testing.T) {
	t.Parallel()
	s, caller, _ := pair(t, inProcess)
	nc := s.raw(t)
	replies := map[string][]string{
		"lost":     {"notify 0", "result 2"},
		"twice":    {"notify 0", "notify 0"},
		"first":    {"result 1"},
		"unknown":  {"strange 0"},
		"nonsense": {"result"},
		"part":     {"result 0 2/2 10"},
		"skipped":  {"result 0 1/3 6", "result 1 3/3 6"},
		"changed":  {"result 0 1/3 6", "result 1 2/4 6"},
		"longer":   {"result 0 1/2 2", "result 1 2/2 2"},
		"shorter":  {"result 0 1/2 100", "result 1 2/2 100"},
	}
	for name, headers := range replies {
		if _, err := nc.Subscribe("gap."+name, func(m *nats.Msg) {
			for _, h := range headers {
				_ = m.RespondMsg(&nats.Msg{Header: nats.Header{HeaderReply: {h}}, Data: []byte("12")})
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for name := range replies {
		_, err := caller.Call(t.Context(), &Request{Subject: "gap." + name, Body: request(1)}, nil)
		if f, ok := errors.AsType[*mcp.Fault](err); !ok || f.Kind != mcp.KindProtocol || f.Reason != "bus_gap" {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestManyCallsAtOnce: each gets its own answer.
func TestManyCallsAtOnce(t *testing.T) {
	t.Parallel()
	_, caller, worker := pair(t, inProcess)
	serve(t, worker, 0, func(_ context.Context, in *Incoming) (Reply, error) {
		if err := in.Notify(in.Body); err != nil {
			return Reply{}, err
		}
		return Reply{Body: in.Body}, nil
	})
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			for j := range 20 {
				body := request(1000*i + j)
				notes := 0
				reply, err := caller.Call(t.Context(), toEcho(body), func(b []byte) {
					if notes++; !bytes.Equal(b, body) {
						t.Errorf("the notification of another call: %s", b)
					}
				})
				if err != nil || notes != 1 || !bytes.Equal(reply.Body, body) {
					t.Errorf("got %q after %d notifications, %v", reply.Body, notes, err)
				}
			}
		})
	}
	wg.Wait()
	if n := len(caller.mux.waiting); n != 0 {
		t.Errorf("%d waiters are left", n)
	}
}

// TestSlowCallerLosesNotificationsNotTheResult: a caller that does not take its
// notifications is bounded, and nobody else waits for it.
func TestSlowCallerLosesNotificationsNotTheResult(t *testing.T) {
	t.Parallel()
	_, caller, worker := pair(t, inProcess)
	const extra = 500
	sent := make(chan struct{})
	serve(t, worker, 0, func(_ context.Context, in *Incoming) (Reply, error) {
		if in.Meta.Principal == "quick" {
			return Reply{Body: response("quick")}, nil
		}
		for range 1 + maxQueuedNotes + extra {
			if err := in.Notify([]byte(`{}`)); err != nil {
				return Reply{}, err
			}
		}
		close(sent)
		return Reply{Body: response("slow")}, nil
	})
	seen := 0
	reply, err := caller.Call(t.Context(), toEcho(request(1)), func([]byte) {
		if seen++; seen > 1 {
			return
		}
		within(t, "the notifications", sent)
		// The callback of the inbox goes on meanwhile: others are answered. Their
		// answer also comes behind all of the notifications.
		quick := toEcho(request(2))
		quick.Meta.Principal = "quick"
		if o := within(t, "another call", async(t.Context(), caller, quick, nil)); o.err != nil {
			t.Error(o.err)
		}
	})
	if err != nil || !bytes.Equal(reply.Body, response("slow")) {
		t.Fatalf("got %q, %v", reply.Body, err)
	}
	if dropped := int(caller.NotesDropped()); dropped == 0 || seen+dropped != 1+maxQueuedNotes+extra {
		t.Errorf("%d were seen and %d dropped of %d", seen, dropped, 1+maxQueuedNotes+extra)
	}
}

func TestServerLostMidCall(t *testing.T) {
	t.Parallel()
	s, caller, worker := pair(t, nil)
	started := make(chan struct{}, 1)
	ended := make(chan struct{})
	release := make(chan struct{})
	serve(t, worker, 0, func(_ context.Context, in *Incoming) (Reply, error) {
		if !bytes.Equal(in.Body, request(1)) {
			return Reply{Body: response("in time")}, nil
		}
		started <- struct{}{}
		<-release
		close(ended)
		return Reply{Body: response("too late")}, nil
	})
	done := async(t.Context(), caller, toEcho(request(1)), nil)
	within(t, "the call", started)
	s.stop()
	f := wantFault(t, within(t, "the end of the call", done).err, mcp.KindUnavailable, mcp.ReasonOutcomeUnknown)
	if f.Server != "echo" || f.Retryable {
		t.Errorf("got %+v", f)
	}
	eventually(t, "the caller sees that it is cut off", func() bool { return !caller.Connected() })
	began := time.Now()
	_, err := caller.Call(t.Context(), toEcho(request(2)), nil)
	wantFault(t, err, mcp.KindUnavailable, ReasonDisconnected)
	if took := time.Since(began); took > time.Second {
		t.Errorf("a call without a connection took %v", took)
	}
	close(release)
	within(t, "the handler's end", ended)

	s.start()
	eventually(t, "all is well again", func() bool { return caller.Connected() && worker.Connected() })
	eventually(t, "calls work again", func() bool {
		reply, err := caller.Call(t.Context(), toEcho(request(3)), nil)
		return err == nil && bytes.Equal(reply.Body, response("in time"))
	})
}

func TestAbandon(t *testing.T) {
	t.Parallel()
	_, caller, worker := pair(t, inProcess)
	started := make(chan struct{}, 3)
	serve(t, worker, 0, func(ctx context.Context, _ *Incoming) (Reply, error) {
		started <- struct{}{}
		<-ctx.Done()
		return Reply{}, context.Cause(ctx)
	})
	mine := async(t.Context(), caller, toEcho(request(1)), nil)
	within(t, "the call", started)
	other := toEcho(request(2))
	other.Worker = "w2"
	theirs := async(t.Context(), caller, other, nil)
	within(t, "the call", started)
	caller.Abandon("w1")
	wantFault(t, within(t, "the end of the call", mine).err, mcp.KindUnavailable, mcp.ReasonOutcomeUnknown)
	select {
	case o := <-theirs:
		t.Fatalf("the call of another worker ended too: %v", o.err)
	default:
	}
	caller.AbandonEpoch("echo", testEpoch+1, "w2")
	caller.AbandonEpoch("ech", testEpoch, "w2")
	select {
	case o := <-theirs:
		t.Fatalf("the call of another epoch ended too: %v", o.err)
	default:
	}
	caller.AbandonEpoch("echo", testEpoch, "w2")
	wantFault(t, within(t, "the end of the call", theirs).err, mcp.KindUnavailable, mcp.ReasonOutcomeUnknown)
}

func TestQueueGroupSharesCalls(t *testing.T) {
	t.Parallel()
	s, caller, w1 := pair(t, inProcess)
	w2 := s.connect(t, "w2", nil)
	var counts [2]atomic.Int32
	for i, w := range []*Conn{w1, w2} {
		if _, err := w.Serve(ServeSubject("test", "echo", AnyEpoch), "q", 0, func(context.Context, *Incoming) (Reply, error) {
			counts[i].Add(1)
			return Reply{Body: response("")}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	const n = 200
	for i := range n {
		if _, err := caller.Call(t.Context(), &Request{Subject: CallSubject("test", "echo", AnyEpoch, "tools/call"), Body: request(i)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := counts[0].Load(), counts[1].Load(); a == 0 || b == 0 || a+b != n {
		t.Errorf("%d and %d calls, want all of %d, once each", a, b, n)
	}
}

func TestPermissionRefusalIsAFaultAtOnce(t *testing.T) {
	t.Parallel()
	s := startServer(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "x"},
			{Username: "some", Password: "x", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"toolhub.*.call.>", "$KV.>"}}}},
		}
	})
	as := func(user string) func(*Config) {
		return func(c *Config) { c.URL = strings.Replace(c.URL, "//", "//"+user+":x@", 1) }
	}
	s.connect(t, "w1", as("all"))
	c := s.connect(t, "router.r1", as("some"))
	began := time.Now()
	_, err := c.Call(t.Context(), toEcho(request(1)), nil)
	wantFault(t, err, mcp.KindTransport, "not_permitted")
	if _, err := c.Put(t.Context(), BucketReg, "a", nil, PutOptions{}); !errors.Is(err, ErrNotPermitted) {
		t.Errorf("Put: %v", err)
	}
	if took := time.Since(began); took > apiTimeout {
		t.Errorf("took %v, should be known at once", took)
	}
}

// TestFaultsNameTheCall: who does not know what became of a call can look for it
// in the events, whoever made its id (T7, T8).
func TestFaultsNameTheCall(t *testing.T) {
	t.Parallel()
	s, caller, worker := pair(t, nil)
	ids := make(chan string, 1)
	serve(t, worker, 0, func(ctx context.Context, in *Incoming) (Reply, error) {
		ids <- in.Meta.CallID
		if in.Meta.Principal == "fails" {
			return Reply{}, mcp.NewFault(mcp.KindDenied, "policy", "no")
		}
		<-ctx.Done()
		return Reply{}, context.Cause(ctx)
	})
	call := func(principal, id string, deadline time.Time) <-chan outcome {
		r := toEcho(request(1))
		r.Meta = Meta{CallID: id, Principal: principal, Deadline: deadline}
		return async(t.Context(), caller, r, nil)
	}
	check := func(what string, done <-chan outcome, kind mcp.Kind, reason, id string) {
		t.Helper()
		if f := wantFault(t, within(t, what, done).err, kind, reason); f.CallID != id || id == "" {
			t.Errorf("%s: the fault names the call %q, want %q", what, f.CallID, id)
		}
	}
	done := call("fails", "mine", time.Time{})
	check("a denied call", done, mcp.KindDenied, "policy", within(t, "the call", ids))
	done = call("fails", "", time.Time{})
	check("a denied call without an id", done, mcp.KindDenied, "policy", within(t, "the call", ids))
	done = call("", "", time.Now().Add(50*time.Millisecond))
	check("a call that takes too long", done, mcp.KindTimeout, "deadline", within(t, "the call", ids))
	done = call("", "", time.Time{})
	id := within(t, "the call", ids)
	s.stop()
	check("a call whose answer is lost", done, mcp.KindUnavailable, mcp.ReasonOutcomeUnknown, id)
	eventually(t, "the loss is seen", func() bool { return !caller.Connected() })
	if f := wantFault(t, within(t, "the end", call("", "mine", time.Time{})).err, mcp.KindUnavailable, ReasonDisconnected); f.CallID != "" {
		t.Errorf("a call that was never sent is named %q", f.CallID)
	}
	s.start()
	eventually(t, "all are back", func() bool { return caller.Connected() && worker.Connected() })
	r := &Request{Subject: CallSubject("test", "nobody", testEpoch, "tools/call"), Body: request(1), Meta: Meta{CallID: "mine"}}
	_, err := caller.Call(t.Context(), r, nil)
	if f := wantFault(t, err, mcp.KindUnavailable, ReasonNoResponders); f.CallID != "" {
		t.Errorf("a call that nobody got is named %q", f.CallID)
	}
}
