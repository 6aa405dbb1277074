package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"toolhub/internal/bus"
	"toolhub/internal/bus/embedded"
	"toolhub/internal/config"
	"toolhub/internal/daemon"
	"toolhub/internal/registry"
	"toolhub/internal/router"
	"toolhub/internal/worker"
)

// startTimeout bounds everything of the start that waits for somebody else,
// which is only NATS: no server is waited for.
const startTimeout = 15 * time.Second

// ownLeaseTTL is the lease of the worker where NATS runs in the same process.
const ownLeaseTTL = 15 * time.Second

// nodeConfig says how to run a whole hub in this process.
type nodeConfig struct {
	// File is the configuration; Path is where it came from and Reload reads it
	// again.
	File   *config.File
	Path   string
	Reload func() (*config.File, error)
	// HTTP opens the endpoint at File.Listen.
	HTTP bool
	// Stdin and Stdout carry MCP; nil for none.
	Stdin  io.Reader
	Stdout io.Writer
	// Progress gets the state of servers as it changes, for a person; nil for none.
	Progress io.Writer
	Log      *slog.Logger
}

// node is a hub in one process: NATS, a worker and a router, each as it would be
// in a process of its own.
type node struct {
	cfg      nodeConfig
	file     *config.File
	log      *slog.Logger
	endpoint string

	nats       *embedded.Server // nil with nats.url
	router     *router.Router
	workerConn *bus.Conn
	workerID   string
	started    time.Time

	// cleanups are called in reverse order, each for what was made just before it.
	cleanups []func()
}

// startNode makes everything and applies the configuration. Nothing of it waits
// for a server. Of a start that fails nothing is left.
func startNode(ctx context.Context, cfg nodeConfig) (_ *node, err error) {
	n := &node{cfg: cfg, file: cfg.File, log: cfg.Log, started: time.Now()}
	defer func() {
		if err != nil {
			n.close()
		}
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("NATS did not answer within %s", startTimeout))
	defer cancel()

	var listener net.Listener
	if cfg.HTTP {
		if listener, err = daemon.Listen(n.file.Listen); err != nil {
			return nil, err
		}
		n.onClose(func() { listener.Close() })
		n.endpoint = "http://" + listener.Addr().String() + "/mcp"
	}
	running := &runningHub{Hub: n.file.Hub, Endpoint: n.endpoint}
	base := bus.Config{Hub: n.file.Hub, Logger: n.log}
	if n.file.NATS.URL == "" {
		if err := n.embed(ctx); err != nil {
			return nil, err
		}
		base.InProcess, base.NKeyFile = n.nats.InProcess(), n.nats.NKeyFile()
		running.NATS = config.NATS{URL: n.nats.URL(), NKey: n.nats.AdminNKeyFile()}
	} else {
		unlock, err := embedded.Lock(n.file.StateDir)
		if err != nil {
			return nil, err
		}
		n.onClose(unlock)
		base.URL, base.NKeyFile, base.CredsFile = n.file.NATS.URL, n.file.NATS.NKey, n.file.NATS.Creds
		running.NATS = n.file.NATS
	}
	suffix := n.identity()
	n.workerID = "worker-" + suffix
	n.workerConn, err = n.connect(ctx, base, n.workerID)
	if err != nil {
		return nil, err
	}
	routerConn, err := n.connect(ctx, base, "router-"+suffix)
	if err != nil {
		return nil, err
	}
	n.router, err = router.New(router.Config{Conn: routerConn, Identity: routerConn.Identity(), Listener: listener, Logger: n.log})
	if err != nil {
		return nil, err
	}
	// The lock says that no earlier life of this worker runs, so its servers need
	// not wait for its lease to end.
	if err := registry.EndIncarnations(ctx, n.workerConn, n.workerID); err != nil {
		return nil, err
	}
	if _, err := registry.Apply(ctx, n.workerConn, n.file); err != nil {
		return nil, err
	}
	if err := running.write(n.file.StateDir); err != nil {
		return nil, err
	}
	n.onClose(func() { os.Remove(filepath.Join(n.file.StateDir, runningFile)) })
	return n, nil
}

func (n *node) onClose(f func()) { n.cleanups = append(n.cleanups, f) }

// close gives up what startNode made, the newest first.
func (n *node) close() {
	for i := len(n.cleanups) - 1; i >= 0; i-- {
		n.cleanups[i]()
	}
	n.cleanups = nil
}

// embed starts the hub's own NATS server, which locks the state directory.
func (n *node) embed(ctx context.Context) error {
	host, port, err := net.SplitHostPort(n.file.NATS.Listen)
	if err != nil {
		return fmt.Errorf("nats.listen: %w", err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return fmt.Errorf("nats.listen: %w", err)
	}
	n.nats, err = embedded.Start(ctx, embedded.Config{StateDir: n.file.StateDir, Host: host, Port: number, Logger: n.log})
	if err != nil {
		return err
	}
	n.onClose(n.nats.Shutdown)
	return nil
}

// identity tells this hub's processes from those of every other machine and
// state directory; the lock on the latter makes it unique.
func (n *node) identity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	sum := sha256.Sum256([]byte(host + "\x00" + n.file.StateDir))
	return hex.EncodeToString(sum[:4])
}

func (n *node) connect(ctx context.Context, cfg bus.Config, identity string) (*bus.Conn, error) {
	cfg.Identity = identity
	conn, err := bus.Connect(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("couldn't connect to NATS: %w", err)
	}
	n.onClose(conn.Close)
	return conn, nil
}

// errClientGone ends a hub whose client on stdio went away.
var errClientGone = errors.New("the client closed standard input")

// run runs the hub until ctx ends, a part of it fails, or its client on stdio
// goes away. Then the router stops first, so that running calls still find the
// worker. It returns when everything has ended.
func (n *node) run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	endpoint, stopEndpoint := context.WithCancelCause(context.WithoutCancel(ctx))
	servers, stopServers := context.WithCancelCause(context.WithoutCancel(ctx))

	var endpointParts, serverParts, rest sync.WaitGroup
	part := func(wg *sync.WaitGroup, ctx context.Context, name string, f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); ctx.Err() == nil {
				if err == nil {
					err = errors.New("ended by itself")
				}
				stop(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	cfg := worker.Config{Conn: n.workerConn, ID: n.workerID, Logger: n.log}
	if n.nats != nil {
		// A restart does not wait for the lease to end, so nothing is won by a short
		// one, and a disk that stalls for seconds must not cost every server.
		cfg.LeaseTTL = ownLeaseTTL
	}
	part(&serverParts, servers, "worker", func(ctx context.Context) error { return worker.Run(ctx, cfg) })
	part(&endpointParts, endpoint, "router", n.router.Run)
	if n.cfg.Stdin != nil {
		endpointParts.Go(func() {
			if err := n.router.ServeStdio(endpoint, n.cfg.Stdin, n.cfg.Stdout); err != nil {
				stop(fmt.Errorf("stdio: %w", err))
			}
			stop(errClientGone)
		})
	}
	rest.Go(func() { n.reload(ctx) })
	if n.cfg.Progress != nil {
		rest.Go(func() { n.progress(ctx, n.cfg.Progress) })
	}

	<-ctx.Done()
	cause := context.Cause(ctx)
	n.log.Info("stopping", "reason", cause.Error())
	stopEndpoint(cause)
	endpointParts.Wait()
	stopServers(cause)
	serverParts.Wait()
	rest.Wait()
	if errors.Is(cause, errClientGone) {
		return nil
	}
	return cause
}
