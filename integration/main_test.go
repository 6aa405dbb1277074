// Package integration tests the hub as its users see it: real processes, a file,
// an endpoint, exit codes.
package integration_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"toolhub/integration/hubproc"
)

// patience bounds every wait for something that has to happen. It is far beyond
// what is needed, so that a busy machine fails no test.
const patience = time.Minute

// binaries is the folder of the programs under test.
var binaries string

func TestMain(m *testing.M) {
	if os.Getenv(insideREADME) != "" {
		fmt.Println("these tests run outside") // see TestREADMETestCommand
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "toolhub-integration-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries = dir
	err = hubproc.Build(context.Background(), dir, buildFlags,
		"toolhub/cmd/hub", "toolhub/cmd/hub-router", "toolhub/cmd/hub-worker",
		"toolhub/integration/badserver", "toolhub/integration/everyfeature", "toolhub/integration/taskserver", "toolhub/examples/servers/notes",
		"github.com/modelcontextprotocol/go-sdk/conformance/everything-server", "github.com/nats-io/nats-server/v2")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func binary(name string) string { return filepath.Join(binaries, name) }

// soon is a context for one wait.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t testing.TB, check func() error) {
	t.Helper()
	if err := hubproc.Until(soon(t), check); err != nil {
		t.Fatal(err)
	}
}

// start runs a hub with the configuration until the test ends, and then sees to
// it that it ends well: exit code 0, no process left, no data race, no panic.
func start(t testing.TB, yaml string) *hubproc.Hub {
	t.Helper()
	return startProgram(t, hubproc.Config{Binary: binary("hub"), Dir: t.TempDir(), YAML: yaml})
}

func startProgram(t testing.TB, cfg hubproc.Config) *hubproc.Hub {
	t.Helper()
	h, err := hubproc.Start(soon(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	watch(t, h)
	t.Cleanup(func() {
		select {
		case <-h.Done(): // the test has ended it itself
		default:
			stop(t, h)
		}
	})
	return h
}

// watch has the end of the test look at what a hub leaves behind.
func watch(t testing.TB, h *hubproc.Hub) {
	t.Cleanup(func() {
		h.Kill() // nothing, as a rule
		noProcess(t, h.Dir)
		log := h.Log()
		for _, bad := range []string{"DATA RACE", "panic:", "fatal error:"} {
			if strings.Contains(log, bad) {
				t.Errorf("the hub's log has %q", bad)
			}
		}
		if t.Failed() {
			if len(log) > 20_000 {
				log = log[:4000] + "\n…\n" + log[len(log)-16_000:]
			}
			t.Logf("the log of %s:\n%s", h.Dir, log)
		}
	})
}

// stop ends a hub as its service manager does.
func stop(t testing.TB, h *hubproc.Hub) {
	t.Helper()
	if err := h.Stop(soon(t)); err != nil {
		t.Errorf("the hub didn't end well: %v", err)
	}
}

// noProcess checks that nothing runs any more that has mark in its command line
// or environment. What was killed needs a moment to be gone.
func noProcess(t testing.TB, mark string) {
	t.Helper()
	err := hubproc.Until(soon(t), func() error {
		if left := hubproc.Processes(mark); len(left) > 0 {
			return fmt.Errorf("processes are left:\n%s", strings.Join(left, "\n"))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// offered waits until all of the tools are in the list at /mcp.
func offered(t testing.TB, h *hubproc.Hub, tools ...string) {
	t.Helper()
	eventually(t, func() error {
		names, err := h.Tools(soon(t))
		if err != nil {
			return err
		}
		for _, tool := range tools {
			if !slices.Contains(names, tool) {
				return fmt.Errorf("%s is not listed, but %v are", tool, names)
			}
		}
		return nil
	})
}

// withdrawn waits until the tool is in no list any more.
func withdrawn(t testing.TB, h *hubproc.Hub, tool string) {
	t.Helper()
	eventually(t, func() error {
		names, err := h.Tools(soon(t))
		if err == nil && slices.Contains(names, tool) {
			err = fmt.Errorf("%s is still listed", tool)
		}
		return err
	})
}

// says calls a tool and checks the text of its result.
func says(t testing.TB, h *hubproc.Hub, tool, args, want string) {
	t.Helper()
	got, isError, err := h.Call(soon(t), tool, args)
	if err != nil || isError || !strings.Contains(got, want) {
		t.Errorf("%s %s = %.200q (isError %v), %v; want %q", tool, args, got, isError, err, want)
	}
}

// eras are the versions that tests of both eras use.
var eras = []string{hubproc.Legacy, hubproc.Modern}

// connect is the official Go SDK's client at url, in the era of version.
func connect(t testing.TB, url, version string, opts *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	return dial(t, &sdk.StreamableClientTransport{Endpoint: url}, version, opts)
}

func dial(t testing.TB, transport sdk.Transport, version string, opts *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, opts)
	cs, err := client.Connect(soon(t), transport, &sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatalf("couldn't connect as %s: %v", version, err)
	}
	t.Cleanup(func() { cs.Close() })
	if got := cs.InitializeResult().ProtocolVersion; got != version {
		t.Fatalf("negotiated %s, want %s", got, version)
	}
	return cs
}

// toolNames lists with the SDK's client, all pages.
func toolNames(t testing.TB, cs *sdk.ClientSession) []string {
	t.Helper()
	var names []string
	for tool, err := range cs.Tools(soon(t), nil) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, tool.Name)
	}
	return names
}

// callText calls a tool with the SDK's client and returns its first text.
func callText(t testing.TB, cs *sdk.ClientSession, tool string, args map[string]any) string {
	t.Helper()
	params := &sdk.CallToolParams{Name: tool}
	if args != nil { // else the client sends {}; a nil map would be null
		params.Arguments = args
	}
	res, err := cs.CallTool(soon(t), params)
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	if len(res.Content) == 0 {
		t.Fatalf("%s: no content", tool)
	}
	text, ok := res.Content[0].(*sdk.TextContent)
	if !ok {
		t.Fatalf("%s: the first content is a %T", tool, res.Content[0])
	}
	if res.IsError {
		t.Fatalf("%s: isError: %s", tool, text.Text)
	}
	return text.Text
}

// listener runs a fixture that serves HTTP at the address in its arguments, {addr},
// until the test ends, and returns its URL once it listens.
func listener(t testing.TB, name string, args ...string) (url string) {
	t.Helper()
	addr, err := hubproc.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "{addr}", addr)
	}
	cmd := exec.Command(binary(name), args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	eventually(t, func() error {
		res, err := http.Get("http://" + addr)
		if err == nil {
			res.Body.Close()
		}
		return err
	})
	return "http://" + addr
}

// everyfeature runs the fixture over HTTP in each era, and returns the URLs.
func everyfeature(t testing.TB) map[string]string {
	t.Helper()
	urls := make(map[string]string)
	for _, era := range []string{"legacy", "modern"} {
		urls[era] = listener(t, "everyfeature", "-http", "{addr}", "-era", era)
	}
	return urls
}
