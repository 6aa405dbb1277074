package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"toolhub/integration/hubproc"
)

// several is a hub with a server of each kind.
func several(t *testing.T, more string) *hubproc.Hub {
	t.Helper()
	h := start(t, fmt.Sprintf(`hub: several
policy:
  deny: [testbed/fail_rpc, {tool: testbed/echo, when: 'args.text == "secret"'}]
  ask: [testbed/ask]
  allow: ["*/*"]
max_message_bytes: 9MiB
servers:
  notes: {command: %q, args: [-dir, "{dir}/notes"]}
  everything: {command: %q, env: {MARK: "{dir}"}}
  testbed: {builtin: testbed}
  dice: {builtin: dice}
%s`, binary("notes"), binary("everything-server"), more))
	offered(t, h, "notes__add_note", "everything__test_simple_text", "testbed__echo", "dice__roll")
	return h
}

// TestBothErasMeet has the official SDK's client of each era, over HTTP and
// over stdio, before servers of both eras.
func TestBothErasMeet(t *testing.T) {
	t.Parallel()
	h := several(t, fmt.Sprintf("  old: {command: %q, era: legacy, env: {MARK: \"{dir}\"}}\n  new: {command: %[1]q, era: modern, env: {MARK: \"{dir}\"}}\n", binary("everything-server")))
	offered(t, h, "old__test_simple_text", "new__test_simple_text")
	for _, version := range eras {
		t.Run(version, func(t *testing.T) {
			cs := connect(t, h.URL+"/mcp", version, nil)
			names := toolNames(t, cs)
			for _, want := range []string{"notes__list_notes", "dice__roll", "old__test_simple_text", "new__test_simple_text"} {
				if !slices.Contains(names, want) {
					t.Errorf("%s is not listed", want)
				}
			}
			if slices.Contains(names, "testbed__fail_rpc") {
				t.Error("a tool that is denied whatever its arguments is listed")
			}
			callText(t, cs, "notes__add_note", map[string]any{"title": "from " + version, "text": "hello"})
			if got := callText(t, cs, "notes__read_note", map[string]any{"title": "from " + version}); got != "hello" {
				t.Errorf("the note says %q", got)
			}
			callText(t, cs, "old__test_simple_text", nil)
			callText(t, cs, "new__test_simple_text", nil)
			// Many clients send null where they have no arguments.
			if res, err := cs.CallTool(soon(t), &sdk.CallToolParams{Name: "new__test_simple_text", Arguments: json.RawMessage("null")}); err != nil || res.IsError {
				t.Errorf("a call with null arguments: %v, %v", err, res)
			}

			one := connect(t, h.URL+"/s/dice/mcp", version, nil)
			if names := toolNames(t, one); !slices.Equal(names, []string{"roll"}) {
				t.Errorf("the view of one server lists %v, want its own names", names)
			}
			if got := callText(t, one, "roll", map[string]any{"dice": "2d6"}); !strings.HasPrefix(got, "2d6: ") {
				t.Errorf("roll = %q", got)
			}
		})
	}
	for _, version := range eras {
		t.Run("stdio "+version, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			hub := hubproc.Config{Binary: binary("hub"), Dir: dir, YAML: fmt.Sprintf("policy: allow_all\nservers:\n  notes: {command: %q, args: [-dir, \"{dir}/notes\"]}\n  dice: {builtin: dice}\n", binary("notes"))}
			file, err := hub.Write()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(binary("hub"), "up", "--stdio", file)
			log := new(strings.Builder)
			cmd.Stderr = log
			changed := make(chan struct{}, 100)
			cs := dial(t, &sdk.CommandTransport{Command: cmd}, version, &sdk.ClientOptions{
				ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { changed <- struct{}{} },
			})
			for !slices.Contains(toolNames(t, cs), "notes__list_notes") || !slices.Contains(toolNames(t, cs), "dice__roll") {
				select { // servers come up in the background, and the client is told
				case <-changed:
				case <-soon(t).Done():
					t.Fatalf("the client wasn't told that servers came up:\n%s", log)
				}
			}
			callText(t, cs, "dice__roll", nil)
			callText(t, cs, "notes__add_note", map[string]any{"title": "a", "text": "b"})
			if err := cs.Close(); err != nil {
				t.Errorf("the hub didn't end well with its client: %v\n%s", err, log)
			}
			if code := cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("exit code %d\n%s", code, log)
			}
			noProcess(t, dir)
		})
	}
}

