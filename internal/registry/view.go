package registry

import (
	"time"

	"toolhub/internal/catalog"
	"toolhub/internal/config"
	"toolhub/internal/mcp"
	"toolhub/internal/policy"
)

// View is the hub as it was at one moment. It is immutable.
type View struct {
	// Revision grows with each View of one Registry; it means nothing elsewhere.
	Revision uint64
	// Configured is false until a definition was applied: such a hub has no
	// policy, so it offers and allows nothing.
	Configured bool
	// Settings are the hub-wide settings with all defaults filled in.
	Settings config.Settings
	// Policy is the hub's own policy, nil while not Configured.
	Policy *policy.Policy
	// Servers are all that are defined, in listing order (L1): those of the file
	// in its order, then those added at runtime by age.
	Servers []*Server
	// Live is false while the watches are cut off: the View may be out of date.
	Live bool

	byID       map[string]*Server
	leases     map[incarnation]bool
	superseded chan struct{}
}

// Get returns the server with id, nil if none is defined.
func (v *View) Get(id string) *Server { return v.byID[id] }

// Superseded is closed as soon as a newer View is there.
func (v *View) Superseded() <-chan struct{} { return v.superseded }

// Alive reports whether the worker incarnation holds its lease.
func (v *View) Alive(worker, life string) bool { return v.leases[incarnation{worker, life}] }

// Server is one defined server with all that is known of it. It is immutable.
type Server struct {
	// Definition is as stored; Config has the hub's settings folded in (C5).
	Definition *Definition
	Config     config.Server
	// Policy decides this server's calls: its own or the hub's.
	Policy *policy.Policy
	// Filter is the tools filter in force, never nil.
	Filter *catalog.Selection
	// Own says who serves it, nil if nobody does.
	Own *Own
	// Status is what the owner last said, nil if it said nothing in its epoch.
	Status *Status
	// Catalog is the last one that was published, nil if there is none. While the
	// server is not [Server.Ready] it may be that of an earlier owner: its tools
	// are not offered, but their names are known.
	Catalog *catalog.Catalog

	ownerAlive bool
	listed     bool // Catalog is of the present owner's epoch
}

// ID is the server's id.
func (s *Server) ID() string { return s.Config.ID }

// Ready reports whether the server contributes to lists and takes calls (L1):
// its owner is alive, says that it is connected, and has published a catalog.
func (s *Server) Ready() bool {
	return s.ownerAlive && s.listed && s.Catalog != nil && s.Status != nil && s.Status.State.Serving() && !s.Status.Withheld
}

// State is the server's state as users see it: that of its status while the
// owner lives, [StateDown] otherwise.
func (s *Server) State() State {
	switch {
	case s.ownerAlive && s.Status != nil:
		return s.Status.State
	case s.ownerAlive:
		return StateStarting
	}
	return StateDown
}

// Epoch is the fencing number of the current owner, 0 if there is none alive.
func (s *Server) Epoch() uint64 {
	if !s.ownerAlive {
		return 0
	}
	return s.Own.Epoch
}

// Own is the record of who serves a server.
type Own struct {
	Worker      string    `json:"worker"`
	Incarnation string    `json:"incarnation"`
	Since       time.Time `json:"since"`
	// Epoch is the record's revision: it grows with each change of the owner.
	Epoch uint64 `json:"-"`
}

// State is the state of a server (A1).
type State string

// The states of a server.
const (
	// StateStarting: being started or connected for the first time.
	StateStarting State = "starting"
	// StateUp: connected, its catalog is current.
	StateUp State = "up"
	// StateDegraded: connected, but the last refresh failed; the last accepted
	// catalog stays in force.
	StateDegraded State = "degraded"
	// StateDown: the connection is lost or nobody serves it; reconnecting.
	StateDown State = "down"
	// StateFailed: waiting to be started again, see Attempts, Reason and RetryAt.
	StateFailed State = "failed"
)

// Serving reports whether a server in this state takes calls.
func (s State) Serving() bool { return s == StateUp || s == StateDegraded }

// Status is what the owner of a server says of it.
type Status struct {
	State State `json:"state"`
	// Epoch is the owner's; a status of another epoch is nobody's word.
	Epoch uint64 `json:"epoch"`
	// Since is when the state was entered.
	Since time.Time `json:"since"`
	// Attempts counts consecutive failures to start, 0 once it ran for a while.
	Attempts int `json:"attempts"`
	// Reason says in words why the server is not up, "" if it is. A server that is
	// being started again has the reason of its last failure.
	Reason string `json:"reason,omitempty"`
	// RetryAt is when a failed server is started again.
	RetryAt time.Time `json:"retry_at,omitzero"`
	// Withheld says that the tools are left out although the server is connected,
	// because too many refreshes in a row failed (L4).
	Withheld bool `json:"withheld,omitzero"`
	// Info is what the server said of itself, nil before the first connection.
	Info *mcp.ServerInfo `json:"info,omitempty"`
	// LatencyMS is the round trip of the last probe in milliseconds, at first that
	// of its list.
	LatencyMS float64 `json:"latency_ms,omitzero"`
	// Stderr has the last lines that a stdio server wrote there.
	Stderr []string `json:"stderr,omitempty"`
	// Rejected lists tools that are not offered, each with the reason.
	Rejected []catalog.Rejected `json:"rejected,omitempty"`
}
