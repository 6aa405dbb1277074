package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// peer is the server's end of a pipe, played by a script.
type peer struct {
	out io.WriteCloser
	mu  sync.Mutex
	got []*Message // all that the client sent, in order
}

// play starts a peer that calls script for each message, one after the other.
func play(script func(p *peer, m *Message)) (Pipe, *peer) {
	fromClient, toServer := io.Pipe()
	fromServer, toClient := io.Pipe()
	p := &peer{out: toClient}
	go func() {
		defer toClient.Close()
		lines := newLineReader(fromClient, 64<<20)
		for {
			line, err := lines.next()
			if err != nil {
				return
			}
			m, err := ParseMessage(line, Strict)
			if err != nil {
				panic(fmt.Sprintf("the client sent %q: %v", line, err))
			}
			p.mu.Lock()
			p.got = append(p.got, &m)
			p.mu.Unlock()
			script(p, &m)
		}
	}()
	return Pipe{Out: toServer, In: fromServer}, p
}

// send writes text as it is; that it fails when the client is gone is no matter.
func (p *peer) send(text string)                { _, _ = io.WriteString(p.out, text) }
func (p *peer) line(format string, args ...any) { p.send(fmt.Sprintf(format, args...) + "\n") }
func (p *peer) result(m *Message, result string) {
	p.send(string(AppendResult(nil, m.ID, jsontext.Value(result))) + "\n")
}

func (p *peer) fail(m *Message, code int64) {
	p.send(string(AppendError(nil, m.ID, &Error{Code: code, Message: "no"})) + "\n")
}

// methods is what the client has sent so far.
func (p *peer) methods() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, m := range p.got {
		if m.IsResponse() {
			out = append(out, "response")
		} else {
			out = append(out, m.Method)
		}
	}
	return out
}

func (p *peer) last(method string) *Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range slices.Backward(p.got) {
		if m.Method == method {
			return m
		}
	}
	return nil
}

