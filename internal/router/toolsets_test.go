package router

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

var alice = caller{principal: "alice", era: mcp.EraModern}

func (h *testHub) listTools(c caller, scope, params string) answer {
	return h.engine.do(h.ctx(), &request{id: jsontext.Value(`"l"`), method: mcp.MethodToolsList, params: jsontext.Value(params), scope: scope, caller: c}, nil)
}

func resultOf(t testing.TB, a answer) jsontext.Value {
	t.Helper()
	m, err := mcp.ParseMessage(a.body, mcp.Strict)
	if err != nil || m.Result == nil || string(m.ID) != `"l"` {
		t.Fatalf("%v, answer %.300s", err, a.body)
	}
	return m.Result
}

func TestListOfAllAndOfOne(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, `
prefix: p_
policy: {deny: [a/denied, {tool: "b/*", when: "args.x == 1"}], allow: ["*/*"]}
servers:
  b: {builtin: clock, tools: {include: ["b/t*"]}}
  a: {builtin: clock}
  c: {builtin: clock, hide_denied: false, policy: {deny: ["*/*"]}}
  d: {builtin: clock, prefix: ""}
  gone: {builtin: clock}
`)
	h.start("a", echo, "do.it", "denied", "ok")
	h.start("b", echo, "two", "one", "three")
	h.start("c", echo, "shown")
	h.start("d", echo, "bare")
	h.start("gone", echo, "x").status(registry.Status{State: registry.StateDown})
	h.until("gone", func(v *registry.View) bool { return !v.Get("gone").Ready() })
	for scope, want := range map[string]string{
		"":     "p_b__two p_b__three p_a__do_it p_a__ok p_c__shown bare",
		"a":    "do.it ok",
		"b":    "two three",
		"c":    "shown",
		"gone": "",
	} {
		if got := h.names(scope, alice); got != want {
			t.Errorf("scope %q lists %q, want %q", scope, got, want)
		}
	}
	a := h.listTools(alice, "a", `{}`)
	set := h.engine.list("a", alice).set
	want := `{"jsonrpc":"2.0","id":"l","result":{"resultType":"complete","tools":[` +
		`{"name":"do.it","inputSchema":{"type":"object"},"x":12345678901234567890},{"name":"ok","inputSchema":{"type":"object"},"x":12345678901234567890}]` +
		`,"ttlMs":0,"cacheScope":"private","_meta":{"toolhub/toolset":"` + set.ID + `","io.modelcontextprotocol/serverInfo":{"name":"toolhub","version":"` + Version() + `"}}}}`
	if string(a.body) != want {
		t.Errorf("modern list\n%s\nwant\n%s", a.body, want)
	}
	legacy := resultOf(t, h.listTools(caller{era: mcp.EraLegacy}, "a", `{}`))
	for _, name := range []string{"resultType", "ttlMs", "cacheScope"} {
		if mcp.Field(legacy, name) != nil {
			t.Errorf("a legacy list has %s: %s", name, legacy)
		}
	}
	// A call in a scope takes the server's own names, and only those.
	req := toolRequest("1", "do.it", "{}")
	req.scope = "a"
	if a := h.engine.do(h.ctx(), req, nil); a.err != nil {
		t.Errorf("%s", a.body)
	}
	req = toolRequest("1", "p_a__ok", "{}")
	req.scope = "a"
	if a := h.engine.do(h.ctx(), req, nil); a.err == nil || a.err.Code != mcp.CodeInvalidParams {
		t.Errorf("a hub's name in a scope: %s", a.body)
	}
	if f := faultIn(h.listTools(alice, "nobody", `{}`)); f == nil || f.Kind != mcp.KindNotFound {
		t.Errorf("a scope that is no server: %v", f)
	}
	if err := h.engine.known("nobody"); !mcp.IsKind(err, mcp.KindNotFound) || h.engine.known("a") != nil || h.engine.known("") != nil {
		t.Errorf("known: %v", err)
	}
}

