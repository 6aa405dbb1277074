package catalog

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// Tool is one accepted tool of a server.
type Tool struct {
	// Name is the server's own name of the tool, never the exposed one.
	Name string
	// Def is the definition as the server sent it (only line breaks between
	// tokens are gone, since they would end a message on some transports).
	Def jsontext.Value
	// Annotations are the hints as the server gave them. Whether to believe
	// them is decided by [Annotations.Believe].
	Annotations Annotations
	// InputSchema is Def's member of that name.
	InputSchema jsontext.Value
	// OutputSchema is Def's member of that name, nil when absent.
	OutputSchema jsontext.Value
	// Headers are the x-mcp-header annotations of the exposed definition.
	Headers []mcp.ParamHeader
	// Digest is a hex digest of Def. It changes with every change of it.
	Digest string
	// TaskRequired says that it can only be called as a task of MCP 2025-11-25.
	TaskRequired bool
	// Notes tell what the exposed definition lacks of Def, nil as a rule.
	Notes []Note

	// exposed is with the tool's own URIs, exposedURIs with exposed ones; legacy is the
	// same for callers of the initialize era. What is no different is nil.
	exposed                         definition
	exposedURIs, legacy, legacyURIs *definition
}

// definition is a definition around its key: a name, a URI or a URI template.
type definition struct{ head, tail []byte }

func (d *definition) append(dst []byte, name string) []byte {
	dst = append(dst, d.head...)
	dst = mcp.AppendString(dst, name)
	return append(dst, d.tail...)
}

// AppendDef appends the definition under an exposed name: Def with only its name
// replaced, without execution (workers make the tasks of 2025-11-25 by
// themselves), and without what Notes tells of. With proxied, the URI of the
// resource that shows the tool's results (MCP Apps) is an exposed one, too.
func (t *Tool) AppendDef(dst []byte, exposed string, proxied bool) []byte {
	return t.definition(false, proxied).append(dst, exposed)
}

// AppendLegacyDef is AppendDef for callers of the initialize era, which allows
// no outputSchema but that of an object.
func (t *Tool) AppendLegacyDef(dst []byte, exposed string, proxied bool) []byte {
	return t.definition(true, proxied).append(dst, exposed)
}

func (t *Tool) definition(legacy, proxied bool) *definition {
	switch {
	case legacy && proxied && t.legacyURIs != nil:
		return t.legacyURIs
	case legacy && t.legacy != nil:
		return t.legacy
	case proxied && t.exposedURIs != nil:
		return t.exposedURIs
	}
	return &t.exposed
}

// Annotations are the hints of a tool about its behaviour (server/tools, tool
// annotations); nil where the server says nothing.
type Annotations struct {
	ReadOnly    *bool `json:"readOnlyHint,omitempty"`
	Destructive *bool `json:"destructiveHint,omitempty"`
	Idempotent  *bool `json:"idempotentHint,omitempty"`
	OpenWorld   *bool `json:"openWorldHint,omitempty"`
}

// Hints are annotations with nothing left open.
type Hints struct {
	ReadOnly    bool `json:"read_only"`
	Destructive bool `json:"destructive"`
	Idempotent  bool `json:"idempotent"`
	OpenWorld   bool `json:"open_world"`
}

// Believe is what may be assumed of a tool (P5). Of a server that the operator
// does not trust it is the worst case, whatever the server says. Of a trusted
// one it is the server's word, and the protocol's default where it is silent:
// not read-only, destructive, not idempotent, open world. Destructive and
// idempotent mean something only for a tool that is not read-only, so silence
// about them means not destructive and idempotent for one that is.
func (a Annotations) Believe(trusted bool) Hints {
	if !trusted {
		return Hints{Destructive: true, OpenWorld: true}
	}
	or := func(hint *bool, otherwise bool) bool {
		if hint != nil {
			return *hint
		}
		return otherwise
	}
	readOnly := or(a.ReadOnly, false)
	return Hints{
		ReadOnly:    readOnly,
		Destructive: or(a.Destructive, !readOnly),
		Idempotent:  or(a.Idempotent, readOnly),
		OpenWorld:   or(a.OpenWorld, true),
	}
}

