package router

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// runningRouter is a whole router with its endpoint.
type runningRouter struct {
	*testHub
	url  string
	stop context.CancelCauseFunc
	done chan error
}

var errStop = errors.New("asked to stop")

func newRunningRouter(t *testing.T, yaml string) *runningRouter {
	t.Helper()
	h := newIdleHub(t, yaml)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(Config{Conn: h.conn, Identity: h.conn.Identity(), Listener: l})
	if err != nil {
		t.Fatal(err)
	}
	h.engine = r.engine
	run := &runningRouter{testHub: h, url: "http://" + l.Addr().String(), done: make(chan error, 1)}
	var ctx context.Context
	ctx, run.stop = context.WithCancelCause(context.Background())
	go func() {
		run.done <- r.Run(ctx)
		close(run.done)
	}()
	t.Cleanup(func() {
		run.stop(errStop)
		<-run.done
	})
	return run
}

// post makes a modern tools/call on a connection of its own.
func (r *runningRouter) post(name string) (string, error) {
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + name + `","arguments":{},"_meta":{"` +
		mcp.MetaProtocolVersion + `":"2026-07-28","` + mcp.MetaClientCapabilities + `":{}}}}`
	req, err := http.NewRequestWithContext(r.ctx(), http.MethodPost, r.url+"/mcp", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header = http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		mcp.HeaderVersion: {"2026-07-28"}, mcp.HeaderMethod: {"tools/call"}, mcp.HeaderName: {name},
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return string(answer), err
}

// refused waits until the endpoint takes no more connections.
func (r *runningRouter) refused() {
	r.t.Helper()
	timeout := time.After(patience)
	for {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			return
		}
		c.Close()
		select {
		case <-timeout:
			r.t.Fatal("connections are still taken")
		case <-time.After(time.Millisecond):
		}
	}
}

// A router that is asked to stop lets running calls finish and takes no new ones.
func TestDrainOfCalls(t *testing.T) {
	t.Parallel()
	r := newRunningRouter(t, oneServer)
	release := make(chan struct{})
	s := r.start("a", func(ctx context.Context, in *bus.Incoming) (bus.Reply, error) {
		select {
		case <-release:
			return echo(ctx, in)
		case <-ctx.Done():
			return bus.Reply{}, context.Cause(ctx)
		}
	}, "t")
	type outcome struct {
		answer string
		err    error
	}
	running, operator := make(chan outcome, 1), make(chan outcome, 1)
	go func() {
		a, err := r.post("a__t")
		running <- outcome{a, err}
	}()
	<-s.calls
	go func() {
		a, err := r.ask(r.ctx(), "tools.call", `{"name":"a__t"}`, nil)
		operator <- outcome{string(a), err}
	}()
	<-s.calls
	r.stop(errStop)
	r.refused()
	select {
	case err := <-r.done:
		t.Fatalf("Run ended before the running calls: %v", err)
	default:
	}
	close(release)
	if got := <-running; got.err != nil || !strings.Contains(got.answer, `"echo"`) {
		t.Errorf("the running call: %+v", got)
	}
	if got := <-operator; got.err != nil || !strings.Contains(got.answer, `"echo"`) {
		t.Errorf("the operator's running call: %+v", got)
	}
	if err := <-r.done; !errors.Is(err, errStop) {
		t.Errorf("Run: %v, want the reason why it was asked to stop", err)
	}
	if _, err := r.ask(r.ctx(), "servers.list", `{}`, nil); !mcp.IsKind(err, mcp.KindUnavailable) {
		t.Errorf("an operator's request afterwards: %v", err)
	}
}

// Calls that do not finish within drain_timeout are cancelled.
func TestDrainCancels(t *testing.T) {
	t.Parallel()
	r := newRunningRouter(t, "policy: allow_all\ndrain_timeout: 100ms\nservers:\n  a: {builtin: clock}\n")
	cancelled := make(chan struct{})
	s := r.start("a", func(ctx context.Context, _ *bus.Incoming) (bus.Reply, error) {
		<-ctx.Done()
		close(cancelled)
		return bus.Reply{}, context.Cause(ctx)
	}, "t")
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		_, _ = r.post("a__t") // whatever it gets, it gets it now
	}()
	<-s.calls
	start := time.Now()
	r.stop(errStop)
	<-r.done
	if took := time.Since(start); took < 100*time.Millisecond || took > 5*time.Second {
		t.Errorf("the drain took %v", took)
	}
	<-cancelled
	<-answered
}

func TestRouterConfig(t *testing.T) {
	t.Parallel()
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "conn") {
		t.Errorf("without a connection: %v", err)
	}
	h := newIdleHub(t, oneServer)
	if _, err := New(Config{Conn: h.conn, Identity: "other"}); err == nil || !strings.Contains(err.Error(), "identity") {
		t.Errorf("with another identity: %v", err)
	}
}

// An endpoint that cannot be served ends Run with the reason.
func TestListenerFails(t *testing.T) {
	t.Parallel()
	h := newIdleHub(t, oneServer)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(Config{Conn: h.conn, Listener: l})
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := r.Run(h.ctx()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Run: %v", err)
	}
}

// `nats micro` sees the router.
func TestAdvertised(t *testing.T) {
	t.Parallel()
	r := newRunningRouter(t, oneServer)
	r.start("a", echo, "t")
	key, err := nats.NkeyOptionFromSeed(r.nats.AdminNKeyFile())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(r.nats.URL(), key)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ctx := r.ctx()
	msg, err := nc.RequestWithContext(ctx, "$SRV.INFO.toolhub-router", nil)
	for errors.Is(err, nats.ErrNoResponders) && ctx.Err() == nil { // it serves calls a moment earlier
		msg, err = nc.RequestWithContext(ctx, "$SRV.INFO.toolhub-router", nil)
	}
	if err != nil || !strings.Contains(string(msg.Data), bus.ServeAPISubject("test")) {
		t.Errorf("%v, %v", msg, err)
	}
}

// A router without anything to know waits for nobody: it serves an empty list.
func TestUnconfiguredHub(t *testing.T) {
	t.Parallel()
	h := newIdleHub(t, "policy: allow_all\nservers: {}\n")
	if err := h.worker.Delete(h.ctx(), bus.BucketDefs, bus.Key(bus.KeySettings), bus.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	e := newEngine(h.conn, h.discard())
	h.engine = e
	h.background(e.run)
	h.until("no configuration", func(v *registry.View) bool { return v.Live && !v.Configured })
	if got := resultOf(t, h.listTools(alice, "", `{}`)); string(mcp.Field(got, "tools")) != "[]" {
		t.Errorf("%s", got)
	}
	if a := h.engine.do(h.ctx(), toolRequest("1", "a__t", "{}"), nil); a.err == nil || a.err.Code != mcp.CodeInvalidParams {
		t.Errorf("%s", a.body)
	}
	if d := e.settings().DrainTimeout; d <= 0 {
		t.Errorf("drain timeout %v", d)
	}
	if !slices.Equal((&Router{conn: h.conn, engine: e}).missing(), nil) {
		t.Error("the router is not ready")
	}
}
