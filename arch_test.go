package toolhub_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// A layer says which packages of ours one package of ours may import, tests
// apart. What is not in the table is not allowed: a new package needs a row
// here and a reason in docs/decisions.
type layer struct {
	pkg    string
	ours   string // what it may import, without "toolhub/internal/"
	reason string
}

var layers = []layer{
	{"internal/mcp", "", "MCP on the wire is of use without a hub and is tested without one"},
	{"internal/oauth", "mcp", "tokens for a server are of use without a hub, and are tested without one"},
	{"internal/catalog", "mcp", "names and lists are computed from values alone"},
	{"internal/policy", "mcp catalog", "decisions are computed from values alone"},
	{"internal/config", "mcp catalog policy", "a file can be checked where there is neither hub nor NATS"},
	{"internal/bus", "mcp", "the bus carries MCP and knows neither policy nor configuration"},
	{"internal/bus/embedded", "bus", "the NATS server in the process is the same for any hub"},
	{"internal/registry", "mcp catalog policy config bus", "shared state lies below those who read and write it"},
	{"internal/router", "mcp catalog policy config bus registry", "a router reaches workers over the bus only, so it works from any machine"},
	{"internal/worker", "mcp oauth catalog policy config bus registry", "a worker serves the bus only, so it works on any machine"},
	{"schema", "", "a file that programs and editors read, embedded; it is generated from config"},
	{"internal/daemon", "mcp config bus", "what the programs have in common as processes, whichever part they run"},
	{"cmd/hub", "mcp catalog policy config bus bus/embedded registry router worker daemon", "the one-node hub wires everything"},
	{"cmd/hub-router", "mcp config bus registry router daemon", "flags, signals and router.Run"},
	{"cmd/hub-worker", "mcp config bus registry worker daemon", "flags, signals and worker.Run"},
	{"examples/servers/notes", "", "an MCP server needs nothing of the hub"},
	{"examples/servers/board", "", "an MCP server needs nothing of the hub"},
	{"integration/hubproc", "", "it sees the hub as its users do: a command, a file, an endpoint"},
	{"integration/badserver", "", "it shares no code with what has to bear it"},
	{"integration/everyfeature", "", "an MCP server needs nothing of the hub"},
	{"integration/taskserver", "", "an MCP server needs nothing of the hub"},
	{"integration/manytools", "", "an MCP server needs nothing of the hub"},
	{"integration/conformance", "", "it judges the hub from outside"},
	{"integration/conformance-client", "mcp catalog oauth", "the client code of the worker, without a hub around it"},
	{"integration", "", "real processes, tests only"},
}

// A ban is an import that packages must not have, tests apart.
type ban struct {
	pkgs   string // packages or prefixes that end in /, separated by spaces; "/" is all
	except string // the same
	what   string // an import path or a prefix that ends in /
	reach  reach
	reason string
}

// reach says how far below a package a ban looks.
type reach int

const (
	direct  reach = iota // its own imports
	ours                 // and those of the packages of this module below it
	linking              // everything that ends up in the binary
)

var bans = []ban{
	{"internal/router cmd/hub-router", "", "toolhub/internal/worker", linking, "what both need goes over the bus or lies below both"},
	{"internal/worker cmd/hub-worker", "", "toolhub/internal/router", linking, "what both need goes over the bus or lies below both"},
	{"internal/router cmd/hub-router", "", "os/exec", ours, "the process that faces the network cannot launch processes"},
	{"cmd/hub-router cmd/hub-worker", "", "github.com/nats-io/nats-server/", linking, "they use a NATS system that is there; a server is weight and attack surface"},
	{"/", "internal/bus/embedded", "github.com/nats-io/nats-server/", direct, "one place knows how the server in the process is run"},
	{"internal/mcp internal/oauth internal/catalog internal/policy", "", "github.com/nats-io/", linking, "the wire layer is MCP alone; decisions are pure"},
	{"internal/catalog internal/policy", "", "net", direct, "pure: no I/O"},
	{"internal/catalog internal/policy", "", "net/", direct, "pure: no I/O"},
	{"internal/catalog internal/policy", "", "os", direct, "pure: no I/O"},
	{"internal/catalog internal/policy", "", "os/", direct, "pure: no I/O"},
	{"internal/ cmd/", "", "encoding/json", direct, "it matches keys of any case and takes the last duplicate (docs/decisions/0004)"},
	{"internal/ cmd/", "", "log", direct, "loggers are slog and injected"},
	{"internal/ cmd/ examples/", "", "toolhub/integration/", linking, "nothing uses tests"},
}

