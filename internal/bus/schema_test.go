package bus

import (
	"bytes"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"toolhub/schema"
)

func eventSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema.Event))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("event.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("event.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// schemaText is what the tests need of the schema as text.
type schemaText struct {
	Properties struct {
		Type struct {
			Enum []string `json:"enum"`
		} `json:"type"`
	} `json:"properties"`
	Defs map[string]struct {
		Properties map[string]jsontext.Value `json:"properties"`
	} `json:"$defs"`
}

func readSchema(t *testing.T) schemaText {
	t.Helper()
	var s schemaText
	if err := json.Unmarshal(schema.Event, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// documented are the examples and the subjects of docs/events.md.
func documented(t *testing.T) (examples []string, subjects map[string]bool) {
	t.Helper()
	page, err := os.ReadFile("../../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	subjects = map[string]bool{}
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, `{"specversion"`) {
			examples = append(examples, line)
		}
		if name, ok := strings.CutPrefix(line, "| `"); ok {
			if name, _, _ = strings.Cut(name, "`"); strings.Count(name, ".") == 2 {
				kind, what := name[:strings.IndexByte(name, '.')], name[strings.LastIndexByte(name, '.')+1:]
				subjects["toolhub."+kind+"."+what] = true
			}
		}
	}
	return examples, subjects
}

// TestEventExamples: the examples are what Emit sends, byte for byte, they are
// valid, and there is one of each type that the schema and the table have.
func TestEventExamples(t *testing.T) {
	t.Parallel()
	c := startServer(t, inProcess).connect(t, "w1", func(c *Config) { c.Hub = "main" })
	m := newEmitter(c) // only encodes
	valid := eventSchema(t)
	examples, subjects := documented(t)
	seen := map[string]bool{}
	for _, line := range examples {
		var w cloudEvent
		if err := json.Unmarshal([]byte(line), &w); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		kind, what, _ := strings.Cut(strings.TrimPrefix(w.Type, "toolhub."), ".")
		e, err := m.decode(eventSubject(eventPrefix("main"), kind, w.Subject, what), []byte(line))
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if got, err := m.encode(nil, &e); err != nil || string(got) != line {
			t.Errorf("the example is\n%s\nEmit would send\n%s (%v)", line, got, err)
		}
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(line))
		if err == nil {
			err = valid.Validate(doc)
		}
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
		seen[w.Type] = true
	}
	types := map[string]bool{}
	for _, name := range readSchema(t).Properties.Type.Enum {
		types[name] = true
	}
	if !maps.Equal(seen, types) || !maps.Equal(subjects, types) || len(examples) != len(types) {
		t.Errorf("the schema has %v\nthe examples are of %v\nthe table has %v", types, seen, subjects)
	}
}

func TestEventSchemaRefuses(t *testing.T) {
	t.Parallel()
	valid := eventSchema(t)
	example := func(typ string) map[string]any {
		lines, _ := documented(t)
		i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, `"toolhub.`+typ+`"`) })
		var e map[string]any
		if err := json.Unmarshal([]byte(lines[i]), &e); err != nil {
			t.Fatal(err)
		}
		return e
	}
	for what, change := range map[string]func() map[string]any{
		"type":    func() map[string]any { e := example("call.started"); e["type"] = "toolhub.call.other"; return e },
		"no id":   func() map[string]any { e := example("call.started"); delete(e, "id"); return e },
		"no data": func() map[string]any { e := example("call.started"); delete(e, "data"); return e },
		"data":    func() map[string]any { e := example("policy.changed"); e["data"] = 1; return e },
		"bodies": func() map[string]any {
			e := example("call.started")
			e["data"].(map[string]any)["arguments"] = 1
			return e
		},
		"state": func() map[string]any {
			e := example("server.up")
			e["data"].(map[string]any)["state"] = "fine"
			return e
		},
		"time": func() map[string]any { e := example("server.up"); e["time"] = "now"; return e },
		"no state": func() map[string]any {
			e := example("server.up")
			delete(e["data"].(map[string]any), "state")
			return e
		},
	} {
		if err := valid.Validate(change()); err == nil {
			t.Errorf("%s: was accepted", what)
		}
	}
}

// TestEventsInSourcesAreDocumented reads the packages that emit: each literal
// Event has a type that the schema knows, and each struct that is sent as data
// has the members that the schema says.
func TestEventsInSourcesAreDocumented(t *testing.T) {
	t.Parallel()
	doc := readSchema(t)
	kinds := map[string]bool{}
	for _, name := range doc.Properties.Type.Enum {
		kind, _, _ := strings.Cut(strings.TrimPrefix(name, "toolhub."), ".")
		kinds[kind] = true
	}
	emitted := map[string]bool{}
	structs := map[string]bool{}
	fset := gotoken.NewFileSet()
	for _, dir := range []string{"catalog", "registry", "router", "worker", "daemon"} {
		files, err := filepath.Glob("../" + dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(fset, file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CompositeLit:
					kind, what, ok := eventLiteral(n)
					if !ok {
						break
					}
					emitted[kind] = true
					if !kinds[kind] || what != "" && !slices.Contains(doc.Properties.Type.Enum, "toolhub."+kind+"."+what) {
						t.Errorf("%s: the event %s.%s is not in schema/event.schema.json", fset.Position(n.Pos()), kind, what)
					}
				case *ast.TypeSpec:
					def, known := doc.Defs[n.Name.Name]
					st, isStruct := n.Type.(*ast.StructType)
					if !isStruct || !known && !strings.HasSuffix(n.Name.Name, "Event") {
						break
					}
					structs[n.Name.Name] = true
					want := slices.Sorted(maps.Keys(def.Properties))
					if got := members(st); !slices.Equal(got, want) {
						t.Errorf("%s: %s has the members %q, the schema %q", fset.Position(n.Pos()), n.Name.Name, got, want)
					}
				}
				return true
			})
		}
	}
	if !maps.Equal(emitted, kinds) {
		t.Errorf("the schema has the kinds %v, the sources emit %v", kinds, emitted)
	}
	for _, name := range []string{"serverEvent", "callEvent", "collisionEvent", "collidingName", "listEvent", "policyEvent", "Rejected"} {
		if !structs[name] {
			t.Errorf("there is no struct %s any more: the schema describes it", name)
		}
	}
}

// eventLiteral reads bus.Event{Kind: "…", What: "…"}; what is "" if it is no constant.
func eventLiteral(n *ast.CompositeLit) (kind, what string, ok bool) {
	sel, isSel := n.Type.(*ast.SelectorExpr)
	if !isSel || sel.Sel.Name != "Event" {
		return "", "", false
	}
	if x, isIdent := sel.X.(*ast.Ident); !isIdent || x.Name != "bus" {
		return "", "", false
	}
	for _, el := range n.Elts {
		kv, isKV := el.(*ast.KeyValueExpr)
		if !isKV {
			continue
		}
		lit, isLit := kv.Value.(*ast.BasicLit)
		if !isLit {
			continue
		}
		v, _ := strconv.Unquote(lit.Value)
		switch kv.Key.(*ast.Ident).Name {
		case "Kind":
			kind = v
		case "What":
			what = v
		}
	}
	return kind, what, kind != ""
}

// members are the JSON names of the fields of a struct.
func members(st *ast.StructType) []string {
	var names []string
	for _, f := range st.Fields.List {
		if f.Tag == nil {
			continue
		}
		tag, _ := strconv.Unquote(f.Tag.Value)
		if name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ","); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
