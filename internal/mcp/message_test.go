package mcp

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

func TestParseMessage(t *testing.T) {
	deep := func(n int) string {
		return `{"jsonrpc":"2.0","method":"m","params":` + strings.Repeat(`{"a":`, n-1) + "1" + strings.Repeat("}", n)
	}
	tests := []struct {
		name, data      string
		strict, lenient int64 // the error's code, 0 for none
	}{
		{"request", `{"jsonrpc":"2.0","id":"a","method":"m","params":{}}`, 0, 0},
		{"order and unknown members", "\n{ \"x\":[1], \"method\":\"m\", \"jsonrpc\":\"2.0\" }\r\n", 0, 0},
		{"id null in an error", `{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}`, 0, 0},
		{"escaped names", `{"jsonrp\u0063":"2.0","\u0069d":1,"method":"m"}`, 0, 0},
		{"escaped lone surrogate", `{"jsonrpc":"2.0","id":1,"result":"\ud800"}`, 0, 0},
		{"as deep as may be", deep(MaxDepth), 0, 0},
		{"brackets in a string", `{"jsonrpc":"2.0","method":"m","x":"` + strings.Repeat(`[\"`, 1000) + `"}`, 0, 0},
		{"too deep", deep(MaxDepth + 1), CodeParse, CodeParse},
		{"bomb", bomb, CodeParse, CodeParse},
		{"nothing", ``, CodeParse, CodeParse},
		{"half", `{"jsonrpc":"2.0","id":`, CodeParse, CodeParse},
		{"two", `{"jsonrpc":"2.0","method":"m"}{}`, CodeParse, CodeParse},
		{"bad UTF-8", "{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}", CodeParse, CodeParse},
		{"duplicate", `{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}`, CodeParse, CodeParse},
		{"escaped duplicate", `{"jsonrpc":"2.0","id":1,"\u0069d":2,"method":"m"}`, CodeParse, CodeParse},
		{"duplicate below", `{"jsonrpc":"2.0","method":"m","params":{"a":{"b":1,"b":2}}}`, CodeParse, 0},
		{"batch", `[{"jsonrpc":"2.0","method":"m"}]`, CodeInvalidRequest, CodeInvalidRequest},
		{"no object", `7`, CodeInvalidRequest, CodeInvalidRequest},
		{"no version", `{"method":"m"}`, CodeInvalidRequest, CodeInvalidRequest},
		{"other version", `{"jsonrpc":2.0,"method":"m"}`, CodeInvalidRequest, CodeInvalidRequest},
		{"fractional id", `{"jsonrpc":"2.0","id":1.5,"method":"m"}`, CodeInvalidRequest, 0},
		{"id of another kind", `{"jsonrpc":"2.0","id":[1],"method":"m"}`, CodeInvalidRequest, CodeInvalidRequest},
		{"empty method", `{"jsonrpc":"2.0","id":1,"method":""}`, CodeInvalidRequest, CodeInvalidRequest},
		{"method no string", `{"jsonrpc":"2.0","id":1,"method":1}`, CodeInvalidRequest, CodeInvalidRequest},
		{"params no object", `{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}`, CodeInvalidRequest, CodeInvalidRequest},
		{"request and response", `{"jsonrpc":"2.0","id":1,"method":"m","result":{}}`, CodeInvalidRequest, CodeInvalidRequest},
		{"result and error", `{"jsonrpc":"2.0","id":1,"error":{"code":1},"result":{}}`, CodeInvalidRequest, CodeInvalidRequest},
		{"neither", `{"jsonrpc":"2.0","id":1}`, CodeInvalidRequest, CodeInvalidRequest},
		{"result without an id", `{"jsonrpc":"2.0","result":{}}`, CodeInvalidRequest, CodeInvalidRequest},
		{"error no object", `{"jsonrpc":"2.0","id":1,"error":"x"}`, CodeInvalidRequest, CodeInvalidRequest},
		{"code no integer", `{"jsonrpc":"2.0","id":1,"error":{"code":"x"}}`, CodeInvalidRequest, CodeInvalidRequest},
	}
	for _, test := range tests {
		for strict, want := range map[Strictness]int64{Strict: test.strict, Lenient: test.lenient} {
			_, err := ParseMessage([]byte(test.data), strict)
			var code int64
			if e, ok := errors.AsType[*Error](err); ok {
				code = e.Code
			}
			if code != want || (err == nil) != (want == 0) {
				t.Errorf("%s, strict %v: %v, want code %d", test.name, strict, err, want)
			}
		}
	}
}

