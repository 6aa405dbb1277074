package mcp

import (
	"bytes"
	"io"
	"math/big"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Capabilities of clients, as members of ClientCapabilities.
const (
	CapabilityElicitation = "elicitation"
	CapabilitySampling    = "sampling"
	CapabilityRoots       = "roots"
)

// RequestMeta is what a server reads of the _meta of a request. All of it
// aliases the raw _meta.
type RequestMeta struct {
	// Version is the protocol version the client says it speaks in this request,
	// "" in the initialize era.
	Version string
	// Capabilities are the client's, nil when absent.
	Capabilities jsontext.Value
	// LogLevel is the least level of messages that the caller wants, "" for none.
	LogLevel string
	// ProgressToken is nil where the caller wants no progress.
	ProgressToken jsontext.Value
}

// ReadRequestMeta reads the _meta of a request, which may be nil. The error is
// an [*Error] with code -32602 that names the key.
func ReadRequestMeta(meta jsontext.Value) (RequestMeta, error) {
	var r RequestMeta
	if meta == nil {
		return r, nil
	}
	err := EachField(meta, func(name string, v jsontext.Value) error {
		switch name {
		case MetaProtocolVersion:
			if r.Version = Text(v); r.Version == "" {
				return wrongMeta(name, "a protocol version")
			}
		case MetaClientCapabilities:
			if v.Kind() != '{' {
				return wrongMeta(name, "an object")
			}
			r.Capabilities = v
		case MetaLogLevel:
			if r.LogLevel = Text(v); !IsLogLevel(r.LogLevel) {
				return wrongMeta(name, "one of "+strings.Join(logLevels[1:], ", "))
			}
		case MetaProgressToken:
			if k := v.Kind(); k != '"' && (k != '0' || !isInteger(v)) {
				return wrongMeta(name, "a string or an integer")
			}
			r.ProgressToken = v
		}
		return nil
	})
	return r, err
}

func wrongMeta(key, wanted string) *Error {
	return InvalidParams("params._meta[" + strconv.Quote(key) + "] must be " + wanted)
}

// IsLogLevel reports whether name is one of the levels of MCP.
func IsLogLevel(name string) bool { return parseLogLevel(name) != 0 }

// CheckModern checks that the body of a modern request has what each one must
// have, and that this package speaks its version.
func (r *RequestMeta) CheckModern() *Error {
	switch {
	case r.Version == "":
		return wrongMeta(MetaProtocolVersion, "there: each request says which version it speaks")
	case !slices.Contains(ModernVersions(), r.Version):
		return UnsupportedVersion(r.Version)
	case r.Capabilities == nil:
		return wrongMeta(MetaClientCapabilities, "there: {} says that the client has none")
	}
	return nil
}

// UnsupportedVersion is the -32022 error for a version that is not spoken here.
func UnsupportedVersion(requested string) *Error {
	data := []byte(`{"supported":[`)
	for i, v := range ModernVersions() {
		if i > 0 {
			data = append(data, ',')
		}
		data = AppendString(data, v)
	}
	data = append(AppendString(append(data, `],"requested":`...), requested), '}')
	return &Error{Code: CodeUnsupportedVersion, Message: "protocol version " + strconv.Quote(requested) + " is not supported", Data: data}
}

func mismatch(message string) *Error { return &Error{Code: CodeHeaderMismatch, Message: message} }

// header is the one value of a header without the white space around it. It
// reports false where the header is absent, and an error where it comes twice.
func header(h http.Header, name string) (string, bool, *Error) {
	switch v := h[name]; len(v) {
	case 0:
		return "", false, nil
	case 1:
		return strings.Trim(v[0], " \t"), true, nil
	}
	return "", false, mismatch("the header " + name + " comes more than once")
}

// CheckVersionHeader compares the version header of a modern HTTP request with
// the version in its body. The error has code -32020.
func CheckVersionHeader(h http.Header, version string) *Error {
	got, there, err := header(h, HeaderVersion)
	switch {
	case err != nil:
		return err
	case !there:
		return mismatch("the header " + HeaderVersion + " is missing, the body says " + strconv.Quote(version))
	case got != version:
		return mismatch("the header " + HeaderVersion + " says " + strconv.Quote(got) + ", the body " + strconv.Quote(version))
	}
	return nil
}

// CheckHeaders compares the headers Mcp-Method and Mcp-Name of a modern HTTP
// request with its body (2026-07-28, basic/transports/streamable-http). The error
// has code -32020.
func CheckHeaders(h http.Header, m *Message, p *Params) *Error {
	got, there, err := header(h, HeaderMethod)
	switch {
	case err != nil:
		return err
	case !there:
		return mismatch("the header " + HeaderMethod + " is missing, the body says " + strconv.Quote(m.Method))
	case got != m.Method:
		return mismatch("the header " + HeaderMethod + " says " + strconv.Quote(got) + ", the body " + strconv.Quote(m.Method))
	}
	var name, member string
	switch m.Method {
	case MethodToolsCall, MethodPromptsGet:
		name, member = p.Name, "params.name"
	case MethodResourcesRead:
		name, member = p.URI, "params.uri"
	case MethodTasksGet, MethodTasksUpdate, MethodTasksCancel:
		name, member = p.TaskID, "params.taskId"
	default:
		return nil
	}
	got, there, err = header(h, HeaderName)
	if err != nil {
		return err
	}
	if !there {
		return mismatch("the header " + HeaderName + " is missing, " + member + " is " + strconv.Quote(name))
	}
	decoded, derr := DecodeHeader(got)
	if derr != nil {
		return mismatch("the header " + HeaderName + ": " + derr.Error())
	}
	if decoded != name {
		return mismatch("the header " + HeaderName + " says " + strconv.Quote(decoded) + ", " + member + " is " + strconv.Quote(name))
	}
	return nil
}

// CheckParamHeaders compares the Mcp-Param-* headers of a tools/call with its
// arguments, for a tool whose schema asks for headers. The error has code -32020.
func CheckParamHeaders(h http.Header, headers []ParamHeader, arguments jsontext.Value) *Error {
	for i := range headers {
		v := arguments
		for _, name := range headers[i].Path {
			v = Field(v, name)
		}
		name := headers[i].Header
		got, there, err := header(h, http.CanonicalHeaderKey(name))
		if err != nil {
			return err
		}
		want, mirrored := headerText(v)
		if !mirrored {
			// Absent, null, or of a type that no header carries. What the header
			// then says is nobody's argument; only validation knows if that is right.
			if there && (v == nil || v.Kind() == 'n') {
				return mismatch("the header " + name + " is there, its argument is not")
			}
			continue
		}
		if !there {
			return mismatch("the header " + name + " is missing, its argument is there")
		}
		decoded, derr := DecodeHeader(got)
		if derr != nil {
			return mismatch("the header " + name + ": " + derr.Error())
		}
		if decoded != want && (v.Kind() != '0' || !sameInteger(decoded, want)) {
			return mismatch("the header " + name + " differs from its argument")
		}
	}
	return nil
}

// sameInteger compares numerically, which the specification asks for.
func sameInteger(a, b string) bool {
	const most = 64 // digits; numbers beyond are compared as text
	if len(a) > most || len(b) > most {
		return false
	}
	x, ok := new(big.Int).SetString(a, 10)
	if !ok {
		return false
	}
	y, ok := new(big.Int).SetString(b, 10)
	return ok && x.Cmp(y) == 0
}

// ModernStatus is the HTTP status of a modern response with error e, nil for a
// result. An error whose status the specification leaves open is an answer like
// any other: 200, which no proxy repeats.
func ModernStatus(e *Error) int {
	if e == nil {
		return http.StatusOK
	}
	switch e.Code {
	case CodeMethodNotFound:
		return http.StatusNotFound
	case CodeParse, CodeInvalidRequest, CodeInvalidParams, CodeHeaderMismatch, CodeMissingCapability, CodeUnsupportedVersion:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// Accepts is which forms of an answer an HTTP client takes.
type Accepts struct{ JSON, Stream bool }

// ParseAccept reads Accept headers. A client that sends none takes anything.
func ParseAccept(values []string) Accepts {
	if len(values) == 0 {
		return Accepts{true, true}
	}
	if len(values) == 1 && (values[0] == "application/json, text/event-stream" || values[0] == "*/*") {
		return Accepts{true, true}
	}
	var a Accepts
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			kind, params, err := mime.ParseMediaType(part)
			if err != nil || params["q"] == "0" || strings.HasPrefix(params["q"], "0.") && strings.Trim(params["q"], "0.") == "" {
				continue
			}
			switch kind {
			case "*/*":
				return Accepts{true, true}
			case "application/json", "application/*":
				a.JSON = true
			case "text/event-stream", "text/*":
				a.Stream = true
			}
		}
	}
	return a
}

// IsJSON reports whether a Content-Type header means JSON in UTF-8.
func IsJSON(contentType string) bool {
	if contentType == "application/json" {
		return true
	}
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "application/json" {
		return false
	}
	charset := params["charset"]
	return charset == "" || strings.EqualFold(charset, "utf-8")
}

var (
	eventHead = []byte("event: message\ndata: ")
	eventEnd  = []byte("\n\n")
	dataLine  = []byte("\ndata: ")
	comment   = []byte(":\n\n")
)

// WriteEvent writes one message as a server-sent event. Line breaks in it, which
// in JSON are white space, become lines of the event.
func WriteEvent(w io.Writer, message []byte) error {
	if _, err := w.Write(eventHead); err != nil {
		return err
	}
	for {
		i := indexLineEnd(message)
		if i < 0 {
			break
		}
		if _, err := w.Write(message[:i]); err != nil {
			return err
		}
		if _, err := w.Write(dataLine); err != nil {
			return err
		}
		message = bytes.TrimLeft(message[i:], "\r\n")
	}
	if _, err := w.Write(message); err != nil {
		return err
	}
	_, err := w.Write(eventEnd)
	return err
}

// WriteComment writes a comment, which keeps a silent stream from being cut off.
func WriteComment(w io.Writer) error {
	_, err := w.Write(comment)
	return err
}
