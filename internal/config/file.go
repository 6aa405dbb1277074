// Package config is a hub's configuration: the YAML file, its strict loading
// and the typed values that everything else is built from.
//
//	hub.yaml ──Load──► File ─┬─ Settings ──┐
//	                         └─ []Server ──┴─► Server.Effective(Settings)
//
// Loading reports every problem at once, each with file, line, field and what
// would be right. [Settings] and [Server] are also what a hub stores as JSON,
// so they hold references to secrets ([Ref]) and never a secret.
package config

// File is one loaded configuration file. Paths in it are absolute: relative
// ones are taken from the folder of the file.
type File struct {
	// Hub is the name of the hub: its own space of servers, policy and state.
	// Letters, digits, _ and -, starting with a letter, at most 32 bytes.
	Hub string `json:"hub,omitzero"`
	// Listen is where the MCP endpoint listens, host:port on loopback; port 0
	// takes a free one.
	Listen string `json:"listen,omitzero"`
	// StateDir holds the hub's durable state and its credentials. By default it
	// is toolhub/ and the hub's name, in $XDG_STATE_HOME or ~/.local/state.
	StateDir string `json:"state_dir,omitzero"`
	// NATS says which NATS system carries the hub.
	NATS NATS `json:"nats,omitzero"`
	// Settings hold for the hub and, where a server does not say otherwise, for
	// every server. In the file they stand at the top level.
	Settings
	// Servers are the MCP servers behind the hub, in the order of the file. In
	// the file they are a mapping from server id to server.
	Servers []Server `json:"servers,omitzero"`

	name  string
	lines map[string]int
}

// Problem is a problem of the file that only somebody else can find, at the
// line of field.
func (f *File) Problem(field, format string, args ...any) Problem {
	d := decoder{file: f.name, lines: f.lines}
	d.reportField(field, format, args...)
	return d.problems[0]
}

// NATS says which NATS system carries a hub.
type NATS struct {
	// URL is a NATS server to use, or several separated by commas. Without it
	// the hub runs a NATS server of its own.
	URL string `json:"url,omitzero"`
	// NKey is the file with the nkey seed that authenticates at URL.
	NKey string `json:"nkey,omitzero"`
	// Creds is the .creds file (JWT and seed) that authenticates at URL.
	Creds string `json:"creds,omitzero"`
	// Listen is where the hub's own NATS server listens for the operator's
	// commands and the nats CLI, host:port on loopback; port 0 takes a free one.
	Listen string `json:"listen,omitzero"`
}

// Names and addresses that hold where the file says nothing.
const (
	DefaultHub        = "hub"
	DefaultListen     = "127.0.0.1:7780"
	DefaultNATSListen = "127.0.0.1:0"
)
