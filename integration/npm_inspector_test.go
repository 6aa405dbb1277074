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
	"syscall"
	"testing"

	"toolhub/integration/hubproc"
)

// TestNpmInspectorSurvivesItsRouter: behind one address there are two routers. The
// one that the inspector starts its session on is killed before its next message,
// and the inspector notices nothing: the other goes on with the session.
func TestNpmInspectorSurvivesItsRouter(t *testing.T) {
	t.Parallel()
	yaml := fmt.Sprintf("hub: inspected\nnats: {url: %q}\npolicy: allow_all\nservers:\n  every: {command: %q, env: {MARK: \"{dir}\"}}\n", natsServer(t), binary("everyfeature"))
	definer := startProgram(t, hubproc.Config{Binary: binary("hub"), Dir: t.TempDir(), YAML: yaml})
	offered(t, definer, "every__echo")
	stop(t, definer)
	program(t, "hub-worker", yaml, false)
	for _, step := range []struct{ want, args string }{
		{`"every__echo"`, "--method tools/list"},
		{"onwards", "--method tools/call --tool-name every__echo --tool-arg text=onwards"},
		{"the content of every://items/7", "--method resources/read --uri mcp-proxy://every/every://items/7"},
		{"Hello, Ada!", "--method prompts/get --prompt-name every__greet --prompt-args name=Ada"},
	} {
		one, two := program(t, "hub-router", yaml, true), program(t, "hub-router", yaml, true)
		offered(t, one, "every__echo")
		offered(t, two, "every__echo")
		var mu sync.Mutex
		begun, killed, after := false, false, 0
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			initialize := bytes.Contains(body, []byte(`"method":"initialize"`))
			mu.Lock()
			if begun && !initialize && !killed {
				killed = true
				if err := syscall.Kill(one.PID(), syscall.SIGKILL); err != nil {
					t.Error(err)
				}
				<-one.Done()
			}
			begun = begun || initialize
			to := one
			if killed {
				to, after = two, after+1
			}
			mu.Unlock()
			target, err := url.Parse(to.URL)
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
		config := filepath.Join(t.TempDir(), "inspector.json")
		data, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"hub": map[string]string{"type": "streamable-http", "url": front.URL + "/mcp", "protocolEra": "legacy"}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(config, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := inspector(t, config, "hub", strings.Fields(step.args)...); !strings.Contains(got, step.want) {
			t.Errorf("%s: %.400s", step.args, got)
		}
		front.CloseClientConnections()
		front.Close()
		mu.Lock()
		if !killed || after == 0 {
			t.Errorf("%s: the router was killed %v, and %d messages came after that", step.args, killed, after)
		}
		mu.Unlock()
		stop(t, two)
	}
}
