package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestBenchFlags(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"":                                   "give either --direct URL or --backend COMMAND",
		"--direct http://x --backend {addr}": "give either",
		"--backend x":                        "{addr}",
		"--backend {addr} --hub http://x":    "--hub goes with --direct",
		"--direct http://x --args [1]":       "--args must be a JSON object",
		"--direct http://x --rounds 0":       "must be positive",
		"--direct http://x --callers 0":      "must be positive",
		"--direct http://x --duration 0s":    "must be positive",
		"--direct http://x --era future":     "modern",
	} {
		if code, _, errs := hub(append([]string{"bench"}, strings.Fields(args)...)...); code != exitUsage || !strings.Contains(errs, says) {
			t.Errorf("%s: %d %s", args, code, errs)
		}
	}
}

// The load tool against the SDK's server, in both eras: every way does calls,
// none fails, and the ratios are against direct.
func TestBench(t *testing.T) {
	t.Parallel()
	server := sdk.NewServer(&sdk.Implementation{Name: "s", Version: "1"}, nil)
	sdk.AddTool(server, &sdk.Tool{Name: "hello"}, func(_ context.Context, _ *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "hello"}}}, nil, nil
	})
	t.Cleanup(func() {
		for session := range server.Sessions() { // a load tool leaves them behind
			session.Close()
		}
	})
	backends := map[string]string{} // the SDK's speaks one era with sessions, the other without
	for era, stateless := range map[string]bool{"modern": true, "legacy": false} {
		handler := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, &sdk.StreamableHTTPOptions{Stateless: stateless})
		backend := httptest.NewServer(handler)
		t.Cleanup(backend.Close)
		backends[era] = backend.URL
	}
	for _, k := range []struct {
		era  string
		args string
		ways []string
	}{
		{"modern", "--tool hello", []string{"direct", "hub", "floor", "relay"}},
		{"legacy", "--tool hello", []string{"direct", "hub", "floor", "relay"}},
		{"modern", "--list", []string{"direct", "hub"}},
	} {
		t.Run(k.era+" "+k.args, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"bench", "--json", "--direct", backends[k.era], "--era", k.era, "--callers", "1,3", "--rounds", "2", "--duration", "20ms"}, strings.Fields(k.args)...)
			code, out, errs := hub(args...)
			var report benchReport
			if err := json.Unmarshal([]byte(out), &report); err != nil || code != 0 {
				t.Fatalf("%d %v: %s%s", code, err, out, errs)
			}
			if len(report.Rows) != 2*len(k.ways) {
				t.Fatalf("%d rows", len(report.Rows))
			}
			for i, row := range report.Rows {
				if row.Way != k.ways[i%len(k.ways)] || row.Calls == 0 || row.Failures > 0 || row.PerSecond <= 0 || row.P50US <= 0 || row.P99US < row.P50US || row.AllocsPerCall <= 0 {
					t.Errorf("%+v", row)
				}
				if row.Way == "direct" && (row.Throughput != 1 || row.P50 != 1) {
					t.Errorf("%+v", row)
				}
			}
			if k.args == "--list" && report.Tools != 1 {
				t.Errorf("%d tools", report.Tools)
			}
		})
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for want, values := range map[float64][]float64{3: {3}, 2: {9, 1, 2}, 2.5: {4, 1, 2, 3}} {
		if got := medianOf(values); got != want {
			t.Errorf("%v: %v", values, got)
		}
	}
	s := sample{elapsed: time.Second, latencies: []time.Duration{5, 1, 4, 2, 3}}
	if s.percentile(50) != 3 || s.percentile(99) != 5 || s.rate() != 5 || (&sample{}).percentile(50) != 0 || (&sample{}).rate() != 0 {
		t.Errorf("%v %v %v", s.percentile(50), s.percentile(99), s.rate())
	}
}
