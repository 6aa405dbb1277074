// Command conformance-client is the client under test of the official MCP
// conformance suite: the code with which workers reach their servers, made to do
// what each scenario of the suite asks of a client.
//
//	suite: a server that observes ◄── mcp.ConnectHTTP, catalog, oauth ◄── a scenario
//
// The suite starts it with the URL of the server as last argument and the scenario
// in MCP_CONFORMANCE_SCENARIO, see [toolhub/integration/conformance].
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "conformance-client:", err)
		os.Exit(1)
	}
}

// limit bounds a scenario, so that a client that hangs fails alone.
const limit = time.Minute

func run() error {
	if len(os.Args) < 2 {
		return fmt.Errorf("usage: MCP_CONFORMANCE_SCENARIO=NAME %s URL", os.Args[0])
	}
	name := os.Getenv("MCP_CONFORMANCE_SCENARIO")
	scenario, ok := scenarios[name]
	if !ok {
		return fmt.Errorf("there is no scenario %q here", name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := &client{url: os.Args[len(os.Args)-1], given: jsontext.Value(os.Getenv("MCP_CONFORMANCE_CONTEXT"))}
	if c.given == nil || !c.given.IsValid() {
		c.given = jsontext.Value("{}")
	}
	err := scenario(ctx, c)
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return err
}
