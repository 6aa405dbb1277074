package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gobwas/glob"
	"github.com/gobwas/glob/syntax"
)

// Pattern is a compiled glob over "server/tool": both parts are matched
// separately and as a whole, with *, ?, [abc], [a-z], [!abc] and {one,two}. "*"
// alone is the same as "*/*". It is immutable.
//
// "server/resource:GLOB" is about resources, by URI, and "server/prompt:GLOB"
// about prompts. A tool part of "*" covers all of a server, whatever it is; any other
// covers tools only.
type Pattern struct {
	text         string
	server, tool part
	// kind is what the pattern covers, "" for all kinds.
	kind Kind
}

// PolicyName is what patterns and rules know a thing of a server by: a tool's own
// name, "resource:" and the URI or URI template, "prompt:" and the name.
func PolicyName(kind Kind, key string) string {
	switch kind {
	case KindResource, KindTemplate:
		return resourceWord + key
	case KindPrompt:
		return promptWord + key
	}
	return key
}

const (
	resourceWord = "resource:"
	promptWord   = "prompt:"
)

// CutPolicyName is the inverse of [PolicyName]; a template is taken for a resource.
func CutPolicyName(name string) (kind Kind, key string) {
	if key, ok := strings.CutPrefix(name, resourceWord); ok {
		return KindResource, key
	}
	if key, ok := strings.CutPrefix(name, promptWord); ok {
		return KindPrompt, key
	}
	return KindTool, name
}

// part is one side of a pattern.
type part struct {
	// exact is the one name that matches, if glob is nil and any is false.
	exact string
	any   bool
	glob  *glob.Pattern
	// literal is the number of literal characters.
	literal int
}

func (p *part) match(name string) bool {
	switch {
	case p.any:
		return true
	case p.glob != nil:
		return p.glob.Match(name)
	}
	return p.exact == name
}

// CompilePattern compiles a glob over "server/tool". The error is a
// [*PatternError] that says what would be right. A pattern that can match
// nothing at all, such as one with a character that no name can have, is an
// error too: in a deny rule it would be a hole.
func CompilePattern(pattern string) (*Pattern, error) {
	fail := func(format string, args ...any) (*Pattern, error) {
		return nil, &PatternError{Pattern: pattern, Message: fmt.Sprintf(format, args...)}
	}
	if pattern == "*" {
		return &Pattern{text: pattern, server: part{any: true}, tool: part{any: true}}, nil
	}
	server, tool, ok := strings.Cut(pattern, "/")
	switch {
	case pattern == "":
		return fail(`the pattern is empty; write "server/tool", or "*/*" for every tool`)
	case !ok && strings.Contains(pattern, "__"):
		return fail(`patterns match "server/tool" and not exposed names; write %q`, strings.Replace(pattern, "__", "/", 1))
	case !ok:
		return fail(`there is no "/" between server and tool; write %q for all tools of a server or %q for a tool of any server`, pattern+"/*", "*/"+pattern)
	case server == "":
		return fail(`the server part is empty; write %q for any server`, "*/"+tool)
	case tool == "":
		return fail(`the tool part is empty; write %q for all its tools`, server+"/*")
	}
	kind, tool := CutPolicyName(tool)
	switch {
	case kind != KindTool && tool == "":
		return fail(`there is nothing behind the colon; write %q for all of them`, pattern+"*")
	case kind == KindTool && strings.Contains(tool, ":"):
		return fail(`a tool name has no ":"; a resource is %q, a prompt %q`, server+"/"+resourceWord+"URI", server+"/"+promptWord+"name")
	case kind != KindResource && strings.Contains(tool, "/"):
		return fail(`there is more than one "/"; neither a server id nor a tool name has one, and alternatives in braces stay within one part: "{a,b}/{c,d}"`)
	}
	p := &Pattern{text: pattern, kind: kind}
	var err error
	if p.server, err = compilePart(server, "server", isServerChar, "a server id has lower-case letters, digits and _ only"); err != nil {
		return fail("%v", err)
	}
	allowed, rule := isToolChar, "a "+string(kind)+" name has A-Z, a-z, 0-9, _, . and - only"
	if kind == KindResource {
		allowed, rule = isURIChar, "a URI has no space and no control character"
	}
	if p.tool, err = compilePart(tool, string(kind), allowed, rule); err != nil {
		return fail("%v", err)
	}
	if kind == KindTool && p.tool.any {
		p.kind = ""
	}
	p.tool.literal += len(PolicyName(kind, "")) // "resource:" says more than "*"
	if id, ok := p.ServerID(); ok {
		if err := ValidateServerID(id); err != nil {
			return fail("the server part matches no server: %v", err)
		}
	}
	if kind != KindResource && !p.tool.any && p.tool.glob == nil {
		if err := ValidateToolName(p.tool.exact); err != nil {
			return fail("the %s part matches no %[1]s: %v", kind, err)
		}
	}
	return p, nil
}

