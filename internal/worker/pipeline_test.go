package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	experimental "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/config"
	"toolhub/internal/mcp"
	"toolhub/internal/policy"
)

const testbeds = "servers:\n  bed: {builtin: testbed}\n  old: {builtin: testbed, era: legacy}\n"

// Whoever may publish on the call subjects gets past no rule (P10).
func TestPolicyCannotBeBypassed(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, `
policy:
  deny: ["bed/fail", {tool: "bed/echo", when: "has(args.text) && args.text == 'secret'"}]
  ask: ["bed/slow"]
  allow: ["bed/*", "picky/echo", {tool: "picky/odd", when: "principal == 'ada'"}]
tools: {exclude: ["bed/big"]}
servers:
  bed: {builtin: testbed}
  picky: {builtin: testbed}
`)
	h.ready("picky")
	for name, c := range map[string]struct {
		call   testCall
		kind   mcp.Kind // "" is allowed
		reason string
	}{
		"allowed":             {testCall{server: "bed", tool: "echo"}, "", ""},
		"denied":              {testCall{server: "bed", tool: "fail"}, mcp.KindDenied, "policy"},
		"ask without anybody": {testCall{server: "bed", tool: "slow"}, mcp.KindDenied, "approval_required"},
		"by argument":         {testCall{server: "bed", tool: "echo", args: `{"text":"secret"}`}, mcp.KindDenied, "policy"},
		"escaped argument":    {testCall{server: "bed", tool: "echo", args: `{"t\u0065xt":"s\u0065cret"}`}, mcp.KindDenied, "policy"},
		"duplicate argument":  {testCall{server: "bed", tool: "echo", args: `{"text":"x","text":"secret"}`}, mcp.KindInvalid, "invalid_request"},
		"duplicate escaped":   {testCall{server: "bed", tool: "echo", args: `{"text":"x","t\u0065xt":"secret"}`}, mcp.KindInvalid, "invalid_request"},
		"two arguments":       {testCall{server: "bed", tool: "echo", extra: `,"arguments":{"text":"secret"}`}, mcp.KindInvalid, "invalid_request"},
		"two names":           {testCall{server: "bed", tool: "echo", extra: `,"name":"fail"`}, mcp.KindInvalid, "invalid_request"},
		"filtered out":        {testCall{server: "bed", tool: "big"}, mcp.KindNotFound, "unknown_tool"},
		"unknown":             {testCall{server: "bed", tool: "nothing"}, mcp.KindNotFound, "unknown_tool"},
		"exposed name":        {testCall{server: "bed", tool: "bed__echo"}, mcp.KindNotFound, "unknown_tool"},
		"no rule":             {testCall{server: "picky", tool: "numbers"}, mcp.KindDenied, "policy"},
		"another principal":   {testCall{server: "picky", tool: "odd", principal: "eve"}, mcp.KindDenied, "policy"},
		"the right principal": {testCall{server: "picky", tool: "odd", principal: "ada"}, "", ""},
		"claimed principal":   {testCall{server: "picky", tool: "odd", meta: map[string]string{"principal": `"ada"`, "toolhub/principal": `"ada"`}}, mcp.KindDenied, "policy"},
		"by the worker's own": {testCall{server: "bed", tool: "fail", subject: bus.AtSubject("test", "w1", "bed", mcp.MethodToolsCall)}, mcp.KindDenied, "policy"},
		"with a parked state": {testCall{server: "bed", tool: "fail", extra: `,"requestState":"toolhub-park:w1:x"`}, mcp.KindDenied, "policy"},
		"another epoch":       {testCall{server: "bed", tool: "echo", epoch: 1 << 40}, mcp.KindUnavailable, bus.ReasonNoResponders},
		"any epoch":           {testCall{server: "bed", tool: "echo", subject: bus.CallSubject("test", "bed", bus.AnyEpoch, mcp.MethodToolsCall)}, mcp.KindUnavailable, bus.ReasonNoResponders},
		"wrong method":        {testCall{server: "bed", tool: "fail", subject: bus.CallSubject("test", "bed", h.ready("bed").Epoch(), mcp.MethodToolsList)}, mcp.KindInvalid, "invalid_request"},
	} {
		_, err := h.do(c.call)
		if c.kind == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		f, ok := errors.AsType[*mcp.Fault](err)
		if !ok || f.Kind != c.kind || f.Reason != c.reason || f.Server == "" {
			t.Errorf("%s: %v, want %s (%s)", name, err, c.kind, c.reason)
		}
	}
	denied := h.event("call", "bed", "denied", 1)
	if field(denied, "rule") == "" || field(denied, "tool") == "" || strings.Contains(fmt.Sprint(denied.Data), "secret") {
		t.Errorf("event %s", denied.Data)
	}
	h.event("call", "picky", "finished", 1)
	if started, _ := h.events.all("call", "picky", "started"); len(started) != 1 {
		t.Errorf("%d calls of picky began, want 1", len(started))
	}
	// What the list offers is what may be called.
	list, err := h.ask(bus.CallSubject("test", "picky", h.ready("picky").Epoch(), mcp.MethodToolsList), []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`), "eve", nil)
	if err != nil || strings.Count(string(list), `"inputSchema"`) != 1 || !strings.Contains(string(list), `"name":"echo"`) {
		t.Errorf("list for eve: %s, %v", list, err)
	}
	list, err = h.ask(bus.CallSubject("test", "bed", h.ready("bed").Epoch(), mcp.MethodToolsList), []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`), "", nil)
	if err != nil || strings.Contains(string(list), `"name":"fail"`) || strings.Contains(string(list), `"name":"big"`) || !strings.Contains(string(list), `"name":"slow"`) {
		t.Errorf("list of bed: %s, %v", list, err)
	}
}

