package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/jsonschema-go/jsonschema"
	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"toolhub/internal/catalog"
	"toolhub/internal/policy"
)

var update = flag.Bool("update", false, "write schema/hub.schema.json")

const schemaFile = "../../schema/hub.schema.json"

// generator makes the JSON Schema of a file out of the types and of their
// comments, so that neither is written twice.
type generator struct {
	// comments has those of the fields, as Type.Field.
	comments map[string]string
	// words are the names of fields in files, by those in the code.
	words map[string]string
}

func newGenerator(t *testing.T) *generator {
	g := &generator{comments: map[string]string{}, words: map[string]string{}}
	for _, t := range []reflect.Type{reflect.TypeFor[File](), reflect.TypeFor[Server](), reflect.TypeFor[NATS](), reflect.TypeFor[Backoff](), reflect.TypeFor[Auth]()} {
		for _, f := range fieldsOf(t) {
			g.words[t.FieldByIndex(f.index).Name] = f.name
		}
	}
	for _, dir := range []string{".", "../catalog"} {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			g.read(file)
		}
	}
	return g
}

func (g *generator) read(file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		structure, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		for _, field := range structure.Fields.List {
			for _, name := range field.Names {
				g.comments[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
			}
		}
		return true
	})
}

// scalar is what d.text takes: 8080 and true are texts where a text is wanted.
func scalar() *jsonschema.Schema {
	return &jsonschema.Schema{Types: []string{"string", "number", "boolean"}}
}

func enum[T ~string](values ...T) *jsonschema.Schema {
	s := &jsonschema.Schema{}
	for _, v := range values {
		s.Enum = append(s.Enum, string(v))
	}
	return s
}

func matching(pattern string) *jsonschema.Schema {
	return &jsonschema.Schema{Type: "string", Pattern: pattern}
}

func ref(name string) *jsonschema.Schema { return &jsonschema.Schema{Ref: "#/$defs/" + name} }

const (
	durationPattern = `^([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$`
	sizePattern     = `^ *[0-9]+ *([KMG]i?B|kB|B)? *$`
	idPattern       = `^[a-z](_?[a-z0-9])*$`
	addressPattern  = `^.*:[0-9]{1,5}$`
	headerPattern   = "^[!#$%&'*+.^_`|~0-9A-Za-z-]+$" // a token of RFC 9110, 5.6.2
)

// of is the schema of a type.
func (g *generator) of(t reflect.Type) *jsonschema.Schema {
	switch t {
	case reflect.TypeFor[Duration]():
		return matching(durationPattern)
	case reflect.TypeFor[Size]():
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{matching(sizePattern), {Type: "integer", Minimum: new(1.0)}}}
	case reflect.TypeFor[Ref]():
		return scalar()
	case reflect.TypeFor[Policy](), reflect.TypeFor[*Policy]():
		return ref("policy")
	case reflect.TypeFor[policy.Spec]():
		return ref("rules")
	case reflect.TypeFor[policy.Rule]():
		return ref("rule")
	case reflect.TypeFor[policy.Effect]():
		return enum(policy.Deny, policy.Ask, policy.Allow)
	case reflect.TypeFor[catalog.Naming]():
		return enum(catalog.NamingHub, catalog.NamingMCP)
	case reflect.TypeFor[Audit]():
		return enum(AuditNone, AuditBodies)
	case reflect.TypeFor[Era]():
		return enum(EraAuto, EraLegacy, EraModern, EraMirror)
	case reflect.TypeFor[catalog.URIs]():
		return enum(catalog.URIsProxy, catalog.URIsOriginal)
	case reflect.TypeFor[jsontext.Value]():
		return &jsonschema.Schema{}
	case reflect.TypeFor[[]Server]():
		return &jsonschema.Schema{Types: []string{"object", "null"}, PropertyNames: &jsonschema.Schema{Pattern: idPattern, MaxLength: new(32)}, AdditionalProperties: ref("server")}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return g.of(t.Elem())
	case reflect.Bool:
		return &jsonschema.Schema{Type: "boolean"}
	case reflect.Int:
		return &jsonschema.Schema{Type: "integer", Minimum: new(1.0)}
	case reflect.String:
		return scalar()
	case reflect.Slice:
		return &jsonschema.Schema{Types: []string{"array", "null"}, Items: g.of(t.Elem())}
	case reflect.Map:
		return &jsonschema.Schema{Types: []string{"object", "null"}, AdditionalProperties: g.of(t.Elem())}
	case reflect.Struct:
		return g.structure(t)
	}
	panic("no schema for " + t.String())
}