func TestListPages(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\npage_size: 7\nservers:\n  a: {builtin: clock}\n")
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprintf("t%d", i))
	}
	h.start("a", echo, names...)
	for _, era := range []mcp.Era{mcp.EraModern, mcp.EraLegacy} {
		var got []string
		params := `{}`
		for pages := 1; ; pages++ {
			r := resultOf(t, h.listTools(caller{era: era}, "", params))
			var list struct {
				Tools []struct {
					Name string `json:"name"`
				} `json:"tools"`
				NextCursor string `json:"nextCursor"`
			}
			if err := json.Unmarshal(r, &list); err != nil {
				t.Fatal(err)
			}
			for _, tool := range list.Tools {
				got = append(got, strings.TrimPrefix(tool.Name, "a__"))
			}
			if list.NextCursor == "" {
				if pages != 3 {
					t.Errorf("%d pages, want 3", pages)
				}
				break
			}
			params = `{"cursor":"` + list.NextCursor + `"}`
		}
		if fmt.Sprint(got) != fmt.Sprint(names) {
			t.Errorf("%s: %v", era, got)
		}
	}
	for _, params := range []string{`{"cursor":"nonsense"}`, `{"cursor":7}`, `{"cursor":null}`} {
		if a := h.listTools(alice, "", params); a.err == nil || a.err.Code != mcp.CodeInvalidParams || !strings.Contains(a.err.Message, "params.cursor") {
			t.Errorf("%s: %s", params, a.body)
		}
	}
}

// Lists are built once for all that see the same, and again only when something
// they follow from has changed.
func TestListsAreShared(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, oneServer)
	s := h.start("a", echo, "t")
	first := h.engine.list("", alice)
	if h.engine.list("", caller{principal: "bob", era: mcp.EraLegacy}) != first {
		t.Error("a policy that does not look at principals makes a list for each")
	}
	s.status(registry.Status{State: registry.StateUp, LatencyMS: 3})
	v := h.until("another status", func(v *registry.View) bool { return v.Get("a").Status.LatencyMS == 3 })
	if h.engine.list("", alice) != first {
		t.Error("a list is built anew although nothing in it has changed")
	}
	if h.engine.lists.current.Load().view != v {
		t.Error("the list is kept under an old view")
	}
	h.apply("policy: {deny: [{tool: '*/*', when: 'principal == \"bob\"'}], allow: ['*/*']}\nservers:\n  a: {builtin: clock}\n")
	h.until("another policy", func(v *registry.View) bool { return !v.Policy.AllowAll() })
	if got := h.names("", alice) + "|" + h.names("", caller{principal: "bob"}); got != "a__t|" {
		t.Errorf("alice and bob see %q", got)
	}
	if set := h.engine.list("", alice).set; set.ID != first.set.ID {
		t.Error("equal lists have different ids")
	}
}

// What was offered can be called by its ToolSet's id even after the list has
// changed (K2), in the scope in which it was offered.
func TestCallAgainstAToolSet(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  a: {builtin: clock}\n  b: {builtin: clock, prefix: a__}\n")
	a := h.start("a", echo, "t", "old")
	h.until("listed", a.isReady)
	offered := h.engine.list("", alice).set.ID
	// From here on the two names collide, so nobody gets them.
	h.start("b", echo, "t")
	if got := h.names("", alice); got != "a__old" {
		t.Fatalf("listed are %q", got)
	}
	call := func(toolSet, scope string) answer {
		req := toolRequest("1", "a__t", "{}")
		req.scope = scope
		req.params = jsontext.Value(`{"name":"a__t","_meta":{"toolhub/toolset":"` + toolSet + `"}}`)
		return h.engine.do(h.ctx(), req, nil)
	}
	if got := call(offered, ""); got.err != nil {
		t.Errorf("against what was offered: %s", got.body)
	}
	if in := <-a.calls; in.Meta.ToolSet != offered {
		t.Errorf("the worker is told of ToolSet %q, want %q", in.Meta.ToolSet, offered)
	}
	for what, got := range map[string]answer{
		"against the present list": call(h.engine.list("", alice).set.ID, ""),
		"against one unknown":      call("0123", ""),
		"in another scope":         call(offered, "b"),
	} {
		if got.err == nil || got.err.Code != mcp.CodeInvalidParams {
			t.Errorf("%s: %s", what, got.body)
		}
	}
	a.none()
}