// pkg is what go list says of a package of ours.
type pkg struct {
	ImportPath, Dir, Name, Doc string
	GoFiles                    []string
	Imports, Deps              []string
}

func (p *pkg) path() string { return strings.TrimPrefix(p.ImportPath, "toolhub/") }

var packages = sync.OnceValues(func() (map[string]*pkg, error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,Name,Doc,GoFiles,Imports,Deps", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	all := map[string]*pkg{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(pkg)
		switch err := dec.Decode(p); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		case p.ImportPath != "toolhub": // these tests
			all[p.ImportPath] = p
		}
	}
})

func list(t *testing.T) map[string]*pkg {
	all, err := packages()
	if err != nil {
		t.Fatalf("couldn't list the packages: %v", err)
	}
	return all
}

// matches reports whether name is in a list of names and prefixes.
func matches(list, name string) bool {
	for item := range strings.FieldsSeq(list) {
		if item == "/" || item == name || strings.HasSuffix(item, "/") && strings.HasPrefix(name, item) {
			return true
		}
	}
	return false
}

func TestLayers(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		i := slices.IndexFunc(layers, func(l layer) bool { return l.pkg == p.path() })
		if i < 0 {
			t.Errorf("%s has no row in layers: what is it for, what may it import, and which page of docs/decisions says so?", p.path())
			continue
		}
		for _, imp := range p.Imports {
			name, isOurs := strings.CutPrefix(imp, "toolhub/internal/")
			if isOurs && !slices.Contains(strings.Fields(layers[i].ours), name) {
				t.Errorf("%s must not import %s: %s", p.path(), imp, layers[i].reason)
			}
		}
	}
}

func TestBans(t *testing.T) {
	t.Parallel()
	all := list(t)
	for _, b := range bans {
		for _, p := range all {
			if !matches(b.pkgs, p.path()) || matches(b.except, p.path()) {
				continue
			}
			for _, imp := range p.reached(b.reach, all) {
				if matches(b.what, imp) && imp != p.ImportPath {
					t.Errorf("%s must not import %s, not even through others: %s", p.path(), imp, b.reason)
				}
			}
		}
	}
}

func (p *pkg) reached(r reach, all map[string]*pkg) []string {
	switch r {
	case direct:
		return p.Imports
	case linking:
		return p.Deps
	}
	imports := slices.Clone(p.Imports)
	for _, dep := range p.Deps {
		if below := all[dep]; below != nil {
			imports = append(imports, below.Imports...)
		}
	}
	return imports
}

func TestPackageDocAndNames(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		if p.Doc == "" && len(p.GoFiles) > 0 {
			t.Errorf("%s has no doc comment: say what it is, with a picture or a table", p.path())
		}
		switch base := path.Base(p.ImportPath); base {
		case "util", "utils", "common", "helpers", "misc", "models", "types", "shared", "lib", "pkg":
			t.Errorf("%s: a package is named for what it provides; a helper lives beside its caller", p.path())
		}
	}
}