// member is one member of a definition by its bytes there.
type member struct {
	start, value, end int // of the quoted name, of the value, behind the value
	drop              bool
}

// definitionParser parses the definitions of one server, one after the other.
type definitionParser struct {
	server  string
	mirrors bool // calls mirror arguments into headers
	tasks   bool // tools can be called as tasks of 2025-11-25
	dec     *jsontext.Decoder
	buf     bytes.Buffer
	members []member
	notes   []Note

	// key is the index in members of what exposing replaces, -1 while there is
	// none; replaced has new values of members by index.
	key      int
	replaced map[int]jsontext.Value

	tool                 Tool
	schema, output, meta int // indices of a tool's members, -1 for none
}

// fault is why a definition is rejected.
type fault struct {
	reason Reason
	detail string
}

func (f *fault) Error() string { return f.detail }

func invalid(format string, args ...any) error {
	return &fault{ReasonInvalidDefinition, fmt.Sprintf(format, args...)}
}

// parse checks the definition of a tool. The tool's name is set even with an
// error, if there is one.
func (p *definitionParser) parse(def jsontext.Value) (Tool, error) {
	p.tool, p.schema, p.output, p.meta = Tool{}, -1, -1, -1
	def, err := p.read(def, toolRules, p.toolMember)
	t := &p.tool
	t.Def = def
	if err != nil {
		return *t, err
	}
	if p.key < 0 {
		return *t, invalid("the definition has no name; a tool needs a string there")
	}
	if err := ValidateToolName(t.Name); err != nil {
		return *t, &fault{ReasonInvalidName, err.Error()}
	}
	if p.schema < 0 {
		return *t, invalid(`there is no inputSchema; a tool without arguments has {"type":"object"}`)
	}
	headers, err := mcp.ParamHeaders(t.InputSchema)
	switch {
	case err == nil:
	case p.mirrors:
		return *t, &fault{ReasonInvalidHeader, err.Error()}
	default:
		p.notes = append(p.notes, Note{ReasonInvalidHeader, err.Error() + "; all of the tool's x-mcp-header annotations are removed"})
		p.replace(p.schema, withoutHeaders(t.InputSchema))
	}
	t.Headers, t.Notes = headers, p.notes
	sum := sha256.Sum256(def)
	t.Digest = hex.EncodeToString(sum[:])
	t.exposed, t.legacy = p.variants(def)
	if p.meta >= 0 {
		if meta := exposeUI(def[p.members[p.meta].value:p.members[p.meta].end], p.server); meta != nil {
			p.replace(p.meta, meta)
			var exposed definition
			exposed, t.legacyURIs = p.variants(def)
			t.exposedURIs = &exposed
		}
	}
	return *t, nil
}

// variants makes the exposed definition of a tool, and the one for callers of the
// initialize era if that is another.
func (p *definitionParser) variants(def jsontext.Value) (modern definition, legacy *definition) {
	modern = p.definition(def)
	if p.tool.OutputSchema != nil && mcp.FieldString(p.tool.OutputSchema, "type") != "object" {
		was := p.members[p.output].drop
		p.members[p.output].drop = true
		legacy = new(p.definition(def))
		p.members[p.output].drop = was
	}
	return modern, legacy
}

// read goes through the members of a definition, checks each and hands it to visit
// with its index in p.members. Duplicate names at any depth, and text that is not
// Unicode, are refused: others down the line would each make something else of
// it. It returns the definition as it is kept.
func (p *definitionParser) read(def jsontext.Value, rules memberRules, visit func(at int, name string, v jsontext.Value) error) (jsontext.Value, error) {
	p.members, p.notes, p.key, p.replaced = p.members[:0], nil, -1, nil
	if bytes.ContainsAny(def, "\r\n") { // legal between tokens only
		def = bytes.Clone(def)
		if err := def.Compact(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
			return def, invalid("the definition is no valid JSON: %s", syntaxProblem(err))
		}
	}
	return def, p.eachMember(def, rules, visit)
}

