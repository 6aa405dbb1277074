package mcp

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
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
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
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

func gzipped(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, s)
	_ = z.Close()
	return b.String()
}

// TestHTTPTraps has what servers answer a call with. None of it may concern
// another call: the one after it goes well. No call is sent twice.
func TestHTTPTraps(t *testing.T) {
	const fine = `{"content":[]}`
	type trap struct {
		name   string
		script webScript
		want   string
		era    Era // the only one that it is about, "" for both
	}
	tests := []trap{
		{"JSON", func(a *webAnswer, m *Message) { a.result(m, fine) }, fine, ""},
		{"odd JSON", func(a *webAnswer, m *Message) { a.result(m, odd) }, odd, ""},
		{"JSON with a BOM type", func(a *webAnswer, m *Message) {
			a.Header().Set("Content-Type", "Application/JSON ; charset=UTF-8")
			_, _ = a.Write(AppendResult(nil, m.ID, jsontext.Value(fine)))
		}, fine, ""},
		{"stream", func(a *webAnswer, m *Message) { a.resultEvent(m, fine) }, fine, ""},
		{"odd stream", func(a *webAnswer, m *Message) { a.resultEvent(m, odd) }, odd, ""},
		{"stream in single bytes", func(a *webAnswer, m *Message) {
			for _, b := range []byte("id: 1\ndata: " + string(AppendResult(nil, m.ID, jsontext.Value(fine))) + "\n\n") {
				a.raw(string(b))
			}
		}, fine, ""},
		{"CR, CRLF, comments, many data lines", func(a *webAnswer, m *Message) {
			a.raw("\ufeff:hello\r\r\nevent: message\rdata:{\"jsonrpc\":\"2.0\",\r\ndata: \"id\":" + string(m.ID) + ",\ndata: \"result\":" + fine + "}\r\n:x\r\n\r\n")
		}, fine, ""},
		{"events that are none", func(a *webAnswer, m *Message) {
			a.raw("data\n\ndata: garbage\n\nevent: endpoint\ndata: " + string(AppendResult(nil, m.ID, jsontext.Value(`{"wrong":true}`))) + "\n\nid: \x00\ndata: []\n\nretry: soon\nnonsense: 1\n\n")
			a.event(`[{"jsonrpc":"2.0","id":%s,"result":{"wrong":true}}]`, m.ID)
			a.event(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, bomb)
			a.event(`{"jsonrpc":"2.0","id":%s,"result":"%s"}`, m.ID, "\xff")
			a.event(`{"jsonrpc":"2.0","id":987654,"result":{"wrong":true}}`)
			a.resultEvent(m, fine)
			a.resultEvent(m, `{"wrong":true}`)
		}, fine, ""},
		{"error after progress", func(a *webAnswer, m *Message) {
			a.event(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, m.ID)
			a.event("%s", AppendError(nil, m.ID, InvalidParams("late")))
		}, "late (JSON-RPC error -32602)", ""},
		{"error without an id", func(a *webAnswer, m *Message) {
			a.event(`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}`)
		}, "what? (JSON-RPC error -32700)", ""},
		{"error with 200", func(a *webAnswer, m *Message) { a.json(200, string(AppendError(nil, m.ID, InvalidParams("no")))) }, "no (JSON-RPC error -32602)", ""},
		{"error with 400", func(a *webAnswer, m *Message) { a.json(400, string(AppendError(nil, m.ID, InvalidParams("no")))) }, "no (JSON-RPC error -32602)", ""},
		{"method not found with 404", func(a *webAnswer, m *Message) { a.json(404, string(AppendError(nil, m.ID, MethodNotFound("x")))) }, `method not found: "x" (JSON-RPC error -32601)`, ""},
		{"error for another with 400", func(a *webAnswer, m *Message) {
			a.json(400, `{"jsonrpc":"2.0","id":4711,"error":{"code":-32602,"message":"no"}}`)
		}, "transport/http_status", ""},
		{"plain 400", func(a *webAnswer, m *Message) { a.text(400, "no") }, "transport/http_status", ""},
		{"plain 404", func(a *webAnswer, m *Message) { a.text(404, "no") }, "transport/http_status", EraModern},
		{"401", func(a *webAnswer, m *Message) { a.text(401, "no") }, "auth/unauthorized", ""},
		{"403", func(a *webAnswer, m *Message) { a.json(403, string(AppendError(nil, m.ID, InvalidParams("no")))) }, "auth/forbidden", ""},
		{"413", func(a *webAnswer, m *Message) { a.text(413, "no") }, "message_too_large/request_too_large", ""},
		{"429", func(a *webAnswer, m *Message) { a.text(429, "no") }, "rate_limited/too_many_requests", ""},
		{"500", func(a *webAnswer, m *Message) { a.json(500, string(AppendError(nil, m.ID, InvalidParams("no")))) }, "transport/http_status", ""},
		{"502 with a page", func(a *webAnswer, m *Message) { a.text(502, long) }, "transport/http_status", ""},
		{"302", func(a *webAnswer, m *Message) {
			a.Header().Set("Location", a.w.URL+"/elsewhere")
			a.text(302, "")
		}, "transport/redirect", ""},
		{"307", func(a *webAnswer, m *Message) {
			a.Header().Set("Location", a.w.URL+"/elsewhere")
			a.text(307, "")
		}, "transport/redirect", ""},
		{"202", func(a *webAnswer, m *Message) { a.WriteHeader(202) }, "protocol/no_response", ""},
		{"HTML", func(a *webAnswer, m *Message) {
			a.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(a, "<html>")
		}, "protocol/content_type", ""},
		{"gzip", func(a *webAnswer, m *Message) {
			a.Header().Set("Content-Encoding", "gzip")
			a.json(200, gzipped(string(AppendResult(nil, m.ID, jsontext.Value(fine)))))
		}, "protocol/content_encoding", ""},
		{"gzip stream", func(a *webAnswer, m *Message) {
			a.Header().Set("Content-Encoding", "gzip")
			a.raw(gzipped("data: " + string(AppendResult(nil, m.ID, jsontext.Value(fine))) + "\n\n"))
		}, "protocol/content_encoding", ""},
		{"empty JSON", func(a *webAnswer, m *Message) { a.json(200, "") }, "protocol/invalid_message", ""},
		{"half JSON", func(a *webAnswer, m *Message) { a.json(200, `{"jsonrpc":"2.0","id":`) }, "protocol/invalid_message", ""},
		{"batch", func(a *webAnswer, m *Message) {
			a.json(200, "["+string(AppendResult(nil, m.ID, jsontext.Value(fine)))+"]")
		}, "protocol/invalid_message", ""},
		{"bomb", func(a *webAnswer, m *Message) { a.result(m, bomb) }, "protocol/invalid_message", ""},
		{"bad UTF-8", func(a *webAnswer, m *Message) { a.result(m, "\"\xff\"") }, "protocol/invalid_message", ""},
		{"another's answer", func(a *webAnswer, m *Message) { a.json(200, `{"jsonrpc":"2.0","id":4711,"result":{}}`) }, "protocol/wrong_answer", ""},
		{"notification as the answer", func(a *webAnswer, m *Message) { a.json(200, `{"jsonrpc":"2.0","method":"x"}`) }, "protocol/wrong_answer", ""},
		{"big JSON", func(a *webAnswer, m *Message) {
			a.Header().Set("Content-Length", fmt.Sprint(len(long)))
			a.json(200, long)
		}, "message_too_large/body_too_large", ""},
		{"big chunked JSON", func(a *webAnswer, m *Message) { a.result(m, `"`+long+`"`) }, "message_too_large/body_too_large", ""},
		{"big JSON error", func(a *webAnswer, m *Message) { a.json(400, `{"jsonrpc":"2.0","id":1,"error":"`+long) }, "transport/http_status", ""},
		{"big event", func(a *webAnswer, m *Message) { a.resultEvent(m, `"`+long+`"`) }, "message_too_large/event_too_large", ""},
		{"big event in lines", func(a *webAnswer, m *Message) {
			for range len(long) >> 16 {
				a.raw("data: " + long[:64<<10] + "\n")
			}
			a.raw("\n")
		}, "message_too_large/event_too_large", ""},
		{"big comment", func(a *webAnswer, m *Message) { a.raw(":" + long + "\n\n") }, "message_too_large/event_too_large", ""},
		{"stream without an answer", func(a *webAnswer, m *Message) { a.raw(": hello\n\n") }, "unavailable/outcome_unknown", ""},
		{"modern stream with ids and no answer", func(a *webAnswer, m *Message) {
			a.raw("id: 1\nretry: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n\n")
		}, "unavailable/outcome_unknown", EraModern},
		{"answer without its empty line", func(a *webAnswer, m *Message) {
			a.raw("data: " + string(AppendResult(nil, m.ID, jsontext.Value(fine))) + "\n")
		}, "unavailable/outcome_unknown", ""},
		{"dropped at once", func(a *webAnswer, m *Message) { a.drop() }, "unavailable/outcome_unknown", ""},
		{"dropped in the header", func(a *webAnswer, m *Message) {
			conn, _, err := a.ResponseWriter.(http.Hijacker).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 O")
				_ = conn.Close()
			}
		}, "unavailable/outcome_unknown", ""},
		{"dropped in the body", func(a *webAnswer, m *Message) {
			a.Header().Set("Content-Length", "1000")
			a.json(200, `{"jsonrpc":`)
			a.drop()
		}, "unavailable/outcome_unknown", ""},
		{"dropped in the stream", func(a *webAnswer, m *Message) {
			a.raw("data: {")
			a.drop()
		}, "unavailable/outcome_unknown", ""},
		{"stream left open after the answer", func(a *webAnswer, m *Message) {
			a.resultEvent(m, fine)
			<-a.r.Context().Done()
		}, fine, ""},
		{"a request of a modern server's", func(a *webAnswer, m *Message) {
			a.event(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
			a.resultEvent(m, fine)
		}, fine, EraModern},
		{"never, in its header", func(a *webAnswer, m *Message) { <-a.r.Context().Done() }, "timeout/timeout", ""},
		{"never, in a JSON body", func(a *webAnswer, m *Message) {
			a.json(200, `{"jsonrpc":`)
			a.ResponseWriter.(http.Flusher).Flush()
			<-a.r.Context().Done()
		}, "timeout/timeout", ""},
		{"never, in an error", func(a *webAnswer, m *Message) {
			a.json(400, `{"jsonrpc":`)
			a.ResponseWriter.(http.Flusher).Flush()
			<-a.r.Context().Done()
		}, "timeout/timeout", ""},
		{"trickle of white space", func(a *webAnswer, m *Message) {
			a.Header().Set("Content-Type", "application/json")
			for a.r.Context().Err() == nil {
				a.raw(" ")
				time.Sleep(10 * time.Millisecond)
			}
		}, "timeout/timeout", ""},
		{"trickle of comments", func(a *webAnswer, m *Message) {
			for a.r.Context().Err() == nil {
				a.raw(":\n\n")
				time.Sleep(10 * time.Millisecond)
			}
		}, "timeout/timeout", ""},
	}
	for _, era := range []Era{EraModern, EraLegacy} {
		for _, test := range tests {
			if test.era != "" && test.era != era {
				continue
			}
			t.Run(string(era)+"/"+test.name, func(t *testing.T) {
				t.Parallel()
				script := func(a *webAnswer, m *Message) {
					switch {
					case a.r.URL.Path != "/mcp" || a.r.URL.RawQuery != "x=1":
						t.Errorf("redirected to %s", a.r.URL)
					case a.r.Method != http.MethodPost:
						a.WriteHeader(405)
					case FieldString(m.Params, "name") == "trap":
						test.script(a, m)
					default:
						a.result(m, `{"second":true}`)
					}
				}
				if era == EraModern {
					script = modernWeb(script)
				} else {
					script = legacyWeb(script)
				}
				w := serveWeb(t, script)
				c := connectWeb(t, w, ConnectOptions{Server: "srv"})
				call := toolCall("trap")
				call.Timeout = 5 * time.Second
				if strings.HasPrefix(test.want, "timeout") {
					call.Timeout = 100 * time.Millisecond
				}
				result, err := c.Call(t.Context(), call)
				wantOutcome(t, "call", result, err, test.want)
				if f, ok := asFault(err); ok && (f.Server != "srv" || f.Retryable != (f.Kind == KindRateLimited)) {
					t.Errorf("fault %+v", f)
				}
				result, err = c.Call(t.Context(), toolCall("second"))
				wantOutcome(t, "the call after it", result, err, `{"second":true}`)
				if n := w.count("POST tools/call"); n != 2 {
					t.Errorf("%d calls reached the server: %s", n, w.requests())
				}
				if n := w.count("GET"); n != 0 && era == EraModern {
					t.Errorf("a modern stream was resumed: %s", w.requests())
				}
			})
		}
	}
}

