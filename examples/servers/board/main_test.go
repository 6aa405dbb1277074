package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestBoardInBothEras(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(handler(&board{}))
			defer srv.Close()
			cs, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(t.Context(),
				&mcp.StreamableClientTransport{Endpoint: srv.URL + "/mcp"}, &mcp.ClientSessionOptions{ProtocolVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			defer cs.Close()
			if got := cs.InitializeResult().ProtocolVersion; got != version {
				t.Errorf("negotiated %s, want %s", got, version)
			}
			for _, c := range []struct {
				tool string
				args map[string]any
				want string
				bad  bool
			}{
				{"add_note", map[string]any{"text": "<b>hello</b>", "colour": "pink"}, "has 1 notes", false},
				{"add_note", map[string]any{"text": "x", "colour": "red"}, "use one of", true},
				{"add_note", map[string]any{"text": ""}, "1 to 200", true},
				{"list_notes", nil, `"colour":"pink"`, false},
			} {
				res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: c.tool, Arguments: c.args})
				if err != nil {
					t.Fatal(err)
				}
				if out := res.Content[0].(*mcp.TextContent).Text; res.IsError != c.bad || !strings.Contains(out, c.want) {
					t.Errorf("%s %v = %q (error %v), want %q (error %v)", c.tool, c.args, out, res.IsError, c.want, c.bad)
				}
			}
			res, err := http.Get(srv.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			html, _ := io.ReadAll(res.Body)
			if !strings.Contains(string(html), `<li class="pink">&lt;b&gt;hello`) {
				t.Errorf("the page does not show the note: %s", html)
			}
		})
	}
}

func TestLoopbackOnly(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"0.0.0.0:0", ":0", "example.com:80", "192.0.2.1:1"} {
		if err := run(t.Context(), addr); err == nil || !strings.Contains(err.Error(), "loopback") {
			t.Errorf("run on %s: %v, want a refusal", addr, err)
		}
	}
}
