package mcp

import "slices"

// Protocol versions that this package speaks.
const (
	Version20241105 = "2024-11-05"
	Version20250326 = "2025-03-26"
	Version20250618 = "2025-06-18"
	Version20251125 = "2025-11-25"
	Version20260728 = "2026-07-28"
)

// LatestLegacy and LatestModern are the newest versions of each era.
const (
	LatestLegacy = Version20251125
	LatestModern = Version20260728
)

// Era tells the two families of the protocol apart: sessions opened by
// initialize, or stateless requests that carry everything in _meta.
type Era string

// The eras. A server's era never changes while its process lives.
const (
	EraLegacy Era = "legacy"
	EraModern Era = "modern"
)

// LegacyVersions lists the initialize-era versions offered to clients, newest
// first. MCP 2024-11-05 is spoken towards servers only (its HTTP transport is
// another one).
func LegacyVersions() []string {
	return []string{Version20251125, Version20250618, Version20250326}
}

// ModernVersions lists the stateless versions, newest first.
func ModernVersions() []string { return []string{Version20260728} }

// EraOf returns the era of a protocol version. Versions are dates, so one that
// is unknown and newer than the first modern one counts as modern.
func EraOf(version string) Era {
	if version >= Version20260728 {
		return EraModern
	}
	return EraLegacy
}

// KnownVersion reports whether this package speaks version, in either era.
func KnownVersion(version string) bool {
	return version == Version20241105 || slices.Contains(LegacyVersions(), version) || slices.Contains(ModernVersions(), version)
}

// Methods of the protocol that the hub acts on by name.
const (
	MethodInitialize       = "initialize"
	MethodPing             = "ping"
	MethodDiscover         = "server/discover"
	MethodListen           = "subscriptions/listen"
	MethodToolsList        = "tools/list"
	MethodToolsCall        = "tools/call"
	MethodResourcesList    = "resources/list"
	MethodTemplatesList    = "resources/templates/list"
	MethodResourcesRead    = "resources/read"
	MethodPromptsList      = "prompts/list"
	MethodPromptsGet       = "prompts/get"
	MethodComplete         = "completion/complete"
	MethodTasksGet         = "tasks/get"
	MethodTasksUpdate      = "tasks/update"
	MethodTasksCancel      = "tasks/cancel"
	MethodTasksResult      = "tasks/result" // of 2025-11-25, like the next one
	MethodTasksList        = "tasks/list"
	MethodSetLevel         = "logging/setLevel"
	MethodElicit           = "elicitation/create"
	MethodSample           = "sampling/createMessage"
	MethodRootsList        = "roots/list"
	MethodSubscribe        = "resources/subscribe"
	MethodUnsubscribe      = "resources/unsubscribe"
	NotifyInitialized      = "notifications/initialized"
	NotifyCancelled        = "notifications/cancelled"
	NotifyProgress         = "notifications/progress"
	NotifyMessage          = "notifications/message"
	NotifyToolsChanged     = "notifications/tools/list_changed"
	NotifyPromptsChanged   = "notifications/prompts/list_changed"
	NotifyResourcesChanged = "notifications/resources/list_changed"
	NotifyResourceUpdated  = "notifications/resources/updated"
	NotifyTask             = "notifications/tasks"
	NotifyTaskStatus       = "notifications/tasks/status" // of 2025-11-25
	NotifyAcknowledged     = "notifications/subscriptions/acknowledged"
)

// Keys of _meta that the protocol defines (2026-07-28, basic/index).
const (
	MetaProtocolVersion    = "io.modelcontextprotocol/protocolVersion"
	MetaClientCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaClientInfo         = "io.modelcontextprotocol/clientInfo"
	MetaServerInfo         = "io.modelcontextprotocol/serverInfo"
	MetaLogLevel           = "io.modelcontextprotocol/logLevel"
	MetaSubscriptionID     = "io.modelcontextprotocol/subscriptionId"
	MetaProgressToken      = "progressToken"
)

// Header names of Streamable HTTP.
const (
	HeaderVersion = "Mcp-Protocol-Version"
	HeaderSession = "Mcp-Session-Id"
	HeaderMethod  = "Mcp-Method"
	HeaderName    = "Mcp-Name"
)

// DefaultMaxMessageBytes bounds one message on every transport and in every
// direction: a JSON body, an event of a stream, a line of stdio.
const DefaultMaxMessageBytes = 8 << 20

// MaxMessageBytes is the most that such a limit can be set to.
const MaxMessageBytes = 64 << 20

// MaxDepth bounds the nesting of arrays and objects in one message.
const MaxDepth = 512

// Implementation names a client or a server. It is for display only: nothing
// is decided by what a peer calls itself.
type Implementation struct {
	Name    string `json:"name"`
	Title   string `json:"title,omitempty"`
	Version string `json:"version"`
}