// TestHTTPEra: what a server may answer to server/discover, and what it is then.
func TestHTTPEra(t *testing.T) {
	initialize := func(a *webAnswer, m *Message) {
		switch m.Method {
		case MethodInitialize:
			a.result(m, legacyInitialize)
		case NotifyInitialized:
			a.WriteHeader(202)
		default:
			a.text(405, "")
		}
	}
	first := func(discover webScript) webScript {
		return func(a *webAnswer, m *Message) {
			if m.Method == MethodDiscover {
				discover(a, m)
			} else {
				initialize(a, m)
			}
		}
	}
	rpc := func(status int, id string, code int64, data string) webScript {
		return first(func(a *webAnswer, m *Message) {
			if id == "" {
				id = string(m.ID)
			}
			a.json(status, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"no","data":%s}}`, id, code, data))
		})
	}
	plain := func(status int) webScript { return first(func(a *webAnswer, m *Message) { a.text(status, "no") }) }
	tests := []struct {
		name   string
		era    EraChoice
		script webScript
		want   string
	}{
		{"modern JSON", "", modernWeb(nil), "2026-07-28"},
		{"modern stream", "", first(func(a *webAnswer, m *Message) { a.resultEvent(m, modernDiscover) }), "2026-07-28"},
		{"pinned legacy", EraChoice(EraLegacy), initialize, "2025-11-25"},
		{"pinned modern", EraChoice(EraModern), rpc(200, "", CodeMethodNotFound, "1"), "protocol/not_modern"},
		{"pinned modern, plain 400", EraChoice(EraModern), plain(400), "transport/http_status"},
		{"plain 400", "", plain(400), "2025-11-25"},
		{"plain 404", "", plain(404), "2025-11-25"},
		{"plain 405", "", plain(405), "2025-11-25"},
		{"plain 415", "", plain(415), "2025-11-25"},
		{"plain 500", "", plain(500), "2025-11-25"},
		{"no session", "", rpc(400, "null", -32000, "1"), "2025-11-25"},
		{"method not found with 200", "", rpc(200, "", CodeMethodNotFound, "1"), "2025-11-25"},
		{"method not found with 404", "", rpc(404, "", CodeMethodNotFound, "1"), "2025-11-25"},
		{"invalid request", "", rpc(400, "null", CodeInvalidRequest, "1"), "2025-11-25"},
		{"empty result", "", first(func(a *webAnswer, m *Message) { a.result(m, `{}`) }), "2025-11-25"},
		{"HTML", "", first(func(a *webAnswer, m *Message) { _, _ = io.WriteString(a, "<html>") }), "2025-11-25"},
		{"202", "", first(func(a *webAnswer, m *Message) { a.WriteHeader(202) }), "2025-11-25"},
		{"crash", "", first(func(a *webAnswer, m *Message) { a.drop() }), "2025-11-25"},
		{"mute", "", first(func(a *webAnswer, m *Message) { <-a.r.Context().Done() }), "2025-11-25"},
		{"other modern version", "", rpc(400, "", CodeUnsupportedVersion, `{"supported":["2027-01-01"]}`), "protocol/unsupported_version"},
		{"legacy version", "", rpc(400, "", CodeUnsupportedVersion, `{"supported":["2025-06-18"]}`), "2025-11-25"},
		{"header mismatch", "", rpc(400, "", CodeHeaderMismatch, "1"), "no (JSON-RPC error -32020)"},
		{"401", "", plain(401), "auth/unauthorized"},
		{"403", "", plain(403), "auth/forbidden"},
		{"429", "", plain(429), "rate_limited/too_many_requests"},
		{"redirect", "", plain(302), "transport/redirect"},
		{"bad session id", "", first(func(a *webAnswer, m *Message) { a.text(400, "") }), "2025-11-25"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := serveWeb(t, test.script)
			c, err := ConnectHTTP(t.Context(), HTTPTarget{URL: w.URL}, ConnectOptions{Era: test.era, ProbeTimeout: 300 * time.Millisecond})
			if err == nil {
				defer closeConn(t, c)
				if got := c.Info().Version; got != test.want {
					t.Errorf("version %s, want %s", got, test.want)
				}
				return
			}
			if got := outcome(nil, err); got != test.want {
				t.Errorf("error %s (%v), want %s", got, err, test.want)
			}
		})
	}
}

func TestHTTPUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	_ = l.Close()
	_, err = ConnectHTTP(t.Context(), HTTPTarget{URL: url}, ConnectOptions{})
	wantOutcome(t, "refused", nil, err, "transport/connect")
	if f, _ := asFault(err); f == nil || !f.Retryable || strings.Contains(f.Message, "secret") {
		t.Errorf("fault %+v", f)
	}

	// A server that goes away: what was not sent can be repeated.
	w := serveWeb(t, modernWeb(func(a *webAnswer, m *Message) { a.result(m, `{}`) }))
	c := connectWeb(t, w, ConnectOptions{})
	w.Close()
	if _, err = c.Call(t.Context(), toolCall("a")); outcome(nil, err) == "unavailable/outcome_unknown" {
		// It went into a connection that was just being closed.
		_, err = c.Call(t.Context(), toolCall("a"))
	}
	if f, _ := asFault(err); f == nil || f.Kind != KindTransport || !f.Retryable {
		t.Errorf("error %v", err)
	}
	select {
	case <-c.Done():
		t.Error("the connection has ended")
	default:
	}

	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errGaveUp)
	defer cancel()
	_, err = ConnectHTTP(ctx, HTTPTarget{URL: "http://example.invalid/", DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}, ConnectOptions{})
	if err != errGaveUp {
		t.Errorf("a dial that hangs: %v", err)
	}
}

// TestHTTPTarget: what cannot be a target, or would leak a credential.
func TestHTTPTarget(t *testing.T) {
	token := func(context.Context) (string, error) { return "t", nil }
	for name, test := range map[string]struct {
		target HTTPTarget
		want   string
	}{
		"relative":      {HTTPTarget{URL: "/mcp"}, "invalid/url"},
		"other scheme":  {HTTPTarget{URL: "ftp://h/"}, "invalid/url"},
		"no host":       {HTTPTarget{URL: "http:///x"}, "invalid/url"},
		"unparsable":    {HTTPTarget{URL: "http://[::1/secret"}, "invalid/url"},
		"user info":     {HTTPTarget{URL: "https://u:secret@h/"}, "invalid/url"},
		"fragment":      {HTTPTarget{URL: "https://h/#secret"}, "invalid/url"},
		"plain http":    {HTTPTarget{URL: "http://example.com/", Token: token}, "invalid/plain_http"},
		"not loopback":  {HTTPTarget{URL: "http://127.0.0.1.example.com/", Token: token}, "invalid/plain_http"},
		"authorization": {HTTPTarget{URL: "https://h/", Headers: map[string]string{"authorization": "secret"}}, "invalid/headers"},
		"mcp":           {HTTPTarget{URL: "https://h/", Headers: map[string]string{"mcp-session-id": "secret"}}, "invalid/headers"},
		"accept":        {HTTPTarget{URL: "https://h/", Headers: map[string]string{"Accept-Encoding": "gzip"}}, "invalid/headers"},
		"hop":           {HTTPTarget{URL: "https://h/", Headers: map[string]string{"Transfer-Encoding": "chunked"}}, "invalid/headers"},
		"repeats":       {HTTPTarget{URL: "https://h/", Headers: map[string]string{"idempotency-key": "1"}}, "invalid/headers"},
		"bad name":      {HTTPTarget{URL: "https://h/", Headers: map[string]string{"a b": "x"}}, "invalid/headers"},
		"injection":     {HTTPTarget{URL: "https://h/", Headers: map[string]string{"X": "a\r\nsecret: b"}}, "invalid/headers"},
	} {
		_, err := ConnectHTTP(t.Context(), test.target, ConnectOptions{Server: "s"})
		wantOutcome(t, name, nil, err, test.want)
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error holds a secret: %v", name, err)
		}
	}
	for _, host := range []string{"localhost", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]"} {
		target := HTTPTarget{URL: "http://" + host + ":1/", Token: token}
		if _, err := target.parse(); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// TestHTTPHeaders: what a modern request carries, byte for byte.
func TestHTTPHeaders(t *testing.T) {
	w := serveWeb(t, modernWeb(func(a *webAnswer, m *Message) { a.result(m, `{}`) }))
	var current string
	var failure error
	type key struct{}
	c, err := ConnectHTTP(t.Context(), HTTPTarget{
		URL: w.URL, Headers: map[string]string{"x-team": "blue"},
		Token: func(ctx context.Context) (string, error) {
			if v, ok := ctx.Value(key{}).(string); ok {
				return v, nil // it is the call's own ctx
			}
			return current, failure
		},
	}, ConnectOptions{Client: Implementation{Name: "hub", Version: "9"}})
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(t, c)
	if got := w.headers["POST "+MethodDiscover][0].Get("Authorization"); got != "" {
		t.Errorf("an empty token is none, sent was %q", got)
	}
	call := &Call{
		Method:  MethodToolsCall,
		Params:  jsontext.Value(`{"arguments":{"n":12345678901234567890, "n2" :1.0},"name":"größe","x":[ ],"_meta":{"progressToken":"t","io.modelcontextprotocol/protocolVersion":"2099-01-01","io.modelcontextprotocol/clientCapabilities":{"sampling":{}},"traceparent":"00-1-2-03"}}`),
		Headers: map[string]string{"Mcp-Param-Region": "eu"},
	}
	if _, err := c.Call(context.WithValue(t.Context(), key{}, "tok"), call); err != nil {
		t.Fatal(err)
	}
	m, h := w.calls[MethodToolsCall][0], w.headers["POST "+MethodToolsCall][0]
	want := `{"arguments":{"n":12345678901234567890, "n2" :1.0},"name":"größe","x":[ ],"_meta":{"progressToken":` + string(m.ID) +
		`,"io.modelcontextprotocol/clientCapabilities":{"sampling":{}},"traceparent":"00-1-2-03","io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"hub","version":"9"}}}`
	if string(m.Params) != want {
		t.Errorf("params\n%s, want\n%s", m.Params, want)
	}
	for name, want := range map[string]string{
		"Accept": "application/json, text/event-stream", "Accept-Encoding": "identity", "Content-Type": "application/json",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "=?base64?Z3LDtsOfZQ==?=",
		"Mcp-Param-Region": "eu", "X-Team": "blue", "Authorization": "Bearer tok", "Mcp-Session-Id": "",
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for name, test := range map[string]struct {
		token   string
		err     error
		headers map[string]string
		want    string
	}{
		"newline":        {token: "secret\n", want: "auth/invalid_token"},
		"failing":        {err: errors.New("secret"), want: "auth/no_token"},
		"typed":          {err: NewFault(KindAuth, "consent", "go there"), want: "auth/consent"},
		"other header":   {headers: map[string]string{"Authorization": "x"}, want: "invalid/headers"},
		"header value":   {headers: map[string]string{"Mcp-Param-X": "a\nb"}, want: "invalid/headers"},
		"header no name": {headers: map[string]string{"Mcp-Param-a b": "x"}, want: "invalid/headers"},
	} {
		current, failure = test.token, test.err
		_, err := c.Call(t.Context(), &Call{Method: MethodToolsCall, Headers: test.headers})
		wantOutcome(t, name, nil, err, test.want)
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error holds a secret: %v", name, err)
		}
	}
	if n := w.count("POST tools/call"); n != 1 {
		t.Errorf("%d calls were sent", n)
	}
	for _, params := range []string{`[]`, `{"a":`, `{"_meta":1}`, `{"_meta":{"progressToken":[]}}`, `{"_meta":{"io.modelcontextprotocol/logLevel":"loud"}}`} {
		_, err := c.Call(t.Context(), &Call{Method: MethodToolsCall, Params: jsontext.Value(params)})
		wantOutcome(t, params, nil, err, "invalid/params")
	}
}

// TestHTTPFaults: what a fault says besides its kind.
func TestHTTPFaults(t *testing.T) {
	w := serveWeb(t, modernWeb(func(a *webAnswer, m *Message) {
		switch FieldString(m.Params, "name") {
		case "429":
			a.Header().Set("Retry-After", "7")
			a.text(429, "")
		case "429 date":
			a.Header().Set("Retry-After", time.Now().Add(time.Minute).UTC().Format(http.TimeFormat))
			a.text(429, "")
		case "429 for ever":
			a.Header().Set("Retry-After", "99999999999999999999")
			a.text(429, "")
		case "429 for long":
			a.Header().Set("Retry-After", "9999999999")
			a.text(429, "")
		case "401":
			a.Header().Add("WWW-Authenticate", `Bearer resource_metadata="https://h/x"`)
			a.Header().Add("WWW-Authenticate", `Basic`)
			a.text(401, "")
		}
	}))
	c := connectWeb(t, w, ConnectOptions{})
	fault := func(name string) *Fault {
		_, err := c.Call(t.Context(), toolCall(name))
		f, ok := asFault(err)
		if !ok {
			t.Fatalf("%s: %v", name, err)
		}
		return f
	}
	if f := fault("429"); f.RetryAfter() != 7*time.Second {
		t.Errorf("%+v", f)
	}
	if f := fault("429 date"); f.RetryAfter() < 55*time.Second || f.RetryAfter() > time.Minute {
		t.Errorf("%+v", f)
	}
	if f := fault("429 for ever"); f.RetryAfter() != 0 {
		t.Errorf("%+v", f)
	}
	if f := fault("429 for long"); f.RetryAfter() != 24*time.Hour {
		t.Errorf("%+v", f)
	}
	if f := fault("401"); string(f.Details) != `{"status":401,"challenges":["Bearer resource_metadata=\"https://h/x\"","Basic"]}` {
		t.Errorf("%s", f.Details)
	}
}

// TestHTTPOrder: many calls at once, each with its own stream; what is on it
// comes before the answer, in order.
func TestHTTPOrder(t *testing.T) {
	const calls, steps = 8, 100
	w := serveWeb(t, modernWeb(func(a *webAnswer, m *Message) {
		for i := range steps {
			a.event(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, m.ID, i)
			a.event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"debug","data":1}}`)
			a.event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":%d}}`, i)
			a.event(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"another's","progress":1}}`)
			a.event(`{"jsonrpc":"2.0","method":"notifications/custom","params":{"big":12345678901234567890}}`)
		}
		a.resultEvent(m, `{"is":`+string(Field(m.Params, "name"))+`}`)
	}))
	c := connectWeb(t, w, ConnectOptions{})
	var want []string
	for i := range steps {
		want = append(want,
			fmt.Sprintf(`notifications/progress{"progressToken":[1],"progress":%d}`, i),
			fmt.Sprintf(`notifications/message{"level":"error","data":%d}`, i),
			`notifications/custom{"big":12345678901234567890}`)
	}
	var group sync.WaitGroup
	for i := range calls {
		group.Go(func() {
			token := fmt.Sprintf(`"t%d"`, i)
			call := &Call{
				Method: MethodToolsCall,
				Params: jsontext.Value(fmt.Sprintf(`{"name":"n%d","_meta":{"progressToken":%s,"io.modelcontextprotocol/logLevel":"info"}}`, i, token)),
			}
			var got []string
			call.Notify = func(method string, params jsontext.Value) {
				got = append(got, strings.Replace(method+string(params), token, "[1]", 1))
			}
			result, err := c.Call(t.Context(), call)
			wantOutcome(t, "call", result, err, fmt.Sprintf(`{"is":"n%d"}`, i))
			if !slices.Equal(got, want) {
				t.Errorf("call %d got %d notifications, want %d", i, len(got), len(want))
			}
		})
	}
	group.Wait()
}

// TestHTTPCancelModern: the closed connection tells the server, at every stage;
// no notification is sent, and other calls do not notice.
func TestHTTPCancelModern(t *testing.T) {
	started := make(chan struct{}, 1)
	told := make(chan struct{}, 1)
	w := serveWeb(t, modernWeb(func(a *webAnswer, m *Message) {
		switch FieldString(m.Params, "name") {
		case "header":
		case "body":
			a.json(200, `{"jsonrpc"`)
			a.ResponseWriter.(http.Flusher).Flush()
		case "stream":
			a.raw("data: x\n\n")
		default:
			a.result(m, `{}`)
			return
		}
		started <- struct{}{}
		<-a.r.Context().Done()
		told <- struct{}{}
	}))
	c := connectWeb(t, w, ConnectOptions{})
	for _, stage := range []string{"header", "body", "stream"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			<-started
			cancel(errGaveUp)
		}()
		if _, err := c.Call(ctx, toolCall(stage)); err != errGaveUp {
			t.Errorf("%s: %v", stage, err)
		}
		select {
		case <-told:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the server was not told", stage)
		}
		result, err := c.Call(t.Context(), toolCall("other"))
		wantOutcome(t, "another call", result, err, `{}`)
	}
	if n := w.count("POST " + NotifyCancelled); n != 0 {
		t.Errorf("%d notifications", n)
	}
	// Close does the same to what is under way.
	result := make(chan error, 1)
	go func() {
		_, err := c.Call(t.Context(), toolCall("stream"))
		result <- err
	}()
	<-started
	closeConn(t, c)
	wantOutcome(t, "call at Close", nil, <-result, "unavailable/outcome_unknown")
	<-told
}

// TestHTTPReuse: connections are used again, also after streams.
func TestHTTPReuse(t *testing.T) {
	w := serveWeb(t, modernWeb(func(a *webAnswer, m *Message) {
		if FieldString(m.Params, "name") == "stream" {
			a.resultEvent(m, `{}`)
			time.Sleep(time.Millisecond) // the end comes a little later
		} else {
			a.result(m, `{}`)
		}
	}))
	var mu sync.Mutex
	dials := 0
	c, err := ConnectHTTP(t.Context(), HTTPTarget{URL: w.URL, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		mu.Lock()
		dials++
		mu.Unlock()
		return new(net.Dialer).DialContext(ctx, network, address)
	}}, ConnectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(t, c)
	for i := range 50 {
		name := "json"
		if i%2 == 0 {
			name = "stream"
		}
		if _, err := c.Call(t.Context(), toolCall(name)); err != nil {
			t.Fatal(err)
		}
	}
	if dials > 20 { // a slow machine may lose some of the 25 streams
		t.Errorf("%d connections for 50 calls", dials)
	}
}

// TestHTTPEraChange: a modern connection ends when its server has become another.
func TestHTTPEraChange(t *testing.T) {
	downgraded := false
	w := serveWeb(t, func(a *webAnswer, m *Message) {
		switch {
		case downgraded:
			a.json(400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: no session"}}`)
		case m.Method == MethodDiscover:
			a.result(m, modernDiscover)
		}
	})
	c := connectWeb(t, w, ConnectOptions{})
	if _, err := c.Call(t.Context(), &Call{Method: MethodDiscover}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-c.Done():
		t.Fatal("ended")
	default:
	}
	downgraded = true
	if _, err := c.Call(t.Context(), &Call{Method: MethodDiscover}); err == nil {
		t.Error("no error")
	}
	<-c.Done()
	wantOutcome(t, "Err", nil, c.Err(), "protocol/not_modern")
}