// TestSources holds the rules that a look at one file can check.
func TestSources(t *testing.T) {
	t.Parallel()
	const maxLines = 800
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(file string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && file != "." || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(file) != ".go":
			return nil
		}
		src, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if n := bytes.Count(src, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines: a file is one noun; split it", file, n)
		}
		f, err := parser.ParseFile(fset, file, src, 0)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(file))
		isTest := strings.HasSuffix(file, "_test.go")
		isPure := (dir == "internal/catalog" || dir == "internal/policy") && !isTest
		// In a bubble of synctest a sleep takes no time and is how time passes.
		isBubble := isTest && slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing/synctest"` })
		// Elsewhere it is encoding/json of the SDK that reads the tags.
		usesJSON := !slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return strings.Contains(i.Path.Value, "/go-sdk/") })
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Name.Name == "init" && n.Recv == nil {
					t.Errorf("%s: no init: what happens at start is written in main", fset.Position(n.Pos()))
				}
			case *ast.Field:
				if usesJSON && keepsZero(n) {
					t.Errorf("%s: omitempty drops neither numbers nor bools in JSON v2: write omitzero", fset.Position(n.Pos()))
				}
			case *ast.GoStmt:
				if isPure {
					t.Errorf("%s: %s is pure: no goroutines", fset.Position(n.Pos()), dir)
				}
			case *ast.CallExpr:
				name := timeCall(n)
				if name == "Sleep" && !isBubble && !isForever(n) {
					t.Errorf("%s: no time.Sleep: wait for a condition, a channel or ctx", fset.Position(n.Pos()))
				}
				if isPure && slices.Contains([]string{"Now", "Since", "Until", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}, name) {
					t.Errorf("%s: %s is pure: the time is an argument", fset.Position(n.Pos()), dir)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// timeCall is the name of the function of package time that call calls, or "".
func timeCall(call *ast.CallExpr) string {
	if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
			return sel.Sel.Name
		}
	}
	return ""
}

// keepsZero reports whether field is a number or a bool with omitempty.
func keepsZero(field *ast.Field) bool {
	if field.Tag == nil || !strings.Contains(field.Tag.Value, ",omitempty") {
		return false
	}
	switch kind := field.Type.(type) {
	case *ast.Ident:
		return slices.Contains([]string{
			"bool", "int", "int8", "int16", "int32", "int64", "uint", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
		}, kind.Name)
	case *ast.SelectorExpr:
		return kind.Sel.Name == "Duration" || kind.Sel.Name == "Time"
	}
	return false
}

// isForever reports whether call sleeps for an hour, as a process does in tests
// that only has to be there.
func isForever(call *ast.CallExpr) bool {
	sel, ok := call.Args[0].(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "Hour"
}

// TestDirectDependenciesAreExplained holds go.mod and the table of
// docs/decisions/0002 together.
func TestDirectDependenciesAreExplained(t *testing.T) {
	t.Parallel()
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("docs/decisions/0002-dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	inRequire, found := false, 0
	for line := range strings.Lines(string(mod)) {
		fields := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "require ("):
			inRequire = true
		case strings.HasPrefix(line, ")"):
			inRequire = false
		case inRequire && len(fields) == 2:
			found++
			if !bytes.Contains(page, []byte("| "+fields[0]+" |")) {
				t.Errorf("%s is in go.mod and not in the table of docs/decisions/0002-dependencies.md", fields[0])
			}
		}
	}
	if found == 0 {
		t.Error("found no direct dependency in go.mod: is the test wrong?")
	}
}

// TestDecisionsIndex holds docs/decisions/README.md and the pages together.
func TestDecisionsIndex(t *testing.T) {
	t.Parallel()
	index, err := os.ReadFile("docs/decisions/README.md")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("docs/decisions/[0-9][0-9][0-9][0-9]-*.md")
	if err != nil {
		t.Fatal(err)
	}
	if got := bytes.Count(index, []byte("](0")); got != len(pages) {
		t.Errorf("the index has %d links, there are %d pages", got, len(pages))
	}
	for i, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(text), "\n")
		base := filepath.Base(page)
		number, title := base[:4], strings.TrimPrefix(lines[0], "# ")
		if want := i + 1; number != strings.Repeat("0", 4-len(strconv.Itoa(want)))+strconv.Itoa(want) {
			t.Errorf("%s: numbers go up by one, want %d", base, want)
		}
		if link := "[" + number + "](" + base + ") | " + title + " |"; !bytes.Contains(index, []byte(link)) {
			t.Errorf("the index lacks: %s", link)
		}
		for _, want := range []string{"| Date |", "| Status |", "| Tags |", "## Context", "## Decision", "## Consequences"} {
			if !bytes.Contains(text, []byte(want)) {
				t.Errorf("%s lacks %q; see template.md", base, want)
			}
		}
		if n := len(lines); n > 70 {
			t.Errorf("%s has %d lines: a decision fits on one page", base, n)
		}
	}
}
