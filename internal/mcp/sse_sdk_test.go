//lint:file-ignore SA1019 HTTP with SSE is deprecated, and servers go on using it.

package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"toolhub/internal/mcp"
)

// TestSSEServer: a server of HTTP with SSE is found out, and serves like any other.
func TestSSEServer(t *testing.T) {
	t.Parallel()
	s := sdk.NewServer(&sdk.Implementation{Name: "old", Version: "1"}, &sdk.ServerOptions{Capabilities: &sdk.ServerCapabilities{Logging: &sdk.LoggingCapabilities{}}})
	schema := json.RawMessage(`{"type":"object"}`)
	hanging, release := make(chan string, 10), make(chan struct{}) // the SDK's server waits for its handlers
	text := func(text string) *sdk.CallToolResult {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}
	}
	s.AddTool(&sdk.Tool{Name: "work", InputSchema: schema}, func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		for n := range 3 {
			if err := req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: float64(n + 1)}); err != nil {
				return nil, err
			}
			if err := req.Session.Log(ctx, &sdk.LoggingMessageParams{Level: "warning", Data: fmt.Sprint("log ", n+1)}); err != nil {
				return nil, err
			}
		}
		res, err := req.Session.Elicit(ctx, &sdk.ElicitParams{Message: "who?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"v":{"type":"string"}}}`)})
		if err != nil {
			return nil, err
		}
		return text(fmt.Sprint("hello ", res.Content["v"])), nil
	})
	s.AddTool(&sdk.Tool{Name: "hang", InputSchema: schema}, func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		hanging <- "began"
		select {
		case <-ctx.Done():
		case <-release:
		}
		hanging <- "ended"
		return nil, ctx.Err()
	})
	handler := sdk.NewSSEHandler(func(*http.Request) *sdk.Server { return s }, nil)
	w := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	defer w.Close()
	changed := make(chan mcp.ListKind, 10)
	c, err := mcp.ConnectHTTP(t.Context(), mcp.HTTPTarget{URL: w.URL, Token: func(context.Context) (string, error) { return "secret", nil }}, mcp.ConnectOptions{
		Server: "old", OnListChanged: func(kind mcp.ListKind) { changed <- kind },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if info := c.Info(); info.Era != mcp.EraLegacy || info.Server.Name != "old" {
		t.Errorf("%+v", info)
	}
	var notes []string
	result, err := c.Call(t.Context(), &mcp.Call{
		Method: mcp.MethodToolsCall, Params: jsontext.Value(`{"name":"work","_meta":{"progressToken":"p","io.modelcontextprotocol/logLevel":"info"}}`),
		Notify: func(method string, params jsontext.Value) {
			notes = append(notes, strings.TrimPrefix(method, "notifications/")+string(mcp.Field(params, "progress"))+string(mcp.Field(params, "data")))
		},
		Request: func(_ context.Context, method string, params jsontext.Value) (jsontext.Value, *mcp.Error) {
			if method != mcp.MethodElicit || mcp.FieldString(params, "message") != "who?" {
				t.Errorf("asked %s %s", method, params)
			}
			return jsontext.Value(`{"action":"accept","content":{"v":"Ada"}}`), nil
		},
	})
	if want := `[progress1 message"log 1" progress2 message"log 2" progress3 message"log 3"]`; err != nil || !strings.Contains(string(result), "hello Ada") || fmt.Sprint(notes) != want {
		t.Errorf("%s, %v, after %v", result, err, notes)
	}
	// Cancelled.
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-hanging
		cancel()
	}()
	if _, err := c.Call(ctx, &mcp.Call{Method: mcp.MethodToolsCall, Params: jsontext.Value(`{"name":"hang"}`)}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled call: %v", err)
	}
	<-hanging
	s.AddTool(&sdk.Tool{Name: "more", InputSchema: schema}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) { return text(""), nil })
	if kind := <-changed; kind != mcp.ListTools {
		t.Errorf("changed is %s", kind)
	}
	// The end of the stream is that of the connection, and what became of the call is unknown.
	go func() {
		<-hanging
		w.CloseClientConnections()
	}()
	_, err = c.Call(t.Context(), &mcp.Call{Method: mcp.MethodToolsCall, Params: jsontext.Value(`{"name":"hang"}`)})
	var f *mcp.Fault
	if !errors.As(err, &f) || f.Reason != mcp.ReasonOutcomeUnknown {
		t.Errorf("a call over a stream that was cut: %v", err)
	}
	<-c.Done()
	close(release)
}

// TestBadSSEServers: what begins like such a server and is none fails, soon, with
// what is wrong with it.
func TestBadSSEServers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stream string // what GET is answered with, "" is 405
		post   int    // status of POSTs to the endpoint
		want   string
	}{
		"no stream":          {"", 0, "status 405"},
		"no endpoint":        {"event: message\ndata: {}\n\n", 0, "not with its endpoint"},
		"an end at once":     {": hello\n\n", 0, "ended before it named its endpoint"},
		"another origin":     {"event: endpoint\ndata: https://evil.example/messages\n\n", 0, "another origin"},
		"another port":       {"event: endpoint\ndata: http://127.0.0.1:1/messages\n\n", 0, "another origin"},
		"no URL":             {"event: endpoint\ndata: ::\x7f\n\n", 0, "sse_endpoint"},
		"messages not taken": {"event: endpoint\ndata: /messages\n\n", http.StatusNotFound, "was not taken"},
		"a large event":      {"event: endpoint\ndata: /" + strings.Repeat("x", 5000) + "\n\n", 0, "beyond the limit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path == "/messages":
					w.WriteHeader(c.post)
				case r.Method != http.MethodGet || c.stream == "":
					w.WriteHeader(http.StatusMethodNotAllowed)
				default:
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(w, c.stream)
					w.(http.Flusher).Flush()
					if c.post != 0 {
						<-r.Context().Done()
					}
				}
			}))
			defer w.Close()
			_, err := mcp.ConnectHTTP(t.Context(), mcp.HTTPTarget{URL: w.URL}, mcp.ConnectOptions{MaxMessageBytes: 4 << 10, RequestTimeout: 20 * time.Second})
			if err == nil || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if _, err := mcp.ConnectHTTP(t.Context(), mcp.HTTPTarget{URL: w.URL}, mcp.ConnectOptions{Era: mcp.EraChoice(mcp.EraModern)}); err == nil || !strings.Contains(err.Error(), "405") {
				t.Errorf("of a server that is to be modern: %v", err)
			}
		})
	}
}

// TestSilentSSEServer: one that names no endpoint is not waited for for ever.
func TestSilentSSEServer(t *testing.T) {
	t.Parallel()
	w := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer w.Close()
	_, err := mcp.ConnectHTTP(t.Context(), mcp.HTTPTarget{URL: w.URL}, mcp.ConnectOptions{RequestTimeout: 100 * time.Millisecond})
	if !mcp.IsKind(err, mcp.KindTimeout) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := mcp.ConnectHTTP(ctx, mcp.HTTPTarget{URL: w.URL}, mcp.ConnectOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}
