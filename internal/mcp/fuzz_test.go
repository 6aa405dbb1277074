package mcp

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

var fuzzObjects = []string{
	`{}`, ` { } `, `{"a":1}`, `{"a":1,"b":[{"a":2}]}`, "\n{\t\"a\" : 1 ,\r\n \"b\" : null }\n", `{"a":1,"a":2}`, `{"\u0061":1,"b":2}`, `{"":{}}`,
	`{"a":"\ud800"}`, `{"a":1e400,"b":12345678901234567890}`, `{"a"`, `{"a":1,}`, `[1]`, ``, `null`, "{\"a\":\"\xff\"}", string(benchMessage), odd,
}

// FuzzParseMessage: whatever comes in, a message that is accepted is one message
// whose parts are the bytes that came, and can be written and read again.
func FuzzParseMessage(f *testing.F) {
	for _, s := range fuzzObjects {
		f.Add([]byte(s))
	}
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","id":"x","error":{"code":-32602,"message":"m","data":[1]}}`,
		`{"jsonrpc":"2.0","method":"m","params":{"a":9007199254740993}}`, `{"jsonrpc":"2.0","id":null,"error":{"code":1.5}}`,
		`[{"jsonrpc":"2.0","id":1,"result":{}}]`, `{"jsonrpc":"2.0","id":7.0,"method":"m"}`, strings.Repeat(`{"a":`, 600) + `1` + strings.Repeat(`}`, 600),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		strict, strictErr := ParseMessage(data, Strict)
		m, err := ParseMessage(data, Lenient)
		if !bytes.Equal(data, before) {
			t.Fatal("the input was changed")
		}
		if strictErr == nil && err != nil {
			t.Fatalf("strict takes what lenient refuses: %v", err)
		}
		if err != nil {
			if e, ok := errors.AsType[*Error](err); !ok || e.Code != CodeParse && e.Code != CodeInvalidRequest {
				t.Fatalf("error %T %v", err, err)
			}
			return
		}
		if !utf8.Valid(data) || !jsontext.Value(data).IsValid(lenientOptions) {
			t.Fatal("no JSON, but accepted")
		}
		for _, part := range []jsontext.Value{m.ID, m.Params, m.Result} {
			if part != nil && !bytes.Contains(data, part) {
				t.Fatalf("%s is not in the input", part)
			}
		}
		var again []byte
		switch {
		case m.IsRequest(), m.IsNotification():
			again = AppendRequest(nil, m.ID, m.Method, m.Params)
		case m.Err != nil:
			again = AppendError(nil, m.ID, m.Err)
		default:
			again = AppendResult(nil, m.ID, m.Result)
		}
		n, err := ParseMessage(again, Lenient)
		if err != nil || n.Method != m.Method || !bytes.Equal(n.ID, m.ID) || !bytes.Equal(n.Params, m.Params) || !bytes.Equal(n.Result, m.Result) ||
			(m.Err == nil) != (n.Err == nil) || m.Err != nil && !bytes.Equal(n.Err.Raw, m.Err.Raw) {
			t.Fatalf("%s read again is %+v, %v", again, n, err)
		}
		if strictErr == nil && (strict.Method != m.Method || !bytes.Equal(strict.Params, m.Params)) {
			t.Fatal("strict and lenient differ")
		}
		_, _ = ParseParams(m.Params)
	})
}