func TestPastIsBounded(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, oneServer)
	for i := range 2 * maxPastLists {
		s := h.claim("a", echo)
		s.publish(defs(fmt.Sprintf("t%d", i)))
		s.status(registry.Status{State: registry.StateUp})
		h.until("ready", s.isReady)
		h.names("", alice)
		s.service.Stop()
	}
	p := &h.engine.lists.past
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.lists) > maxPastLists || len(p.lists) < maxPastLists-1 || p.names != len(p.lists) {
		t.Errorf("%d lists with %d names are remembered, want about %d", len(p.lists), p.names, maxPastLists)
	}
}

// A collision is told of once per distinct list, and each tool as rejected (N6).
func TestCollisionIsToldOnce(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  a: {builtin: clock, prefix: x_}\n  b: {builtin: clock, prefix: x_}\n")
	collisions, rejected := h.events(bus.EventFilter("toolset")), h.events(bus.EventFilter("tool"))
	h.start("a", echo, "t", "only_a")
	b := h.start("b", echo, "t", "only_b")
	if got := h.names("", alice); got != "x_only_a x_only_b" {
		t.Fatalf("listed are %q", got)
	}
	b.status(registry.Status{State: registry.StateDown})
	h.until("down", func(v *registry.View) bool { return !v.Get("b").Ready() })
	h.names("", alice)
	b.status(registry.Status{State: registry.StateUp})
	h.until("up", b.isReady)
	h.names("", alice) // the same collision in the same list
	b.publish(defs("t", "u", "only_b"))
	h.until("one more tool", func(v *registry.View) bool { return len(v.Get("b").Catalog.Tools) == 3 })
	h.names("", alice)
	all := collisions.until("two collisions", func(all []bus.Event) bool { return len(all) >= 2 })
	rejects := rejected.until("four rejections", func(all []bus.Event) bool { return len(all) >= 4 })
	if len(all) != 2 || len(rejects) != 4 {
		t.Errorf("%d collisions and %d rejections are told of, want 2 and 4", len(all), len(rejects))
	}
	data, _ := all[0].Data.(jsontext.Value)
	if all[0].Subject != "test" || all[0].What != "collision" || !bytes.Contains(data, []byte(`"names":[{"exposed":"x_t","tools":["a/t","b/t"]}]`)) {
		t.Errorf("event %+v %s", all[0], data)
	}
	if data, _ := rejects[0].Data.(jsontext.Value); rejects[0].Subject != "a" || rejects[0].What != "rejected" || !bytes.Contains(data, []byte(`"reason":"collision"`)) {
		t.Errorf("event %+v %s", rejects[0], data)
	}
}

func TestDiscover(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  a: {builtin: clock}\n  b: {builtin: clock}\n")
	h.start("a", echo, "t")
	h.start("b", echo, "t")
	r := resultOf(t, h.engine.do(h.ctx(), &request{id: jsontext.Value(`"l"`), method: mcp.MethodDiscover, caller: alice}, nil))
	var d struct {
		ResultType        string                    `json:"resultType"`
		SupportedVersions []string                  `json:"supportedVersions"`
		Capabilities      jsontext.Value            `json:"capabilities"`
		Instructions      string                    `json:"instructions"`
		TTLMS             *int                      `json:"ttlMs"`
		CacheScope        string                    `json:"cacheScope"`
		Meta              map[string]jsontext.Value `json:"_meta"`
	}
	if err := json.Unmarshal(r, &d, json.RejectUnknownMembers(true)); err != nil {
		t.Fatalf("%v: %s", err, r)
	}
	if d.ResultType != "complete" || fmt.Sprint(d.SupportedVersions) != "[2026-07-28]" || string(d.Capabilities) != capabilities ||
		d.TTLMS == nil || *d.TTLMS != 0 || d.CacheScope != "private" || mcp.FieldString(d.Meta[mcp.MetaServerInfo], "name") != "toolhub" {
		t.Errorf("%s", r)
	}
	if !strings.Contains(d.Instructions, "## a\n\nuse a\n\n## b\n\nuse b") {
		t.Errorf("instructions %q", d.Instructions)
	}
	if got := h.engine.discover("b"); got.Instructions != "use b" || !got.Capabilities.IsValid() || !got.ServerInfo.IsValid() {
		t.Errorf("%+v", got)
	}
}
