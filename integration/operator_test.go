package integration_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestExamplesHold checks the configuration files of examples/.
func TestExamplesHold(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../examples/*/hub.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("found %v, %v", files, err)
	}
	for _, file := range files {
		cmd := exec.CommandContext(soon(t), binary("hub"), "config", "check", file)
		cmd.Env = append(cmd.Environ(), "HOME="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
}

// TestOperatorCommands: what the operator's commands print for a program, and
// the exit codes that docs/decisions/0007 promises.
func TestOperatorCommands(t *testing.T) {
	t.Parallel()
	h := start(t, fmt.Sprintf(`hub: operated
policy: {deny: [testbed/fail_rpc], ask: [testbed/ask], allow: ["*/*"]}
timeout: 30s
servers:
  testbed: {builtin: testbed}
  dice: {builtin: dice}
  bad: {command: %q, args: [-pid, "{dir}/pid"]}
  broken: {command: /nonexistent/program}
`, binary("badserver")))
	offered(t, h, "testbed__echo", "dice__roll", "bad__good")

	for _, row := range []struct {
		command string
		code    int
		text    string // in stdout or stderr
	}{
		{"servers", 0, "broken"},
		{"tools", 0, "dice__roll"},
		{"call dice__roll", 0, "d6"},
		{`call testbed__echo {"text":"hi"}`, 0, "hi"},
		{`call testbed__slow {"ms":50,"steps":2}`, 0, "2 steps"},
		{"call testbed__fail_rpc", 3, "testbed"}, // hidden, but the operator is told why
		{"call testbed__ask", 3, "approv"},
		{"call broken__anything", 7, "broken__anything"},
		{"call nonsense", 7, "nonsense"},
		{`call testbed__fail {"message":"no_luck"}`, 5, "no_luck"},
		{"call bad__own_error", 5, "own words"},
		{"call testbed__hang --timeout 300ms", 6, ""},
		{"call dice__roll [1]", 2, ""},
		{"call dice__roll {", 2, ""},
		{"nonsense", 2, "nonsense"},
		{"tools --format cobol", 2, "anthropic"},
		{"policy explain testbed/fail_rpc", 0, "deny"},
		{"policy explain testbed/ask", 0, "ask"},
		{"policy explain testbed/echo", 0, "allow"},
		{"policy explain nobody/echo", 7, "nobody"},
		{"policy explain nonsense", 2, "server/tool"},
		{"events server.broken.failed", 0, "nonexistent"},
	} {
		out, errs, code := h.Operator(soon(t), strings.Fields(row.command)...)
		if code != row.code || !strings.Contains(out+errs, row.text) {
			t.Errorf("hub %s: exit code %d, want %d and %q\n%s%s", row.command, code, row.code, row.text, out, errs)
		}
		if code != 0 && out != "" && code != 5 && row.command != "nonsense" {
			t.Errorf("hub %s: an error on stdout: %s", row.command, out)
		}
	}

	for command, path := range map[string]string{
		"servers --json":                  "servers.0.id",
		"tools --json":                    "tools.0.name",
		"tools --format anthropic":        "0.input_schema",
		"tools --format openai":           "0.function",
		"tools --format gemini":           "0.functionDeclarations",
		"policy explain --json dice/roll": "decision.effect",
		"call --json dice__roll":          "content.0.text",
		"events --json server.broken":     "subject",
	} {
		out, errs, code := h.Operator(soon(t), strings.Fields(command)...)
		first, _, _ := strings.Cut(out, "\n") // events are one line each
		var v any
		if err := json.Unmarshal([]byte(first), &v); err != nil || code != 0 {
			t.Errorf("hub %s: exit code %d, %v\n%s%s", command, code, err, out, errs)
			continue
		}
		for step := range strings.SplitSeq(path, ".") {
			switch at := v.(type) {
			case map[string]any:
				v = at[step]
			case []any:
				if len(at) > 0 {
					v = at[0]
				}
			default:
				v = nil
			}
		}
		if v == nil {
			t.Errorf("hub %s has no %s:\n%.1000s", command, path, out)
		}
	}

	// No hub there.
	cmd := exec.CommandContext(soon(t), binary("hub"), "servers", "--state-dir", t.TempDir())
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 4 || !strings.Contains(string(out), "hub up") {
		t.Errorf("hub servers without a hub: %v, want exit code 4\n%s", err, out)
	}
	// A second hub on the same state.
	cmd = exec.CommandContext(soon(t), binary("hub"), "up", filepath.Join(h.Dir, "hub.yaml"))
	if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "another hub") {
		t.Errorf("a second hub on the same state: %v, want exit code 1\n%s", err, out)
	}
	fine(t, h)
}
