package config

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// Ref is text with references to secrets in it: ${env:NAME} is the environment
// variable NAME, ${file:PATH} the content of a file without the newline at its
// end, and $${ a plain ${. It is what is stored and shown; the secret itself
// exists only where Resolve is called, on the machine that uses it.
type Ref string

// maxSecretFile bounds the file of a ${file:…} reference, in bytes.
const maxSecretFile = 1 << 20

// HasReference reports whether r refers to something, so is no mere literal.
func (r Ref) HasReference() bool {
	found := false
	_ = r.each(func(part refPart) error {
		found = found || part.kind != ""
		return nil
	})
	return found
}

// Validate reports what is wrong with the way r is written.
func (r Ref) Validate() error { return r.each(func(refPart) error { return nil }) }

// Resolve is the text with its references replaced. The error names the
// variable or file that is missing and holds no part of a secret.
func (r Ref) Resolve() (Secret, error) {
	var out strings.Builder
	var referred []*string
	err := r.each(func(p refPart) error {
		v := p.text
		switch p.kind {
		case "env":
			var ok bool
			if v, ok = os.LookupEnv(p.text); !ok {
				return fmt.Errorf("the environment variable %s is not set", p.text)
			}
			referred = append(referred, &v)
		case "file":
			var err error
			if v, err = readSecretFile(p.text); err != nil {
				return err
			}
			referred = append(referred, &v)
		}
		out.WriteString(v)
		return nil
	})
	if err != nil {
		return Secret{}, err
	}
	text := out.String()
	return Secret{&text, referred}, nil
}

// inDir is r with its relative ${file:…} paths taken from dir.
func (r Ref) inDir(dir string) Ref {
	var out strings.Builder
	err := r.each(func(p refPart) error {
		switch {
		case p.kind == "file" && !filepath.IsAbs(p.text):
			out.WriteString("${file:" + filepath.Join(dir, p.text) + "}")
		case p.kind != "":
			out.WriteString("${" + p.kind + ":" + p.text + "}")
		default:
			out.WriteString(strings.ReplaceAll(p.text, "${", "$${"))
		}
		return nil
	})
	if err != nil {
		return r
	}
	return Ref(out.String())
}

// refPart is a literal (kind "") or a reference.
type refPart struct{ kind, text string }

// each calls f for each part of r, in order.
func (r Ref) each(f func(refPart) error) error {
	s := string(r)
	var literal strings.Builder
	flush := func() error {
		if literal.Len() == 0 {
			return nil
		}
		text := literal.String()
		literal.Reset()
		return f(refPart{text: text})
	}
	for s != "" {
		before, rest, found := strings.Cut(s, "${")
		if !found {
			literal.WriteString(s)
			break
		}
		if escaped, ok := strings.CutSuffix(before, "$"); ok {
			literal.WriteString(escaped + "${")
			s = rest
			continue
		}
		literal.WriteString(before)
		body, after, closed := strings.Cut(rest, "}")
		if !closed {
			return errors.New("a reference is not closed; write ${env:NAME} or ${file:PATH}, or $${ for a plain ${")
		}
		kind, name, _ := strings.Cut(body, ":")
		switch {
		case kind != "env" && kind != "file":
			return fmt.Errorf("${%s} is no reference; write ${env:NAME} or ${file:PATH}, or $${ for a plain ${", body)
		case name == "":
			return fmt.Errorf("${%s} names nothing; write ${env:NAME} or ${file:PATH}", body)
		case strings.ContainsAny(name, "\x00="):
			return fmt.Errorf("${%s} has a character that no name can have", body)
		}
		if err := flush(); err != nil {
			return err
		}
		if err := f(refPart{kind: kind, text: name}); err != nil {
			return err
		}
		s = after
	}
	return flush()
}

func readSecretFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("couldn't read the secret: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil {
		return "", fmt.Errorf("couldn't read the secret: %w", err)
	}
	if len(data) > maxSecretFile || !utf8.Valid(data) {
		return "", fmt.Errorf("the secret file %s is no text of at most 1 MiB", path)
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r"), nil
}

// Secret is text that shows itself to nobody but the caller of Reveal: printed,
// logged or encoded it is [redacted]. The zero value is an empty one.
type Secret struct {
	// Texts are behind pointers, since fmt calls no method of what stands in an
	// unexported field of another struct, and would print the text itself.
	text     *string
	referred []*string
}

// Redacted is what stands where a secret stood.
const Redacted = "[redacted]"

// NewSecret hides text.
func NewSecret(text string) Secret { return Secret{&text, []*string{&text}} }

// Reveal is the secret itself.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// Referred is what each reference in the text stood for: what must not be seen
// anywhere, while the words around it are in the configuration for all to see.
func (s Secret) Referred() []string {
	texts := make([]string, 0, len(s.referred))
	for _, text := range s.referred {
		texts = append(texts, *text)
	}
	return texts
}

// String implements fmt.Stringer.
func (s Secret) String() string { return Redacted }

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return Redacted }

// Format implements fmt.Formatter, for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, Redacted) }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(Redacted) }

// MarshalJSON hides the secret in JSON.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + Redacted + `"`), nil }

// MarshalText hides the secret in everything else that encodes text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(Redacted), nil }