// FuzzEdit: after a change the member has its new value or is gone, and the
// others are what they were, in their order.
// FuzzWalk: walking over a valid object finds what reading it finds.
func FuzzWalk(f *testing.F) {
	for _, s := range fuzzObjects {
		f.Add([]byte(s))
	}
	for _, s := range []string{`{"a\\":"\\\\","b\"":"\\\"}"}`, ` { "a" : [ "]" , {"x":"}"} ] , "b":-1.5e+7 } `, `{"a":tru`, `{"a"`, `{"a":"\`, `{"a":[}`, `{,}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, obj []byte) {
		type pair struct{ name, value string }
		var got []pair
		closing, err := walk(obj, func(m member) error {
			got = append(got, pair{m.name, string(obj[m.value:m.end])})
			if obj[m.start] != '"' {
				t.Fatalf("the name does not begin at %d", m.start)
			}
			return nil
		})
		d := jsontext.NewDecoder(bytes.NewReader(obj), lenientOptions)
		if !jsontext.Value(obj).IsValid(lenientOptions) || d.PeekKind() != '{' || !utf8.Valid(obj) {
			return
		}
		if _, err := d.ReadToken(); err != nil {
			t.Fatal(err)
		}
		var want []pair
		names := map[string]bool{}
		twice := false
		for d.PeekKind() != '}' {
			name, err := d.ReadToken()
			if err != nil {
				t.Fatal(err)
			}
			p := pair{name: name.String()}
			value, err := d.ReadValue()
			if err != nil {
				t.Fatal(err)
			}
			p.value = string(value)
			twice = twice || names[p.name]
			names[p.name] = true
			want = append(want, p)
		}
		if twice != (err != nil) {
			t.Fatalf("%q: a name twice is %v, the error %v", obj, twice, err)
		}
		if !twice && (!slices.Equal(got, want) || obj[closing] != '}') {
			t.Fatalf("%q has %v, want %v", obj, got, want)
		}
	})
}

func FuzzEdit(f *testing.F) {
	for _, s := range fuzzObjects {
		for _, name := range []string{"a", "", "b", "new \"one\""} {
			f.Add([]byte(s), name, []byte(`{"x":1}`))
			f.Add([]byte(s), name, []byte(nil))
		}
	}
	type pair struct{ name, value string }
	members := func(obj []byte) (out []pair, err error) {
		err = EachField(obj, func(name string, v jsontext.Value) error {
			out = append(out, pair{name, string(v)})
			return nil
		})
		return out, err
	}
	f.Fuzz(func(t *testing.T, obj []byte, name string, value []byte) {
		if !utf8.ValidString(name) || !utf8.Valid(obj) || len(value) > 0 && (!jsontext.Value(value).IsValid() || len(bytes.TrimSpace(value)) != len(value)) {
			return
		}
		if len(value) == 0 {
			value = nil
		}
		if obj != nil && !jsontext.Value(obj).IsValid(lenientOptions) { // it is said to be valid; to be wrong must do no harm
			_, _ = Edit(obj, Change{name, value})
			return
		}
		before, bad := members(obj)
		if obj == nil {
			bad = nil
		}
		got, err := Edit(obj, Change{name, value})
		if (err != nil) != (bad != nil) {
			t.Fatalf("Edit: %v, EachField: %v", err, bad)
		}
		if err != nil {
			return
		}
		after, err := members(got)
		if err != nil {
			t.Fatalf("%q became %q: %v", obj, got, err)
		}
		var want []pair
		found := false
		for _, p := range before {
			if p.name == name {
				if found = true; value == nil {
					continue
				}
				p.value = string(value)
			}
			want = append(want, p)
		}
		if !found && value != nil {
			want = append(want, pair{name, string(value)})
		}
		if len(after) != len(want) {
			t.Fatalf("%q became %q", obj, got)
		}
		for i := range want {
			if after[i] != want[i] {
				t.Fatalf("%q became %q: member %d is %v, want %v", obj, got, i, after[i], want[i])
			}
		}
		if v := Field(got, name); string(v) != string(value) {
			t.Fatalf("Field is %q", v)
		}
		if !found && value == nil && !bytes.Equal(got, obj) && obj != nil {
			t.Fatalf("nothing to do, but %q became %q", obj, got)
		}
	})
}

