//lint:file-ignore SA1019 logging is deprecated, and servers go on using it.

package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"toolhub/internal/mcp"
)

// sdkServer is a server made with the official SDK, in the way of its examples.
func sdkServer() *sdk.Server {
	server := sdk.NewServer(&sdk.Implementation{Name: "sdk", Version: "1"}, &sdk.ServerOptions{
		Instructions: "be nice",
		Capabilities: &sdk.ServerCapabilities{Logging: &sdk.LoggingCapabilities{}, Tools: &sdk.ToolCapabilities{ListChanged: true}},
	})
	object := json.RawMessage(`{"type":"object"}`)
	server.AddTool(&sdk.Tool{Name: "echo", InputSchema: object}, func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: string(req.Params.Arguments)}}}, nil
	})
	server.AddTool(&sdk.Tool{Name: "steps", InputSchema: object}, func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		for i := range 20 {
			if err := req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: float64(i)}); err != nil {
				return nil, err
			}
		}
		if err := req.Session.Log(ctx, &sdk.LoggingMessageParams{Level: "error", Data: "done"}); err != nil {
			return nil, err
		}
		return &sdk.CallToolResult{}, nil
	})
	server.AddTool(&sdk.Tool{Name: "ask", InputSchema: object}, func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		answer, err := req.Session.Elicit(ctx, &sdk.ElicitParams{Message: "sure?", RequestedSchema: object})
		if err != nil {
			return nil, err
		}
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: answer.Action}}}, nil
	})
	server.AddTool(&sdk.Tool{Name: "wait", InputSchema: object}, func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	server.AddTool(&sdk.Tool{Name: "grow", InputSchema: object}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		server.AddTool(&sdk.Tool{Name: "grown", InputSchema: object}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{}, nil
		})
		return &sdk.CallToolResult{}, nil
	})
	return server
}

// sdkPeers are the ways to reach such a server: both transports, both eras.
var sdkPeers = map[string]struct {
	version string
	connect func(t *testing.T, server *sdk.Server, opts mcp.ConnectOptions) mcp.Conn
}{
	"stdio modern": {mcp.Version20260728, func(t *testing.T, server *sdk.Server, opts mcp.ConnectOptions) mcp.Conn {
		return connectSDKPipe(t, server, opts, "")
	}},
	"stdio legacy": {mcp.Version20251125, func(t *testing.T, server *sdk.Server, opts mcp.ConnectOptions) mcp.Conn {
		return connectSDKPipe(t, server, opts, mcp.EraLegacy)
	}},
	"HTTP modern": {mcp.Version20260728, func(t *testing.T, server *sdk.Server, opts mcp.ConnectOptions) mcp.Conn {
		return connectSDKWeb(t, server, opts, &sdk.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true})
	}},
	"HTTP legacy": {mcp.Version20251125, func(t *testing.T, server *sdk.Server, opts mcp.ConnectOptions) mcp.Conn {
		return connectSDKWeb(t, server, opts, &sdk.StreamableHTTPOptions{})
	}},
}

func connectSDKPipe(t *testing.T, server *sdk.Server, opts mcp.ConnectOptions, era mcp.Era) mcp.Conn {
	fromClient, toServer := io.Pipe()
	fromServer, toClient := io.Pipe()
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		ended <- server.Run(ctx, &sdk.IOTransport{Reader: fromClient, Writer: toClient})
		_ = toClient.Close()
	}()
	opts.Era = mcp.EraChoice(era)
	c, err := mcp.ConnectStdio(t.Context(), mcp.Pipe{Out: toServer, In: fromServer}, opts)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
		cancel()
		<-ended
	})
	return c
}

