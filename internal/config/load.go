package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Problem is one thing that is wrong with a configuration file.
type Problem struct {
	// File and Line say where; Line is 0 where the whole file is meant.
	File string `json:"file"`
	Line int    `json:"line,omitzero"`
	// Field is the path of the field, such as servers.github.timeout; "" is the
	// file itself.
	Field string `json:"field,omitzero"`
	// Message says what is wrong and what would be right.
	Message string `json:"message"`
}

// String is file:line: field: message.
func (p Problem) String() string {
	s := p.File
	if p.Line > 0 {
		s += ":" + strconv.Itoa(p.Line)
	}
	if p.Field != "" {
		s += ": " + p.Field
	}
	return s + ": " + p.Message
}

// Error is everything that is wrong with a file, in the order of its lines.
type Error struct {
	Problems []Problem
}

// Error has one line per problem.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Load reads the file at path. The error is an [*Error] where the content is
// wrong.
func Load(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("couldn't read the configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("couldn't read the configuration: %w", err)
	}
	return Parse(path, data)
}

// Parse is [Load] for the content of a file; name stands for the file in
// errors, and its folder is what relative paths are taken from.
func Parse(name string, data []byte) (*File, error) {
	d := &decoder{file: name, lines: map[string]int{}}
	f := &File{name: name, lines: d.lines}
	if n := d.document(data); n != nil {
		d.lines[""] = n.Line
		d.decode(n, reflect.ValueOf(f).Elem(), "", 0)
		d.lines[""] = n.Line
		if !d.full {
			d.validate(f)
		}
	}
	if len(d.problems) == 0 {
		if err := f.complete(filepath.Dir(name)); err != nil {
			d.report(0, "", "%v", err)
		}
	}
	if len(d.problems) > 0 {
		slices.SortStableFunc(d.problems, func(a, b Problem) int {
			return cmp.Or(a.Line-b.Line, strings.Compare(a.Field, b.Field))
		})
		if last := &d.problems[len(d.problems)-1]; last.Line == endOfFile {
			last.Line = 0
		}
		return nil, &Error{Problems: d.problems}
	}
	return f, nil
}

// document is the only YAML document in data; nil means that it is none, which
// is reported.
func (d *decoder) document(data []byte) *yaml.Node {
	switch {
	case len(data) > maxFileBytes:
		d.report(0, "", "the file is larger than %s", Size(maxFileBytes))
		return nil
	case !utf8.Valid(data):
		d.report(lineOf(data, invalidUTF8(data)), "", "the text is not UTF-8; save the file with that encoding")
		return nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		d.report(1, "", "the file is empty; it wants at least a policy and servers")
		return nil
	} else if err != nil {
		d.syntax(data, err)
		return nil
	}
	if err := dec.Decode(&second); err == nil {
		d.report(second.Line, "", "a second YAML document starts here; a file has one, remove the --- before it")
		return nil
	} else if !errors.Is(err, io.EOF) {
		d.syntax(data, err)
		return nil
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		d.report(1, "", "the file is empty; it wants at least a policy and servers")
		return nil
	}
	n := doc.Content[0]
	if n.Kind != yaml.MappingNode {
		if n.ShortTag() == "!!null" {
			d.report(1, "", "the file is empty; it wants at least a policy and servers")
		} else {
			d.wrong(n, "", "a mapping (name: value) with at least policy and servers")
		}
		return nil
	}
	return n
}

var (
	yamlLine = regexp.MustCompile(`^yaml: line (\d+): (.*)$`)
	// control matches what YAML does not allow in a text.
	control = regexp.MustCompile(`[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]`)
	tabbed  = regexp.MustCompile(`(?m)^ *\t`)
)

// syntax reports that data is no YAML. The parser's line numbers are those of
// what it was reading when it failed.
func (d *decoder) syntax(data []byte, err error) {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 0
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = m[2]
	}
	switch {
	case control.Match(data):
		line = lineOf(data, control.FindIndex(data)[0])
		text = "a control character is not allowed in the text"
	case tabbed.Match(data) && (line == 0 || strings.Contains(text, "cannot start any token")):
		line = lineOf(data, tabbed.FindIndex(data)[0])
		text = "a tab is used for indentation; YAML wants spaces"
	}
	d.report(line, "", "this is no valid YAML: %s", text)
}

func invalidUTF8(data []byte) int {
	i := 0
	for i < len(data) {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n <= 1 {
			break
		}
		i += n
	}
	return i
}

// lineOf is the number of the line of data in which byte i stands.
func lineOf(data []byte, i int) int { return 1 + bytes.Count(data[:i], []byte{'\n'}) }

// complete fills in what the file left out and makes its paths absolute.
func (f *File) complete(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("couldn't tell the folder of the file: %w", err)
	}
	abs := func(path *string) {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(dir, *path)
		}
	}
	fill(&f.Hub, DefaultHub)
	fill(&f.Listen, DefaultListen)
	if f.NATS.URL == "" {
		fill(&f.NATS.Listen, DefaultNATSListen)
	}
	if f.StateDir == "" {
		if f.StateDir, err = DefaultStateDir(f.Hub); err != nil {
			return err
		}
	}
	abs(&f.StateDir)
	abs(&f.NATS.NKey)
	abs(&f.NATS.Creds)
	for i := range f.Servers {
		s := &f.Servers[i]
		if s.Command != "" {
			fill(&s.Cwd, dir)
			abs(&s.Cwd)
			if strings.ContainsRune(s.Command, '/') {
				abs(&s.Command)
			}
		}
		for name, ref := range s.Env {
			s.Env[name] = ref.inDir(dir)
		}
		for name, ref := range s.Headers {
			s.Headers[name] = ref.inDir(dir)
		}
		if s.Auth != nil {
			s.Auth.Bearer = s.Auth.Bearer.inDir(dir)
		}
	}
	return nil
}

// StateRoot is the folder in which every hub of this user has its state:
// $XDG_STATE_HOME/toolhub, else ~/.local/state/toolhub.
func StateRoot() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "toolhub"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("couldn't tell where state is kept: %w; set XDG_STATE_HOME or state_dir", err)
	}
	return filepath.Join(home, ".local", "state", "toolhub"), nil
}

// DefaultStateDir is the state folder of hub under [StateRoot].
func DefaultStateDir(hub string) (string, error) {
	root, err := StateRoot()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, hub), nil
}
