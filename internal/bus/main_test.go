package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"toolhub/internal/mcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long tests wait for what must happen; nothing waits for it to pass.
const patience = 20 * time.Second

// testServer is a real NATS server that can be stopped and started again.
type testServer struct {
	t    testing.TB
	opts server.Options
	ns   *server.Server
}

// startServer starts a server with a listener on a free port.
func startServer(t testing.TB, change func(*server.Options)) *testServer {
	t.Helper()
	s := &testServer{t: t, opts: server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(),
		JetStreamMaxStore: 8 << 30, MaxPayload: 8 << 20, NoSigs: true, NoLog: true,
	}}
	if change != nil {
		change(&s.opts)
	}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *testServer) start() {
	s.t.Helper()
	opts := s.opts // the server keeps and changes it
	ns, err := server.NewServer(&opts)
	if err != nil {
		s.t.Fatal(err)
	}
	ns.Start()
	s.ns = ns
	if !s.opts.DontListen {
		addr, ok := ns.Addr().(*net.TCPAddr)
		if !ok {
			s.t.Fatal("the server does not listen")
		}
		s.opts.Port = addr.Port // the same after a restart
	}
	if !ns.JetStreamEnabled() {
		s.t.Fatal("JetStream did not start")
	}
}

// stop ends the server and its connections without a word to the clients.
func (s *testServer) stop() {
	s.ns.Shutdown()
	s.ns.WaitForShutdown()
}

func (s *testServer) url() string {
	return "nats://127.0.0.1:" + strconv.Itoa(s.opts.Port)
}

// wipe removes all that the stopped server had stored.
func (s *testServer) wipe() {
	if err := os.RemoveAll(s.opts.StoreDir); err != nil {
		s.t.Fatal(err)
	}
}

// connect connects as identity; change may be nil.
func (s *testServer) connect(t testing.TB, identity string, change func(*Config)) *Conn {
	t.Helper()
	cfg := Config{Hub: "test", Identity: identity, URL: s.url()}
	if s.opts.DontListen {
		cfg.URL, cfg.InProcess = "", s.ns
	}
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := Connect(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// inProcess is the option of a server without a listener.
func inProcess(o *server.Options) { o.DontListen = true }

// pair is a server and two connections to it, the caller and the worker w1.
func pair(t testing.TB, change func(*server.Options)) (s *testServer, caller, worker *Conn) {
	t.Helper()
	s = startServer(t, change)
	return s, s.connect(t, "router.r1", nil), s.connect(t, "w1", nil)
}

// raw is a plain NATS connection beside the hub's own.
func (s *testServer) raw(t testing.TB, opts ...nats.Option) *nats.Conn {
	t.Helper()
	closed := make(chan struct{})
	opts = append(opts, nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	url := s.url()
	if s.opts.DontListen {
		url, opts = "", append(opts, nats.InProcessServer(s.ns))
	}
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); <-closed })
	return nc
}

// within waits for c, which must be closed or have an element soon.
func within[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case v := <-c:
		return v
	case <-timeout.C:
		t.Fatalf("%s: did not happen", what)
		panic("unreachable")
	}
}

// eventually asks ok again and again until it holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: did not happen", what)
		}
		<-tick.C
	}
}

// wantFault fails unless err is a fault of this kind and reason.
func wantFault(t testing.TB, err error, kind mcp.Kind, reason string) *mcp.Fault {
	t.Helper()
	f, ok := errors.AsType[*mcp.Fault](err)
	if !ok {
		t.Fatalf("got the error %v (%T), want the fault %s/%s", err, err, kind, reason)
	}
	if f.Kind != kind || f.Reason != reason {
		t.Fatalf("got the fault %s/%s (%s), want %s/%s", f.Kind, f.Reason, f.Message, kind, reason)
	}
	return f
}

// logs is a logger whose text can be looked at.
type logs struct {
	mu   sync.Mutex
	text []byte // guarded by mu
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, b...)
	return len(b), nil
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

func (l *logs) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// request is a JSON-RPC request with an id.
func request(id int) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x"}}`, id)
}

// response is a JSON-RPC result.
func response(text string) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"result":%q}`, text)
}
