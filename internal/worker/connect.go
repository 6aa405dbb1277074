package worker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"

	"toolhub/internal/config"
	"toolhub/internal/mcp"
)

// connectEvery is the pause between two attempts to reach the URL of a process
// that is still starting.
const connectEvery = 200 * time.Millisecond

// newDialer is how the server of def is connected. References to secrets are
// resolved with each connection, so that a changed file is seen.
func newDialer(def *config.Server, log *slog.Logger) dialer {
	d := &dialing{def: def, log: log}
	switch {
	case def.Kind() == config.KindBuiltin:
		return d.builtin
	case def.Kind() == config.KindStdio:
		return d.stdio
	case def.Command != "":
		return d.launch
	}
	return d.http
}

// dialing makes connections to one server.
type dialing struct {
	def *config.Server
	log *slog.Logger
}

func (d *dialing) options(onListChanged func()) mcp.ConnectOptions {
	return mcp.ConnectOptions{
		Server:            d.def.ID,
		Era:               mcp.EraChoice(d.def.Era),
		ProbeTimeout:      d.def.ProbeTimeout.Std(),
		RequestTimeout:    d.def.RequestTimeout.Std(),
		QueueTimeout:      d.def.StdioQueueTimeout.Std(),
		ListenIdleTimeout: d.def.ListenIdleTimeout.Std(),
		MaxMessageBytes:   int(d.def.MaxMessageBytes),
		OnListChanged: func(kind mcp.ListKind) {
			if kind == mcp.ListTools {
				onListChanged()
			}
		},
		Logger: d.log,
	}
}

func (d *dialing) builtin(ctx context.Context, onListChanged func()) (*link, error) {
	if !slices.Contains(Builtins(), d.def.Builtin) {
		return nil, backoff.Permanent(fmt.Errorf("there is no builtin server %q, known are: %s", d.def.Builtin, strings.Join(Builtins(), ", ")))
	}
	return d.pipe(ctx, startBuiltin(d.def.Builtin, d.log), d.options(onListChanged))
}

func (d *dialing) stdio(ctx context.Context, onListChanged func()) (*link, error) {
	opts := d.options(onListChanged)
	for {
		p, err := d.start(ctx)
		if err != nil {
			return nil, err
		}
		l, err := d.pipe(ctx, p, opts)
		if f, ok := errors.AsType[*mcp.Fault](err); ok && f.Reason == mcp.ReasonHandshake && opts.Era == mcp.EraAuto {
			// Some legacy servers end when the first request is not initialize.
			d.log.Info("server hung up on the question for its era, starting it again as legacy", "reason", err)
			opts.Era = mcp.EraChoice(mcp.EraLegacy)
			continue
		}
		return l, err
	}
}

// pipe connects to a peer, which it ends if that fails.
func (d *dialing) pipe(ctx context.Context, p peer, opts mcp.ConnectOptions) (*link, error) {
	stdin, stdout := p.pipes()
	conn, err := mcp.ConnectStdio(ctx, mcp.Pipe{Out: stdin, In: stdout}, opts)
	if err != nil {
		err = d.whyNot(err, p)
		p.kill()
		return nil, err
	}
	return newLink(conn, p), nil
}

// whyNot explains a failed handshake by the end of the process, if it ended.
func (d *dialing) whyNot(err error, p peer) error {
	select {
	case <-p.done():
	case <-time.After(exitNews):
		return &exitError{reason: err, stderr: p.stderr()}
	}
	return &exitError{reason: fmt.Errorf("%w; %w", err, p.exitErr()), stderr: p.stderr()}
}

// launch starts a process that serves a URL and connects to it.
func (d *dialing) launch(ctx context.Context, onListChanged func()) (*link, error) {
	p, err := d.start(ctx)
	if err != nil {
		return nil, err
	}
	p.logStdout()
	var last error
	for {
		l, err := d.http(ctx, onListChanged)
		if err == nil {
			l.peer = p
			return l, nil
		}
		if ctx.Err() == nil {
			last = err
		}
		timer := time.NewTimer(connectEvery)
		select {
		case <-timer.C:
			continue
		case <-p.done():
			err = newExitError(p.exitErr(), p)
		case <-ctx.Done():
			err = newExitError(fmt.Errorf("%w: %w", context.Cause(ctx), errors.Join(last)), p)
		}
		timer.Stop()
		p.kill()
		return nil, err
	}
}

// http connects to the server's URL. The bearer token is resolved anew for each
// request, since a file that holds one may change at any time.
func (d *dialing) http(ctx context.Context, onListChanged func()) (*link, error) {
	headers, err := resolveAll("headers", d.def.Headers)
	if err != nil {
		return nil, err
	}
	target := mcp.HTTPTarget{URL: d.def.URL, Headers: headers}
	if auth := d.def.Auth; auth != nil && auth.Bearer != "" {
		if _, err := auth.Bearer.Resolve(); err != nil {
			return nil, fmt.Errorf("auth.bearer: %w", err)
		}
		target.Token = func(context.Context) (string, error) {
			secret, err := auth.Bearer.Resolve()
			if err != nil {
				return "", fmt.Errorf("auth.bearer: %w", err)
			}
			return secret.Reveal(), nil
		}
	}
	if d.def.InsecureSkipTLSVerify {
		d.log.Warn("the server's certificate is not verified (insecure_skip_tls_verify)")
		target.TLS = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the operator said so
	}
	conn, err := mcp.ConnectHTTP(ctx, target, d.options(onListChanged))
	if err != nil {
		return nil, err
	}
	return newLink(conn, nil), nil
}

func (d *dialing) start(ctx context.Context) (*process, error) {
	env, err := resolveAll("env", d.def.Env)
	if err != nil {
		return nil, err
	}
	return startProcess(ctx, &command{Path: d.def.Command, Args: d.def.Args, Env: env, Dir: d.def.Cwd, Logger: d.log})
}

// resolveAll resolves references to secrets. The error names the field.
func resolveAll(field string, refs map[string]config.Ref) (map[string]string, error) {
	out := make(map[string]string, len(refs))
	for name, ref := range refs {
		secret, err := ref.Resolve()
		if err != nil {
			return nil, fmt.Errorf("%s.%s: %w", field, name, err)
		}
		out[name] = secret.Reveal()
	}
	return out, nil
}
