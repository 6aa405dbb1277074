package config

import (
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/catalog"
)

// Server is the definition of one MCP server behind the hub. It is reached in
// one of these ways:
//
//	command         a process that speaks MCP on stdin and stdout
//	url             Streamable HTTP, or HTTP with SSE (MCP 2024-11-05)
//	command and url a process that the hub starts and that serves url
//	builtin         a server that is part of the hub
type Server struct {
	// ID is the operator's name for the server, the key in the file:
	// ^[a-z][a-z0-9_]{0,31}$ without __ and without a _ at the end.
	ID string `json:"id"`

	// Command is the program to start. One with a / in it is taken from the
	// folder of the file, others are looked up in PATH.
	Command string `json:"command,omitzero"`
	// Args are the arguments of Command, one each; no shell sees them.
	Args []string `json:"args,omitzero"`
	// Env is set for Command beside the hub's own environment.
	Env map[string]Ref `json:"env,omitzero"`
	// Cwd is the folder in which Command runs, by default that of the file.
	Cwd string `json:"cwd,omitzero"`
	// Replicas is how many processes of Command share the calls, 1 by default.
	Replicas int `json:"replicas,omitzero"`

	// URL is the server's MCP endpoint, http or https.
	URL string `json:"url,omitzero"`
	// Headers are sent with every request to URL.
	Headers map[string]Ref `json:"headers,omitzero"`
	// Auth is how the hub authenticates at URL.
	Auth *Auth `json:"auth,omitzero"`
	// InsecureSkipTLSVerify accepts any certificate of URL. For local
	// development only.
	InsecureSkipTLSVerify bool `json:"insecure_skip_tls_verify,omitzero"`

	// Builtin is the name of a server that is part of the hub.
	Builtin string `json:"builtin,omitzero"`
	// BuiltinConfig is what Builtin takes as its own configuration.
	BuiltinConfig jsontext.Value `json:"builtin_config,omitzero"`

	// Era is the protocol era that the server speaks; auto finds out. A server that
	// speaks both can be connected in both, so that each caller meets its own (mirror).
	Era Era `json:"era,omitzero"`
	// Prefix takes the place of all that stands before the tool in exposed names:
	// the hub's prefix and the server's own part (id__ or id.). Empty exposes the
	// server's names as they are.
	Prefix *string `json:"prefix,omitzero"`
	// URIs says how the URIs of its resources are exposed: with the server in front
	// (mcp-proxy://id/uri), or unchanged.
	URIs catalog.URIs `json:"uris,omitzero"`
	// Trusted lets policy conditions believe the server's hints about its tools.
	Trusted bool `json:"trusted,omitzero"`
	// Policy takes the place of the hub's policy for this server.
	Policy *Policy `json:"policy,omitzero"`

	Governance
}

// Auth is how the hub authenticates at a server's URL.
type Auth struct {
	// Bearer is the token of an Authorization header. It must be a reference.
	Bearer Ref `json:"bearer,omitzero"`
}

// Era says which era a server speaks.
type Era string

// The choices of [Era].
const (
	EraAuto   Era = "auto"
	EraLegacy Era = "legacy"
	EraModern Era = "modern"
	EraMirror Era = "mirror"
)

// Kind is how a server is reached.
type Kind string

// The kinds of server.
const (
	KindStdio   Kind = "stdio"
	KindHTTP    Kind = "http"
	KindBuiltin Kind = "builtin"
)

// Kind is how s is reached.
func (s *Server) Kind() Kind {
	switch {
	case s.URL != "":
		return KindHTTP
	case s.Builtin != "":
		return KindBuiltin
	default:
		return KindStdio
	}
}

// Effective is s with everything that it leaves out taken from the hub's
// settings, and from the defaults where they say nothing either. Its Policy is
// never nil unless the hub's is.
func (s Server) Effective(hub Settings) Server {
	hub = hub.WithDefaults()
	fill(&s.Policy, hub.Policy)
	fill(&s.Era, EraAuto)
	fill(&s.URIs, catalog.URIsProxy)
	fill(&s.Replicas, 1)
	s.Governance = s.over(hub.Governance)
	return s
}
