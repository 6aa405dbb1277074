package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"toolhub/internal/config"
	"toolhub/internal/daemon"
	"toolhub/internal/worker"
)

// upCmd is `hub up`.
type upCmd struct {
	File     string `arg:"" type:"path" help:"Configuration file. A change to it is applied while the hub runs, as is SIGHUP."`
	Stdio    bool   `help:"Serve MCP on standard input and output, for clients that start their servers; the hub ends with its client. Logs go to standard error. There is no HTTP endpoint then, unless --listen asks for one."`
	StateDir string `name:"state-dir" type:"path" placeholder:"DIR" env:"TOOLHUB_STATE_DIR" help:"Where the hub keeps its state, instead of state_dir of the file."`
	Listen   string `placeholder:"HOST:PORT" env:"TOOLHUB_LISTEN" help:"Where the MCP endpoint listens, instead of listen of the file."`

	Log daemon.Log `embed:"" group:"Log"`
}

// Help implements kong.HelpProvider.
func (u *upCmd) Help() string {
	return "SIGTERM or Ctrl-C finishes the running calls and ends the hub; a second one ends it at once."
}

// Run runs the hub until a signal, or the end of its client, ends it.
func (u *upCmd) Run(c *console) error {
	file, err := u.load()
	if err != nil {
		return err
	}
	log := u.Log.Logger(c.err)
	defer daemon.SurvivePipes()()
	err = daemon.Run(c.err, func(ctx context.Context) error {
		n, err := u.start(ctx, file, c, log)
		if err != nil {
			return err
		}
		defer n.close()
		if !u.Stdio {
			n.announce(c.out)
		}
		return n.run(ctx)
	})
	if _, ok := errors.AsType[daemon.Signal](err); ok {
		return nil
	}
	return err
}

func (u *upCmd) start(ctx context.Context, file *config.File, c *console, log *slog.Logger) (*node, error) {
	cfg := nodeConfig{
		Path: u.File, Reload: u.load, File: file, Log: log,
		HTTP: !u.Stdio || u.Listen != "",
	}
	if u.Stdio {
		cfg.Stdin, cfg.Stdout = c.in, c.out
	} else if c.terminal {
		cfg.Progress = c.out
	}
	return startNode(ctx, cfg)
}

// load reads the file and puts the flags over it.
func (u *upCmd) load() (*config.File, error) {
	file, err := loadConfig(u.File)
	if err != nil {
		return nil, err
	}
	if u.StateDir != "" {
		file.StateDir = u.StateDir
	}
	if u.Listen != "" {
		if err := config.ValidateListen(u.Listen); err != nil {
			return nil, usageError{"--listen: " + err.Error()}
		}
		file.Listen = u.Listen
	}
	return file, nil
}

// loadConfig loads a configuration file and checks what only this program
// knows: the names of builtin servers.
func loadConfig(path string) (*config.File, error) {
	file, err := config.Load(path)
	if err != nil {
		if _, ok := errors.AsType[*config.Error](err); !ok {
			err = usageError{err.Error()}
		}
		return nil, err
	}
	var problems []config.Problem
	for _, s := range file.Servers {
		if known := worker.Builtins(); s.Builtin != "" && !slices.Contains(known, s.Builtin) {
			problems = append(problems, file.Problem("servers."+s.ID+".builtin",
				"there is no builtin server %q; write one of %s", s.Builtin, strings.Join(known, ", ")))
		}
	}
	if len(problems) > 0 {
		return nil, &config.Error{Problems: problems}
	}
	return file, nil
}

// announce says where the hub is to be found.
func (n *node) announce(w io.Writer) {
	fmt.Fprintf(w, "hub %s is running\n", n.file.Hub)
	if n.endpoint != "" {
		fmt.Fprintf(w, "  endpoint  %s\n", n.endpoint)
	}
	if n.nats != nil && n.nats.ClientCommand() != "" {
		fmt.Fprintf(w, "  nats      %s\n", n.nats.ClientCommand())
	} else if n.nats == nil {
		fmt.Fprintf(w, "  nats      %s\n", n.file.NATS.URL)
	}
	fmt.Fprintf(w, "  state     %s\n", n.file.StateDir)
	fmt.Fprintf(w, "  next      hub servers, hub tools, hub call NAME; Ctrl-C ends the hub\n")
}
