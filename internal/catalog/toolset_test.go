package catalog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"toolhub/internal/mcp"
)

func names(t testing.TB, page []byte) []string {
	t.Helper()
	var list []struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(page, &list); err != nil {
		t.Fatalf("%v: %s", err, page)
	}
	out := []string{}
	for _, e := range list {
		out = append(out, e.Name)
	}
	return out
}

func numbered(server string, n int) *Catalog {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("tool_%d", i)
	}
	return tools(server, list...)
}

func TestPaging(t *testing.T) { // L7
	t.Parallel()
	s := Build([]Source{{Server: "a", Catalog: numbered("a", 5)}, {Server: "b", Catalog: numbered("b", 3)}}, "")
	for size := -1; size <= 10; size++ {
		var all []string
		cursor, has := "", false
		for n := 0; ; n++ {
			page, next, err := s.Page(KindTool, cursor, has, size)
			if err != nil || n > 8 {
				t.Fatalf("size %d: page %d: %v", size, n, err)
			}
			got := names(t, page)
			if size > 0 && len(got) > size {
				t.Errorf("size %d: a page of %d", size, len(got))
			}
			all = append(all, got...)
			if next == "" {
				break
			}
			cursor, has = next, true
		}
		if !slices.Equal(all, exposed(s)) {
			t.Errorf("size %d: %q", size, all)
		}
	}
	page, next, err := s.Page(KindTool, "", true, 3)
	if err != nil || len(names(t, page)) != 3 || next == "" {
		t.Error("the empty cursor is the beginning")
	}
	empty := Build(nil, "")
	if page, next, err := empty.Page(KindTool, "", false, 10); err != nil || string(page) != "[]" || next != "" {
		t.Errorf("an empty list: %s %q %v", page, next, err)
	}
}

func TestBadCursor(t *testing.T) {
	t.Parallel()
	s := Build([]Source{{Server: "a", Catalog: numbered("a", 5)}}, "")
	_, next, _ := s.Page(KindTool, "", false, 2)
	for _, bad := range []string{"x", "2", " ", next + "A", next[:len(next)-2], strings.ToUpper(next), "AQ", "=", strings.Repeat("A", 100_000), "\x00", "é"} {
		_, _, err := s.Page(KindTool, bad, true, 2)
		if e, ok := errors.AsType[*mcp.Error](err); !ok || e.Code != mcp.CodeInvalidParams {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}

func TestCursorOfAnotherList(t *testing.T) {
	t.Parallel()
	a, b, c := numbered("a", 4), numbered("b", 4), numbered("c", 4)
	src := func(list ...*Catalog) []Source {
		var out []Source
		for _, c := range list {
			out = append(out, Source{Server: c.Server, Catalog: c})
		}
		return out
	}
	old := Build(src(a, b, c), "")
	_, next, _ := old.Page(KindTool, "", false, 6) // stops behind b__tool_1
	for _, k := range []struct {
		name string
		set  *ToolSet
		want string
	}{
		{"equal, built elsewhere", Build(src(numbered("a", 4), b, c), ""), "b__tool_2"},
		{"an earlier server is gone", Build(src(b, c), ""), "b__tool_2"},
		{"an earlier server is new", Build(src(numbered("z", 9), a, b, c), ""), "b__tool_2"},
		{"the tool is gone", Build(src(a, tools("b", "tool_0", "tool_2", "tool_3"), c), ""), "b__tool_2"},
		{"its server is gone", Build(src(a, c), ""), "c__tool_0"},
	} {
		page, _, err := k.set.Page(KindTool, next, true, 6)
		if err != nil {
			t.Errorf("%s: %v", k.name, err)
		} else if got := names(t, page); len(got) == 0 || got[0] != k.want {
			t.Errorf("%s: goes on with %q, want %s", k.name, got, k.want)
		}
	}
	if page, next, err := Build(nil, "").Page(KindTool, next, true, 6); err != nil || string(page) != "[]" || next != "" {
		t.Errorf("everything is gone: %s %q %v", page, next, err)
	}
}

// However the list changes between two pages, what is in both lists is offered
// at most once as long as the order stays, and pages end.
func TestPagingWhileChanging(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		build := func(label string) *ToolSet {
			var sources []Source
			for _, id := range []string{"a", "b", "c"} {
				list := rapid.SliceOfDistinct(rapid.IntRange(0, 6), rapid.ID[int]).Draw(t, label+id)
				slices.Sort(list)
				var named []string
				for _, n := range list {
					named = append(named, fmt.Sprintf("tool_%d", n))
				}
				sources = append(sources, Source{Server: id, Catalog: tools(id, named...)})
			}
			return Build(sources, "")
		}
		size := rapid.IntRange(1, 5).Draw(t, "size")
		cursor := ""
		for n := 0; ; n++ {
			if n > 100 {
				t.Fatal("paging does not end")
			}
			set := build(fmt.Sprint(n))
			if n > 10 {
				set = Build(nil, "")
			}
			_, next, err := set.Page(KindTool, cursor, cursor != "", size)
			if err != nil {
				t.Fatal(err)
			}
			if next == "" {
				return
			}
			cursor = next
		}
	})
}

