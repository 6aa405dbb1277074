package config

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"

	"toolhub/internal/policy"
)

// Limits of what a file may hold, so that no file can cost more than it shows.
const (
	maxFileBytes = 4 << 20
	// maxNodes bounds the nodes that are visited, an alias counting as all that
	// it stands for.
	maxNodes = 500_000
	maxDepth = 64
	// maxKeyBytes bounds a key, which is part of the path of all below it.
	maxKeyBytes = 256
	// maxProblems bounds what is reported; nobody reads on from there.
	maxProblems = 1000
)

// endOfFile sorts a problem behind all others.
const endOfFile = math.MaxInt32

// decoder turns YAML nodes into values by the json names of their fields. It
// goes on after a problem, so that all of them are found.
type decoder struct {
	file     string
	problems []Problem
	// lines has the line of every field that was decoded, by its path.
	lines   map[string]int
	visited int
	// full is set once maxNodes or maxProblems is reached, which is reported once.
	full bool
}

// report records a problem at line.
func (d *decoder) report(line int, field, format string, args ...any) {
	switch {
	case len(d.problems) > maxProblems:
		return
	case len(d.problems) == maxProblems:
		d.full = true
		line, field, format, args = endOfFile, "", "there are more than %d problems; the rest is not shown", []any{maxProblems}
	}
	d.problems = append(d.problems, Problem{File: d.file, Line: line, Field: field, Message: fmt.Sprintf(format, args...)})
}

// reportField records a problem at the line of field, or where it is absent of
// the nearest field around it.
func (d *decoder) reportField(field, format string, args ...any) {
	d.report(d.line(field), field, format, args...)
}

// line is the line of field, or of the nearest field around it.
func (d *decoder) line(field string) int {
	for path := field; ; {
		if line, ok := d.lines[path]; ok {
			return line
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return d.lines[""]
		}
		path = path[:i]
	}
}

// enter counts a visit to n and follows an alias. It reports false where n must
// not be looked at.
func (d *decoder) enter(n *yaml.Node, path string, depth int) (*yaml.Node, bool) {
	d.visited++
	switch {
	case d.full:
		return nil, false
	case d.visited > maxNodes:
		d.full = true
		d.report(n.Line, path, "the file has more than %d values, its aliases included; make it smaller", maxNodes)
		return nil, false
	case depth > maxDepth:
		d.report(n.Line, path, "values are nested deeper than %d levels", maxDepth)
		return nil, false
	}
	if n.Kind == yaml.AliasNode {
		return d.enter(n.Alias, path, depth+1)
	}
	if tag := n.ShortTag(); !slices.Contains(coreTags, tag) {
		d.report(n.Line, path, "the tag %s is not known here; remove it", n.Tag)
		return nil, false
	}
	return n, true
}

var coreTags = []string{"!!str", "!!int", "!!float", "!!bool", "!!null", "!!map", "!!seq", "!!merge", "!!timestamp"}

// decode sets v from n. What is wrong is reported and leaves v, or that part of
// it, as it was.
func (d *decoder) decode(n *yaml.Node, v reflect.Value, path string, depth int) {
	line := n.Line
	n, ok := d.enter(n, path, depth)
	if !ok {
		return
	}
	if n.Line == line || d.lines[path] == 0 {
		d.lines[path] = line
	}
	switch into := v.Addr().Interface().(type) {
	case *Policy:
		d.policy(n, into, path, depth)
		return
	case *policy.Spec:
		d.spec(n, into, path, depth)
		return
	case *policy.Rule:
		d.rule(n, into, path, depth)
		return
	case *[]Server:
		*into = d.servers(n, path, depth)
		return
	case *jsontext.Value:
		*into = d.json(n, path, depth)
		return
	case encoding.TextUnmarshaler:
		if text, ok := d.text(n, path, "a value such as "+example(into)); ok {
			if err := into.UnmarshalText([]byte(text)); err != nil {
				d.report(n.Line, path, "%v", err)
			}
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		before := len(d.problems)
		d.decode(n, p.Elem(), path, depth+1)
		// A value that is wrong is still there, so that nothing says it is missing.
		if len(d.problems) == before || v.Type().Elem().Kind() == reflect.Struct {
			v.Set(p)
		}
	case reflect.Struct:
		d.structure(n, v, path, depth)
	case reflect.Map:
		d.mapping(n, v, path, depth)
	case reflect.Slice:
		d.list(n, v, path, depth)
	case reflect.String:
		text, ok := d.text(n, path, "a text")
		if ok && (v.Type() == reflect.TypeFor[Ref]() || d.literal(n.Line, path, text)) {
			v.SetString(text)
		}
	case reflect.Bool:
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" {
			d.wrong(n, path, "true or false")
			return
		}
		v.SetBool(strings.EqualFold(n.Value, "true"))
	case reflect.Int:
		i, err := strconv.Atoi(n.Value)
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" || err != nil {
			d.wrong(n, path, "a whole number")
			return
		}
		v.SetInt(int64(i))
	default:
		panic("config: no way to decode " + v.Type().String())
	}
}

