package mcp

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"
)

// outward puts a mark in front of every text, inward takes it off again.
const (
	uriMark     = "mcp-proxy://s/"
	messageMark = "[s] "
)

var (
	outward = Rewrite{
		URI:     func(s string) string { return uriMark + s },
		Message: func(s string) string { return messageMark + s },
	}
	inward = Rewrite{
		URI:     func(s string) string { return strings.TrimPrefix(s, uriMark) },
		Message: func(s string) string { return strings.TrimPrefix(s, messageMark) },
	}
)

func rewritten(t testing.TB, r Rewrite, method, body string) string {
	t.Helper()
	got, err := r.Response([]byte(body), method)
	if err != nil {
		t.Fatalf("%s of %s: %v", method, body, err)
	}
	return string(got)
}

// TestRewrite: each text that stands where MCP has it is changed, with no other byte.
func TestRewrite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, method, result, want string }{
		{
			"link", MethodToolsCall, `{ "content" : [ {"uri":"a:1" , "type":"resource_link", "n":1e400} ,{"type":"text","text":"a:1","uri":"a:1"}] }`,
			`{ "content" : [ {"uri":"mcp-proxy://s/a:1" , "type":"resource_link", "n":1e400} ,{"type":"text","text":"a:1","uri":"a:1"}] }`,
		},
		{
			"embedded", MethodToolsCall, `{"content":[{"type":"resource","uri":"no:1","resource":{"text":"t","uri":"\u0061:1","uri":"b:2"}}],"structuredContent":{"uri":"no:2"},"big":9007199254740993}`,
			`{"content":[{"type":"resource","uri":"no:1","resource":{"text":"t","uri":"mcp-proxy://s/a:1","uri":"mcp-proxy://s/b:2"}}],"structuredContent":{"uri":"no:2"},"big":9007199254740993}`,
		},
		{
			"escaped names", MethodToolsCall, `{"c\u006fntent":[{"\u0074ype":"resource\u005flink","\u0075r\u0069":"a:1"}]}`,
			`{"c\u006fntent":[{"\u0074ype":"resource\u005flink","\u0075r\u0069":"mcp-proxy://s/a:1"}]}`,
		},
		{
			"app", MethodToolsCall, `{"content":[],"_meta":{"ui":{"resourceUri":"ui://a","x":1},"ui/resourceUri":"ui://b","uri":"no:1"}}`,
			`{"content":[],"_meta":{"ui":{"resourceUri":"mcp-proxy://s/ui://a","x":1},"ui/resourceUri":"mcp-proxy://s/ui://b","uri":"no:1"}}`,
		},
		{
			"prompt", MethodPromptsGet, `{"messages":[{"content":{"type":"resource","resource":{"uri":"a:1"}},"role":"user"},{"content":[{"type":"resource_link","uri":"a:2"}]}],"content":[{"type":"resource_link","uri":"no:1"}]}`,
			`{"messages":[{"content":{"type":"resource","resource":{"uri":"mcp-proxy://s/a:1"}},"role":"user"},{"content":[{"type":"resource_link","uri":"mcp-proxy://s/a:2"}]}],"content":[{"type":"resource_link","uri":"no:1"}]}`,
		},
		{
			"read", MethodResourcesRead, `{"contents":[{"uri":"a:1","text":"{\"uri\":\"a:1\"}"},{"uri":7},null,["uri"]],"uri":"no:1"}`,
			`{"contents":[{"uri":"mcp-proxy://s/a:1","text":"{\"uri\":\"a:1\"}"},{"uri":7},null,["uri"]],"uri":"no:1"}`,
		},
		{"other method", MethodComplete, `{"contents":[{"uri":"no:1"}]}`, `{"contents":[{"uri":"no:1"}]}`},
		{
			"questions", MethodPromptsGet, `{"inputRequests":{"a":{"params":{"message":"who?","x":[1]},"method":"elicitation\/create"},"b":{"method":"sampling/createMessage","params":{"message":"no"}},"c":{"method":"elicitation/create"},"d":1},"resultType":"input_required"}`,
			`{"inputRequests":{"a":{"params":{"message":"[s] who?","x":[1]},"method":"elicitation\/create"},"b":{"method":"sampling/createMessage","params":{"message":"no"}},"c":{"method":"elicitation/create"},"d":1},"resultType":"input_required"}`,
		},
		{
			"hidden question", MethodToolsCall, `{"\u0069nputRequests":{"a":{"method":"x","method":"elicitation/create","params":{"message":"who?"}}}}`,
			`{"\u0069nputRequests":{"a":{"method":"x","method":"elicitation/create","params":{"message":"[s] who?"}}}}`,
		},
		{"nothing there", MethodToolsCall, `{"content":[{"type":"text","text":"uri \"uri\" \u00e4\u001f"}]}`, `{"content":[{"type":"text","text":"uri \"uri\" \u00e4\u001f"}]}`},
		{"odd kinds", MethodToolsCall, `{"content":{"type":["resource_link"],"uri":"no:1"},"_meta":"uri"}`, `{"content":{"type":["resource_link"],"uri":"no:1"},"_meta":"uri"}`},
		{"no object", MethodToolsCall, `["uri"]`, `["uri"]`},
	} {
		const head, tail = `{"jsonrpc":"2.0","id":1, "result":`, "}\n"
		if got := rewritten(t, outward, c.method, head+c.result+tail); got != head+c.want+tail {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, got, head+c.want+tail)
		}
	}
	const failed = `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no","data":{"uri":"a:1","more":{"uri":"no:1"}},"x":1.50}}`
	if got := rewritten(t, outward, MethodResourcesRead, failed); got != strings.Replace(failed, "a:1", uriMark+"a:1", 1) {
		t.Errorf("error: %s", got)
	}
	// One function alone leaves the texts of the other.
	both := `{"result":{"contents":[{"uri":"a:1"}],"inputRequests":{"a":{"method":"elicitation/create","params":{"message":"who?"}}}}}`
	if got := rewritten(t, Rewrite{URI: outward.URI}, MethodResourcesRead, both); got != strings.Replace(both, "a:1", uriMark+"a:1", 1) {
		t.Errorf("URIs alone: %s", got)
	}
	if got := rewritten(t, Rewrite{Message: outward.Message}, MethodResourcesRead, both); got != strings.Replace(both, "who?", messageMark+"who?", 1) {
		t.Errorf("messages alone: %s", got)
	}
}

