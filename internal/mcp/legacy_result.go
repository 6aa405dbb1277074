package mcp

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Values of resultType.
const (
	ResultComplete      = "complete"
	ResultInputRequired = "input_required"
	ResultTask          = "task" // of the extension tasks
)

// ResultInfo is what of a modern result decides how it goes on. All of it
// aliases the result.
type ResultInfo struct {
	// Type is the resultType; a result without one is complete.
	Type string
	// InputRequests and RequestState are of an input_required result, nil when absent.
	InputRequests jsontext.Value
	RequestState  jsontext.Value
}

// LegacyResponse turns the modern response to method into one for clients of the
// initialize era: without resultType, without hints for caches, without what the
// hub's own hop says in _meta, and without structuredContent that is no object.
// All else stays byte for byte. It works in place, so body must be the caller's
// own and is used up; only a result that is complete is changed. The error is an
// [*Error] for a body that is no valid response.
func LegacyResponse(body []byte, method string) ([]byte, ResultInfo, error) {
	info := ResultInfo{Type: ResultComplete}
	at, members, closing, err := resultMembers(body)
	if err != nil || at < 0 {
		return body, info, err
	}
	for i := range members {
		m := &members[i]
		v := jsontext.Value(body[m.value:m.end:m.end])
		switch m.name {
		case "resultType":
			info.Type, m.drop = Text(v), true
		case "inputRequests":
			info.InputRequests = v
		case "requestState":
			info.RequestState = v
		case "ttlMs", "cacheScope":
			m.drop = method != MethodToolsCall && method != MethodPromptsGet // there they are somebody's own
		case "structuredContent":
			m.drop = v.Kind() != '{'
		case "_meta":
			if v.Kind() != '{' || Field(v, MetaServerInfo) == nil {
				break
			}
			if m.value1, err = Edit(v, Change{Name: MetaServerInfo}); err != nil {
				return body, info, err
			}
			m.drop = len(strings.TrimSpace(string(m.value1[1:len(m.value1)-1]))) == 0
		}
	}
	if info.Type != ResultComplete {
		return body, info, nil
	}
	return compact(body, at+1, members, closing), info, nil
}

// resultMember is one member of a result and what becomes of it.
type resultMember struct {
	member
	drop   bool
	value1 jsontext.Value // replaces the value if not nil, and is shorter
}

// resultMembers finds the members of the result in a response, in one pass. at
// is the offset of its opening brace, -1 where there is no result that is an object.
func resultMembers(body []byte) (at int, members []resultMember, closing int, err error) {
	at = -1
	d := borrowDecoder(body, Lenient)
	defer d.release()
	if d.PeekKind() != '{' {
		return at, nil, 0, invalidRequest("a response must be an object")
	}
	if _, err := d.ReadToken(); err != nil {
		return at, nil, 0, parseFailure(err)
	}
	for d.PeekKind() != '}' {
		tok, err := d.ReadToken()
		if err != nil {
			return -1, nil, 0, parseFailure(err)
		}
		if tok.String() != "result" || d.PeekKind() != '{' {
			if err := d.SkipValue(); err != nil {
				return -1, nil, 0, parseFailure(err)
			}
			continue
		}
		if _, err := d.ReadToken(); err != nil {
			return -1, nil, 0, parseFailure(err)
		}
		at, members = int(d.InputOffset())-1, make([]resultMember, 0, 8)
		for d.PeekKind() != '}' {
			m := member{start: int(d.InputOffset())}
			tok, err := d.ReadToken()
			if err != nil {
				return -1, nil, 0, parseFailure(err)
			}
			for body[m.start] != '"' {
				m.start++
			}
			m.name = tok.String()
			v, err := d.ReadValue()
			if err != nil {
				return -1, nil, 0, parseFailure(err)
			}
			m.end = int(d.InputOffset())
			m.value = m.end - len(v)
			members = append(members, resultMember{member: m})
		}
		if _, err := d.ReadToken(); err != nil {
			return -1, nil, 0, parseFailure(err)
		}
		closing = int(d.InputOffset()) - 1
	}
	if _, err := d.ReadToken(); err != nil {
		return -1, nil, 0, parseFailure(err)
	}
	return at, members, closing, nil
}

// compact closes the gaps in body that the changes of members leave. from is
// behind the opening brace, closing at the closing one.
func compact(body []byte, from int, members []resultMember, closing int) []byte {
	changed := false
	for i := range members {
		changed = changed || members[i].drop || members[i].value1 != nil
	}
	if !changed {
		return body
	}
	out := body[:from]
	for i := range members {
		m := &members[i]
		if m.drop {
			continue
		}
		if len(out) > from {
			out = append(out, ',')
		}
		if m.value1 != nil {
			out = append(out, body[m.start:m.value]...)
			out = append(out, m.value1...)
		} else {
			out = append(out, body[m.start:m.end]...)
		}
	}
	return append(out, body[closing:]...)
}

// LegacyError turns an error of the modern era into one that the initialize era
// has. An error that needs no change is returned as it is.
func LegacyError(e *Error, method string) *Error {
	switch {
	case e.Code == CodeMissingCapability:
		var names []string
		_ = EachField(Field(e.Data, "requiredCapabilities"), func(name string, _ jsontext.Value) error {
			names = append(names, strconv.Quote(name))
			return nil
		})
		message := e.Message
		if len(names) > 0 {
			message += " (the client did not declare the capability " + strings.Join(names, ", ") + " in initialize)"
		}
		return &Error{Code: CodeInvalidRequest, Message: message}
	case e.Code == CodeInvalidParams && method == MethodResourcesRead && Field(e.Data, "uri") != nil:
		return &Error{Code: CodeResourceNotFound, Message: e.Message, Data: e.Data}
	}
	return e
}