func isURIChar(r rune) bool { return r > ' ' && r != 0x7f }

func compilePart(s, name string, allowed func(rune) bool, rule string) (part, error) {
	if i := strings.IndexFunc(s, func(r rune) bool { return r == '\\' }); i >= 0 {
		return part{}, fmt.Errorf(`the %s part has a backslash; nothing in a name needs one`, name)
	}
	if strings.Contains(s, "[^") {
		return part{}, fmt.Errorf(`the %s part has "[^"; the negation of a class is written "[!"`, name)
	}
	g, err := glob.Compile(s)
	if err != nil {
		return part{}, fmt.Errorf("the %s part %q is no glob: %s", name, s, globProblem(err))
	}
	literal, wild, bad := literals(s, allowed)
	if bad >= 0 {
		return part{}, fmt.Errorf("the %s part has %q, and so matches nothing: %s", name, bad, rule)
	}
	switch {
	case strings.Trim(s, "*") == "":
		return part{any: true}, nil
	case !wild:
		return part{exact: s, literal: literal}, nil
	}
	return part{glob: g, literal: literal}, nil
}

func globProblem(err error) string {
	e, ok := errors.AsType[*glob.SyntaxError](err)
	if !ok {
		return err.Error()
	}
	hint := ""
	switch {
	case strings.Contains(e.Reason, "range"):
		hint = "; a class is one range like [a-z] or a list like [abc], several ranges are {[a-z],[0-9]}"
	case strings.Contains(e.Reason, "unclosed"):
		hint = "; close it with }"
	case strings.Contains(e.Reason, "end of input"):
		hint = "; close the class with ]"
	}
	return fmt.Sprintf("%s at byte %d%s", e.Reason, e.Offset, hint)
}

// literals counts the literal characters of a valid glob, and the shortest of
// alternatives for those in braces. It reports whether there is anything that
// is not literal, and the first literal character that is not allowed, or -1.
func literals(s string, allowed func(rune) bool) (n int, wild bool, bad rune) {
	type frame struct{ before, least int }
	var open []frame
	class := false
	bad = -1
	lex := syntax.NewLexer(s)
	for {
		tok := lex.Next()
		if tok.Type != syntax.Text && tok.Type != syntax.EOF {
			wild = true
		}
		switch tok.Type {
		case syntax.EOF, syntax.Error: // an error was found by the compiler already
			return n, wild, bad
		case syntax.RangeOpen:
			class = true
		case syntax.RangeClose:
			class = false
		case syntax.TermsOpen:
			open = append(open, frame{before: n, least: -1})
			n = 0
		case syntax.TermSeparator, syntax.TermsClose:
			f := &open[len(open)-1]
			if f.least < 0 || n < f.least {
				f.least = n
			}
			n = 0
			if tok.Type == syntax.TermsClose {
				n = f.before + f.least
				open = open[:len(open)-1]
			}
		case syntax.Text:
			if class {
				continue
			}
			for _, r := range tok.Data {
				n++
				if bad < 0 && !allowed(r) {
					bad = r
				}
			}
		}
	}
}