// TestRewriteCostsNothing: what has nothing to change is not copied.
func TestRewriteCostsNothing(t *testing.T) {
	for _, s := range []string{`{"result":{"content":[{"type":"text","text":"hello"}]}}`, `{"result":{"content":[{"type":"image","uri":7}]}}`, `{"error":{"code":1}}`} {
		body := []byte(s)
		got, err := outward.Response(body, MethodToolsCall)
		if err != nil || &got[0] != &body[0] {
			t.Errorf("%s is copied: %s, %v", s, got, err)
		}
	}
	body := []byte(`{"result":{"content":[{"type":"text","text":"` + strings.Repeat("hello ", 1000) + `"}]}}`)
	if n := testing.AllocsPerRun(100, func() { _, _ = outward.Response(body, MethodToolsCall) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestRewriteIsUndone: taking the marks off again gives the bytes that came.
func TestRewriteIsUndone(t *testing.T) {
	t.Parallel()
	block := rapid.SampledFrom([]string{
		`{"type":"text","text":"\u0061","x":1e400}`, `{"type":"resource_link","uri":"a:ä","n":-0}`, `{"type":"resource","resource":{"uri":"b:1","blob":"AA=="},"uri":"c:1"}`,
		`{"type":"resource_link","uri":7}`, `{"type":"resource"}`, `{"type":"image","uri":"d:1"}`, `7`, `null`, `{"uri":"e:1"}`, `[]`, `"uri"`,
	})
	space := rapid.SampledFrom([]string{"", " ", "\t", "\n "})
	rapid.Check(t, func(t *rapid.T) {
		s := space.Draw(t, "space")
		list := "[" + strings.Join(rapid.SliceOfN(block, 0, 5).Draw(t, "blocks"), s+","+s) + s + "]"
		for method, result := range map[string]string{
			MethodToolsCall:     `{"content":` + list + `,"structuredContent":{"uri":"e:1","big":9007199254740993}}`,
			MethodPromptsGet:    `{"messages":[{"role":"user","content":` + list + `},{"content":{"type":"resource_link","uri":"f:1"}}]}`,
			MethodResourcesRead: `{"contents":` + list + s + `,"uri":"g:1"}`,
		} {
			body := s + `{"jsonrpc":"2.0","id":1,` + s + `"result":` + result + `}`
			seen, err := outward.Response([]byte(body), method)
			if err != nil || !jsontext.Value(seen).IsValid() {
				t.Fatalf("%s of %s: %s, %v", method, result, seen, err)
			}
			again, err := inward.Response(seen, method)
			if err != nil || string(again) != body {
				t.Fatalf("%s of %s came back as %s, %v", method, result, again, err)
			}
		}
	})
}

// FuzzRewrite: whatever comes in, what goes out is JSON if that was, and taking the
// marks off again gives what came, in one spelling.
func FuzzRewrite(f *testing.F) {
	for _, s := range fuzzObjects {
		f.Add([]byte(s))
	}
	for _, s := range []string{
		`{"result":{"content":[{"type":"resource_link","uri":"a:\u00e4"},{"type":"resource","resource":{"uri":"b:\ud800"}}],"_meta":{"ui":{"resourceUri":"ui:x"}}}}`,
		`{"result":{"messages":[{"content":{"type":"resource_link","uri":""}}],"contents":[{"uri":"a:1"}]}}`,
		`{"result":{"inputRequests":{"a":{"method":"elicitation/create","params":{"message":""}}}},"error":{"data":{"uri":"x"}}}`,
		`{"result":{"content":[{"type":"resource_link","uri":"a`, `{"result":{"content":[`, `{"result":{"contents":[{"uri"`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := bytes.Clone(body)
		valid := jsontext.Value(body).IsValid(lenientOptions) && utf8.Valid(body)
		for _, method := range []string{MethodToolsCall, MethodPromptsGet, MethodResourcesRead, MethodComplete} {
			seen, err := outward.Response(body, method)
			if !bytes.Equal(body, before) {
				t.Fatal("the input was changed")
			}
			if err != nil {
				if valid && jsontext.Value(body).Kind() == '{' {
					t.Fatalf("%q: %v", body, err)
				}
				continue
			}
			if !valid {
				continue
			}
			if !jsontext.Value(seen).IsValid(lenientOptions) {
				t.Fatalf("%q became %q", body, seen)
			}
			again, err := inward.Response(seen, method)
			if err != nil || spelt(again) != spelt(body) {
				t.Fatalf("%q became %q and then %q, %v", body, seen, again, err)
			}
		}
	})
}

// spelt is v with its strings in one spelling.
func spelt(v jsontext.Value) string {
	v = v.Clone()
	if err := v.Format(lenientOptions, jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false), jsontext.PreserveRawStrings(false)); err != nil {
		return err.Error()
	}
	return string(v)
}

func BenchmarkRewrite(b *testing.B) {
	for _, c := range []struct{ name, method, body string }{
		{"nothing", MethodToolsCall, `{"result":{"content":[{"type":"text","text":"` + strings.Repeat("0123456789abcdef", 64) + `"}]}}`},
		{"read of 1 MB", MethodResourcesRead, `{"result":{"contents":[{"uri":"a:1","blob":"` + strings.Repeat("0123456789abcdef", 65536) + `"}]}}`},
		{"100 links", MethodToolsCall, `{"result":{"content":[` + strings.Repeat(`{"type":"resource_link","uri":"a:1","name":"n"},`, 99) + `{"type":"text","text":"x"}]}}`},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(c.body)))
			for b.Loop() {
				if _, err := outward.Response([]byte(c.body), c.method); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
