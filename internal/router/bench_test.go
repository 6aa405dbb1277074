package router

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
)

// cpuTime is what this process has used so far, the NATS server in it included.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkEngineCall is a call from the engine over the bus to a handler that
// has its answer ready; against the bus alone, which carries the same bytes.
func BenchmarkEngineCall(b *testing.B) {
	h := newTestHub(b, oneServer)
	result := jsontext.Value(`{"resultType":"complete","content":[{"type":"text","text":"` + strings.Repeat("x", 120) + `"}]}`)
	s := h.start("a", func(context.Context, *bus.Incoming) (bus.Reply, error) {
		return bus.Reply{Body: mcp.AppendResult(nil, jsontext.Value("1"), result)}, nil
	}, "echo")
	req := toolRequest("1", "a__echo", `{"text":"`+strings.Repeat("y", 100)+`"}`)
	subject := bus.CallSubject("test", "a", s.epoch, mcp.MethodToolsCall)
	body := mcp.AppendRequest(nil, req.id, req.method, req.params)
	for _, c := range []int{1, 16, 64} {
		spread(b, fmt.Sprintf("engine/c=%d", c), c, func() error {
			if a := h.engine.do(context.Background(), req, nil); a.err != nil {
				return a.err
			}
			return nil
		})
		spread(b, fmt.Sprintf("bus/c=%d", c), c, func() error {
			_, err := h.conn.Call(context.Background(), &bus.Request{
				Subject: subject, Body: body, Worker: "worker-w1",
				Meta: bus.Meta{Principal: "alice", ClientEra: mcp.EraModern, ToolSet: "0123456789abcdef0123456789abcdef"},
			}, nil)
			return err
		})
	}
}

// spread runs f on c goroutines and reports the CPU time of the whole process.
func spread(b *testing.B, name string, c int, f func() error) {
	b.Run(name, func(b *testing.B) {
		b.ReportAllocs()
		b.ResetTimer()
		began := cpuTime(b)
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
		b.ReportMetric(float64((cpuTime(b)-began).Nanoseconds())/1000/float64(b.N), "cpu-µs/op")
	})
}

// BenchmarkToolsList1000 is tools/list of 1,000 tools from a warm list, against
// copying as many bytes into memory of its own.
func BenchmarkToolsList1000(b *testing.B) {
	h := newTestHub(b, oneServer)
	var tools []jsontext.Value
	for i := range 1000 {
		tools = append(tools, jsontext.Value(fmt.Sprintf(`{"name":"tool_%d","description":"%s","inputSchema":{"type":"object","properties":{"q":{"type":"string","description":"%s"}}}}`,
			i, strings.Repeat("what it does ", 10), strings.Repeat("what it is ", 10))))
	}
	h.startDefs("a", echo, tools)
	req := &request{id: jsontext.Value("1"), method: mcp.MethodToolsList, params: jsontext.Value(`{"_meta":{"` + mcp.MetaProtocolVersion + `":"2026-07-28"}}`), caller: alice}
	size := len(h.engine.do(b.Context(), req, nil).body)
	b.Run("list", func(b *testing.B) {
		b.SetBytes(int64(size))
		b.ReportAllocs()
		for b.Loop() {
			if a := h.engine.do(context.Background(), req, nil); len(a.body) != size {
				b.Fatalf("%.200s", a.body)
			}
		}
	})
	source := make([]byte, size)
	var into []byte
	b.Run("copy", func(b *testing.B) {
		b.SetBytes(int64(size))
		b.ReportAllocs()
		for b.Loop() {
			into = append(make([]byte, 0, size), source...)
		}
	})
	_ = into
	b.Run("rebuild", func(b *testing.B) { // after a change
		l := h.engine.list("", alice)
		b.ReportAllocs()
		for b.Loop() {
			if set := catalog.Build(sources(l.parts, ""), l.hubPrefix); len(set.Entries) != 1000 {
				b.Fatal(len(set.Entries))
			}
		}
	})
}
