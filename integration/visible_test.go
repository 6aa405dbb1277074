package integration_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"toolhub/integration/hubproc"
)

// TestStockNATS: what `nats micro`, `nats kv`, `nats stream` and `nats sub` ask
// for is answered by a hub without any other tool.
func TestStockNATS(t *testing.T) {
	t.Parallel()
	h := start(t, "hub: seen\n"+dice)
	offered(t, h, "dice__roll")
	nc := natsOf(t, h)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	// nats sub 'toolhub.seen.event.>'
	live, err := nc.SubscribeSync("toolhub.seen.event.call.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.FlushWithContext(soon(t)); err != nil {
		t.Fatal(err)
	}
	says(t, h, "dice__roll", `{"dice":"3d6"}`, "3d6")
	for _, what := range []string{"started", "finished"} {
		msg, err := live.NextMsgWithContext(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		if msg.Subject != "toolhub.seen.event.call.dice."+what || !json.Valid(msg.Data) || bytes.Contains(msg.Data, []byte("3d6")) {
			t.Errorf("an event on %s, want call.dice.%s, in JSON and without arguments: %s", msg.Subject, what, msg.Data)
		}
	}
	// nats micro ls: router and worker each answer.
	inbox := nc.NewInbox()
	answers, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.PublishRequest("$SRV.INFO", inbox, nil); err != nil {
		t.Fatal(err)
	}
	seen := ""
	for !strings.Contains(seen, "toolhub.seen.call.dice.") || !strings.Contains(seen, "toolhub.seen.api.") {
		msg, err := answers.NextMsgWithContext(soon(t))
		if err != nil {
			t.Fatalf("no service has the subjects of both, router and worker: %v\n%s", err, seen)
		}
		seen += string(msg.Data) + "\n"
	}
	// nats kv ls, nats stream ls
	for _, bucket := range []string{"defs", "reg", "policy", "sessions"} {
		if _, err := js.KeyValue(soon(t), "TOOLHUB_seen_"+bucket); err != nil {
			t.Errorf("bucket %s: %v", bucket, err)
		}
	}
	stream, err := js.Stream(soon(t), "TOOLHUB_seen_events")
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	if cfg.MaxBytes <= 0 && cfg.MaxAge <= 0 {
		t.Errorf("the stream of events is not bounded: %+v", cfg)
	}
}

// TestNoSecretIsKept: what a reference stands for reaches the server and nothing
// else, even where the server repeats it: no log at any level, no event, no bucket, no file of the state directory.
func TestNoSecretIsKept(t *testing.T) {
	t.Parallel()
	const secret, argument = "s3cr3t-Of-The-Environment", "argument-Of-A-Person"
	dir := t.TempDir()
	h := startProgram(t, hubproc.Config{
		Binary: binary("hub"), Dir: dir, Env: []string{"TOOLHUB_TEST_TOKEN=" + secret},
		Args: []string{"up", "{file}", "--log-level", "debug"},
		YAML: fmt.Sprintf(`policy: allow_all
restart_backoff: {initial: 10ms, max: 100ms}
servers:
  tells: {command: sh, args: [-c, 'echo "$TOKEN" >"$DIR/told"; exec %s -pid "$DIR/pid"'], env: {TOKEN: "${env:TOOLHUB_TEST_TOKEN}", DIR: "{dir}"}}
  repeats: {command: sh, args: [-c, 'echo "no such token: $TOKEN" >&2; exit 3'], env: {TOKEN: "${env:TOOLHUB_TEST_TOKEN}"}}
  remote: {url: "http://127.0.0.1:1/mcp", headers: {X-Key: "${env:TOOLHUB_TEST_TOKEN}"}, auth: {bearer: "${env:TOOLHUB_TEST_TOKEN}"}}
  testbed: {builtin: testbed}
`, binary("badserver")),
	})
	offered(t, h, "tells__good", "testbed__echo")
	told, err := os.ReadFile(filepath.Join(dir, "told"))
	if err != nil || strings.TrimSpace(string(told)) != secret {
		t.Fatalf("the server was told %q, %v", told, err)
	}
	says(t, h, "testbed__echo", `{"text":"`+argument+`"}`, argument)
	_, _, _ = h.Call(soon(t), "testbed__fail", `{"message":"`+argument+`"}`)
	eventually(t, func() error {
		return firstOf(happened(t, h, "server.remote.down", "remote"), happened(t, h, "server.repeats.failed", "no such token: [redacted]"), happened(t, h, "call.testbed.finished", "echo"))
	})
	for _, command := range []string{"servers --json", "events --json", "tools --json"} {
		out, errs, _ := h.Operator(soon(t), strings.Fields(command)...)
		if strings.Contains(out+errs, secret) || strings.Contains(out+errs, argument) {
			t.Errorf("hub %s shows what it must not", command)
		}
	}
	stop(t, h)
	for _, text := range []string{secret, argument} {
		if strings.Contains(h.Log(), text) {
			t.Errorf("the log has %q", text)
		}
		err := filepath.WalkDir(filepath.Join(dir, "state"), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			if err == nil && bytes.Contains(data, []byte(text)) {
				t.Errorf("%s has %q", path, text)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestManyServers runs as many servers as one hub is promised to bear.
func TestManyServers(t *testing.T) {
	t.Parallel()
	servers := 1000
	if buildFlags != nil {
		servers = 200 // a program with the race detector is slower by a lot
	}
	var yaml strings.Builder
	fmt.Fprintf(&yaml, "policy: allow_all\nmax_servers: %d\nservers:\n  dice: {builtin: dice}\n", servers)
	for i := range servers - 1 {
		fmt.Fprintf(&yaml, "  s%03d: {builtin: dice}\n", i)
	}
	h := start(t, yaml.String())
	eventually(t, func() error {
		names, err := h.Tools(soon(t))
		if err == nil && len(names) != servers {
			err = fmt.Errorf("%d tools are listed", len(names))
		}
		return err
	})
	says(t, h, fmt.Sprintf("s%03d__roll", servers-2), "{}", "d6")
	fine(t, h)
}
