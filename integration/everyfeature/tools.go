//lint:file-ignore SA1019 logging, roots and sampling are deprecated, and servers go on using them.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/errgroup"
)

// modern is the first version without sessions.
const modern = "2026-07-28"

type call = mcp.CallToolRequest

func addTools(s *mcp.Server) {
	add := func(name, description string, handle mcp.ToolHandlerFor[arguments, any]) {
		mcp.AddTool(s, &mcp.Tool{Name: name, Description: description}, handle)
	}
	add("echo", "says text", func(_ context.Context, _ *call, in arguments) (*mcp.CallToolResult, any, error) {
		return text("%s", in.Text), nil, nil
	})
	add("work", "tells of its progress and logs at two levels, steps times", work)
	add("fail", "reports an error in its result", func(context.Context, *call, arguments) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{IsError: true, Content: text("it failed").Content}, nil, nil
	})
	add("refuse", "answers with a JSON-RPC error of its own", func(context.Context, *call, arguments) (*mcp.CallToolResult, any, error) {
		return nil, nil, &jsonrpc.Error{Code: -31999, Message: "refused", Data: json.RawMessage(`{"why":"test"}`)}
	})
	add("link", "links to a listed resource, to an instance of a template and to the web, and embeds a resource", link)
	add("caller", "tells what it knows of its caller", caller)
	add("ask", "asks the user with a form, text is the question", ask)
	add("ask_twice", "asks the user twice, the second question depends on the first answer", askTwice)
	add("ask_both", "asks the user with a form and the caller's model at the same time", askBoth)
	add("visit", "asks the user to visit a URL", visit)
	add("sample", "asks the caller's model, text is the question", sample)
	add("roots", "asks for the caller's roots", roots)
	add("touch", "tells that the resource with the URI text was updated", func(ctx context.Context, _ *call, in arguments) (*mcp.CallToolResult, any, error) {
		return text("touched %s", in.Text), nil, s.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: in.Text})
	})
	var hung atomic.Int64
	add("hang", "tells of progress, and answers only when it is cancelled", func(ctx context.Context, req *call, _ arguments) (*mcp.CallToolResult, any, error) {
		if token := req.Params.GetProgressToken(); token != nil {
			if err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: 1}); err != nil {
				return nil, nil, err
			}
		}
		<-ctx.Done()
		hung.Add(1)
		return nil, nil, ctx.Err()
	})
	add("hung", "tells how many calls of hang were cancelled", func(context.Context, *call, arguments) (*mcp.CallToolResult, any, error) {
		return text("%d", hung.Load()), nil, nil
	})
	add("change", "changes one of the lists: text is tools, prompts or resources; steps makes the change a new one", func(_ context.Context, _ *call, in arguments) (*mcp.CallToolResult, any, error) {
		return change(s, in), nil, nil
	})
}

type arguments struct {
	Text  string `json:"text,omitempty"`
	Steps int    `json:"steps,omitempty"`
}

func text(format string, args ...any) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
}

func work(ctx context.Context, req *call, in arguments) (*mcp.CallToolResult, any, error) {
	for n := range in.Steps {
		if token := req.Params.GetProgressToken(); token != nil {
			err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: float64(n + 1), Total: float64(in.Steps), Message: in.Text})
			if err != nil {
				return nil, nil, err
			}
		}
		for _, level := range []mcp.LoggingLevel{"debug", "warning"} {
			if err := req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: level, Logger: "work", Data: fmt.Sprintf("%s %d", in.Text, n+1)}); err != nil {
				return nil, nil, err
			}
		}
	}
	return text("%s: %d steps", in.Text, in.Steps), nil, nil
}

func link(context.Context, *call, arguments) (*mcp.CallToolResult, any, error) {
	return &mcp.CallToolResult{Content: []mcp.Content{
		&mcp.ResourceLink{URI: "every://static", Name: "listed"},
		&mcp.ResourceLink{URI: "every://items/7", Name: "an instance of a template"},
		&mcp.ResourceLink{URI: "https://example.com/doc", Name: "the web"},
		&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "every://static", MIMEType: "text/plain", Text: "embedded"}},
	}}, nil, nil
}

func caller(_ context.Context, req *call, _ arguments) (*mcp.CallToolResult, any, error) {
	meta := map[string]any{}
	for _, key := range []string{"io.modelcontextprotocol/logLevel", "traceparent", "tracestate", "baggage"} {
		if v, ok := req.Params.Meta[key]; ok {
			meta[key] = v
		}
	}
	b, err := json.Marshal(map[string]any{"version": req.ProtocolVersion(), "capabilities": req.ClientCapabilities(), "meta": meta})
	return text("%s", b), nil, err
}

var form = &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{"answer": {Type: "string"}}, Required: []string{"answer"}}

// elicit asks the user and reports false while there is no answer yet: then the
// result is the question.
func elicit(ctx context.Context, req *call, key, state string, params *mcp.ElicitParams) (*mcp.ElicitResult, *mcp.CallToolResult, error) {
	if req.ProtocolVersion() < modern {
		res, err := req.Session.Elicit(ctx, params)
		return res, nil, err
	}
	if res, ok := req.Params.InputResponses[key].(*mcp.ElicitResult); ok {
		return res, nil, nil
	}
	return nil, &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{key: params}, RequestState: state}, nil
}