// structure is the schema of the fields that a file can set.
func (g *generator) structure(t reflect.Type) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{}, AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}}}
	for _, f := range fieldsOf(t) {
		at := t.FieldByIndex(f.index)
		owner := t
		if len(f.index) > 1 {
			owner = t.FieldByIndex(f.index[:len(f.index)-1]).Type
		}
		p := g.of(at.Type)
		p.Description = g.description(owner.Name(), at.Name, f.name)
		s.Properties[f.name] = p
		s.PropertyOrder = append(s.PropertyOrder, f.name)
	}
	return s
}

var goName = regexp.MustCompile(`\b[A-Z]\w+\b`)

// description is the comment of a field, with names as files have them.
func (g *generator) description(owner, field, name string) string {
	first, rest, _ := strings.Cut(g.comments[owner+"."+field], " ")
	if first != field {
		return g.comments[owner+"."+field]
	}
	return name + " " + goName.ReplaceAllStringFunc(rest, func(word string) string {
		if in, ok := g.words[word]; ok && word != "NATS" {
			return in
		}
		return word
	})
}

// file is the schema of a whole file.
func (g *generator) file(t *testing.T) []byte {
	s := g.structure(reflect.TypeFor[File]())
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.Title = "Toolhub configuration"
	s.Description = "Generated from the code of Toolhub. hub config check FILE checks more than a schema can."
	s.Required = []string{"policy"}
	s.PatternProperties = map[string]*jsonschema.Schema{"^x-": {Description: "A place for anchors."}}
	for name, pattern := range map[string]string{
		"hub": hubName.String(), "listen": addressPattern, "prefix": `^[A-Za-z0-9_.-]*$`,
	} {
		s.Properties[name].Types, s.Properties[name].Type, s.Properties[name].Pattern = nil, "string", pattern
	}
	s.Properties["policies"].PropertyNames = &jsonschema.Schema{Pattern: policyName.String(), Not: enum(AllowAll)}
	nats := s.Properties["nats"]
	nats.Properties["url"].Pattern = `^ *(nats|tls|wss?)://`
	nats.Properties["listen"].Pattern = addressPattern
	nats.DependentRequired = map[string][]string{"nkey": {"url"}, "creds": {"url"}}
	nats.Not = &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Required: []string{"nkey", "creds"}}, {Required: []string{"url", "listen"}}}}
	for name, value := range fieldValues(defaults()) {
		if p := s.Properties[name]; p.Ref == "" {
			p.Default = value
		}
	}

	server := g.structure(reflect.TypeFor[Server]())
	server.AnyOf = []*jsonschema.Schema{{Required: []string{"command"}}, {Required: []string{"url"}}, {Required: []string{"builtin"}}}
	server.DependentRequired = map[string][]string{
		"args": {"command"}, "env": {"command"}, "cwd": {"command"}, "replicas": {"command"},
		"headers": {"url"}, "auth": {"url"}, "insecure_skip_tls_verify": {"url"}, "builtin_config": {"builtin"},
	}
	server.DependentSchemas = map[string]*jsonschema.Schema{
		"builtin": {Not: &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Required: []string{"command"}}, {Required: []string{"url"}}}}},
	}
	for _, name := range []string{"command", "builtin"} {
		server.Properties[name].MinLength = new(1)
	}
	server.Properties["url"] = &jsonschema.Schema{Type: "string", Pattern: `^https?://[^/]`, Description: server.Properties["url"].Description}
	server.Properties["prefix"].Pattern = `^[A-Za-z0-9_.-]*$`
	server.Properties["replicas"].Maximum = new(64.0)
	server.Properties["auth"].Required = []string{"bearer"}
	server.Properties["headers"].PropertyNames = matching(headerPattern)
	server.Properties["env"].PropertyNames = matching(`^[^=]+$`)

	rules := g.structure(reflect.TypeFor[specFile]())
	rule := g.structure(reflect.TypeFor[ruleFile]())
	rule.Required = []string{"tool"}
	pattern := &jsonschema.Schema{Type: "string", MinLength: new(1), Description: "A glob over server/tool, such as github/get_*."}
	s.Defs = map[string]*jsonschema.Schema{
		"policy": {
			Description: "allow_all, the name of one of policies, or rules in place.",
			AnyOf:       []*jsonschema.Schema{matching(policyName.String()), rules},
		},
		"rules":  {Description: "allow_all, or rules.", AnyOf: []*jsonschema.Schema{enum(AllowAll), rules.CloneSchemas()}},
		"rule":   {Description: "A pattern, or a pattern with a condition.", AnyOf: []*jsonschema.Schema{pattern, rule}},
		"server": server,
	}
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, data, "", "  "); err != nil {
		t.Fatal(err)
	}
	out.WriteByte('\n')
	return out.Bytes()
}

// fieldValues are the fields of a struct that are not zero, as a file has them.
func fieldValues(v any) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for _, f := range fieldsOf(reflect.TypeOf(v)) {
		field := reflect.ValueOf(v).FieldByIndex(f.index)
		if field.IsZero() || reflect.Indirect(field).IsZero() || reflect.Indirect(field).Kind() == reflect.Struct {
			continue
		}
		data, err := json.Marshal(field.Interface())
		if err != nil {
			panic(err)
		}
		out[f.name] = data
	}
	return out
}

