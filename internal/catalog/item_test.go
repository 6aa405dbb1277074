package catalog

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

func values(defs ...string) []jsontext.Value {
	out := make([]jsontext.Value, len(defs))
	for i, d := range defs {
		out[i] = jsontext.Value(d)
	}
	return out
}

// library is a server with something of every kind.
func library(id string) *Catalog {
	return New(id, mcp.ServerInfo{}, Lists{
		Tools:     values(`{"name":"t","inputSchema":{"type":"object"},"_meta":{"ui":{"resourceUri":"ui://app/x"},"ui/resourceUri":"ui://app/x"}}`),
		Resources: values(`{"uri":"lib://a","name":"a","x-own":1e400}`, `{"uri":"https://example.com/doc","name":"doc"}`, `{"uri":"ui://app/x","name":"app"}`),
		Templates: values(`{"uriTemplate":"lib://books/{id}","name":"books"}`, `{"uriTemplate":"lib://{+path}/raw","name":"raw"}`),
		Prompts:   values(`{"name":"hello.you","arguments":[{"name":"who"}]}`),
	})
}

func TestItems(t *testing.T) { // N9
	t.Parallel()
	set := Build([]Source{{Server: "lib", Catalog: library("lib")}}, "x_")
	for kind, want := range map[Kind]string{
		KindTool:     `[{"name":"x_lib__t","inputSchema":{"type":"object"},"_meta":{"ui":{"resourceUri":"ui://mcp-proxy/lib/app/x"},"ui/resourceUri":"ui://mcp-proxy/lib/app/x"}}]`,
		KindResource: `[{"uri":"mcp-proxy://lib/lib://a","name":"a","x-own":1e400},{"uri":"mcp-proxy://lib/https://example.com/doc","name":"doc"},{"uri":"ui://mcp-proxy/lib/app/x","name":"app"}]`,
		KindTemplate: `[{"uriTemplate":"mcp-proxy://lib/lib://books/{id}","name":"books"},{"uriTemplate":"mcp-proxy://lib/lib://{+path}/raw","name":"raw"}]`,
		KindPrompt:   `[{"name":"x_lib__hello_you","arguments":[{"name":"who"}]}]`,
	} {
		if got, next, err := set.Page(kind, "", false, 0); err != nil || next != "" || string(got) != want {
			t.Errorf("%s: %s %q %v\nwant %s", kind, got, next, err, want)
		}
	}
	if e, ok := set.ResolvePrompt("x_lib__hello_you"); !ok || e.Server != "lib" || e.Item.Key != "hello.you" {
		t.Errorf("the prompt is %+v", e)
	}
	if e, ok := set.ResolveTemplate("mcp-proxy://lib/lib://books/{id}"); !ok || e.Server != "lib" || e.Item.Key != "lib://books/{id}" {
		t.Errorf("the template is %+v", e)
	}
	// Unchanged, as a server alone is seen.
	set = Build([]Source{{Server: "lib", Catalog: library("lib"), URIs: URIsOriginal}}, "")
	if got, _, _ := set.Page(KindResource, "", false, 1); string(got) != `[{"uri":"lib://a","name":"a","x-own":1e400}]` {
		t.Errorf("original: %s", got)
	}
	if got, _, _ := set.Page(KindTool, "", false, 1); !strings.Contains(string(got), `"ui://app/x"`) {
		t.Errorf("original: %s", got)
	}
}

func TestItemsSurviveEncoding(t *testing.T) {
	t.Parallel()
	c := library("lib")
	c.Hints = map[Kind]Hint{KindResource: {TTLMS: 5000, Public: true}}
	data, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	again, err := back.Encode()
	if err != nil || string(again) != string(data) {
		t.Errorf("decoded and encoded again it is\n%s\nwant\n%s, %v", again, data, err)
	}
	if back.Items() != 7 {
		t.Errorf("%d items, want 7", back.Items())
	}
}

