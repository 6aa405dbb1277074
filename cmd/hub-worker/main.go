// Command hub-worker runs MCP servers for a hub: it connects to a NATS system,
// claims servers of the hub's definition, enforces the policy and calls them. Any
// number of workers serve one hub.
package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/alecthomas/kong"

	"toolhub/internal/bus"
	"toolhub/internal/config"
	"toolhub/internal/daemon"
	"toolhub/internal/worker"
)

type flags struct {
	File string `arg:"" optional:"" type:"path" help:"Configuration file; only hub and nats are read from it."`
	ID   string `name:"id" placeholder:"NAME" env:"TOOLHUB_WORKER_ID" help:"Name of this worker, unlike that of any other of the hub. By default made of the machine's name and the process id."`

	daemon.Bus `embed:"" group:"NATS"`
	Log        daemon.Log `embed:"" group:"Log"`
}

func main() {
	worker.ReapMain()
	var f flags
	kong.Parse(&f, kong.Name("hub-worker"), kong.Description("Runs MCP servers for a hub."), kong.UsageOnError(), kong.Vars{"log_level": "INFO"})
	os.Exit(daemon.Report(os.Stderr, "hub-worker", daemon.Run(os.Stderr, func(ctx context.Context) error { return f.run(ctx, os.Stderr) })))
}

func (f *flags) run(ctx context.Context, stderr io.Writer) error {
	defer daemon.SurvivePipes()()
	var file *config.File
	if f.File != "" {
		var err error
		if file, err = config.Load(f.File); err != nil {
			return err
		}
	}
	log := f.Log.Logger(stderr)
	id := daemon.Identity(f.ID, "worker")
	cfg, err := f.Bus.Config(id, file, log)
	if err != nil {
		return err
	}
	conn, err := bus.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close()
	err = worker.Run(ctx, worker.Config{Conn: conn, ID: id, Logger: log})
	if _, ok := errors.AsType[daemon.Signal](err); ok {
		return nil
	}
	return err
}