// A hub whose settings cannot be read allows nothing.
func TestNoPolicyNoCall(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\n"+testbeds)
	h.text("bed", "echo", "")
	if _, err := h.conn.Put(t.Context(), bus.BucketDefs, bus.Key(bus.KeySettings), []byte(`{"policy":"nobody"}`), bus.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	h.untilFault(testCall{server: "bed", tool: "echo"}, mcp.KindDenied)
}

func TestBadCalls(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\n"+testbeds)
	s := h.ready("bed")
	subject := bus.CallSubject("test", "bed", s.Epoch(), mcp.MethodToolsCall)
	for _, body := range []string{
		``, `x`, `{`, `[]`, `[{"jsonrpc":"2.0","id":1,"method":"tools/call"}]`, `null`, `{"jsonrpc":"2.0","method":"tools/call"}`,
		`{"jsonrpc":"1.0","id":1,"method":"tools/call","params":{"name":"echo"}}`, `{"jsonrpc":"2.0","id":1,"result":{}}`,
		`{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"echo"}}`, `{"jsonrpc":"2.0","id":1.5,"method":"tools/call","params":{"name":"echo"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}`, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}`, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":[]}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","_meta":7}}`, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","requestState":{}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","inputResponses":[]}}`, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"echo\",\"arguments\":{\"text\":\"\xff\"}}}",
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"a":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","_meta":{"progressToken":{}}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","_meta":{"io.modelcontextprotocol/logLevel":"loud"}}}`,
	} {
		if _, err := h.ask(subject, []byte(body), "", nil); !mcp.IsKind(err, mcp.KindInvalid) {
			t.Errorf("%.120q: %v", body, err)
		}
	}
	_, err := h.ask(bus.CallSubject("test", "bed", s.Epoch(), "resources/write"), []byte(`{"jsonrpc":"2.0","id":1,"method":"resources/write"}`), "", nil)
	if e, ok := errors.AsType[*mcp.Error](err); !ok || e.Code != mcp.CodeMethodNotFound {
		t.Errorf("an unknown method: %v", err)
	}
	if got := h.text("bed", "echo", `{"text":"still here"}`); got != "still here" {
		t.Errorf("echo gives %q", got)
	}
}

