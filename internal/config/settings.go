package config

import (
	"time"

	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
	"toolhub/internal/policy"
)

// Settings are the hub-wide part of a configuration, stored with the hub. The
// zero value of a field means its default; [Settings.WithDefaults] fills them.
type Settings struct {
	// Policy decides which calls are allowed. It is required: allow_all, the
	// name of one of Policies, or rules in place.
	Policy *Policy `json:"policy,omitzero"`
	// Policies are policies by name, for Policy here and at servers.
	Policies map[string]policy.Spec `json:"policies,omitzero"`
	// Prefix is put before every exposed name. Letters, digits, _ and - (and
	// dots where naming is mcp), at most 50 bytes.
	Prefix string `json:"prefix,omitzero"`
	// MaxServers is how many servers the hub takes.
	MaxServers int `json:"max_servers,omitzero"`
	// MaxCatalogItems is how many tools the hub takes, over all servers.
	MaxCatalogItems int `json:"max_catalog_items,omitzero"`
	// MaxStdioServers is how many processes one worker runs for servers with a
	// command; each of a server's replicas is one.
	MaxStdioServers int `json:"max_stdio_servers,omitzero"`
	// PageSize is how many items one page of a list has.
	PageSize int `json:"page_size,omitzero"`
	// DrainTimeout is how long running calls may take to finish when a process
	// is asked to end.
	DrainTimeout Duration `json:"drain_timeout,omitzero"`

	Governance
}

// Governance is what a hub sets for all of its servers and a server may set
// anew for itself. A zero field at a server means the hub's value.
type Governance struct {
	// Naming is how exposed names are made: hub (id__tool, at most 64 bytes of
	// letters, digits, _ and -) or mcp (id.tool, at most 128, with dots).
	Naming catalog.Naming `json:"naming,omitzero"`
	// HideDenied leaves tools that are denied whatever their arguments out of
	// lists.
	HideDenied *bool `json:"hide_denied,omitzero"`
	// Tools says which tools exist at all, as globs over server/tool. What it
	// leaves out is neither listed nor callable. A server's own filter narrows
	// the hub's and cannot widen it.
	Tools *catalog.Filter `json:"tools,omitzero"`
	// Audit says what events tell of calls: none has nothing of their arguments and
	// results, bodies has both, as far as each has at most 32 KiB.
	Audit Audit `json:"audit,omitzero"`
	// Timeout bounds a call; progress starts it anew.
	Timeout Duration `json:"timeout,omitzero"`
	// MaxTotalTimeout bounds a call whatever its progress.
	MaxTotalTimeout Duration `json:"max_total_timeout,omitzero"`
	// RequestTimeout bounds what the hub asks of a server on its own: the
	// handshake, a page of a list, a health probe.
	RequestTimeout Duration `json:"request_timeout,omitzero"`
	// ListenIdleTimeout is how long a long-lived stream of a server may stay
	// silent before it is opened anew.
	ListenIdleTimeout Duration `json:"listen_idle_timeout,omitzero"`
	// StartupTimeout bounds the start of a server until it has answered the
	// handshake, in which a package manager may have to fetch it first.
	StartupTimeout Duration `json:"startup_timeout,omitzero"`
	// ProbeTimeout is how long a server may take to answer the question which
	// era it speaks.
	ProbeTimeout Duration `json:"probe_timeout,omitzero"`
	// StdioQueueTimeout is how long a call waits for its turn on a connection
	// that carries one call at a time.
	StdioQueueTimeout Duration `json:"stdio_queue_timeout,omitzero"`
	// RefetchInterval is the shortest time between two fetches of a list.
	RefetchInterval Duration `json:"refetch_interval,omitzero"`
	// HealthInterval is the time between two health probes.
	HealthInterval Duration `json:"health_interval,omitzero"`
	// BreakerThreshold is how many fetches of a list may fail in a row before
	// the server's tools are left out.
	BreakerThreshold int `json:"breaker_threshold,omitzero"`
	// MaxMessageBytes bounds one message of a server; the hub's bounds what clients send, too.
	MaxMessageBytes Size `json:"max_message_bytes,omitzero"`
	// RestartBackoff paces the restarts of a server that fails.
	RestartBackoff Backoff `json:"restart_backoff,omitzero"`
}

