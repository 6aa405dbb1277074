package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// callCmd is `hub call`.
type callCmd struct {
	Name      string        `arg:"" help:"The tool's exposed name, as hub tools shows it."`
	Arguments []string      `arg:"" optional:"" name:"arguments" help:"A JSON object, - to read one from standard input, or key=value for each argument. A value is text where the tool wants text, else JSON; key:=value is JSON in any case."`
	Principal string        `placeholder:"WHO" help:"Call as this principal."`
	Timeout   time.Duration `placeholder:"30s" help:"Give up after this time. By default the hub's own limits hold."`
	JSON      bool          `help:"Print the whole result as JSON."`

	hubFlags `embed:"" group:"Hub"`
}

type callParams struct {
	Name      string         `json:"name"`
	Arguments jsontext.Value `json:"arguments"`
	Principal string         `json:"principal,omitzero"`
	Meta      jsontext.Value `json:"_meta,omitzero"`
}

// maxArguments bounds arguments from standard input, in bytes.
const maxArguments = mcp.DefaultMaxMessageBytes

// Run calls the tool and prints its result.
func (k *callCmd) Run(c *console) error {
	if k.Timeout < 0 {
		return usageError{"--timeout must be more than 0"}
	}
	return k.withOperator(c, func(ctx context.Context, o *operator) error {
		params := callParams{Name: k.Name, Principal: k.Principal}
		var err error
		params.Arguments, err = readArguments(c, k.Arguments, func() (jsontext.Value, error) {
			raw, err := o.ask(ctx, "tools.list", toolsParams{Principal: k.Principal}, listTimeout, nil)
			return schemaOf(raw, k.Name), err
		})
		if err != nil {
			return err
		}
		progress := &progressLine{c: c}
		if c.errTerminal {
			params.Meta = jsontext.Value(`{"progressToken":1}`)
		}
		result, err := o.ask(ctx, "tools.call", params, k.Timeout, progress.notify)
		progress.end()
		if err != nil {
			return err
		}
		return k.show(c, result)
	})
}

// readArguments makes the arguments of a call, a JSON object, of those of a
// command line: an object, - for standard input, or pairs, for which schema is
// asked for the tool's input schema.
func readArguments(c *console, args []string, schema func() (jsontext.Value, error)) (jsontext.Value, error) {
	if len(args) == 0 {
		return jsontext.Value("{}"), nil
	}
	first := args[0]
	if len(args) == 1 && (first == "-" || strings.HasPrefix(strings.TrimSpace(first), "{")) {
		v := jsontext.Value(first)
		if first == "-" {
			data, err := io.ReadAll(io.LimitReader(c.in, maxArguments+1))
			if err != nil {
				return nil, fmt.Errorf("couldn't read the arguments: %w", err)
			}
			if len(data) > maxArguments {
				return nil, usageError{fmt.Sprintf("the arguments are longer than %d bytes", maxArguments)}
			}
			v = data
		}
		if !v.IsValid() || v.Kind() != '{' {
			return nil, usageError{"the arguments are no JSON object, such as '{\"title\": \"hello\"}'"}
		}
		return v, nil
	}
	s, err := schema()
	if err != nil {
		return nil, err
	}
	return pairArguments(args, s)
}

// schemaOf is the input schema of the tool in the answer to tools.list, nil if
// it is not there: the call itself will say so.
func schemaOf(list jsontext.Value, name string) jsontext.Value {
	tools, err := decode[[]jsontext.Value](mcp.Field(list, "tools"))
	if err != nil {
		return nil
	}
	for _, t := range tools {
		if mcp.FieldString(t, "name") == name {
			return mcp.Field(t, "inputSchema")
		}
	}
	return nil
}

