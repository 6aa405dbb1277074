// Package worker runs MCP servers and takes the calls for them: it claims the
// servers of a hub, starts or connects them, keeps them running, publishes what
// they list, and lets no call through that the policy does not allow.
//
//	Run ── incarnation ── host ── server ──┬─ replica ── link ── mcp.Conn ── process, builtin or URL
//	       (one lease)    (one     │       ├─ replica …
//	        reconciles    epoch)   │       ├─ reader: lists → catalog → outbox → registry
//	                               │       ├─ pipeline: pick, decide, send, maybe park
//	                               │       └─ watch: subscriptions/listen → all connections
//	                               └─ bus.Serve, drain, give up
//
// Each server has its own goroutines and shares nothing with the others, so one
// that crashes, hangs or talks nonsense is nobody else's problem. A call goes from
// the bus to the server's connection and back as raw bytes.
//
// Programs that run a worker call [ReapMain] first thing in main.
package worker
