package mcp

import (
	"context"
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

// logging is a call whose caller wants log messages of a level.
func logging(name, level string) *Call {
	return &Call{Method: MethodToolsCall, Params: jsontext.Value(`{"name":"` + name + `","_meta":{"io.modelcontextprotocol/logLevel":"` + level + `"}}`)}
}

// TestStdioLegacyLogs: log messages name no call, so those who want them take
// turns, and get their own at their own level and nobody else's.
func TestStdioLegacyLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running := 0
		c, p := connectPeer(t, legacyPeer(func(p *peer, m *Message) {
			if m.Method != MethodToolsCall {
				return
			}
			go func() {
				name := FieldString(m.Params, "name")
				mu.Lock()
				if running++; running > 1 {
					t.Errorf("%s runs beside another", name)
				}
				mu.Unlock()
				for _, level := range []string{"debug", "info", "error", "whatever"} {
					p.line(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"%s","data":"%s"}}`, level, name)
				}
				time.Sleep(time.Second)
				mu.Lock()
				running--
				mu.Unlock()
				p.result(m, `{}`)
			}()
		}), ConnectOptions{})
		defer closeConn(t, c)
		var group sync.WaitGroup
		var order []string
		for i, level := range []string{"info", "debug", "error", "info"} {
			group.Go(func() {
				call := logging(fmt.Sprintf("n%d", i), level)
				var got []string
				call.Notify = func(_ string, params jsontext.Value) {
					got = append(got, FieldString(params, "level")+FieldString(params, "data"))
				}
				_, err := c.Call(t.Context(), call)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, call.Params.String()[8:12])
				mu.Unlock()
				var want []string
				for j, l := range []string{"debug", "info", "error"} {
					if j >= map[string]int{"debug": 0, "info": 1, "error": 2}[level] {
						want = append(want, fmt.Sprintf("%sn%d", l, i))
					}
				}
				want = append(want, fmt.Sprintf("whatevern%d", i))
				if !slices.Equal(got, want) {
					t.Errorf("call %d got %v, want %v", i, got, want)
				}
			})
			synctest.Wait() // so that they come in this order
		}
		group.Wait()
		if got := strings.Join(order, " "); got != `"n0" "n1" "n2" "n3"` {
			t.Errorf("order %s", got)
		}
		var levels []string
		for _, m := range p.got {
			if m.Method == MethodSetLevel {
				levels = append(levels, FieldString(m.Params, "level"))
			}
			if m.Method == MethodToolsCall && strings.Contains(m.Params.String(), "logLevel") {
				t.Errorf("a legacy server gets %s", m.Params)
			}
		}
		if got := strings.Join(levels, " "); got != "info debug" { // more verbose only
			t.Errorf("levels set: %s", got)
		}
	})
}

// TestStdioTurns: a queue has its own time and its own error; lists pass it by.
func TestStdioTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := connectPeer(t, legacyPeer(func(p *peer, m *Message) {
			switch m.Method {
			case MethodToolsList:
				p.result(m, `{"tools":[]}`)
			case MethodToolsCall:
				go func() {
					time.Sleep(20 * time.Second)
					p.result(m, `{"name":`+string(Field(m.Params, "name"))+`}`)
				}()
			}
		}), ConnectOptions{})
		defer closeConn(t, c)
		began := time.Now()
		var group sync.WaitGroup
		call := func(name, want string, after time.Duration) {
			group.Go(func() {
				x := logging(name, "info")
				x.Timeout = 25 * time.Second // which its time in the queue does not use up
				result, err := c.Call(t.Context(), x)
				wantOutcome(t, name, result, err, want)
				if f, ok := asFault(err); ok && !f.Retryable {
					t.Errorf("%s was not sent, so it can be repeated", name)
				}
				if took := time.Since(began); took != after {
					t.Errorf("%s took %v, want %v", name, took, after)
				}
			})
			synctest.Wait()
		}
		call("a", `{"name":"a"}`, 20*time.Second)
		call("b", `{"name":"b"}`, 40*time.Second)
		call("c", "timeout/stdio_queue_timeout", 30*time.Second)
		ctx, cancel := context.WithCancelCause(t.Context())
		group.Go(func() {
			_, err := c.Call(ctx, logging("d", "info"))
			if err != errGaveUp {
				t.Errorf("cancelled in the queue: %v", err)
			}
		})
		synctest.Wait()
		cancel(errGaveUp)
		if result, err := c.Call(t.Context(), &Call{Method: MethodToolsList}); outcome(result, err) != `{"tools":[]}` || time.Since(began) != 0 {
			t.Errorf("tools/list: %s %v after %v", result, err, time.Since(began))
		}
		group.Wait()
		if got := strings.Count(strings.Join(p.methods(), " "), MethodToolsCall); got != 2 {
			t.Errorf("%d calls were sent, want 2", got)
		}
	})
}

var errGaveUp = fmt.Errorf("gave up")

// TestStdioLegacyAsks: a server may ask the caller whose call runs alone; what
// nobody certainly asked for is refused.
func TestStdioLegacyAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers []string
		var call *Message
		c, _ := connectPeer(t, legacyPeer(func(p *peer, m *Message) {
			switch {
			case m.Method == MethodToolsCall:
				call, answers = m, nil
				p.line(`{"jsonrpc":"2.0","id":"e1","method":"elicitation/create","params":{"message":"sure?"}}`)
				p.line(`{"jsonrpc":"2.0","id":7,"method":"ping"}`)
			case m.IsResponse():
				if answers = append(answers, string(m.ID)+string(m.Result)+outcome(nil, m.errOrNil())); len(answers) == 2 {
					slices.Sort(answers)
					p.result(call, `{}`)
				}
			}
		}), ConnectOptions{})
		defer closeConn(t, c)
		x := &Call{
			Method: MethodToolsCall, Timeout: time.Second,
			Params: jsontext.Value(`{"name":"a","_meta":{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}`),
			Request: func(_ context.Context, method string, params jsontext.Value) (jsontext.Value, *Error) {
				time.Sleep(time.Minute) // a human; the call's own time stands still
				return jsontext.Value(`{"action":"accept","of":"` + method + `","m":` + string(Field(params, "message")) + `}`), nil
			},
		}
		result, err := c.Call(t.Context(), x)
		wantOutcome(t, "with Request", result, err, `{}`)
		if got := strings.Join(answers, "\n"); got != `"e1"{"action":"accept","of":"elicitation/create","m":"sure?"}`+"\n7{}" {
			t.Errorf("answers:\n%s", got)
		}
		x = toolCall("b") // whose caller declared nothing, so that it runs beside others
		x.Request = func(context.Context, string, jsontext.Value) (jsontext.Value, *Error) {
			t.Error("asked")
			return nil, nil
		}
		result, err = c.Call(t.Context(), x)
		wantOutcome(t, "without", result, err, `{}`)
		if got := strings.Join(answers, "\n"); !strings.HasPrefix(got, `"e1"elicitation/create is refused`) {
			t.Errorf("answers:\n%s", got)
		}
	})
}

func (m *Message) errOrNil() error {
	if m.Err == nil {
		return nil
	}
	return m.Err
}

// TestStdioWithdrawn: a request of the server's ends when it is withdrawn, and
// with the call.
func TestStdioWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, p := connectPeer(t, legacyPeer(func(p *peer, m *Message) {
			if m.Method != MethodToolsCall {
				return
			}
			p.line(`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{}}`)
			p.line(`{"jsonrpc":"2.0","id":2,"method":"elicitation/create","params":{}}`)
			p.line(`{"jsonrpc":"2.0","id":2,"method":"elicitation/create","params":{}}`) // the same id twice
			go func() {
				time.Sleep(time.Second)
				p.line(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
				time.Sleep(time.Second)
				p.result(m, `{}`)
			}()
		}), ConnectOptions{})
		defer closeConn(t, c)
		var ended []time.Duration
		var mu sync.Mutex
		began := time.Now()
		_, err := c.Call(t.Context(), &Call{
			Method: MethodToolsCall,
			Params: jsontext.Value(`{"name":"a","_meta":{"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}`),
			Request: func(ctx context.Context, _ string, _ jsontext.Value) (jsontext.Value, *Error) {
				<-ctx.Done()
				mu.Lock()
				defer mu.Unlock()
				ended = append(ended, time.Since(began))
				return jsontext.Value(`{}`), nil
			},
		})
		if err != nil || !slices.Equal(ended, []time.Duration{time.Second, 2 * time.Second}) {
			t.Errorf("ended %v, error %v", ended, err)
		}
		synctest.Wait()
		if got := strings.Count(strings.Join(p.methods(), " "), "response"); got != 1 { // the refusal of the second 2
			t.Errorf("%d responses were sent: %v", got, p.methods())
		}
	})
}

// TestStdioCancel: the server is told at once, with the id that it knows; what
// it has not got is not sent at all; initialize is never cancelled.
func TestStdioCancel(t *testing.T) {
	for _, era := range []Era{EraLegacy, EraModern} {
		t.Run(string(era), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				script := func(*peer, *Message) {}
				if era == EraLegacy {
					script = legacyPeer(script)
				} else {
					script = modernPeer(script)
				}
				c, p := connectPeer(t, script, ConnectOptions{})
				defer closeConn(t, c)
				ctx, cancel := context.WithCancelCause(t.Context())
				go func() {
					synctest.Wait()
					cancel(errGaveUp)
				}()
				if _, err := c.Call(ctx, toolCall("a")); err != errGaveUp {
					t.Errorf("error %v", err)
				}
				synctest.Wait()
				call, told := p.last(MethodToolsCall), p.last(NotifyCancelled)
				if told == nil || string(Field(told.Params, "requestId")) != string(call.ID) {
					t.Errorf("told %+v of %s", told, call.ID)
				}
				sent := len(p.methods())
				if _, err := c.Call(ctx, toolCall("b")); err != errGaveUp || len(p.methods()) != sent {
					t.Errorf("a call with an ended ctx: %v, sent %v", err, p.methods()[sent:])
				}
			})
		})
	}
	t.Run("initialize", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			pipe, p := play(func(*peer, *Message) {})
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if _, err := ConnectStdio(ctx, pipe, ConnectOptions{}); err != context.DeadlineExceeded {
				t.Errorf("error %v", err)
			}
			synctest.Wait()
			if got := strings.Join(p.methods(), " "); got != "server/discover initialize" {
				t.Errorf("sent %s", got)
			}
		})
	})
}

