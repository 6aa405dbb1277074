package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"toolhub/internal/daemon"
	"toolhub/internal/worker"
)

func TestMain(m *testing.M) {
	worker.ReapMain()
	goleak.VerifyTestMain(m)
}

// A worker that cannot start says why, and with which exit code.
func TestStartThatFails(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "hub.yaml")
	if err := os.WriteFile(file, []byte("policy: allow_all\nnats: {url: 'nats://127.0.0.1:1'}\nlisten: 127.0.0.1:0\nhub: b-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "hub.yaml")
	if err := os.WriteFile(bad, []byte("polcy: allow_all\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	nats := daemon.Bus{NATS: "nats://127.0.0.1:1"}
	for _, k := range []struct {
		name string
		f    flags
		code int
		says string
	}{
		{"no NATS named", flags{}, daemon.ExitUsage, "give --nats URL"},
		{"a bad name", flags{Bus: daemon.Bus{NATS: "nats://127.0.0.1:1", Hub: "A"}}, daemon.ExitUsage, "--hub: "},
		{"no NATS there", flags{Bus: nats}, daemon.ExitFailed, "couldn't connect to NATS"},
		{"no NATS where the file says", flags{File: file}, daemon.ExitFailed, "127.0.0.1:1"},
		{"a bad file", flags{File: bad}, daemon.ExitUsage, `did you mean "policy"?`},
		{"no file", flags{File: bad + "x"}, daemon.ExitFailed, "no such file"},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var errs bytes.Buffer
			k.f.Log.Format = "text"
			code := daemon.Report(&errs, "hub-worker", k.f.run(ctx, &errs))
			if code != k.code || !strings.Contains(errs.String(), k.says) {
				t.Errorf("exit code %d, want %d and %q\n%s", code, k.code, k.says, &errs)
			}
		})
	}
}
