// Package embedded runs the NATS server inside the process of a single-node
// hub. It is the only package outside tests that links nats-server.
//
//	<state>/hub.lock        held while the server runs
//	<state>/nats/           what JetStream keeps
//	<state>/keys/hub.nk     nkey seed of the hub's own processes (mode 0600)
//	<state>/keys/admin.nk   nkey seed of the operator (mode 0600)
package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// LockFile is the name of the file in a state directory that [Lock] locks.
const LockFile = "hub.lock"

const (
	defaultHost       = "127.0.0.1"
	defaultMaxPayload = 8 << 20
	defaultMaxStore   = 4 << 30
	// Consumers of watches live in memory; nothing else does.
	maxMemory = 64 << 20
	// A peer that is gone without a word is noticed after two of these.
	pingInterval = 5 * time.Second
)

// Config says where the server keeps its state and listens.
type Config struct {
	// StateDir is made with mode 0700 if it does not exist; one server at a
	// time may use it.
	StateDir string
	// Host is the address of the listener, "" is 127.0.0.1; only loopback
	// addresses are accepted.
	Host string
	// Port is its port, 0 is any free one.
	Port int
	// NoListener leaves the listener out: only this process can connect.
	NoListener bool
	// MaxPayload bounds one message on the wire in bytes, 0 is 8 MiB.
	MaxPayload int
	// MaxStore bounds what JetStream keeps on disk in bytes, 0 is 4 GiB.
	MaxStore int64
	// Logger gets the server's own log; nil discards it.
	Logger *slog.Logger
}

// Validate reports what is wrong with c, naming the field.
func (c *Config) Validate() error {
	var errs []error
	if c.StateDir == "" {
		errs = append(errs, errors.New("state_dir: is empty, name the directory that the hub keeps its state in"))
	}
	if c.Host != "" && c.Host != "localhost" {
		if ip := net.ParseIP(c.Host); ip == nil || !ip.IsLoopback() {
			errs = append(errs, fmt.Errorf("nats.listen: host %q is no loopback address, use 127.0.0.1 (a hub for several machines uses a NATS server of its own: nats.url)", c.Host))
		}
	}
	if c.Port < 0 || c.Port > 65535 {
		errs = append(errs, fmt.Errorf("nats.listen: port %d is not between 0 and 65535", c.Port))
	}
	if c.MaxPayload < 0 || c.MaxPayload > 64<<20 {
		errs = append(errs, fmt.Errorf("max payload: %d bytes is not between 0 and 64 MiB", c.MaxPayload))
	}
	if c.MaxStore < 0 {
		errs = append(errs, fmt.Errorf("max store: %d bytes is negative", c.MaxStore))
	}
	return errors.Join(errs...)
}

// Server is a running NATS server.
type Server struct {
	ns       *server.Server
	log      *logger
	unlock   func()
	stateDir string
	url      string
	shutdown sync.Once
}

// Start starts the server and returns once it takes connections. A state
// directory in use, one that cannot be written or a port in use is an error at
// once that names it.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	dir, err := filepath.Abs(cfg.StateDir)
	if err != nil {
		return nil, fmt.Errorf("state_dir %q: %w", cfg.StateDir, err)
	}
	unlock, err := Lock(dir)
	if err != nil {
		return nil, err
	}
	s := &Server{log: newLogger(cfg.Logger), unlock: unlock, stateDir: dir}
	if err := s.start(cfg); err != nil {
		s.Shutdown()
		return nil, err
	}
	return s, nil
}

// Lock keeps a second hub off a state directory, which it makes if there is none:
// NATS itself would start happily and destroy what is in it. [Start] takes the
// lock too; a hub whose NATS runs elsewhere takes it by itself.
func Lock(stateDir string) (unlock func(), err error) {
	if err := os.MkdirAll(stateDir, 0o700); err != nil {
		return nil, fmt.Errorf("state_dir %q: couldn't make the directory: %w", stateDir, err)
	}
	path := filepath.Join(stateDir, LockFile)
	lock := flock.New(path, flock.SetPermissions(0o600))
	ok, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("state_dir %q: couldn't lock %s: %w", stateDir, path, err)
	}
	if !ok {
		return nil, fmt.Errorf("state_dir %q: another hub is using it (it holds the lock %s)", stateDir, path)
	}
	// The file stays: to remove it would let two others lock two files.
	return func() { _ = lock.Unlock() }, nil
}

