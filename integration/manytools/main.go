// Command manytools is an MCP server with as many tools as it is told, over
// Streamable HTTP in the stateless era: what `hub bench --list` measures.
//
//	manytools -http 127.0.0.1:7791 -tools 1000
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	addr := flag.String("http", "127.0.0.1:0", "where to listen")
	tools := flag.Int("tools", 1000, "how many tools")
	flag.Parse()

	server := mcp.NewServer(&mcp.Implementation{Name: "manytools", Version: "1"}, &mcp.ServerOptions{PageSize: *tools})
	for i := range *tools {
		server.AddTool(&mcp.Tool{
			Name:        fmt.Sprintf("tool_%04d", i),
			Description: fmt.Sprintf("Tool number %d. It answers with the text ok, whatever its arguments are, and exists to be listed.", i),
			InputSchema: &jsonschema.Schema{
				Type: "object",
				Properties: map[string]*jsonschema.Schema{
					"path":  {Type: "string", Description: "the path of the file"},
					"query": {Type: "string", Description: "what to look for"},
					"limit": {Type: "integer", Description: "the largest number of answers"},
				},
				Required: []string{"path"},
			},
		}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "ok"}}}, nil
		})
	}
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{Stateless: true})
	srv := &http.Server{Addr: *addr, Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(srv.ListenAndServe())
}