// Audit says what of a call is in its events.
type Audit string

// The choices of [Audit].
const (
	AuditNone   Audit = "none"
	AuditBodies Audit = "bodies"
)

// Backoff is full jitter: the wait before attempt n is uniform between 0 and
// Initial·2ⁿ, at most Max.
type Backoff struct {
	// Initial is the longest wait before the first restart.
	Initial Duration `json:"initial,omitzero"`
	// Max is the longest wait before any restart.
	Max Duration `json:"max,omitzero"`
	// ResetAfter is how long a server must run for its attempts to start over.
	ResetAfter Duration `json:"reset_after,omitzero"`
}

// defaults are the values of what a configuration leaves out.
func defaults() Settings {
	hide := true
	return Settings{
		MaxServers:      32,
		MaxCatalogItems: 1000,
		MaxStdioServers: 16,
		PageSize:        1000,
		DrainTimeout:    Duration(10 * time.Second),
		Governance: Governance{
			Naming:            catalog.NamingHub,
			HideDenied:        &hide,
			Tools:             &catalog.Filter{},
			Audit:             AuditNone,
			Timeout:           Duration(time.Minute),
			MaxTotalTimeout:   Duration(10 * time.Minute),
			RequestTimeout:    Duration(time.Minute),
			ListenIdleTimeout: Duration(2 * time.Minute),
			StartupTimeout:    Duration(time.Minute),
			ProbeTimeout:      Duration(5 * time.Second),
			StdioQueueTimeout: Duration(30 * time.Second),
			RefetchInterval:   Duration(time.Second),
			HealthInterval:    Duration(30 * time.Second),
			BreakerThreshold:  3,
			MaxMessageBytes:   mcp.DefaultMaxMessageBytes,
			RestartBackoff: Backoff{
				Initial:    Duration(time.Second),
				Max:        Duration(30 * time.Second),
				ResetAfter: Duration(time.Minute),
			},
		},
	}
}

// WithDefaults is s with every field that was left out at its default, except
// Policy, which has none.
func (s Settings) WithDefaults() Settings {
	d := defaults()
	fill(&s.MaxServers, d.MaxServers)
	fill(&s.MaxCatalogItems, d.MaxCatalogItems)
	fill(&s.MaxStdioServers, d.MaxStdioServers)
	fill(&s.PageSize, d.PageSize)
	fill(&s.DrainTimeout, d.DrainTimeout)
	s.Governance = s.over(d.Governance)
	return s
}

// over is g where it says something and base elsewhere.
func (g Governance) over(base Governance) Governance {
	fill(&g.Naming, base.Naming)
	fill(&g.HideDenied, base.HideDenied)
	fill(&g.Tools, base.Tools)
	fill(&g.Audit, base.Audit)
	fill(&g.Timeout, base.Timeout)
	fill(&g.MaxTotalTimeout, base.MaxTotalTimeout)
	fill(&g.RequestTimeout, base.RequestTimeout)
	fill(&g.ListenIdleTimeout, base.ListenIdleTimeout)
	fill(&g.StartupTimeout, base.StartupTimeout)
	fill(&g.ProbeTimeout, base.ProbeTimeout)
	fill(&g.StdioQueueTimeout, base.StdioQueueTimeout)
	fill(&g.RefetchInterval, base.RefetchInterval)
	fill(&g.HealthInterval, base.HealthInterval)
	fill(&g.BreakerThreshold, base.BreakerThreshold)
	fill(&g.MaxMessageBytes, base.MaxMessageBytes)
	fill(&g.RestartBackoff.Initial, base.RestartBackoff.Initial)
	fill(&g.RestartBackoff.Max, base.RestartBackoff.Max)
	fill(&g.RestartBackoff.ResetAfter, base.RestartBackoff.ResetAfter)
	return g
}

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