// String is the pattern as written.
func (p *Pattern) String() string { return p.text }

// Match reports whether the pattern covers the tool, by its own name.
func (p *Pattern) Match(server, tool string) bool {
	return p.MatchServer(server) && p.MatchKey(KindTool, tool)
}

// MatchServer reports whether the server part matches.
func (p *Pattern) MatchServer(server string) bool { return p.server.match(server) }

// MatchKey reports whether the tool part covers the thing of a kind with that name
// or URI. A template is known as a resource.
func (p *Pattern) MatchKey(kind Kind, key string) bool {
	return p.kind == "" || kind == p.kind && p.tool.match(key)
}

// ServerID is the only server that the pattern covers, false if it may be another.
func (p *Pattern) ServerID() (string, bool) {
	return p.server.exact, p.server.glob == nil && !p.server.any
}

// Literal is how many literal characters the two parts have: the measure of how
// specific a pattern is (P3). Of alternatives in braces the shortest counts.
func (p *Pattern) Literal() (server, tool int) { return p.server.literal, p.tool.literal }

// PatternError is a glob that cannot be used.
type PatternError struct {
	// Field is where it stood, like "exclude[2]"; "" where that is not known.
	Field   string
	Pattern string
	// Message says what is wrong and what would be right.
	Message string
}

// Error implements error.
func (e *PatternError) Error() string {
	s := "pattern " + strconv.Quote(e.Pattern) + ": " + e.Message
	if e.Field != "" {
		return e.Field + ": " + s
	}
	return s
}

// Filter selects tools by globs over "server/tool" (L2): those that match an
// include pattern, all if there is none, without those that match an exclude
// pattern. Resources and prompts are not selected; policy hides them.
type Filter struct {
	// Include are the tools that there are; without any, all.
	Include []string `json:"include,omitempty"`
	// Exclude are tools that there are not, whatever is included.
	Exclude []string `json:"exclude,omitempty"`
}

// Compile compiles the filter. The error joins one [*PatternError] per bad pattern.
func (f Filter) Compile() (*Selection, error) {
	var s Selection
	var problems []error
	compile := func(field string, patterns []string, into *[]*Pattern) {
		for i, text := range patterns {
			p, err := CompilePattern(text)
			if e, ok := errors.AsType[*PatternError](err); ok {
				e.Field = fmt.Sprintf("%s[%d]", field, i)
				problems = append(problems, e)
				continue
			}
			if p.kind != KindTool && p.kind != "" {
				problems = append(problems, &PatternError{Field: fmt.Sprintf("%s[%d]", field, i), Pattern: text, Message: "the filter is about tools only; a deny rule of the policy hides a " + string(p.kind)})
				continue
			}
			*into = append(*into, p)
		}
	}
	compile("include", f.Include, &s.include)
	compile("exclude", f.Exclude, &s.exclude)
	if problems != nil {
		return nil, errors.Join(problems...)
	}
	return &s, nil
}

// Selection is a compiled [Filter]. A nil one selects everything.
type Selection struct {
	include, exclude []*Pattern
	within           *Selection // nil for no further limit
}

// Within is what both s and outer select.
func (s *Selection) Within(outer *Selection) *Selection {
	if s == nil || outer == nil {
		return cmp.Or(s, outer)
	}
	narrowed := *s
	narrowed.within = outer.Within(s.within)
	return &narrowed
}

// Selects reports whether the tool may be offered and called.
func (s *Selection) Selects(server, tool string) bool {
	if s == nil {
		return true
	}
	return (len(s.include) == 0 || anyMatch(s.include, server, tool)) && !anyMatch(s.exclude, server, tool) && s.within.Selects(server, tool)
}

func anyMatch(patterns []*Pattern, server, tool string) bool {
	for _, p := range patterns {
		if p.Match(server, tool) {
			return true
		}
	}
	return false
}
