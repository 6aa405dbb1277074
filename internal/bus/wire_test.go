package bus

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"toolhub/internal/mcp"
)

// overTheWire encodes a header as nats.go sends it and reads it again.
func overTheWire(t failer, h nats.Header) nats.Header {
	t.Helper()
	var b strings.Builder
	b.WriteString("NATS/1.0\r\n")
	for k, vs := range h {
		for _, v := range vs {
			b.WriteString(k + ": " + v + "\r\n")
		}
	}
	b.WriteString("\r\n")
	if b.Len() != headerSize(h) {
		t.Fatalf("headerSize = %d, the header has %d bytes", headerSize(h), b.Len())
	}
	got, err := nats.DecodeHeadersMsg([]byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func metaRoundTrip(t failer, m Meta, s span, h nats.Header) {
	t.Helper()
	encodeMeta(h, &m, s, nil)
	got, gotSpan, err := decodeMeta(overTheWire(t, h))
	if err != nil {
		t.Fatalf("%+v: %v", m, err)
	}
	want := m
	want.Server, want.Method = "", "" // these are in the subject
	want.Deadline = m.Deadline.Truncate(time.Millisecond)
	if !got.Deadline.Equal(want.Deadline) {
		t.Fatalf("deadline %v, want %v", got.Deadline, want.Deadline)
	}
	got.Deadline = want.Deadline
	want.Taint = nil
	for _, v := range m.Taint {
		if v != "" {
			want.Taint = append(want.Taint, v)
		}
	}
	if !headerSafe(m.Traceparent) {
		want.Traceparent = ""
	}
	if !headerSafe(m.Tracestate) {
		want.Tracestate = ""
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	if s.parts > 1 && (gotSpan.parts != s.parts || gotSpan.size != s.size) || s.parts <= 1 && gotSpan.parts != 1 {
		t.Fatalf("got %+v, want %+v", gotSpan, s)
	}
}

func TestMetaRoundTrip(t *testing.T) {
	t.Parallel()
	metaRoundTrip(t, Meta{}, span{}, nats.Header{})
	rapid.Check(t, func(t *rapid.T) {
		h := nats.Header{} // used again, as by a waiter
		for range rapid.IntRange(1, 3).Draw(t, "calls") {
			s := rapid.String()
			m := Meta{
				CallID: s.Draw(t, "id"), Principal: s.Draw(t, "principal"), ClientEra: mcp.Era(s.Draw(t, "era")), ToolSet: s.Draw(t, "toolset"),
				Taint: rapid.SliceOf(s).Draw(t, "taint"), Traceparent: s.Draw(t, "traceparent"), Tracestate: s.Draw(t, "tracestate"),
				Server: "s", Method: "m",
			}
			if rapid.Bool().Draw(t, "has deadline") {
				m.Deadline = time.UnixMicro(rapid.Int64Range(0, 1<<52).Draw(t, "deadline"))
			}
			var sp span
			if rapid.Bool().Draw(t, "in parts") {
				sp.part, sp.parts = 1, rapid.IntRange(2, 100).Draw(t, "parts")
				sp.size = sp.parts + rapid.IntRange(0, 1<<20).Draw(t, "size")
			}
			metaRoundTrip(t, m, sp, h)
		}
	})
}

func FuzzMetaRoundTrip(f *testing.F) {
	f.Add("id", "alice", "modern", "t1", "a", "00-aa-bb-01", "v=1")
	f.Add("a&id=b", "x=y\r\nX: z", "", "%zz", " ", " 00", "\x7f")
	f.Fuzz(func(t *testing.T, id, principal, era, toolset, taint, parent, state string) {
		metaRoundTrip(t, Meta{
			CallID: id, Principal: principal, ClientEra: mcp.Era(era), ToolSet: toolset, Taint: []string{taint, taint},
			Traceparent: parent, Tracestate: state,
		}, span{}, nats.Header{})
	})
}

// FuzzDecodeMeta: a header from outside never panics, and never promises parts
// that cannot be.
func FuzzDecodeMeta(f *testing.F) {
	f.Add("id=1&deadline=99&parts=2&size=10")
	f.Add("parts=-1&size=9999999999999999999")
	f.Add("&&=&=%")
	f.Fuzz(func(t *testing.T, v string) {
		_, s, err := decodeMeta(nats.Header{HeaderCall: {v}})
		if err == nil && (s.parts < 1 || s.size < 0 || s.parts > 1 && s.size < s.parts) {
			t.Fatalf("%q gives %+v", v, s)
		}
	})
}

func TestDecodeMetaRefuses(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"id=%zz", "deadline=soon", "deadline=-1", "parts=0", "parts=2", "parts=3&size=2", "size=x", "parts=99999999999999999999&size=1"} {
		if _, _, err := decodeMeta(nats.Header{HeaderCall: {v}}); err == nil || !strings.Contains(err.Error(), HeaderCall) {
			t.Errorf("decodeMeta(%q): %v, want an error that names the header", v, err)
		}
	}
	if m, _, err := decodeMeta(nats.Header{HeaderCall: {"later=x&id=a"}}); err != nil || m.CallID != "a" {
		t.Errorf("an unknown field must be passed over: %+v, %v", m, err)
	}
}

func TestReplyHeaderRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]replyKind{kindNotify, kindResult, kindError, kindFault, kindContinue, kindMore}).Draw(t, "kind")
		seq := rapid.IntRange(0, 1<<40).Draw(t, "seq")
		s := span{part: 1, parts: 1}
		if rapid.Bool().Draw(t, "in parts") {
			s.parts = rapid.IntRange(2, 1000).Draw(t, "parts")
			s.part = rapid.IntRange(1, s.parts).Draw(t, "part")
			s.size = rapid.IntRange(s.parts, 1<<30).Draw(t, "size")
		}
		h := encodeReply(kind, seq, s)
		if h == nil {
			if kind != kindResult || seq != 0 || s.parts > 1 {
				t.Fatalf("%s %d has no header", kind, seq)
			}
			return
		}
		if n := headerSize(h); n > replyHeaderBytes {
			t.Fatalf("the header has %d bytes", n)
		}
		gotKind, gotSeq, gotSpan, ok := decodeReply(headerGet(overTheWire(t, h), HeaderReply))
		if !ok || gotKind != kind || gotSeq != seq || gotSpan != s {
			t.Fatalf("%q is read as %s %d %+v %v", h, gotKind, gotSeq, gotSpan, ok)
		}
	})
}

func FuzzDecodeReply(f *testing.F) {
	for _, v := range []string{"result 0", "notify 3 1/2 10", "more 1 2/2 9", "notify", "x 1", "result -1", "result 0 0/0 0", "result 0 3/2 9"} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v string) {
		kind, seq, s, ok := decodeReply(v)
		if !ok {
			return
		}
		if seq < 0 || s.part < 1 || s.part > s.parts || s.parts > 1 && s.size < s.parts {
			t.Fatalf("%q gives %s %d %+v", v, kind, seq, s)
		}
		if kind == kindNoResponders || kind == kindBroken {
			t.Fatalf("%q gives %s, which is never sent", v, kind)
		}
	})
}

func TestSplit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ size, limit, want int }{{0, 10, 1}, {1, 10, 1}, {10, 10, 1}, {11, 10, 2}, {20, 10, 2}, {21, 10, 3}} {
		if got := split(c.size, c.limit); got != c.want {
			t.Errorf("split(%d, %d) = %d, want %d", c.size, c.limit, got, c.want)
		}
	}
}
