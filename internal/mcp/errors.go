package mcp

import (
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// JSON-RPC and MCP error codes (2026-07-28, basic/index, error codes).
const (
	CodeParse              = -32700
	CodeInvalidRequest     = -32600
	CodeMethodNotFound     = -32601
	CodeInvalidParams      = -32602
	CodeInternal           = -32603
	CodeHeaderMismatch     = -32020
	CodeMissingCapability  = -32021
	CodeUnsupportedVersion = -32022
	// CodeResourceNotFound is what the initialize era says instead of -32602.
	CodeResourceNotFound = -32002
)

// Error is a JSON-RPC error: what a peer said, or what we say to one.
type Error struct {
	Code    int64
	Message string
	// Data is the raw data member, nil when absent.
	Data jsontext.Value
	// Raw is the whole error object as the peer sent it, nil for one of ours.
	Raw jsontext.Value
}

// Error implements error.
func (e *Error) Error() string {
	return e.Message + " (JSON-RPC error " + strconv.FormatInt(e.Code, 10) + ")"
}

// JSON is the error object: the peer's own bytes where there are any.
func (e *Error) JSON() jsontext.Value {
	if e.Raw != nil {
		return e.Raw
	}
	b := append([]byte(`{"code":`), strconv.AppendInt(nil, e.Code, 10)...)
	b = append(b, `,"message":`...)
	b = AppendString(b, e.Message)
	if e.Data != nil {
		b = append(b, `,"data":`...)
		b = append(b, e.Data...)
	}
	return append(b, '}')
}

// InvalidParams is a -32602 error.
func InvalidParams(message string) *Error { return &Error{Code: CodeInvalidParams, Message: message} }

// Declares reports whether a request's _meta declares an extension of its client.
func Declares(meta jsontext.Value, extension string) bool {
	return Field(Field(Field(meta, MetaClientCapabilities), "extensions"), extension) != nil
}

// MissingExtension is the error for a request that takes an extension which its
// client has not declared (2026-07-28, basic/index, error codes).
func MissingExtension(extension string) *Error {
	required := AppendString([]byte(`{"requiredCapabilities":{"extensions":{`), extension)
	return &Error{Code: CodeMissingCapability, Message: "the client did not declare the extension " + extension, Data: append(required, `:{}}}}`...)}
}

// MethodNotFound is the -32601 error for method.
func MethodNotFound(method string) *Error {
	return &Error{Code: CodeMethodNotFound, Message: "method not found: " + strconv.Quote(method)}
}

func parseError(v jsontext.Value) (*Error, error) {
	if v.Kind() != '{' {
		return nil, invalidRequest("error must be an object")
	}
	e := &Error{Raw: v}
	err := EachField(v, func(name string, v jsontext.Value) error {
		switch name {
		case "code":
			n, err := strconv.ParseInt(string(v), 10, 64)
			if err != nil {
				return invalidRequest("error.code must be an integer")
			}
			e.Code = n
		case "message":
			e.Message = Text(v)
		case "data":
			e.Data = v
		}
		return nil
	})
	return e, err
}

// Kind classifies a [Fault]. It is a closed set: callers branch on it.
type Kind string

// The kinds of fault.
const (
	// KindUnavailable: the server is not running, reconnecting or closed.
	KindUnavailable Kind = "unavailable"
	// KindDenied: governance refused the call.
	KindDenied Kind = "denied"
	// KindOverloaded: a limit of the hub is reached.
	KindOverloaded Kind = "overloaded"
	// KindNotFound: no such server, tool, session or item.
	KindNotFound Kind = "not_found"
	// KindInvalid: the request is wrong in itself.
	KindInvalid Kind = "invalid"
	// KindAuth: the server refused our credentials, or we have none.
	KindAuth Kind = "auth"
	// KindRateLimited: the server asks for fewer calls; RetryAfter may say when.
	KindRateLimited Kind = "rate_limited"
	// KindTimeout: no answer within the time allowed.
	KindTimeout Kind = "timeout"
	// KindMessageTooLarge: a message is beyond the limit.
	KindMessageTooLarge Kind = "message_too_large"
	// KindTransport: the connection failed.
	KindTransport Kind = "transport"
	// KindProtocol: the server broke the protocol.
	KindProtocol Kind = "protocol"
)

// Reasons that callers branch on; other reasons are for people.
const (
	// ReasonOutcomeUnknown: the call may have run. It is never repeated by the hub.
	ReasonOutcomeUnknown = "outcome_unknown"
	// ReasonStdioQueue: the wait for a turn on a stdio connection ran out.
	ReasonStdioQueue = "stdio_queue_timeout"
	// ReasonBackend: the server's connection is closed or not yet up.
	ReasonBackend = "backend_unavailable"
	// ReasonHandshake: the server hung up while the connection was being made.
	ReasonHandshake = "handshake"
	// ReasonCancelled: the caller gave up.
	ReasonCancelled = "cancelled"
)

// Fault is a typed failure that is not the peer's own words (product rule K4).
// Its message is shown to callers, so it holds no secret and no credential.
type Fault struct {
	Kind Kind `json:"kind"`
	// Reason is a stable snake_case word below Kind.
	Reason string `json:"reason"`
	// Message says what happened and, for bad input, what would be right.
	Message string `json:"message"`
	// Retryable says that the same call may succeed later without a change and
	// that a repetition cannot do harm.
	Retryable bool `json:"retryable"`
	// CallID names the call in the events call.<server>.…, "" if it was not sent.
	CallID string `json:"call_id,omitzero"`
	// Server is the id of the server concerned, "" where there is none.
	Server string `json:"server,omitempty"`
	// RetryAfterMS is how long a rate-limited caller should wait, 0 if unknown.
	RetryAfterMS int64 `json:"retry_after_ms,omitzero"`
	// Details has more for programs (an HTTP status, challenges), nil if none.
	Details jsontext.Value `json:"details,omitempty"`
}

// NewFault makes a fault that a retry cannot help.
func NewFault(kind Kind, reason, format string, args ...any) *Fault {
	return &Fault{Kind: kind, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Unavailable makes the retryable fault of a server that cannot be reached and
// that certainly did not get the call.
func Unavailable(server, reason, format string, args ...any) *Fault {
	return &Fault{Kind: KindUnavailable, Reason: reason, Message: fmt.Sprintf(format, args...), Retryable: true, Server: server}
}

// OutcomeUnknown makes the fault of a call that was sent and whose answer is
// lost: it may have run, so nobody may repeat it blindly.
func OutcomeUnknown(server, format string, args ...any) *Fault {
	return &Fault{Kind: KindUnavailable, Reason: ReasonOutcomeUnknown, Message: fmt.Sprintf(format, args...), Server: server}
}

// Error implements error.
func (f *Fault) Error() string { return string(f.Kind) + " (" + f.Reason + "): " + f.Message }

// RetryAfter is how long a rate-limited caller should wait.
func (f *Fault) RetryAfter() time.Duration { return time.Duration(f.RetryAfterMS) * time.Millisecond }

// RPC is the fault as a JSON-RPC error: its data is the fault itself, so that
// [FaultOf] on the other side of any wire gives it back. Faults that are the
// caller's own get -32602, all others -32603, so that none of them looks like
// an error of the server behind the hub.
func (f *Fault) RPC() *Error {
	code := int64(CodeInternal)
	if f.Kind == KindInvalid || f.Kind == KindNotFound {
		code = CodeInvalidParams
	}
	data, err := json.Marshal(f)
	if err != nil { // only a Details that is no JSON can do that
		data = []byte(`{"kind":"protocol","reason":"unencodable"}`)
	}
	return &Error{Code: code, Message: f.Message, Data: data}
}

// FaultOf is the fault that [Fault.RPC] put into e, nil if e is none of ours.
func FaultOf(e *Error) *Fault {
	if e.Data == nil || e.Data.Kind() != '{' {
		return nil
	}
	var f Fault
	if json.Unmarshal(e.Data, &f) != nil || f.Kind == "" {
		return nil
	}
	return &f
}

// IsKind reports whether err is a fault of kind.
func IsKind(err error, kind Kind) bool {
	f, ok := asFault(err)
	return ok && f.Kind == kind
}