func TestPagesAreRenderedOnceAndShared(t *testing.T) {
	t.Parallel()
	s := Build([]Source{{Server: "a", Catalog: numbered("a", 1000)}}, "")
	_, next, _ := s.Page(KindTool, "", false, 100)
	first, _, _ := s.Page(KindTool, next, true, 100)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			page, _, err := s.Page(KindTool, next, true, 100)
			if err != nil || &page[0] != &first[0] {
				t.Error("the page was rendered again")
			}
			other, _, err := s.Page(KindTool, "", false, 7+i)
			if err != nil || len(names(t, other)) != 7+i {
				t.Error("another size")
			}
		})
	}
	wg.Wait()
}

func TestWarmPageAllocatesNothing(t *testing.T) { // not parallel: it counts allocations
	s := Build([]Source{{Server: "a", Catalog: numbered("a", 1000)}}, "")
	if n := testing.AllocsPerRun(100, func() { _, _, _ = s.Page(KindTool, "", false, 100) }); n > 0 {
		t.Errorf("a warm page costs %v allocations", n)
	}
}

func TestToolSetID(t *testing.T) {
	t.Parallel()
	a, b := tools("a", "x", "y"), tools("b", "x")
	id := func(sources []Source, prefix string) string { return Build(sources, prefix).ID }
	base := id([]Source{{Server: "a", Catalog: a}, {Server: "b", Catalog: b}}, "")
	if base != id([]Source{{Server: "a", Catalog: tools("a", "x", "y")}, {Server: "b", Catalog: b}}, "") {
		t.Error("equal lists have different ids")
	}
	other := New("a", mcp.ServerInfo{}, Lists{Tools: []jsontext.Value{
		jsontext.Value(`{"name":"x","description":"new","inputSchema":{"type":"object"}}`), jsontext.Value(`{"name":"y","inputSchema":{"type":"object"}}`),
	}})
	for what, got := range map[string]string{
		"order":      id([]Source{{Server: "b", Catalog: b}, {Server: "a", Catalog: a}}, ""),
		"prefix":     id([]Source{{Server: "a", Catalog: a}, {Server: "b", Catalog: b}}, "p_"),
		"fewer":      id([]Source{{Server: "a", Catalog: a}}, ""),
		"definition": id([]Source{{Server: "a", Catalog: other}, {Server: "b", Catalog: b}}, ""),
		"hidden":     id([]Source{{Server: "a", Catalog: a, Hidden: func(t *Tool) bool { return t.Name == "y" }}, {Server: "b", Catalog: b}}, ""),
		"empty":      id(nil, ""),
	} {
		if got == base {
			t.Errorf("%s does not change the id", what)
		}
	}
	info := New("a", mcp.ServerInfo{Instructions: "other"}, Lists{Tools: []jsontext.Value{a.Tools[0].Def, a.Tools[1].Def}})
	if base != id([]Source{{Server: "a", Catalog: info}, {Server: "b", Catalog: b}}, "") {
		t.Error("what callers cannot see in the list changes the id")
	}
}

