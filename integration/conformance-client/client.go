package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
)

// client does what a worker does with a server, and what the host of a caller does
// with the questions that come back.
type client struct {
	url   string
	given jsontext.Value // what the suite tells beside the URL

	target func(*mcp.HTTPTarget) // adds to the target, nil for nothing
	answer func(method string, params jsontext.Value) jsontext.Value

	conn    mcp.Conn
	catalog *catalog.Catalog
}

// with runs do on a connection like that of a worker.
func (c *client) with(ctx context.Context, do func() error) (err error) {
	target := mcp.HTTPTarget{URL: c.url}
	if c.target != nil {
		c.target(&target)
	}
	c.conn, err = mcp.ConnectHTTP(ctx, target, mcp.ConnectOptions{
		Server:        "conf",
		OnListChanged: func(mcp.ListKind) {}, // workers always listen
		Logger:        logger(),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.conn.Close(context.WithoutCancel(ctx))) }()
	return do()
}

func logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// list makes the catalog of the server's tools.
func (c *client) list(ctx context.Context) error {
	result, err := c.conn.Call(ctx, &mcp.Call{Method: mcp.MethodToolsList, Params: jsontext.Value("{}")})
	if err != nil {
		return err
	}
	tools, err := elements(result, "tools")
	if err != nil {
		return err
	}
	c.catalog = catalog.New("conf", *c.conn.Info(), catalog.Lists{Tools: tools})
	for _, r := range c.catalog.Rejected {
		fmt.Fprintf(os.Stderr, "not offered: %s: %s\n", r.Tool, r.Detail)
	}
	return nil
}

// capabilities are those of the host that calls.
const capabilities = `{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}`

// call calls a tool, with the headers of its definition, and answers what it asks.
func (c *client) call(ctx context.Context, name string, arguments jsontext.Value) error {
	params, err := mcp.Edit(nil,
		mcp.Change{Name: "name", Value: mcp.QuoteString(name)},
		mcp.Change{Name: "arguments", Value: arguments},
		mcp.Change{Name: "_meta", Value: jsontext.Value(`{"` + mcp.MetaClientCapabilities + `":` + capabilities + `}`)})
	if err != nil {
		return err
	}
	call := &mcp.Call{Method: mcp.MethodToolsCall, Request: func(_ context.Context, method string, params jsontext.Value) (jsontext.Value, *mcp.Error) {
		if c.answer == nil {
			return nil, mcp.MethodNotFound(method)
		}
		return c.answer(method, params), nil
	}}
	if tool, ok := c.catalog.Tool(name); ok {
		call.Headers = mcp.ParamHeaderValues(tool.Headers, arguments)
	}
	for call.Params = params; ; {
		result, err := c.conn.Call(ctx, call)
		if err != nil || mcp.FieldString(result, "resultType") != mcp.ResultInputRequired {
			return err
		}
		if call.Params, err = c.respond(params, result); err != nil {
			return err
		}
	}
}

// respond is params with the answers to what the result asks for.
func (c *client) respond(params, result jsontext.Value) (jsontext.Value, error) {
	var changes []mcp.Change
	err := mcp.EachField(mcp.Field(result, "inputRequests"), func(key string, request jsontext.Value) error {
		changes = append(changes, mcp.Change{Name: key, Value: c.answer(mcp.FieldString(request, "method"), mcp.Field(request, "params"))})
		return nil
	})
	if err != nil {
		return nil, err
	}
	responses, err := mcp.Edit(nil, changes...)
	if err != nil {
		return nil, err
	}
	return mcp.Edit(params,
		mcp.Change{Name: "inputResponses", Value: responses},
		mcp.Change{Name: "requestState", Value: mcp.Field(result, "requestState")}) // nil is none
}
