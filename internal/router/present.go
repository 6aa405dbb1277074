package router

import (
	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
)

// present makes a server's answer what the caller is to see: with exposed URIs in
// place of the server's own, and with the name of the server in what a user is
// asked. All that a client could say by itself is that the hub asks, and clients
// show which server it is (client/elicitation). Nothing else changes (K8). The
// ToolSet is one from when the request was sent: the server may be gone now.
func present(req *request, server string, set *catalog.ToolSet, reply bus.Reply) (bus.Reply, error) {
	var change mcp.Rewrite
	if set.Rewrites(server) {
		change.URI = func(uri string) string { return set.ExposeURI(server, uri) }
	}
	if req.scope == "" {
		change.Message = func(message string) string { return "[" + server + "] " + message }
	}
	var err error
	if reply.Body, err = change.Response(reply.Body, req.method); err != nil {
		f := mcp.NewFault(mcp.KindProtocol, "reply", "the server's answer cannot be understood")
		f.Server = server
		return bus.Reply{}, f
	}
	return reply, nil
}