// wrong reports that n is not what is wanted.
func (d *decoder) wrong(n *yaml.Node, path, want string) {
	is := "a text"
	switch {
	case n.Kind == yaml.MappingNode:
		is = "a mapping"
	case n.Kind == yaml.SequenceNode:
		is = "a list"
	case n.ShortTag() == "!!null":
		d.report(n.Line, path, "has no value; it wants %s, or remove the line", want)
		return
	case len(n.Value) <= 40:
		is = strconv.Quote(n.Value)
	}
	d.report(n.Line, path, "wants %s, this is %s", want, is)
}

// text is the scalar n as it is written, so that PORT: 8080 and "8080" are the
// same text.
func (d *decoder) text(n *yaml.Node, path, want string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		d.wrong(n, path, want)
		return "", false
	}
	return n.Value, true
}

// reference matches what looks like a [Ref] to a secret. Where a shell would take
// it for a default (${file:-x}), it is an argument for that shell.
var reference = regexp.MustCompile(`\$\{(env|file):[^-+=?]`)

// literal reports a reference in a text that nobody resolves, so that it would
// silently stand for itself. Conditions of rules compare texts of other people's.
func (d *decoder) literal(line int, path, text string) bool {
	found := reference.FindStringIndex(text)
	if found == nil || strings.HasSuffix(path, ".when") {
		return true
	}
	whole, _, _ := strings.Cut(text[found[0]:], "}")
	if len(whole) > 80 {
		whole = whole[:80] + "…"
	}
	d.report(line, path, "has the reference %s, but references are resolved in env, headers and auth only; write the value itself, or give the server a secret by one of these", strconv.QuoteToGraphic(whole+"}"))
	return false
}

func example(v any) string {
	switch v.(type) {
	case *Duration:
		return "30s"
	case *Size:
		return "8MiB"
	default:
		return "a text"
	}
}

// pair is one entry of a mapping.
type pair struct {
	key   string
	line  int
	value *yaml.Node
}

// pairs are the entries of the mapping n in order, merge keys (<<) resolved:
// what stands in the mapping itself wins.
func (d *decoder) pairs(n *yaml.Node, path string, depth int) []pair {
	if n.Kind != yaml.MappingNode {
		if n.ShortTag() != "!!null" {
			d.wrong(n, path, "a mapping (name: value)")
		}
		return nil
	}
	var own, merged []pair
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if _, ok := d.enter(k, path, depth); !ok { // counted here too: a merge looks at all of them each time
			if d.full {
				break
			}
			continue
		}
		if k.ShortTag() == "!!merge" {
			merged = append(merged, d.merge(v, path, depth+1)...)
			continue
		}
		if k.Kind != yaml.ScalarNode {
			d.report(k.Line, path, "a key must be a plain word, this is a list, a mapping or an alias")
			continue
		}
		if len(k.Value) > maxKeyBytes {
			d.report(k.Line, join(path, k.Value[:40]+"…"), "is a key of %d bytes; at most %d are allowed", len(k.Value), maxKeyBytes)
			continue
		}
		if line, ok := first[k.Value]; ok {
			d.report(k.Line, join(path, k.Value), "is given twice, first in line %d; remove one", line)
			continue
		}
		first[k.Value] = k.Line
		own = append(own, pair{k.Value, k.Line, v})
	}
	for _, p := range merged {
		if _, ok := first[p.key]; !ok {
			first[p.key] = p.line
			own = append(own, p)
		}
	}
	return own
}

// merge is what the value of a merge key brings in.
func (d *decoder) merge(v *yaml.Node, path string, depth int) []pair {
	line := v.Line
	v, ok := d.enter(v, path, depth)
	if !ok {
		return nil
	}
	switch v.Kind {
	case yaml.MappingNode:
		return d.pairs(v, path, depth+1)
	case yaml.SequenceNode:
		var all []pair
		for _, item := range v.Content {
			all = append(all, d.merge(item, path, depth+1)...)
		}
		return all
	}
	d.report(line, path, "<< wants an alias of a mapping")
	return nil
}

