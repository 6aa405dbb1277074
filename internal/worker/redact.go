package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/config"
	"toolhub/internal/mcp"
)

// redactor blots out the secrets of one server in text that comes from it or is
// made of its words: a server may well repeat what it was given, and a reason in
// a status or an event is kept and shown. Text is redacted where it enters (the
// tail of the process, the errors of the connection, the server's logger); what a
// tool answers its caller passes through unchanged (K8). The zero value knows no
// secret, and a nil one never does.
type redactor struct {
	mu      sync.Mutex
	secrets []string // the newest last
	// known is made of secrets; nil while there are none.
	known atomic.Pointer[known]
}

type known struct {
	forms    []string // all ways in which a secret can be written, the longest first
	replacer *strings.Replacer
}

const (
	// minSecret is the least that is taken for a secret: what is shorter is found
	// in any text.
	minSecret = 4
	// maxSecrets bounds the secrets of one server, for a token that changes often.
	maxSecrets = 256
)

// learn adds what the references of s stood for.
func (r *redactor) learn(s config.Secret) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := false
	for _, text := range s.Referred() {
		// What is written comes line by line.
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); len(line) >= minSecret && !slices.Contains(r.secrets, line) {
				r.secrets = append(r.secrets, line)
				changed = true
			}
		}
	}
	if !changed {
		return
	}
	r.secrets = slices.Clone(r.secrets[max(0, len(r.secrets)-maxSecrets):])
	k := &known{}
	for _, s := range r.secrets {
		quoted := strconv.Quote(s)
		json := string(mcp.QuoteString(s))
		k.forms = append(k.forms, s, quoted[1:len(quoted)-1], json[1:len(json)-1], url.QueryEscape(s), url.PathEscape(s))
	}
	slices.SortFunc(k.forms, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	k.forms = slices.Compact(k.forms)
	pairs := make([]string, 0, 2*len(k.forms))
	for _, form := range k.forms {
		pairs = append(pairs, form, config.Redacted)
	}
	k.replacer = strings.NewReplacer(pairs...)
	r.known.Store(k)
}

func (r *redactor) load() *known {
	if r == nil {
		return nil
	}
	return r.known.Load()
}

// ellipsis is what text of a server's ends in where it was cut.
const ellipsis = "…"

// text is s without secrets, nor the beginning of one where s was cut.
func (r *redactor) text(s string) string {
	k := r.load()
	if k == nil {
		return s
	}
	s = k.replacer.Replace(s)
	for at := 0; ; {
		i := strings.Index(s[at:], ellipsis)
		if i < 0 {
			return s
		}
		if n := k.begun(s[:at+i]); n > 0 {
			s = s[:at+i-n] + config.Redacted + s[at+i:]
			i += len(config.Redacted) - n
		}
		at += i + len(ellipsis)
	}
}

// begun is how many bytes at the end of s are the beginning of a secret.
func (k *known) begun(s string) int {
	most := 0
	for _, form := range k.forms {
		for n := min(len(s), len(form)-1); n >= max(minSecret, most+1); n-- {
			if strings.HasSuffix(s, form[:n]) {
				most = n
				break
			}
		}
	}
	return most
}

// json is v with its strings redacted.
func (r *redactor) json(v jsontext.Value) jsontext.Value {
	if r.load() == nil || r.text(string(v)) == string(v) {
		return v
	}
	var out bytes.Buffer
	dec := jsontext.NewDecoder(bytes.NewReader(v), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	enc := jsontext.NewEncoder(&out, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	for {
		tok, err := dec.ReadToken()
		if err != nil {
			return bytes.TrimSpace(out.Bytes())
		}
		if tok.Kind() == '"' {
			tok = jsontext.String(r.text(tok.String()))
		}
		if err := enc.WriteToken(tok); err != nil {
			return jsontext.Value(`"` + config.Redacted + `"`)
		}
	}
}

// error is err, whatever it wraps, with a text without secrets. A fault becomes
// another one, since it goes as it is to whoever called.
func (r *redactor) error(err error) error {
	if err == nil || r.load() == nil {
		return err
	}
	if f, ok := err.(*mcp.Fault); ok {
		clean := *f
		clean.Message, clean.Details = r.text(f.Message), r.json(f.Details)
		return &clean
	}
	whole := err.Error()
	if text := r.text(whole); text != whole {
		return &redactedError{text: text, err: err, by: r}
	}
	return err
}

// redactedError is an error with another text.
type redactedError struct {
	text string
	err  error
	by   *redactor
}

func (e *redactedError) Error() string { return e.text }
func (e *redactedError) Unwrap() error { return e.err }

// As finds faults before they are found below, where they hold secrets.
func (e *redactedError) As(target any) bool {
	fault, ok := target.(**mcp.Fault)
	if !ok {
		return false
	}
	f, ok := errors.AsType[*mcp.Fault](e.err)
	if ok {
		*fault = e.by.error(f).(*mcp.Fault)
	}
	return ok
}

// conn is c with redacted errors. The server's own answer to a caller is none of
// them, and passes.
func (r *redactor) conn(c mcp.Conn) mcp.Conn { return &redactedConn{Conn: c, by: r} }

type redactedConn struct {
	mcp.Conn
	by *redactor
}

// Call implements [mcp.Conn].
func (c *redactedConn) Call(ctx context.Context, call *mcp.Call) (jsontext.Value, error) {
	value, err := c.Conn.Call(ctx, call)
	if _, own := err.(*mcp.Error); own {
		return value, err
	}
	return value, c.by.error(err)
}

// Err implements [mcp.Conn].
func (c *redactedConn) Err() error { return c.by.error(c.Conn.Err()) }

// logger is log with redacted messages and values.
func (r *redactor) logger(log *slog.Logger) *slog.Logger {
	return slog.New(&redactedHandler{Handler: log.Handler(), by: r})
}

type redactedHandler struct {
	slog.Handler
	by *redactor
}

// Handle implements [slog.Handler].
func (h *redactedHandler) Handle(ctx context.Context, rec slog.Record) error {
	if h.by.load() == nil {
		return h.Handler.Handle(ctx, rec)
	}
	clean := slog.NewRecord(rec.Time, rec.Level, h.by.text(rec.Message), rec.PC)
	rec.Attrs(func(a slog.Attr) bool {
		clean.AddAttrs(h.by.attr(a))
		return true
	})
	return h.Handler.Handle(ctx, clean)
}

// WithAttrs implements [slog.Handler].
func (h *redactedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = h.by.attr(a)
	}
	return &redactedHandler{h.Handler.WithAttrs(clean), h.by}
}

// WithGroup implements [slog.Handler].
func (h *redactedHandler) WithGroup(name string) slog.Handler {
	return &redactedHandler{h.Handler.WithGroup(name), h.by}
}

func (r *redactor) attr(a slog.Attr) slog.Attr {
	a.Value = a.Value.Resolve()
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(r.text(a.Value.String()))
	case slog.KindGroup:
		group := slices.Clone(a.Value.Group())
		for i := range group {
			group[i] = r.attr(group[i])
		}
		a.Value = slog.GroupValue(group...)
	case slog.KindAny:
		text := fmt.Sprint(a.Value.Any())
		if clean := r.text(text); clean != text {
			a.Value = slog.StringValue(clean)
		}
	}
	return a
}
