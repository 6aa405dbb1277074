package mcp

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Message is one JSON-RPC 2.0 message. The raw members alias the bytes it was
// parsed from, so they must not be changed.
type Message struct {
	// ID is the raw id (a string or an integer), nil for a notification.
	ID jsontext.Value
	// Method is empty for a response.
	Method string
	// Params is the raw params object, nil when absent.
	Params jsontext.Value
	// Result is the raw result of a successful response.
	Result jsontext.Value
	// Err is the error of a failed response. Err.Raw has it byte for byte.
	Err *Error
}

// Strictness says how a message is parsed.
type Strictness bool

const (
	// Strict refuses duplicate names anywhere in the message. It is for what
	// callers send: a policy that reads arguments must see what the server sees.
	Strict Strictness = true
	// Lenient refuses duplicate names in the envelope only, and takes any number
	// as an id, since some servers echo 7 as 7.0. It is for what servers answer,
	// which passes through as it came.
	Lenient Strictness = false
)

// IsRequest reports whether m asks for a response.
func (m *Message) IsRequest() bool { return m.Method != "" && m.ID != nil }

// IsNotification reports whether m is a notification.
func (m *Message) IsNotification() bool { return m.Method != "" && m.ID == nil }

// IsResponse reports whether m answers a request.
func (m *Message) IsResponse() bool { return m.Method == "" }

// ParseMessage parses one JSON-RPC message. The error is an [*Error] with code
// -32700 where data is no JSON (or no UTF-8, or nested deeper than [MaxDepth]),
// and -32600 where it is JSON but no JSON-RPC message; batches are refused.
func ParseMessage(data []byte, strict Strictness) (Message, error) {
	var m Message
	if err := checkText(data); err != nil {
		return m, err
	}
	var version string
	var hasResult, hasMethod, nullID bool
	if err := validate(data, strict); err != nil {
		return m, err
	}
	err := EachField(data, func(name string, value jsontext.Value) error {
		switch name {
		case "jsonrpc":
			version = Text(value)
		case "id":
			if k := value.Kind(); k == 'n' {
				nullID = true
				return nil // seen in error responses to unparsable requests: as good as absent
			} else if k != '"' && (k != '0' || strict == Strict && !isInteger(value)) {
				return invalidRequest("id must be a string or an integer")
			}
			m.ID = value
		case "method":
			hasMethod = true
			if value.Kind() != '"' {
				return invalidRequest("method must be a string")
			}
			m.Method = Text(value)
		case "params":
			if value.Kind() != '{' {
				return invalidRequest("params must be an object")
			}
			m.Params = value
		case "result":
			hasResult = true
			m.Result = value
		case "error":
			e, err := parseError(value)
			if err != nil {
				return err
			}
			m.Err = e
		}
		return nil
	})
	if err != nil {
		return Message{}, err
	}
	switch {
	case version != "2.0":
		return Message{}, invalidRequest(`jsonrpc must be "2.0"`)
	case hasMethod && (hasResult || m.Err != nil):
		return Message{}, invalidRequest("a message is either a request or a response, this has members of both")
	case hasMethod && nullID && strict == Strict: // who sends this waits for an answer
		return Message{}, invalidRequest("id must be a string or an integer, and is left out in a notification")
	case hasMethod && m.Method == "":
		return Message{}, invalidRequest("method must not be empty")
	case hasResult && m.Err != nil:
		return Message{}, invalidRequest("a response has either a result or an error, this has both")
	case !hasMethod && !hasResult && m.Err == nil:
		return Message{}, invalidRequest("neither method, result nor error is present")
	case hasResult && m.ID == nil:
		return Message{}, invalidRequest("a result needs the id of its request")
	}
	return m, nil
}

// AppendRequest appends the request (or, with a nil id, the notification).
// A nil params is left out.
func AppendRequest(dst []byte, id jsontext.Value, method string, params jsontext.Value) []byte {
	dst = append(dst, `{"jsonrpc":"2.0",`...)
	if id != nil {
		dst = append(dst, `"id":`...)
		dst = append(dst, id...)
		dst = append(dst, ',')
	}
	dst = append(dst, `"method":`...)
	dst = AppendString(dst, method)
	if params != nil {
		dst = append(dst, `,"params":`...)
		dst = append(dst, params...)
	}
	return append(dst, '}')
}

// AppendResult appends the successful response to the request with id.
func AppendResult(dst []byte, id, result jsontext.Value) []byte {
	return appendResponse(dst, id, "result", result)
}

// AppendError appends the failed response to the request with id; a nil id is
// written as null, for a request whose id could not be read.
func AppendError(dst []byte, id jsontext.Value, e *Error) []byte {
	return appendResponse(dst, id, "error", e.JSON())
}

