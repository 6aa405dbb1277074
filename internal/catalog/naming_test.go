package catalog

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

var (
	hubPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	mcpPattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)
)

// hubName is an exposed name under hub naming, without a prefix of the server's.
func hubName(prefix, id, tool string) string { return NamingHub.expose(prefix, nil, id, tool) }

// The examples of the hub seed, "Naming".
func TestNamingSeed(t *testing.T) {
	t.Parallel()
	if got := Sanitize("fs.read-all"); got != "fs_read-all" {
		t.Errorf("Sanitize: %q", got)
	}
	if got := hubName("", "files", "list"); got != "files__list" {
		t.Errorf("the exposed name: %q", got)
	}
	if got := hubName("acme_", "github", "get_issue"); got != "acme_github__get_issue" {
		t.Errorf("with a hub prefix: %q", got)
	}
	if err := ValidateServerID("github"); err != nil {
		t.Error(err)
	}
}

func TestServerIDRules(t *testing.T) { // N5
	t.Parallel()
	for id, rule := range map[string]string{
		"git__hub":              `must not contain "__"`,
		"github_":               `must not end in "_"`,
		"":                      "is empty",
		"GitHub":                "must start with a letter a-z",
		"9lives":                "must start with a letter a-z",
		"_x":                    "must start with a letter a-z",
		"git-hub":               `'-' is not allowed`,
		"gitHub":                `'H' is not allowed`,
		"gi\u200bthub":          `'\u200b' is not allowed`,
		"gіthub":                `'і' is not allowed`, // Cyrillic
		"a b":                   `' ' is not allowed`,
		strings.Repeat("a", 33): "at most 32 are allowed",
		"a" + "\xff":            "is not allowed",
	} {
		if err := ValidateServerID(id); err == nil || !strings.Contains(err.Error(), rule) {
			t.Errorf("%q: got %v, want the rule %q", id, err, rule)
		}
	}
	for _, id := range []string{"a", "a1", "a_b_c", strings.Repeat("a", 32)} {
		if err := ValidateServerID(id); err != nil {
			t.Error(err)
		}
	}
}

func TestNameLength(t *testing.T) { // N3
	t.Parallel()
	fits := strings.Repeat("t", 64-len("srv__"))
	if got := hubName("", "srv", fits); got != "srv__"+fits {
		t.Errorf("64 bytes must stay, got %q", got)
	}
	long := fits + "t"
	sum := sha256.Sum256([]byte("srv\x00" + long))
	want := fmt.Sprintf("trunc_%x", sum[:4])
	if got := hubName("", "srv", long); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := hubName("p_", "srv", fits[:len(fits)-1]); got != "p_trunc_"+fmt.Sprintf("%x", sha256.Sum256([]byte("srv\x00"+fits[:len(fits)-1])))[:8] {
		t.Errorf("the hub's prefix counts and stays, got %q", got)
	}
	// The hash is over the tool's own name, so names that sanitise alike stay apart.
	if hubName("", "srv", long+".a") == hubName("", "srv", long+"_a") {
		t.Error("two long names were shortened to one")
	}
}

func TestToolNameCharset(t *testing.T) { // N1
	t.Parallel()
	for _, name := range []string{
		"", " ", "a b", "re\u200bad", "re\u202ead", "rеad", "café", "a/b", "a\x00", "\xff", "名", strings.Repeat("a", 129), "a\n",
	} {
		if err := ValidateToolName(name); err == nil {
			t.Errorf("%+q is accepted", name)
		}
	}
	for _, name := range []string{"a", ".", "-", "fs.read-all_2", strings.Repeat("Z", 128)} {
		if err := ValidateToolName(name); err != nil {
			t.Error(err)
		}
	}
	if err := ValidateToolName("re\u200bad"); !strings.Contains(err.Error(), `\u200b`) {
		t.Errorf("an invisible character must be visible in the error: %v", err)
	}
}

