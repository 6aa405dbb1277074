package worker

import (
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
)

// callParams is what the pipeline reads of the params of a request.
type callParams struct {
	// kind and key say what it is about, by the server's own name or URI.
	kind catalog.Kind
	key  string

	arguments        jsontext.Value // nil when absent, like all below
	meta             jsontext.Value
	state, responses jsontext.Value // of a caller that was asked for input
}

func wrongParam(name, want string) error {
	return mcp.NewFault(mcp.KindInvalid, "invalid_params", "params.%s must be %s", name, want)
}

// readCallParams reads the params of a request that the pipeline serves.
func readCallParams(m *mcp.Message) (callParams, error) {
	p, member := callParams{}, "name"
	switch m.Method {
	case mcp.MethodToolsCall:
		p.kind = catalog.KindTool
	case mcp.MethodPromptsGet:
		p.kind = catalog.KindPrompt
	case mcp.MethodResourcesRead:
		p.kind, member = catalog.KindResource, "uri"
	default:
		member = "ref"
	}
	var key jsontext.Value
	read := func(name string, v jsontext.Value) error {
		switch name {
		case member:
			key = v
		case "requestState":
			if v.Kind() != '"' {
				return wrongParam(name, "a string")
			}
			p.state = v
		case "arguments", "_meta", "inputResponses":
			if name == "arguments" && v.Kind() == 'n' {
				return nil // as good as absent; see mcp.ParseParams
			}
			if v.Kind() != '{' {
				return wrongParam(name, "an object")
			}
			switch name {
			case "arguments":
				p.arguments = v
			case "_meta":
				p.meta = v
			default:
				p.responses = v
			}
		}
		return nil
	}
	if m.Params != nil {
		if err := mcp.EachField(m.Params, read); err != nil {
			return p, err
		}
	}
	if member == "ref" {
		return p, p.readRef(key)
	}
	if key.Kind() != '"' {
		return p, wrongParam(member, "a string")
	}
	p.key = mcp.Text(key)
	return p, nil
}

// readRef reads what arguments are to be completed for (server/utilities/completion).
func (p *callParams) readRef(ref jsontext.Value) error {
	member := ""
	switch mcp.FieldString(ref, "type") {
	case "ref/prompt":
		p.kind, member = catalog.KindPrompt, "name"
	case "ref/resource":
		p.kind, member = catalog.KindResource, "uri"
	default:
		return wrongParam("ref", `an object whose type is "ref/prompt" or "ref/resource"`)
	}
	key := mcp.Field(ref, member)
	if key.Kind() != '"' {
		return wrongParam("ref."+member, "a string")
	}
	p.key = mcp.Text(key)
	return nil
}
