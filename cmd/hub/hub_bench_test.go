package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"toolhub/internal/mcp"
)

// BenchmarkHub is a call of a server that costs next to nothing, directly,
// through a hub, and by a relay that does the least that a hub must do. All of it
// runs in this process, so what the hub costs is the difference.
func BenchmarkHub(b *testing.B) {
	backend := httptest.NewServer(http.HandlerFunc(instantServer))
	defer backend.Close()
	bench := benchCmd{Direct: backend.URL, Tool: "t", HubTool: "bench__t", Args: `{"text":"hello"}`, Era: "modern"}
	ctx := b.Context()
	legs := []leg{{name: "direct", url: backend.URL}, {name: "hub"}}
	bench.request(&legs[0], bench.Tool)
	bench.request(&legs[1], bench.HubTool)
	url, stop, err := startBenchHub(ctx, b.TempDir(), backend.URL, "modern")
	if err != nil {
		b.Fatal(err)
	}
	defer stop()
	legs[1].url = url
	first, err := until(ctx, &legs[1])
	if err != nil {
		b.Fatal(err)
	}
	least, err := startFloor(ctx, b.TempDir(), legs[0], first)
	if err != nil {
		b.Fatal(err)
	}
	defer least.stop()
	for _, l := range append(legs, least.legs...) {
		for _, callers := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/callers=%d", l.name, callers), func(b *testing.B) { spread(b, ctx, &l, callers) })
		}
	}
}

// spread makes b.N requests from callers at the same time.
func spread(b *testing.B, ctx context.Context, l *leg, callers int) {
	load := newLoad(callers)
	defer load.close()
	b.ReportAllocs()
	var left atomic.Int64
	left.Store(int64(b.N))
	began := cpuTime(b)
	var wg sync.WaitGroup
	for i := range load.callers {
		wg.Go(func() {
			request := l.request(i)
			for left.Add(-1) >= 0 {
				if err := load.callers[i].call(ctx, load.client, l, request); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64((cpuTime(b)-began).Microseconds())/float64(b.N), "cpu-µs/op")
}

func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// instantServer is a server of the era 2026-07-28 with one tool.
func instantServer(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	m, err := mcp.ParseMessage(body, mcp.Lenient)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	result := `{"resultType":"complete","content":[{"type":"text","text":"hello"}]}`
	switch m.Method {
	case mcp.MethodDiscover:
		result = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":0,"cacheScope":"private"}`
	case mcp.MethodToolsList:
		result = `{"resultType":"complete","tools":[{"name":"t","description":"d","inputSchema":{"type":"object"}}],"ttlMs":0,"cacheScope":"private"}`
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(mcp.AppendResult(nil, m.ID, []byte(result)))
}
