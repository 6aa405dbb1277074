package catalog

import (
	"errors"
	"strings"
	"testing"
)

func TestPattern(t *testing.T) {
	t.Parallel()
	for _, k := range []struct {
		pattern string
		yes, no []string
		server  int
		tool    int
	}{
		{"*", []string{"a/b"}, nil, 0, 0},
		{"*/*", []string{"a/b"}, nil, 0, 0},
		{"**/*", []string{"a/b"}, nil, 0, 0},
		{"*/delete_*", []string{"a/delete_x", "b/delete_"}, []string{"a/undelete_x", "a/delete"}, 0, 7},
		{"github/*", []string{"github/x"}, []string{"github2/x", "gi/x"}, 6, 0},
		{"github/get_issue", []string{"github/get_issue"}, []string{"github/get_issues", "x/get_issue", "github/GET_issue"}, 6, 9},
		{"git*/get.x", []string{"git/get.x", "github/get.x"}, []string{"gi/get.x", "git/getxx"}, 3, 5},
		{"{git,hub2}/{a,bcd}*", []string{"git/a1", "hub2/bcd"}, []string{"git/bc"}, 3, 1},
		{"a?/x[0-9]", []string{"ab/x1"}, []string{"a/x1", "ab/xa"}, 1, 1},
		{"a/[!x]*", []string{"a/y"}, []string{"a/x", "a/xy"}, 1, 0},
		{"a/{[a-z],[0-9]}", []string{"a/b", "a/7"}, []string{"a/A"}, 1, 0},
	} {
		p, err := CompilePattern(k.pattern)
		if err != nil {
			t.Errorf("%s: %v", k.pattern, err)
			continue
		}
		if s, n := p.Literal(); s != k.server || n != k.tool || p.String() != k.pattern {
			t.Errorf("%s: literal %d/%d, want %d/%d", k.pattern, s, n, k.server, k.tool)
		}
		for _, name := range k.yes {
			if s, n, _ := strings.Cut(name, "/"); !p.Match(s, n) {
				t.Errorf("%s does not match %s", k.pattern, name)
			}
		}
		for _, name := range k.no {
			if s, n, _ := strings.Cut(name, "/"); p.Match(s, n) {
				t.Errorf("%s matches %s", k.pattern, name)
			}
		}
	}
}

func TestBadPattern(t *testing.T) {
	t.Parallel()
	for pattern, says := range map[string]string{
		"":                              `"*/*" for every tool`,
		"github":                        `"github/*" for all tools of a server or "*/github"`,
		"github__get_issue":             `"github/get_issue"`,
		"/x":                            `"*/x" for any server`,
		"x/":                            `"x/*" for all its tools`,
		"a/b/c":                         `more than one "/"`,
		"{a/b,c/d}":                     `more than one "/"`,
		"a/[x":                          "close the class with ]",
		"a/{x,y":                        "close it with }",
		"a/[a-z0-9]":                    "{[a-z],[0-9]}",
		"a/[^x]":                        `"[!"`,
		`a/x\*`:                         "backslash",
		"GitHub/*":                      "lower-case",
		"git-hub/*":                     "lower-case",
		"git__hub/*":                    `must not contain "__"`,
		"9/*":                           "must start with a letter",
		"a/b c":                         "matches nothing",
		"a/re\u200bad":                  `\u200b`,
		"a/}":                           "matches nothing",
		"{A,b}/x":                       "matches nothing",
		"a/\xff":                        "invalid UTF-8",
		"a/" + strings.Repeat("x", 129): "at most 128",
	} {
		_, err := CompilePattern(pattern)
		if e, ok := errors.AsType[*PatternError](err); !ok || !strings.Contains(e.Error(), says) {
			t.Errorf("%q: got %v, want %q", pattern, err, says)
		}
	}
}

func TestFilter(t *testing.T) { // L2
	t.Parallel()
	s, err := Filter{Include: []string{"fs/*", "web/get"}, Exclude: []string{"*/write_*"}}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"fs/read": true, "fs/write_file": false, "web/get": true, "web/post": false, "x/read": false} {
		if server, tool, _ := strings.Cut(name, "/"); s.Selects(server, tool) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
	narrow, err := Filter{Include: []string{"fs/*", "x/*"}, Exclude: []string{"fs/list"}}.Compile()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"fs/read": true, "fs/list": false, "fs/write_file": false, "web/get": false, "x/read": false} {
		server, tool, _ := strings.Cut(name, "/")
		if narrow.Within(s).Selects(server, tool) != want || s.Within(narrow).Selects(server, tool) != want || narrow.Within(s).Within(s).Selects(server, tool) != want {
			t.Errorf("%s within: %v", name, !want)
		}
	}
	if narrow.Within(nil) != narrow || (*Selection)(nil).Within(narrow) != narrow {
		t.Error("no filter narrows nothing")
	}
	var none *Selection
	empty, err := Filter{}.Compile()
	if err != nil || !none.Selects("a", "b") || !empty.Selects("a", "b") {
		t.Error("no filter selects everything")
	}
	_, err = Filter{Include: []string{"ok/*", "bad"}, Exclude: []string{"x/[y"}}.Compile()
	if err == nil || !strings.Contains(err.Error(), "include[1]: ") || !strings.Contains(err.Error(), "exclude[0]: ") {
		t.Errorf("all errors are listed with their place: %v", err)
	}
}

func FuzzCompilePattern(f *testing.F) {
	for _, p := range []string{"*", "a/b", "{a,b}/[c-d]?*", "a/{,x{y,z}}", "[!a]/**", "a/[", "a/{", "a/\\"} {
		f.Add(p, "a", "b")
	}
	f.Fuzz(func(t *testing.T, pattern, server, tool string) {
		p, err := CompilePattern(pattern)
		if err != nil {
			return
		}
		s, n := p.Literal()
		if s < 0 || n < 0 || s+n > len(pattern) {
			t.Errorf("%q has %d/%d literal characters", pattern, s, n)
		}
		if id, ok := p.ServerID(); ok && p.MatchServer(server) != (id == server) {
			t.Errorf("%q is for %q only but judges %q otherwise", pattern, id, server)
		}
		if p.Match(server, tool) != (p.MatchServer(server) && p.MatchKey(KindTool, tool)) {
			t.Error("Match is not both parts")
		}
	})
}
