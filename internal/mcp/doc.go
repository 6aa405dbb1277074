// Package mcp is the Model Context Protocol on the wire: JSON-RPC messages
// whose payloads stay raw bytes, the two protocol eras, and the transports
// (Streamable HTTP and stdio, both sides; HTTP with SSE as a client). It knows no
// NATS and no hub.
//
//	caller ──HTTP/stdio──►  Server side          Client side  ──HTTP/stdio──► server
//	         (both eras)    Message, Params ───► Conn, Call     (one era each)
//
// A [Message] is decoded only as far as routing needs: id, method, and the
// members params, result and error as raw JSON. Whatever the hub does not have
// to understand passes through byte for byte, so unknown members, unknown
// content types and integers beyond 2^53 survive. [Edit] changes single members
// of a raw object and leaves every other byte alone, [Rewrite] the URIs and
// questions in an answer.
//
// A [Conn] also keeps subscriptions to resources and tasks, over streams and
// sessions that are lost and made anew.
//
// An error is one of two things and the types keep them apart: an [*Error] is
// what the peer said, in its words; a [*Fault] is what was found out without
// the peer's word for it (it is unreachable, silent, or talks nonsense).
package mcp