// join is the path of the member key of path.
func join(path, key string) string {
	// What cannot be seen, or reads as something else, is shown in quotes.
	if quoted := strconv.QuoteToASCII(key); key == "" || strings.ContainsAny(key, ". []") || quoted[1:len(quoted)-1] != key {
		key = quoted
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// structure decodes the mapping n into the struct v, whose fields are known by
// their json names, and reports every other key.
func (d *decoder) structure(n *yaml.Node, v reflect.Value, path string, depth int) {
	if n.Kind != yaml.MappingNode {
		d.wrong(n, path, "a mapping (name: value)")
		return
	}
	fields := fieldsOf(v.Type())
	for _, p := range d.pairs(n, path, depth) {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == p.key })
		switch {
		case i >= 0:
			d.decode(p.value, v.FieldByIndex(fields[i].index), join(path, p.key), depth+1)
		case path == "" && strings.HasPrefix(p.key, "x-"):
			// A place for anchors, as in other YAML formats.
		default:
			names := make([]string, len(fields))
			for i, f := range fields {
				names[i] = f.name
			}
			d.report(p.line, join(path, p.key), "is not known here%s", suggest(p.key, names))
		}
		if d.full {
			return
		}
	}
}

// field is one field of a struct as a file has it.
type field struct {
	name  string
	index []int
}

// fieldsOf lists the fields of a struct type that a file can set, those of
// embedded structs among them.
func fieldsOf(t reflect.Type) []field {
	var fields []field
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || !f.IsExported() || name == "" || name == "-" || (t == reflect.TypeFor[Server]() && name == "id") {
			continue
		}
		fields = append(fields, field{name, f.Index})
	}
	return fields
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string, depth int) {
	pairs := d.pairs(n, path, depth)
	if len(pairs) == 0 {
		return
	}
	m := reflect.MakeMapWithSize(v.Type(), len(pairs))
	for _, p := range pairs {
		item := reflect.New(v.Type().Elem()).Elem()
		d.decode(p.value, item, join(path, p.key), depth+1)
		m.SetMapIndex(reflect.ValueOf(p.key).Convert(v.Type().Key()), item)
	}
	v.Set(m)
}

func (d *decoder) list(n *yaml.Node, v reflect.Value, path string, depth int) {
	if n.Kind != yaml.SequenceNode {
		if n.ShortTag() != "!!null" {
			d.wrong(n, path, "a list ([a, b], or one - item per line)")
		}
		return
	}
	items := reflect.MakeSlice(v.Type(), 0, len(n.Content))
	for i, c := range n.Content {
		item := reflect.New(v.Type().Elem()).Elem()
		d.decode(c, item, path+"["+strconv.Itoa(i)+"]", depth+1)
		items = reflect.Append(items, item)
		if d.full {
			break
		}
	}
	v.Set(items)
}

func (d *decoder) servers(n *yaml.Node, path string, depth int) []Server {
	if n.Kind == yaml.SequenceNode {
		d.report(n.Line, path, "wants a mapping from server id to server (github: {url: …}), this is a list")
		return nil
	}
	var servers []Server
	for _, p := range d.pairs(n, path, depth) {
		s := Server{ID: p.key}
		at := join(path, p.key)
		d.decode(p.value, reflect.ValueOf(&s).Elem(), at, depth+1)
		d.lines[at] = p.line
		servers = append(servers, s)
	}
	return servers
}

func (d *decoder) policy(n *yaml.Node, p *Policy, path string, depth int) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		if n.Kind != yaml.MappingNode {
			d.wrong(n, path, "allow_all, the name of a policy, or rules (deny, ask, allow)")
			return
		}
		d.spec(n, &p.Spec, path, depth)
		return
	}
	switch {
	case n.Value == AllowAll:
		p.Spec.AllowAll = true
	case d.literal(n.Line, path, n.Value):
		p.Name = n.Value
	}
}

// spec decodes a policy in place.
func (d *decoder) spec(n *yaml.Node, s *policy.Spec, path string, depth int) {
	if n.Kind == yaml.ScalarNode {
		if n.Value != AllowAll {
			d.wrong(n, path, "allow_all, or rules (deny, ask, allow)")
			return
		}
		s.AllowAll = true
		return
	}
	var in specFile
	d.structure(n, reflect.ValueOf(&in).Elem(), path, depth)
	*s = policy.Spec{Deny: in.Deny, Ask: in.Ask, Allow: in.Allow, Default: in.Default}
}

