package mcp

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// HeaderParamPrefix begins the name of each header that mirrors an argument.
const HeaderParamPrefix = "Mcp-Param-"

// ParamHeader says that an argument is mirrored into a header of a modern HTTP
// request: the annotation x-mcp-header of a property in a tool's inputSchema
// (2026-07-28, basic/transports/streamable-http, SEP-2243).
type ParamHeader struct {
	// Header is the whole header name, [HeaderParamPrefix] and the annotation.
	Header string
	// Path leads from the arguments to the property, one name per level.
	Path []string
}

const headerAnnotation = "x-mcp-header"

// ParamHeaders reads the x-mcp-header annotations of a tool's inputSchema, in
// the order of the schema; nil when there are none. The error says which
// annotation breaks which rule; it is for people, and means that the tool must
// not be offered over HTTP with its annotations.
func ParamHeaders(inputSchema jsontext.Value) ([]ParamHeader, error) {
	// Nearly no schema has one, and no schema needs to be walked to see that.
	// (A name could be escaped, which takes a \u.)
	if !bytes.Contains(inputSchema, []byte(headerAnnotation)) && !bytes.Contains(inputSchema, []byte(`\u`)) {
		return nil, nil
	}
	if err := checkText(inputSchema); err != nil {
		return nil, err
	}
	w := paramHeaderWalk{seen: make(map[string]bool)}
	if err := w.schema(inputSchema, nil, true); err != nil {
		return nil, err
	}
	return w.found, nil
}

type paramHeaderWalk struct {
	found []ParamHeader
	seen  map[string]bool // lower-cased header names
}

// schema walks one schema. reachable says that nothing but properties keywords
// leads here from the root, so that path names one argument.
func (w *paramHeaderWalk) schema(schema jsontext.Value, path []string, reachable bool) error {
	if schema.Kind() != '{' {
		return nil // true, false, or nonsense that is not ours to judge
	}
	var annotation, types jsontext.Value
	err := EachField(schema, func(keyword string, v jsontext.Value) error {
		switch keyword {
		case headerAnnotation:
			annotation = v
		case "type":
			types = v
		case "properties":
			return w.schemas(v, path, reachable)
		case "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions":
			return w.schemas(v, path, false)
		case "items", "prefixItems", "contains", "additionalProperties", "additionalItems", "propertyNames",
			"unevaluatedItems", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "contentSchema":
			return w.schemaOrList(v, path)
		}
		return nil // all other keywords hold data, where the name means nothing
	})
	if err != nil || annotation == nil {
		return err
	}
	where := "property " + strconv.Quote(strings.Join(path, "."))
	if len(path) == 0 {
		where = "the schema's root"
	}
	name := Text(annotation)
	switch {
	case annotation.Kind() != '"' || !isToken(name):
		return fmt.Errorf("%s: %s must be a non-empty header token, this is %s", where, headerAnnotation, annotation)
	case !reachable || len(path) == 0:
		return fmt.Errorf("%s: %s may only stand on a property that is reached by properties keywords alone", where, headerAnnotation)
	case !mirrorable(types):
		return fmt.Errorf("%s: %s needs the type string, integer or boolean, this is %s", where, headerAnnotation, orAbsent(types))
	case w.seen[strings.ToLower(name)]:
		return fmt.Errorf("%s: %s %q is used twice in this schema (case does not matter)", where, headerAnnotation, name)
	}
	w.seen[strings.ToLower(name)] = true
	w.found = append(w.found, ParamHeader{Header: HeaderParamPrefix + name, Path: append([]string(nil), path...)})
	return nil
}

func (w *paramHeaderWalk) schemas(byName jsontext.Value, path []string, reachable bool) error {
	if byName.Kind() != '{' {
		return nil
	}
	return EachField(byName, func(name string, v jsontext.Value) error {
		return w.schema(v, append(path, name), reachable)
	})
}

func (w *paramHeaderWalk) schemaOrList(v jsontext.Value, path []string) error {
	if v.Kind() != '[' {
		return w.schema(v, path, false)
	}
	return eachElement(v, func(v jsontext.Value) error { return w.schema(v, path, false) })
}