func (p *definitionParser) eachMember(def jsontext.Value, rules memberRules, visit func(at int, name string, v jsontext.Value) error) error {
	p.buf = *bytes.NewBuffer(def)
	if p.dec == nil {
		p.dec = jsontext.NewDecoder(&p.buf)
	} else {
		p.dec.Reset(&p.buf)
	}
	if k := def.Kind(); k != '{' {
		return invalid("the definition is %s, not an object", kindName(k))
	}
	if _, err := p.dec.ReadToken(); err != nil {
		return invalid("the definition is no valid JSON: %s", syntaxProblem(err))
	}
	var firstProblem error
	for p.dec.PeekKind() != '}' {
		raw, err := p.dec.ReadValue()
		if err != nil {
			return invalid("the definition is no valid JSON: %s", syntaxProblem(err))
		}
		name, start := mcp.Text(raw), int(p.dec.InputOffset())-len(raw)
		v, err := p.dec.ReadValue()
		if err != nil {
			return invalid("member %q of the definition is no valid JSON: %s", name, syntaxProblem(err))
		}
		end := int(p.dec.InputOffset())
		value := def[end-len(v) : end : end]
		null, err := rules.check("", name, value)
		if null {
			p.noteNull(name)
		}
		p.members = append(p.members, member{start: start, value: end - len(v), end: end, drop: null})
		if !null && err == nil {
			err = visit(len(p.members)-1, name, value)
		}
		if err != nil && firstProblem == nil {
			firstProblem = err // and go on, for the name
		}
	}
	if _, err := p.dec.ReadToken(); err != nil {
		return invalid("the definition is no valid JSON: %s", syntaxProblem(err))
	}
	if len(bytes.TrimLeft(def[p.dec.InputOffset():], " \t")) > 0 {
		return invalid("there is data behind the definition")
	}
	return firstProblem
}

// toolRules are what the protocol's schema says of a tool. They are checked since clients that
// check them refuse a whole list for one wrong member.
var toolRules = memberRules{
	{"name", '"', true},
	{"inputSchema", '{', true},
	{"title", '"', false},
	{"description", '"', false},
	{"outputSchema", '{', false},
	{"annotations", '{', false},
	{"_meta", '{', false},
	{"execution", '{', false},
	{"icons", '[', false},
}

var toolAnnotationRules = memberRules{
	{"title", '"', false},
	{"readOnlyHint", 't', false},
	{"destructiveHint", 't', false},
	{"idempotentHint", 't', false},
	{"openWorldHint", 't', false},
}

// toolMember takes one member of a tool.
func (p *definitionParser) toolMember(at int, name string, v jsontext.Value) error {
	switch name {
	case "name":
		p.key, p.tool.Name = at, mcp.Text(v)
	case "inputSchema":
		p.schema, p.tool.InputSchema = at, v
		return checkInputSchema(v)
	case "outputSchema":
		p.output, p.tool.OutputSchema = at, v
	case "annotations":
		left, err := p.object("annotations.", v, toolAnnotationRules, p.toolAnnotation)
		p.shortened(at, v, left)
		return err
	case "_meta":
		p.meta = at
	case "execution":
		p.members[at].drop = true
		if mcp.FieldString(v, "taskSupport") == "required" {
			if !p.tasks {
				return &fault{ReasonTaskRequired, `execution.taskSupport is "required", and the server does not declare the tasks of MCP 2025-11-25`}
			}
			p.tool.TaskRequired = true
		}
	}
	return nil
}

func (p *definitionParser) toolAnnotation(name string, v jsontext.Value) error {
	is := v.Kind() == 't'
	switch a := &p.tool.Annotations; name {
	case "readOnlyHint":
		a.ReadOnly = &is
	case "destructiveHint":
		a.Destructive = &is
	case "idempotentHint":
		a.Idempotent = &is
	case "openWorldHint":
		a.OpenWorld = &is
	}
	return nil
}

