package router

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
)

// present makes a server's answer what the caller is to see: with exposed URIs in
// place of the server's own, and with the name of the server in what a user is
// asked. Most answers have neither, and searching is far cheaper than parsing.
func (e *engine) present(req *request, server string, reply bus.Reply) (bus.Reply, error) {
	asks := req.scope == "" && bytes.Contains(reply.Body, elicitWord) && bytes.Contains(reply.Body, inputRequiredWord)
	set := e.list(req.scope, req.caller).set
	links := bytes.Contains(reply.Body, uriWord) && set.Rewrites(server)
	if !asks && !links {
		return reply, nil
	}
	m, err := mcp.ParseMessage(reply.Body, mcp.Lenient)
	if err != nil {
		return reply, badReply(server)
	}
	p := presenter{server: server, expose: func(uri string) string { return set.ExposeURI(server, uri) }}
	if m.Err != nil {
		if !links {
			return reply, nil
		}
		data, err := p.uri(m.Err.Data)
		if err != nil {
			return reply, badReply(server)
		}
		reply.Body = mcp.AppendError(nil, req.id, &mcp.Error{Code: m.Err.Code, Message: m.Err.Message, Data: data})
		return reply, nil
	}
	result := m.Result
	if links {
		if result, err = p.result(req.method, result); err != nil {
			return reply, badReply(server)
		}
	}
	if asks {
		if result, err = p.questions(result); err != nil {
			return reply, badReply(server)
		}
	}
	reply.Body = mcp.AppendResult(nil, req.id, result)
	return reply, nil
}

var (
	elicitWord        = []byte(mcp.MethodElicit)
	inputRequiredWord = []byte(`"` + mcp.ResultInputRequired + `"`)
	uriWord           = []byte(`"uri"`)
)

// presenter changes the answers of one server. It changes nothing but what it is
// about: all else stays byte for byte (K8).
type presenter struct {
	server string
	expose func(uri string) string
}

// result changes the URIs in the result of a request.
func (p *presenter) result(method string, result jsontext.Value) (jsontext.Value, error) {
	switch method {
	case mcp.MethodToolsCall:
		return changed(result, "content", func(v jsontext.Value) (jsontext.Value, error) { return each(v, p.block) })
	case mcp.MethodResourcesRead:
		return changed(result, "contents", func(v jsontext.Value) (jsontext.Value, error) { return each(v, p.uri) })
	case mcp.MethodPromptsGet:
		return changed(result, "messages", func(v jsontext.Value) (jsontext.Value, error) {
			return each(v, func(message jsontext.Value) (jsontext.Value, error) {
				return changed(message, "content", func(v jsontext.Value) (jsontext.Value, error) {
					if v.Kind() == '[' {
						return each(v, p.block)
					}
					return p.block(v)
				})
			})
		})
	}
	return result, nil
}

// block changes the URI of a content block: a link's own, or that of what is embedded.
func (p *presenter) block(v jsontext.Value) (jsontext.Value, error) {
	switch mcp.FieldString(v, "type") {
	case "resource_link":
		return p.uri(v)
	case "resource":
		return changed(v, "resource", p.uri)
	}
	return v, nil
}

// uri changes the member uri.
func (p *presenter) uri(v jsontext.Value) (jsontext.Value, error) {
	return changed(v, "uri", func(v jsontext.Value) (jsontext.Value, error) {
		if v.Kind() != '"' {
			return v, nil
		}
		own := mcp.Text(v)
		if exposed := p.expose(own); exposed != own {
			return mcp.QuoteString(exposed), nil
		}
		return v, nil
	})
}

// questions puts the server's id in front of what a user is asked: all that the
// client could say by itself is that the hub asks (client/elicitation: clients
// show which server it is).
func (p *presenter) questions(result jsontext.Value) (jsontext.Value, error) {
	return changed(result, "inputRequests", func(requests jsontext.Value) (jsontext.Value, error) {
		if requests.Kind() != '{' {
			return requests, nil
		}
		var changes []mcp.Change
		err := mcp.EachField(requests, func(key string, request jsontext.Value) error {
			if mcp.FieldString(request, "method") != mcp.MethodElicit {
				return nil
			}
			named, err := changed(request, "params", func(v jsontext.Value) (jsontext.Value, error) {
				return changed(v, "message", func(v jsontext.Value) (jsontext.Value, error) {
					if v.Kind() != '"' {
						return v, nil
					}
					return mcp.QuoteString("[" + p.server + "] " + mcp.Text(v)), nil
				})
			})
			changes = append(changes, mcp.Change{Name: key, Value: named})
			return err
		})
		if err != nil {
			return nil, err
		}
		return mcp.Edit(requests, changes...)
	})
}

// changed is an object with one member changed by change, if it has it.
func changed(v jsontext.Value, name string, change func(jsontext.Value) (jsontext.Value, error)) (jsontext.Value, error) {
	member := mcp.Field(v, name)
	if member == nil {
		return v, nil
	}
	next, err := change(member)
	if err != nil || bytes.Equal(next, member) {
		return v, err
	}
	return mcp.Edit(v, mcp.Change{Name: name, Value: next})
}

// each is an array with its elements changed by change.
func each(v jsontext.Value, change func(jsontext.Value) (jsontext.Value, error)) (jsontext.Value, error) {
	if v.Kind() != '[' {
		return v, nil
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(v), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	out, same := []byte{'['}, true
	for dec.PeekKind() != ']' {
		element, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		end := int(dec.InputOffset())
		element = v[end-len(element) : end : end]
		next, err := change(element)
		if err != nil {
			return nil, err
		}
		same = same && bytes.Equal(next, element)
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, next...)
	}
	if same {
		return v, nil
	}
	return append(out, ']'), nil
}

func badReply(server string) *mcp.Fault {
	f := mcp.NewFault(mcp.KindProtocol, "reply", "the server's answer cannot be understood")
	f.Server = server
	return f
}
