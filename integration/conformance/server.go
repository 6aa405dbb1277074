package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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
	group.Go(func() error { return r.tasks(ctx) })
	return group.Wait()
}

// tasks runs the scenarios about tasks, for which there is a fixture of its own:
// the SDK's has none.
func (r *runner) tasks(ctx context.Context) error {
	addr, err := hubproc.FreeAddr()
	if err != nil {
		return err
	}
	fixture := exec.CommandContext(ctx, filepath.Join(r.dir, "taskserver"), addr)
	if err := fixture.Start(); err != nil {
		return err
	}
	defer func() {
		_ = fixture.Process.Kill()
		_ = fixture.Wait()
	}()
	return r.withHub(ctx, "    url: http://"+addr, []string{"greet"}, func(url string) error {
		for _, at := range []struct{ half, where, url string }{{"direct", "", "http://" + addr}, {"server", ", on /mcp, server over HTTP", url + "/mcp"}} {
			got, err := r.suite.tasks(ctx, at.url)
			if err != nil {
				return err
			}
			r.report(at.half, "tasks", at.where, taskScenarios, got, got.verdict)
		}
		return nil
	})
}

// direct reports the control.
func (r *runner) direct(revision string, got results) error {
	required, err := r.suite.required(revision)
	if err != nil {
		return err
	}
	r.report("direct", revision, "", required.Server, got, got.verdict)
	return nil
}

// hub runs all sets through a hub with one server, on one URL after the other.
// The hub is connected to the server in both eras: the fixture has tools that ask
// in the middle of a call, and each of them can do so in one era only.
func (r *runner) hub(ctx context.Context, way, server string, direct []results) (err error) {
	// One tool of each era.
	tools := []string{"test_sampling", "test_input_required_result_sampling"}
	return r.withHub(ctx, "    era: mirror\n"+server, tools, func(url string) error {
		for _, path := range []string{"/s/conf/mcp", "/mcp"} {
			for i, revision := range revisions {
				required, err := r.suite.required(revision.name)
				if err != nil {
					return err
				}
				got, err := r.suite.server(ctx, revision.name, url+path)
				if err != nil {
					return err
				}
				r.report("server", revision.name, fmt.Sprintf(", on %s, server over %s", path, way), required.Server, got, func(name string) string {
					return lacks(revision.name, name, direct[i][name], got[name])
				})
			}
		}
		return nil
	})
}

// withHub runs a hub with one server, for as long as use takes, once it lists tools.
func (r *runner) withHub(ctx context.Context, server string, tools []string, use func(url string) error) (err error) {
	dir, err := os.MkdirTemp(r.dir, "hub-")
	if err != nil {
		return err
	}
	start, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	hub, err := hubproc.Start(start, hubproc.Config{
		Binary: filepath.Join(r.dir, "hub"), Dir: dir,
		YAML: "hub: conf\npolicy: allow_all\nservers:\n  conf:\n    prefix: \"\"\n    uris: original\n" + server + "\n",
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
		for _, tool := range tools {
			if err == nil && !slices.Contains(names, tool) {
				err = fmt.Errorf("%s is not listed", tool)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	return use(hub.URL)
}

// lacks says in what a scenario did worse than directly, "" if in nothing.
func lacks(revision, scenario string, direct, through checks) string {
	if through.passes() && through.passed >= direct.passed-left[revision+" "+scenario].checks {
		return ""
	}
	return fmt.Sprintf("%s (directly: %s)", through, direct)
}
