// Command hub runs a whole hub in one process (hub up) and is the operator's
// command for any hub, on this machine or elsewhere.
//
//	hub up FILE     embedded NATS ─┬─ worker ──► MCP servers
//	                               └─ router ◄── MCP clients
//	hub servers …   NATS, operator API ──► a router of the hub
package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/alecthomas/kong"

	"toolhub/internal/router"
	"toolhub/internal/worker"
)

// commands is the command line. A command is a struct with its flags and a
// method Run.
type commands struct {
	Version kong.VersionFlag `help:"Print the version."`

	Up      upCmd      `cmd:"" help:"Run a whole hub in this process."`
	Servers serversCmd `cmd:"" help:"List the servers and their state."`
	Tools   toolsCmd   `cmd:"" help:"List the tools as a client sees them, or in the format of a model API."`
	Call    callCmd    `cmd:"" help:"Call a tool."`

	Resources resourcesCmd `cmd:"" help:"List the resources, or their URI templates, as a client sees them."`
	Read      readCmd      `cmd:"" help:"Read a resource."`
	Prompts   promptsCmd   `cmd:"" help:"List the prompts as a client sees them."`

	Events eventsCmd `cmd:"" help:"Show what the hub did and does."`
	Policy struct {
		Explain explainCmd `cmd:"" help:"Say which rule decides about a call, and why not the others."`
	} `cmd:"" help:"Look at the policy."`
	Config struct {
		Check  checkCmd  `cmd:"" help:"Check a configuration file: all that is wrong, each with its line."`
		Schema schemaCmd `cmd:"" help:"Print the JSON Schema of configuration files, for editors."`
	} `cmd:"" help:"Work on configuration files."`
	Bench benchCmd `cmd:"" help:"Compare calls through a hub with calls made directly, under load."`
}

func main() {
	worker.ReapMain() // this process may be the one that watches over a server
	os.Exit(run(os.Args[1:], newConsole(os.Stdin, os.Stdout, os.Stderr)))
}

// stopped is what a command line that only asked for help ends with.
type stopped struct{ code int }

// run runs one command line and returns its exit code.
func run(args []string, c *console) (code int) {
	defer func() {
		if s, ok := recover().(stopped); ok {
			code = s.code
		}
	}()
	level := "INFO"
	if c.terminal {
		level = "WARN" // what goes well is shown as progress
	}
	parser, err := kong.New(&commands{},
		kong.Name("hub"),
		kong.Description("Many MCP servers behind one endpoint, every tool call governed.\n\n"+exitCodeHelp()),
		kong.Writers(c.out, c.err),
		kong.Exit(func(code int) { panic(stopped{code}) }),
		kong.Vars{"log_level": level, "version": router.Version()},
		kong.Bind(c),
		kong.BindTo(context.Background(), (*context.Context)(nil)),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 110}),
	)
	if err != nil {
		return c.fail(err)
	}
	command, err := parser.Parse(args)
	if err != nil {
		if e, ok := errors.AsType[*kong.ParseError](err); ok && e.Context != nil {
			parser.Stdout = c.err // where usage was not asked for, it is no output
			_ = e.Context.PrintUsage(true)
			io.WriteString(c.err, "\n")
		}
		return c.fail(usageError{err.Error()})
	}
	return c.fail(command.Run())
}
