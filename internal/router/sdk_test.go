package router

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// The official SDK's client is served in every version it speaks, over both
// transports.
func TestOfficialClient(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"} {
		for _, transport := range []string{"http", "stdio"} {
			t.Run(version+" "+transport, func(t *testing.T) {
				t.Parallel()
				testOfficialClient(t, version, transport)
			})
		}
	}
}

func testOfficialClient(t *testing.T, version, transport string) {
	b := newBed(t)
	r := b.router("r1")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	notes := make(chan string, 64) // what came outside of answers, in order
	opts := &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{},
		ProgressNotificationHandler: func(_ context.Context, n *sdk.ProgressNotificationClientRequest) {
			notes <- fmt.Sprintf("progress %v %v", n.Params.ProgressToken, n.Params.Progress)
		},
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { notes <- "changed" },
		ElicitationHandler: func(_ context.Context, q *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada, asked " + q.Params.Message}}, nil
		},
	}
	note := func(want string) {
		t.Helper()
		select {
		case got := <-notes:
			if got != want {
				t.Fatalf("%q came, want %q", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("%q never came", want)
		}
	}
	c := b.client()
	var tr sdk.Transport = &sdk.StreamableClientTransport{Endpoint: r.url, HTTPClient: c, MaxRetries: -1}
	if transport == "stdio" {
		in, toServer := io.Pipe()
		fromServer, out := io.Pipe()
		served := make(chan error, 1)
		go func() {
			served <- r.ServeStdio(context.Background(), in, out)
			out.Close()
		}()
		t.Cleanup(func() {
			toServer.Close()
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
		tr = &sdk.IOTransport{Reader: fromServer, Writer: toServer}
	}
	s, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, opts).Connect(ctx, tr, &sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := s.InitializeResult(); got != nil && version < "2026" && got.ProtocolVersion != version {
		t.Errorf("negotiated %s", got.ProtocolVersion)
	}
	tools, err := s.ListTools(ctx, nil)
	if err != nil || len(tools.Tools) != len(bedTools) {
		t.Fatalf("%v, %v", tools, err)
	}
	call := func(name string) string {
		t.Helper()
		params := &sdk.CallToolParams{Name: name, Arguments: map[string]any{"a": "größe"}}
		params.SetProgressToken("tok")
		res, err := s.CallTool(ctx, params)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return res.Content[0].(*sdk.TextContent).Text
	}
	if got := call("echo"); got != `{"a":"größe"}` {
		t.Errorf("%s", got)
	}
	if got := call("progress"); got != "done" {
		t.Errorf("%s", got)
	}
	for i := range 3 {
		note(fmt.Sprintf("progress tok %d", i+1))
	}
	if got := call("big"); len(got) != 3<<20 {
		t.Errorf("%d bytes", len(got))
	}
	if version != "2025-03-26" { // which has no elicitation
		if got := call("ask"); !strings.Contains(got, "Ada, asked [t] who?") {
			t.Errorf("%s", got)
		}
		note("progress tok 1")
	}
	if _, err := s.CallTool(ctx, &sdk.CallToolParams{Name: "nope"}); err == nil {
		t.Error("an unknown tool is called")
	}

	cancelled, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		params := &sdk.CallToolParams{Name: "wait"}
		params.SetProgressToken("w")
		_, _ = s.CallTool(cancelled, params)
	}()
	b.tells("began")
	note("progress w 1")
	stop()
	b.tells("cancelled")
	<-done

	b.server.publish(bedDefs("echo", "wait"))
	note("changed")
	if got := call("echo"); got != `{"a":"größe"}` {
		t.Errorf("%s", got)
	}
}