// What a server answers arrives as it was sent (K8).
func TestPassThrough(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\n"+testbeds)
	for _, id := range []string{"bed", "old"} {
		for tool, raw := range testbedRaw {
			got, err := h.do(testCall{server: id, tool: tool})
			want := strings.Replace(raw, `{"resultType":"complete",`, `{`, 1)
			if err != nil || strings.Replace(string(got), `{"resultType":"complete",`, `{`, 1) != want || mcp.FieldString(got, "resultType") != "complete" {
				t.Errorf("%s/%s: %s, %v", id, tool, got, err)
			}
		}
		_, err := h.do(testCall{server: id, tool: "fail_rpc", args: `{"code":-31999,"message":"as I say"}`})
		if e, ok := errors.AsType[*mcp.Error](err); !ok || e.Code != -31999 || e.Message != "as I say" || string(e.Data) != `{"from":"testbed"}` {
			t.Errorf("%s: the server's own error became %v", id, err)
		}
		if e := h.event("call", id, "finished", 3); field(e, "outcome") != `"error"` {
			t.Errorf("%s: event %s", id, e.Data)
		}
		got, err := h.do(testCall{server: id, tool: "fail", args: `{"message":"m"}`})
		if err != nil || string(mcp.Field(got, "isError")) != "true" {
			t.Errorf("%s: a failed result became %s, %v", id, got, err)
		}
		got, err = h.do(testCall{server: id, tool: "echo", args: `{"text":"ä \u0000 \ud83d\ude00","big":9007199254740993,"x":1e400}`})
		if err != nil || !strings.Contains(string(got), "9007199254740993") || !strings.Contains(string(got), "1e400") {
			t.Errorf("%s: echo gives %s, %v", id, got, err)
		}
		got, err = h.do(testCall{server: id, tool: "big", args: `{"bytes":3000000}`})
		if err != nil || len(textOf(got)) != 3_000_000 {
			t.Errorf("%s: a big result has %d bytes, %v", id, len(got), err)
		}
	}
	info, err := h.ask(bus.CallSubject("test", "old", h.ready("old").Epoch(), mcp.MethodDiscover), []byte(`{"jsonrpc":"2.0","id":1,"method":"server/discover"}`), "", nil)
	if err != nil || mcp.FieldString(info, "instructions") == "" || !strings.Contains(string(info), `"testbed"`) {
		t.Errorf("server/discover: %s, %v", info, err)
	}
	if pong, err := h.ask(bus.CallSubject("test", "old", h.ready("old").Epoch(), mcp.MethodPing), []byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`), "", nil); err != nil {
		t.Errorf("ping: %s, %v", pong, err)
	}
}

// Progress and log messages come before the result, in order, with the caller's
// own token, to the one caller that they belong to (K7, C5).
func TestNotifications(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\n"+testbeds)
	for _, id := range []string{"bed", "old"} {
		h.ready(id)
		var wg sync.WaitGroup
		var logging sync.Mutex
		for n := range 6 {
			wg.Go(func() {
				var notes []string
				token := fmt.Sprintf(`"caller-%d"`, n)
				_, err := h.do(testCall{
					server: id, tool: "slow", args: `{"ms":60,"steps":3}`, id: "1", meta: map[string]string{"progressToken": token},
					notify: func(b []byte) { notes = append(notes, string(b)) },
				})
				if err != nil || len(notes) != 3 {
					t.Errorf("%s: %q, %v", id, notes, err)
				}
				for i, note := range notes {
					if !strings.Contains(note, token) || !strings.Contains(note, fmt.Sprintf(`"step %d"`, i+1)) {
						t.Errorf("%s: notification %d of %s is %s", id, i, token, note)
					}
				}
			})
			wg.Go(func() {
				var notes []string
				level := "error"
				if n%2 == 0 {
					level = "debug"
				}
				if id == "bed" { // where calls run at once, one at a time may want log messages
					logging.Lock()
					defer logging.Unlock()
				}
				_, err := h.do(testCall{
					server: id, tool: "log", args: `{"count":5,"level":"info"}`, meta: map[string]string{mcp.MetaLogLevel: `"` + level + `"`},
					notify: func(b []byte) { notes = append(notes, string(b)) },
				})
				if want := map[string]int{"error": 0, "debug": 5}[level]; err != nil || len(notes) != want {
					t.Errorf("%s: at level %s %d messages, %v", id, level, len(notes), err)
				}
			})
		}
		wg.Wait()
	}
}

func TestCancelAndDeadline(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  bed: {builtin: testbed}\n  old: {builtin: testbed, era: legacy}\n  short: {builtin: testbed, timeout: 500ms, max_total_timeout: 2s}\n")
	for _, id := range []string{"bed", "old"} {
		ctx, cancel := context.WithCancel(t.Context())
		call := h.start(testCall{server: id, tool: "hang", ctx: ctx})
		cancel()
		<-call
		if e := h.event("call", id, "finished", 1); field(e, "outcome") != `"cancelled"` {
			t.Errorf("%s: event %s", id, e.Data)
		}
		if got := h.text(id, "echo", `{"text":"next"}`); got != "next" {
			t.Errorf("%s: echo gives %q", id, got)
		}
		ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err := h.do(testCall{server: id, tool: "hang", ctx: ctx, epoch: h.ready(id).Epoch()})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) && !mcp.IsKind(err, mcp.KindTimeout) {
			t.Errorf("%s: past the deadline: %v", id, err)
		}
		if e := h.event("call", id, "finished", 3); field(e, "outcome") != `"timeout"` && field(e, "outcome") != `"cancelled"` {
			t.Errorf("%s: event %s", id, e.Data)
		}
	}
	// The server's own limit, which progress extends.
	_, err := h.do(testCall{server: "short", tool: "hang"})
	if f := faultOf(t, err); f.Kind != mcp.KindTimeout || f.Retryable || f.Server != "short" {
		t.Errorf("beyond the timeout: %+v", f)
	}
	got, err := h.do(testCall{server: "short", tool: "slow", args: `{"ms":1000,"steps":20}`, meta: map[string]string{"progressToken": "1"}})
	if err != nil {
		t.Errorf("with progress: %s, %v", got, err)
	}
	_, err = h.do(testCall{server: "short", tool: "slow", args: `{"ms":20000,"steps":400}`, meta: map[string]string{"progressToken": "1"}})
	if !mcp.IsKind(err, mcp.KindTimeout) {
		t.Errorf("beyond the total: %v", err)
	}
}

// recorder keeps what a modern HTTP server was asked.
type recorder struct {
	mu       sync.Mutex
	requests []recorded
}

type recorded struct {
	header http.Header
	body   string
}

func (r *recorder) last(method string) (recorded, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.requests) - 1; i >= 0; i-- {
		if strings.Contains(r.requests[i].body, `"method":"`+method+`"`) {
			return r.requests[i], true
		}
	}
	return recorded{}, false
}

// A modern server gets the caller's own _meta, and nothing of the hub's (M3).
func TestCallersMeta(t *testing.T) {
	t.Parallel()
	rec := &recorder{}
	s := newTestbed(func() {})
	s.AddTool(&sdk.Tool{Name: "regional", InputSchema: json.RawMessage(`{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer"}}}`)},
		func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return testbedText("ok"), nil
		})
	inner := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{Stateless: true})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body strings.Builder
		if r.Body != nil {
			buf := make([]byte, 64<<10)
			for {
				n, err := r.Body.Read(buf)
				body.Write(buf[:n])
				if err != nil {
					break
				}
			}
			r.Body = readCloser{strings.NewReader(body.String())}
		}
		rec.mu.Lock()
		rec.requests = append(rec.requests, recorded{r.Header.Clone(), body.String()})
		rec.mu.Unlock()
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := newTestHub(t, "policy: allow_all\nservers:\n  web: {url: "+srv.URL+", auth: {bearer: '${file:"+token+"}'}, headers: {X-Team: blue}}\n")
	_, err := h.do(testCall{
		server: "web", tool: "regional", args: `{"region":"eu west ü","n":1}`,
		caps: `{"elicitation":{"url":{}},"extensions":{"io.modelcontextprotocol/tasks":{},"com.example/x":{"a":1}}}`,
		meta: map[string]string{
			mcp.MetaLogLevel: `"warning"`, "traceparent": `"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"`, "example.org/big": "9007199254740993",
			"toolhub/toolset": `"ts"`, "toolhub/taint": `["other"]`, mcp.MetaClientInfo: `{"name":"theirs","version":"3"}`,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	got, _ := rec.last(mcp.MethodToolsCall)
	m, err := mcp.ParseMessage([]byte(got.body), mcp.Strict)
	if err != nil {
		t.Fatal(err)
	}
	meta := mcp.Field(m.Params, "_meta")
	for name, want := range map[string]string{
		mcp.MetaClientCapabilities: `{"elicitation":{"url":{}},"extensions":{"com.example/x":{"a":1}}}`,
		mcp.MetaLogLevel:           `"warning"`, mcp.MetaClientInfo: `{"name":"theirs","version":"3"}`,
		"traceparent": `"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"`, "example.org/big": "9007199254740993",
		mcp.MetaProtocolVersion: `"` + mcp.LatestModern + `"`, "toolhub/toolset": "", "toolhub/taint": "",
	} {
		if v := string(mcp.Field(meta, name)); v != want {
			t.Errorf("_meta[%q] is %s, want %s", name, v, want)
		}
	}
	if string(mcp.Field(m.Params, "arguments")) != `{"region":"eu west ü","n":1}` {
		t.Errorf("arguments: %s", mcp.Field(m.Params, "arguments"))
	}
	for name, want := range map[string]string{
		"Mcp-Param-Region": mcp.EncodeHeader("eu west ü"), "Mcp-Method": "tools/call", "Mcp-Name": "regional", "Authorization": "Bearer s3cret", "X-Team": "blue",
	} {
		if got.header.Get(name) != want {
			t.Errorf("header %s is %q, want %q", name, got.header.Get(name), want)
		}
	}
}

type readCloser struct{ *strings.Reader }

func (readCloser) Close() error { return nil }

// A list of 10,000 tools arrives, and invalid ones among them are rejected one
// by one, each with an event.
func TestManyAndInvalidTools(t *testing.T) {
	t.Parallel()
	s := sdk.NewServer(&sdk.Implementation{Name: "many", Version: "1"}, &sdk.ServerOptions{PageSize: 500})
	nop := func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return testbedText("ok"), nil
	}
	for i := range 10_000 {
		s.AddTool(&sdk.Tool{Name: fmt.Sprintf("tool_%05d", i), InputSchema: json.RawMessage(`{"type":"object"}`)}, nop)
	}
	s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			res, err := next(ctx, method, req)
			if list, ok := res.(*sdk.ListToolsResult); ok && list.NextCursor == "" {
				list.Tools = append(list.Tools, &sdk.Tool{Name: "with space", InputSchema: json.RawMessage(`{"type":"object"}`)}, &sdk.Tool{Name: "z\u200bw", InputSchema: json.RawMessage(`{"type":"object"}`)})
			}
			return res, err
		}
	})
	h := newTestHub(t, "policy: allow_all\nmax_catalog_items: 20000\nservers:\n  many: {url: "+serveHTTP(t, s)+"}\n")
	srv := h.ready("many")
	if len(srv.Catalog.Tools) != 10_000 || len(srv.Status.Rejected) != 2 || srv.Status.Rejected[0].Reason != catalog.ReasonInvalidName {
		t.Errorf("%d tools, rejected %+v", len(srv.Catalog.Tools), srv.Status.Rejected)
	}
	if e := h.event("tool", "many", "rejected", 2); field(e, "reason") != `"invalid_name"` {
		t.Errorf("event %s", e.Data)
	}
	if got := h.text("many", "tool_09999", ""); got != "ok" {
		t.Errorf("the last tool gives %q", got)
	}
}

