package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// explainCmd is `hub policy explain`.
type explainCmd struct {
	Tool      string   `arg:"" name:"server/tool" help:"The server's id and its own name of the tool."`
	Arguments []string `arg:"" optional:"" name:"arguments" help:"The arguments of the call, written as for hub call: a JSON object, - or key=value."`
	Principal string   `placeholder:"WHO" help:"Who would call."`
	JSON      bool     `help:"Print the whole explanation as JSON."`

	hubFlags `embed:"" group:"Hub"`
}

type explainParams struct {
	Principal string         `json:"principal,omitzero"`
	Server    string         `json:"server"`
	Tool      string         `json:"tool"`
	Arguments jsontext.Value `json:"arguments,omitzero"`
}

// explainedRule is a rule as the policy API shows it: the pattern alone, or
// with its condition and its place.
type explainedRule struct{ Tool, When, Place string }

// UnmarshalJSON implements json.Unmarshaler.
func (r *explainedRule) UnmarshalJSON(data []byte) error {
	if jsontext.Value(data).Kind() == '"' {
		tool, err := decode[string](data)
		r.Tool = tool
		return err
	}
	rule, err := decode[struct {
		Tool string `json:"tool"`
		When string `json:"when"`
		File string `json:"file"`
		Line int    `json:"line"`
	}](data)
	*r = explainedRule{Tool: rule.Tool, When: rule.When}
	if rule.Line > 0 {
		r.Place = fmt.Sprintf("%s:%d", rule.File, rule.Line)
	}
	return err
}

func (r *explainedRule) String() string {
	s := r.Tool
	if r.When != "" {
		s += " when " + r.When
	}
	return s
}

type explanation struct {
	Decision struct {
		Effect string         `json:"effect"`
		Rule   *explainedRule `json:"rule"`
		Field  string         `json:"field"`
		Reason string         `json:"reason"`
		Failed string         `json:"failed"`
	} `json:"decision"`
	Losers []struct {
		Effect string         `json:"effect"`
		Rule   *explainedRule `json:"rule"`
		Field  string         `json:"field"`
		Why    string         `json:"why"`
	} `json:"losers"`
}

// Run prints the decision, the rule that made it and the rules that did not.
func (e *explainCmd) Run(c *console) error {
	server, tool, ok := strings.Cut(e.Tool, "/")
	if !ok || server == "" || tool == "" {
		return usageError{fmt.Sprintf("%q is no server/tool, such as github/get_issue", e.Tool)}
	}
	params := explainParams{Principal: e.Principal, Server: server, Tool: tool}
	return e.withOperator(c, func(ctx context.Context, o *operator) error {
		explain := func() (jsontext.Value, error) { return o.ask(ctx, "policy.explain", params, listTimeout, nil) }
		arguments, err := readArguments(c, e.Arguments, func() (jsontext.Value, error) {
			raw, err := explain() // it knows tools that no list shows, since policy hides them
			return mcp.Field(raw, "input_schema"), err
		})
		if err != nil {
			return err
		}
		params.Arguments = arguments
		raw, err := explain()
		if err != nil {
			return err
		}
		if e.JSON {
			return c.raw(raw)
		}
		x, err := decode[explanation](raw)
		if err != nil {
			return err
		}
		fmt.Fprintf(c.out, "%s: %s\n", x.Decision.Effect, oneLine(x.Decision.Reason))
		if r := x.Decision.Rule; r != nil {
			fmt.Fprintf(c.out, "  by      %s %s\n", x.Decision.Field, oneLine(r.String()))
			if r.Place != "" {
				fmt.Fprintf(c.out, "  at      %s\n", oneLine(r.Place))
			}
		} else {
			fmt.Fprintf(c.out, "  by      %s\n", x.Decision.Field)
		}
		if x.Decision.Failed != "" {
			fmt.Fprintf(c.out, "  failed  %s\n", oneLine(x.Decision.Failed))
		}
		if len(x.Losers) == 0 {
			return nil
		}
		fmt.Fprintln(c.out, "the others:")
		var rows [][]string
		for _, l := range x.Losers {
			rule, place := "", ""
			if l.Rule != nil {
				rule, place = l.Rule.String(), l.Rule.Place
			}
			rows = append(rows, []string{"", l.Field, rule, place, l.Why})
		}
		return c.table(rows)
	})
}