// TestOutbox: what is urgent goes first, and what is taken back not at all.
func TestOutbox(t *testing.T) {
	o := newOutbox()
	o.push([]byte("a\n"))
	b := o.push([]byte("b"))
	o.push([]byte("c"))
	o.jump([]byte("x"))
	if !o.withdraw(b) {
		t.Error("b was sent")
	}
	if got := string(o.take(nil)); got != "x\na \nc\n" {
		t.Errorf("sent %q", got)
	}
	for range maxUrgent {
		if !o.jump(nil) {
			t.Fatal("refused below the limit")
		}
	}
	if o.jump(nil) {
		t.Error("no limit")
	}
}

// TestStdioStuck: a server that stops reading holds up no call beyond its time.
func TestStdioStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		c, p := connectPeer(t, modernPeer(func(*peer, *Message) { <-stop }), ConnectOptions{})
		var group sync.WaitGroup
		for i := range 5 {
			group.Go(func() {
				call := toolCall(fmt.Sprintf("%d", i))
				call.Timeout = time.Second
				result, err := c.Call(t.Context(), call)
				wantOutcome(t, "call", result, err, "timeout/timeout")
				// The first is at the server and the second in the pipe.
				if f, _ := asFault(err); f == nil || f.Retryable != (i > 1) {
					t.Errorf("call %d: retryable %v", i, f.Retryable)
				}
			})
			synctest.Wait()
		}
		group.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := c.Close(ctx); err != context.DeadlineExceeded || time.Since(began) != time.Second {
			t.Errorf("Close: %v after %v", err, time.Since(began))
		}
		close(stop)
		synctest.Wait()
		if got := strings.Join(p.methods(), " "); got != "server/discover tools/call" {
			t.Errorf("the server got %s", got)
		}
	})
}

