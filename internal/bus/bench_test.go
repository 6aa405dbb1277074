package bus

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"toolhub/internal/mcp"
)

// cpu is the CPU time of this process so far: client and server, as both run in it.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// spread runs f b.N times on c goroutines and reports the CPU of the whole process.
func spread(b *testing.B, c int, f func() error) {
	b.Helper()
	b.ReportAllocs()
	b.ResetTimer()
	began := cpu(b)
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for range c {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := f(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64((cpu(b)-began).Microseconds())/float64(b.N), "cpu-µs/op")
}

// BenchmarkCall compares a call with a plain request of nats.go on the same server.
func BenchmarkCall(b *testing.B) {
	body := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"` + strings.Repeat("x", 100) + `"}}}`)
	answer := []byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat("x", 120) + `"}]}}`)
	s := startServer(b, inProcess)
	caller, worker := s.connect(b, "router.r1", nil), s.connect(b, "w1", nil)
	if _, err := worker.Serve(ServeSubject("test", "echo", 7), "", 0, func(context.Context, *Incoming) (Reply, error) {
		return Reply{Body: answer}, nil
	}); err != nil {
		b.Fatal(err)
	}
	subject := CallSubject("test", "echo", 7, "tools/call")
	client, responder := s.raw(b), s.raw(b)
	if _, err := responder.Subscribe("plain.>", func(m *nats.Msg) { go func() { _ = m.Respond(answer) }() }); err != nil {
		b.Fatal(err)
	}
	if err := responder.Flush(); err != nil {
		b.Fatal(err)
	}
	for _, c := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("bus/c=%d", c), func(b *testing.B) {
			spread(b, c, func() error {
				_, err := caller.Call(b.Context(), &Request{
					Subject: subject, Body: body, Worker: "w1",
					Meta: Meta{Deadline: time.Now().Add(time.Minute), Principal: "alice", ClientEra: mcp.EraModern, ToolSet: "0123456789abcdef"},
				}, nil)
				return err
			})
		})
		b.Run(fmt.Sprintf("plain/c=%d", c), func(b *testing.B) {
			spread(b, c, func() error {
				_, err := client.Request("plain.toolhub.test.call.echo.7.tools.call", body, time.Minute)
				return err
			})
		})
	}
}

// BenchmarkSigned is what the signature of a call costs: nobody's call of a process
// that has no key is not signed, the same call of one that has it is.
func BenchmarkSigned(b *testing.B) {
	s := startServer(b, inProcess)
	plain, signed, worker := s.connect(b, "router.r1", nil), s.connect(b, "router.r2", nil), s.connect(b, "w1", nil)
	if _, err := signed.Seal(b.Context()); err != nil {
		b.Fatal(err)
	}
	answer := []byte(`{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","content":[]}}`)
	if _, err := worker.Serve(ServeSubject("test", "echo", 7), "", 0, func(_ context.Context, in *Incoming) (Reply, error) {
		return Reply{Body: answer}, nil
	}); err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{100, 10 << 10, 1 << 20, 5 << 20} {
		body := []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"` + strings.Repeat("x", size) + `"}}}`)
		for _, c := range []struct {
			name string
			conn *Conn
		}{{"plain", plain}, {"signed", signed}} {
			b.Run(fmt.Sprintf("%s/%d", c.name, size), func(b *testing.B) {
				spread(b, 1, func() error {
					_, err := c.conn.Call(b.Context(), &Request{
						Subject: CallSubject("test", "echo", 7, "tools/call"), Body: body, Worker: "w1",
						Meta: Meta{Deadline: time.Now().Add(time.Minute), ClientEra: mcp.EraModern, ToolSet: "0123456789abcdef"},
					}, nil)
					return err
				})
			})
		}
	}
}

// BenchmarkEmit is the cost of an event until it is in the stream.
func BenchmarkEmit(b *testing.B) {
	s := startServer(b, inProcess)
	c := s.connect(b, "w1", nil)
	stream, err := c.eventsJS.Stream(b.Context(), EventStream("test"))
	if err != nil {
		b.Fatal(err)
	}
	stored := func() uint64 {
		info, err := stream.Info(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		return info.State.LastSeq
	}
	type data struct {
		CallID     string `json:"call_id"`
		Principal  string `json:"principal,omitempty"`
		Tool       string `json:"tool"`
		Definition string `json:"definition"`
		Rule       string `json:"rule,omitempty"`
		ToolSet    string `json:"toolset,omitempty"`
	}
	d := data{"0123456789abcdef-1", "alice", "create_issue", strings.Repeat("0", 32), "policy.allow[3]", "0123456789abcdef"}
	for _, perMS := range []int{20, 100} {
		b.Run(fmt.Sprintf("%dk per s", perMS), func(b *testing.B) {
			before, dropped := stored(), c.EventsDropped()
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			b.ReportAllocs()
			b.ResetTimer()
			began := cpu(b)
			for sent := 0; sent < b.N; {
				<-tick.C
				for range min(perMS, b.N-sent) {
					c.Emit(Event{Kind: "call", Subject: "github", What: "started", Data: d})
					sent++
				}
			}
			for stored()-before+c.EventsDropped()-dropped < uint64(b.N) {
				<-tick.C
			}
			b.ReportMetric(float64((cpu(b)-began).Nanoseconds())/1000/float64(b.N), "cpu-µs/op")
			if n := c.EventsDropped() - dropped; n != 0 {
				b.Errorf("%d events were dropped", n)
			}
		})
	}
}
