package catalog

import (
	"bytes"
	"strings"
	"testing"

	"toolhub/internal/mcp"
)

// L1, L7: two routers that know the same catalogs, one of them from their stored
// form, give the same bytes and the same cursors, page by page.
func TestSameCatalogsGiveTheSameBytes(t *testing.T) {
	t.Parallel()
	catalogs := []*Catalog{numbered("b", 7), tools("a", "x.y", "x_y", "re\u200bad", "z"), numbered("c", 4)}
	build := func(stored bool) *ToolSet {
		var sources []Source
		for _, c := range catalogs {
			if stored {
				data, err := c.Encode()
				if err != nil {
					t.Fatal(err)
				}
				if c, err = Decode(data); err != nil {
					t.Fatal(err)
				}
			}
			sources = append(sources, Source{Server: c.Server, Catalog: c})
		}
		return Build(sources, "h_")
	}
	one, other := build(false), build(true)
	if one.ID != other.ID || len(one.Collisions) != 1 || len(one.Rejected) != len(other.Rejected) {
		t.Errorf("%s %s, %+v, %d and %d rejected", one.ID, other.ID, one.Collisions, len(one.Rejected), len(other.Rejected))
	}
	routers := []*ToolSet{one, other}
	cursor := ""
	for n := 0; n == 0 || cursor != ""; n++ {
		var pages [2][]byte
		var next [2]string
		for i, s := range routers {
			var err error
			if pages[i], next[i], err = s.Page(KindTool, cursor, cursor != "", 5); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(pages[0], pages[1]) || next[0] != next[1] {
			t.Errorf("page %d:\n%s %s\n%s %s", n, pages[0], next[0], pages[1], next[1])
		}
		cursor = next[n%2]
	}
	for _, format := range Formats() {
		a, _, err := one.Format(format)
		if b, _, err2 := other.Format(format); err != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs", format)
		}
	}
}

// Whatever a client sends as a cursor is one that was given out, or refused; it
// never makes a page of something else.
func FuzzCursor(f *testing.F) {
	s := Build([]Source{{Server: "a", Catalog: numbered("a", 5)}, {Server: "b", Catalog: numbered("b", 5)}}, "")
	other := Build([]Source{{Server: "b", Catalog: numbered("b", 9)}}, "p_")
	for size := 1; size < 10; size++ {
		_, next, _ := s.Page(KindTool, "", false, size)
		f.Add(next, size)
	}
	_, next, _ := other.Page(KindTool, "", false, 8)
	f.Add(next, 3)
	f.Add("AQ", 1)
	f.Add(next[:8]+"\r\n"+next[8:], 1)
	f.Add(strings.Repeat("A", 600), 2)
	forged := cursor{offset: 1 << 29, within: 1 << 29, server: "a", exposed: "a__tool_9"}
	f.Add(forged.String(), 4)
	f.Fuzz(func(t *testing.T, text string, size int) {
		c, ok := parseCursor(text)
		if ok && c.String() != text {
			t.Errorf("%q is read as %+v, which is %q", text, c, c.String())
		}
		for _, set := range []*ToolSet{s, other, Build(nil, "")} {
			page, next, err := set.Page(KindTool, text, true, size)
			switch {
			case text == "":
			case !ok && err == nil, ok && err != nil && c.offset <= len(set.Entries):
				t.Errorf("%q: readable is %v, %v", text, ok, err)
			case err != nil:
				if rpc, isRPC := err.(*mcp.Error); !isRPC || rpc.Code != mcp.CodeInvalidParams {
					t.Errorf("%v", err)
				}
				continue
			}
			if n := len(names(t, page)); size > 0 && n > size {
				t.Errorf("a page of %d, not %d", n, size)
			}
			if next == text && next != "" {
				t.Errorf("%q leads to itself", text)
			}
		}
	})
}
