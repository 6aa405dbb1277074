package mcp

import (
	"bytes"
	"slices"
)

// A message is validated once, by [ParseMessage]. Whoever looks into a part of
// it afterwards only walks over bytes that are known to be JSON, which costs a
// small fraction of reading them again.

// member is where one member stands in the object that it was read from.
type member struct {
	name string // decoded
	// start is the offset of the quoted name; value and end bound the value.
	start, value, end int
}

// walk calls f for each member of the JSON object obj, which is valid JSON, in
// order, and returns the offset of the closing brace. The error is that of f, or
// an [*Error] if obj is no object or has two members of one name. What is no
// valid JSON after all is an error too, or is taken for something: it is never
// read beyond its end.
func walk(obj []byte, f func(m member) error) (closing int, err error) {
	var names nameSet
	return scanObject(obj, skipSpace(obj, 0), func(m member) error {
		if !names.add(m.name) {
			return &Error{Code: CodeParse, Message: "duplicate member " + string(QuoteString(m.name))}
		}
		return f(m)
	})
}

// scanObject is walk for the object that begins at i, with all its members
// whatever their names; the offsets are those in b.
func scanObject(b []byte, i int, f func(m member) error) (closing int, err error) {
	if i >= len(b) || b[i] != '{' {
		return 0, invalidRequest("a JSON object is wanted")
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == '}' {
		return i, nil
	}
	for {
		m := member{start: i}
		if i = skipString(b, i); i < 0 {
			return 0, errNoJSON
		}
		m.name = memberName(b[m.start:i])
		if i = skipSpace(b, i); i == len(b) || b[i] != ':' {
			return 0, errNoJSON
		}
		m.value = skipSpace(b, i+1)
		if m.end = skipValue(b, m.value); m.end < 0 {
			return 0, errNoJSON
		}
		if err := f(m); err != nil {
			return 0, err
		}
		switch i = skipSpace(b, m.end); {
		case i < len(b) && b[i] == '}':
			return i, nil
		case i < len(b) && b[i] == ',':
			i = skipSpace(b, i+1)
		default:
			return 0, errNoJSON
		}
	}
}

// scanArray calls f for each element of the array that begins at i, with its
// offsets in b.
func scanArray(b []byte, i int, f func(value, end int) error) error {
	if i >= len(b) || b[i] != '[' {
		return errNoJSON
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == ']' {
		return nil
	}
	for {
		end := skipValue(b, i)
		if end < 0 {
			return errNoJSON
		}
		if err := f(i, end); err != nil {
			return err
		}
		switch i = skipSpace(b, end); {
		case i < len(b) && b[i] == ']':
			return nil
		case i < len(b) && b[i] == ',':
			i = skipSpace(b, i+1)
		default:
			return errNoJSON
		}
	}
}

var errNoJSON = &Error{Code: CodeParse, Message: "a JSON object is wanted, this is not valid JSON"}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// skipString is the end of the string that begins at i, or -1.
func skipString(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	for from := i + 1; ; {
		n := bytes.IndexByte(b[from:], '"')
		if n < 0 {
			return -1
		}
		quote := from + n
		slashes := 0
		for quote-slashes > i+1 && b[quote-slashes-1] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return quote + 1
		}
		from = quote + 1
	}
}

// skipValue is the end of the value that begins at i, or -1.
func skipValue(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		for depth := 0; i < len(b); i++ {
			switch b[i] {
			case '"':
				if i = skipString(b, i); i < 0 {
					return -1
				}
				i--
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
		return -1
	}
	start := i
	for i < len(b) && b[i] != ',' && b[i] != '}' && b[i] != ']' && b[i] > ' ' {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

// memberName is the name of a member, whose raw form is quoted. Strings of the
// names that the protocol has are there already.
func memberName(quoted []byte) string {
	if name, ok := protocolNames[string(quoted)]; ok {
		return name
	}
	return Text(quoted)
}

var protocolNames = func() map[string]string {
	names := make(map[string]string)
	for _, name := range []string{
		"jsonrpc", "id", "method", "params", "result", "error", "code", "message", "data",
		"name", "uri", "cursor", "arguments", "_meta", "resultType", "content", "structuredContent", "isError", "inputResponses", "requestState",
		"type", "text", "role", "resource", "blob", "mimeType", "contents", "messages", "inputRequests",
		MetaProgressToken, "progress", "total", "level", "logger",
		MetaProtocolVersion, MetaClientCapabilities, MetaClientInfo, MetaServerInfo, MetaLogLevel, MetaSubscriptionID,
		"traceparent", "tracestate", "baggage",
	} {
		names[`"`+name+`"`] = name
	}
	return names
}()

// nameSet is the names of one object. For the usual few members a linear
// search beats a map, but a hostile object can have a million.
type nameSet struct {
	few  [16]string
	n    int
	many map[string]struct{}
}

// add reports whether name is new.
func (s *nameSet) add(name string) bool {
	if s.many == nil {
		if slices.Contains(s.few[:s.n], name) {
			return false
		}
		if s.n < len(s.few) {
			s.few[s.n] = name
			s.n++
			return true
		}
		s.many = make(map[string]struct{}, 4*len(s.few))
		for _, n := range s.few {
			s.many[n] = struct{}{}
		}
	}
	if _, ok := s.many[name]; ok {
		return false
	}
	s.many[name] = struct{}{}
	return true
}
