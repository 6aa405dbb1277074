// Package daemon is what the hub's programs have in common as processes: how
// they log, how they reach NATS, and how they end.
//
//	flags ──► Log, Bus ──► Run(ctx) ──► exit code
//	                        ▲
//	SIGTERM, SIGINT ────────┘  the first one drains, the second one ends at once
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"toolhub/internal/bus"
	"toolhub/internal/config"
)

// Exit codes of the programs, beside those that only the operator's commands have.
const (
	ExitOK     = 0
	ExitFailed = 1
	// ExitUsage: wrong flags, or a configuration that does not hold.
	ExitUsage = 2
	// ExitKilled: a second signal came before the program had ended.
	ExitKilled = 130
)

// Log has the flags of a program's log. The kong variable log_level is the level
// that holds without a flag.
type Log struct {
	Level  slog.Level `name:"log-level" placeholder:"LEVEL" default:"${log_level}" env:"TOOLHUB_LOG_LEVEL" help:"Least level that is logged: debug, info, warn or error."`
	Format string     `name:"log-format" enum:"text,json" default:"text" env:"TOOLHUB_LOG_FORMAT" help:"How a line is written: text or json."`
}

// Logger writes to w.
func (l *Log) Logger(w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: l.Level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// Bus has the flags that say which hub on which NATS system is meant. Where one
// is not given, the configuration file decides.
type Bus struct {
	Hub   string `placeholder:"NAME" env:"TOOLHUB_HUB" help:"Name of the hub."`
	NATS  string `name:"nats" placeholder:"URL" env:"TOOLHUB_NATS" help:"NATS server, or several separated by commas."`
	NKey  string `name:"nkey" type:"path" placeholder:"FILE" env:"TOOLHUB_NKEY" help:"File with the nkey seed for --nats."`
	Creds string `type:"path" placeholder:"FILE" env:"TOOLHUB_CREDS" help:"File with the NATS credentials (.creds) for --nats."`
}

// UsageError is a command line that cannot be run.
type UsageError struct{ Text string }

// Error implements error.
func (e UsageError) Error() string { return e.Text }

// Config is how to connect as identity, with what the flags leave open taken
// from file, which may be nil. The error is a [UsageError] that says which flag
// is missing or wrong.
func (b *Bus) Config(identity string, file *config.File, log *slog.Logger) (bus.Config, error) {
	cfg := bus.Config{Hub: b.Hub, Identity: identity, URL: b.NATS, NKeyFile: b.NKey, CredsFile: b.Creds, Logger: log}
	if file != nil {
		if cfg.Hub == "" {
			cfg.Hub = file.Hub
		}
		if cfg.URL == "" {
			cfg.URL = file.NATS.URL
		}
		if cfg.NKeyFile == "" && cfg.CredsFile == "" {
			cfg.NKeyFile, cfg.CredsFile = file.NATS.NKey, file.NATS.Creds
		}
	}
	if cfg.Hub == "" {
		cfg.Hub = config.DefaultHub
	}
	switch {
	case cfg.URL == "":
		return cfg, UsageError{"no NATS server is named; give --nats URL, or a FILE with nats.url"}
	case cfg.NKeyFile != "" && cfg.CredsFile != "":
		return cfg, UsageError{"--nkey and --creds are both given; keep one"}
	}
	if err := config.ValidateHub(cfg.Hub); err != nil {
		return cfg, UsageError{"--hub: " + err.Error()}
	}
	return cfg, nil
}

// Identity is id, or if that is empty a name that no other process has: what it
// is, the machine and the process.
func Identity(id, what string) string {
	if id != "" {
		return id
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	host, _, _ = strings.Cut(host, ".")
	return fmt.Sprintf("%s-%s-%d", what, host, os.Getpid())
}

// sameSignal is how long after a signal further ones count as the same.
const sameSignal = time.Second

// Run calls run with a context that the first SIGTERM or SIGINT ends, and
// returns what run does. A second signal ends the process at once; the processes
// that it started are killed all the same by who watches over them.
func Run(stderr io.Writer, run func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	ended := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case s := <-signals:
			cancel(Signal{s})
		case <-ended:
			return
		}
		first := time.Now()
		for {
			select {
			case <-signals:
				// Who signals a process and then its group, as timeout does, means one.
				if time.Since(first) < sameSignal {
					continue
				}
				fmt.Fprintln(stderr, "ended at once by a second signal")
				os.Exit(ExitKilled)
			case <-ended:
				return
			}
		}
	}()
	err := run(ctx)
	close(ended)
	<-watched
	signal.Stop(signals)
	return err
}

// SurvivePipes keeps the process alive when whoever read its output has closed
// the pipe: the write fails, and what fails with it is the writer's business. The
// signal is caught and not ignored, since programs that are started would inherit
// that. Call undo to have it deadly again.
func SurvivePipes() (undo func()) {
	caught := make(chan os.Signal, 1) // nobody needs to know of it
	signal.Notify(caught, syscall.SIGPIPE)
	return func() { signal.Stop(caught) }
}

// Signal is the cause of a context that a signal ended.
type Signal struct{ os.Signal }

// Error implements error.
func (s Signal) Error() string { return "signal: " + s.Signal.String() }

// Report writes err for a person, each of several on a line of its own, and
// returns the exit code that it means.
func Report(w io.Writer, program string, err error) int {
	if err == nil {
		return ExitOK
	}
	if e, ok := errors.AsType[*config.Error](err); ok {
		for _, p := range e.Problems {
			fmt.Fprintln(w, p)
		}
		return ExitUsage
	}
	fmt.Fprintf(w, "%s: %v\n", program, err)
	if _, ok := errors.AsType[UsageError](err); ok {
		return ExitUsage
	}
	return ExitFailed
}

// Listen opens an MCP endpoint at addr. An address that is not loopback is a
// [UsageError]; a port in use is an error at once.
func Listen(addr string) (net.Listener, error) {
	if err := config.ValidateListen(addr); err != nil {
		return nil, UsageError{"listen: " + err.Error()}
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen: couldn't open the endpoint at %s: %w; choose another address with listen or --listen, port 0 takes a free one", addr, err)
	}
	return l, nil
}