func (s *Server) start(cfg Config) error {
	hubKey, err := ensureKey(s.NKeyFile())
	if err != nil {
		return err
	}
	adminKey, err := ensureKey(s.AdminNKeyFile())
	if err != nil {
		return err
	}
	host := cfg.Host
	if host == "" {
		host = defaultHost
	}
	opts := &server.Options{
		ServerName:         "toolhub-" + strconv.Itoa(os.Getpid()),
		DontListen:         cfg.NoListener,
		Host:               host,
		Port:               cfg.Port,
		JetStream:          true,
		StoreDir:           filepath.Join(s.stateDir, "nats"),
		JetStreamMaxStore:  cfg.MaxStore,
		JetStreamMaxMemory: maxMemory,
		// What is acknowledged survives a loss of power; the stream of events
		// opts out for itself.
		SyncAlways:      true,
		MaxPayload:      int32(cfg.MaxPayload), //nolint:gosec // Validate bounds it
		MaxControlLine:  4096,
		PingInterval:    pingInterval,
		MaxPingsOut:     2,
		NoSigs:          true,
		NoSystemAccount: false,
		Nkeys: []*server.NkeyUser{
			{Nkey: hubKey},
			{Nkey: adminKey},
		},
	}
	if cfg.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	if cfg.MaxPayload == 0 {
		opts.MaxPayload = defaultMaxPayload
	}
	if cfg.MaxStore == 0 {
		opts.JetStreamMaxStore = defaultMaxStore
	}
	ns, err := server.NewServer(opts)
	if err != nil {
		return fmt.Errorf("couldn't set up the NATS server: %w", err)
	}
	s.ns = ns
	ns.SetLoggerV2(s.log, false, false, false)
	// Start returns once the listener is bound; what went wrong it only logs.
	ns.Start()
	if text := s.log.fatal(); text != "" {
		return explain(text, cfg, host)
	}
	if !ns.JetStreamEnabled() {
		return fmt.Errorf("state_dir %q: JetStream did not start", cfg.StateDir)
	}
	if cfg.NoListener {
		return nil
	}
	addr := ns.Addr()
	if addr == nil {
		return explain("no listener", cfg, host)
	}
	s.url = "nats://" + addr.String()
	return nil
}

// explain turns what the server logged as fatal into an error that names the
// setting to change.
func explain(text string, cfg Config, host string) error {
	if strings.Contains(text, "listen") || strings.Contains(text, "port") {
		return fmt.Errorf("nats.listen %q: %s", net.JoinHostPort(host, strconv.Itoa(cfg.Port)), text)
	}
	return fmt.Errorf("state_dir %q: %s", cfg.StateDir, text)
}

// InProcess is how this process connects, together with NKeyFile.
func (s *Server) InProcess() nats.InProcessConnProvider { return s.ns }

// NKeyFile is the file with the credentials of the hub's own processes.
func (s *Server) NKeyFile() string { return filepath.Join(s.stateDir, "keys", "hub.nk") }

// AdminNKeyFile is the file with the operator's credentials.
func (s *Server) AdminNKeyFile() string { return filepath.Join(s.stateDir, "keys", "admin.nk") }

// URL is where the server listens, "" without a listener.
func (s *Server) URL() string { return s.url }

// ClientCommand is the beginning of a command line of the stock nats CLI that
// reaches this server, "" without a listener.
func (s *Server) ClientCommand() string {
	if s.url == "" {
		return ""
	}
	return "nats --server " + s.url + " --nkey " + shellQuote(s.AdminNKeyFile())
}

// shellQuote quotes a path for a POSIX shell if it needs that.
func shellQuote(s string) string {
	if strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+,:@%", r))
	}) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// shutdownTimeout bounds the wait for the server's end, which takes milliseconds.
const shutdownTimeout = 10 * time.Second

// Shutdown stops the server and waits. Close all connections to it first: one
// that is open stays reconnecting to a server that never comes back.
//
// A server whose files somebody has damaged can hang for ever, holding the locks
// that its end needs. It is left behind then, for the end of the process; what it
// has acknowledged is on the disk.
func (s *Server) Shutdown() {
	s.shutdown.Do(func() {
		if s.ns == nil {
			s.unlock()
			return
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.ns.Shutdown()
			s.ns.WaitForShutdown()
		}()
		timer := time.NewTimer(shutdownTimeout)
		defer timer.Stop()
		select {
		case <-ended:
			s.unlock()
		case <-timer.C: // the lock stays: the server may still write
			s.log.log.Error("the NATS server does not end and is left behind; its files may be damaged", "timeout", shutdownTimeout)
		}
	})
}