func TestModernResult(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{}`:                                    `{"resultType":"complete"}`,
		`{"content":[]}`:                        `{"resultType":"complete","content":[]}`,
		" { \n\"content\":[]}":                  `{"resultType":"complete","content":[]}`,
		`{"resultType":"input_required"}`:       `{"resultType":"input_required"}`,
		`{"content":[],"resultType":"x"}`:       `{"content":[],"resultType":"x"}`,
		`{"a":1,"resultType":"complete"}`:       `{"a":1,"resultType":"complete"}`,
		`{"a":{"b":1,"resultType":"complete"}}`: `{"resultType":"complete","a":{"b":1,"resultType":"complete"}}`,
		`{"a":",\"resultType\":\"complete"}`:    `{"resultType":"complete","a":",\"resultType\":\"complete"}`,
		`{"a":{"resultType":"complete"}}`:       `{"resultType":"complete","a":{"resultType":"complete"}}`,
		`{"a":"\"resultType\":\"c\"","b":1}`:    `{"resultType":"complete","a":"\"resultType\":\"c\"","b":1}`,
	} {
		if got, err := modernResult(jsontext.Value(in)); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	for _, in := range []string{`[]`, `null`, `"x"`, ``} {
		if _, err := modernResult(jsontext.Value(in)); !mcp.IsKind(err, mcp.KindProtocol) {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// sameJSON reports whether two arguments objects are the same to a policy; an
// absent one is empty.
func sameJSON(a, b jsontext.Value) bool {
	digest := func(v jsontext.Value) string {
		d, err := digestParams(jsontext.Value(`{"arguments":` + or(string(v), "{}") + `}`))
		if err != nil {
			return err.Error() + string(v)
		}
		return d
	}
	return digest(a) == digest(b)
}

func TestCallEventIsWhatTheTagsSay(t *testing.T) {
	t.Parallel()
	for _, e := range []callEvent{
		{CallID: "c", Tool: "t", Definition: "d"},
		{CallID: "c\"\n", Principal: "ä", Tool: "t", Definition: "d", Rule: "deny[0]", ToolSet: "ts", Outcome: "ok", DurationMS: 0.125},
		{CallID: "c", Tool: "t", Definition: "d", Arguments: jsontext.Value("{}"), Truncated: true},
		{CallID: "c", Tool: "t", Definition: "d", DurationMS: 1, Result: jsontext.Value(`{"a": [1]}`)},
	} {
		want, err := json.Marshal(e)
		if got := e.json(); err != nil || !sameJSON(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func FuzzReadCallParams(f *testing.F) {
	f.Add([]byte(`{"name":"a","arguments":{"x":1},"_meta":{},"requestState":"s","inputResponses":{}}`))
	f.Add([]byte(`{"name":"\u0061"}`))
	f.Add([]byte(`{"name":1}`))
	f.Fuzz(func(t *testing.T, params []byte) {
		m, err := mcp.ParseMessage(append(append([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":`), params...), '}'), mcp.Strict)
		if err != nil || m.Params == nil {
			return
		}
		got, err := readCallParams(&m)
		// The obvious way.
		var want map[string]jsontext.Value
		if experimental.Unmarshal(m.Params, &want) != nil {
			return // escaped halves of characters, which it does not take
		}
		right := want["name"].Kind() == '"' && (want["requestState"] == nil || want["requestState"].Kind() == '"')
		for _, name := range []string{"arguments", "_meta", "inputResponses"} {
			right = right && (want[name] == nil || want[name].Kind() == '{')
		}
		if right != (err == nil) {
			t.Fatalf("%s: %v", params, err)
		}
		if err == nil && (got.key != mcp.Text(want["name"]) || !sameJSON(got.arguments, want["arguments"])) {
			t.Errorf("%s became %+v", params, got)
		}
	})
}

