package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"toolhub/integration/hubproc"
)

// servers runs the server half of all sets: directly, and then through hubs.
func (r *runner) servers(ctx context.Context) error {
	f, err := startFixture(ctx, filepath.Join(r.dir, "everything-server"))
	if err != nil {
		return err
	}
	defer f.stop()
	direct := make([]results, len(revisions))
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(r.parallel)
	for i, revision := range revisions {
		group.Go(func() (err error) {
			if direct[i], err = r.suite.server(groupCtx, revision.name, f.urls[revision.era]); err != nil {
				return err
			}
			return r.direct(revision.name, direct[i])
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	group, ctx = errgroup.WithContext(ctx)
	group.SetLimit(r.parallel)
	for _, way := range []struct{ name, yaml string }{
		{"HTTP", "    url: " + f.url},
		{"stdio", "    command: " + f.binary},
	} {
		group.Go(func() error { return r.hub(ctx, way.name, way.yaml, direct) })
	}
	return group.Wait()
}

// direct reports the control.
func (r *runner) direct(revision string, got results) error {
	required, err := r.suite.required(revision)
	if err != nil {
		return err
	}
	r.report("direct", revision, "", required.Server, got, func(name string) string {
		if c := got[name]; !c.passes() {
			return c.String()
		}
		return ""
	})
	return nil
}

// hub runs all sets through a hub with one server, on one URL after the other.
// The hub is connected to the server in both eras: the fixture has tools that ask
// in the middle of a call, and each of them can do so in one era only.
func (r *runner) hub(ctx context.Context, way, server string, direct []results) (err error) {
	dir, err := os.MkdirTemp(r.dir, "hub-")
	if err != nil {
		return err
	}
	start, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	hub, err := hubproc.Start(start, hubproc.Config{
		Binary: filepath.Join(r.dir, "hub"), Dir: dir,
		YAML: "hub: conf\npolicy: allow_all\nservers:\n  conf:\n    prefix: \"\"\n    uris: original\n    era: mirror\n" + server + "\n",
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
		// One tool of each era.
		if err == nil && (!slices.Contains(names, "test_sampling") || !slices.Contains(names, "test_input_required_result_sampling")) {
			err = errors.New("the fixture's tools are not listed")
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, path := range []string{"/s/conf/mcp", "/mcp"} {
		for i, revision := range revisions {
			required, err := r.suite.required(revision.name)
			if err != nil {
				return err
			}
			got, err := r.suite.server(ctx, revision.name, hub.URL+path)
			if err != nil {
				return err
			}
			r.report("server", revision.name, fmt.Sprintf(", on %s, server over %s", path, way), required.Server, got, func(name string) string {
				return lacks(revision.name, name, direct[i][name], got[name])
			})
		}
	}
	return nil
}

// lacks says in what a scenario did worse than directly, "" if in nothing.
func lacks(revision, scenario string, direct, through checks) string {
	if through.passes() && through.passed >= direct.passed-left[revision+" "+scenario].checks {
		return ""
	}
	return fmt.Sprintf("%s (directly: %s)", through, direct)
}
