package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func addResources(s *mcp.Server) {
	s.AddResource(&mcp.Resource{URI: "every://static", Name: "static", MIMEType: "text/plain"}, read)
	s.AddResource(&mcp.Resource{URI: "every://binary", Name: "binary", MIMEType: "application/octet-stream"}, read)
	s.AddResource(&mcp.Resource{URI: "every://watched", Name: "watched", MIMEType: "text/plain"}, read)
	s.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "every://items/{id}", Name: "items", MIMEType: "text/plain"}, read)
}

func read(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	c := &mcp.ResourceContents{URI: req.Params.URI, MIMEType: "text/plain", Text: "the content of " + req.Params.URI}
	if strings.HasSuffix(c.URI, "binary") {
		c.MIMEType, c.Text, c.Blob = "application/octet-stream", "", []byte{0, 1, 2, 255}
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{c}}, nil
}

func addPrompts(s *mcp.Server) {
	s.AddPrompt(&mcp.Prompt{Name: "greet", Arguments: []*mcp.PromptArgument{{Name: "name", Required: true}}}, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return prompt(&mcp.TextContent{Text: "Hello, " + req.Params.Arguments["name"] + "!"}), nil
	})
	s.AddPrompt(&mcp.Prompt{Name: "interview"}, interview)
	s.AddPrompt(&mcp.Prompt{Name: "illustrated"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return prompt(
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "every://static", MIMEType: "text/plain", Text: "embedded"}},
			&mcp.ResourceLink{URI: "every://items/9", Name: "nine"},
		), nil
	})
}

// interview asks its caller's user for a name.
func interview(ctx context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	ask := &mcp.ElicitParams{Message: "who?", RequestedSchema: form}
	var res *mcp.ElicitResult
	if req.ProtocolVersion() < modern {
		var err error
		if res, err = req.Session.Elicit(ctx, ask); err != nil {
			return nil, err
		}
	} else {
		var ok bool
		if res, ok = req.Params.InputResponses["who"].(*mcp.ElicitResult); !ok {
			return &mcp.GetPromptResult{InputRequests: mcp.InputRequestMap{"who": ask}}, nil
		}
	}
	return prompt(&mcp.TextContent{Text: fmt.Sprintf("Hello, %v!", res.Content["answer"])}), nil
}

func prompt(content ...mcp.Content) *mcp.GetPromptResult {
	res := new(mcp.GetPromptResult)
	for _, c := range content {
		res.Messages = append(res.Messages, &mcp.PromptMessage{Role: "user", Content: c})
	}
	return res
}

// complete completes the name of greet and the id of items: with what was typed
// and where.
func complete(_ context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	where := req.Params.Ref.Name
	if req.Params.Ref.Type == "ref/resource" {
		where = req.Params.Ref.URI
	}
	return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{
		Values: []string{fmt.Sprintf("%s of %s %s", req.Params.Argument.Name, where, req.Params.Argument.Value)}, Total: 1,
	}}, nil
}
