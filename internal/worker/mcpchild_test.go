package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// runTestbed serves the testbed on stdio, with two more tools: pid returns the
// process id, block ignores cancellation and takes ms milliseconds.
func runTestbed() {
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
		time.Sleep(time.Duration(in.Millis) * time.Millisecond)
		return testbedText("blocked"), nil
	})
	if err := s.Run(context.Background(), &sdk.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
