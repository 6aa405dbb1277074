package worker

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/config"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// leaky is a legacy server that says its secret wherever LEAK lets it.
func leaky() {
	secret, leak := os.Getenv("SECRET"), os.Getenv("LEAK")
	if leak == "stderr" {
		fmt.Fprintf(os.Stderr, "token is %s\n%s%s\nas Go has it: %q\n", secret, strings.Repeat("x", tailLineBytes-len(secret)/2), secret, secret)
		os.Exit(3)
	}
	fmt.Fprintln(os.Stderr, "ready with", secret)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		m, err := mcp.ParseMessage(in.Bytes(), mcp.Strict)
		if err != nil || !m.IsRequest() {
			continue
		}
		said := &mcp.Error{Code: -32000, Message: "I do not like " + secret, Data: mcp.QuoteString(secret)}
		answer := func(result string) {
			os.Stdout.Write(append(mcp.AppendResult(nil, m.ID, jsontext.Value(result)), '\n'))
		}
		switch {
		case m.Method == mcp.MethodInitialize && leak != "handshake":
			answer(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"logging":{}},"serverInfo":{"name":"leaky","version":"1"}}`)
		case m.Method == mcp.MethodToolsList && leak == "cursor":
			answer(fmt.Sprintf(`{"tools":[],"nextCursor":%q}`, secret))
		case m.Method == mcp.MethodToolsList && leak != "list":
			answer(`{"tools":[{"name":"tell","inputSchema":{"type":"object"}}]}`)
		case m.Method == mcp.MethodToolsCall && leak == "exit":
			fmt.Fprintln(os.Stderr, "killed by", secret)
			os.Exit(4)
		default:
			os.Stdout.Write(append(mcp.AppendError(nil, m.ID, said), '\n'))
		}
	}
}

// echoing is a legacy server over HTTP that refuses calls with the credentials
// that they came with.
func echoing(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	m, err := mcp.ParseMessage(body, mcp.Strict)
	if err != nil || r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	switch m.Method {
	case mcp.MethodInitialize:
		_, _ = w.Write(mcp.AppendResult(nil, m.ID, jsontext.Value(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"echoing","version":"1"}}`)))
	case mcp.MethodToolsList:
		_, _ = w.Write(mcp.AppendResult(nil, m.ID, jsontext.Value(`{"tools":[{"name":"tell","inputSchema":{"type":"object"}}]}`)))
	case mcp.MethodToolsCall:
		w.Header().Set("Www-Authenticate", `Bearer error="`+r.Header.Get("Authorization")+`"`)
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write(mcp.AppendError(nil, m.ID, &mcp.Error{Code: -32000, Message: strings.Repeat("y", 190) + r.Header.Get("X-Key")}))
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// TestNoSecretLeaks: a server that repeats its secrets gets them into no status,
// event, log or fault (C3, K4).
func TestNoSecretLeaks(t *testing.T) {
	t.Parallel()
	const secret = `pa"ss/wörd-of-the-server`
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	header := filepath.Join(t.TempDir(), "header")
	const key = "k3y-Of-The-Header-That-Is-Cut"
	if err := os.WriteFile(header, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(http.HandlerFunc(echoing))
	t.Cleanup(web.Close)
	h := newIdleHub(t)
	log := &lockedBuffer{}
	h.log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	leaks := func(leak string) string {
		return fmt.Sprintf(`{command: %q, era: legacy, env: {%s: leaky, GORACE: atexit_sleep_ms=0, LEAK: %s, SECRET: "${file:%s}"}}`, os.Args[0], childEnv, leak, file)
	}
	h.apply(fmt.Sprintf(`policy: allow_all
restart_backoff: {initial: 10ms, max: 50ms}
servers:
  stderr: %s
  handshake: %s
  list: %s
  cursor: %s
  exit: %s
  call: %s
  web: {url: %q, era: legacy, headers: {X-Key: "${file:%s}"}, auth: {bearer: "${file:%[8]s}"}}
`, leaks("stderr"), leaks("handshake"), leaks("list"), leaks("cursor"), leaks("exit"), leaks("call"), web.URL, header))
	h.worker = h.startWorker("w1")

	var said strings.Builder // all that is seen of the servers
	hides := func(what, text string) {
		t.Helper()
		for _, s := range []string{secret, key, key[:10], `pa\"ss`, "wörd", "w\\u00f6rd"} {
			if strings.Contains(text, s) {
				t.Errorf("%s has %q:\n%.2000s", what, s, text)
			}
		}
		said.WriteString(text)
	}
	status := func(s *registry.Server) {
		b, err := json.Marshal(s.Status)
		if err != nil {
			t.Fatal(err)
		}
		hides("the status of "+s.ID(), string(b))
	}
	failed := h.state("stderr", registry.StateFailed)
	status(failed)
	if want := "token is [redacted]"; failed.Status.Stderr[0] != want || !strings.HasSuffix(failed.Status.Stderr[1], "x[redacted]…") {
		t.Errorf("stderr is %q, want %q and one that is cut", failed.Status.Stderr, want)
	}
	status(h.state("handshake", registry.StateFailed))
	status(h.state("list", registry.StateDegraded))
	status(h.state("cursor", registry.StateDegraded))
	h.event("server", "stderr", "failed", 2)

	_, err := h.do(testCall{server: "exit", tool: "tell"})
	hides("the fault of exit", fmt.Sprintf("%v %s", err, faultOf(t, err).Details))
	h.event("server", "exit", "up", 2)
	_, err = h.do(testCall{server: "web", tool: "tell"})
	f := faultOf(t, err)
	hides("the fault of web", fmt.Sprintf("%v %s", err, f.Details))
	if f.Kind != mcp.KindAuth || mcp.Field(f.Details, "status") == nil || mcp.Field(f.Details, "challenges") == nil {
		t.Errorf("the fault is %+v, its details %s", f, f.Details)
	}
	// What a tool answers is between it and its caller.
	_, err = h.do(testCall{server: "call", tool: "tell"})
	if own, ok := errors.AsType[*mcp.Error](err); !ok || !strings.Contains(own.Message, secret) {
		t.Errorf("the tool's own error became %v", err)
	}
	h.event("call", "call", "finished", 1)
	h.worker.stop(errTestEnds)
	select {
	case <-h.worker.done:
	case <-time.After(patience):
		t.Fatal("the worker does not end")
	}

	h.events.mu.Lock()
	for _, e := range h.events.events {
		data, _ := e.Data.(jsontext.Value)
		hides("event "+e.Kind+"."+e.Subject+"."+e.What, string(data))
	}
	h.events.mu.Unlock()
	hides("the log", log.String())
	for _, want := range []string{"I do not like [redacted]", "it last wrote", "killed by [redacted]", "ready with [redacted]"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("nothing says %q", want)
		}
	}
}

