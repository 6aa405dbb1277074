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
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/config"
	"toolhub/internal/mcp"
)

// connectEvery is the pause between two attempts to reach the URL of a process
// that is still starting.
const connectEvery = 200 * time.Millisecond

// newDialer is how the server of def is connected. References to secrets are
// resolved with each connection, so that a changed file is seen.
// No secret is in the errors, nor in those of the connections, nor in what the
// process wrote.
func newDialer(def *config.Server, secrets *redactor, log *slog.Logger) dialer {
	d := &dialing{def: def, secrets: secrets, log: log}
	dial := d.http
	switch {
	case def.Kind() == config.KindBuiltin:
		dial = d.builtin
	case def.Kind() == config.KindStdio:
		dial = d.stdio
	case def.Command != "":
		dial = d.launch
	}
	return func(ctx context.Context, era mcp.EraChoice, tell news) (*link, error) {
		l, err := dial(ctx, d.options(era, tell), tell)
		if err != nil {
			return nil, secrets.error(err)
		}
		l.secrets, l.conn = secrets, secrets.conn(l.conn)
		return l, nil
	}
}

// dialing makes connections to one server.
type dialing struct {
	def     *config.Server
	secrets *redactor
	log     *slog.Logger
}

func (d *dialing) options(era mcp.EraChoice, tell news) mcp.ConnectOptions {
	return mcp.ConnectOptions{
		Server:            d.def.ID,
		Era:               era,
		Capabilities:      legacyCapabilities,
		ProbeTimeout:      d.def.ProbeTimeout.Std(),
		RequestTimeout:    d.def.RequestTimeout.Std(),
		QueueTimeout:      d.def.StdioQueueTimeout.Std(),
		ListenIdleTimeout: d.def.ListenIdleTimeout.Std(),
		MaxMessageBytes:   int(d.def.MaxMessageBytes),
		OnListChanged:     func(list mcp.ListKind) { tell.listChanged(kindsOf(list)) },
		OnResourceUpdated: tell.resourceUpdated,
		OnTask:            tell.taskChanged,
		Logger:            d.log,
	}
}

// legacyCapabilities is what legacy servers are told that they may ask for: all
// that some caller may be able to give. What the caller of a call cannot give is
// refused when it is asked for.
var legacyCapabilities = jsontext.Value(`{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{}},"roots":{},` +
	`"tasks":{"list":{},"cancel":{},"requests":{"elicitation":{"create":{}},"sampling":{"createMessage":{}}}}}`)

func (d *dialing) builtin(ctx context.Context, opts mcp.ConnectOptions, _ news) (*link, error) {
	if !slices.Contains(Builtins(), d.def.Builtin) {
		return nil, backoff.Permanent(fmt.Errorf("there is no builtin server %q, known are: %s", d.def.Builtin, strings.Join(Builtins(), ", ")))
	}
	return d.pipe(ctx, startBuiltin(d.def.Builtin, d.log), opts)
}

func (d *dialing) stdio(ctx context.Context, opts mcp.ConnectOptions, tell news) (*link, error) {
	for {
		p, err := d.start(ctx)
		if err != nil {
			return nil, err
		}
		tell.started(p)
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
func (d *dialing) launch(ctx context.Context, opts mcp.ConnectOptions, tell news) (*link, error) {
	p, err := d.start(ctx)
	if err != nil {
		return nil, err
	}
	p.logStdout()
	tell.started(p)
	var last error
	for {
		l, err := d.http(ctx, opts, tell)
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
func (d *dialing) http(ctx context.Context, opts mcp.ConnectOptions, _ news) (*link, error) {
	headers, err := d.resolveAll("headers", d.def.Headers)
	if err != nil {
		return nil, err
	}
	target := mcp.HTTPTarget{URL: d.def.URL, Headers: headers}
	if auth := d.def.Auth; auth != nil && auth.Bearer != "" {
		token := func(context.Context) (string, error) { return d.resolve("auth.bearer", auth.Bearer) }
		if _, err := token(ctx); err != nil {
			return nil, err
		}
		target.Token = token
	}
	if d.def.InsecureSkipTLSVerify {
		d.log.Warn("the server's certificate is not verified (insecure_skip_tls_verify)")
		target.TLS = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the operator said so
	}
	conn, err := mcp.ConnectHTTP(ctx, target, opts)
	if err != nil {
		return nil, err
	}
	return newLink(conn, nil), nil
}

func (d *dialing) start(ctx context.Context) (*process, error) {
	env, err := d.resolveAll("env", d.def.Env)
	if err != nil {
		return nil, err
	}
	return startProcess(ctx, &command{Path: d.def.Command, Args: d.def.Args, Env: env, Dir: d.def.Cwd, Secrets: d.secrets, Logger: d.log})
}

// resolve resolves the references in a field, and remembers what must not be seen.
func (d *dialing) resolve(field string, ref config.Ref) (string, error) {
	secret, err := ref.Resolve()
	if err != nil {
		return "", fmt.Errorf("%s: %w", field, err)
	}
	d.secrets.learn(secret)
	return secret.Reveal(), nil
}

// resolveAll resolves the references in fields. The error names the field.
func (d *dialing) resolveAll(field string, refs map[string]config.Ref) (map[string]string, error) {
	out := make(map[string]string, len(refs))
	for name, ref := range refs {
		var err error
		if out[name], err = d.resolve(field+"."+name, ref); err != nil {
			return nil, err
		}
	}
	return out, nil
}
