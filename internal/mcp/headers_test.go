package mcp

import (
	"maps"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

func TestParamHeaders(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		schema string
		want   string // headers as Name<path>, or part of the error
		bad    bool
	}{
		"none":           {schema: `{"type":"object"}`},
		"no schema":      {schema: ``},
		"simple":         {schema: `{"properties":{"region":{"type":"string","x-mcp-header":"Region"}}}`, want: "Mcp-Param-Region<region>"},
		"nested":         {schema: `{"properties":{"a":{"properties":{"b":{"type":"integer","x-mcp-header":"B"}}},"c":{"type":"boolean","x-mcp-header":"C"}}}`, want: "Mcp-Param-B<a.b> Mcp-Param-C<c>"},
		"nullable":       {schema: `{"properties":{"a":{"type":["string","null"],"x-mcp-header":"A"}}}`, want: "Mcp-Param-A<a>"},
		"escaped":        {schema: `{"properties":{"a":{"type":"string","x\u002dmcp-header":"A"}}}`, want: "Mcp-Param-A<a>"},
		"property name":  {schema: `{"properties":{"x-mcp-header":{"type":"string"}}}`},
		"in data":        {schema: `{"properties":{"a":{"type":"object","default":{"x-mcp-header":"A"},"enum":[{"x-mcp-header":1}]}}}`},
		"number":         {schema: `{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}`, want: `property "a": x-mcp-header needs the type string, integer or boolean, this is "number"`, bad: true},
		"no type":        {schema: `{"properties":{"a":{"x-mcp-header":"A"}}}`, want: "this is absent", bad: true},
		"two types":      {schema: `{"properties":{"a":{"type":["string","integer"],"x-mcp-header":"A"}}}`, want: "needs the type", bad: true},
		"empty":          {schema: `{"properties":{"a":{"type":"string","x-mcp-header":""}}}`, want: "non-empty header token", bad: true},
		"space":          {schema: `{"properties":{"a":{"type":"string","x-mcp-header":"A B"}}}`, want: "non-empty header token", bad: true},
		"crlf":           {schema: `{"properties":{"a":{"type":"string","x-mcp-header":"A\r\nB"}}}`, want: "non-empty header token", bad: true},
		"not a string":   {schema: `{"properties":{"a":{"type":"string","x-mcp-header":7}}}`, want: "non-empty header token", bad: true},
		"twice":          {schema: `{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}`, want: "used twice", bad: true},
		"root":           {schema: `{"type":"string","x-mcp-header":"A"}`, want: "the schema's root", bad: true},
		"in items":       {schema: `{"properties":{"a":{"items":{"type":"string","x-mcp-header":"A"}}}}`, want: "reached by properties keywords alone", bad: true},
		"in anyOf":       {schema: `{"anyOf":[{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}]}`, want: "reached by properties keywords alone", bad: true},
		"in $defs":       {schema: `{"$defs":{"d":{"type":"string","x-mcp-header":"A"}}}`, want: "reached by properties keywords alone", bad: true},
		"in a pattern":   {schema: `{"patternProperties":{"^d":{"type":"string","x-mcp-header":"A"}}}`, want: "reached by properties keywords alone", bad: true},
		"boolean schema": {schema: `{"properties":{"a":true,"b":{"type":"string","x-mcp-header":"B"}}}`, want: "Mcp-Param-B<b>"},
		"deep":           {schema: `{"x-mcp-header":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}`, want: "nested deeper", bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, err := ParamHeaders(jsontext.Value(tc.schema))
			var parts []string
			for _, h := range found {
				parts = append(parts, h.Header+"<"+strings.Join(h.Path, ".")+">")
			}
			got := strings.Join(parts, " ")
			if tc.bad {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Fatalf("got %q, %v; want an error with %q", got, err, tc.want)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Fatalf("got %q, %v; want %q", got, err, tc.want)
			}
		})
	}
}

func TestParamHeaderValues(t *testing.T) {
	t.Parallel()
	headers := []ParamHeader{{Header: "Mcp-Param-A", Path: []string{"a"}}, {Header: "Mcp-Param-B", Path: []string{"o", "b"}}}
	for args, want := range map[string]map[string]string{
		``:                           nil,
		`{}`:                         nil,
		`{"a":null}`:                 nil,
		`{"a":[1],"o":3}`:            nil,
		`{"a":1.5}`:                  nil,
		`{"a":""}`:                   {"Mcp-Param-A": ""},
		`{"a":"x y"}`:                {"Mcp-Param-A": "x y"},
		`{"a":"日本"}`:                 {"Mcp-Param-A": "=?base64?5pel5pys?="},
		`{"a":true,"o":{"b":false}}`: {"Mcp-Param-A": "true", "Mcp-Param-B": "false"},
		`{"a":12345678901234567890}`: {"Mcp-Param-A": "12345678901234567890"},
		`{"a":1e3,"o":{"b":-7.0}}`:   {"Mcp-Param-A": "1000", "Mcp-Param-B": "-7"},
	} {
		if got := ParamHeaderValues(headers, jsontext.Value(args)); !maps.Equal(got, want) {
			t.Errorf("ParamHeaderValues(%s) = %v, want %v", args, got, want)
		}
	}
}

func TestEncodeHeader(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"":                   "",
		"plain_tool":         "plain_tool",
		"two words":          "two words",
		" padded":            "=?base64?IHBhZGRlZA==?=",
		"padded ":            "=?base64?cGFkZGVkIA==?=",
		"a\r\nb":             "=?base64?YQ0KYg==?=",
		"=?base64?SGk=?=":    "=?base64?PT9iYXNlNjQ/U0drPT89?=",
		"=?base64?=":         "=?base64?=", // too short to be of the encoded form
		"é":                  "=?base64?w6k=?=",
		"=?BASE64?SGVsbG8?=": "=?BASE64?SGVsbG8?=",
	} {
		if got := EncodeHeader(s); got != want {
			t.Errorf("EncodeHeader(%q) = %q, want %q", s, got, want)
		}
	}
	for _, bad := range []string{"=?base64?SGVsbG8?=", "=?base64?SGVs!!!bG8=?=", "=?base64?SGVs\nbG8=?=", "=?base64?/w==?="} {
		if got, err := DecodeHeader(bad); err == nil {
			t.Errorf("DecodeHeader(%q) = %q, want an error", bad, got)
		}
	}
}

func FuzzEncodeHeader(f *testing.F) {
	f.Add("plain")
	f.Add(" é\r\n=?base64?x?=")
	f.Fuzz(func(t *testing.T, s string) {
		e := EncodeHeader(s)
		for i := range len(e) {
			if e[i] < ' ' || e[i] > '~' {
				t.Fatalf("EncodeHeader(%q) = %q holds a byte no header may hold", s, e)
			}
		}
		if strings.TrimSpace(e) != e {
			t.Fatalf("EncodeHeader(%q) = %q is padded", s, e)
		}
		if got, err := DecodeHeader(e); utf8.ValidString(s) && (err != nil || got != s) {
			t.Fatalf("DecodeHeader(EncodeHeader(%q)) = %q, %v", s, got, err)
		}
	})
}
