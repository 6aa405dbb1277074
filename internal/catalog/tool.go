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
	// Notes tell what the exposed definition lacks of Def, nil as a rule.
	Notes []Note

	// exposed is with the tool's own URIs and with exposed ones, legacy the same for
	// callers of the initialize era. What is no different is nil but for the first.
	exposed, exposedURIs *definition
	legacy, legacyURIs   *definition
}

// definition is a definition around its key: a name, a URI or a URI template.
type definition struct{ head, tail []byte }

func (d *definition) append(dst []byte, name string) []byte {
	dst = append(dst, d.head...)
	dst = mcp.AppendString(dst, name)
	return append(dst, d.tail...)
}

// AppendDef appends the definition under an exposed name: Def with only its
// name replaced, without execution (tasks of the 2025-11-25 protocol are not
// offered), and without what Notes tells of. With proxied, the URI of the resource
// that shows the tool's results (MCP Apps) is an exposed one, too.
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
	return t.exposed
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
	def, err := p.read(def, p.toolMember)
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
			t.exposedURIs, t.legacyURIs = p.variants(def)
		}
	}
	return *t, nil
}

// variants makes the exposed definition of a tool, and the one for callers of the
// initialize era if that is another.
func (p *definitionParser) variants(def jsontext.Value) (modern, legacy *definition) {
	modern = new(p.definition(def))
	if p.tool.OutputSchema != nil && mcp.FieldString(p.tool.OutputSchema, "type") != "object" {
		was := p.members[p.output].drop
		p.members[p.output].drop = true
		legacy = new(p.definition(def))
		p.members[p.output].drop = was
	}
	return modern, legacy
}

// read goes through the members of a definition, and hands each to visit as the
// last of p.members. Duplicate names at any depth, and text that is not Unicode, are refused:
// others down the line would each make something else of it. It returns the
// definition as it is kept.
func (p *definitionParser) read(def jsontext.Value, visit func(name string, v jsontext.Value) error) (jsontext.Value, error) {
	p.members, p.notes, p.key, p.replaced = p.members[:0], nil, -1, nil
	if bytes.ContainsAny(def, "\r\n") { // legal between tokens only
		def = bytes.Clone(def)
		if err := def.Compact(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
			return def, invalid("the definition is no valid JSON: %s", syntaxProblem(err))
		}
	}
	return def, p.eachMember(def, visit)
}

func (p *definitionParser) eachMember(def jsontext.Value, visit func(name string, v jsontext.Value) error) error {
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
		p.members = append(p.members, member{start: start, value: end - len(v), end: end})
		if err := visit(name, def[end-len(v):end:end]); err != nil && firstProblem == nil {
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

// dropNull leaves out the last member, which is null and optional.
func (p *definitionParser) dropNull(name string) {
	p.members[len(p.members)-1].drop = true
	p.notes = append(p.notes, Note{ReasonNullMember, name + " is null and is removed; an optional member is left out"})
}

// toolMember checks one member of a tool as the protocol's schema demands, since clients that
// check it refuse a whole list for one wrong member. Unknown members pass.
func (p *definitionParser) toolMember(name string, v jsontext.Value) error {
	at := len(p.members) - 1
	want, optional := jsontext.Kind(0), true
	switch name {
	case "name":
		p.key = at
		want, optional = '"', false
	case "title", "description":
		want = '"'
	case "inputSchema":
		want, optional = '{', false
	case "outputSchema", "annotations", "_meta", "execution":
		want = '{'
	case "icons":
		want = '['
	}
	switch k := v.Kind(); {
	case want == 0:
		return nil
	case k == 'n' && optional:
		p.dropNull(name)
		return nil
	case k != want:
		return invalid("%s is %s, it must be %s", name, kindName(k), kindName(want))
	}
	switch name {
	case "name":
		p.tool.Name = mcp.Text(v)
	case "inputSchema":
		p.schema, p.tool.InputSchema = at, v
		return checkInputSchema(v)
	case "outputSchema":
		p.output, p.tool.OutputSchema = at, v
	case "annotations":
		return p.annotations(at, v)
	case "_meta":
		p.meta = at
	case "execution":
		p.members[at].drop = true
		if mcp.FieldString(v, "taskSupport") == "required" {
			return &fault{ReasonTaskRequired, `execution.taskSupport is "required", and tasks of the 2025-11-25 protocol are not offered`}
		}
	}
	return nil
}

func (p *definitionParser) annotations(at int, v jsontext.Value) error {
	var nulls []mcp.Change
	err := mcp.EachField(v, func(name string, v jsontext.Value) error {
		var into **bool
		switch name {
		case "readOnlyHint":
			into = &p.tool.Annotations.ReadOnly
		case "destructiveHint":
			into = &p.tool.Annotations.Destructive
		case "idempotentHint":
			into = &p.tool.Annotations.Idempotent
		case "openWorldHint":
			into = &p.tool.Annotations.OpenWorld
		case "title":
		default:
			return nil
		}
		switch k := v.Kind(); {
		case k == 'n':
			nulls = append(nulls, mcp.Change{Name: name})
			p.notes = append(p.notes, Note{ReasonNullMember, "annotations." + name + " is null and is removed; an optional member is left out"})
		case into != nil && k != 't' && k != 'f':
			return invalid("annotations.%s is %s, it must be true or false", name, kindName(k))
		case into == nil && k != '"':
			return invalid("annotations.%s is %s, it must be a string", name, kindName(k))
		case into != nil:
			*into = new(k == 't')
		}
		return nil
	})
	if err != nil || nulls == nil {
		return err
	}
	without, err := mcp.Edit(v, nulls...)
	if err != nil {
		return err
	}
	p.replace(at, without)
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
