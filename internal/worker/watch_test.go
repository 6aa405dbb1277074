package worker

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// listening is a subscriptions/listen that runs.
type listening struct {
	t      *testing.T
	cancel context.CancelFunc
	heard  chan string
	ended  chan error
	result string // set before ended has something
}

func (h *testHub) listen(t *testing.T, server string, uris ...string) *listening {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &listening{t: t, cancel: cancel, heard: make(chan string, 1000), ended: make(chan error, 1)}
	t.Cleanup(cancel)
	body := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":[%s]}}}`, quoted(uris))
	request := &bus.Request{Subject: bus.CallSubject("test", server, h.ready(server).Epoch(), mcp.MethodListen), Body: body, Worker: "w1"}
	go func() {
		reply, err := h.conn.Call(ctx, request, func(body []byte) {
			m, err := mcp.ParseMessage(body, mcp.Strict)
			if err != nil {
				l.heard <- err.Error()
				return
			}
			l.heard <- strings.TrimPrefix(m.Method, "notifications/") + " " + string(m.Params)
		})
		l.result = string(reply.Body)
		l.ended <- err
	}()
	return l
}

func quoted(uris []string) string {
	var out []string
	for _, uri := range uris {
		out = append(out, fmt.Sprintf("%q", uri))
	}
	return strings.Join(out, ",")
}

// hear waits for a message, and passes over others.
func (l *listening) hear(want string) {
	l.t.Helper()
	var others []string
	for timeout := time.After(patience); ; {
		select {
		case got := <-l.heard:
			if got == want {
				return
			}
			others = append(others, got)
		case <-timeout:
			l.t.Fatalf("never heard %s, but %v", want, others)
		}
	}
}

func (h *testHub) touch(server string, uris ...string) {
	h.t.Helper()
	for _, uri := range uris {
		if got := h.text(server, "touch", fmt.Sprintf(`{"uri":%q}`, uri)); got != "touched" {
			h.t.Fatalf("touch: %s", got)
		}
	}
}

// TestWatch: whoever listens hears of what it may read, listed or not, and of
// parts of it, and nobody hears of anything else.
func TestWatch(t *testing.T) {
	t.Parallel()
	for _, era := range []string{"modern", "legacy"} {
		t.Run(era, func(t *testing.T) {
			t.Parallel()
			yaml := func(more string) string {
				return "policy: {allow: ['*/*'], deny: ['*/resource:lib:secret*'" + more + "]}\nservers:\n  lib: " + child("library", "era: "+era, "restart_backoff: {initial: 1ms, max: 10ms}") + "\n"
			}
			h := newTestHub(t, yaml(""))
			one := h.listen(t, "lib", "lib:news", "lib:secret", "lib:static", "lib:shelf/", "lib:book/7")
			one.hear(`subscriptions/acknowledged {"notifications":{"resourceSubscriptions":["lib:book/7","lib:news","lib:shelf/"]}}`)
			two := h.listen(t, "lib", "lib:news")
			two.hear(`subscriptions/acknowledged {"notifications":{"resourceSubscriptions":["lib:news"]}}`)
			h.touch("lib", "lib:news", "lib:book/7")
			one.hear(`resources/updated {"uri":"lib:news"}`)
			one.hear(`resources/updated {"uri":"lib:book/7"}`)
			two.hear(`resources/updated {"uri":"lib:news"}`)
			// Whoever goes takes nobody else's subscription along.
			two.cancel()
			if err := <-two.ended; err == nil {
				t.Error("a cancelled listen ends without an error")
			}
			h.touch("lib", "lib:news")
			one.hear(`resources/updated {"uri":"lib:news"}`)
			// Access is checked when there is something to tell.
			h.apply(yaml(", '*/resource:lib:book/*'"))
			denied := withMeta(`{"uri":"lib:book/7"}`)
			h.until("the new policy", func(*registry.View) bool {
				_, err := h.askAs(mcp.EraModern, "lib", mcp.MethodResourcesRead, denied)
				return mcp.IsKind(err, mcp.KindDenied)
			})
			for len(one.heard) > 0 {
				<-one.heard
			}
			h.touch("lib", "lib:book/7", "lib:news")
			if got := <-one.heard; got != `resources/updated {"uri":"lib:news"}` {
				t.Errorf("heard of what is denied now: %s", got)
			}
			// A new process must be asked again, and what it changed before nobody knows.
			_, _ = h.do(testCall{server: "lib", tool: "exit"})
			one.hear(`resources/updated {"uri":"lib:news"}`)
			h.ready("lib")
			for len(one.heard) > 0 {
				<-one.heard
			}
			h.touch("lib", "lib:shelf/")
			one.hear(`resources/updated {"uri":"lib:shelf/"}`)
			// The end of the server is the end of the subscription, in good order.
			h.worker.stop(errTestEnds)
			if err := <-one.ended; err != nil || !strings.Contains(one.result, `"resultType":"complete"`) {
				t.Errorf("at the end: %s, %v", one.result, err)
			}
		})
	}
}

func TestBadListen(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  lib: "+child("library")+"\n")
	for _, params := range []string{`{}`, `{"notifications":7}`, `{"notifications":{"resourceSubscriptions":{}}}`, `{"notifications":{"resourceSubscriptions":[7]}}`} {
		if _, err := h.askAs(mcp.EraModern, "lib", mcp.MethodListen, params); !mcp.IsKind(err, mcp.KindInvalid) || !strings.Contains(err.Error(), "params.notifications") {
			t.Errorf("%s: %v", params, err)
		}
	}
}
