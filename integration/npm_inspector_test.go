//go:build npm

package integration_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"toolhub/integration/hubproc"
)

// frontOf is one address before routers: each message goes to the one that choose
// names for it.
func frontOf(t *testing.T, choose func(body []byte) *hubproc.Hub) *httptest.Server {
	t.Helper()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		target, err := url.Parse(choose(body).URL)
		if err != nil {
			t.Error(err)
			return
		}
		(&httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
			FlushInterval: -1,
			ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
		}).ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
	})
	return front
}

// slay ends a program as a crash does.
func slay(t *testing.T, h *hubproc.Hub) {
	t.Helper()
	if err := syscall.Kill(h.PID(), syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	<-h.Done()
}

// TestNpmInspectorSurvivesItsRouter: behind one address there are two routers. The
// one that the inspector starts its session on is killed before its next message,
// and the inspector notices nothing: the other goes on with the session. Since its
// command line neither listens nor is asked, a client of the tests does the rest.
func TestNpmInspectorSurvivesItsRouter(t *testing.T) {
	t.Parallel()
	yaml := fmt.Sprintf(`hub: inspected
nats: {url: %q}
policy: allow_all
servers:
  every: {command: %q, env: {MARK: "{dir}"}}
  old: {command: %[2]q, era: legacy, env: {MARK: "{dir}"}}
`, natsServer(t), binary("everyfeature"))
	definer := startProgram(t, hubproc.Config{Binary: binary("hub"), Dir: t.TempDir(), YAML: yaml})
	offered(t, definer, "every__echo", "old__echo")
	stop(t, definer)
	program(t, "hub-worker", yaml, false)
	router := func() *hubproc.Hub {
		r := program(t, "hub-router", yaml, true)
		offered(t, r, "every__echo", "old__echo")
		return r
	}
	for _, step := range []struct{ want, args string }{
		{`"every__echo"`, "--method tools/list"},
		{"onwards", "--method tools/call --tool-name every__echo --tool-arg text=onwards"},
		{"the content of every://items/7", "--method resources/read --uri mcp-proxy://every/every://items/7"},
		{"Hello, Ada!", "--method prompts/get --prompt-name every__greet --prompt-args name=Ada"},
	} {
		one, two := router(), router()
		inspected(t, one, two, step.want, strings.Fields(step.args)...)
		stop(t, two)
	}
	one, two := router(), router()
	outlived(t, one, two)
	stop(t, two)
}

// inspected runs the inspector, and kills the first router once it has opened the
// session there.
func inspected(t *testing.T, one, two *hubproc.Hub, want string, args ...string) {
	t.Helper()
	var mu sync.Mutex // guards what is below
	begun, killed, after := 0, false, 0
	front := frontOf(t, func(body []byte) *hubproc.Hub {
		mu.Lock()
		defer mu.Unlock()
		initialize := bytes.Contains(body, []byte(`"method":"initialize"`))
		if begun > 0 && !initialize && !killed {
			killed = true
			slay(t, one)
		}
		if initialize {
			begun++
		}
		if !killed {
			return one
		}
		after++
		return two
	})
	config := filepath.Join(t.TempDir(), "inspector.json")
	data, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"hub": map[string]string{"type": "streamable-http", "url": front.URL + "/mcp", "protocolEra": "legacy"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := inspector(t, config, "hub", args...); !strings.Contains(got, want) {
		t.Errorf("%v: %.200s", args, got)
	}
	mu.Lock()
	defer mu.Unlock()
	if begun != 1 || !killed || after == 0 {
		t.Errorf("%v: %d sessions were started, want 1; the router was killed %v, and %d messages came after that", args, begun, killed, after)
	}
}

// outlived is what a session does besides requests: questions are answered at
// another router than the one that asks, and also when that one's twin, where the
// session began, dies meanwhile; the stream is opened again at the other.
func outlived(t *testing.T, one, two *hubproc.Hub) {
	t.Helper()
	var at atomic.Pointer[hubproc.Hub]
	at.Store(one)
	front := frontOf(t, func([]byte) *hubproc.Hub { return at.Load() })
	var meanwhile func() // happens while the user thinks
	c := (&eraClient{t: t, url: front.URL + "/mcp", capabilities: everything, user: func(string, json.RawMessage) string {
		meanwhile()
		return `{"action":"accept","content":{"answer":"yes"}}`
	}}).open()
	call := func(tool, args, want string) {
		t.Helper()
		if got := firstText(c.do("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, args))); got != want {
			t.Errorf("%s: %.200s, want %s", tool, got, want)
		}
	}
	watched := "mcp-proxy://old/every://watched"
	before := c.listen(watched)
	for _, server := range []string{"every", "old"} {
		at.Store(one)
		meanwhile = func() { at.Store(two) }
		call(server+"__ask", `{"text":"asked here, answered there"}`, "accept yes")
	}
	at.Store(two)
	meanwhile = func() { slay(t, one) }
	call("old__ask", `{"text":"asked when the router dies"}`, "accept yes")
	late := soon(t).Done()
	for open := true; open; {
		select {
		case _, open = <-before:
		case <-late:
			t.Fatal("the stream of the killed router goes on")
		}
	}
	if e := c.do("tools/list", "{}"); !strings.Contains(e.String(), `"old__ask"`) {
		t.Errorf("tools/list: %.200s", e)
	}
	meanwhile = func() {}
	for _, server := range []string{"every", "old"} {
		call(server+"__echo", `{"text":"onwards"}`, "onwards")
		call(server+"__ask", `{"text":"again"}`, "accept yes")
	}
	// One of each may be what happened while there was no stream. Two are not.
	after := c.listenTo("")
	for n := range 2 {
		call("old__touch", `{"text":"every://watched"}`, "touched every://watched")
		hears(t, after, "notifications/resources/updated", `"`+watched+`"`)
		call("old__change", fmt.Sprintf(`{"text":"tools","steps":%d}`, n), "changed tools")
		hears(t, after, "notifications/tools/list_changed", "")
	}
}
