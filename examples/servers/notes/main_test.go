package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// connect opens a client to a notes server on a fresh folder.
func connect(t *testing.T, progress func(*mcp.ProgressNotificationParams)) (*mcp.ClientSession, string) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	server, client := mcp.NewInMemoryTransports()
	ss, err := newServer(&folder{root}).Connect(t.Context(), server, nil)
	if err != nil {
		t.Fatal(err)
	}
	opts := &mcp.ClientOptions{}
	if progress != nil {
		opts.ProgressNotificationHandler = func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { progress(r.Params) }
	}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, opts).Connect(t.Context(), client, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close(); ss.Wait() })
	return cs, dir
}

func call(t *testing.T, cs *mcp.ClientSession, tool string, args map[string]any) (string, bool) {
	t.Helper()
	params := &mcp.CallToolParams{Name: tool, Arguments: args}
	params.SetProgressToken("p")
	res, err := cs.CallTool(t.Context(), params)
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	return res.Content[0].(*mcp.TextContent).Text, res.IsError
}

func TestNotes(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 10)
	cs, dir := connect(t, func(p *mcp.ProgressNotificationParams) { seen <- p.Message })
	for _, title := range []string{"Einkauf ä", "todo"} {
		if out, bad := call(t, cs, "add_note", map[string]any{"title": title, "text": "buy milk\nand bread"}); bad {
			t.Fatal(out)
		}
		if _, err := os.Stat(filepath.Join(dir, title+".md")); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		tool string
		args map[string]any
		want string
		bad  bool
	}{
		{"list_notes", nil, `{"titles":["Einkauf ä","todo"]}`, false},
		{"read_note", map[string]any{"title": "todo"}, "buy milk\nand bread", false},
		{"read_note", map[string]any{"title": "none"}, `there is no note "none"`, true},
		{"search_notes", map[string]any{"word": "MILK"}, `"line":"buy milk"`, false},
		{"review_notes", map[string]any{"pause": 0.001}, "# todo\nbuy milk", false},
		{"delete_note", map[string]any{"title": "todo"}, "deleted todo.md", false},
		{"delete_note", map[string]any{"title": "todo"}, "there is no note", true},
		{"add_note", map[string]any{"title": "../x", "text": ""}, "use 1 to 60 letters", true},
		{"add_note", map[string]any{"title": "", "text": ""}, "use 1 to 60 letters", true},
	} {
		out, bad := call(t, cs, c.tool, c.args)
		if bad != c.bad || !strings.Contains(out, c.want) {
			t.Errorf("%s %v = %q (error %v), want %q (error %v)", c.tool, c.args, out, bad, c.want, c.bad)
		}
	}
	if got := <-seen + "," + <-seen; got != "Einkauf ä,todo" {
		t.Errorf("progress named %s", got)
	}
}

func TestLinkOutOfTheFolder(t *testing.T) {
	t.Parallel()
	cs, dir := connect(t, nil)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(dir, "link.md")); err != nil {
		t.Fatal(err)
	}
	if out, bad := call(t, cs, "read_note", map[string]any{"title": "link"}); !bad || strings.Contains(out, "secret\n") {
		t.Errorf("read through a link: %q", out)
	}
}
