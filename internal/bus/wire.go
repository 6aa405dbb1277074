package bus

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"toolhub/internal/mcp"
)

// Header names. NATS compares them byte for byte.
const (
	// HeaderCall has the Meta of a call as a query string (see encodeMeta).
	HeaderCall = "Toolhub-Call"
	// HeaderReply says what a reply is: "<kind> <sequence> [<part>/<parts> <size>]".
	HeaderReply = "Toolhub-Reply"
	// The W3C trace context has its own headers, which other programs know.
	headerTraceparent = "traceparent"
	headerTracestate  = "tracestate"
)

// maxMetaBytes bounds the headers of one call.
const maxMetaBytes = 16 << 10

// replyHeaderBytes is room for the header of any reply.
const replyHeaderBytes = 128

// maxPartBytes is the most that one message carries even if the server allows
// more, so that other messages get between the parts of a big one.
const maxPartBytes = 2 << 20

type replyKind string

const (
	kindNotify   replyKind = "notify"
	kindResult   replyKind = "result"
	kindError    replyKind = "error"
	kindFault    replyKind = "fault"
	kindContinue replyKind = "continue"
	// kindMore is a further part of a request, in reply to continue.
	kindMore replyKind = "more"

	// These are never sent: they are what the mux makes of a message.
	kindNoResponders replyKind = "no responders"
	kindBroken       replyKind = "broken"
)

func (k replyKind) final() bool { return k != kindNotify && k != kindContinue && k != kindMore }

// span says that a message is one part of a bigger one; the zero value is whole.
type span struct {
	part, parts int // part counts from 1
	size        int // of all parts
}

// split is how a message of size bytes travels in parts of at most limit bytes.
func split(size, limit int) int {
	return max(1, (size+limit-1)/limit)
}

// partLimit is how much body fits into one message beside header bytes.
func partLimit(nc *nats.Conn, header int) int {
	return min(int(nc.MaxPayload())-header, maxPartBytes)
}

// encodeMeta makes the headers of a call. Meta is a query string, a form that
// every language can read:
//
//	id=…&deadline=<unix ms>&principal=…&era=…&toolset=…&taint=…&taint=…&parts=…&size=…&sig=…
//
// The last of them is the signature, none if sig is nil. They are put into h,
// which may be that of an earlier call.
func encodeMeta(h nats.Header, m *Meta, s span, sig *signature) {
	var buf [256]byte
	b := buf[:0]
	add := func(name, v string) {
		if v == "" {
			return
		}
		if len(b) > 0 {
			b = append(b, '&')
		}
		b = append(b, name...)
		b = append(b, '=')
		b = append(b, url.QueryEscape(v)...)
	}
	add("id", m.CallID)
	if !m.Deadline.IsZero() {
		b = append(b, "&deadline="...)
		b = strconv.AppendInt(b, m.Deadline.UnixMilli(), 10)
	}
	add("principal", m.Principal)
	add("era", string(m.ClientEra))
	add("toolset", m.ToolSet)
	for _, t := range m.Taint {
		add("taint", t)
	}
	if s.parts > 1 {
		add("parts", strconv.Itoa(s.parts))
		add("size", strconv.Itoa(s.size))
	}
	if sig != nil {
		b = sig.append(b)
	}
	headerSet(h, HeaderCall, string(b))
	headerSet(h, headerTraceparent, m.Traceparent)
	headerSet(h, headerTracestate, m.Tracestate)
}

// headerSet sets or removes a header. A trace context comes from outside: one
// that could not be a header is dropped.
func headerSet(h nats.Header, name, v string) {
	switch old := h[name]; {
	case v == "" || !headerSafe(v):
		delete(h, name)
	case len(old) == 1:
		old[0] = v
	default:
		h[name] = []string{v}
	}
}

func headerSafe(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] == 0x7f {
			return false
		}
	}
	return s == strings.TrimSpace(s)
}

// headerSize is what h takes in a message.
func headerSize(h nats.Header) int {
	n := len("NATS/1.0\r\n\r\n")
	for k, vs := range h {
		for _, v := range vs {
			n += len(k) + len(v) + len(": \r\n")
		}
	}
	return n
}