func appendResponse(dst []byte, id jsontext.Value, member string, value jsontext.Value) []byte {
	if id == nil {
		id = jsontext.Value("null")
	}
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = append(dst, id...)
	dst = append(dst, `,"`...)
	dst = append(dst, member...)
	dst = append(dst, `":`...)
	dst = append(dst, value...)
	return append(dst, '}')
}

// IntID is the raw JSON-RPC id n.
func IntID(n uint64) jsontext.Value { return strconv.AppendUint(nil, n, 10) }

// AppendString appends s as a JSON string; bytes that are not UTF-8 become U+FFFD.
func AppendString(dst []byte, s string) []byte {
	out, _ := jsontext.AppendQuote(dst, s) // its error only reports the replacement
	return out
}

// QuoteString is s as a raw JSON string.
func QuoteString(s string) jsontext.Value { return AppendString(nil, s) }

// Text is the value of a raw JSON string, "" for any other kind. What is no UTF-8
// once it is unescaped has U+FFFD in its place.
func Text(v jsontext.Value) string {
	if v.Kind() != '"' {
		return ""
	}
	if n := len(v); n >= 2 && v[0] == '"' && bytes.IndexByte(v, '\\') < 0 {
		return string(v[1 : n-1])
	}
	b, err := jsontext.AppendUnquote(nil, v)
	if err != nil && len(b) == 0 {
		return ""
	}
	return string(b)
}

// Shorten keeps text from outside, of any length, from filling a message, a log
// or an event: beyond most bytes it is cut.
func Shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

func isInteger(v jsontext.Value) bool {
	return !bytes.ContainsAny(v, ".eE")
}

// checkText is what every message must be before its structure is looked at.
func checkText(data []byte) error {
	if !utf8.Valid(data) {
		return &Error{Code: CodeParse, Message: "message is not valid UTF-8"}
	}
	// Counting is far cheaper than scanning, and nearly every message passes by it.
	if bytes.Count(data, []byte{'['})+bytes.Count(data, []byte{'{'}) > MaxDepth && depth(data) > MaxDepth {
		return &Error{Code: CodeParse, Message: fmt.Sprintf("message is nested deeper than %d levels", MaxDepth)}
	}
	return nil
}

// depth is the deepest nesting in data, which need not be valid JSON.
func depth(data []byte) int {
	var cur, most int
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '[', '{':
			cur++
			most = max(most, cur)
		case ']', '}':
			cur--
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
		}
	}
	return most
}

type decoder struct {
	*jsontext.Decoder
	buf bytes.Buffer
}

var decoders = sync.Pool{New: func() any {
	d := &decoder{}
	d.Decoder = jsontext.NewDecoder(&d.buf)
	return d
}}

// The options of both strictnesses, made once since making them allocates.
var (
	strictOptions  = jsontext.AllowInvalidUTF8(true) // [checkText] has seen the bytes; this is about escaped lone surrogates
	lenientOptions = json.JoinOptions(strictOptions, jsontext.AllowDuplicateNames(true))
)

// borrowDecoder gives a decoder that reads data in place. The caller hands it
// back with release, which also lets go of data.
func borrowDecoder(data []byte, strict Strictness) *decoder {
	d := decoders.Get().(*decoder)
	d.buf = *bytes.NewBuffer(data)
	if strict {
		d.Reset(&d.buf, strictOptions)
	} else {
		d.Reset(&d.buf, lenientOptions)
	}
	return d
}

func (d *decoder) release() {
	d.buf = bytes.Buffer{}
	d.Reset(&d.buf)
	decoders.Put(d)
}

// validate reports what keeps data from being one JSON object, with nothing
// behind it but white space. With Strict, duplicate names anywhere are refused.
func validate(data []byte, strict Strictness) error {
	d := borrowDecoder(data, strict)
	defer d.release()
	if k := d.PeekKind(); k == '[' {
		return invalidRequest("a JSON object is wanted: send one message per request, batches are refused in every version")
	} else if k != '{' && k != 0 {
		return invalidRequest("a JSON object is wanted")
	}
	if _, err := d.ReadValue(); err != nil {
		return parseFailure(err)
	}
	if rest := bytes.TrimLeft(data[d.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return &Error{Code: CodeParse, Message: "data after the end of the message"}
	}
	return nil
}

func parseFailure(err error) error {
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return &Error{Code: CodeParse, Message: fmt.Sprintf("message is not valid JSON: %v at byte %d", e.Err, e.ByteOffset)}
	}
	return &Error{Code: CodeParse, Message: "message is not valid JSON: it ends too early"}
}

func invalidRequest(why string) *Error { return &Error{Code: CodeInvalidRequest, Message: why} }