// specFile and ruleFile are a policy and a rule as a file has them.
type (
	specFile struct {
		// Deny are rules that refuse a call, whatever else matches.
		Deny []policy.Rule `json:"deny"`
		// Ask are rules that make a call wait for an approval.
		Ask []policy.Rule `json:"ask"`
		// Allow are rules that let a call through.
		Allow []policy.Rule `json:"allow"`
		// Default is what happens where no rule matches.
		Default policy.Effect `json:"default"`
	}
	ruleFile struct {
		// Tool is a glob over server/tool, the tool by the server's own name.
		Tool string `json:"tool"`
		// When is a condition in CEL over annotations, arguments, principal,
		// claims, taint, time and rate: how many calls of this tool this principal
		// has made in the last minute, this one included.
		When string `json:"when"`
	}
)

// rule decodes a rule: a pattern, or a pattern with a condition.
func (d *decoder) rule(n *yaml.Node, r *policy.Rule, path string, depth int) {
	r.File, r.Line = d.file, n.Line
	if n.Kind != yaml.MappingNode {
		if text, ok := d.text(n, path, "a pattern such as github/get_*, or {tool: github/*, when: …}"); ok && d.literal(n.Line, path, text) {
			r.Tool = text
		}
		return
	}
	var in ruleFile
	d.structure(n, reflect.ValueOf(&in).Elem(), path, depth)
	r.Tool, r.When = in.Tool, in.When
}

// json is n as raw JSON, numbers as they are written where JSON has them.
func (d *decoder) json(n *yaml.Node, path string, depth int) jsontext.Value {
	out := d.appendJSON(nil, n, path, depth)
	if len(out) == 0 || !jsontext.Value(out).IsValid() {
		return nil
	}
	return out
}

func (d *decoder) appendJSON(dst []byte, n *yaml.Node, path string, depth int) []byte {
	n, ok := d.enter(n, path, depth)
	if !ok {
		return append(dst, "null"...)
	}
	switch n.Kind {
	case yaml.MappingNode:
		dst = append(dst, '{')
		for i, p := range d.pairs(n, path, depth) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst, _ = jsontext.AppendQuote(dst, p.key)
			dst = append(dst, ':')
			dst = d.appendJSON(dst, p.value, join(path, p.key), depth+1)
		}
		return append(dst, '}')
	case yaml.SequenceNode:
		dst = append(dst, '[')
		for i, c := range n.Content {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = d.appendJSON(dst, c, path+"["+strconv.Itoa(i)+"]", depth+1)
		}
		return append(dst, ']')
	}
	switch n.ShortTag() {
	case "!!null":
		return append(dst, "null"...)
	case "!!bool":
		return strconv.AppendBool(dst, strings.EqualFold(n.Value, "true"))
	case "!!int", "!!float":
		if v := jsontext.Value(n.Value); v.IsValid() && v.Kind() == '0' {
			return append(dst, v...)
		}
		d.report(n.Line, path, "%q is no JSON number; write it in digits, or as a text in quotes", n.Value)
		return append(dst, "null"...)
	}
	d.literal(n.Line, path, n.Value)
	dst, _ = jsontext.AppendQuote(dst, n.Value)
	return dst
}

// otherWords are what other programs call a field, where no typo leads there.
var otherWords = map[string]string{
	"mcpServers": "servers", "backends": "servers", "cmd": "command", "environment": "env",
	"endpoint": "url", "token": "auth.bearer", "bearer": "auth.bearer", "workdir": "cwd", "working_dir": "cwd",
}

// suggest says which of names was probably meant by name, or which there are.
func suggest(name string, names []string) string {
	if word, ok := otherWords[name]; ok {
		first, _, _ := strings.Cut(word, ".")
		if slices.Contains(names, first) {
			return fmt.Sprintf("; did you mean %q?", word)
		}
	}
	best, distance := "", 1+max(1, len(name)/3)
	plain := strings.NewReplacer("-", "_", " ", "_").Replace(snake(name))
	for _, n := range names {
		if len(n) > 2 && strings.HasPrefix(plain, n+"_") {
			best, distance = n, 1
		}
		if d := editDistance(plain, n); d < distance {
			best, distance = n, d
		}
	}
	if best != "" {
		return fmt.Sprintf("; did you mean %q?", best)
	}
	if len(names) == 0 {
		return ""
	}
	return "; known are " + strings.Join(names, ", ")
}

// snake is a camelCase name in snake_case, without what is not ASCII.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if r > unicode.MaxASCII {
			continue
		}
		if r >= 'A' && r <= 'Z' {
			if i > 0 {
				b.WriteByte('_')
			}
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// editDistance is the Levenshtein distance of the first 64 bytes of a and b,
// where two neighbours that changed places count as one change.
func editDistance(a, b string) int {
	a, b = a[:min(len(a), 64)], b[:min(len(b), 64)]
	before := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next := make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next[j] = min(row[j]+1, next[j-1]+1, row[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