const (
	modernDiscover   = `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"logging":{}},"instructions":"be nice","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"m","version":"3"}}}`
	legacyInitialize = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"logging":{}},"serverInfo":{"name":"l","version":"2"},"instructions":"be nice"}`
)

// legacyPeer answers the handshake and leaves the rest to script.
func legacyPeer(script func(p *peer, m *Message)) func(p *peer, m *Message) {
	return func(p *peer, m *Message) {
		switch m.Method {
		case MethodDiscover:
			p.fail(m, CodeMethodNotFound)
		case MethodInitialize:
			p.result(m, legacyInitialize)
		case NotifyInitialized:
		case MethodSetLevel:
			p.result(m, `{}`)
		default:
			script(p, m)
		}
	}
}

func modernPeer(script func(p *peer, m *Message)) func(p *peer, m *Message) {
	return func(p *peer, m *Message) {
		if m.Method == MethodDiscover {
			p.result(m, modernDiscover)
			return
		}
		script(p, m)
	}
}

func connectPeer(t *testing.T, script func(p *peer, m *Message), opts ConnectOptions) (Conn, *peer) {
	t.Helper()
	pipe, p := play(script)
	c, err := ConnectStdio(context.Background(), pipe, opts)
	if err != nil {
		t.Fatalf("ConnectStdio: %v", err)
	}
	return c, p
}

func TestStdioEra(t *testing.T) {
	silent := func(*peer, *Message) {}
	tests := []struct {
		name   string
		era    EraChoice
		script func(p *peer, m *Message)
		want   string // version, or kind and reason of the error
		sent   string
		took   time.Duration
	}{
		{"modern", "", modernPeer(silent), "2026-07-28", "server/discover", 0},
		{"legacy", "", legacyPeer(silent), "2025-11-25", "server/discover initialize notifications/initialized", 0},
		{"legacy, another error", "", func(p *peer, m *Message) {
			if m.Method == MethodDiscover {
				p.fail(m, 0)
			} else {
				legacyPeer(silent)(p, m)
			}
		}, "2025-11-25", "server/discover initialize notifications/initialized", 0},
		{"legacy that answers anything", "", func(p *peer, m *Message) {
			if m.Method == MethodDiscover {
				p.result(m, `{}`)
			} else {
				legacyPeer(silent)(p, m)
			}
		}, "2025-11-25", "server/discover initialize notifications/initialized", 0},
		{"legacy that ignores the unknown", "", func(p *peer, m *Message) {
			if m.Method == MethodInitialize {
				p.result(m, legacyInitialize)
			}
		}, "2025-11-25", "server/discover initialize notifications/initialized", 5 * time.Second},
		{"old", "", func(p *peer, m *Message) {
			if m.Method == MethodInitialize {
				p.result(m, `{"protocolVersion":"2024-11-05","capabilities":{},"serverInfo":{"name":"old","version":"1"}}`)
			}
		}, "2024-11-05", "server/discover initialize notifications/initialized", 5 * time.Second},
		{"modern and slow to start", "", func(p *peer, m *Message) {
			if m.Method == MethodDiscover {
				time.Sleep(7 * time.Second)
				p.result(m, modernDiscover)
			}
		}, "2026-07-28", "server/discover initialize", 7 * time.Second},
		{"legacy that answers with what is no answer", "", func(p *peer, m *Message) {
			if m.Method == MethodDiscover {
				p.line(`{"id":%s,"error":"what?"}`, m.ID)
			} else {
				legacyPeer(silent)(p, m)
			}
		}, "2025-11-25", "server/discover initialize notifications/initialized", 0},
		{"nothing but what is no answer", "", func(p *peer, m *Message) { p.line(`{"id":%s,"error":"what?"}`, m.ID) }, "protocol/invalid_message", "server/discover initialize", 0},
		{"noise first", "", func(p *peer, m *Message) {
			if m.Method == MethodDiscover {
				p.send("Starting server v1.2\n\n{\"half\n")
			}
			modernPeer(silent)(p, m)
		}, "2026-07-28", "server/discover", 0},
		{"pinned legacy", EraChoice(EraLegacy), legacyPeer(silent), "2025-11-25", "initialize notifications/initialized", 0},
		{"pinned modern", EraChoice(EraModern), legacyPeer(silent), "protocol/not_modern", "server/discover", 0},
		{"hangs up on the unknown", "", func(p *peer, m *Message) { p.out.Close() }, "unavailable/handshake", "server/discover", 0},
		{"no common version", "", func(p *peer, m *Message) {
			p.line(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"no","data":{"supported":["2027-01-01"]}}}`, m.ID)
		}, "protocol/unsupported_version", "server/discover", 0},
		{"modern error that names a legacy version", "", func(p *peer, m *Message) {
			if m.Method == MethodDiscover {
				p.line(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"no","data":{"supported":["2025-06-18"]}}}`, m.ID)
			} else {
				legacyPeer(silent)(p, m)
			}
		}, "2025-11-25", "server/discover initialize notifications/initialized", 0},
		{"initialize with a modern version", "", func(p *peer, m *Message) {
			if m.Method == MethodInitialize {
				p.result(m, `{"protocolVersion":"2026-07-28","capabilities":{}}`)
			} else {
				p.fail(m, CodeMethodNotFound)
			}
		}, "protocol/unsupported_version", "server/discover initialize", 0},
		{"mute", "", silent, "timeout/timeout", "server/discover initialize", 65 * time.Second},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pipe, p := play(test.script)
				began := time.Now()
				c, err := ConnectStdio(t.Context(), pipe, ConnectOptions{Era: test.era, Server: "s"})
				took := time.Since(began)
				if err == nil {
					synctest.Wait()
					if got := c.Info().Version; got != test.want {
						t.Errorf("version %s, want %s", got, test.want)
					}
					if i := c.Info(); i.Era != EraOf(i.Version) {
						t.Errorf("era %s", i.Era)
					}
					defer closeConn(t, c)
				} else {
					f, ok := errors.AsType[*Fault](err)
					if got := outcome(nil, err); !ok || string(f.Kind)+"/"+f.Reason != test.want {
						t.Errorf("error %s (%v), want %s", got, err, test.want)
					}
				}
				if took != test.took {
					t.Errorf("took %v, want %v", took, test.took)
				}
				if got := strings.Join(p.methods(), " "); got != test.sent {
					t.Errorf("sent %s, want %s", got, test.sent)
				}
			})
		})
	}
}

// TestStdioTraps has what servers do to their one pipe. None of it may concern
// another call: the one after it goes well, unless the server has gone.
func TestStdioTraps(t *testing.T) {
	const fine, invalid = `{"content":[]}`, "protocol/invalid_message"
	tests := []struct {
		name   string
		script func(p *peer, m *Message)
		want   string
	}{
		{"fine", func(p *peer, m *Message) { p.result(m, fine) }, fine},
		{"odd", func(p *peer, m *Message) { p.result(m, odd) }, odd},
		{"CRLF, BOM and white space", func(p *peer, m *Message) {
			p.send("\ufeff \t{\"jsonrpc\":\"2.0\" ,\"result\":" + fine + " , \"id\" : " + string(m.ID) + "}\r\n")
		}, fine},
		{"id as a string", func(p *peer, m *Message) { p.line(`{"jsonrpc":"2.0","id":"%s","result":%s}`, m.ID, fine) }, fine},
		{"id as a float", func(p *peer, m *Message) { p.line(`{"jsonrpc":"2.0","id":%s.0,"result":%s}`, m.ID, fine) }, fine},
		{"unknown members", func(p *peer, m *Message) { p.line(`{"x":[],"jsonrpc":"2.0","id":%s,"result":%s,"y":1}`, m.ID, fine) }, fine},
		{"error", func(p *peer, m *Message) { p.fail(m, -32602) }, "no (JSON-RPC error -32602)"},
		{"garbage", func(p *peer, m *Message) {
			p.send("<html>\n\x00\x01\xff\n\n{}\n{}{}\nnull\n7\n")
			p.result(m, fine)
		}, fine},
		{"bad UTF-8", func(p *peer, m *Message) {
			p.line(`{"jsonrpc":"2.0","id":%s,"result":{"a":"%s"}}`, m.ID, "\xff\xfe")
			p.result(m, fine)
		}, invalid},
		{"bad UTF-8, id behind", func(p *peer, m *Message) {
			p.line(`{"result":{"id":-1,"a":"\"%s"} , "jsonrpc":"2.0", "id" : "%s" }`, "\xff\xfe", m.ID)
		}, invalid},
		{"half a line", func(p *peer, m *Message) { p.line(`{"jsonrpc":"2.0","id":%s,"resu`, m.ID) }, invalid},
		{"half a string", func(p *peer, m *Message) { p.line(`{"id":%s,"result":{"a":"b`, m.ID) }, invalid},
		{"id twice", func(p *peer, m *Message) { p.line(`{"jsonrpc":"2.0","id":999,"id":%s,"result":{}}`, m.ID) }, invalid},
		{"result twice", func(p *peer, m *Message) { p.line(`{"jsonrpc":"2.0","id":%s,"result":{},"result":{}}`, m.ID) }, invalid},
		{"no result", func(p *peer, m *Message) { p.line(`{"jsonrpc":"2.0","id":%s}`, m.ID) }, invalid},
		{"error that is none", func(p *peer, m *Message) { p.line(`{"jsonrpc":"2.0","id":%s,"error":"no"}`, m.ID) }, invalid},
		{"no version", func(p *peer, m *Message) { p.line(`{"id":%s,"result":{}}`, m.ID) }, invalid},
		{"log lines and requests with ids", func(p *peer, m *Message) {
			p.line(`{"level":"info","id":%s,"msg":"called"}`, m.ID)
			p.line(`{"level":"info","id":%s,"msg":"%s"}`, m.ID, "\xff")
			p.line(`{"jsonrpc":"2.0","id":%s,"method":"x","params":"%s"}`, m.ID, "\xff")
			p.line(`{"jsonrpc":"2.0","id":%s,"method":7}`, m.ID)
			p.line(`"jsonrpc":"2.0","id":%s`, m.ID)
			p.line(`{"jsonrpc":"2.0","result":{"id":%s}`, m.ID)
			p.line(`{"jsonrpc":"2.0","id":{"id":%s}}`, m.ID)
			p.line(`{"jsonrpc":"2.0","id":%s`, m.ID)
			p.result(m, fine)
		}, fine},
		{"batch", func(p *peer, m *Message) {
			p.line(`[{"jsonrpc":"2.0","id":%s,"result":{"wrong":true}}]`, m.ID)
			p.result(m, fine)
		}, fine},
		{"nesting bomb", func(p *peer, m *Message) {
			p.line(`{"jsonrpc":"2.0","id":%s,"result":{"a":%s}}`, m.ID, bomb)
			p.result(m, fine)
		}, invalid},
		{"result and error", func(p *peer, m *Message) {
			p.line(`{"jsonrpc":"2.0","id":%s,"result":{},"error":{"code":1,"message":"x"}}`, m.ID)
			p.result(m, fine)
		}, invalid},
		{"unknown ids", func(p *peer, m *Message) {
			for _, id := range []string{"99999", `"x"`, "-1", "1e99", "0.5", `""`, `"\u0031\u0031\u0031"`} {
				p.line(`{"jsonrpc":"2.0","id":%s,"result":{"wrong":true}}`, id)
			}
			p.line(`{"jsonrpc":"2.0","error":{"code":-32700,"message":"which one?"}}`)
			p.result(m, fine)
		}, fine},
		{"two answers", func(p *peer, m *Message) {
			p.result(m, fine)
			p.result(m, `{"wrong":true}`)
		}, fine},
		{"answer and error", func(p *peer, m *Message) {
			p.result(m, fine)
			p.fail(m, -32603)
		}, fine},
		{"long line, id in front", func(p *peer, m *Message) { p.result(m, `{"a":"`+long+`"}`) }, "message_too_large/line_too_large"},
		{"long line, id behind", func(p *peer, m *Message) {
			p.line(`{"result":{"id":5,"x":"%s"},"jsonrpc":"2.0","id":%s}`, long, m.ID)
		}, "message_too_large/line_too_large"},
		{"long line that is junk", func(p *peer, m *Message) {
			p.line("%s", long)
			p.result(m, fine)
		}, fine},
		{"long line that is a request with the id", func(p *peer, m *Message) {
			p.line(`{"method":"x","params":{"a":"%s"},"id":%s}`, long, m.ID)
			p.result(m, fine)
		}, fine},
		{"long line that quotes an id", func(p *peer, m *Message) {
			p.line(`{"method":"x","params":{"a":"%s","b":",\"id\":%s}"}}`, long, m.ID)
			p.result(m, fine)
		}, fine},
		{"half a line and the end", func(p *peer, m *Message) {
			p.send(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"resu`)
			p.out.Close()
		}, "unavailable/outcome_unknown"},
		{"the end", func(p *peer, m *Message) { p.out.Close() }, "unavailable/outcome_unknown"},
		{"answer without a newline, and the end", func(p *peer, m *Message) {
			p.send(string(AppendResult(nil, m.ID, jsontext.Value(fine))))
			p.out.Close()
		}, fine},
		{"long half line and the end", func(p *peer, m *Message) {
			p.send(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":"` + long)
			p.out.Close()
		}, "message_too_large/line_too_large"},
	}
	for _, era := range []Era{EraLegacy, EraModern} {
		for _, test := range tests {
			t.Run(string(era)+"/"+test.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					script := func(p *peer, m *Message) {
						switch {
						case m.Method != MethodToolsCall:
						case FieldString(m.Params, "name") == "trap":
							test.script(p, m)
						default:
							p.result(m, `{"second":true}`)
						}
					}
					if era == EraLegacy {
						script = legacyPeer(script)
					} else {
						script = modernPeer(script)
					}
					c, _ := connectPeer(t, script, ConnectOptions{})
					defer closeConn(t, c)
					result, err := c.Call(t.Context(), toolCall("trap"))
					wantOutcome(t, "call", result, err, test.want)
					synctest.Wait() // whatever end there is has been noticed
					result, err = c.Call(t.Context(), toolCall("second"))
					synctest.Wait()
					select {
					case <-c.Done():
						wantOutcome(t, "call after the end", result, err, "unavailable/backend_unavailable")
						if f, _ := asFault(err); f == nil || !f.Retryable {
							t.Errorf("a call that was not sent can be repeated: %v", err)
						}
						if c.Err() == nil {
							t.Error("Err is nil")
						}
					default:
						wantOutcome(t, "the call after it", result, err, `{"second":true}`)
					}
				})
			})
		}
	}
}

// TestStdioOrder: what belongs to a call reaches it, in order, before its answer,
// with its own token, however many calls are under way.
func TestStdioOrder(t *testing.T) {
	for _, era := range []Era{EraLegacy, EraModern} {
		t.Run(string(era), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const calls, steps = 10, 50
				var open []*Message
				script := func(p *peer, m *Message) {
					if m.Method != MethodToolsCall {
						return
					}
					if open = append(open, m); len(open) < calls {
						return
					}
					for i := range steps {
						for _, m := range open { // all interleaved
							p.line(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"extra":9007199254740993}}`,
								Field(Field(m.Params, "_meta"), "progressToken"), i)
						}
					}
					p.line(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":4711,"progress":1}}`)
					for _, m := range slices.Backward(open) {
						p.result(m, `{"is":`+string(QuoteString(FieldString(m.Params, "name")))+`}`)
					}
				}
				if era == EraLegacy {
					script = legacyPeer(script)
				} else {
					script = modernPeer(script)
				}
				c, _ := connectPeer(t, script, ConnectOptions{})
				defer closeConn(t, c)
				var group sync.WaitGroup
				for i := range calls {
					group.Go(func() {
						// The same token for all: that of one caller says nothing of another's.
						call := &Call{Method: MethodToolsCall, Params: jsontext.Value(fmt.Sprintf(`{"name":"n%d","_meta":{"progressToken":"same"}}`, i))}
						var got bytes.Buffer
						call.Notify = func(method string, params jsontext.Value) { fmt.Fprintf(&got, "%s %s\n", method, params) }
						result, err := c.Call(t.Context(), call)
						wantOutcome(t, "call", result, err, fmt.Sprintf(`{"is":"n%d"}`, i))
						var want bytes.Buffer
						for i := range steps {
							fmt.Fprintf(&want, "notifications/progress {\"progressToken\":\"same\",\"progress\":%d,\"extra\":9007199254740993}\n", i)
						}
						if got.String() != want.String() {
							t.Errorf("got\n%swant\n%s", got.String(), want.String())
						}
					})
				}
				group.Wait()
			})
		})
	}
}
