package mcp

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// web is an HTTP server played by a script, which gets all requests but those
// of the handshake.
type web struct {
	*httptest.Server
	mu  sync.Mutex
	got []string // "POST method", "GET", "DELETE", in order
	// calls are the POSTed messages by method, and headers theirs.
	calls   map[string][]*Message
	headers map[string][]http.Header
}

type webScript func(a *webAnswer, m *Message)

// webAnswer is the answer to one request.
type webAnswer struct {
	http.ResponseWriter
	r *http.Request
	w *web
}

func (a *webAnswer) json(status int, body string) {
	a.Header().Set("Content-Type", "application/json")
	a.WriteHeader(status)
	_, _ = io.WriteString(a, body)
}

func (a *webAnswer) text(status int, body string) {
	a.Header().Set("Content-Type", "text/plain; charset=utf-8")
	a.WriteHeader(status)
	_, _ = io.WriteString(a, body)
}

func (a *webAnswer) result(m *Message, result string) {
	a.json(200, string(AppendResult(nil, m.ID, jsontext.Value(result))))
}

// raw sends text as it is, now; the first makes the answer an event stream.
func (a *webAnswer) raw(text string) {
	if a.Header().Get("Content-Type") == "" {
		a.Header().Set("Content-Type", "text/event-stream")
	}
	_, _ = io.WriteString(a, text)
	a.ResponseWriter.(http.Flusher).Flush()
}

func (a *webAnswer) event(format string, args ...any) {
	a.raw("data: " + fmt.Sprintf(format, args...) + "\n\n")
}

func (a *webAnswer) resultEvent(m *Message, result string) {
	a.event("%s", AppendResult(nil, m.ID, jsontext.Value(result)))
}

// drop closes the connection as a server that crashes does.
func (a *webAnswer) drop() { panic(http.ErrAbortHandler) }

func serveWeb(t *testing.T, script webScript) *web {
	w := &web{calls: make(map[string][]*Message), headers: make(map[string][]http.Header)}
	w.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		var m Message
		name := r.Method
		if r.Method == http.MethodPost {
			if m, err = ParseMessage(body, Strict); err != nil {
				t.Errorf("the client sent %q: %v", body, err)
				return
			}
			name += " " + m.Method
		}
		w.mu.Lock()
		w.got = append(w.got, name)
		w.calls[m.Method] = append(w.calls[m.Method], &m)
		w.headers[name] = append(w.headers[name], r.Header)
		w.mu.Unlock()
		script(&webAnswer{rw, r, w}, &m)
	}))
	w.Server.Config.ErrorLog = nil
	w.Start()
	t.Cleanup(w.Close)
	return w
}

func (w *web) requests() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.got, ", ")
}

func (w *web) count(request string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, r := range w.got {
		if r == request {
			n++
		}
	}
	return n
}

// waitFor waits for a condition that a server brings about.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	late := time.After(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("no %s in time", what)
		}
	}
}

func modernWeb(script webScript) webScript {
	return func(a *webAnswer, m *Message) {
		switch {
		case m.Method == MethodDiscover:
			a.result(m, strings.Replace(modernDiscover, `"listChanged":true`, "", 1))
		case a.r.Method != http.MethodPost:
			a.text(405, "no")
		default:
			script(a, m)
		}
	}
}

// legacyWeb gives the sessions s1, s2, … and answers 404 to all others.
func legacyWeb(script webScript) webScript {
	var mu sync.Mutex
	var sessions []string
	return func(a *webAnswer, m *Message) {
		mu.Lock()
		defer mu.Unlock()
		id := a.r.Header.Get(HeaderSession)
		switch {
		case m.Method == MethodDiscover:
			a.text(400, "Bad Request: no session")
			return
		case m.Method == MethodInitialize:
			sessions = append(sessions, fmt.Sprintf("s%d", len(sessions)+1))
			a.Header().Set(HeaderSession, sessions[len(sessions)-1])
			a.result(m, legacyInitialize)
			return
		case len(sessions) == 0 || id != sessions[len(sessions)-1]:
			a.text(404, "session not found")
			return
		case m.Method == NotifyInitialized, m.Method == NotifyCancelled, m.IsResponse() && a.r.Method == http.MethodPost:
			if m.IsResponse() {
				break
			}
			a.WriteHeader(202)
			return
		case m.Method == MethodSetLevel:
			a.result(m, `{}`)
			return
		case m.Method == "test/expire":
			sessions = append(sessions, "nobody's")
			a.result(m, `{}`)
			return
		}
		mu.Unlock()
		defer mu.Lock()
		script(a, m)
	}
}

func connectWeb(t *testing.T, w *web, opts ConnectOptions) Conn {
	t.Helper()
	c, err := ConnectHTTP(t.Context(), HTTPTarget{URL: w.URL + "/mcp?x=1"}, opts)
	if err != nil {
		t.Fatalf("ConnectHTTP: %v", err)
	}
	t.Cleanup(func() { closeConn(t, c) })
	return c
}
