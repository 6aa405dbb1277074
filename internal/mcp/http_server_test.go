package mcp

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

func request(t testing.TB, body string) (*Message, *Params) {
	t.Helper()
	m, err := ParseMessage([]byte(body), Strict)
	if err != nil {
		t.Fatal(err)
	}
	p, err := ParseParams(m.Params)
	if err != nil {
		t.Fatal(err)
	}
	return &m, &p
}

func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestCheckHeaders(t *testing.T) {
	t.Parallel()
	const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"größe"}}`
	for name, tt := range map[string]struct {
		body string
		h    http.Header
		want string // part of the error, "" for none
	}{
		"right":               {`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, headers("Mcp-Method", "tools/list"), ""},
		"spaces":              {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"}}`, headers("Mcp-Method", "tools/call", "Mcp-Name", "  a\t"), ""},
		"no method":           {`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, headers(), "Mcp-Method is missing"},
		"other method":        {`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, headers("Mcp-Method", "TOOLS/LIST"), "Mcp-Method says"},
		"two methods":         {`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, headers("Mcp-Method", "tools/list", "Mcp-Method", "tools/list"), "more than once"},
		"no name":             {call, headers("Mcp-Method", "tools/call"), "Mcp-Name is missing"},
		"encoded name":        {call, headers("Mcp-Method", "tools/call", "Mcp-Name", EncodeHeader("größe")), ""},
		"raw name":            {call, headers("Mcp-Method", "tools/call", "Mcp-Name", "größe"), ""},
		"other name":          {call, headers("Mcp-Method", "tools/call", "Mcp-Name", "delete"), "Mcp-Name says"},
		"bad padding":         {call, headers("Mcp-Method", "tools/call", "Mcp-Name", "=?base64?Z3LDtsOfZQ?="), "base64"},
		"name of other":       {`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, headers("Mcp-Method", "tools/list", "Mcp-Name", "x"), ""},
		"uri":                 {`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"a:b"}}`, headers("Mcp-Method", "resources/read", "Mcp-Name", "a:b"), ""},
		"wrong uri":           {`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"a:b"}}`, headers("Mcp-Method", "resources/read", "Mcp-Name", "a:c"), "params.uri"},
		"nameless call, none": {`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`, headers("Mcp-Method", "tools/call"), "Mcp-Name is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, p := request(t, tt.body)
			e := CheckHeaders(tt.h, m, p)
			switch {
			case e == nil && tt.want != "":
				t.Errorf("accepted, want an error with %q", tt.want)
			case e != nil && (tt.want == "" || !strings.Contains(e.Message, tt.want) || e.Code != CodeHeaderMismatch):
				t.Errorf("got %v, want %q", e, tt.want)
			}
		})
	}
}

func TestCheckParamHeaders(t *testing.T) {
	t.Parallel()
	params := []ParamHeader{{Header: "Mcp-Param-City", Path: []string{"city"}}, {Header: "Mcp-Param-n-1", Path: []string{"deep", "n"}}}
	for name, tt := range map[string]struct {
		args string
		h    http.Header
		ok   bool
	}{
		"none":                {`{}`, headers(), true},
		"null":                {`{"city":null}`, headers(), true},
		"absent but there":    {`{}`, headers("Mcp-Param-City", "x"), false},
		"missing":             {`{"city":"Bonn"}`, headers(), false},
		"right":               {`{"city":"Bonn"}`, headers("Mcp-Param-City", "Bonn"), true},
		"encoded":             {`{"city":"Köln"}`, headers("Mcp-Param-City", EncodeHeader("Köln")), true},
		"bad base64":          {`{"city":"Hello"}`, headers("Mcp-Param-City", "=?base64?SGVs!!!bG8=?="), false},
		"looks encoded":       {`{"city":"=?base64?SGVsbG8="}`, headers("Mcp-Param-City", "=?base64?SGVsbG8="), true},
		"other":               {`{"city":"Bonn"}`, headers("Mcp-Param-City", "bonn"), false},
		"number":              {`{"deep":{"n":7}}`, headers("Mcp-Param-N-1", "007"), true},
		"big number":          {`{"deep":{"n":9007199254740993}}`, headers("Mcp-Param-N-1", "9007199254740992"), false},
		"wrong number":        {`{"deep":{"n":7}}`, headers("Mcp-Param-N-1", "8"), false},
		"unmirrorable number": {`{"deep":{"n":7.5}}`, headers(), true},
		"twice":               {`{"city":"Bonn"}`, headers("Mcp-Param-City", "Bonn", "Mcp-Param-City", "Bonn"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := CheckParamHeaders(tt.h, params, jsontext.Value(tt.args))
			if (e == nil) != tt.ok {
				t.Errorf("got %v, want ok %v", e, tt.ok)
			}
		})
	}
}

func TestReadRequestMeta(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		meta string
		code int64 // of ReadRequestMeta or CheckModern, 0 for none
	}{
		"whole":           {`{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/logLevel":"debug","progressToken":7}`, 0},
		"no version":      {`{"io.modelcontextprotocol/clientCapabilities":{}}`, CodeInvalidParams},
		"no capabilities": {`{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`, CodeInvalidParams},
		"array":           {`{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":[]}`, CodeInvalidParams},
		"number":          {`{"io.modelcontextprotocol/protocolVersion":20260728,"io.modelcontextprotocol/clientCapabilities":{}}`, CodeInvalidParams},
		"future":          {`{"io.modelcontextprotocol/protocolVersion":"v999.0.0","io.modelcontextprotocol/clientCapabilities":{}}`, CodeUnsupportedVersion},
		"past":            {`{"io.modelcontextprotocol/protocolVersion":"2025-11-25","io.modelcontextprotocol/clientCapabilities":{}}`, CodeUnsupportedVersion},
		"level":           {`{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/logLevel":"loud"}`, CodeInvalidParams},
		"token":           {`{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"progressToken":{}}`, CodeInvalidParams},
		"float token":     {`{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"progressToken":1.5}`, CodeInvalidParams},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got int64
			meta, err := ReadRequestMeta(jsontext.Value(tt.meta))
			if err != nil {
				got = err.(*Error).Code
			} else if e := meta.CheckModern(); e != nil {
				got = e.Code
			}
			if got != tt.code {
				t.Errorf("code %d, want %d", got, tt.code)
			}
		})
	}
	e := UnsupportedVersion(`v"1`)
	if string(e.Data) != `{"supported":["2026-07-28"],"requested":"v\"1"}` {
		t.Errorf("data %s", e.Data)
	}
}

