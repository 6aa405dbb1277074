package catalog

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/yosida95/uritemplate/v3"

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

	exposed definition
	pattern *regexp.Regexp // of a template: the URIs that are instances
}

// Matches reports whether uri is an instance of the template.
func (i *Item) Matches(uri string) bool {
	return i.pattern != nil && len(uri) <= maxURI && i.pattern.MatchString(uri)
}

const (
	maxURI = 8 << 10
	// maxTemplate and maxExpressions bound what matching a template costs.
	maxTemplate    = 2 << 10
	maxExpressions = 32
)

// memberRule is what the protocol's schema says of one member of a definition.
type memberRule struct {
	kind     jsontext.Kind
	required bool
}

// itemRules has, for each kind, the member that is replaced by the exposed one,
// and the rules of all members that have any.
var itemRules = map[Kind]struct {
	key   string
	rules map[string]memberRule
}{
	KindResource: {"uri", map[string]memberRule{
		"uri": {'"', true}, "name": {'"', true}, "title": {'"', false}, "description": {'"', false}, "mimeType": {'"', false},
		"annotations": {'{', false}, "size": {'0', false}, "icons": {'[', false}, "_meta": {'{', false},
	}},
	KindTemplate: {"uriTemplate", map[string]memberRule{
		"uriTemplate": {'"', true}, "name": {'"', true}, "title": {'"', false}, "description": {'"', false}, "mimeType": {'"', false},
		"annotations": {'{', false}, "icons": {'[', false}, "_meta": {'{', false},
	}},
	KindPrompt: {"name", map[string]memberRule{
		"name": {'"', true}, "title": {'"', false}, "description": {'"', false}, "arguments": {'[', false}, "icons": {'[', false}, "_meta": {'{', false},
	}},
}

// parseItem checks one definition of a kind that is no tool. The key is set even
// with an error, if there is one.
func (p *definitionParser) parseItem(kind Kind, def jsontext.Value) (Item, error) {
	it := Item{Kind: kind}
	spec := itemRules[kind]
	seen := make(map[string]bool, len(spec.rules))
	def, err := p.read(def, func(name string, v jsontext.Value) error {
		rule, ruled := spec.rules[name]
		if !ruled {
			return nil
		}
		switch k := v.Kind(); {
		case k == 'n' && !rule.required:
			p.dropNull(name)
			return nil
		case k != rule.kind:
			return invalid("%s is %s, it must be %s", name, kindName(k), kindName(rule.kind))
		}
		seen[name] = true
		if name == spec.key {
			p.key, it.Key = len(p.members)-1, mcp.Text(v)
		}
		if name == "arguments" {
			return checkPromptArguments(v)
		}
		return nil
	})
	it.Def = def
	if err != nil {
		return it, err
	}
	for name, rule := range spec.rules {
		if rule.required && !seen[name] {
			return it, invalid("the definition has no %s; a %s needs a string there", name, kind)
		}
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
		if it.pattern, err = compileTemplate(it.Key); err != nil {
			return it, &fault{ReasonUnsupportedTemplate, err.Error()}
		}
	}
	sum := sha256.Sum256(def)
	it.Digest, it.Notes, it.exposed = hex.EncodeToString(sum[:]), p.notes, p.definition(def)
	return it, nil
}

func checkPromptArguments(v jsontext.Value) error {
	list, err := elements(v)
	if err != nil {
		return err
	}
	for i, a := range list {
		if a.Kind() != '{' || mcp.Field(a, "name").Kind() != '"' {
			return invalid("arguments[%d] must be an object with a name", i)
		}
	}
	return nil
}

// validateURI checks what every URI has (RFC 3986): a scheme, and no characters
// that would break a header or a log.
func validateURI(uri string) error {
	scheme, _, ok := strings.Cut(uri, ":")
	switch {
	case len(uri) > maxURI:
		return fmt.Errorf("the URI has %d bytes, at most %d are allowed", len(uri), maxURI)
	case !ok || scheme == "" || strings.IndexFunc(scheme, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '+' || r == '.' || r == '-')
	}) >= 0:
		return fmt.Errorf("the URI %+.80q has no scheme; it must be like scheme:rest", uri)
	case strings.IndexFunc(uri, func(r rune) bool { return r < ' ' || r == 0x7f }) >= 0:
		return fmt.Errorf("the URI %+.80q has a control character", uri)
	}
	return nil
}

// compileTemplate compiles a URI template (RFC 6570) into what its instances are
// known by.
func compileTemplate(template string) (*regexp.Regexp, error) {
	switch {
	case len(template) > maxTemplate:
		return nil, fmt.Errorf("the URI template has %d bytes, at most %d are allowed", len(template), maxTemplate)
	case strings.Count(template, "{") > maxExpressions:
		return nil, fmt.Errorf("the URI template has more than %d expressions", maxExpressions)
	case strings.HasPrefix(template, "{"):
		return nil, fmt.Errorf("the URI template %+.80q begins with an expression, so any URI could be meant; it must begin with a scheme", template)
	}
	if i := strings.IndexByte(template, '{'); i < 0 {
		i = len(template)
		if err := validateURI(template[:i]); err != nil {
			return nil, err
		}
	} else if err := validateURI(template[:i]); err != nil {
		return nil, err
	}
	t, err := uritemplate.New(template)
	if err != nil {
		return nil, fmt.Errorf("the URI template %+.80q is none of RFC 6570: %w", template, err)
	}
	return t.Regexp(), nil
}

// AppendDef appends the definition with the exposed key in place of its own.
func (i *Item) AppendDef(dst []byte, exposed string) []byte { return i.exposed.append(dst, exposed) }

// uiResource is the URI in _meta of a tool that shows its result in a resource
// (MCP Apps): _meta.ui.resourceUri, and its older form _meta["ui/resourceUri"].
// expose makes _meta with the exposed ones, nil if there is none.
func exposeUI(meta jsontext.Value, server string) jsontext.Value {
	if !bytes.Contains(meta, []byte("resourceUri")) {
		return nil
	}
	var changes []mcp.Change
	if old := mcp.Field(meta, "ui/resourceUri"); old.Kind() == '"' {
		changes = append(changes, mcp.Change{Name: "ui/resourceUri", Value: mcp.QuoteString(exposeURI(server, mcp.Text(old)))})
	}
	if ui := mcp.Field(meta, "ui"); ui.Kind() == '{' {
		if uri := mcp.Field(ui, "resourceUri"); uri.Kind() == '"' {
			edited, err := mcp.Edit(ui, mcp.Change{Name: "resourceUri", Value: mcp.QuoteString(exposeURI(server, mcp.Text(uri)))})
			if err == nil {
				changes = append(changes, mcp.Change{Name: "ui", Value: edited})
			}
		}
	}
	if changes == nil {
		return nil
	}
	out, err := mcp.Edit(meta, changes...)
	if err != nil {
		return nil
	}
	return out
}