// TestStdioTimeout: idle and total time are told apart, and progress extends one
// up to the other.
func TestStdioTimeout(t *testing.T) {
	tests := []struct {
		name           string
		timeout, total time.Duration
		every          time.Duration // of progress, 0 for none
		want           string
		after          time.Duration
	}{
		{"no limit", 0, 0, 0, "{}", time.Hour},
		{"silent", 10 * time.Second, time.Minute, 0, "timeout/timeout", 10 * time.Second},
		{"progress", 10 * time.Second, time.Minute, 7 * time.Second, "timeout/max_total_timeout", time.Minute},
		{"progress, no total", 10 * time.Second, 0, 7 * time.Second, "timeout/timeout", 10 * time.Second},
		{"total alone", 0, 10 * time.Second, 7 * time.Second, "timeout/timeout", 10 * time.Second},
		{"progress to the end", 10 * time.Second, 2 * time.Hour, 7 * time.Second, "{}", time.Hour},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, p := connectPeer(t, modernPeer(func(p *peer, m *Message) {
					if m.Method != MethodToolsCall {
						return
					}
					go func() {
						token := Field(Field(m.Params, "_meta"), "progressToken")
						end := time.Now().Add(time.Hour)
						for test.every > 0 && time.Now().Add(test.every).Before(end) {
							time.Sleep(test.every)
							p.line(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, token)
						}
						time.Sleep(time.Until(end))
						p.result(m, `{}`)
					}()
				}), ConnectOptions{})
				began := time.Now()
				result, err := c.Call(t.Context(), &Call{
					Method: MethodToolsCall, Params: jsontext.Value(`{"name":"a","_meta":{"progressToken":0}}`), Timeout: test.timeout, MaxTotal: test.total,
				})
				wantOutcome(t, "call", result, err, test.want)
				if took := time.Since(began); took != test.after {
					t.Errorf("took %v, want %v", took, test.after)
				}
				if f, ok := asFault(err); ok {
					if f.Retryable || string(Field(f.Details, "elapsed_ms")) != fmt.Sprint(test.after.Milliseconds()) {
						t.Errorf("fault %+v", f)
					}
					synctest.Wait()
					if p.last(NotifyCancelled) == nil {
						t.Error("the server was not told")
					}
				}
				time.Sleep(time.Hour) // so that the script ends
				closeConn(t, c)
			})
		})
	}
}

