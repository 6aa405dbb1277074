// Command conformance runs the official MCP conformance suite against a hub, with
// the same fixture directly as a control, and against the worker's client code.
//
//	make conformance
//
//	suite ──────────────────────────────► everything-server   direct, the control
//	suite ──► hub /s/conf/mcp and /mcp ──► everything-server   over HTTP and over stdio
//	suite ◄── conformance-client                              the worker's client code
//
// Each requirement set of the suite is run in every way. A scenario is passed
// through the hub only if no check of it fails or warns, and as many pass as
// directly. The last lines are the result, the worst of all ways and runs:
//
//	server 2025-11-25 30/30
//
// It exits with 1 if any of them is less than all, the control included. It needs
// what `make npm` installs.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"toolhub/integration/hubproc"
)

func main() {
	var o options
	flag.StringVar(&o.npm, "npm", "", "the folder that `make npm` filled (default .cache/npm, or $TOOLHUB_NPM)")
	flag.BoolVar(&o.verbose, "v", false, "show every scenario")
	flag.IntVar(&o.runs, "runs", 1, "how often everything is run, one after the other")
	flag.IntVar(&o.parallel, "j", 2, "how many hubs are under test at once")
	flag.StringVar(&o.only, "only", "", "server or client: that half alone")
	flag.Parse()
	if o.npm == "" {
		o.npm = ".cache/npm"
		if dir := os.Getenv("TOOLHUB_NPM"); dir != "" {
			o.npm = dir
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

type options struct {
	npm, only      string
	verbose        bool
	runs, parallel int
}

func run(ctx context.Context, o options) error {
	dir, err := os.MkdirTemp("", "toolhub-conformance-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	suite, err := newSuite(o.npm, dir)
	if err != nil {
		return err
	}
	err = hubproc.Build(ctx, dir, nil, "./cmd/hub", "./integration/conformance-client", "./integration/taskserver", "github.com/modelcontextprotocol/go-sdk/conformance/everything-server")
	if err != nil {
		return err
	}
	r := &runner{suite: suite, dir: dir, options: o, worst: make(map[string]score)}
	for n := range o.runs {
		if o.runs > 1 {
			fmt.Printf("run %d of %d\n", n+1, o.runs)
		}
		if err := r.once(ctx); err != nil {
			return err
		}
	}
	return r.sum()
}

// revision is one of the protocol that the suite has a requirement set for.
type revision struct{ name, era string }

var revisions = []revision{{"2025-11-25", "legacy"}, {"2026-07-28", "modern"}}

type runner struct {
	options
	suite *suite
	dir   string

	mu    sync.Mutex
	worst map[string]score // by half and revision
}

// score is how many of the required scenarios passed.
type score struct{ passed, required int }

// once runs every set in every way.
func (r *runner) once(ctx context.Context) error {
	if r.only != "client" {
		if err := r.servers(ctx); err != nil {
			return err
		}
	}
	if r.only == "server" {
		return nil
	}
	for _, revision := range revisions { // its scenarios run at once as it is
		if err := r.client(ctx, revision.name); err != nil {
			return err
		}
	}
	return nil
}

// client runs the client half of a set.
func (r *runner) client(ctx context.Context, revision string) error {
	required, err := r.suite.required(revision)
	if err != nil {
		return err
	}
	got, err := r.suite.client(ctx, revision, r.dir+"/conformance-client")
	if err != nil {
		return err
	}
	r.report("client", revision, "", required.Client, got, got.verdict)
	return nil
}

// report prints what one run came to. The verdict on a scenario is "" for one that
// passed.
func (r *runner) report(half, revision, where string, required []string, got results, verdict func(name string) string) {
	s := score{required: len(required)}
	var out strings.Builder
	var failed []string
	for _, name := range required {
		why := verdict(name)
		if why == "" {
			s.passed++
		} else {
			failed = append(failed, "    ✗ "+name+": "+why)
		}
		if r.verbose {
			fmt.Fprintf(&out, "    %-50s %s\n", name, got[name])
		}
	}
	unscored, passing := got.without(required)
	fmt.Fprintf(&out, "  %s %s %d/%d, not scored %d/%d%s\n", half, revision, s.passed, s.required, passing, len(unscored), where)
	for _, line := range failed {
		fmt.Fprintln(&out, line)
	}
	if r.verbose {
		for _, name := range unscored {
			fmt.Fprintf(&out, "    not scored: %-38s %s\n", name, got[name])
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Print(out.String())
	key := half + " " + revision
	if before, ok := r.worst[key]; !ok || s.passed < before.passed {
		r.worst[key] = s
	}
}

// sum prints the result of all runs.
func (r *runner) sum() error {
	missing := 0
	for _, half := range []string{"direct", "server", "client"} {
		for _, set := range []string{revisions[0].name, revisions[1].name, "tasks"} {
			key := half + " " + set
			s, ok := r.worst[key]
			if ok && half != "direct" {
				fmt.Printf("%s %d/%d\n", key, s.passed, s.required)
			}
			missing += s.required - s.passed
		}
	}
	if missing > 0 {
		return fmt.Errorf("%d required scenarios are not passed in every way", missing)
	}
	return nil
}
