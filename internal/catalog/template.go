package catalog

import (
	"fmt"
	"strings"

	"github.com/yosida95/uritemplate/v3"

	"toolhub/internal/mcp"
)

// What bounds the cost of templates. A server may list what it likes, and a URI
// comes from a caller or from a result.
const (
	maxTemplate  = 2 << 10 // bytes
	maxVariables = 32
	// maxMatching is the most that may be spent on finding the templates of one URI,
	// in bytes of the URI times variables of the template: some 70 ms.
	maxMatching = 1 << 20
	// maxLinkVariables is the same for a link in a result, per byte of it, since a
	// result may be nothing but links.
	maxLinkVariables = 16
)

// template is a URI template (RFC 6570) and what its instances are known by.
type template struct {
	parsed *uritemplate.Template
	// prefix and suffix are the literals around all expressions. Most URIs that
	// are no instance are none for lack of them.
	prefix, suffix string
	variables      int
}

// parseTemplate parses a URI template. It must begin with a literal scheme: of
// another any URI could be an instance.
func parseTemplate(text string) (*template, error) {
	if len(text) > maxTemplate {
		return nil, fmt.Errorf("the URI template has %d bytes, at most %d are allowed", len(text), maxTemplate)
	}
	parsed, err := uritemplate.New(text)
	if err != nil {
		return nil, fmt.Errorf("the URI template %+.80q is none of RFC 6570: %s", text, mcp.Shorten(err.Error(), maxTemplateProblem))
	}
	t := &template{parsed: parsed, prefix: text}
	if before, _, ok := strings.Cut(text, "{"); ok {
		t.prefix, t.suffix = before, text[strings.LastIndexByte(text, '}')+1:]
	}
	// Braces and commas that are no part of an expression count too: the former
	// there are none, and a few of the latter do no harm.
	t.variables = strings.Count(text, "{") + strings.Count(text, ",")
	switch {
	case t.variables > maxVariables:
		return nil, fmt.Errorf("the URI template has more than %d variables", maxVariables)
	case t.prefix == "":
		return nil, fmt.Errorf("the URI template %+.80q begins with an expression, so any URI could be meant; it must begin with a scheme", text)
	}
	return t, validateURI(t.prefix)
}

// maxTemplateProblem shortens what the parser says, which repeats the template.
const maxTemplateProblem = 120

// matches reports whether uri is an instance.
func (t *template) matches(uri string) bool {
	return t.parsed.Regexp().MatchString(uri)
}

// mayMatch is a cheap look at the literals.
func (t *template) mayMatch(uri string) bool {
	return len(uri) >= len(t.prefix)+len(t.suffix) && strings.HasPrefix(uri, t.prefix) && strings.HasSuffix(uri, t.suffix)
}

// Matching returns the templates that the server's own URI is an instance of.
func (c *Catalog) Matching(uri string) []*Item {
	left := maxMatching
	fit, _ := c.matching(uri, &left)
	return fit
}

// matching is Matching with what it may cost, see [maxMatching]; all is false where
// that was not enough to look at every template.
func (c *Catalog) matching(uri string, left *int) (fit []*Item, all bool) {
	for i := range c.Templates {
		t := c.Templates[i].template
		if !t.mayMatch(uri) {
			continue
		}
		if *left -= len(uri) * (1 + t.variables); *left < 0 {
			return fit, false
		}
		if t.matches(uri) {
			fit = append(fit, &c.Templates[i])
		}
	}
	return fit, true
}