func TestAccept(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]Accepts{
		"":                                    {true, true},
		"*/*":                                 {true, true},
		"application/json, text/event-stream": {true, true},
		"text/event-stream, application/json": {true, true},
		"application/json":                    {true, false},
		"TEXT/event-stream;q=0.5":             {false, true},
		"text/html":                           {false, false},
		"application/json;q=0, text/*":        {false, true},
		"application/json;q=0.0":              {false, false},
		"text/html, */*;q=0.1":                {true, true},
		"application/*":                       {true, false},
		",;,":                                 {false, false},
	} {
		var values []string
		if accept != "" {
			values = []string{accept}
		}
		if got := ParseAccept(values); got != want {
			t.Errorf("%q: %v, want %v", accept, got, want)
		}
	}
	for kind, want := range map[string]bool{
		"application/json": true, "application/json; charset=UTF-8": true, "Application/JSON": true,
		"": false, "text/plain": false, "application/json; charset=latin1": false, "application/jsonp": false,
	} {
		if IsJSON(kind) != want {
			t.Errorf("IsJSON(%q) is %v", kind, !want)
		}
	}
}

func TestModernStatus(t *testing.T) {
	t.Parallel()
	for code, want := range map[int64]int{
		CodeMethodNotFound: 404, CodeInvalidParams: 400, CodeInvalidRequest: 400, CodeParse: 400, CodeHeaderMismatch: 400,
		CodeMissingCapability: 400, CodeUnsupportedVersion: 400, CodeInternal: 200, 42: 200,
	} {
		if got := ModernStatus(&Error{Code: code}); got != want {
			t.Errorf("%d: status %d, want %d", code, got, want)
		}
	}
	if ModernStatus(nil) != 200 {
		t.Error("a result is 200")
	}
}

// What is written as an event is read back as the same JSON.
func TestWriteEvent(t *testing.T) {
	t.Parallel()
	for _, message := range []string{`{}`, "{\n\"a\":1\r\n}", "\n\n{\r}", "{\"a\":\"data: x\"}", strings.Repeat(`[1,2],`, 10000)} {
		var b bytes.Buffer
		if err := WriteComment(&b); err != nil {
			t.Fatal(err)
		}
		if err := WriteEvent(&b, []byte(message)); err != nil {
			t.Fatal(err)
		}
		if err := WriteEvent(&b, []byte(`{"last":true}`)); err != nil {
			t.Fatal(err)
		}
		r := newEventReader(&b, 1<<20)
		got, err := r.next()
		if err != nil {
			t.Fatalf("%.40q: %v", message, err)
		}
		space := strings.NewReplacer("\n", "", "\r", "")
		if space.Replace(string(got.data)) != space.Replace(message) || got.kind != "message" {
			t.Errorf("%.40q came back as %.40q (%s)", message, got.data, got.kind)
		}
		if last, err := r.next(); err != nil || string(last.data) != `{"last":true}` {
			t.Errorf("after %.40q: %q, %v", message, last.data, err)
		}
	}
}

// Whatever headers say, what is accepted says the same as the body.
func FuzzCheckHeaders(f *testing.F) {
	f.Add("tools/call", "a", "=?base64?YQ==?=", "a")
	f.Add("tools/call", "größe", "größe", "=?base64?")
	f.Add("tools/list", "", "x", "7")
	f.Fuzz(func(t *testing.T, method, name, header, argument string) {
		m := &Message{Method: method}
		p := &Params{Name: name, URI: name}
		h := http.Header{HeaderMethod: {method}, HeaderName: {header}, "Mcp-Param-A": {header}}
		if e := CheckHeaders(h, m, p); e == nil && (method == MethodToolsCall || method == "prompts/get" || method == "resources/read") {
			decoded, err := DecodeHeader(strings.Trim(header, " \t"))
			if err != nil || decoded != name {
				t.Errorf("%s %q accepted with the header %q", method, name, header)
			}
		} else if e != nil && e.Code != CodeHeaderMismatch {
			t.Errorf("code %d", e.Code)
		}
		args := append(AppendString([]byte(`{"a":`), argument), '}')
		if e := CheckParamHeaders(h, []ParamHeader{{Header: "Mcp-Param-A", Path: []string{"a"}}}, args); e == nil {
			decoded, err := DecodeHeader(strings.Trim(header, " \t"))
			if err != nil || decoded != strings.ToValidUTF8(argument, "\ufffd") && decoded != Text(Field(args, "a")) {
				t.Errorf("argument %q accepted with the header %q", argument, header)
			}
		}
		h[HeaderName] = []string{EncodeHeader(name)}
		if strings.ToValidUTF8(name, "") == name && strings.ToValidUTF8(method, "") == method && strings.Trim(method, " \t") == method {
			if e := CheckHeaders(h, m, p); e != nil {
				t.Errorf("%q refused with its own header: %v", name, e)
			}
		}
		ParseAccept([]string{header})
	})
}