// BenchmarkPipeline is the worker's own part of a call: everything but bus and
// connection.
func BenchmarkPipeline(b *testing.B) {
	answer := jsontext.Value(`{"content":[{"type":"text","text":"hello"}],"resultType":"complete"}`)
	for name, rules := range map[string]policy.Spec{
		"plain": {Allow: []policy.Rule{{Tool: "s/*"}}, Deny: []policy.Rule{{Tool: "*/delete_*"}}},
		"when":  {Allow: []policy.Rule{{Tool: "s/*", When: "args.text != 'x'"}}},
	} {
		for _, era := range []mcp.Era{mcp.EraModern, mcp.EraLegacy} {
			b.Run(name+"/"+string(era), func(b *testing.B) {
				p, err := policy.Compile(rules)
				if err != nil {
					b.Fatal(err)
				}
				c := config.Server{ID: "s", Command: "x"}.Effective(config.Settings{})
				srv := serverOf(c)
				srv.Policy = p
				settings := config.Settings{}.WithDefaults()
				s := newServer(newDefinition(&settings, srv, ""), nil, newLot("w", nil), discardEvents, nil, discardLog())
				conn := newScripted(func(*mcp.Call) (jsontext.Value, error) { return answer, nil })
				conn.info.Era = era
				s.live.Store(&serving{
					links:   []*link{newLink(conn, nil)},
					catalog: catalog.New("s", conn.info, catalog.Lists{Tools: []jsontext.Value{jsontext.Value(`{"name":"echo","inputSchema":{"type":"object"}}`)}}),
				})
				body := (&testCall{server: "s", tool: "echo", args: `{"text":"hello world","n":12345}`, meta: map[string]string{"progressToken": "7"}}).body()
				b.ReportAllocs()
				for b.Loop() {
					in := &bus.Incoming{Body: body, Meta: bus.Meta{CallID: "c", Method: mcp.MethodToolsCall, Server: "s"}}
					if reply, err := s.handle(context.Background(), in); err != nil || reply.IsError {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