func connectSDKWeb(t *testing.T, server *sdk.Server, opts mcp.ConnectOptions, options *sdk.StreamableHTTPOptions) mcp.Conn {
	w := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, options))
	t.Cleanup(w.Close)
	c, err := mcp.ConnectHTTP(t.Context(), mcp.HTTPTarget{URL: w.URL}, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

// watchable is a server with resources that can be subscribed to, r:0 and on, and
// which of them are.
type watchable struct {
	*sdk.Server
	mu         sync.Mutex
	subscribed map[string]int
}

func newWatchable() *watchable {
	w := &watchable{subscribed: make(map[string]int)}
	change := func(uri string, by int) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !strings.HasPrefix(uri, "r:") {
			return fmt.Errorf("%s cannot be subscribed to", uri)
		}
		if w.subscribed[uri] += by; w.subscribed[uri] == 0 {
			delete(w.subscribed, uri)
		}
		return nil
	}
	w.Server = sdk.NewServer(&sdk.Implementation{Name: "sdk", Version: "1"}, &sdk.ServerOptions{
		Capabilities:       &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{ListChanged: true}},
		SubscribeHandler:   func(_ context.Context, req *sdk.SubscribeRequest) error { return change(req.Params.URI, 1) },
		UnsubscribeHandler: func(_ context.Context, req *sdk.UnsubscribeRequest) error { return change(req.Params.URI, -1) },
	})
	for i := range 60 {
		w.AddResource(&sdk.Resource{URI: fmt.Sprintf("r:%d", i), Name: "r"}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
			return &sdk.ReadResourceResult{}, nil
		})
	}
	return w
}

func (w *watchable) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.subscribed)
}

// TestSDKSubscribe: of 60 resources that are subscribed to at once each update is
// heard, and changes of lists too, whatever comes and goes.
func TestSDKSubscribe(t *testing.T) {
	for name, peer := range sdkPeers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWatchable()
			news := make(chan string, 4096)
			c := peer.connect(t, w.Server, mcp.ConnectOptions{
				OnListChanged: func(kind mcp.ListKind) {
					if kind == mcp.ListTools {
						news <- "tools"
					}
				},
				OnResourceUpdated: func(uri string) { news <- uri },
			})
			hear := func(want string) {
				t.Helper()
				late := time.After(20 * time.Second)
				for {
					select {
					case got := <-news:
						if got == want {
							return
						}
					case <-late:
						t.Fatalf("no news of %s", want)
					}
				}
			}
			subscribe := func(from, to int) {
				var group sync.WaitGroup
				for i := from; i < to; i++ {
					group.Go(func() {
						if err := c.Subscribe(t.Context(), fmt.Sprintf("r:%d", i)); err != nil {
							t.Errorf("r:%d: %v", i, err)
						}
					})
				}
				group.Wait()
			}
			update := func(from, to int) {
				t.Helper()
				for i := from; i < to; i++ {
					uri := fmt.Sprintf("r:%d", i)
					if err := w.ResourceUpdated(t.Context(), &sdk.ResourceUpdatedNotificationParams{URI: uri}); err != nil {
						t.Error(err)
					}
					hear(uri)
				}
			}
			lists := 0
			changeList := func() {
				t.Helper()
				for len(news) > 0 {
					<-news
				}
				lists++
				w.AddTool(&sdk.Tool{Name: fmt.Sprintf("t%d", lists), InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
					return &sdk.CallToolResult{}, nil
				})
				hear("tools")
			}
			subscribe(0, 60)
			update(0, 60)
			changeList()
			if err := c.Subscribe(t.Context(), "x:1"); err == nil {
				t.Error("subscribed to what cannot be")
			}
			update(0, 60)
			changeList()
			for i := range 50 {
				c.Unsubscribe(fmt.Sprintf("r:%d", i))
			}
			for late := time.After(20 * time.Second); w.count() > 10; {
				select {
				case <-time.After(time.Millisecond):
				case <-late:
					t.Fatalf("%d are still subscribed to", w.count())
				}
			}
			subscribe(50, 60)
			subscribe(0, 5)
			update(50, 60)
			update(0, 5)
			changeList()
		})
	}
}

