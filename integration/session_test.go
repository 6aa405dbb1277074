package integration_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"toolhub/integration/hubproc"
)

// TestSessionOutlivesItsRouter: a question of a call that runs at one router is
// answered over the other, and when the first is killed the session goes on there:
// its calls, its subscriptions, and its stream, on which the client hears of what
// it may have missed.
func TestSessionOutlivesItsRouter(t *testing.T) {
	t.Parallel()
	yaml := fmt.Sprintf("hub: lasting\nnats: {url: %q}\npolicy: allow_all\nservers:\n  every: {command: %q, env: {MARK: \"{dir}\"}}\n", natsServer(t), binary("everyfeature"))
	definer := startProgram(t, hubproc.Config{Binary: binary("hub"), Dir: t.TempDir(), YAML: yaml})
	offered(t, definer, "every__echo")
	stop(t, definer)
	program(t, "hub-worker", yaml, false)
	one, two := program(t, "hub-router", yaml, true), program(t, "hub-router", yaml, true)
	offered(t, one, "every__echo")
	offered(t, two, "every__echo")
	var second atomic.Bool // messages go to the second router
	c := &eraClient{t: t, capabilities: everything, pick: func() string {
		if second.Load() {
			return two.URL + "/mcp"
		}
		return one.URL + "/mcp"
	}}
	c.user = func(method string, params json.RawMessage) string {
		second.Store(true) // with the answer
		return `{"action":"accept","content":{"answer":"over the other"}}`
	}
	c.open()
	const watched = "mcp-proxy://every/every://watched"
	heard := c.listen(watched)
	call := func(tool, args string) string {
		t.Helper()
		return firstText(c.do("tools/call", fmt.Sprintf(`{"name":"every__%s","arguments":%s}`, tool, args)))
	}
	call("touch", `{"text":"every://watched"}`)
	hears(t, heard, "notifications/resources/updated", watched)
	if got := call("ask", `{"text":"q?"}`); got != "accept over the other" {
		t.Fatalf("a question that is answered over the other router: %s", got)
	}
	one.Kill()
	if got := call("touch", `{"text":"every://watched"}`); !strings.Contains(got, "touched") { // nobody hears of it now
		t.Fatalf("a call after the death of the router: %s", got)
	}
	again := c.listen() // the session knows what it has subscribed to
	hears(t, again, "notifications/resources/updated", watched)
	call("touch", `{"text":"every://watched"}`)
	hears(t, again, "notifications/resources/updated", watched)
	call("change", `{"text":"prompts","steps":99}`)
	hears(t, again, "notifications/prompts/list_changed", "")
	if got := call("ask", `{"text":"q?"}`); got != "accept over the other" {
		t.Errorf("a question at the other router: %s", got)
	}
}
