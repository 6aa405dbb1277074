// Command everyfeature is a server of either era that uses every feature of MCP
// which passes a hub, on the official Go SDK. Tests put it behind the hub.
//
//	everyfeature                          stdio, both eras
//	everyfeature -http ADDR -era legacy   Streamable HTTP with sessions
//	everyfeature -http ADDR -era modern   Streamable HTTP without
//
// What it asks of its caller, it asks in the way of the caller's era: with a
// request during the call, or with an input_required result.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	addr := flag.String("http", "", "serve Streamable HTTP at this address instead of stdio")
	era := flag.String("era", "modern", "the era over HTTP: legacy or modern")
	flag.Parse()
	if *era != "legacy" && *era != "modern" {
		fmt.Fprintf(os.Stderr, "everyfeature: -era is legacy or modern, not %q\n", *era)
		os.Exit(2)
	}
	s := newServer()
	if *addr == "" {
		if err := s.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
			log.Fatal(err)
		}
		return
	}
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{Stateless: *era == "modern", PropagateRequestCancellation: true})
	log.Fatal(http.ListenAndServe(*addr, handler))
}

func newServer() *mcp.Server {
	accept := func(context.Context, *mcp.SubscribeRequest) error { return nil }
	s := mcp.NewServer(&mcp.Implementation{Name: "everyfeature", Version: "1.0.0"}, &mcp.ServerOptions{
		Instructions:       "Everything here is for tests.",
		CompletionHandler:  complete,
		SubscribeHandler:   accept,
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	addTools(s)
	addResources(s)
	addPrompts(s)
	return s
}