// mirrorable reports whether a schema's type is one that a header can carry;
// it may be nullable, since a null argument is simply not mirrored.
func mirrorable(types jsontext.Value) bool {
	one := func(t string) bool { return t == "string" || t == "integer" || t == "boolean" }
	if types.Kind() == '"' {
		return one(Text(types))
	}
	var real, other int
	if types.Kind() != '[' || eachElement(types, func(v jsontext.Value) error {
		if t := Text(v); one(t) {
			real++
		} else if t != "null" {
			other++
		}
		return nil
	}) != nil {
		return false
	}
	return real == 1 && other == 0
}

func orAbsent(v jsontext.Value) string {
	if v == nil {
		return "absent"
	}
	return string(v)
}

// ParamHeaderValues is the Mcp-Param-* headers, by name, that a call with these
// arguments must carry, encoded for the wire. Absent and null arguments, and
// ones of a type that no header can carry, have none. Nil when empty.
func ParamHeaderValues(headers []ParamHeader, arguments jsontext.Value) map[string]string {
	var out map[string]string
	for _, h := range headers {
		v := arguments
		for _, name := range h.Path {
			v = Field(v, name)
		}
		s, ok := headerText(v)
		if !ok {
			continue
		}
		if out == nil {
			out = make(map[string]string, len(headers))
		}
		out[h.Header] = EncodeHeader(s)
	}
	return out
}

// headerText is a JSON primitive as header text. Integers keep their digits:
// whoever compares does so numerically.
func headerText(v jsontext.Value) (string, bool) {
	switch v.Kind() {
	case '"':
		return Text(v), true
	case 't', 'f':
		return string(v), true
	case '0':
		if isInteger(v) {
			return string(v), true
		}
		f, err := strconv.ParseFloat(string(v), 64) // 1.0 and 1e3 are integers of JSON Schema
		if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			return "", false
		}
		return strconv.FormatInt(int64(f), 10), true
	}
	return "", false
}

const (
	sentinelPrefix = "=?base64?"
	sentinelSuffix = "?="
)

// EncodeHeader is s as the value of an Mcp-Name or Mcp-Param-* header: as it is
// where that is safe, else as =?base64?…?= (2026-07-28, value encoding).
func EncodeHeader(s string) string {
	plain := s == "" || (s[0] != ' ' && s[len(s)-1] != ' ' && !isSentinel(s))
	for i := 0; i < len(s) && plain; i++ {
		plain = ' ' <= s[i] && s[i] <= '~'
	}
	if plain {
		return s
	}
	return sentinelPrefix + base64.StdEncoding.EncodeToString([]byte(s)) + sentinelSuffix
}

// DecodeHeader is the inverse of [EncodeHeader]. What does not have the encoded
// form is taken literally. The error is for an encoded form that holds no valid
// base64 or no UTF-8.
func DecodeHeader(value string) (string, error) {
	if !isSentinel(value) {
		return value, nil
	}
	b, err := base64.StdEncoding.Strict().DecodeString(value[len(sentinelPrefix) : len(value)-len(sentinelSuffix)])
	if err != nil || strings.ContainsAny(value, "\r\n") { // which the decoder would skip
		return "", errors.New("the header value is not valid base64 between =?base64? and ?=")
	}
	if !utf8.Valid(b) {
		return "", errors.New("the header value decodes to bytes that are not UTF-8")
	}
	return string(b), nil
}

func isSentinel(s string) bool {
	return len(s) >= len(sentinelPrefix)+len(sentinelSuffix) && strings.HasPrefix(s, sentinelPrefix) && strings.HasSuffix(s, sentinelSuffix)
}

// isToken reports whether s is an HTTP token (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		alnum := '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !alnum && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// eachElement calls f for each element of the JSON array arr; they alias arr.
func eachElement(arr jsontext.Value, f func(jsontext.Value) error) error {
	d := borrowDecoder(arr, Lenient)
	defer d.release()
	if _, err := d.ReadToken(); err != nil {
		return parseFailure(err)
	}
	for d.PeekKind() != ']' {
		v, err := d.ReadValue()
		if err != nil {
			return parseFailure(err)
		}
		end := d.InputOffset()
		if err := f(arr[end-int64(len(v)) : end : end]); err != nil {
			return err
		}
	}
	return nil
}
