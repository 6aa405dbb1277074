package catalog

import (
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// memberRule is what the protocol's schema says of one member of an object.
type memberRule struct {
	name string
	// kind is the JSON kind that it has, 't' for both truth values.
	kind jsontext.Kind
	// required members cannot be absent or null.
	required bool
}

// memberRules are the rules of an object. Members without one pass.
type memberRules []memberRule

// check checks one member. One that is optional and null, which the schema does
// not allow, is to be left out.
func (r memberRules) check(in, name string, v jsontext.Value) (null bool, err error) {
	for i := range r {
		rule := &r[i]
		if rule.name != name {
			continue
		}
		switch k := v.Kind(); {
		case k == rule.kind || k == 'f' && rule.kind == 't':
			return false, nil
		case k == 'n' && !rule.required:
			return true, nil
		case rule.kind == 't':
			return false, invalid("%s%s is %s, it must be true or false", in, name, kindName(k))
		default:
			return false, invalid("%s%s is %s, it must be %s", in, name, kindName(k), kindName(rule.kind))
		}
	}
	return false, nil
}

// missing is the error for the first required member that is not in seen.
func (r memberRules) missing(what string, seen func(name string) bool) error {
	for i := range r {
		if r[i].required && !seen(r[i].name) {
			return invalid("%s has no %s, it must have %s there", what, r[i].name, kindName(r[i].kind))
		}
	}
	return nil
}

// object checks an object inside the definition, hands its members that have a
// value to visit, and returns it without those that are to be left out. in says
// where it is, with a dot.
func (p *definitionParser) object(in string, v jsontext.Value, rules memberRules, visit func(name string, v jsontext.Value) error) (jsontext.Value, error) {
	var nulls []mcp.Change
	err := mcp.EachField(v, func(name string, v jsontext.Value) error {
		null, err := rules.check(in, name, v)
		if null {
			nulls = append(nulls, mcp.Change{Name: name})
			p.noteNull(in + name)
		}
		if null || err != nil || visit == nil {
			return err
		}
		return visit(name, v)
	})
	if err != nil || nulls == nil {
		return v, err
	}
	return mcp.Edit(v, nulls...)
}

func (p *definitionParser) noteNull(name string) {
	p.notes = append(p.notes, Note{ReasonNullMember, name + " is null and is removed; an optional member is left out"})
}