func TestRejectedItems(t *testing.T) { // M6
	t.Parallel()
	c := New("s", mcp.ServerInfo{}, Lists{
		Resources: values(`{"uri":"no scheme","name":"x"}`, `{"uri":"a:b"}`, `{"name":"x"}`, `{"uri":"d:1","name":"x"}`, `{"uri":"d:1","name":"y"}`, `{"uri":"e:1","name":"x","size":"big"}`, `7`),
		Templates: values(`{"uriTemplate":"a://{unclosed","name":"x"}`, `{"uriTemplate":"{scheme}://x","name":"x"}`, `{"uriTemplate":"a://`+strings.Repeat("{x}", 33)+`","name":"x"}`, `{"uriTemplate":"ok://{x}","name":"x"}`),
		Prompts:   values(`{"name":"a b"}`, `{"name":"p","arguments":[{}]}`, `{"name":"q","description":null}`),
	})
	var got []string
	for _, r := range c.Rejected {
		got = append(got, string(r.Kind)+" "+string(r.Reason))
	}
	want := []string{
		"resource invalid_uri", "resource invalid_definition", "resource invalid_definition", "resource duplicate_name", "resource duplicate_name", "resource invalid_definition", "resource invalid_definition",
		"template unsupported_template", "template unsupported_template", "template unsupported_template",
		"prompt invalid_name", "prompt invalid_definition",
	}
	if !slices.Equal(got, want) {
		t.Errorf("rejected: %q\nwant      %q\n%+v", got, want, c.Rejected)
	}
	if c.Items() != 2 || len(c.Prompts[0].Notes) != 1 {
		t.Errorf("%d items are accepted, want 2: %+v", c.Items(), c)
	}
}

func TestResolveURI(t *testing.T) {
	t.Parallel()
	second := New("two", mcp.ServerInfo{}, Lists{Resources: values(`{"uri":"lib://a","name":"a"}`, `{"uri":"two://b","name":"b"}`), Templates: values(`{"uriTemplate":"two://{x}/y","name":"x"}`)})
	third := New("three", mcp.ServerInfo{}, Lists{Resources: values(`{"uri":"two://b","name":"b"}`, `{"uri":"three://c","name":"c"}`), Templates: values(`{"uriTemplate":"two://{x}/{y}","name":"x"}`)})
	set := Build([]Source{
		{Server: "lib", Catalog: library("lib"), HiddenItem: func(kind Kind, key string) bool { return key == "lib://secret" }},
		{Server: "two", Catalog: second, URIs: URIsOriginal},
		{Server: "three", Catalog: third, URIs: URIsOriginal},
	}, "")
	for uri, want := range map[string]URITarget{
		"mcp-proxy://lib/lib://a":                 {"lib", "lib://a", true},
		"ui://mcp-proxy/lib/app/x":                {"lib", "ui://app/x", true},
		"mcp-proxy://lib/lib://books/7":           {"lib", "lib://books/7", false},
		"mcp-proxy://lib/other://not/listed":      {"lib", "other://not/listed", false},
		"mcp-proxy://lib/https://example.com/doc": {"lib", "https://example.com/doc", true},
		"two://b":                           {"two", "two://b", true},
		"three://c":                         {"three", "three://c", true},
		"two://1/z":                         {"three", "two://1/z", false},
		"mcp-proxy://":                      {},
		"mcp-proxy://nobody/lib://a":        {},
		"mcp-proxy://two/two://b":           {}, // its URIs are its own
		"mcp-proxy://lib/lib://secret":      {},
		"mcp-proxy://lib/lib://books/7/raw": {"lib", "lib://books/7/raw", false},
		"mcp-proxy://lib/nonsense":          {},
		"two://1/y":                         {}, // fits templates of both
		"four://x":                          {},
		"":                                  {},
		"mcp-proxy://lib/a:" + strings.Repeat("x", 9000): {},
	} {
		got, err := set.ResolveURI(uri)
		if got != want {
			t.Errorf("%.60q means %+v, %v; want %+v", uri, got, err, want)
		}
		if e, ok := errors.AsType[*mcp.Error](err); want == (URITarget{}) && (!ok || e.Code != mcp.CodeInvalidParams || mcp.FieldString(e.Data, "uri") != uri) {
			t.Errorf("%.60q: %v, want an error with the URI", uri, err)
		}
	}
	ambiguous := Build([]Source{{Server: "s", Catalog: New("s", mcp.ServerInfo{}, Lists{Templates: values(`{"uriTemplate":"s://{x}/y","name":"x"}`, `{"uriTemplate":"s://z/{x}","name":"y"}`)})}}, "")
	if _, err := ambiguous.ResolveURI("mcp-proxy://s/s://z/y"); err == nil || !strings.Contains(err.Error(), "ambiguous") {
		t.Errorf("a URI that two templates fit: %v", err)
	}
	var collisions []string
	for _, r := range set.Rejected {
		collisions = append(collisions, r.Server+" "+r.Tool+" "+string(r.Reason))
	}
	if want := []string{"three two://b collision"}; !slices.Equal(collisions, want) {
		t.Errorf("rejected %q, want %q", collisions, want)
	}
	for uri, want := range map[string]string{
		"lib://a": "mcp-proxy://lib/lib://a", "https://example.com/doc": "mcp-proxy://lib/https://example.com/doc",
		"https://example.com/other": "https://example.com/other", "ui://y": "ui://mcp-proxy/lib/y",
	} {
		if got := set.ExposeURI("lib", uri); got != want {
			t.Errorf("%s is exposed as %s, want %s", uri, got, want)
		}
	}
	if got := set.ExposeURI("two", "two://b"); got != "two://b" {
		t.Errorf("an original URI is exposed as %s", got)
	}
}

