package main

import (
	"context"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// toolsCmd is `hub tools`.
type toolsCmd struct {
	Format    string `enum:",anthropic,openai,gemini" default:"" help:"Print the tools as the API of a model takes them: anthropic, openai or gemini."`
	Server    string `placeholder:"ID" help:"Only those of one server."`
	Principal string `placeholder:"WHO" help:"As this principal sees them."`
	JSON      bool   `help:"Print the definitions as JSON."`

	hubFlags `embed:"" group:"Hub"`
}

type toolsParams struct {
	Format    string `json:"format,omitzero"`
	Server    string `json:"server,omitzero"`
	Principal string `json:"principal,omitzero"`
}

// Run prints the tools in listing order.
func (t *toolsCmd) Run(c *console) error {
	return t.withOperator(c, func(ctx context.Context, o *operator) error {
		raw, err := o.ask(ctx, "tools.list", toolsParams{t.Format, t.Server, t.Principal}, listTimeout, nil)
		if err != nil {
			return err
		}
		list, err := decode[struct {
			Tools jsontext.Value `json:"tools"`
		}](raw)
		if err != nil {
			return err
		}
		switch {
		case t.Format != "" && list.Tools != nil:
			return c.raw(list.Tools) // what the tools member of a request takes
		case t.JSON || list.Tools == nil:
			return c.raw(raw)
		}
		tools, err := decode[[]struct {
			Name        string `json:"name"`
			Title       string `json:"title"`
			Description string `json:"description"`
		}](list.Tools)
		if err != nil {
			return err
		}
		if len(tools) == 0 {
			fmt.Fprintln(c.err, "no tools; hub servers shows the state of each server")
			return nil
		}
		rows := [][]string{{"TOOL", "DESCRIPTION"}}
		for _, tool := range tools {
			about := tool.Description
			if about == "" {
				about = tool.Title
			}
			rows = append(rows, []string{tool.Name, shorten(oneLine(about), 90)})
		}
		return c.table(rows)
	})
}