// TestManyNames: the search for duplicates is not quadratic.
func TestManyNames(t *testing.T) {
	b := []byte(`{"jsonrpc":"2.0","method":"m"`)
	for i := range 200_000 {
		b = append(append(append(b, ",\"n"...), IntID(uint64(i))...), "\":0"...)
	}
	began := time.Now()
	if _, err := ParseMessage(append(b, '}'), Lenient); err != nil {
		t.Error(err)
	}
	if _, err := ParseMessage(append(b, ",\"n77\":0}"...), Lenient); err == nil {
		t.Error("a duplicate was not noticed")
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

// TestEdit: every byte that is not part of the change stays.
func TestEdit(t *testing.T) {
	set := func(name, value string) Change { return Change{name, jsontext.Value(value)} }
	tests := []struct {
		obj     string
		changes []Change
		want    string
	}{
		{`{}`, nil, `{}`},
		{`{}`, []Change{set("a", "1")}, `{"a":1}`},
		{` { } `, []Change{set("a", "1"), set("b", "2")}, ` { "a":1,"b":2} `},
		{`{"a":1}`, []Change{set("a", "")}, `{}`},
		{`{ "a" : 1 , "b" : 2 , "c" : 3 }`, []Change{set("b", "[ ]")}, `{ "a" : 1 , "b" : [ ] , "c" : 3 }`},
		{`{ "a" : 1 , "b" : 2 , "c" : 3 }`, []Change{set("a", "")}, `{ "b" : 2 , "c" : 3 }`},
		{`{ "a" : 1 , "b" : 2 , "c" : 3 }`, []Change{set("b", "")}, `{ "a" : 1 , "c" : 3 }`},
		{`{ "a" : 1 , "b" : 2 , "c" : 3 }`, []Change{set("c", "")}, `{ "a" : 1 , "b" : 2 }`},
		{`{"a":1,"b":2,"c":3}`, []Change{set("a", ""), set("b", ""), set("c", "")}, `{}`},
		{`{"a":1,"b":2,"c":3}`, []Change{set("a", ""), set("c", ""), set("d", "4")}, `{"b":2,"d":4}`},
		{`{"\u0061":12345678901234567890}`, []Change{set("b", "1")}, `{"\u0061":12345678901234567890,"b":1}`},
		{`{"\u0061":1}`, []Change{set("a", "2")}, `{"\u0061":2}`},
		{`{"a":1}`, []Change{set("b", ""), set(`"`, "2")}, `{"a":1,"\"":2}`},
	}
	for _, test := range tests {
		for i := range test.changes {
			if len(test.changes[i].Value) == 0 {
				test.changes[i].Value = nil
			}
		}
		got, err := Edit(jsontext.Value(test.obj), test.changes...)
		if err != nil || string(got) != test.want {
			t.Errorf("Edit(%s, %v) = %s, %v, want %s", test.obj, test.changes, got, err, test.want)
		}
	}
	if got, err := Edit(nil, set("a", "1")); err != nil || string(got) != `{"a":1}` {
		t.Errorf("nil: %s, %v", got, err)
	}
	for _, bad := range []string{``, `[]`, `{"a":1`, `{"a":1,"a":2}`} {
		if got, err := Edit(jsontext.Value(bad), set("a", "1")); err == nil {
			t.Errorf("%q became %s", bad, got)
		}
	}
}

// TestFault: a fault survives its way over any wire, and is no error of a peer's.
func TestFault(t *testing.T) {
	f := Unavailable("s", ReasonBackend, "down")
	f.RetryAfterMS, f.Details = 5, jsontext.Value(`{"status":429}`)
	m, err := ParseMessage(AppendError(nil, IntID(1), f.RPC()), Strict)
	if err != nil {
		t.Fatal(err)
	}
	got := FaultOf(m.Err)
	if got == nil || got.Kind != f.Kind || got.Reason != f.Reason || got.Message != f.Message || !got.Retryable || got.Server != "s" ||
		got.RetryAfter() != 5*time.Millisecond || string(got.Details) != string(f.Details) {
		t.Errorf("%+v", got)
	}
	e := NewFault(KindInvalid, "x", "y").RPC()
	if want := `{"kind":"invalid","reason":"x","message":"y","retryable":false}`; e.Code != CodeInvalidParams || string(e.Data) != want {
		t.Errorf("code %d, data %s, want %s: what is not known is not there", e.Code, e.Data, want)
	}
	for _, data := range []string{"", `1`, `{}`, `{"kind":7}`} {
		e := &Error{Code: CodeInternal, Message: "m"}
		if data != "" {
			e.Data = jsontext.Value(data)
		}
		if FaultOf(e) != nil {
			t.Errorf("%q is taken for a fault", data)
		}
	}
}

func TestParseParams(t *testing.T) {
	p, err := ParseParams(jsontext.Value(`{"name":"n\u00e9","cursor":"","arguments":{"a":1e400},"_meta":{"x":1},"uri":"u","more":[]}`))
	if err != nil || p.Name != "né" || !p.HasCursor || p.Cursor != "" || string(p.Arguments) != `{"a":1e400}` || string(p.Meta) != `{"x":1}` || p.URI != "u" {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := ParseParams(nil); err != nil || p.HasCursor || p.Arguments != nil {
		t.Errorf("%+v, %v", p, err)
	}
	for params, want := range map[string]string{
		`{"name":1}`: "params.name", `{"uri":{}}`: "params.uri", `{"cursor":0}`: "params.cursor", `{"arguments":[]}`: "params.arguments", `{"_meta":null}`: "params._meta",
	} {
		_, err := ParseParams(jsontext.Value(params))
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != CodeInvalidParams || !strings.HasPrefix(e.Message, want) {
			t.Errorf("%s: %v", params, err)
		}
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{`"a"`: "a", `"\u00e4\n"`: "ä\n", `"\ud800x"`: "\ufffdx", `""`: "", `1`: "", `null`: "", `{}`: "", ``: ""} {
		if got := Text(jsontext.Value(raw)); got != want {
			t.Errorf("%s is %q, want %q", raw, got, want)
		}
	}
}

func TestShorten(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		s    string
		most int
		want string
	}{{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc…"}, {"aäb", 2, "a…"}, {"äö", 2, "ä…"}} {
		if got := Shorten(tt.s, tt.most); got != tt.want {
			t.Errorf("%q in %d bytes is %q, want %q", tt.s, tt.most, got, tt.want)
		}
	}
}