func TestPrefixRules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		naming Naming
		prefix string
		ok     bool
	}{
		{NamingHub, "", true},
		{NamingHub, "acme-", true},
		{NamingHub, strings.Repeat("p", 50), true},
		{NamingHub, strings.Repeat("p", 51), false},
		{NamingHub, "a.", false},
		{"", "a.", false},
		{NamingMCP, "a.", true},
		{NamingMCP, "a b", false},
		{NamingMCP, strings.Repeat("p", 115), false},
	} {
		if err := c.naming.ValidatePrefix(c.prefix); (err == nil) != c.ok {
			t.Errorf("%s %q: %v", c.naming, c.prefix, err)
		}
	}
	if err := Naming("camel").Validate(); err == nil || !strings.Contains(err.Error(), `"hub" or "mcp"`) {
		t.Error(err)
	}
}

// tools is a catalog of tools with these names and no arguments.
func tools(server string, names ...string) *Catalog {
	defs := make([]jsontext.Value, 0, len(names))
	for _, n := range names {
		defs = append(defs, jsontext.Value(`{"name":`+string(mcp.QuoteString(n))+`,"inputSchema":{"type":"object"}}`))
	}
	return New(server, mcp.ServerInfo{}, Lists{Tools: defs})
}

func exposed(s *ToolSet) []string {
	out := make([]string, 0, len(s.Entries))
	for i := range s.Entries {
		out = append(out, s.Entries[i].Exposed)
	}
	return out
}

func TestServerPrefix(t *testing.T) { // N8
	t.Parallel()
	long := strings.Repeat("l", 100)
	c := tools("srv", "read", "fs.read", long)
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte("srv\x00"+long)))[:8]
	for _, k := range []struct {
		name   string
		naming Naming
		hub    string
		own    *string
		want   []string
	}{
		{"hub", NamingHub, "", nil, []string{"srv__read", "srv__fs_read", "trunc_" + sum}},
		{"hub's prefix", NamingHub, "h_", nil, []string{"h_srv__read", "h_srv__fs_read", "h_trunc_" + sum}},
		{"hub with own", NamingHub, "h_", new("s-"), []string{"s-read", "s-fs_read", "s-trunc_" + sum}},
		// Unchanged as far as the model APIs allow it.
		{"hub, empty", NamingHub, "", new(""), []string{"read", "fs_read", "trunc_" + sum}},
		{"hub, empty below the hub's", NamingHub, "acme_", new(""), []string{"read", "fs_read", "trunc_" + sum}},
		{"mcp", NamingMCP, "", nil, []string{"srv.read", "srv.fs.read", "srv." + long}},
		{"mcp with own", NamingMCP, "", new("s/"), []string{}}, // not validated, so nothing is exposed
		{"mcp, empty", NamingMCP, "", new(""), []string{"read", "fs.read", long}},
		{"mcp, empty below the hub's", NamingMCP, "acme.", new(""), []string{"read", "fs.read", long}},
		{"mcp, too long", NamingMCP, strings.Repeat("h", 30), nil, []string{
			strings.Repeat("h", 30) + "srv.read", strings.Repeat("h", 30) + "srv.fs.read", strings.Repeat("h", 30) + "trunc_" + sum,
		}},
	} {
		s := Build([]Source{{Server: "srv", Naming: k.naming, Prefix: k.own, Catalog: c}}, k.hub)
		if got := exposed(s); fmt.Sprint(got) != fmt.Sprint(k.want) {
			t.Errorf("%s: got %q, want %q", k.name, got, k.want)
		}
		if len(s.Entries)+len(s.Rejected) != 3 {
			t.Errorf("%s: a tool vanished without a word", k.name)
		}
	}
}

