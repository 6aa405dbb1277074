package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"toolhub/internal/config"
)

// asProgram makes this test binary a program that ignores its first signal.
const asProgram = "TOOLHUB_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		never := make(chan struct{})
		_ = Run(os.Stderr, func(ctx context.Context) error {
			fmt.Println("running")
			<-ctx.Done()
			fmt.Println("draining")
			<-never
			return nil
		})
		return
	}
	goleak.VerifyTestMain(m)
}

func TestBusConfig(t *testing.T) {
	t.Parallel()
	file := &config.File{Hub: "filed", NATS: config.NATS{URL: "nats://file", NKey: "file.nk"}}
	for _, k := range []struct {
		name  string
		flags Bus
		file  *config.File
		want  string
		says  string
	}{
		{"flags alone", Bus{Hub: "h", NATS: "nats://a", NKey: "k"}, nil, "h nats://a k ", ""},
		{"the name by default", Bus{NATS: "nats://a"}, nil, "hub nats://a  ", ""},
		{"the file alone", Bus{}, file, "filed nats://file file.nk ", ""},
		{"flags before the file", Bus{Hub: "h", NATS: "nats://a", Creds: "c"}, file, "h nats://a  c", ""},
		{"neither", Bus{}, nil, "", "give --nats URL, or a FILE with nats.url"},
		{"a file of a hub with NATS of its own", Bus{}, &config.File{Hub: "h"}, "", "give --nats URL"},
		{"two credentials", Bus{NATS: "nats://a", NKey: "k", Creds: "c"}, nil, "", "--nkey and --creds are both given"},
		{"a bad name", Bus{Hub: "A B", NATS: "nats://a"}, nil, "", "is no name of a hub"},
	} {
		cfg, err := k.flags.Config("me", k.file, slog.New(slog.DiscardHandler))
		if k.says != "" {
			if err == nil || !strings.Contains(err.Error(), k.says) {
				t.Errorf("%s: %v", k.name, err)
			}
			continue
		}
		if got := strings.Join([]string{cfg.Hub, cfg.URL, cfg.NKeyFile, cfg.CredsFile}, " "); err != nil || got != k.want || cfg.Identity != "me" || cfg.Logger == nil {
			t.Errorf("%s: %s %v, want %s", k.name, got, err, k.want)
		}
	}
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	if got := Identity("given", "worker"); got != "given" {
		t.Error(got)
	}
	if got := Identity("", "worker"); !strings.HasPrefix(got, "worker-") || !strings.HasSuffix(got, fmt.Sprint(os.Getpid())) || strings.Contains(got, ".") {
		t.Error(got)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	problems := &config.Error{Problems: []config.Problem{{File: "f", Line: 1, Message: "a"}, {File: "f", Line: 2, Message: "b"}}}
	for _, k := range []struct {
		err  error
		code int
		says string
	}{
		{nil, ExitOK, ""},
		{errors.New("no"), ExitFailed, "p: no\n"},
		{problems, ExitUsage, "f:1: a\nf:2: b\n"},
		{fmt.Errorf("x: %w", problems), ExitUsage, "f:1: a\nf:2: b\n"},
	} {
		var out bytes.Buffer
		if code := Report(&out, "p", k.err); code != k.code || out.String() != k.says {
			t.Errorf("%v: %d %q", k.err, code, out.String())
		}
	}
}

func TestLog(t *testing.T) {
	t.Parallel()
	var text, json bytes.Buffer
	(&Log{Level: slog.LevelWarn, Format: "text"}).Logger(&text).Info("hidden")
	(&Log{Level: slog.LevelWarn, Format: "text"}).Logger(&text).Warn("shown", "k", 1)
	(&Log{Level: slog.LevelDebug, Format: "json"}).Logger(&json).Debug("shown", "k", 1)
	if strings.Contains(text.String(), "hidden") || !strings.Contains(text.String(), "msg=shown k=1") || !strings.Contains(json.String(), `"msg":"shown","k":1}`) {
		t.Errorf("%s%s", &text, &json)
	}
}

// The first signal ends the context with itself as the cause.
func TestRun(t *testing.T) { // not parallel: signals are the whole process's
	failed := errors.New("failed")
	if err := Run(os.Stderr, func(context.Context) error { return failed }); !errors.Is(err, failed) {
		t.Error(err)
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		err := Run(os.Stderr, func(ctx context.Context) error {
			if err := syscall.Kill(os.Getpid(), s); err != nil {
				return err
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if got, ok := errors.AsType[Signal](err); !ok || got.Signal != s || !strings.HasPrefix(got.Error(), "signal: ") {
			t.Errorf("%v", err)
		}
	}
}

// The second one ends the process at once.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Clean(self))
	cmd.Env = append(os.Environ(), asProgram+"=1")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"running\n", "draining\n"} {
		got := make([]byte, len(want))
		if _, err := out.Read(got); err != nil || string(got) != want {
			t.Fatalf("%q %v", got, err)
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	// What comes at once is the same signal; at some time one is another.
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if cmd.Process.Signal(syscall.SIGTERM) != nil {
				return
			}
		}
	}()
	_ = cmd.Wait()
	<-done
	if code := cmd.ProcessState.ExitCode(); code != ExitKilled || !strings.Contains(errs.String(), "second signal") {
		t.Errorf("exit code %d, %q", code, errs.String())
	}
}