func checkInputSchema(schema jsontext.Value) error {
	var typ jsontext.Value
	err := mcp.EachField(schema, func(keyword string, v jsontext.Value) error {
		switch k := v.Kind(); keyword {
		case "type":
			typ = v
		case "properties":
			if k != '{' {
				return invalid("inputSchema.properties is %s, it must be an object", kindName(k))
			}
		case "required":
			if k != '[' {
				return invalid("inputSchema.required is %s, it must be an array", kindName(k))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if typ == nil {
		return invalid(`inputSchema has no type, it must be "object"`)
	}
	if mcp.Text(typ) != "object" {
		return invalid(`inputSchema.type is %.40s, it must be "object"`, typ)
	}
	return nil
}

// shortened replaces a member by what is left of it, if that is less.
func (p *definitionParser) shortened(at int, was, left jsontext.Value) {
	if len(left) != len(was) {
		p.replace(at, left)
	}
}

func (p *definitionParser) replace(at int, v jsontext.Value) {
	if p.replaced == nil {
		p.replaced = make(map[int]jsontext.Value, 1)
	}
	p.replaced[at] = v
}

// definition is what is exposed of def. As a rule nothing but the key changes,
// and it aliases def.
func (p *definitionParser) definition(def jsontext.Value) definition {
	intact := len(p.replaced) == 0
	for i := range p.members {
		intact = intact && !p.members[i].drop
	}
	if key := p.members[p.key]; intact {
		return definition{head: def[:key.value:key.value], tail: def[key.end:]}
	}
	out := append(make([]byte, 0, len(def)), '{')
	at := 0
	for i, m := range p.members {
		if m.drop {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, def[m.start:m.value]...)
		if i == p.key {
			at = len(out)
		} else if v, ok := p.replaced[i]; ok {
			out = append(out, v...)
		} else {
			out = append(out, def[m.value:m.end]...)
		}
	}
	out = append(out, '}')
	return definition{head: out[:at:at], tail: out[at:]}
}

// withoutHeaders is the schema without x-mcp-header annotations: the keyword in
// schemas only, not properties that happen to have its name.
func withoutHeaders(schema jsontext.Value) jsontext.Value {
	const (
		one = iota + 1
		list
		byName
	)
	var edit func(v jsontext.Value, kind int) jsontext.Value
	edit = func(v jsontext.Value, kind int) jsontext.Value {
		if kind == list && v.Kind() == '[' {
			elements, err := elements(v)
			if err != nil {
				return v
			}
			out := []byte{'['}
			for i, e := range elements {
				if i > 0 {
					out = append(out, ',')
				}
				out = append(out, edit(e, one)...)
			}
			return append(out, ']')
		}
		if v.Kind() != '{' {
			return v
		}
		var changes []mcp.Change
		change := func(name string, was jsontext.Value, kind int) {
			if now := edit(was, kind); !bytes.Equal(was, now) {
				changes = append(changes, mcp.Change{Name: name, Value: now})
			}
		}
		_ = mcp.EachField(v, func(name string, v jsontext.Value) error { // v was parsed before
			if kind == byName {
				change(name, v, one)
				return nil
			}
			switch name {
			case "x-mcp-header":
				changes = append(changes, mcp.Change{Name: name})
			case "properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions":
				change(name, v, byName)
			case "items", "prefixItems", "contains", "additionalProperties", "additionalItems", "propertyNames",
				"unevaluatedItems", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "contentSchema":
				change(name, v, list)
			}
			return nil
		})
		if changes == nil {
			return v
		}
		out, err := mcp.Edit(v, changes...)
		if err != nil {
			return v
		}
		return out
	}
	return edit(schema, one)
}

// elements are the elements of a JSON array; they alias it.
func elements(array jsontext.Value) ([]jsontext.Value, error) {
	dec := jsontext.NewDecoder(bytes.NewBuffer(array), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if k := dec.PeekKind(); k != '[' {
		return nil, fmt.Errorf("%s where an array is wanted", kindName(k))
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	var out []jsontext.Value
	for dec.PeekKind() != ']' {
		v, err := dec.ReadValue()
		if err != nil {
			return nil, err
		}
		end := int(dec.InputOffset())
		out = append(out, array[end-len(v):end:end])
	}
	_, err := dec.ReadToken()
	return out, err
}

func syntaxProblem(err error) string {
	if e, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		if e.JSONPointer != "" {
			return fmt.Sprintf("%v at byte %d, %s", e.Err, e.ByteOffset, e.JSONPointer)
		}
		return fmt.Sprintf("%v at byte %d", e.Err, e.ByteOffset)
	}
	return "it ends too early"
}

func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "no JSON"
}
