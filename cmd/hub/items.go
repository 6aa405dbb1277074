package main

import (
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// itemsFlags say which part of a list, and who sees it.
type itemsFlags struct {
	Server    string `placeholder:"ID" help:"Only those of one server."`
	Principal string `placeholder:"WHO" help:"As this principal sees them."`
	JSON      bool   `help:"Print the definitions as JSON."`

	hubFlags `embed:"" group:"Hub"`
}

// show prints a list: of each item its member key, and what it is about.
func (f *itemsFlags) show(c *console, op, member, key string) error {
	return f.withOperator(c, func(ctx context.Context, o *operator) error {
		raw, err := o.ask(ctx, op, toolsParams{Server: f.Server, Principal: f.Principal}, listTimeout, nil)
		if err != nil {
			return err
		}
		if f.JSON {
			return c.raw(raw)
		}
		items, err := decode[[]jsontext.Value](mcp.Field(raw, member))
		if err != nil {
			return err
		}
		if len(items) == 0 {
			fmt.Fprintln(c.err, "there are none; hub servers shows the state of each server")
			return nil
		}
		rows := [][]string{{"NAME", "DESCRIPTION"}}
		for _, item := range items {
			about := ""
			for _, name := range []string{"description", "title", "name"} {
				if about == "" && name != key {
					about = mcp.FieldString(item, name)
				}
			}
			rows = append(rows, []string{mcp.FieldString(item, key), shorten(oneLine(about), 90)})
		}
		return c.table(rows)
	})
}

// resourcesCmd is `hub resources`.
type resourcesCmd struct {
	Templates bool `help:"The URI templates instead."`

	itemsFlags `embed:""`
}

// Run prints the resources in listing order.
func (r *resourcesCmd) Run(c *console) error {
	if r.Templates {
		return r.show(c, "resources.templates.list", "resourceTemplates", "uriTemplate")
	}
	return r.show(c, "resources.list", "resources", "uri")
}

// promptsCmd is `hub prompts`.
type promptsCmd struct {
	itemsFlags `embed:""`
}

// Run prints the prompts in listing order.
func (p *promptsCmd) Run(c *console) error { return p.show(c, "prompts.list", "prompts", "name") }

// readCmd is `hub read`.
type readCmd struct {
	URI       string        `arg:"" help:"The resource's exposed URI, as hub resources shows it."`
	Principal string        `placeholder:"WHO" help:"Read as this principal."`
	Timeout   time.Duration `placeholder:"30s" help:"Give up after this time. By default the hub's own limits hold."`
	JSON      bool          `help:"Print the whole result as JSON."`

	hubFlags `embed:"" group:"Hub"`
}

// Run prints what the resource has: its text, and of everything else what it is.
func (r *readCmd) Run(c *console) error {
	if r.Timeout < 0 {
		return usageError{"--timeout must be more than 0"}
	}
	return r.withOperator(c, func(ctx context.Context, o *operator) error {
		params := struct {
			URI       string `json:"uri"`
			Principal string `json:"principal,omitzero"`
		}{r.URI, r.Principal}
		raw, err := o.ask(ctx, "resources.read", params, r.Timeout, nil)
		if err != nil {
			return err
		}
		return r.show(c, raw)
	})
}

func (r *readCmd) show(c *console, raw jsontext.Value) error {
	if mcp.FieldString(raw, "resultType") == mcp.ResultInputRequired {
		return mcp.NewFault(mcp.KindInvalid, "input_required", "the server asks for input before it is read, which this command cannot give; read it from an MCP client")
	}
	if r.JSON {
		return c.raw(raw)
	}
	contents, err := decode[[]jsontext.Value](mcp.Field(raw, "contents"))
	if err != nil {
		return err
	}
	for _, part := range contents {
		block, err := mcp.Edit(nil, mcp.Change{Name: "type", Value: jsontext.Value(`"resource"`)}, mcp.Change{Name: "resource", Value: part})
		if err != nil {
			return err
		}
		text := describe(block)
		if c.terminal {
			text = safe(text)
		}
		fmt.Fprintln(c.out, text)
	}
	return nil
}