// FuzzSSE: how the bytes are cut makes no difference, the limit holds, and the
// stream comes to its end.
func FuzzSSE(f *testing.F) {
	for _, s := range []string{
		"data: a\n\n", "data:a\r\ndata: b\r\n\r\n", "\ufeffid: 1\rretry: 5\revent: x\rdata\r\r", ":\n\n", "data: a", "id: \x00\ndata: a\n\n", "\r\n\n\r", "data: a\n\ndata: bb\n\ndata:\n\n",
		"data: " + strings.Repeat("x", 100) + "\n\n", strings.Repeat("data: x\n", 50) + "\n", ":" + strings.Repeat("x", 100) + "\ndata: a\n\n",
	} {
		f.Add([]byte(s), byte(3))
	}
	const limit = 64
	read := func(t *testing.T, r io.Reader) (events []serverEvent, lastID string, err error) {
		rd := newEventReader(r, limit)
		for range 10_000 {
			ev, err := rd.next()
			if err != nil {
				return events, rd.lastID, err
			}
			if len(ev.data) > limit {
				t.Fatalf("an event of %d bytes", len(ev.data))
			}
			events = append(events, ev)
		}
		t.Fatal("no end")
		return nil, "", nil
	}
	f.Fuzz(func(t *testing.T, data []byte, step byte) {
		if len(data) > 10_000 {
			return
		}
		events, lastID, err := read(t, bytes.NewReader(data))
		cut := iotest.OneByteReader(bytes.NewReader(data))
		if step > 0 {
			cut = iotest.DataErrReader(&stepReader{data, int(step)})
		}
		events2, lastID2, err2 := read(t, cut)
		if len(events) != len(events2) || lastID != lastID2 || outcome(nil, err) != outcome(nil, err2) {
			t.Fatalf("whole: %q %q %v, in pieces: %q %q %v", events, lastID, err, events2, lastID2, err2)
		}
		for i := range events {
			if events[i].kind != events2[i].kind || !bytes.Equal(events[i].data, events2[i].data) {
				t.Fatalf("whole: %q, in pieces: %q", events[i], events2[i])
			}
		}
	})
}

type stepReader struct {
	data []byte
	step int
}

func (r *stepReader) Read(p []byte) (int, error) {
	if len(r.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.data[:min(r.step, len(r.data))])
	r.data = r.data[n:]
	return n, nil
}

// FuzzHeader: every text survives its way through a header, and what is sent is
// a header value.
func FuzzHeader(f *testing.F) {
	for _, s := range []string{"", "a", " a", "a ", "größe", "a\r\nb", "=?base64?YQ==?=", "=?base64?!?=", "=?base64??=", "=?base64?=", "\xff", "\x7f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := EncodeHeader(s)
		if !isHeaderValue(got) || strings.TrimSpace(got) != got {
			t.Fatalf("%q is sent as %q", s, got)
		}
		for i := range len(got) {
			if got[i] < ' ' || got[i] > '~' {
				t.Fatalf("%q is sent as %q", s, got)
			}
		}
		back, err := DecodeHeader(got)
		if utf8.ValidString(s) && (err != nil || back != s) {
			t.Fatalf("%q comes back as %q, %v", s, back, err)
		}
		if v, err := DecodeHeader(s); err == nil && !isSentinel(s) && v != s {
			t.Fatalf("%q is read as %q", s, v)
		}
	})
}

// FuzzLines: how the bytes are cut makes no difference, and the limit holds.
func FuzzLines(f *testing.F) {
	for _, s := range []string{"a\nb\n", "\n\r\n a \r\n", "a", strings.Repeat("x", 5000) + "\nb\n", `{"jsonrpc":"2.0","id":7,"result":"` + strings.Repeat("x", 5000) + "\"}\n"} {
		f.Add([]byte(s))
	}
	const limit = 2048
	read := func(t *testing.T, r io.Reader) (out []string) {
		lines := newLineReader(r, limit)
		for range 100_000 {
			line, err := lines.next()
			if len(line) > limit {
				t.Fatalf("a line of %d bytes", len(line))
			}
			if len(line) > 0 {
				out = append(out, string(line))
			}
			if e, ok := errors.AsType[*longLineError](err); ok {
				out = append(out, e.Error()+" "+string(e.answeredID()))
				continue
			}
			if err != nil {
				return out
			}
		}
		t.Fatal("no end")
		return nil
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		whole := read(t, bytes.NewReader(data))
		pieces := read(t, iotest.OneByteReader(bytes.NewReader(data)))
		if strings.Join(whole, "\n") != strings.Join(pieces, "\n") {
			t.Fatalf("whole: %q, in pieces: %q", whole, pieces)
		}
	})
}
