package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/term"

	"toolhub/internal/config"
	"toolhub/internal/mcp"
)

// console is where a command reads and writes.
type console struct {
	in       io.Reader
	out, err io.Writer
	// terminal says that a person reads out, errTerminal the same of err.
	terminal, errTerminal bool
}

func newConsole(in io.Reader, out, err io.Writer) *console {
	return &console{in: in, out: out, err: err, terminal: isTerminal(out), errTerminal: isTerminal(err)}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// json writes v, indented for a person.
func (c *console) json(v any) error {
	data, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("couldn't write JSON: %w", err)
	}
	return c.raw(data)
}

// line writes v on one line.
func (c *console) line(v any) error {
	data, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("couldn't write JSON: %w", err)
	}
	_, err = fmt.Fprintf(c.out, "%s\n", data)
	return err
}

// raw writes JSON: as it is for a program, indented for a person.
func (c *console) raw(v jsontext.Value) error {
	if c.terminal {
		v = v.Clone()
		if err := v.Indent(jsontext.WithIndent("  ")); err != nil {
			return fmt.Errorf("the hub answered with what is no JSON: %w", err)
		}
	}
	_, err := fmt.Fprintf(c.out, "%s\n", v)
	return err
}

// table writes rows in columns; the first row is the head.
func (c *console) table(rows [][]string) error {
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			if i > 0 {
				io.WriteString(w, "\t")
			}
			io.WriteString(w, oneLine(cell))
		}
		io.WriteString(w, "\n")
	}
	return w.Flush()
}

// fail shows err and returns its exit code.
func (c *console) fail(err error) int {
	code := exitCode(err)
	if _, ok := errors.AsType[reported](err); ok || err == nil {
		return code
	}
	if e, ok := errors.AsType[*config.Error](err); ok {
		for _, p := range e.Problems {
			fmt.Fprintln(c.err, safe(p.String()))
		}
		return code
	}
	fmt.Fprintf(c.err, "hub: %s\n", safe(err.Error()))
	if f, ok := errors.AsType[*mcp.Fault](err); ok {
		if f.Server != "" {
			fmt.Fprintf(c.err, "  server: %s\n", oneLine(f.Server))
		}
		if f.RetryAfterMS > 0 {
			fmt.Fprintf(c.err, "  retry after: %s\n", f.RetryAfter())
		}
		if h := hint(f); h != "" {
			fmt.Fprintf(c.err, "  hint: %s\n", h)
		}
	}
	return code
}

// safe is text that cannot command the terminal it is written to: what servers
// say of themselves is not to be trusted.
func safe(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case unicode.IsControl(r), unicode.In(r, unicode.Bidi_Control):
			return '\uFFFD'
		}
		return r
	}, s)
}

// oneLine is [safe] text for one cell of a table.
func oneLine(s string) string {
	return strings.Join(strings.Fields(safe(s)), " ")
}

// shorten is s cut to at most n characters.
func shorten(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}
