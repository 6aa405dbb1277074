package mcp

import (
	"bytes"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

func TestLegacyResponse(t *testing.T) {
	t.Parallel()
	const server = `"io.modelcontextprotocol/serverInfo":{"name":"x","version":"1"}`
	for name, tt := range map[string]struct{ method, in, want string }{
		"nothing to do": {MethodToolsCall, `{"jsonrpc":"2.0","id":1,"result":{"content":[ ],"x":1e400}}`, `{"jsonrpc":"2.0","id":1,"result":{"content":[ ],"x":1e400}}`},
		"last":          {MethodToolsCall, `{"jsonrpc":"2.0","id":1,"result":{"content":[1],"resultType":"complete"}}`, `{"jsonrpc":"2.0","id":1,"result":{"content":[1]}}`},
		"first":         {MethodToolsCall, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","content":[1]}}`, `{"jsonrpc":"2.0","id":1,"result":{"content":[1]}}`},
		"only":          {MethodToolsCall, `{"id":1,"result":{ "resultType":"complete" },"jsonrpc":"2.0"}`, `{"id":1,"result":{},"jsonrpc":"2.0"}`},
		"kept bytes":    {MethodToolsCall, `{"result":{"resultType":"complete", "a" : 12345678901234567890 , "b":"\u00e9"},"id":"7","jsonrpc":"2.0"}`, `{"result":{"a" : 12345678901234567890,"b":"\u00e9"},"id":"7","jsonrpc":"2.0"}`},
		"server info":   {MethodToolsCall, `{"jsonrpc":"2.0","id":1,"result":{"_meta":{` + server + `},"content":[]}}`, `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`},
		"other meta":    {MethodToolsCall, `{"jsonrpc":"2.0","id":1,"result":{"_meta":{"a":1,` + server + `},"content":[]}}`, `{"jsonrpc":"2.0","id":1,"result":{"_meta":{"a":1},"content":[]}}`},
		"no object":     {MethodToolsCall, `{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":[1]}}`, `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`},
		"object":        {MethodToolsCall, `{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"resultType":"x"}}}`, `{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"resultType":"x"}}}`},
		"ttl of a list": {"prompts/list", `{"jsonrpc":"2.0","id":1,"result":{"prompts":[],"ttlMs":0,"cacheScope":"private","resultType":"complete"}}`, `{"jsonrpc":"2.0","id":1,"result":{"prompts":[]}}`},
		"ttl of a tool": {MethodToolsCall, `{"jsonrpc":"2.0","id":1,"result":{"content":[],"ttlMs":5}}`, `{"jsonrpc":"2.0","id":1,"result":{"content":[],"ttlMs":5}}`},
		"input":         {MethodToolsCall, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","requestState":"s"}}`, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","requestState":"s"}}`},
		"error":         {MethodToolsCall, `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"result"}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"result"}}`},
		"escaped name":  {MethodToolsCall, `{"jsonrpc":"2.0","id":1,"result":{"result\u0054ype":"complete","a":{}}}`, `{"jsonrpc":"2.0","id":1,"result":{"a":{}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, info, err := LegacyResponse([]byte(tt.in), tt.method)
			if err != nil || string(got) != tt.want {
				t.Errorf("got  %s (%v)\nwant %s", got, err, tt.want)
			}
			if want := map[bool]string{true: ResultInputRequired, false: ResultComplete}[name == "input"]; info.Type != want {
				t.Errorf("type %q", info.Type)
			}
		})
	}
	if _, _, err := LegacyResponse([]byte(`{"result":{"a":`), MethodToolsCall); err == nil {
		t.Error("half a response is accepted")
	}
}

// Whatever a result looks like, what is left of it is JSON, and each member that
// is no concern of the eras is there with its own bytes.
func FuzzLegacyResponse(f *testing.F) {
	for _, s := range []string{`{}`, `{"resultType":"complete","a":1}`, `{"a":[1, 2],"_meta":{"io.modelcontextprotocol/serverInfo":1,"b":2},"c":null}`, `{ "structuredContent" : 7 , "x":1 }`} {
		f.Add([]byte(s), "tools/call")
		f.Add([]byte(s), "tools/list")
	}
	f.Fuzz(func(t *testing.T, result []byte, method string) {
		if jsontext.Value(result).Kind() != '{' || !jsontext.Value(result).IsValid() {
			return
		}
		in := AppendResult(nil, IntID(1), result)
		before := map[string]string{}
		_ = EachField(Field(bytes.Clone(in), "result"), func(name string, v jsontext.Value) error {
			before[name] = string(v)
			return nil
		})
		out, info, err := LegacyResponse(in, method)
		if err != nil {
			return // invalid UTF-8 and duplicate names, which ParseMessage refuses first
		}
		if !jsontext.Value(out).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) {
			t.Fatalf("%s became %s", result, out)
		}
		if info.Type != ResultComplete {
			return
		}
		after := map[string]string{}
		_ = EachField(Field(out, "result"), func(name string, v jsontext.Value) error {
			after[name] = string(v)
			return nil
		})
		for name, v := range before {
			switch name {
			case "resultType", "ttlMs", "cacheScope", "structuredContent", "_meta":
			default:
				if after[name] != v {
					t.Errorf("member %q: %s became %s", name, v, after[name])
				}
			}
		}
		if _, there := after["resultType"]; there {
			t.Errorf("%s still has its type", out)
		}
	})
}

func TestLegacyError(t *testing.T) {
	t.Parallel()
	e := LegacyError(&Error{Code: CodeMissingCapability, Message: "no", Data: jsontext.Value(`{"requiredCapabilities":{"sampling":{}}}`)}, MethodToolsCall)
	if e.Code != CodeInvalidRequest || !strings.Contains(e.Message, `"sampling"`) {
		t.Errorf("%v", e)
	}
	gone := &Error{Code: CodeInvalidParams, Message: "gone", Data: jsontext.Value(`{"uri":"a:b"}`)}
	if e := LegacyError(gone, "resources/read"); e.Code != CodeResourceNotFound {
		t.Errorf("%v", e)
	}
	if LegacyError(gone, MethodToolsCall) != gone {
		t.Error("an error of a tool is changed")
	}
}

func BenchmarkLegacyResponse(b *testing.B) {
	body := []byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"` + strings.Repeat("x", 200) + `"}],"resultType":"complete"}}`)
	in := make([]byte, len(body))
	b.ReportAllocs()
	for b.Loop() {
		copy(in, body)
		if _, _, err := LegacyResponse(in, MethodToolsCall); err != nil {
			b.Fatal(err)
		}
	}
}