func TestFormats(t *testing.T) { // L8
	t.Parallel()
	c := New("a", mcp.ServerInfo{}, Lists{Tools: []jsontext.Value{
		jsontext.Value(`{"name":"x","description":"does \u00e4","inputSchema":{"type":"object","properties":{"n":{"maximum":9007199254740993}}}}`),
		jsontext.Value(`{"name":"y","inputSchema":{"type":"object"}}`),
	}})
	s := Build([]Source{{Server: "a", Catalog: c}}, "")
	schema := `{"type":"object","properties":{"n":{"maximum":9007199254740993}}}`
	for format, want := range map[Format]string{
		FormatAnthropic: `[{"name":"a__x","description":"does \u00e4","input_schema":` + schema + `},{"name":"a__y","input_schema":{"type":"object"}}]`,
		FormatOpenAI:    `[{"type":"function","function":{"name":"a__x","description":"does \u00e4","parameters":` + schema + `}},{"type":"function","function":{"name":"a__y","parameters":{"type":"object"}}}]`,
		FormatGemini:    `[{"functionDeclarations":[{"name":"a__x","description":"does \u00e4","parametersJsonSchema":` + schema + `},{"name":"a__y","description":"y","parametersJsonSchema":{"type":"object"}}]}]`,
	} {
		got, omitted, err := s.Format(format)
		if err != nil || omitted != nil || string(got) != want {
			t.Errorf("%s: %v %v\ngot  %s\nwant %s", format, err, omitted, got, want)
		}
		if got, _, err := Build(nil, "").Format(format); err != nil || string(got) != "[]" {
			t.Errorf("%s of nothing: %s %v", format, got, err)
		}
	}
	if _, _, err := s.Format("cohere"); err == nil || !strings.Contains(err.Error(), "gemini") {
		t.Errorf("an unknown format: %v", err)
	}
	// Names that only MCP takes are left out alone, with a word.
	s = Build([]Source{{Server: "a", Naming: NamingMCP, Catalog: c}, {Server: "b", Prefix: new(""), Catalog: tools("b", "2fa")}}, "")
	if got, omitted, _ := s.Format(FormatAnthropic); len(omitted) != 2 || !strings.Contains(string(got), "2fa") || omitted[0].Tool != "x" {
		t.Errorf("%s %+v", got, omitted)
	}
	if got, omitted, _ := s.Format(FormatGemini); len(omitted) != 3 || string(got) != "[]" {
		t.Errorf("%s %+v", got, omitted)
	}
}

func TestStableOrder(t *testing.T) { // L1
	t.Parallel()
	s := Build([]Source{{Server: "z", Catalog: tools("z", "c", "a", "b")}, {Server: "a", Catalog: tools("a", "z", "y")}}, "")
	if got := fmt.Sprint(exposed(s)); got != "[z__c z__a z__b a__z a__y]" {
		t.Error(got)
	}
}

func big(servers, each int) []Source {
	schema := `{"type":"object","properties":{"path":{"type":"string","description":"` + strings.Repeat("long text ", 40) + `"}},"required":["path"]}`
	var out []Source
	for s := range servers {
		id := fmt.Sprintf("s%d", s)
		var defs []jsontext.Value
		for i := range each {
			defs = append(defs, jsontext.Value(fmt.Sprintf(`{"name":"tool_%d","description":"Tool number %d.","inputSchema":%s}`, i, i, schema)))
		}
		out = append(out, Source{Server: id, Catalog: New(id, mcp.ServerInfo{}, Lists{Tools: defs})})
	}
	return out
}

func BenchmarkBuild(b *testing.B) {
	for _, n := range []struct{ servers, each int }{{10, 100}, {100, 100}, {1000, 100}} {
		sources := big(n.servers, n.each)
		b.Run(fmt.Sprintf("tools=%d", n.servers*n.each), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Build(sources, "")
			}
		})
	}
}

func BenchmarkPage(b *testing.B) {
	s := Build(big(10, 100), "")
	b.Run("cold", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.lists[toolList].modern = pages{}
			_, _, _ = s.Page(KindTool, "", false, 0)
		}
	})
	b.Run("warm", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _, _ = s.Page(KindTool, "", false, 0)
		}
	})
	b.Run("copy", func(b *testing.B) { // what a list request costs at the least
		page, _, _ := s.Page(KindTool, "", false, 0)
		into := make([]byte, len(page))
		for b.Loop() {
			copy(into, page)
		}
	})
}

func BenchmarkNew(b *testing.B) {
	src := big(1, 1000)[0].Catalog
	var defs []jsontext.Value
	for i := range src.Tools {
		defs = append(defs, src.Tools[i].Def)
	}
	data, _ := src.Encode()
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			New("s", mcp.ServerInfo{}, Lists{Tools: defs})
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			_, _ = Decode(data)
		}
	})
}