// decodeMeta reads the headers of a call; absent ones are zero values.
func decodeMeta(h nats.Header) (Meta, span, error) {
	var m Meta
	s := span{part: 1, parts: 1}
	m.Traceparent, m.Tracestate = headerGet(h, headerTraceparent), headerGet(h, headerTracestate)
	rest := headerGet(h, HeaderCall)
	for rest != "" {
		var pair string
		pair, rest, _ = strings.Cut(rest, "&")
		name, v, _ := strings.Cut(pair, "=")
		if strings.ContainsAny(v, "%+") {
			u, err := url.QueryUnescape(v)
			if err != nil {
				return m, s, fmt.Errorf("%s: %s is not escaped as in a query string", HeaderCall, name)
			}
			v = u
		}
		number := func() (int64, error) {
			n, err := strconv.ParseInt(v, 10, 64)
			if err != nil || n < 0 {
				return 0, fmt.Errorf("%s: %s must be a number, got %.40q", HeaderCall, name, v)
			}
			return n, nil
		}
		var n int64
		var err error
		switch name {
		case "id":
			m.CallID = v
		case "deadline":
			if n, err = number(); err == nil {
				m.Deadline = time.UnixMilli(n)
			}
		case "principal":
			m.Principal = v
		case "era":
			m.ClientEra = mcp.Era(v)
		case "toolset":
			m.ToolSet = v
		case "taint":
			m.Taint = append(m.Taint, v)
		case "parts":
			if n, err = number(); err == nil {
				s.parts = int(n)
			}
		case "size":
			if n, err = number(); err == nil {
				s.size = int(n)
			}
		}
		if err != nil {
			return m, s, err
		}
	}
	if s.parts < 1 || s.parts > 1 && s.size < s.parts {
		return m, s, fmt.Errorf("%s: %d parts cannot make %d bytes", HeaderCall, s.parts, s.size)
	}
	return m, s, nil
}

// headerGet is the first value of a header; Header.Get would do the same.
func headerGet(h nats.Header, name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// maxBareBytes bounds a result that is sent without a header, as those of other
// programs are: it is looked into by the caller.
const maxBareBytes = 4 << 10

// encodeReply makes the header of a reply. The most common one, a small result
// with nothing before it, has none, which saves a sixth of the cost of a call.
func encodeReply(kind replyKind, seq int, s span) nats.Header {
	if kind == kindResult && seq == 0 && s.parts <= 1 && s.size <= maxBareBytes {
		return nil
	}
	b := make([]byte, 0, 48)
	b = append(b, kind...)
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(seq), 10)
	if s.parts > 1 {
		b = append(b, ' ')
		b = strconv.AppendInt(b, int64(s.part), 10)
		b = append(b, '/')
		b = strconv.AppendInt(b, int64(s.parts), 10)
		b = append(b, ' ')
		b = strconv.AppendInt(b, int64(s.size), 10)
	}
	return nats.Header{HeaderReply: {string(b)}}
}

// decodeReply reads a HeaderReply; ok is false if it is none.
func decodeReply(v string) (kind replyKind, seq int, s span, ok bool) {
	s = span{part: 1, parts: 1}
	word, rest, _ := strings.Cut(v, " ")
	switch kind = replyKind(word); kind {
	case kindNotify, kindResult, kindError, kindFault, kindContinue, kindMore:
	default:
		return kind, 0, s, false
	}
	number, rest, more := strings.Cut(rest, " ")
	seq, err := strconv.Atoi(number)
	if err != nil || seq < 0 {
		return kind, 0, s, false
	}
	if !more {
		return kind, seq, s, true
	}
	parts, size, _ := strings.Cut(rest, " ")
	k, n, _ := strings.Cut(parts, "/")
	var e1, e2, e3 error
	s.part, e1 = strconv.Atoi(k)
	s.parts, e2 = strconv.Atoi(n)
	s.size, e3 = strconv.Atoi(size)
	ok = e1 == nil && e2 == nil && e3 == nil && s.part >= 1 && s.part <= s.parts && s.size >= s.parts
	return kind, seq, s, ok
}
