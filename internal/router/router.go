package router

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"toolhub/internal/bus"
)

// Bounds of connections to the endpoint; the fronts bound bodies and writes.
const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 64 << 10
)

// Config says how a router runs. Conn is required.
type Config struct {
	// Conn is the connection to the hub.
	Conn *bus.Conn
	// Identity is the name of this process, that of Conn by default.
	Identity string
	// Listener takes HTTP; nil for none.
	Listener net.Listener
	// Logger is for the operator; nil discards.
	Logger *slog.Logger
}

// Validate reports what is wrong with c, naming the field.
func (c *Config) Validate() error {
	if c.Conn == nil {
		return errors.New("conn: a connection to the hub is required")
	}
	if c.Identity != "" && c.Identity != c.Conn.Identity() {
		return fmt.Errorf("identity: %q is not that of the connection, %q", c.Identity, c.Conn.Identity())
	}
	return nil
}

// Router is one MCP endpoint of a hub.
type Router struct {
	conn     *bus.Conn
	listener net.Listener
	log      *slog.Logger
	engine   *engine
	fronts   *fronts
	started  time.Time
	parts    sync.WaitGroup // what Run has started
}

// New makes a router. It serves nobody before [Router.Run].
func New(cfg Config) (*Router, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	r := &Router{conn: cfg.Conn, listener: cfg.Listener, log: cfg.Logger, started: time.Now()}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.engine = newEngine(r.conn, r.log)
	r.fronts = newFronts(r.conn, r.log, r.engine, r.missing)
	return r, nil
}

// missing is what the router lacks to serve clients well, nil if nothing.
func (r *Router) missing() []string {
	var missing []string
	if !r.conn.Connected() {
		missing = append(missing, "there is no connection to NATS")
	}
	if !r.engine.registry.View().Live {
		missing = append(missing, "the state of the hub is not up to date")
	}
	return missing
}

// Run serves clients and operators until ctx ends. Then it drains: nothing new is
// taken, streams that wait for changes end, running calls have the hub's
// drain_timeout to finish. It returns ctx's cause when all it started has ended, or
// what made it end before.
func (r *Router) Run(ctx context.Context) error {
	serving, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	// What calls need stays until the last of them has ended.
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	part := func(name string, run func(context.Context) error) {
		r.parts.Go(func() {
			if err := run(work); work.Err() == nil {
				failed(fmt.Errorf("%s: %w", name, errors.Join(err, errEnded)))
			}
		})
	}
	part("state of the hub", r.engine.run)
	part("sessions", r.fronts.run)
	err := r.serve(serving)
	r.fronts.close()
	stop(err)
	r.parts.Wait()
	return err
}

var errEnded = errors.New("ended although nothing asked it to")

// serve serves until ctx ends, and drains.
func (r *Router) serve(ctx context.Context) error {
	defer r.fronts.drain()
	if err := r.engine.registry.WaitSynced(ctx); err != nil {
		return err
	}
	if _, err := r.conn.Seal(ctx); err != nil {
		return err
	}
	api := &api{engine: r.engine, started: r.started}
	operators, err := r.conn.Serve(bus.ServeAPISubject(r.conn.Hub()), apiQueue, maxOperations, api.handle)
	if err != nil {
		return fmt.Errorf("couldn't serve operators: %w", err)
	}
	defer operators.Stop()
	if err := r.conn.Advertise("toolhub-router", Version(), "MCP endpoint of a hub"); err != nil {
		return fmt.Errorf("couldn't answer service discovery: %w", err)
	}
	web := newWebServer(r.handler(), r.log)
	defer web.close()
	ended := make(chan error, 1)
	if r.listener != nil {
		r.parts.Go(func() { ended <- web.server.Serve(r.listener) })
	}
	select {
	case err = <-ended:
		err = fmt.Errorf("couldn't serve HTTP: %w", err)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	r.fronts.drain()
	timeout := r.engine.settings().DrainTimeout.Std()
	r.log.Info("draining", "reason", err, "timeout", timeout)
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	var drains sync.WaitGroup
	for name, f := range map[string]func(context.Context) error{"http": web.server.Shutdown, "stdio": r.fronts.drainPipes, "operators": operators.Drain} {
		drains.Go(func() {
			if f(drain) != nil {
				r.log.Warn("calls did not end in time and are cancelled", "part", name, "timeout", timeout)
			}
		})
	}
	drains.Wait()
	r.fronts.cancel()
	return err
}

// webServer is an HTTP server whose handlers can be waited for.
type webServer struct {
	server   *http.Server
	handlers sync.WaitGroup
}

func newWebServer(h http.Handler, log *slog.Logger) *webServer {
	w := &webServer{}
	w.server = &http.Server{
		Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			w.handlers.Add(1)
			defer w.handlers.Done()
			h.ServeHTTP(rw, r)
		}),
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return w
}

// close breaks all connections, which cancels the calls that came by them, and
// waits for their handlers.
func (w *webServer) close() {
	_ = w.server.Close()
	w.handlers.Wait()
}
