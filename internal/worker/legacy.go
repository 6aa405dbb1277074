package worker

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// abilities are what a caller declared that it can be asked for.
type abilities struct{ form, url, sampling, samplingTools, roots bool }

// abilitiesOf reads the capabilities in a request's _meta.
func abilitiesOf(meta jsontext.Value) abilities {
	var a abilities
	if !bytes.Contains(meta, []byte(mcp.MetaClientCapabilities)) {
		return a
	}
	_ = mcp.EachField(mcp.Field(meta, mcp.MetaClientCapabilities), func(name string, v jsontext.Value) error {
		if v.Kind() != '{' {
			return nil
		}
		switch name {
		case "elicitation":
			a.url = mcp.Field(v, "url") != nil
			a.form = mcp.Field(v, "form") != nil || !a.url // {} is what form alone used to be
		case "sampling":
			a.sampling, a.samplingTools = true, mcp.Field(v, "tools") != nil
		case "roots":
			a.roots = true
		}
		return nil
	})
	return a
}

// refuse is why a legacy server cannot ask this of the caller, nil if it can, and
// the capabilities that it takes, "" for what no caller can be asked.
func (a abilities) refuse(method string, params jsontext.Value) (refusal *mcp.Error, required string) {
	missing := func(what, required string) (*mcp.Error, string) {
		return &mcp.Error{Code: mcp.CodeInvalidParams, Message: "the client of this call does not support " + what}, required
	}
	switch method {
	case mcp.MethodElicit:
		url := mcp.FieldString(params, "mode") == "url"
		required := `{"elicitation":{"form":{}}}`
		if url {
			required = requiresURL
		}
		switch {
		case !a.form && !a.url:
			return mcp.MethodNotFound(method), required
		case url && !a.url:
			return missing("elicitation in url mode", required)
		case !url && !a.form:
			return missing("elicitation in form mode", required)
		}
		return nil, ""
	case mcp.MethodSample:
		tools := mcp.Field(params, "tools") != nil || mcp.Field(params, "toolChoice") != nil
		switch {
		case tools && a.sampling && !a.samplingTools:
			return missing("tools in sampling", `{"sampling":{"tools":{}}}`)
		case a.sampling:
			return nil, ""
		case tools:
			return mcp.MethodNotFound(method), `{"sampling":{"tools":{}}}`
		}
		return mcp.MethodNotFound(method), `{"sampling":{}}`
	case mcp.MethodRootsList:
		if a.roots {
			return nil, ""
		}
		return mcp.MethodNotFound(method), `{"roots":{}}`
	}
	return mcp.MethodNotFound(method), ""
}

// inputRequest is a legacy server's request as a member of inputRequests. What
// belongs to the request as such is left behind: its progress token, the wish
// for a task, and the id by which a legacy server tells of the end of an
// elicitation.
func inputRequest(method string, params jsontext.Value) (jsontext.Value, error) {
	value := append(jsontext.Value(`{"method":`), mcp.QuoteString(method)...)
	if params != nil {
		changes := []mcp.Change{{Name: "task"}, {Name: "elicitationId"}}
		if meta := mcp.Field(params, "_meta"); meta.Kind() == '{' {
			meta, err := mcp.Edit(meta, mcp.Change{Name: mcp.MetaProgressToken})
			if err != nil {
				return nil, err
			}
			changes = append(changes, mcp.Change{Name: "_meta", Value: meta})
		}
		params, err := mcp.Edit(params, changes...)
		if err != nil {
			return nil, err
		}
		value = append(append(value, `,"params":`...), params...)
	}
	return append(value, '}'), nil
}

// legacyResponse is a caller's answer as the legacy server gets it.
func legacyResponse(value jsontext.Value) jsontext.Value {
	if out, err := mcp.Edit(value, mcp.Change{Name: "resultType"}); err == nil {
		return out
	}
	return value
}

// codeURLElicitation is the error of 2025-11-25 that says which URLs the user
// has to visit before the call can succeed.
const codeURLElicitation = -32042

// modernError is a legacy server's error as 2026-07-28 has it; the rest of it stays.
func modernError(e *mcp.Error) *mcp.Error {
	switch e.Code {
	case mcp.CodeResourceNotFound:
		return &mcp.Error{Code: mcp.CodeInvalidParams, Message: e.Message, Data: e.Data}
	case codeURLElicitation:
		return missingCapability(e.Message+" (the server asks to open a URL, which this client cannot)", requiresURL)
	}
	return e
}

const requiresURL = `{"elicitation":{"url":{}}}`

// missingCapability is the error of 2026-07-28 for what takes capabilities that
// the caller has not declared.
func missingCapability(message, required string) *mcp.Error {
	return &mcp.Error{
		Code: mcp.CodeMissingCapability, Message: message,
		Data: append(append(jsontext.Value(`{"requiredCapabilities":`), required...), '}'),
	}
}

// urlsToVisit is a legacy server's error that asks to visit URLs as a result
// that does. Once the user was there, the caller makes the same call again.
func urlsToVisit(e *mcp.Error, a abilities) (jsontext.Value, bool) {
	list := mcp.Field(e.Data, "elicitations")
	if e.Code != codeURLElicitation || !a.url || list.Kind() != '[' {
		return nil, false
	}
	requests := map[string]jsontext.Value{}
	var keys []string
	dec := jsontext.NewDecoder(bytes.NewReader(list), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if _, err := dec.ReadToken(); err != nil {
		return nil, false
	}
	for dec.PeekKind() != ']' {
		v, err := dec.ReadValue()
		if err != nil || len(keys) == maxQuestions {
			return nil, false
		}
		params, err := mcp.Edit(v.Clone(), mcp.Change{Name: "mode", Value: jsontext.Value(`"url"`)})
		if err != nil {
			return nil, false
		}
		request, err := inputRequest(mcp.MethodElicit, params)
		if err != nil {
			return nil, false
		}
		key := "url-" + strconv.Itoa(len(keys)+1)
		keys, requests[key] = append(keys, key), request
	}
	return inputRequired(keys, requests, ""), len(keys) > 0
}

// inputRequired is the result that asks a caller for input.
func inputRequired(keys []string, requests map[string]jsontext.Value, state string) jsontext.Value {
	b := []byte(`{"resultType":"input_required","inputRequests":{`)
	for i, key := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = mcp.AppendString(b, key)
		b = append(b, ':')
		b = append(b, requests[key]...)
	}
	b = append(b, '}')
	if state != "" {
		b = append(b, `,"requestState":`...)
		b = mcp.AppendString(b, state)
	}
	return append(b, '}')
}
