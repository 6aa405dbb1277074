package main

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"toolhub/internal/config"
)

// hub events --follow shows what happens from then on, --since also what was
// before, and Ctrl-C ends it.
func TestEventsFollow(t *testing.T) { // E1
	t.Parallel()
	h := start(t, t.TempDir(), configuration(everything, "servers:", "  dice: {builtin: dice}"))
	h.eventually("dice__roll", "tools")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "events", "--follow", "--since", "1h", "--state-dir", filepath.Join(h.dir, "state"))
	cmd.Env = append(os.Environ(), asHub+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	var order []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		words := strings.Fields(lines.Text())
		order = append(order, words[2])
		switch {
		case strings.HasPrefix(words[2], "catalog.dice."): // of the past
			if code, _, errs := h.ask("call", "dice__roll"); code != 0 {
				t.Error(errs)
			}
		case words[2] == "call.dice.finished":
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Error(err)
			}
		}
	}
	_ = cmd.Wait()
	all := strings.Join(order, " ")
	up, started, finished := strings.Index(all, "server.dice.up"), strings.Index(all, "call.dice.started"), strings.Index(all, "call.dice.finished")
	if code := cmd.ProcessState.ExitCode(); code != exitKilled || up < 0 || started < up || finished < started {
		t.Errorf("exit code %d: %s", code, all)
	}
	h.stop()
}

// lineWriter hands on what is written to it.
type lineWriter chan string

func (w lineWriter) Write(p []byte) (int, error) {
	w <- string(p)
	return len(p), nil
}

// A person sees servers as they come up, and nothing of an earlier run.
func TestProgress(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "hub.yaml")
	load := func() (*config.File, error) { return loadConfig(path) }
	for _, server := range []string{"first", "second"} {
		write(t, dir, configuration(everything, "state_dir: state", "servers:", "  "+server+": {builtin: clock}"))
		file, err := load()
		if err != nil {
			t.Fatal(err)
		}
		shown := make(lineWriter, 100)
		n, err := startNode(t.Context(), nodeConfig{File: file, Path: path, Reload: load, HTTP: true, Progress: shown, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- n.run(ctx) }()
		timeout := time.After(30 * time.Second)
		for up := false; !up; {
			select {
			case line := <-shown:
				words := strings.Fields(line)
				if words[0] != server && words[1] != "removed" {
					t.Errorf("of another run: %s", line)
				}
				up = words[0] == server && words[1] == "up"
			case <-timeout:
				t.Fatal("nothing is shown")
			}
		}
		enough := errors.New("enough")
		cancel(enough)
		if err := <-ended; !errors.Is(err, enough) {
			t.Error(err)
		}
		n.close()
	}
}