func ask(ctx context.Context, req *call, in arguments) (*mcp.CallToolResult, any, error) {
	res, question, err := elicit(ctx, req, "form", "", &mcp.ElicitParams{Message: in.Text, RequestedSchema: form})
	if err != nil || question != nil {
		return question, nil, err
	}
	return text("%s %v", res.Action, res.Content["answer"]), nil, nil
}

func askTwice(ctx context.Context, req *call, in arguments) (*mcp.CallToolResult, any, error) {
	// In the modern era the first answer comes back in requestState.
	first, ok := strings.CutPrefix(req.Params.RequestState, "first=")
	if !ok {
		res, question, err := elicit(ctx, req, "first", "first", &mcp.ElicitParams{Message: in.Text, RequestedSchema: form})
		if err != nil || question != nil {
			return question, nil, err
		}
		first = fmt.Sprint(res.Content["answer"])
	}
	res, question, err := elicit(ctx, req, "second", "first="+first, &mcp.ElicitParams{Message: "after " + first, RequestedSchema: form})
	if err != nil || question != nil {
		return question, nil, err
	}
	return text("%s and %v", first, res.Content["answer"]), nil, nil
}

func askBoth(ctx context.Context, req *call, in arguments) (*mcp.CallToolResult, any, error) {
	ask := &mcp.ElicitParams{Message: in.Text, RequestedSchema: form}
	think := &mcp.CreateMessageParams{MaxTokens: 10, Messages: []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: in.Text}}}}
	if req.ProtocolVersion() < modern {
		var user *mcp.ElicitResult
		var model *mcp.CreateMessageResult
		var both errgroup.Group
		both.Go(func() (err error) {
			user, err = req.Session.Elicit(ctx, ask)
			return err
		})
		both.Go(func() (err error) {
			model, err = req.Session.CreateMessage(ctx, think)
			return err
		})
		if err := both.Wait(); err != nil {
			return nil, nil, err
		}
		return text("%v and %s", user.Content["answer"], said(model.Content)), nil, nil
	}
	user, answered := req.Params.InputResponses["user"].(*mcp.ElicitResult)
	model, thought := req.Params.InputResponses["model"].(*mcp.CreateMessageWithToolsResult)
	if !answered || !thought {
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"user": ask, "model": think}}, nil, nil
	}
	return text("%v and %s", user.Content["answer"], said(model.Content...)), nil, nil
}

func visit(ctx context.Context, req *call, in arguments) (*mcp.CallToolResult, any, error) {
	res, question, err := elicit(ctx, req, "url", "", &mcp.ElicitParams{Mode: "url", Message: in.Text, URL: "https://example.com/consent", ElicitationID: "consent-1"})
	if err != nil || question != nil {
		return question, nil, err
	}
	return text("%s", res.Action), nil, nil
}

func sample(ctx context.Context, req *call, in arguments) (*mcp.CallToolResult, any, error) {
	params := &mcp.CreateMessageParams{MaxTokens: 10, Messages: []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: in.Text}}}}
	if req.ProtocolVersion() < modern {
		res, err := req.Session.CreateMessage(ctx, params)
		if err != nil {
			return nil, nil, err
		}
		return text("the model says: %s", said(res.Content)), nil, nil
	}
	if res, ok := req.Params.InputResponses["model"].(*mcp.CreateMessageWithToolsResult); ok {
		return text("the model says: %s", said(res.Content...)), nil, nil
	}
	return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"model": params}}, nil, nil
}

func said(content ...mcp.Content) string {
	for _, c := range content {
		if t, ok := c.(*mcp.TextContent); ok {
			return t.Text
		}
	}
	return ""
}

func roots(ctx context.Context, req *call, _ arguments) (*mcp.CallToolResult, any, error) {
	var res *mcp.ListRootsResult
	if req.ProtocolVersion() < modern {
		var err error
		if res, err = req.Session.ListRoots(ctx, nil); err != nil {
			return nil, nil, err
		}
	} else {
		var ok bool
		if res, ok = req.Params.InputResponses["roots"].(*mcp.ListRootsResult); !ok {
			return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"roots": &mcp.ListRootsParams{}}}, nil, nil
		}
	}
	var uris []string
	for _, r := range res.Roots {
		uris = append(uris, r.URI)
	}
	return text("%s", strings.Join(uris, " ")), nil, nil
}

func change(s *mcp.Server, in arguments) *mcp.CallToolResult {
	name := fmt.Sprintf("added_%d", in.Steps)
	switch in.Text {
	case "tools":
		mcp.AddTool(s, &mcp.Tool{Name: name, Description: "was added"}, func(context.Context, *call, arguments) (*mcp.CallToolResult, any, error) {
			return text("added"), nil, nil
		})
	case "prompts":
		s.AddPrompt(&mcp.Prompt{Name: name, Description: "was added"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return prompt(&mcp.TextContent{Text: "added"}), nil
		})
	case "resources":
		s.AddResource(&mcp.Resource{URI: "every://" + name, Name: name}, read)
	default:
		return &mcp.CallToolResult{IsError: true, Content: text("text must be tools, prompts or resources").Content}
	}
	return text("changed %s", in.Text)
}