func TestSchemaIsThatOfTheCode(t *testing.T) { // C1; not parallel: the others read what it writes
	want := newGenerator(t).file(t)
	if *update {
		if err := os.WriteFile(schemaFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("schema/hub.schema.json is not that of the code; make schema generates it")
	}
}

// published is the schema as editors get it.
func published(t *testing.T) *validator.Schema {
	t.Helper()
	data, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := validator.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	c := validator.NewCompiler()
	if err := c.AddResource("hub.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("hub.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// Every field has its place in the schema, and a description.
func TestSchemaHasEveryField(t *testing.T) {
	t.Parallel()
	schema := published(t)
	check := func(what string, s *validator.Schema, of reflect.Type) {
		for _, f := range fieldsOf(of) {
			p := s.Properties[f.name]
			if p == nil {
				t.Errorf("%s has no %s", what, f.name)
				continue
			}
			if p.Description == "" {
				t.Errorf("%s of %s is not described; write a comment at the field", f.name, what)
			}
		}
		if n := len(fieldsOf(of)); len(s.Properties) != n {
			t.Errorf("%s has %d properties of %d fields", what, len(s.Properties), n)
		}
	}
	check("the file", schema, reflect.TypeFor[File]())
	server := schema.Properties["servers"].AdditionalProperties.(*validator.Schema).Ref
	check("a server", server, reflect.TypeFor[Server]())
	check("nats", schema.Properties["nats"], reflect.TypeFor[NATS]())
	check("restart_backoff", schema.Properties["restart_backoff"], reflect.TypeFor[Backoff]())
	check("auth", server.Properties["auth"], reflect.TypeFor[Auth]())
	check("tools", schema.Properties["tools"], reflect.TypeFor[catalog.Filter]())
}

func TestSchemaAcceptsWhatLoads(t *testing.T) {
	t.Parallel()
	schema := published(t)
	files := map[string]string{"full": full, "least": ok, "a builtin": server("builtin: clock"), "no servers": lines("servers:")}
	examples, err := filepath.Glob("../../examples/*/hub.yaml")
	if err != nil || len(examples) < 2 {
		t.Fatalf("%v %v", examples, err)
	}
	for _, name := range examples {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(data)
	}
	for name, text := range files {
		if _, err := Parse(name, []byte(text)); err != nil {
			t.Error(err)
		}
		if err := schema.Validate(instance(t, text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSchemaRejectsBadFiles(t *testing.T) {
	t.Parallel()
	schema := published(t)
	n := 0
	for _, k := range badFiles {
		if !k.schema {
			continue
		}
		n++
		if err := schema.Validate(instance(t, k.text)); err == nil {
			t.Errorf("%s: accepted\n%s", k.name, k.text)
		}
	}
	if n < 60 {
		t.Errorf("%d files only", n)
	}
}

// instance is a YAML text as the values of JSON.
func instance(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return v
}

// The generator refuses what it does not know instead of leaving it out.
func TestGeneratorKnowsItsTypes(t *testing.T) {
	t.Parallel()
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, "no schema for") {
			t.Error(got)
		}
	}()
	(&generator{}).of(reflect.TypeFor[chan int]())
}

func TestPatternsOfTheSchemaAreThoseOfTheCode(t *testing.T) {
	t.Parallel()
	schema := published(t)
	timeout, size := schema.Properties["timeout"], schema.Properties["max_message_bytes"]
	ids := schema.Properties["servers"].PropertyNames
	for _, text := range []string{"30s", "1m30s", "1.5h", "5", "1d", "-1s", "", "s", "10 s", "1.s", "µs", "3µs"} {
		var d Duration
		if right := d.UnmarshalText([]byte(text)) == nil && d > 0; right != (timeout.Validate(text) == nil) {
			t.Errorf("duration %q: right is %v", text, right)
		}
	}
	for _, text := range []string{"8MiB", "8 MiB", "64KB", "64kB", "64kiB", "5", "1.5MiB", "-1", "", "B", "8mb", "1TB"} {
		var s Size
		if right := s.UnmarshalText([]byte(text)) == nil && s > 0; right != (size.Validate(text) == nil) {
			t.Errorf("size %q: right is %v", text, right)
		}
	}
	for _, id := range []string{"a", "a1", "a_b", "a__b", "a_", "_a", "1a", "A", "a-b", "", strings.Repeat("a", 32), strings.Repeat("a", 33), "a_1_2"} {
		if right := catalog.ValidateServerID(id) == nil; right != (ids.Validate(id) == nil) {
			t.Errorf("server id %q: right is %v", id, right)
		}
	}
}
