//lint:file-ignore SA1019 logging is deprecated, and clients go on using it: a testbed has it.

package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// testbedIn holds the arguments of all tools of the testbed.
type testbedIn struct {
	Text    string `json:"text"`
	Name    string `json:"name"`
	Message string `json:"message"`
	Level   string `json:"level"`
	Code    int64  `json:"code"`
	Bytes   int    `json:"bytes"`
	Count   int    `json:"count"`
	Millis  int    `json:"ms"`
	Steps   int    `json:"steps"`
}

// rawResult is a result whose bytes are sent as they are.
type rawResult struct {
	sdk.ResultBase
	json jsontext.Value
}

func (r *rawResult) MarshalJSON() ([]byte, error) { return r.json, nil }

// testbedRaw are results that the SDK's types cannot express, by tool.
var testbedRaw = map[string]string{
	"odd": `{"resultType":"complete","content":[{"type":"text","text":"odd","x-block":{"kept":true}},{"type":"hologram","frames":[1,2],"depth":1e400}],` +
		`"x-result":[null,{"a":""}],"_meta":{"example.org/big":9007199254740993}}`,
	"numbers": `{"resultType":"complete","content":[{"type":"text","text":"numbers"}],"structuredContent":{"big":9007199254740993,"huge":123456789012345678901234567890,` +
		`"one":1.0,"tiny":1e-400,"negative_zero":-0}}`,
}

// newTestbed makes the builtin server `testbed`: tools that do on purpose what a
// hub has to cope with. It is there for tests, trials and benchmarks.
func newTestbed(cut func()) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "testbed", Title: "Testbed", Version: "1.0.0"}, &sdk.ServerOptions{
		Instructions: "Tools for trying out a hub.",
		Capabilities: &sdk.ServerCapabilities{Logging: &sdk.LoggingCapabilities{}, Tools: &sdk.ToolCapabilities{ListChanged: true}},
	})
	add := func(name, description, properties string, h func(context.Context, *sdk.CallToolRequest, testbedIn) (*sdk.CallToolResult, error)) {
		schema := jsontext.Value(`{"type":"object","properties":{` + properties + `}}`)
		s.AddTool(&sdk.Tool{Name: name, Description: description, InputSchema: schema}, func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			var in testbedIn
			if len(req.Params.Arguments) > 0 {
				if err := json.Unmarshal(req.Params.Arguments, &in); err != nil {
					return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
				}
			}
			return h(ctx, req, in)
		})
	}
	add("echo", "Returns the text and the arguments.", `"text":{"type":"string"}`, func(_ context.Context, req *sdk.CallToolRequest, in testbedIn) (*sdk.CallToolResult, error) {
		result := testbedText(in.Text)
		if len(req.Params.Arguments) > 0 {
			result.StructuredContent = req.Params.Arguments
		}
		return result, nil
	})
	add("slow", "Takes ms milliseconds in the given number of steps, with progress.", `"ms":{"type":"integer"},"steps":{"type":"integer"}`, testbedSlow)
	add("hang", "Answers only when it is cancelled.", ``, func(ctx context.Context, _ *sdk.CallToolRequest, _ testbedIn) (*sdk.CallToolResult, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	add("fail", "Fails with a result that says isError.", `"message":{"type":"string"}`, func(_ context.Context, _ *sdk.CallToolRequest, in testbedIn) (*sdk.CallToolResult, error) {
		result := testbedText(in.Message)
		result.IsError = true
		return result, nil
	})
	add("fail_rpc", "Fails with a JSON-RPC error.", `"code":{"type":"integer"},"message":{"type":"string"}`, func(_ context.Context, _ *sdk.CallToolRequest, in testbedIn) (*sdk.CallToolResult, error) {
		return nil, &jsonrpc.Error{Code: in.Code, Message: in.Message, Data: []byte(`{"from":"testbed"}`)}
	})
	add("big", "Returns a text of the given number of bytes.", `"bytes":{"type":"integer","maximum":67108864}`, func(_ context.Context, _ *sdk.CallToolRequest, in testbedIn) (*sdk.CallToolResult, error) {
		return testbedText(strings.Repeat("x", min(max(in.Bytes, 0), 64<<20))), nil
	})
	add("log", "Sends count log messages of a level.", `"count":{"type":"integer"},"level":{"type":"string"}`, func(ctx context.Context, req *sdk.CallToolRequest, in testbedIn) (*sdk.CallToolResult, error) {
		for i := range in.Count {
			if err := req.Session.Log(ctx, &sdk.LoggingMessageParams{Level: sdk.LoggingLevel(in.Level), Logger: "testbed", Data: fmt.Sprintf("line %d", i+1)}); err != nil {
				return nil, err
			}
		}
		return testbedText(fmt.Sprintf("%d lines", in.Count)), nil
	})
	add("ask", "Asks the caller's user for a name (elicitation) and greets.", `"message":{"type":"string"}`, testbedAsk)
	add("add_tool", "Adds a tool of the given name, so that the list changes.", `"name":{"type":"string"}`, func(_ context.Context, _ *sdk.CallToolRequest, in testbedIn) (*sdk.CallToolResult, error) {
		if in.Name == "" {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "name must not be empty"}
		}
		s.AddTool(&sdk.Tool{Name: in.Name, Description: "Added at runtime.", InputSchema: jsontext.Value(`{"type":"object"}`)},
			func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				return testbedText(in.Name), nil
			})
		return testbedText("added"), nil
	})
	add("remove_tool", "Removes a tool.", `"name":{"type":"string"}`, func(_ context.Context, _ *sdk.CallToolRequest, in testbedIn) (*sdk.CallToolResult, error) {
		s.RemoveTools(in.Name)
		return testbedText("removed"), nil
	})
	add("crash", "Breaks the connection without an answer.", ``, func(ctx context.Context, _ *sdk.CallToolRequest, _ testbedIn) (*sdk.CallToolResult, error) {
		cut()
		return nil, errors.New("crashed")
	})
	for name := range testbedRaw {
		add(name, "Returns a result that typed code mangles.", ``, func(context.Context, *sdk.CallToolRequest, testbedIn) (*sdk.CallToolResult, error) {
			return nil, errors.New("unreachable: answered by the middleware")
		})
	}
	s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			if call, ok := req.(*sdk.CallToolRequest); ok && call.Params != nil {
				if raw, ok := testbedRaw[call.Params.Name]; ok {
					return &rawResult{json: jsontext.Value(raw)}, nil
				}
			}
			return next(ctx, method, req)
		}
	})
	return s
}

