// Package catalog is what servers list and how a caller sees it: the tools,
// resources, resource templates and prompts of one server ([Catalog]), and the flat
// lists of exposed names and URIs that the hub makes of many ([ToolSet]). It is
// pure: no NATS, no goroutine, no clock, no I/O.
//
//	definitions of one server ── New ──► Catalog ─┐   filter, policy
//	                                     Catalog ─┼─► Source ── Build ──► ToolSet ──► Page, Format (lists)
//	                                     Catalog ─┘   naming, URIs         └──────► Resolve… (calls, reads)
//
// A definition stays the server's own bytes all the way. What a caller sees
// differs in the name or URI, and in members that would break a caller (see [Tool]).
// A definition that breaks the rules is rejected alone, with a reason; it never
// takes the rest of its list with it.
package catalog