func TestCollisionRejectsAll(t *testing.T) { // N4, N6
	t.Parallel()
	a := tools("a", "x.y", "x_y", "x-y", "ok")
	b := tools("b", "y", "z")
	s := Build([]Source{
		{Server: "a", Catalog: a},
		{Server: "b", Prefix: new("a__"), Catalog: b},
		{Server: "c", Prefix: new("a__"), Catalog: tools("c", "z")},
	}, "")
	if got, want := fmt.Sprint(exposed(s)), "[a__x-y a__ok a__y]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if len(s.Collisions) != 2 || s.Collisions[0].Exposed != "a__x_y" || s.Collisions[1].Exposed != "a__z" {
		t.Fatalf("collisions: %+v", s.Collisions)
	}
	if d := s.Collisions[0].Tools[0].Detail; !strings.Contains(d, "a/x.y, a/x_y") {
		t.Errorf("the detail names both: %q", d)
	}
	for _, r := range s.Rejected {
		if r.Reason != ReasonCollision {
			t.Errorf("%+v", r)
		}
	}
	if len(s.Rejected) != 4 {
		t.Errorf("%d rejected", len(s.Rejected))
	}
	if _, ok := s.Resolve("a__x_y"); ok {
		t.Error("a name that nobody got resolves")
	}
	// Filtering one of them out resolves it.
	s = Build([]Source{{Server: "a", Catalog: a, Hidden: func(t *Tool) bool { return t.Name == "x.y" }}}, "")
	if e, ok := s.Resolve("a__x_y"); !ok || e.Tool.Name != "x_y" {
		t.Error("the collision outlives its cause")
	}
}

// N6 of the field reports: a second server renames nothing of the first.
func TestNamesDoNotDependOnOthers(t *testing.T) {
	t.Parallel()
	a, b := tools("a", "echo", "add"), tools("b", "echo")
	alone := Build([]Source{{Server: "a", Catalog: a}}, "")
	both := Build([]Source{{Server: "a", Catalog: a}, {Server: "b", Catalog: b}}, "")
	for i, name := range exposed(alone) {
		if got := both.Entries[i].Exposed; got != name {
			t.Errorf("%s became %s", name, got)
		}
	}
	if _, ok := both.Resolve("b__echo"); !ok || len(both.Entries) != 3 {
		t.Error("both servers' echo must be reachable")
	}
}

// N7: a tool name with __ cannot reach another server's tool.
func TestResolveIsALookup(t *testing.T) {
	t.Parallel()
	s := Build([]Source{
		{Server: "a", Catalog: tools("a", "b__c")},
		{Server: "a_b", Catalog: tools("a_b", "c")},
	}, "")
	for name, want := range map[string]string{"a__b__c": "a/b__c", "a_b__c": "a_b/c"} {
		e, ok := s.Resolve(name)
		if !ok || e.Server+"/"+e.Tool.Name != want {
			t.Errorf("%s resolves to %+v, want %s", name, e, want)
		}
	}
	for _, name := range []string{"", "a", "a__", "A__b__c", "a__b__c ", "a.b__c", "c"} {
		if _, ok := s.Resolve(name); ok {
			t.Errorf("%q resolves", name)
		}
	}
}

func FuzzExposedName(f *testing.F) {
	f.Add("", "files", "fs.read-all", "", false)
	f.Add("acme_", "a", strings.Repeat("x", 200), "p.", true)
	f.Add("\u200b", "git__hub", "re\u202ead", "é", true)
	f.Fuzz(func(t *testing.T, hubPrefix, id, tool, own string, hasOwn bool) {
		var prefix *string
		if hasOwn {
			prefix = &own
		}
		def := jsontext.Value(`{"inputSchema":{"type":"object"},"name":` + string(mcp.QuoteString(tool)) + `}`)
		c := New(id, mcp.ServerInfo{}, Lists{Tools: []jsontext.Value{def}})
		for naming, pattern := range map[Naming]*regexp.Regexp{"": hubPattern, NamingHub: hubPattern, NamingMCP: mcpPattern} {
			s := Build([]Source{{Server: id, Naming: naming, Prefix: prefix, Catalog: c}}, hubPrefix)
			for _, e := range s.Entries {
				if !pattern.MatchString(e.Exposed) {
					t.Errorf("%s: %q is exposed", naming, e.Exposed)
				}
			}
			if len(s.Entries)+len(s.Rejected) != 1 {
				t.Errorf("%s: %d exposed, %d rejected of one", naming, len(s.Entries), len(s.Rejected))
			}
			// With valid ids and prefixes only the tool's own name can be at fault.
			fine := ValidateServerID(id) == nil && naming.ValidatePrefix(hubPrefix) == nil && (!hasOwn || naming.ValidatePrefix(own) == nil)
			if fine && ValidateToolName(tool) == nil && len(s.Entries) != 1 {
				t.Errorf("%s: %q of %q is not exposed: %+v", naming, tool, id, s.Rejected)
			}
		}
	})
}
