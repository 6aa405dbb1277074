// Package router is the MCP endpoint of a hub: it shows clients of both eras one
// server that has the tools, resources and prompts of all, and sends each request
// to the worker that owns its server. It keeps nothing that another router lacks.
//
//	 fronts                         engine                              bus
//	modern HTTP ──┐  request   ┌► discover, …/list ◄── lists ◄────── registry.View (KV)
//	legacy HTTP ──┼──────────► ┤                            │
//	stdio       ──┘ ◄───────── └► calls ── routes, dispatch ┼──► toolhub.<hub>.call.<server>.<epoch>.…
//	      ▲           answer                                │
//	      ├── list_changed ◄── subscription ◄── changes ◄───┘
//	      └── updated ◄── watching ◄── upstream ◄────────────── subscriptions/listen of a worker
//	                            operator API ◄───────────────── toolhub.<hub>.api.…
//
// A front turns what its era says into modern requests, and answers back; behind
// it there is one era only. What a client may see is the ToolSet of its scope and
// principal, built when a View or a caller is new and shared from then on. A list
// costs no bus round trip, a call exactly one.
//
// Routers hide what may not be called (hide_denied) and enforce nothing: the
// policy is the worker's.
package router
