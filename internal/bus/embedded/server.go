// Package embedded runs the NATS server inside the process of a single-node
// hub. It is the only package outside tests that links nats-server.
package embedded

import (
	"context"
	"errors"
	"log/slog"

	"github.com/nats-io/nats.go"
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
	// MaxPayload bounds one message on the wire, 0 is 8 MiB.
	MaxPayload int
	// MaxStore bounds what JetStream keeps on disk, 0 is 4 GiB.
	MaxStore int64
	// Logger gets the server's own log; nil discards it.
	Logger *slog.Logger
}

// Server is a running NATS server.
type Server struct{}

// Start starts the server and returns once it takes connections. A state
// directory in use, one that cannot be written or a port in use is an error at
// once that names it.
func Start(ctx context.Context, cfg Config) (*Server, error) { return nil, errors.New("not yet") }

// InProcess is how this process connects, together with NKeyFile.
func (s *Server) InProcess() nats.InProcessConnProvider { return nil }

// NKeyFile is the file with the credentials of the hub's own processes.
func (s *Server) NKeyFile() string { return "" }

// AdminNKeyFile is the file with the operator's credentials.
func (s *Server) AdminNKeyFile() string { return "" }

// URL is where the server listens, "" without a listener.
func (s *Server) URL() string { return "" }

// ClientCommand is the beginning of a command line of the stock nats CLI that
// reaches this server, "" without a listener.
func (s *Server) ClientCommand() string { return "" }

// Shutdown stops the server and waits. Close all connections to it first.
func (s *Server) Shutdown() {}
