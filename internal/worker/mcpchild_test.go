//lint:file-ignore SA1019 logging, roots and sampling are deprecated, and servers go on using them.

package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

func runTestbed() {
	if err := testbedWithPid().Run(context.Background(), &sdk.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// testbedWithPid is the testbed with two more tools: pid returns the process id,
// block ignores cancellation and takes ms milliseconds.
func testbedWithPid() *sdk.Server {
	s := newTestbed(func() { os.Exit(5) })
	schema := json.RawMessage(`{"type":"object"}`)
	s.AddTool(&sdk.Tool{Name: "pid", InputSchema: schema}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return testbedText(fmt.Sprint(os.Getpid())), nil
	})
	s.AddTool(&sdk.Tool{Name: "block", InputSchema: schema}, func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		var in testbedIn
		if err := json.Unmarshal(req.Params.Arguments, &in); err != nil {
			return nil, err
		}
		<-time.After(time.Duration(in.Millis) * time.Millisecond)
		return testbedText("blocked"), nil
	})
	return s
}

// newAsker is a server that asks its client things during calls, in the way of
// the initialize era.
func newAsker() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "asker", Version: "1"}, &sdk.ServerOptions{
		Capabilities: &sdk.ServerCapabilities{Logging: &sdk.LoggingCapabilities{}, Tools: &sdk.ToolCapabilities{}},
	})
	add := func(name string, h sdk.ToolHandler) {
		s.AddTool(&sdk.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, h)
	}
	elicit := func(ctx context.Context, req *sdk.CallToolRequest, message string) string {
		res, err := req.Session.Elicit(ctx, &sdk.ElicitParams{Message: message, RequestedSchema: json.RawMessage(`{"type":"object","properties":{"v":{"type":"string"}}}`)})
		if err != nil {
			return "error: " + err.Error()
		}
		return res.Action + ":" + fmt.Sprint(res.Content["v"])
	}
	roots := func(ctx context.Context, req *sdk.CallToolRequest) string {
		res, err := req.Session.ListRoots(ctx, nil)
		if err != nil {
			return "error: " + err.Error()
		}
		var uris []string
		for _, r := range res.Roots {
			uris = append(uris, r.URI)
		}
		return "roots " + strings.Join(uris, ",")
	}
	// once asks one thing and tells before and after it.
	add("once", func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		progress := func(n float64) {
			if token := req.Params.GetProgressToken(); token != nil {
				_ = req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: n})
			}
		}
		progress(1)
		got := elicit(ctx, req, "first?")
		progress(2)
		return testbedText(got), nil
	})
	add("twice", func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return testbedText(elicit(ctx, req, "first?") + " " + elicit(ctx, req, "second?")), nil
	})
	add("both", func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		var a, b string
		var wg sync.WaitGroup
		wg.Go(func() { a = elicit(ctx, req, "first?") })
		wg.Go(func() { b = roots(ctx, req) })
		wg.Wait()
		return testbedText(a + " " + b), nil
	})
	add("roots", func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return testbedText(roots(ctx, req)), nil
	})
	add("sample", func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		res, err := req.Session.CreateMessage(ctx, &sdk.CreateMessageParams{MaxTokens: 10, Messages: []*sdk.SamplingMessage{{Role: "user", Content: &sdk.TextContent{Text: "hi"}}}})
		if err != nil {
			return testbedText("error: " + err.Error()), nil
		}
		return testbedText("sampled " + res.Model), nil
	})
	// impatient gives its question up after a moment.
	add("impatient", func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		return testbedText(elicit(ctx, req, "quick?")), nil
	})
	// must cannot do without an answer, and tells what it heard instead.
	add("must", func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		_, err := req.Session.CreateMessage(ctx, &sdk.CreateMessageParams{MaxTokens: 10})
		return nil, err
	})
	add("visit", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: codeURLElicitation, Message: "sign in first", Data: json.RawMessage(
			`{"elicitations":[{"mode":"url","url":"https://example.org/in","message":"Sign in","elicitationId":"e1"}]}`)}
	})
	add("lost", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: -32002, Message: "no such resource", Data: json.RawMessage(`{"uri":"x:y"}`)}
	})
	return s
}

// serveHTTP serves an SDK server as Streamable HTTP and returns the URL.
func serveHTTP(t testing.TB, s *sdk.Server) string {
	t.Helper()
	srv := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, nil))
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections)
	return srv.URL
}
