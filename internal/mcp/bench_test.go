package mcp

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

var benchMessage = []byte(`{"jsonrpc":"2.0","id":17,"method":"tools/call","params":{"name":"search","arguments":{"query":"the quick brown fox","limit":20,"filters":{"lang":["en","de"],"since":"2026-01-01"}},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}},"io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"progressToken":"p-1","traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}}`)

func BenchmarkParseMessage(b *testing.B) {
	for _, s := range []struct {
		name   string
		strict Strictness
	}{{"strict", Strict}, {"lenient", Lenient}} {
		b.Run(s.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(benchMessage)))
			for b.Loop() {
				if _, err := ParseMessage(benchMessage, s.strict); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEdit(b *testing.B) {
	m, err := ParseMessage(benchMessage, Strict)
	if err != nil {
		b.Fatal(err)
	}
	meta := Field(m.Params, "_meta")
	b.ReportAllocs()
	b.SetBytes(int64(len(meta)))
	for b.Loop() {
		if _, err := Edit(meta, Change{MetaProgressToken, IntID(7)}, Change{MetaLogLevel, jsontext.Value(`"info"`)}); err != nil {
			b.Fatal(err)
		}
	}
}

// answerBench answers every request with the same result of about 1 KB.
func answerBench(stream bool) http.HandlerFunc {
	result := `,"result":{"resultType":"complete","supportedVersions":["2026-07-28"],"content":[{"type":"text","text":"` + strings.Repeat("0123456789abcdef", 60) + `"}]}}`
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		_, after, _ := bytes.Cut(body, []byte(`"id":`))
		id, _, _ := bytes.Cut(after, []byte{','})
		out := make([]byte, 0, 2048)
		if stream {
			w.Header()["Content-Type"] = []string{"text/event-stream"}
			out = append(out, "data: "...)
		} else {
			w.Header()["Content-Type"] = []string{"application/json"}
		}
		out = append(append(append(out, `{"jsonrpc":"2.0","id":`...), id...), result...)
		if stream {
			out = append(out, "\n\n"...)
		}
		_, _ = w.Write(out)
		if stream {
			w.(http.Flusher).Flush()
		}
	}
}

// BenchmarkHTTPCall compares a call with what it is made of: a bare POST of the
// same bytes to the same server.
func BenchmarkHTTPCall(b *testing.B) {
	for _, kind := range []struct {
		name   string
		stream bool
	}{{"json", false}, {"sse", true}} {
		server := httptest.NewServer(answerBench(kind.stream))
		defer server.Close()
		b.Run(kind.name+"/call", func(b *testing.B) { benchCall(b, server.URL) })
		b.Run(kind.name+"/bare", func(b *testing.B) { benchBare(b, server.URL) })
	}
}

// reportCPU reports the CPU time of the process per operation, both ends of it:
// on a busy machine it says more than the time that passed.
func reportCPU(b *testing.B) func() {
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	began := used()
	return func() { b.ReportMetric(float64(used()-began)/float64(b.N), "cpu-ns/op") }
}

func benchCall(b *testing.B, url string) {
	conn, err := ConnectHTTP(b.Context(), HTTPTarget{URL: url}, ConnectOptions{Era: EraChoice(EraModern)})
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close(b.Context())
	m, err := ParseMessage(benchMessage, Strict)
	if err != nil {
		b.Fatal(err)
	}
	call := &Call{Method: MethodToolsCall, Params: m.Params, Timeout: time.Minute, MaxTotal: 2 * time.Minute, Notify: func(string, jsontext.Value) {}}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	defer reportCPU(b)()
	for b.Loop() {
		if _, err := conn.Call(ctx, call); err != nil {
			b.Fatal(err)
		}
	}
}

func benchBare(b *testing.B, url string) {
	rt := (&HTTPTarget{URL: url}).transport()
	defer rt.CloseIdleConnections()
	client := &http.Client{Transport: rt}
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	defer reportCPU(b)()
	for b.Loop() {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(benchMessage))
		if err != nil {
			b.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		req.Header.Set(HeaderVersion, LatestModern)
		req.Header.Set(HeaderMethod, MethodToolsCall)
		req.Header.Set(HeaderName, "search")
		resp, err := client.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadAll(resp.Body); err != nil {
			b.Fatal(err)
		}
		_ = resp.Body.Close()
	}
}
