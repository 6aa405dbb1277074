package catalog

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

const everyMember = `{ "title":"A \u00fc title" ,"x-unknown":{"n":12345678901234567890.5e-3,"deep":[1,{"a":null}]},` +
	`"name":"full.tool","description":"d","inputSchema":{"type":"object","definitions":{"a":{"type":["string","null"]}},` +
	`"properties":{"id":{"$ref":"#/definitions/a","maximum":9007199254740993}}},"outputSchema":{"type":"object"},` +
	`"annotations":{"readOnlyHint":true,"title":"t","vendor":1},"icons":[{"src":"data:,"}],"_meta":{"ui":{"resourceUri":"ui://x"}}}`

func TestDefinitionsStayByteForByte(t *testing.T) { // K8, J2, J8
	t.Parallel()
	c := New("srv", mcp.ServerInfo{}, Lists{Tools: []jsontext.Value{jsontext.Value(everyMember)}})
	if len(c.Tools) != 1 {
		t.Fatalf("rejected: %+v", c.Rejected)
	}
	tool, ok := c.Tool("full.tool")
	if !ok || string(tool.Def) != everyMember || tool.Notes != nil {
		t.Fatalf("the definition changed: %s, %v", tool.Def, tool.Notes)
	}
	want := strings.Replace(everyMember, `"name":"full.tool"`, `"name":"srv__full_tool"`, 1)
	s := Build([]Source{{Server: "srv", Catalog: c, URIs: URIsOriginal}}, "")
	if got := string(s.Entries[0].Def()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// Under its own name it is the server's bytes exactly.
	if got := string(tool.AppendDef(nil, "full.tool", false)); got != everyMember {
		t.Errorf("got %s", got)
	}
	if tool.Annotations.ReadOnly == nil || !*tool.Annotations.ReadOnly || tool.Annotations.OpenWorld != nil {
		t.Errorf("annotations: %+v", tool.Annotations)
	}
}

func TestExposedDefinition(t *testing.T) {
	t.Parallel()
	for _, k := range []struct{ name, def, want, note string }{
		{
			"execution is removed",
			`{"execution":{"taskSupport":"optional"},"name":"t","inputSchema":{"type":"object"}}`,
			`{"name":"N","inputSchema":{"type":"object"}}`, "",
		},
		{
			"execution behind the name",
			`{"name":"t" , "execution":{} , "inputSchema":{"type":"object"}}`,
			`{"name":"N","inputSchema":{"type":"object"}}`, "",
		},
		{
			"null members are removed",
			`{"name":"t","title":null,"outputSchema":null,"annotations":{"title":null,"readOnlyHint":true,"idempotentHint":null},"inputSchema":{"type":"object"}}`,
			`{"name":"N","annotations":{"readOnlyHint":true},"inputSchema":{"type":"object"}}`, "is null",
		},
		{
			"null in an unknown member stays",
			`{"name":"t","vendor":null,"inputSchema":{"type":"object"}}`,
			`{"name":"N","vendor":null,"inputSchema":{"type":"object"}}`, "",
		},
		{
			"line breaks between tokens",
			"{\r\n\t\"name\": \"t\",\n\"description\":\"a\\nb\",\"inputSchema\":\n{\"type\":\"object\",\"maximum\":1e400}}",
			`{"name":"N","description":"a\nb","inputSchema":{"type":"object","maximum":1e400}}`, "",
		},
		{
			"an escaped name of a member",
			`{"n\u0061me":"t","inputSchema":{"type":"object"}}`,
			`{"n\u0061me":"N","inputSchema":{"type":"object"}}`, "",
		},
		{
			"valid x-mcp-header stays",
			`{"name":"t","inputSchema":{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"A"}}}}`,
			`{"name":"N","inputSchema":{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"A"}}}}`, "",
		},
		{
			"invalid x-mcp-header takes all of the tool's with it",
			`{"name":"t","inputSchema":{"type":"object","properties":{"a":{"type":"number","x-mcp-header":"A"},"b":{"x-mcp-header":"B","type":"string"},` +
				`"x-mcp-header":{"type":"string"},"c":{"items":[{"x-mcp-header":"C"}],"const":{"x-mcp-header":"stays"}}}}}`,
			`{"name":"N","inputSchema":{"type":"object","properties":{"a":{"type":"number"},"b":{"type":"string"},` +
				`"x-mcp-header":{"type":"string"},"c":{"items":[{}],"const":{"x-mcp-header":"stays"}}}}}`, "x-mcp-header",
		},
	} {
		c := New("srv", mcp.ServerInfo{}, Lists{Tools: []jsontext.Value{jsontext.Value(k.def)}})
		if len(c.Tools) != 1 {
			t.Errorf("%s: rejected: %+v", k.name, c.Rejected)
			continue
		}
		tool := &c.Tools[0]
		if got := string(tool.AppendDef(nil, "N", false)); got != k.want {
			t.Errorf("%s:\ngot  %s\nwant %s", k.name, got, k.want)
		}
		if (k.note != "") != (len(tool.Notes) > 0) || k.note != "" && !strings.Contains(tool.Notes[0].Detail, k.note) {
			t.Errorf("%s: notes %+v, want %q", k.name, tool.Notes, k.note)
		}
	}
}

func TestLegacyDefinition(t *testing.T) {
	t.Parallel()
	c := New("srv", mcp.ServerInfo{}, Lists{Tools: []jsontext.Value{
		jsontext.Value(`{"name":"list","inputSchema":{"type":"object"},"outputSchema":{"type":"array"},"title":"L"}`),
		jsontext.Value(`{"name":"obj","inputSchema":{"type":"object"},"outputSchema":{"type":"object"}}`),
	}})
	s := Build([]Source{{Server: "srv", Catalog: c}}, "")
	modern, _, _ := s.Page(KindTool, "", false, 0)
	legacy, _, _ := s.LegacyPage(KindTool, "", false, 0)
	if want := `[{"name":"srv__list","inputSchema":{"type":"object"},"outputSchema":{"type":"array"},"title":"L"},{"name":"srv__obj","inputSchema":{"type":"object"},"outputSchema":{"type":"object"}}]`; string(modern) != want {
		t.Errorf("modern: %s", modern)
	}
	if want := `[{"name":"srv__list","inputSchema":{"type":"object"},"title":"L"},{"name":"srv__obj","inputSchema":{"type":"object"},"outputSchema":{"type":"object"}}]`; string(legacy) != want {
		t.Errorf("legacy: %s", legacy)
	}
}

func TestBadDefinitionIsRejectedAlone(t *testing.T) { // J5
	t.Parallel()
	good := jsontext.Value(`{"name":"good","inputSchema":{"type":"object"}}`)
	for _, k := range []struct {
		def    string
		reason Reason
		detail string
	}{
		{`"text"`, ReasonInvalidDefinition, "is a string, not an object"},
		{`null`, ReasonInvalidDefinition, "is null, not an object"},
		{`[]`, ReasonInvalidDefinition, "is an array"},
		{``, ReasonInvalidDefinition, "no JSON"},
		{`{`, ReasonInvalidDefinition, "no valid JSON"},
		{`{"name":"x"`, ReasonInvalidDefinition, "no valid JSON"},
		{`{} {}`, ReasonInvalidDefinition, "data behind"},
		{`{}`, ReasonInvalidDefinition, "no name"},
		{`{"name":null,"inputSchema":{"type":"object"}}`, ReasonInvalidDefinition, "name is null"},
		{`{"name":7,"inputSchema":{"type":"object"}}`, ReasonInvalidDefinition, "name is a number"},
		{`{"name":"","inputSchema":{"type":"object"}}`, ReasonInvalidName, "empty"},
		{`{"name":"re\u200bad","inputSchema":{"type":"object"}}`, ReasonInvalidName, `\u200b`},
		{`{"name":"a b","inputSchema":{"type":"object"}}`, ReasonInvalidName, `' '`},
		{`{"name":"x"}`, ReasonInvalidDefinition, "no inputSchema"},
		{`{"name":"x","inputSchema":null}`, ReasonInvalidDefinition, "inputSchema is null"},
		{`{"name":"x","inputSchema":true}`, ReasonInvalidDefinition, "inputSchema is a boolean"},
		{`{"name":"x","inputSchema":{}}`, ReasonInvalidDefinition, "no type"},
		{`{"name":"x","inputSchema":{"type":"string"}}`, ReasonInvalidDefinition, `it must be "object"`},
		{`{"name":"x","inputSchema":{"type":["object"]}}`, ReasonInvalidDefinition, `it must be "object"`},
		{`{"name":"x","inputSchema":{"type":"object","properties":[]}}`, ReasonInvalidDefinition, "properties is an array"},
		{`{"name":"x","inputSchema":{"type":"object","required":"a"}}`, ReasonInvalidDefinition, "required is a string"},
		{`{"name":"x","inputSchema":{"type":"object"},"name":"y"}`, ReasonInvalidDefinition, "duplicate"},
		{`{"name":"x","inputSchema":{"type":"object","type":"string"}}`, ReasonInvalidDefinition, "duplicate"},
		{`{"name":"x","inputSchema":{"type":"object"},"description":3}`, ReasonInvalidDefinition, "description is a number"},
		{`{"name":"x","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":"yes"}}`, ReasonInvalidDefinition, "readOnlyHint is a string"},
		{`{"name":"x","inputSchema":{"type":"object"},"annotations":[]}`, ReasonInvalidDefinition, "annotations is an array"},
		{`{"name":"x","inputSchema":{"type":"object"},"outputSchema":true}`, ReasonInvalidDefinition, "outputSchema is a boolean"},
		{"{\"name\":\"x\",\"description\":\"\xff\",\"inputSchema\":{\"type\":\"object\"}}", ReasonInvalidDefinition, "UTF-8"},
	} {
		c := New("srv", mcp.ServerInfo{}, Lists{Tools: []jsontext.Value{good, jsontext.Value(k.def)}})
		if len(c.Tools) != 1 || c.Tools[0].Name != "good" {
			t.Errorf("%s: the good tool is gone or the bad one is in: %+v", k.def, c.Tools)
			continue
		}
		if len(c.Rejected) != 1 {
			t.Errorf("%s: %d rejected", k.def, len(c.Rejected))
			continue
		}
		if r := c.Rejected[0]; r.Reason != k.reason || !strings.Contains(r.Detail, k.detail) || r.Index != 1 || r.Server != "srv" {
			t.Errorf("%s: got %+v, want %s with %q", k.def, r, k.reason, k.detail)
		}
	}
}

func TestDuplicateNames(t *testing.T) {
	t.Parallel()
	def := func(name, title string) jsontext.Value {
		return jsontext.Value(fmt.Sprintf(`{"name":%q,"title":%q,"inputSchema":{"type":"object"}}`, name, title))
	}
	c := New("srv", mcp.ServerInfo{}, Lists{Tools: []jsontext.Value{
		def("a", "1"), def("b", "1"), def("a", "2"), def("c", "1"), def("b", "1"), def("a", "1"),
	}})
	var names []string
	for _, tool := range c.Tools {
		names = append(names, tool.Name)
	}
	if fmt.Sprint(names) != "[b c]" {
		t.Errorf("kept %v: names with two definitions go, equal repetitions do not take the first with them", names)
	}
	var at []int
	for _, r := range c.Rejected {
		if r.Reason != ReasonDuplicateName {
			t.Errorf("%+v", r)
		}
		at = append(at, r.Index)
	}
	if fmt.Sprint(at) != "[0 2 4 5]" {
		t.Errorf("rejected %v", at)
	}
	if tool, ok := c.Tool("c"); !ok || tool.Name != "c" {
		t.Error("the lookup is off")
	}
	if _, ok := c.Tool("a"); ok {
		t.Error("a rejected tool is found")
	}
}

func TestBelieve(t *testing.T) { // P5
	t.Parallel()
	yes, no := new(true), new(false)
	worst := Hints{Destructive: true, OpenWorld: true}
	for _, k := range []struct {
		name    string
		a       Annotations
		trusted bool
		want    Hints
	}{
		{"untrusted", Annotations{ReadOnly: yes, Destructive: no, Idempotent: yes, OpenWorld: no}, false, worst},
		{"silent", Annotations{}, true, worst},
		{"trusted", Annotations{ReadOnly: no, Destructive: no, Idempotent: yes, OpenWorld: no}, true, Hints{Idempotent: true}},
		{"read-only", Annotations{ReadOnly: yes}, true, Hints{ReadOnly: true, Idempotent: true, OpenWorld: true}},
		{"read-only, said to be destructive", Annotations{ReadOnly: yes, Destructive: yes}, true, Hints{ReadOnly: true, Destructive: true, Idempotent: true, OpenWorld: true}},
	} {
		if got := k.a.Believe(k.trusted); got != k.want {
			t.Errorf("%s: got %+v, want %+v", k.name, got, k.want)
		}
	}
}

// TestInvalidHeaderOverHTTP: the protocol forbids to call a tool whose header
// annotations are invalid where there would be headers.
func TestInvalidHeaderOverHTTP(t *testing.T) {
	t.Parallel()
	def := jsontext.Value(`{"name":"t","inputSchema":{"type":"object","properties":{"a":{"type":"number","x-mcp-header":"A"}}}}`)
	for _, k := range []struct {
		info    mcp.ServerInfo
		offered bool
	}{
		{mcp.ServerInfo{Era: mcp.EraModern, HTTP: true}, false},
		{mcp.ServerInfo{Era: mcp.EraLegacy, HTTP: true}, true},
		{mcp.ServerInfo{Era: mcp.EraModern}, true},
	} {
		c := New("srv", k.info, Lists{Tools: []jsontext.Value{def}})
		data, err := c.Encode()
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []*Catalog{c, decoded} {
			if _, ok := c.Tool("t"); ok != k.offered {
				t.Errorf("%+v: offered %v", k.info, ok)
			}
			if !k.offered && (len(c.Rejected) != 1 || c.Rejected[0].Reason != ReasonInvalidHeader || c.Rejected[0].Tool != "t") {
				t.Errorf("%+v: rejected %+v", k.info, c.Rejected)
			}
		}
	}
}

func TestEncodeDecode(t *testing.T) {
	t.Parallel()
	info := mcp.ServerInfo{
		Era: mcp.EraModern, Version: mcp.Version20260728, Server: mcp.Implementation{Name: "Display \u202e", Version: "1"},
		Instructions: "use it", Capabilities: jsontext.Value(`{"tools":{"listChanged":true},"x":{"n":12345678901234567890}}`),
	}
	c := New("srv", info, Lists{Tools: []jsontext.Value{
		jsontext.Value(everyMember),
		jsontext.Value(`{"name":"b d","inputSchema":{"type":"object"}}`),
		jsontext.Value(`{"name":"b","inputSchema":{"type":"object","properties":{"q":{"type":"number","x-mcp-header":"Q"}}}}`),
	}})
	data, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := c.Encode(); !bytes.Equal(data, again) {
		t.Error("two encodings differ")
	}
	if !bytes.Contains(data, []byte(everyMember)) {
		t.Error("a definition is not in it byte for byte")
	}
	if jsontext.Value(data).Kind() != '{' || !jsontext.Value(data).IsValid() {
		t.Errorf("no JSON: %s", data)
	}
	d, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c, d) {
		t.Errorf("got  %+v\nwant %+v", d, c)
	}
	if c.Revision == "" || c.Revision == New("srv", info, Lists{}).Revision {
		t.Error("the revision is no digest of the content")
	}
	for _, bad := range []string{``, `[]`, `{}`, `{"format":2,"server":"a","tools":[]}`, `{"format":1,"tools":[]}`, `{"format":1,"server":"a","tools":{}}`, `{"format":1,"server":"a","info":3,"tools":[]}`, string(data[:len(data)-1])} {
		if _, err := Decode([]byte(bad)); err == nil {
			t.Errorf("%.40s decodes", bad)
		}
	}
	if d, err := Decode([]byte(`{"format":1,"server":"a","resources":[1],"tools":[]}`)); err != nil || d.Server != "a" {
		t.Errorf("members of a newer writer: %v", err)
	}
}

