package catalog

import (
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// Format is a model API's way of writing tool definitions.
type Format string

// The formats.
const (
	// FormatAnthropic is the tools of Anthropic's Messages API.
	FormatAnthropic Format = "anthropic"
	// FormatOpenAI is the tools of OpenAI's Chat Completions API.
	FormatOpenAI Format = "openai"
	// FormatGemini is the tools of Gemini's generateContent, with parametersJsonSchema.
	FormatGemini Format = "gemini"
)

// Formats lists the formats.
func Formats() []Format { return []Format{FormatAnthropic, FormatOpenAI, FormatGemini} }

// Format is the whole list as the value of the tools member of a request to a
// model API. Schemas are the servers' own bytes. Tools whose exposed name that
// API does not take are left out and reported, since one bad name makes it
// refuse them all. The error is that of an unknown format and names those known.
func (s *ToolSet) Format(format Format) (tools []byte, omitted []Rejected, err error) {
	var before, schema, between, after string // around and inside one tool
	open, end := "[", "]"
	switch format {
	case FormatAnthropic:
		before, schema, after = `{`, `,"input_schema":`, `}`
	case FormatOpenAI:
		before, schema, after = `{"type":"function","function":{`, `,"parameters":`, `}}`
	case FormatGemini:
		before, schema, after = `{`, `,"parametersJsonSchema":`, `}`
		open, end = `[{"functionDeclarations":[`, `]}]`
	default:
		return nil, nil, fmt.Errorf("format %q is unknown, there are %q", string(format), Formats())
	}
	out := []byte(open)
	for i := range s.Entries {
		e := &s.Entries[i]
		if why := format.refuses(e.Exposed); why != "" {
			omitted = append(omitted, Rejected{Server: e.Server, Tool: e.Tool.Name, Index: i, Reason: ReasonInvalidName, Detail: why})
			continue
		}
		out = append(out, between...)
		between = ","
		out = append(out, before...)
		out = append(out, `"name":`...)
		out = mcp.AppendString(out, e.Exposed)
		if d := e.Tool.description(format == FormatGemini); d != nil {
			out = append(out, `,"description":`...)
			out = append(out, d...)
		}
		out = append(out, schema...)
		out = append(out, e.Tool.InputSchema...)
		out = append(out, after...)
	}
	if between == "" { // Gemini takes no empty group of declarations
		return []byte("[]"), omitted, nil
	}
	return append(out, end...), omitted, nil
}

// refuses says why the API does not take a name, "" if it does.
func (f Format) refuses(name string) string {
	if !NamingHub.valid(name) {
		return fmt.Sprintf("%s takes names of 1 to %d characters of %s only, this is %q; use naming hub", f, maxHubName, NamingHub.charset(), name)
	}
	if c := name[0]; f == FormatGemini && (c == '-' || '0' <= c && c <= '9') {
		return fmt.Sprintf("%s takes names that start with a letter or _ only, this is %q", f, name)
	}
	return ""
}

// description is the raw description, else nil; where an API requires one, the
// title or the name stands in.
func (t *Tool) description(required bool) jsontext.Value {
	d := mcp.Field(t.Def, "description")
	if d.Kind() == '"' || !required {
		if d.Kind() != '"' {
			return nil
		}
		return d
	}
	if title := mcp.Field(t.Def, "title"); title.Kind() == '"' {
		return title
	}
	return mcp.QuoteString(t.Name)
}
