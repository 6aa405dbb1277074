// Package bus is NATS as a hub uses it: the connection, the names of all
// subjects and keys, MCP calls over subjects, the state in KV buckets, leases,
// and events. All that a packet capture of a hub shows is defined here; what is
// allowed or right is decided elsewhere.
//
//	Call ──► toolhub.<hub>.call.<server>.<epoch>.<method> ──► Serve
//	     ◄── _INBOX.<identity>.<mux>.<token>: notifications in order, then one result, error or fault
//	Put, Get, Watch   buckets TOOLHUB_<hub>_{defs,reg,policy,sessions}
//	Emit, Events      stream  TOOLHUB_<hub>_events, subjects toolhub.<hub>.event.<kind>.<id>.<what>
//	$SRV.{PING,INFO,STATS}    what `nats micro` asks, answered with the true counters of every Service
//
// # Calls
//
// The body of a call is a whole JSON-RPC request of MCP 2026-07-28, and every
// reply is a whole JSON-RPC message too, so that `nats req` can call a tool. The
// header Toolhub-Call carries what is not MCP (see [Meta]); it may be absent.
// The header Toolhub-Reply says of a reply what it is and numbers it:
//
//	Toolhub-Reply: <kind> <sequence> [<part>/<parts> <size>]
//
// with the kinds notify, result (the server's result), error (the server's own
// JSON-RPC error), fault (an error found by the hub, an [mcp.Fault]) and
// continue. Exactly one result, error or fault ends the replies; a gap in the
// sequence is a fault and never silence. A reply without the header is the final
// one: so answer programs that are none of ours, and this package where a small
// result is all there is.
//
// A message beyond the payload limit of the server travels in parts. Those of a
// reply are numbered like other replies. A request's first message has part 1
// and asks, by parts= and size= in Toolhub-Call, for the rest to be fetched: the
// side that serves answers with continue, whose own reply subject takes the
// other parts (of the kind more), so that all of them reach the same member of a
// queue group.
//
// # Connections
//
// A [Conn] is three NATS connections: control (KV and leases), calls, events. Big
// results cannot delay a lease. No call is queued for a server that is away: it
// fails at once, because a request that is delivered after its caller gave up
// would run for nobody. Events do wait, in a bounded queue.
package bus
