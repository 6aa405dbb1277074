package router

import (
	"context"
	"io"
	"log/slog"
	"net"

	"toolhub/internal/bus"
)

// Config says how a router runs. Conn is required.
type Config struct {
	// Conn is the connection to the hub.
	Conn *bus.Conn
	// Identity names this process, by default the Conn's.
	Identity string
	// Listener takes HTTP; nil for none.
	Listener net.Listener
	// Logger is for the operator; nil discards.
	Logger *slog.Logger
}

// Router is one MCP endpoint of a hub.
type Router struct {
	cfg    Config
	conn   *bus.Conn
	log    *slog.Logger
	engine *engine
}

var (
	_ = context.Background
	_ io.Reader
)