// pairArguments makes an object of key=value and key:=JSON. A value is text
// where the schema wants text or where it is no JSON.
func pairArguments(pairs []string, schema jsontext.Value) (jsontext.Value, error) {
	properties := mcp.Field(schema, "properties")
	var changes []mcp.Change
	for _, p := range pairs {
		key, value, ok := strings.Cut(p, "=")
		key, isJSON := strings.CutSuffix(key, ":")
		if !ok || key == "" {
			return nil, usageError{fmt.Sprintf("%q is neither key=value nor a JSON object", p)}
		}
		for _, c := range changes {
			if c.Name == key {
				return nil, usageError{fmt.Sprintf("%s is given twice", key)}
			}
		}
		raw := jsontext.Value(value)
		wantsText := mcp.FieldString(mcp.Field(properties, key), "type") == "string"
		switch {
		case isJSON && !raw.IsValid():
			return nil, usageError{fmt.Sprintf("the value of %s is no JSON; write %s=%s for text", key, key, value)}
		case !isJSON && (wantsText || !raw.IsValid()):
			raw = mcp.QuoteString(value)
		}
		changes = append(changes, mcp.Change{Name: key, Value: raw})
	}
	return mcp.Edit(nil, changes...)
}

// show prints a result: its text, and of everything else what it is.
func (k *callCmd) show(c *console, raw jsontext.Value) error {
	result, err := decode[struct {
		ResultType string           `json:"resultType"`
		Content    []jsontext.Value `json:"content"`
		Structured jsontext.Value   `json:"structuredContent"`
		IsError    bool             `json:"isError"`
		Meta       struct {
			Fault *mcp.Fault `json:"toolhub/fault"`
		} `json:"_meta"`
	}](raw)
	if err != nil {
		return err
	}
	var end error
	switch {
	case result.IsError && result.Meta.Fault != nil:
		// The hub's own words, to a model that made a name up (K1).
		if k.JSON {
			if err := c.raw(raw); err != nil {
				return err
			}
		}
		return result.Meta.Fault
	case result.ResultType == "input_required":
		end = mcp.NewFault(mcp.KindInvalid, "input_required", "the tool asks for input during the call, which this command cannot give; call it from an MCP client")
	case result.IsError:
		end = reported{exitToolError}
	}
	if k.JSON {
		if err := c.raw(raw); err != nil {
			return err
		}
		return end
	}
	out := c.out
	if result.IsError {
		out = c.err
		fmt.Fprintln(out, "the tool reported an error:")
	}
	for _, block := range result.Content {
		text := describe(block)
		if c.terminal {
			text = safe(text)
		}
		fmt.Fprintln(out, strings.TrimSuffix(text, "\n"))
	}
	if len(result.Content) == 0 && result.Structured != nil {
		if err := c.raw(result.Structured); err != nil {
			return err
		}
	}
	return end
}

// describe is the text of a content block, or what it is.
func describe(block jsontext.Value) string {
	kind := mcp.FieldString(block, "type")
	switch kind {
	case "text":
		return mcp.FieldString(block, "text")
	case "image", "audio":
		data := mcp.FieldString(block, "data")
		return fmt.Sprintf("[%s, %s, %d bytes; --json has it]", kind, mcp.FieldString(block, "mimeType"), base64.StdEncoding.DecodedLen(len(data)))
	case "resource_link":
		return fmt.Sprintf("[resource %s]", mcp.FieldString(block, "uri"))
	case "resource":
		resource := mcp.Field(block, "resource")
		if text := mcp.FieldString(resource, "text"); text != "" {
			return text
		}
		return fmt.Sprintf("[resource %s; --json has it]", mcp.FieldString(resource, "uri"))
	}
	return fmt.Sprintf("[%s; --json has it]", kind)
}

// progressLine shows how far a call is on one line of a terminal, and the log
// messages of the call above it.
type progressLine struct {
	c     *console
	shown bool
}

func (p *progressLine) notify(method string, params jsontext.Value) {
	if !p.c.errTerminal {
		return
	}
	switch method {
	case mcp.NotifyProgress:
		text := string(mcp.Field(params, "progress"))
		if total := mcp.Field(params, "total"); total != nil {
			text += "/" + string(total)
		}
		if message := mcp.FieldString(params, "message"); message != "" {
			text += " " + message
		}
		fmt.Fprintf(p.c.err, "\r\x1b[K%s", shorten(oneLine(text), 100))
		p.shown = true
	case mcp.NotifyMessage:
		p.end()
		fmt.Fprintf(p.c.err, "%s: %s\n", oneLine(mcp.FieldString(params, "level")), oneLine(string(mcp.Field(params, "data"))))
	}
}

// end removes the line.
func (p *progressLine) end() {
	if p.shown {
		io.WriteString(p.c.err, "\r\x1b[K")
		p.shown = false
	}
}