func TestSDK(t *testing.T) {
	for name, peer := range sdkPeers {
		t.Run(name, func(t *testing.T) {
			changes := make(chan mcp.ListKind, 16)
			c := peer.connect(t, sdkServer(), mcp.ConnectOptions{OnListChanged: func(kind mcp.ListKind) { changes <- kind }})
			info := c.Info()
			if info.Version != peer.version || info.Server.Name != "sdk" || info.Instructions != "be nice" || !info.Has("logging") {
				t.Errorf("info %+v", info)
			}
			list, err := c.Call(t.Context(), &mcp.Call{Method: mcp.MethodToolsList})
			if err != nil || strings.Count(string(list), `"inputSchema"`) != 5 {
				t.Errorf("list %s, error %v", list, err)
			}

			result, err := c.Call(t.Context(), &mcp.Call{
				Method: mcp.MethodToolsCall, Timeout: 10 * time.Second,
				Params: jsontext.Value(`{"name":"echo","arguments":{"big":12345678901234567890}}`),
			})
			if err != nil || !strings.Contains(string(result), `{\"big\":12345678901234567890}`) {
				t.Errorf("echo: %s, error %v", result, err)
			}

			var got []string
			_, err = c.Call(t.Context(), &mcp.Call{
				Method: mcp.MethodToolsCall, Timeout: 10 * time.Second,
				Params: jsontext.Value(`{"name":"steps","arguments":{},"_meta":{"progressToken":"mine","io.modelcontextprotocol/logLevel":"info"}}`),
				Notify: func(method string, params jsontext.Value) {
					got = append(got, method+string(mcp.Field(params, "progressToken"))+string(mcp.Field(params, "progress"))+mcp.FieldString(params, "data"))
				},
			})
			var want []string
			for i := range 20 {
				want = append(want, fmt.Sprintf(`notifications/progress"mine"%d`, i))
			}
			want = append(want, "notifications/messagedone")
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("steps: %q, error %v", got, err)
			}

			_, err = c.Call(t.Context(), &mcp.Call{Method: mcp.MethodToolsCall, Params: jsontext.Value(`{"name":"none"}`)})
			if e, ok := err.(*mcp.Error); !ok || e.Code != mcp.CodeInvalidParams || e.Raw == nil {
				t.Errorf("unknown tool: %v", err)
			}
			_, err = c.Call(t.Context(), &mcp.Call{Method: "no/such"})
			if _, ok := err.(*mcp.Error); !ok && (info.Era == mcp.EraModern || !mcp.IsKind(err, mcp.KindTransport)) {
				t.Errorf("unknown method: %v", err) // a legacy one says it with a plain 400
			}

			if info.Era == mcp.EraLegacy {
				result, err = c.Call(t.Context(), &mcp.Call{
					Method: mcp.MethodToolsCall, Timeout: 10 * time.Second,
					Params: jsontext.Value(`{"name":"ask","_meta":{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}`),
					Request: func(_ context.Context, method string, params jsontext.Value) (jsontext.Value, *mcp.Error) {
						return jsontext.Value(`{"action":"decline"}`), nil
					},
				})
				if err != nil || !strings.Contains(string(result), `"decline"`) {
					t.Errorf("ask: %s, error %v", result, err)
				}
			}

			_, err = c.Call(t.Context(), &mcp.Call{Method: mcp.MethodToolsCall, Timeout: 100 * time.Millisecond, Params: jsontext.Value(`{"name":"wait"}`)})
			if !mcp.IsKind(err, mcp.KindTimeout) {
				t.Errorf("wait: %v", err)
			}

			// The stream of changes may be on its way still, so it grows again.
			for heard := false; !heard && !t.Failed(); {
				if _, err = c.Call(t.Context(), &mcp.Call{Method: mcp.MethodToolsCall, Params: jsontext.Value(`{"name":"grow"}`)}); err != nil {
					t.Errorf("grow: %v", err)
				}
				select {
				case kind := <-changes:
					if heard = true; kind != mcp.ListTools {
						t.Errorf("%s changed", kind)
					}
				case <-time.After(time.Second):
				}
			}
			if list, err = c.Call(t.Context(), &mcp.Call{Method: mcp.MethodToolsList}); err != nil || strings.Count(string(list), `"inputSchema"`) != 6 {
				t.Errorf("list %s, error %v", list, err)
			}
		})
	}
}
