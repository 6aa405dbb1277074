package worker

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"toolhub/internal/mcp"
	"toolhub/schema"
)

// Events have arguments and results only where the audit says so (E1), and a
// change of it takes effect without a new connection.
func TestAuditBodies(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("s3cr3t-Of-The-Server"), 0o600); err != nil {
		t.Fatal(err)
	}
	yaml := func(audit string) string {
		return fmt.Sprintf(`policy: {deny: ["*/fail"], allow: ["*/*"]}
%s
servers:
  bed: {command: %q, env: {%s: testbed, GORACE: atexit_sleep_ms=0, SECRET: "${file:%s}"}}
  quiet: {builtin: testbed, audit: none}
`, audit, os.Args[0], childEnv, file)
	}
	h := newTestHub(t, yaml(""))
	const text = "between us"
	long := strings.Repeat("y", maxAuditBody)
	echo := func(server, args string) {
		t.Helper()
		if _, err := h.do(testCall{server: server, tool: "echo", args: args}); err != nil {
			t.Fatal(err)
		}
	}
	bodies := func(e string, n int) string {
		t.Helper()
		event := h.event("call", "bed", e, n)
		return field(event, "arguments") + "|" + field(event, "result") + "|" + field(event, "truncated")
	}
	echo("bed", `{"text":"`+text+`"}`)
	epoch := h.ready("bed").Epoch()
	if got := bodies("started", 1) + bodies("finished", 1); got != "||||" {
		t.Errorf("by default events have %s", got)
	}

	h.apply(yaml("audit: bodies"))
	args := `{"text":"` + text + `", "n": 1.0}`
	// The worker sees the change soon after us, if not before.
	n := 1
	for ; bodies("started", n) == "||"; n++ {
		echo("bed", args)
		if n > 500 {
			t.Fatal("audit: bodies has no effect")
		}
		h.event("call", "bed", "started", n+1)
	}
	if got := bodies("started", n); got != args+"||" {
		t.Errorf("started has %s, want the arguments as they were sent", got)
	}
	if got := bodies("finished", n); !strings.HasPrefix(got, "|{") || !strings.Contains(got, text) || !strings.HasSuffix(got, "}|") {
		t.Errorf("finished has %s, want the result", got)
	}
	if h.ready("bed").Epoch() != epoch {
		t.Error("the audit made a new connection")
	}
	for _, tt := range []struct{ args, started, finished string }{
		{`{"text":"` + long + `"}`, "||true", "||true"},
		{`{"text":"s3cr3t-Of-The-Server"}`, `{"text":"[redacted]"}||`, ""},
	} {
		n++
		echo("bed", tt.args)
		if got := bodies("started", n); got != tt.started {
			t.Errorf("started has %.200s, want %s", got, tt.started)
		}
		if got := bodies("finished", n); tt.finished != "" && got != tt.finished || strings.Contains(got, "s3cr3t") {
			t.Errorf("finished has %.200s, want %s", got, tt.finished)
		}
	}
	if _, err := h.do(testCall{server: "bed", tool: "fail", args: args}); !mcp.IsKind(err, mcp.KindDenied) {
		t.Error(err)
	}
	if got := bodies("denied", 1); got != args+"||" {
		t.Errorf("denied has %s", got)
	}
	if _, err := h.do(testCall{server: "bed", tool: "fail_rpc", args: `{"code":-32000}`}); err == nil {
		t.Error("no error")
	}
	n++
	if got := bodies("finished", n); got != "||" {
		t.Errorf("after the server's own error finished has %s", got)
	}
	echo("quiet", args)
	if e := h.event("call", "quiet", "started", 1); field(e, "arguments") != "" {
		t.Errorf("a server with audit: none has %s", field(e, "arguments"))
	}
}

// What an event could not carry is left out, so that the event is not lost.
func TestAuditBodyIsIJSON(t *testing.T) {
	t.Parallel()
	c := &call{server: &server{}}
	for in, want := range map[string]bool{
		`{"a":1}`: true, `{"a":1,"a":2}`: false, `{"a":"\ud800"}`: false, "": true,
	} {
		var v jsontext.Value
		if in != "" {
			v = jsontext.Value(in)
		}
		body, truncated := c.body(v)
		if truncated == want || want && string(body) != in || !want && body != nil {
			t.Errorf("%s became %s, truncated: %v", in, body, truncated)
		}
	}
}

// TestAuditExamples: the examples with bodies in docs/events.md are what a worker
// sends, byte for byte, and valid.
func TestAuditExamples(t *testing.T) {
	t.Parallel()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema.Event))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("event.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	valid, err := compiler.Compile("event.schema.json#/$defs/callEvent")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(page)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, `{"call_id"`) {
			continue
		}
		seen++
		var e callEvent
		if err := json.Unmarshal([]byte(line), &e, json.RejectUnknownMembers(true)); err != nil || string(e.json()) != line {
			t.Errorf("the example is\n%s\na worker would send\n%s (%v)", line, e.json(), err)
		}
		data, err := jsonschema.UnmarshalJSON(strings.NewReader(line))
		if err == nil {
			err = valid.Validate(data)
		}
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if seen != 2 {
		t.Errorf("%d examples", seen)
	}
	e := callEvent{CallID: "c", Tool: "t", Definition: "d", Truncated: true}
	data, err := jsonschema.UnmarshalJSON(bytes.NewReader(e.json()))
	if err == nil {
		err = valid.Validate(data)
	}
	if err != nil {
		t.Error(err)
	}
}
