// Command hub-router is the MCP endpoint of a hub: it connects to a NATS
// system, lists what the hub's servers offer and sends calls to their workers. Any
// number of routers serve one hub, and none keeps anything that another lacks.
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
	"toolhub/internal/router"
)

type flags struct {
	File   string `arg:"" optional:"" type:"path" help:"Configuration file; only hub, listen and nats are read from it."`
	ID     string `name:"id" placeholder:"NAME" env:"TOOLHUB_ROUTER_ID" help:"Name of this router, unlike that of any other of the hub. By default made of the machine's name and the process id."`
	Listen string `placeholder:"HOST:PORT" env:"TOOLHUB_LISTEN" help:"Where the MCP endpoint listens, on loopback."`

	daemon.Bus `embed:"" group:"NATS"`
	Log        daemon.Log `embed:"" group:"Log"`
}

func main() {
	var f flags
	kong.Parse(&f, kong.Name("hub-router"), kong.Description("The MCP endpoint of a hub."), kong.UsageOnError(), kong.Vars{"log_level": "INFO"})
	os.Exit(daemon.Report(os.Stderr, "hub-router", daemon.Run(os.Stderr, func(ctx context.Context) error { return f.run(ctx, os.Stderr) })))
}

func (f *flags) run(ctx context.Context, stderr io.Writer) error {
	defer daemon.SurvivePipes()()
	var file *config.File
	listen := config.DefaultListen
	if f.File != "" {
		var err error
		if file, err = config.Load(f.File); err != nil {
			return err
		}
		listen = file.Listen
	}
	if f.Listen != "" {
		listen = f.Listen
	}
	log := f.Log.Logger(stderr)
	id := daemon.Identity(f.ID, "router")
	cfg, err := f.Bus.Config(id, file, log)
	if err != nil {
		return err
	}
	listener, err := daemon.Listen(listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	conn, err := bus.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close()
	r, err := router.New(router.Config{Conn: conn, Identity: id, Listener: listener, Logger: log})
	if err != nil {
		return err
	}
	log.Info("endpoint", "url", "http://"+listener.Addr().String()+"/mcp", "hub", conn.Hub())
	err = r.Run(ctx)
	if _, ok := errors.AsType[daemon.Signal](err); ok {
		return nil
	}
	return err
}