func testbedText(text string) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}
}

func testbedSlow(ctx context.Context, req *sdk.CallToolRequest, in testbedIn) (*sdk.CallToolResult, error) {
	steps := max(in.Steps, 1)
	step := time.Duration(in.Millis) * time.Millisecond / time.Duration(steps)
	for i := range steps {
		select {
		case <-time.After(step):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if token := req.Params.GetProgressToken(); token != nil {
			if err := req.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: float64(i + 1), Total: float64(steps), Message: fmt.Sprintf("step %d", i+1)}); err != nil {
				return nil, err
			}
		}
	}
	return testbedText(fmt.Sprintf("%d steps in %d ms", steps, in.Millis)), nil
}

// testbedAsk uses the way of the caller's era: MRTR, or a request to the client.
func testbedAsk(ctx context.Context, req *sdk.CallToolRequest, in testbedIn) (*sdk.CallToolResult, error) {
	if in.Message == "" {
		in.Message = "What is your name?"
	}
	ask := &sdk.ElicitParams{Message: in.Message, RequestedSchema: jsontext.Value(`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`)}
	var answer *sdk.ElicitResult
	if init := req.Session.InitializeParams(); init != nil && init.ProtocolVersion < "2026-07-28" {
		var err error
		if answer, err = req.Session.Elicit(ctx, ask); err != nil {
			return nil, err
		}
	} else if given, ok := req.Params.InputResponses["name"]; ok {
		if answer, ok = given.(*sdk.ElicitResult); !ok {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "inputResponses.name is no elicitation result"}
		}
	} else {
		return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"name": ask}, RequestState: "asked"}, nil
	}
	if answer.Action != "accept" {
		return testbedText("nobody told a name: " + answer.Action), nil
	}
	return testbedText(fmt.Sprintf("Hello, %v!", answer.Content["name"])), nil
}
