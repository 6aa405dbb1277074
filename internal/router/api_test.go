package router

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
	"toolhub/internal/policy"
	"toolhub/internal/registry"
)

// newOperatedHub is a hub whose router answers operators.
func newOperatedHub(t testing.TB, yaml string) *testHub {
	t.Helper()
	h := newTestHub(t, yaml)
	a := &api{engine: h.engine, started: time.Now()}
	svc, err := h.conn.Serve(bus.ServeAPISubject("test"), apiQueue, maxOperations, a.handle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(svc.Stop)
	return h
}

// ask makes a request as cmd/hub does.
func (h *testHub) ask(ctx context.Context, op, params string, notify func([]byte)) (jsontext.Value, error) {
	body := mcp.AppendRequest(nil, mcp.IntID(1), op, jsontext.Value(params))
	reply, err := h.worker.Call(ctx, &bus.Request{Subject: bus.APISubject("test", op), Body: body}, notify)
	if err != nil {
		return nil, err
	}
	m, err := mcp.ParseMessage(reply.Body, mcp.Strict)
	if err != nil {
		h.t.Fatalf("%v: %s", err, reply.Body)
	}
	if string(m.ID) != "1" {
		h.t.Errorf("the answer has the id %s", m.ID)
	}
	if m.Err != nil {
		return nil, m.Err
	}
	return m.Result, nil
}

// asked asks and reads the answer into v.
func asked[T any](h *testHub, op, params string) T {
	h.t.Helper()
	var v T
	raw, err := h.ask(h.ctx(), op, params, nil)
	if err == nil {
		err = json.Unmarshal(raw, &v, json.MatchCaseInsensitiveNames(true))
	}
	if err != nil {
		h.t.Fatalf("%s %s: %v", op, params, err)
	}
	return v
}

const operated = `
policy:
  deny: [a/denied, {tool: "a/*", when: "principal == \"eve\""}]
  allow: ["a/*"]
servers:
  a: {builtin: clock, tools: {exclude: [a/filtered]}}
  b: {url: "http://127.0.0.1:1/mcp"}
  c: {command: "x"}
`

func TestServersList(t *testing.T) {
	t.Parallel()
	h := newOperatedHub(t, operated)
	a := h.start("a", echo, "t", "denied", "filtered")
	a.status(registry.Status{
		State: registry.StateDegraded, Reason: "slow", LatencyMS: 1.5, Attempts: 2,
		Info: &mcp.ServerInfo{Era: mcp.EraModern, Version: "2026-07-28", Server: mcp.Implementation{Name: "clock", Version: "1"}},
	})
	b := h.claim("b", echo)
	b.status(registry.Status{State: registry.StateFailed, Reason: "no route", RetryAt: time.Now().Add(time.Minute), Stderr: []string{"oops"}})
	h.until("both", func(v *registry.View) bool {
		return v.Get("b").State() == registry.StateFailed && v.Get("a").State() == registry.StateDegraded
	})
	list := asked[struct{ Servers []serverStatus }](h, "servers.list", `{}`)
	if len(list.Servers) != 3 {
		t.Fatalf("%+v", list)
	}
	got := list.Servers[0]
	if got.ID != "a" || got.Kind != "builtin" || got.Source != registry.SourceFile || got.State != registry.StateDegraded || !got.Ready || got.Era != mcp.EraModern ||
		got.Version != "2026-07-28" || got.Server.Name != "clock" || got.Tools != 3 || got.LatencyMS != 1.5 || got.Attempts != 2 || got.Reason != "slow" ||
		got.Owner != "worker-w1" || got.Epoch != a.epoch {
		t.Errorf("%+v", got)
	}
	if got = list.Servers[1]; got.ID != "b" || got.Kind != "http" || got.State != registry.StateFailed || got.Ready || got.RetryAt.IsZero() || got.Reason != "no route" || got.Stderr[0] != "oops" {
		t.Errorf("%+v", got)
	}
	if got = list.Servers[2]; got.ID != "c" || got.Kind != "stdio" || got.State != registry.StateDown || got.Reason != "no worker runs it" || got.Owner != "" {
		t.Errorf("%+v", got)
	}
}

func TestToolsListOperation(t *testing.T) {
	t.Parallel()
	h := newOperatedHub(t, operated)
	h.start("a", echo, "t", "u", "denied", "filtered")
	names := func(params string) string {
		list := asked[struct {
			Tools []struct {
				Name     string         `json:"name"`
				Schema   jsontext.Value `json:"input_schema"`
				Function struct{ Name string }
				Gemini   []struct{ Name string } `json:"functionDeclarations"`
			}
		}](h, "tools.list", params)
		var out []string
		for _, tool := range list.Tools {
			out = append(out, tool.Name+tool.Function.Name)
			for _, g := range tool.Gemini {
				out = append(out, g.Name)
			}
		}
		return strings.TrimSpace(strings.Join(out, " "))
	}
	for params, want := range map[string]string{
		`{}`:                                   "a__t a__u",
		`{"principal":"eve"}`:                  "",
		`{"server":"a"}`:                       "a__t a__u",
		`{"server":"b"}`:                       "",
		`{"format":"anthropic"}`:               "a__t a__u",
		`{"format":"openai","server":"a"}`:     "a__t a__u",
		`{"format":"gemini","principal":"al"}`: "a__t a__u",
	} {
		if got := names(params); got != want {
			t.Errorf("%s: %q, want %q", params, got, want)
		}
	}
}

func TestToolsCallOperation(t *testing.T) {
	t.Parallel()
	h := newOperatedHub(t, operated)
	a := h.start("a", func(ctx context.Context, in *bus.Incoming) (bus.Reply, error) {
		m, _ := mcp.ParseMessage(in.Body, mcp.Strict)
		switch mcp.FieldString(mcp.Field(m.Params, "arguments"), "do") {
		case "block":
			<-ctx.Done()
			return bus.Reply{}, context.Cause(ctx)
		case "deny":
			return bus.Reply{}, mcp.NewFault(mcp.KindDenied, "policy", "no")
		case "fail":
			return bus.Reply{Body: mcp.AppendError(nil, m.ID, &mcp.Error{Code: -5, Message: "mine"}), IsError: true}, nil
		}
		_ = in.Notify([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1}}`))
		return echo(ctx, in)
	}, "t")
	notes := 0
	raw, err := h.ask(h.ctx(), "tools.call", `{"name":"a__t","arguments":{"n":12345678901234567890},"principal":"bob","_meta":{"progressToken":1}}`, func([]byte) { notes++ })
	want := `{"resultType":"complete","echo":{"name":"t","arguments":{"n":12345678901234567890},"_meta":{"progressToken":1,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	if err != nil || string(raw) != want || notes != 1 {
		t.Errorf("%d notifications, %v, %s", notes, err, raw)
	}
	if in := <-a.calls; in.Meta.Principal != "bob" || in.Meta.ClientEra != mcp.EraModern {
		t.Errorf("%+v", in.Meta)
	}
	// K1: the news that there is no such tool is for the model.
	raw, err = h.ask(h.ctx(), "tools.call", `{"name":"a__nonsense"}`, nil)
	if err != nil || string(mcp.Field(raw, "isError")) != "true" || !strings.Contains(string(raw), `unknown tool: \"a__nonsense\"`) {
		t.Errorf("an unknown tool: %s, %v", raw, err)
	}
	a.none()
	if _, err := h.ask(h.ctx(), "tools.call", `{"name":"a__t","arguments":{"do":"deny"}}`, nil); !mcp.IsKind(err, mcp.KindDenied) {
		t.Errorf("denied: %v", err)
	}
	if _, err := h.ask(h.ctx(), "tools.call", `{"name":"a__t","arguments":{"do":"fail"}}`, nil); err == nil || err.Error() != (&mcp.Error{Code: -5, Message: "mine"}).Error() {
		t.Errorf("the server's own error: %v", err)
	}
	<-a.calls
	<-a.calls
	ctx, cancel := context.WithCancel(h.ctx())
	done := make(chan error, 1)
	go func() {
		_, err := h.ask(ctx, "tools.call", `{"name":"a__t","arguments":{"do":"block"}}`, nil)
		done <- err
	}()
	<-a.calls
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := a.service.Drain(h.ctx()); err != nil { // so the cancellation has reached the server
		t.Error(err)
	}
}

func TestPolicyExplain(t *testing.T) {
	t.Parallel()
	h := newOperatedHub(t, operated)
	h.start("a", echo, "t", "denied", "filtered")
	for _, row := range []struct {
		params          string
		effect          policy.Effect
		field           string
		known, selected bool
	}{
		{`{"server":"a","tool":"t"}`, policy.Allow, "allow[0]", true, true},
		{`{"server":"a","tool":"t","principal":"eve","arguments":{"x":1}}`, policy.Deny, "deny[1]", true, true},
		{`{"server":"a","tool":"denied"}`, policy.Deny, "deny[0]", true, true},
		{`{"server":"a","tool":"filtered"}`, policy.Allow, "allow[0]", true, false},
		{`{"server":"a","tool":"new"}`, policy.Allow, "allow[0]", false, true},
		{`{"server":"b","tool":"t"}`, policy.Deny, "default", false, true},
	} {
		got := asked[struct {
			Decision  policy.Decision
			Losers    []policy.Loser
			ToolKnown bool `json:"tool_known"`
			Selected  bool
		}](h, "policy.explain", row.params)
		if got.Decision.Effect != row.effect || got.Decision.Field != row.field || got.ToolKnown != row.known || got.Selected != row.selected || len(got.Losers) == 0 {
			t.Errorf("%s: %+v", row.params, got)
		}
	}
}

func TestHubStatus(t *testing.T) {
	t.Parallel()
	h := newOperatedHub(t, operated)
	h.start("a", echo, "t")
	got := asked[struct {
		Hub, Router, Version, ToolSet string
		Configured, Live              bool
		Servers                       map[string]int
		Tools                         int
	}](h, "hub.status", `{}`)
	if got.Hub != "test" || got.Router != "router-r1" || got.Version == "" || !got.Configured || !got.Live || fmt.Sprint(got.Servers) != "map[down:2 up:1]" || got.Tools != 1 {
		t.Errorf("%+v", got)
	}
}

func TestBadOperations(t *testing.T) {
	t.Parallel()
	h := newOperatedHub(t, operated)
	a := h.start("a", echo, "t")
	for _, row := range []struct{ op, params, kind, want string }{
		{"servers.list", `{"x":1}`, "invalid", "params.x is unknown, this operation takes no params"},
		{"tools.list", `{"formt":"openai"}`, "invalid", "params.formt is unknown, there are format, server, principal"},
		{"tools.list", `{"format":"xml"}`, "invalid", "params.format"},
		{"tools.list", `{"format":7}`, "invalid", "params.format must be a string"},
		{"tools.list", `{"server":"nobody"}`, "not_found", "nobody"},
		{"tools.call", `{}`, "invalid", "params.name is missing"},
		{"tools.call", `{"name":""}`, "invalid", "params.name is missing"},
		{"tools.call", `{"name":null}`, "invalid", "params.name must be a string"},
		{"tools.call", `{"name":"a__t","arguments":[]}`, "invalid", "params.arguments must be an object"},
		{"tools.call", `{"name":"a__t","_meta":"x"}`, "invalid", "params._meta must be an object"},
		{"tools.call", `{"name":"a__t","_meta":{"toolhub/toolset":{}}}`, "invalid", "toolhub/toolset"},
		{"tools.call", `{"name":"a__t","principal":1}`, "invalid", "params.principal must be a string"},
		{"tools.call", `{"name":"a__t","name":"a__u"}`, "invalid", "duplicate"},
		{"policy.explain", `{"server":"a"}`, "invalid", "params.tool is missing"},
		{"policy.explain", `{"tool":"t"}`, "invalid", "params.server is missing"},
		{"policy.explain", `{"server":"nobody","tool":"t"}`, "not_found", "nobody"},
		{"policy.explain", `{"server":"a","tool":"t","arguments":7}`, "invalid", "params.arguments must be an object"},
		{"hub.status", `[]`, "invalid", "params must be an object"},
		{"nonsense", `{}`, "", "method not found"},
		{"tools", `{}`, "", "method not found"},
		{"tools.call.twice", `{}`, "", "method not found"},
	} {
		_, err := h.ask(h.ctx(), row.op, row.params, nil)
		if err == nil || !strings.Contains(err.Error(), row.want) || row.kind != "" && !mcp.IsKind(err, mcp.Kind(row.kind)) {
			t.Errorf("%s %s: %v, want %s %q", row.op, row.params, err, row.kind, row.want)
		}
	}
	for _, body := range []string{"", "\xff\x00", "[]", `{"jsonrpc":"2.0","method":"servers.list"}`, `{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","id":1,"method":"tools.list"}`} {
		_, err := h.worker.Call(h.ctx(), &bus.Request{Subject: bus.APISubject("test", "servers.list"), Body: []byte(body)}, nil)
		if !mcp.IsKind(err, mcp.KindInvalid) {
			t.Errorf("%q: %v", body, err)
		}
	}
	a.none()
}

// TestItemOperations: operators list and reach all kinds of things, as a principal
// sees them (A2).
func TestItemOperations(t *testing.T) {
	t.Parallel()
	h := newOperatedHub(t, libraryHub)
	lib := h.claim("lib", library)
	lib.publishLists(libraryLists())
	lib.status(registry.Status{State: registry.StateUp})
	h.until("ready", lib.isReady)
	for _, c := range []struct{ op, params, want string }{
		{"resources.list", `{}`, `{"resources":[{"uri":"mcp-proxy://lib/lib:a","name":"a"}]}`},
		{"resources.list", `{"server":"raw"}`, `{"resources":[]}`},
		{"resources.list", `{"server":"nobody"}`, `there is no server`},
		{"resources.list", `{"uri":"x"}`, `params.uri is unknown, there are server, principal`},
		{"resources.templates.list", `{"server":"lib","principal":"alice"}`, `{"uriTemplate":"mcp-proxy://lib/lib:shelf/{id}","name":"shelf"}`},
		{"prompts.list", `{}`, `{"prompts":[{"name":"lib__greet","arguments":[{"name":"who"}]},{"name":"lib__quiz"}]}`},
		{"resources.read", `{"uri":"mcp-proxy://lib/lib:a","principal":"alice"}`, `"contents":[{"uri":"mcp-proxy://lib/lib:a","text":"x"}]`},
		{"resources.read", `{"uri":"mcp-proxy://lib/lib:secret"}`, `there is no resource`},
		{"resources.read", `{"uri":"mcp-proxy://lib/lib:a","arguments":{}}`, `params.arguments is unknown`},
		{"resources.read", `{}`, `params.uri is missing`},
		{"prompts.get", `{"name":"lib__greet","arguments":{"who":"you"}}`, `"text":"greet"`},
		{"prompts.get", `{"name":"nobody"}`, `unknown prompt`},
		{"prompts.get", `{"name":"lib__greet","_meta":{"toolhub/toolset":1}}`, `must be a string`},
	} {
		got, err := h.ask(h.ctx(), c.op, c.params, nil)
		text := string(got)
		if err != nil {
			text = err.Error()
		}
		if !strings.Contains(text, c.want) {
			t.Errorf("%s %s: %s\nwant %s", c.op, c.params, text, c.want)
		}
	}
}