func TestRedactor(t *testing.T) {
	t.Setenv("TOOLHUB_TEST_PART", "part-of-it")
	secret, err := config.Ref("Basic ${env:TOOLHUB_TEST_PART}").Resolve()
	if err != nil {
		t.Fatal(err)
	}
	r := &redactor{}
	r.learn(config.NewSecret("abc")) // in too many words
	r.learn(secret)
	r.learn(config.NewSecret("first line\nsecond+line\r\nx\n"))
	for in, want := range map[string]string{
		"":                            "",
		"Basic abc":                   "Basic abc",
		"Basic part-of-it!":           "Basic [redacted]!",
		"part-of-itpart-of-it":        "[redacted][redacted]",
		"the first line, second+line": "the [redacted], [redacted]",
		"?q=second%2Bline":            "?q=[redacted]",
		"part-of… and par…":           "[redacted]… and par…",
		"part-of…first l…":            "[redacted]…[redacted]…",
		"part-of":                     "part-of",
	} {
		if got := r.text(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	if got := string(r.json(jsontext.Value(`{"a":["part-of-it",1.50,null],"part-of-it":{}}`))); got != `{"a":["[redacted]",1.50,null],"[redacted]":{}}` {
		t.Error(got)
	}
	fault := mcp.Unavailable("s", "r", "no part-of-it")
	for _, err := range []error{fault, fmt.Errorf("dial: %w", fault), fmt.Errorf("part-of-it: %w", fault), errors.Join(errors.New("x"), fault)} {
		err = r.error(err)
		f, ok := errors.AsType[*mcp.Fault](err)
		if !ok || strings.Contains(err.Error()+f.Error(), "part") || f.Reason != "r" {
			t.Errorf("%v has %v", err, f)
		}
	}
	if plain := errors.New("plain"); r.error(plain) != plain || r.error(nil) != nil {
		t.Error("an error without a secret is another one")
	}
	if err := r.error(fmt.Errorf("part-of-it: %w", context.Canceled)); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "part") {
		t.Errorf("%v", err)
	}
	var out bytes.Buffer
	log := r.logger(slog.New(slog.NewJSONHandler(&out, nil))).With("with", "part-of-it").WithGroup("g")
	log.Info("part-of-it", "error", errors.New("part-of-it"), "list", []string{"part-of-it"}, slog.Group("in", "n", 7, "s", "part-of-it"))
	if strings.Contains(out.String(), "part") || strings.Count(out.String(), config.Redacted) != 5 || !strings.Contains(out.String(), `"n":7`) {
		t.Error(out.String())
	}
	// A token that changes all the time does not fill the memory.
	for i := range 3 * maxSecrets {
		r.learn(config.NewSecret(fmt.Sprintf("token-%04d", i)))
	}
	if got := r.text(fmt.Sprintf("token-%04d token-0000", 3*maxSecrets-1)); got != "[redacted] token-0000" || len(r.secrets) != maxSecrets {
		t.Errorf("%q, of %d secrets", got, len(r.secrets))
	}
}