func FuzzNew(f *testing.F) {
	f.Add([]byte(everyMember))
	f.Add([]byte(`{"name":"t","execution":{},"inputSchema":{"type":"object","properties":{"a":{"type":"number","x-mcp-header":"A"}}}}`))
	f.Add([]byte("{\"name\":\"t\",\n\"inputSchema\":{\"type\":\"object\"},\"title\":null}"))
	f.Fuzz(func(t *testing.T, def []byte) {
		good := jsontext.Value(`{"name":"good","inputSchema":{"type":"object"}}`)
		c := New("srv", mcp.ServerInfo{}, Lists{Tools: []jsontext.Value{good, def}})
		if len(c.Tools)+len(c.Rejected) < 2 {
			t.Fatal("a definition vanished")
		}
		s := Build([]Source{{Server: "srv", Catalog: c}}, "")
		for _, list := range []func(Kind, string, bool, int) ([]byte, string, error){s.Page, s.LegacyPage} {
			page, _, err := list(KindTool, "", false, 0)
			if err != nil || !jsontext.Value(page).IsValid() || bytes.ContainsAny(page, "\r\n") {
				t.Fatalf("page: %v %s", err, page)
			}
		}
		data, err := c.Encode()
		if err != nil {
			t.Fatal(err)
		}
		d, err := Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if d.Revision != c.Revision || len(d.Tools) != len(c.Tools) {
			t.Fatalf("decoded %d tools of %d", len(d.Tools), len(c.Tools))
		}
	})
}

// TestTaskRequired: a tool that can only be called as a task is offered where its
// server has tasks, and looks like any other.
func TestTaskRequired(t *testing.T) {
	t.Parallel()
	lists := Lists{Tools: []jsontext.Value{jsontext.Value(`{"name":"t","execution":{"taskSupport":"required"},"inputSchema":{"type":"object"}}`)}}
	able := jsontext.Value(`{"tasks":{"requests":{"tools":{"call":{}}}}}`)
	c := New("s", mcp.ServerInfo{Era: mcp.EraLegacy, Capabilities: able}, lists)
	if len(c.Tools) != 1 || !c.Tools[0].TaskRequired || string(c.Tools[0].AppendDef(nil, "t", false)) != `{"name":"t","inputSchema":{"type":"object"}}` {
		t.Errorf("%+v", c)
	}
	for _, info := range []mcp.ServerInfo{{Era: mcp.EraModern, Capabilities: able}, {Era: mcp.EraLegacy}} {
		if c := New("s", info, lists); len(c.Tools) != 0 || c.Rejected[0].Reason != ReasonTaskRequired {
			t.Errorf("%+v", c)
		}
	}
}