// TestStdioClose: what is under way ends at once, and the server's input is
// closed, which tells it to exit.
func TestStdioClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := connectPeer(t, legacyPeer(func(*peer, *Message) {}), ConnectOptions{})
		var group sync.WaitGroup
		for range 2 { // the second one waits for its turn
			group.Go(func() {
				_, err := c.Call(t.Context(), logging("a", "info"))
				if f, _ := asFault(err); f == nil || f.Kind != KindUnavailable {
					t.Errorf("error %v", err)
				}
			})
		}
		synctest.Wait()
		closeConn(t, c)
		group.Wait()
		<-c.Done()
		if c.Err() != nil {
			t.Errorf("Err %v", c.Err())
		}
		closeConn(t, c) // again
		_, err := c.Call(t.Context(), toolCall("a"))
		wantOutcome(t, "call after Close", nil, err, "unavailable/backend_unavailable")
	})
}

// TestStdioListen: changes are heard in both eras; the modern stream is opened
// again with back-off when it ends, unless the server has none.
func TestStdioListen(t *testing.T) {
	listen := func(answer func(p *peer, m *Message, n int)) (changes int, streams int) {
		n := 0
		c, p := connectPeer(t, modernPeer(func(p *peer, m *Message) {
			if m.Method == MethodListen {
				n++
				if got := string(Field(m.Params, "notifications")); got != `{"toolsListChanged":true}` {
					t.Errorf("filter %s", got)
				}
				answer(p, m, n)
			}
		}), ConnectOptions{OnListChanged: func(kind ListKind) {
			if kind == ListTools {
				changes++
			}
		}})
		time.Sleep(time.Minute)
		closeConn(t, c)
		return changes, strings.Count(strings.Join(p.methods(), " "), MethodListen)
	}
	ack := func(p *peer, m *Message) {
		p.line(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"toolsListChanged":true},"_meta":{"io.modelcontextprotocol/subscriptionId":%s}}}`, m.ID)
	}
	changed := func(p *peer) { p.line(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`) }
	synctest.Test(t, func(t *testing.T) {
		changes, streams := listen(func(p *peer, m *Message, n int) {
			ack(p, m)
			changed(p)
			if n < 3 {
				p.result(m, `{"resultType":"complete"}`)
			}
		})
		if changes != 3+2 || streams != 3 { // a stream that is opened again may have missed one
			t.Errorf("%d changes on %d streams", changes, streams)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		if changes, streams := listen(func(p *peer, m *Message, _ int) { p.fail(m, CodeMethodNotFound) }); changes != 0 || streams != 1 {
			t.Errorf("no such stream: %d changes on %d streams", changes, streams)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		if _, streams := listen(func(p *peer, m *Message, _ int) { p.fail(m, CodeInternal) }); streams < 4 || streams > 8 {
			t.Errorf("failing stream: opened %d times in a minute", streams)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		changes := 0
		c, p := connectPeer(t, legacyPeer(func(*peer, *Message) {}), ConnectOptions{OnListChanged: func(ListKind) { changes++ }})
		changed(p)
		synctest.Wait()
		if changes != 1 {
			t.Errorf("legacy: %d changes", changes)
		}
		closeConn(t, c)
	})
}

// TestPipeOwned: the pipe is closed with the connection, and with the error of
// one that could not be made.
func TestPipeOwned(t *testing.T) {
	_, out := io.Pipe()
	in, _ := io.Pipe()
	if _, err := ConnectStdio(t.Context(), Pipe{Out: out, In: in}, ConnectOptions{Era: "nonsense"}); !IsKind(err, KindInvalid) {
		t.Errorf("error %v", err)
	}
	if _, err := out.Write([]byte("x")); err == nil {
		t.Error("Out is open")
	}
	if _, err := in.Read(make([]byte, 1)); err == nil {
		t.Error("In is open")
	}
}