// What is exposed leads back to where it came from.
func FuzzExposedURI(f *testing.F) {
	for _, uri := range []string{"lib://a", "ui://x/y", "mcp-proxy://lib/lib://a", "a:b", "https://h/p?q#f", "ui://mcp-proxy/lib/x"} {
		f.Add(uri)
	}
	set := Build([]Source{{Server: "lib", Catalog: New("lib", mcp.ServerInfo{}, Lists{})}}, "")
	f.Fuzz(func(t *testing.T, uri string) {
		if validateURI(uri) != nil || len(uri) > maxURI-100 || uri == "ui://" {
			t.Skip()
		}
		if lower := strings.ToLower(uri); strings.HasPrefix(lower, "http:") || strings.HasPrefix(lower, "https:") {
			t.Skip() // the web
		}
		got, err := set.ResolveURI(set.ExposeURI("lib", uri))
		if err != nil || got.Server != "lib" || got.URI != uri {
			t.Errorf("%q is exposed as %q, which means %+v, %v", uri, set.ExposeURI("lib", uri), got, err)
		}
	})
}

func TestCursorsOfOtherKinds(t *testing.T) { // L7
	t.Parallel()
	set := Build([]Source{{Server: "lib", Catalog: library("lib")}}, "")
	_, next, err := set.Page(KindResource, "", false, 1)
	if err != nil || next == "" {
		t.Fatal(next, err)
	}
	if page, _, err := set.Page(KindResource, next, true, 5); err != nil || strings.Contains(string(page), "lib://a") || !strings.Contains(string(page), "ui://") {
		t.Errorf("the second page is %s, %v", page, err)
	}
	if _, _, err := set.Page(KindTemplate, next, true, 1); err == nil {
		t.Error("a cursor of resources is taken for templates")
	}
}

func TestPatternsOfKinds(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string][]string{
		"*/*":                {"s/t", "s/resource:a://b/c", "s/prompt:p"},
		"s/*":                {"s/t", "s/resource:a://b/c", "s/prompt:p"},
		"s/t":                {"s/t"},
		"s/?":                {"s/t"},
		"*/resource:*":       {"s/resource:a://b/c"},
		"s/resource:a://*":   {"s/resource:a://b/c"},
		"s/resource:a://b/c": {"s/resource:a://b/c"},
		"s/prompt:*":         {"s/prompt:p"},
		"s/{t,prompt}":       {"s/t"},
	} {
		p, err := CompilePattern(pattern)
		if err != nil {
			t.Errorf("%s: %v", pattern, err)
			continue
		}
		var got []string
		for _, name := range []string{"s/t", "s/resource:a://b/c", "s/prompt:p"} {
			server, thing, _ := strings.Cut(name, "/")
			if kind, key := CutPolicyName(thing); p.MatchServer(server) && p.MatchKey(kind, key) {
				got = append(got, name)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s covers %q, want %q", pattern, got, want)
		}
	}
	for pattern, problem := range map[string]string{
		"s/resource:": "nothing behind the colon", "s/prompt:a b": "matches nothing", "s/resource:a b": "no space", "s/prompt:a/b": "more than one",
	} {
		if _, err := CompilePattern(pattern); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("%s: %v, want %q", pattern, err, problem)
		}
	}
}
