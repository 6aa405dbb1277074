package mcp

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

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
			a.event(`{"jsonrpc":"2.0","id":987654,"result":%s}`, bomb)
			a.event(`{"level":"info","id":%s,"msg":"called"}`, m.ID)
			a.event(`{"jsonrpc":"2.0","id":987654,"result":{"wrong":true}}`)
			a.resultEvent(m, fine)
			a.resultEvent(m, `{"wrong":true}`)
		}, fine, ""},
		{"bomb in a stream", func(a *webAnswer, m *Message) {
			a.event(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, bomb)
			a.resultEvent(m, fine)
		}, "protocol/invalid_message", ""},
		{"bad UTF-8 in a stream that stays open", func(a *webAnswer, m *Message) {
			a.event(`{"jsonrpc":"2.0","id":%s,"result":"%s"}`, m.ID, "\xff")
			<-a.r.Context().Done()
		}, "protocol/invalid_message", ""},
		{"result and error in a stream", func(a *webAnswer, m *Message) {
			a.event(`{"jsonrpc":"2.0","id":%s,"result":{},"error":{"code":1,"message":"x"}}`, m.ID)
		}, "protocol/invalid_message", ""},
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
				<-time.After(10 * time.Millisecond)
			}
		}, "timeout/timeout", ""},
		{"trickle of comments", func(a *webAnswer, m *Message) {
			for a.r.Context().Err() == nil {
				a.raw(":\n\n")
				<-time.After(10 * time.Millisecond)
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