// TestResultsPassUnchanged: what a typed proxy loses comes through byte for byte.
func TestResultsPassUnchanged(t *testing.T) {
	t.Parallel()
	h := several(t, "")
	for _, tool := range []string{"odd", "numbers"} {
		r, err := h.Request(soon(t), "/mcp", "tools/call", `"name":"testbed__`+tool+`","arguments":{}`, map[string]string{"Mcp-Name": "testbed__" + tool})
		if err != nil || r.Result == nil {
			t.Fatalf("%s: %v, %v", tool, err, r)
		}
		direct := map[string]string{
			"odd": `{"resultType":"complete","content":[{"type":"text","text":"odd","x-block":{"kept":true}},{"type":"hologram","frames":[1,2],"depth":1e400}],` +
				`"x-result":[null,{"a":""}],"_meta":{"example.org/big":9007199254740993}}`,
			"numbers": `{"resultType":"complete","content":[{"type":"text","text":"numbers"}],"structuredContent":{"big":9007199254740993,"huge":123456789012345678901234567890,` +
				`"one":1.0,"tiny":1e-400,"negative_zero":-0}}`,
		}[tool]
		if string(r.Result) != direct {
			t.Errorf("%s came as\n%s\nwant\n%s", tool, r.Result, direct)
		}
	}
	// A result of 8 MiB, in both eras.
	const size = 8 << 20
	session, err := h.Initialize(soon(t), "/mcp", "{}")
	if err != nil {
		t.Fatal(err)
	}
	args := fmt.Sprintf(`"name":"testbed__big","arguments":{"bytes":%d}`, size)
	legacy, err := h.SessionRequest(soon(t), "/mcp", session, "tools/call", "{"+args+"}")
	if err != nil {
		t.Fatal(err)
	}
	modern, err := h.Request(soon(t), "/mcp", "tools/call", args, map[string]string{"Mcp-Name": "testbed__big"})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*hubproc.Response{legacy, modern} {
		var result struct{ Content []struct{ Text string } }
		if err := json.Unmarshal(r.Result, &result); err != nil {
			t.Errorf("%v: %v", err, r)
		} else if len(result.Content) != 1 || result.Content[0].Text != strings.Repeat("x", size) {
			t.Errorf("a text of %d bytes came as %d blocks", size, len(result.Content))
		}
	}
}

// TestNoWayAroundThePolicy tries a denied tool by every way in: the merged
// endpoint and the view of one server in both eras, and the operator's command.
// (TestBadInput goes over the bus, too; here those go who say that they are somebody.)
func TestNoWayAroundThePolicy(t *testing.T) {
	t.Parallel()
	t.Run("forged", forgedCalls)
	h := several(t, "")
	for _, denied := range []struct{ tool, args string }{
		{"fail_rpc", `{}`},               // denied whatever its arguments, and hidden
		{"echo", `{"text":"secret"}`},    // denied for these arguments
		{"ask", `{"message":"please?"}`}, // nobody can be asked
	} {
		for path, name := range map[string]string{"/mcp": "testbed__" + denied.tool, "/s/testbed/mcp": denied.tool} {
			params := fmt.Sprintf(`"name":%q,"arguments":%s`, name, denied.args)
			modern, err := h.Request(soon(t), path, "tools/call", params, map[string]string{"Mcp-Name": name})
			if err != nil {
				t.Fatal(err)
			}
			session, err := h.Initialize(soon(t), path, "{}")
			if err != nil {
				t.Fatal(err)
			}
			legacy, err := h.SessionRequest(soon(t), path, session, "tools/call", "{"+params+"}")
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range []*hubproc.Response{modern, legacy} {
				// A hidden tool is not known; knowing its name must not help.
				hidden := denied.tool == "fail_rpc" && r.Error != nil && r.Error.Code == -32602
				if r.Error == nil || r.Error.Data.Kind != "denied" && !hidden {
					t.Errorf("%s %s at %s: %v, want it denied", name, denied.args, path, r)
				}
			}
		}
		_, stderr, code := h.Operator(soon(t), "call", "testbed__"+denied.tool, denied.args)
		if code != 3 && (code != 7 || denied.tool != "fail_rpc") {
			t.Errorf("hub call testbed__%s %s: exit code %d, want 3: %s", denied.tool, denied.args, code, stderr)
		}
	}
	says(t, h, "testbed__echo", `{"text":"public"}`, "public")
}

// TestCallerLeaves: who goes away in the middle of a call cancels it at the server.
func TestCallerLeaves(t *testing.T) {
	t.Parallel()
	h := several(t, "")
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, _, err := h.Call(ctx, "testbed__hang", "{}")
		left <- err
	}()
	// The call has reached the server.
	eventually(t, func() error { return happened(t, h, "call.testbed.started", "hang") })
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the call ended with %v", err)
	}
	eventually(t, func() error { return happened(t, h, "call.testbed.finished", "cancelled") })
	says(t, h, "testbed__echo", `{"text":"still here"}`, "still here")
}

// happened reports whether an event that matches filter has text in it.
func happened(t testing.TB, h *hubproc.Hub, filter, text string) error {
	out, stderr, code := h.Operator(soon(t), "events", "--json", filter)
	if code != 0 {
		return fmt.Errorf("hub events: exit code %d: %s", code, stderr)
	}
	if !strings.Contains(out, text) {
		return fmt.Errorf("no event %s has %q:\n%s", filter, text, out)
	}
	return nil
}
