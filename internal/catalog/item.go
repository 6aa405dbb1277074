package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// Kind is one of the lists that a server has.
type Kind string

// The kinds, by what is in the list.
const (
	KindTool     Kind = "tool"
	KindResource Kind = "resource"
	KindTemplate Kind = "template"
	KindPrompt   Kind = "prompt"
)

// Kinds lists the kinds.
func Kinds() []Kind { return []Kind{KindTool, KindResource, KindTemplate, KindPrompt} }

// Listing is how MCP lists the things of a kind.
type Listing struct {
	// Method asks for the list, and Member of its result has the definitions.
	Method, Member string
	// Capability is what a server declares that has such a list.
	Capability string
	// Key is the member by which a definition is known.
	Key string
}

// Listing is how MCP lists the things of the kind.
func (k Kind) Listing() Listing {
	switch k {
	case KindTool:
		return Listing{mcp.MethodToolsList, "tools", "tools", "name"}
	case KindResource:
		return Listing{mcp.MethodResourcesList, "resources", "resources", "uri"}
	case KindTemplate:
		return Listing{mcp.MethodTemplatesList, "resourceTemplates", "resources", "uriTemplate"}
	case KindPrompt:
		return Listing{mcp.MethodPromptsList, "prompts", "prompts", "name"}
	}
	return Listing{}
}

// ListedBy is the kind whose list a method asks for, false if it asks for none.
func ListedBy(method string) (Kind, bool) {
	for _, k := range Kinds() {
		if k.Listing().Method == method {
			return k, true
		}
	}
	return "", false
}

// The places of the kinds in that order.
const (
	toolList = iota
	resourceList
	templateList
	promptList
	kinds
)

// place is the place of the kind in [Kinds], -1 for none.
func (k Kind) place() int {
	switch k {
	case KindTool:
		return toolList
	case KindResource:
		return resourceList
	case KindTemplate:
		return templateList
	case KindPrompt:
		return promptList
	}
	return -1
}

// Lists are the definitions that a server lists, complete and in its order.
type Lists struct {
	Tools, Resources, Templates, Prompts []jsontext.Value
	// Hints are what the server says about keeping a list; none of a list is
	// that nobody may.
	Hints map[Kind]Hint
}

// Hint says how a result may be kept (2026-07-28, server/utilities/caching).
type Hint struct {
	// TTLMS is for how many milliseconds, 0 for not at all.
	TTLMS int64 `json:"ttlMs"`
	// Public says that the result is the same for every caller.
	Public bool `json:"public,omitzero"`
}

// Item is one accepted resource, template or prompt of a server.
type Item struct {
	Kind Kind
	// Key is the server's own URI, URI template or name.
	Key string
	// Def is the definition as the server sent it, see [Tool.Def].
	Def jsontext.Value
	// Digest is a hex digest of Def. It changes with every change of it.
	Digest string
	// Notes tell what the exposed definition lacks of Def, nil as a rule.
	Notes []Note

	exposed  definition
	template *template // nil if it is none
}

// itemRules has, for each kind, the rules of all members that have any.
var itemRules = map[Kind]memberRules{
	KindResource: {
		{"uri", '"', true},
		{"name", '"', true},
		{"title", '"', false},
		{"description", '"', false},
		{"mimeType", '"', false},
		{"annotations", '{', false},
		{"size", '0', false},
		{"icons", '[', false},
		{"_meta", '{', false},
	},
	KindTemplate: {
		{"uriTemplate", '"', true},
		{"name", '"', true},
		{"title", '"', false},
		{"description", '"', false},
		{"mimeType", '"', false},
		{"annotations", '{', false},
		{"icons", '[', false},
		{"_meta", '{', false},
	},
	KindPrompt: {
		{"name", '"', true},
		{"title", '"', false},
		{"description", '"', false},
		{"arguments", '[', false},
		{"icons", '[', false},
		{"_meta", '{', false},
	},
}

var (
	itemAnnotationRules = memberRules{{"audience", '[', false}, {"priority", '0', false}, {"lastModified", '"', false}}
	promptArgumentRules = memberRules{{"name", '"', true}, {"title", '"', false}, {"description", '"', false}, {"required", 't', false}}
)

// parseItem checks one definition of a kind that is no tool. The key is set even
// with an error, if there is one.
func (p *definitionParser) parseItem(kind Kind, def jsontext.Value) (Item, error) {
	it := Item{Kind: kind}
	rules, key := itemRules[kind], kind.Listing().Key
	def, err := p.read(def, rules, func(at int, name string, v jsontext.Value) error {
		left, err := v, error(nil)
		switch name {
		case key:
			p.key, it.Key = at, mcp.Text(v)
		case "annotations":
			left, err = p.object("annotations.", v, itemAnnotationRules, itemAnnotation)
		case "arguments":
			left, err = p.promptArguments(v)
		}
		p.shortened(at, v, left)
		return err
	})
	it.Def = def
	if err != nil {
		return it, err
	}
	if err := rules.missing("the definition of a "+string(kind), func(name string) bool { return mcp.Field(def, name) != nil }); err != nil {
		return it, err
	}
	switch kind {
	case KindPrompt:
		if err := ValidateToolName(it.Key); err != nil {
			return it, &fault{ReasonInvalidName, err.Error()}
		}
	case KindResource:
		if err := validateURI(it.Key); err != nil {
			return it, &fault{ReasonInvalidURI, err.Error()}
		}
	case KindTemplate:
		if it.template, err = parseTemplate(it.Key); err != nil {
			return it, &fault{ReasonUnsupportedTemplate, err.Error()}
		}
	}
	sum := sha256.Sum256(def)
	it.Digest, it.Notes, it.exposed = hex.EncodeToString(sum[:]), p.notes, p.definition(def)
	return it, nil
}

// itemAnnotation checks one annotation of a resource or template, whose values the
// protocol's schema limits.
func itemAnnotation(name string, v jsontext.Value) error {
	switch name {
	case "audience":
		roles, err := elements(v)
		if err != nil {
			return err
		}
		for _, r := range roles {
			if role := mcp.Text(r); role != "user" && role != "assistant" {
				return invalid(`annotations.audience has %.40s, there are "user" and "assistant" only`, r)
			}
		}
	case "priority":
		if f, err := strconv.ParseFloat(string(v), 64); err != nil || f < 0 || f > 1 {
			return invalid("annotations.priority is %.40s, it must be from 0 to 1", v)
		}
	}
	return nil
}

// promptArguments checks the arguments that a prompt takes, and returns them as
// they are exposed.
func (p *definitionParser) promptArguments(v jsontext.Value) (jsontext.Value, error) {
	list, err := elements(v)
	if err != nil {
		return v, err
	}
	out, same := []byte{'['}, true
	for i, a := range list {
		in := fmt.Sprintf("arguments[%d]", i)
		if a.Kind() != '{' {
			return v, invalid("%s is %s, it must be an object", in, kindName(a.Kind()))
		}
		if err := promptArgumentRules.missing(in, func(name string) bool { return mcp.Field(a, name) != nil }); err != nil {
			return v, err
		}
		kept, err := p.object(in+".", a, promptArgumentRules, nil)
		if err != nil {
			return v, err
		}
		if same = same && len(kept) == len(a); i > 0 {
			out = append(out, ',')
		}
		out = append(out, kept...)
	}
	if same {
		return v, nil
	}
	return append(out, ']'), nil
}

// AppendDef appends the definition with the exposed key in place of its own.
func (i *Item) AppendDef(dst []byte, exposed string) []byte { return i.exposed.append(dst, exposed) }
