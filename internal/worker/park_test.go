package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

const allCaps = `{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}`

// question takes apart a result that asks for input: the keys and requests, and
// the requestState.
func questions(t *testing.T, value jsontext.Value) (asked map[string]string, state string) {
	t.Helper()
	if mcp.FieldString(value, "resultType") != "input_required" {
		t.Fatalf("%s asks nothing", value)
	}
	asked = map[string]string{}
	if err := mcp.EachField(mcp.Field(value, "inputRequests"), func(key string, v jsontext.Value) error {
		asked[key] = string(v)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return asked, mcp.FieldString(value, "requestState")
}

// answerTo makes the retry of a call with answers, as a router sends it.
func answerTo(c testCall, state, responses string) testCall {
	c.extra = `,"requestState":` + string(mcp.QuoteString(state))
	if responses != "" {
		c.extra += `,"inputResponses":` + responses
	}
	worker, _ := bus.ParkedAt(state)
	c.subject = bus.AtSubject("test", worker, c.server, mcp.MethodToolsCall)
	c.id = `"retry"`
	return c
}

func accept(key, v string) string {
	return fmt.Sprintf(`%q:{"action":"accept","content":{"v":%q},"resultType":"complete"}`, key, v)
}

// askerHub has the asker over stdio and over HTTP.
func askerHub(t *testing.T) *testHub {
	return newTestHub(t, "policy: allow_all\nservers:\n  pipe: "+child("asker", "era: legacy")+"\n  web: {url: "+serveHTTP(t, newAsker())+", era: legacy}\n")
}

func TestParkAndResume(t *testing.T) {
	t.Parallel()
	h := askerHub(t)
	for _, id := range []string{"pipe", "web"} {
		t.Run(id, func(t *testing.T) {
			h.ready(id)
			var notes []string
			call := testCall{
				server: id, tool: "once", caps: allCaps, principal: "ada", args: `{"a":1,"b":[2.50]}`, meta: map[string]string{"progressToken": `"p"`},
				notify: func(b []byte) { notes = append(notes, string(b)) },
			}
			value, err := h.do(call)
			if err != nil {
				t.Fatal(err)
			}
			asked, state := questions(t, value)
			if len(asked) != 1 || !strings.Contains(asked["ask-1"], `"method":"elicitation/create"`) || !strings.Contains(asked["ask-1"], `"first?"`) {
				t.Errorf("asked: %v", asked)
			}
			if worker, ok := bus.ParkedAt(state); !ok || worker != "w1" {
				t.Fatalf("requestState %q", state)
			}
			retry := answerTo(call, state, "{"+accept("ask-1", "yes")+`,"unknown":{}}`)
			retry.args = ` { "b":[2.50], "a":1 } ` // another client writes it in another order
			value, err = h.do(retry)
			if err != nil || textOf(value) != "accept:yes" || mcp.FieldString(value, "resultType") != "complete" {
				t.Fatalf("the retry: %s, %v", value, err)
			}
			if len(notes) != 2 || !strings.Contains(notes[0], `"progress":1`) || !strings.Contains(notes[1], `"progress":2`) || !strings.Contains(notes[1], `"progressToken":"p"`) {
				t.Errorf("notifications: %q", notes)
			}
			// The state leads back once only.
			if _, err := h.do(retry); faultOf(t, err).Reason != "unknown_request_state" {
				t.Errorf("the second retry: %v", err)
			}
			if e := h.event("call", id, "finished", 1); field(e, "outcome") != `"input_required"` {
				t.Errorf("event %s", e.Data)
			}
		})
	}
}

func TestSeveralQuestions(t *testing.T) {
	t.Parallel()
	h := askerHub(t)
	for _, id := range []string{"pipe", "web"} {
		t.Run(id, func(t *testing.T) {
			// One after the other.
			call := testCall{server: id, tool: "twice", caps: allCaps}
			value, err := h.do(call)
			if err != nil {
				t.Fatal(err)
			}
			_, first := questions(t, value)
			value, err = h.do(answerTo(call, first, "{"+accept("ask-1", "A")+"}"))
			if err != nil {
				t.Fatal(err)
			}
			asked, second := questions(t, value)
			if len(asked) != 1 || !strings.Contains(asked["ask-2"], "second?") || second == first {
				t.Errorf("then asked %v under %q", asked, second)
			}
			value, err = h.do(answerTo(call, second, `{"ask-2":{"action":"decline"}}`))
			if err != nil || textOf(value) != "accept:A decline:<nil>" {
				t.Errorf("in the end: %s, %v", value, err)
			}
			// At the same time: they come in one result or in two, and what was not
			// answered is asked again.
			call.tool = "both"
			value, err = h.do(call)
			answers := map[string]string{}
			for rounds := 0; err == nil && mcp.FieldString(value, "resultType") == "input_required"; rounds++ {
				if rounds > 5 {
					t.Fatal("it never ends")
				}
				asked, state := questions(t, value)
				var one string
				for key, request := range asked { // only one at a time
					one = accept(key, "both")
					if strings.Contains(request, "roots/list") {
						one = fmt.Sprintf(`%q:{"roots":[{"uri":"file:///r"}]}`, key)
					}
					answers[key] = one
					break
				}
				value, err = h.do(answerTo(call, state, "{"+one+"}"))
			}
			if err != nil || textOf(value) != "accept:both roots file:///r" || len(answers) != 2 {
				t.Errorf("in the end: %s, %v after %v", value, err, answers)
			}
		})
	}
}

// What the client refuses, which MCP cannot say, the server hears as its client's
// own error; and a call that nobody comes back to ends at once.
func TestRefusedQuestions(t *testing.T) {
	t.Parallel()
	h := askerHub(t)
	refusing := func(call testCall, state, refused string) testCall {
		c := answerTo(call, state, "")
		c.meta = map[string]string{bus.MetaRefused: refused}
		return c
	}
	for _, id := range []string{"pipe", "web"} {
		call := testCall{server: id, tool: "must", caps: allCaps}
		value, err := h.do(call)
		if err != nil {
			t.Fatal(err)
		}
		_, state := questions(t, value)
		for _, wrong := range []string{`7`, `[]`, `{"ask-1":"no"}`, `"some"`} {
			if _, err := h.do(refusing(call, state, wrong)); faultOf(t, err).Reason != "invalid_params" {
				t.Errorf("refused by %s: %v", wrong, err)
			}
		}
		_, err = h.do(refusing(call, state, `{"ask-1":{"code":-1,"message":"the user says no","data":{"a":1}},"unknown":{}}`))
		if e, ok := errors.AsType[*mcp.Error](err); !ok || !strings.Contains(e.Message, "the user says no") || e.Code == mcp.CodeMissingCapability {
			t.Errorf("the refusal: %v", err)
		}
		if value, err = h.do(call); err != nil {
			t.Fatal(err)
		}
		_, state = questions(t, value)
		if _, err := h.do(refusing(call, state, bus.RefusedAll)); faultOf(t, err).Reason != mcp.ReasonCancelled {
			t.Errorf("nobody comes back: %v", err)
		}
		if _, err := h.do(answerTo(call, state, "")); faultOf(t, err).Reason != reasonUnknownState {
			t.Errorf("and then somebody does: %v", err)
		}
		if got := h.text(id, "roots", ""); !strings.HasPrefix(got, "error") { // its turn on the connection is free
			t.Errorf("roots gives %q", got)
		}
	}
}

// What a caller cannot be asked, the server hears at once.
func TestUndeclaredCapabilities(t *testing.T) {
	t.Parallel()
	h := askerHub(t)
	for _, c := range []struct{ tool, caps, want string }{
		{"once", `{}`, "error"},
		{"once", `{"sampling":{}}`, "elicitation/create"},
		{"once", `{"elicitation":{"url":{}}}`, "form mode"},
		{"roots", `{"elicitation":{}}`, "roots/list"},
		{"sample", `{"elicitation":{},"roots":{}}`, "sampling/createMessage"},
	} {
		for _, id := range []string{"pipe", "web"} {
			value, err := h.do(testCall{server: id, tool: c.tool, caps: c.caps})
			if err != nil || !strings.HasPrefix(textOf(value), "error: ") || !strings.Contains(textOf(value), c.want) {
				t.Errorf("%s/%s with %s: %s, %v", id, c.tool, c.caps, value, err)
			}
		}
	}
	// What cannot go on without is the caller's to mend.
	// (Calls that can be asked nothing share the pipe, so there nobody knows which one
	// of them the server wants to ask.)
	for _, c := range []testCall{
		{server: "pipe", tool: "must", caps: `{"elicitation":{}}`},
		{server: "web", tool: "must"},
	} {
		_, err := h.do(c)
		if e, ok := errors.AsType[*mcp.Error](err); !ok || e.Code != mcp.CodeMissingCapability || string(e.Data) != `{"requiredCapabilities":{"sampling":{}}}` {
			t.Errorf("%s with %s: %v", c.server, c.caps, err)
		}
	}
	call := testCall{server: "web", tool: "sample", caps: allCaps}
	value, err := h.do(call)
	if err != nil {
		t.Fatal(err)
	}
	_, state := questions(t, value)
	value, err = h.do(answerTo(call, state, `{"ask-1":{"role":"assistant","model":"m1","content":{"type":"text","text":"x"}}}`))
	if err != nil || textOf(value) != "sampled m1" {
		t.Errorf("sampling: %s, %v", value, err)
	}
}

// Nobody gets at a parked call but who made it, with what it was made.
func TestParkedCallIsItsCallers(t *testing.T) {
	t.Parallel()
	h := askerHub(t)
	call := testCall{server: "pipe", tool: "once", caps: allCaps, principal: "ada", args: `{"n":9007199254740993}`}
	value, err := h.do(call)
	if err != nil {
		t.Fatal(err)
	}
	_, state := questions(t, value)
	yes := "{" + accept("ask-1", "yes") + "}"
	h.ready("web")
	for name, c := range map[string]struct {
		change func(*testCall)
		state  string
		reason string
	}{
		"another principal": {func(c *testCall) { c.principal = "eve" }, state, "unknown_request_state"},
		"no principal":      {func(c *testCall) { c.principal = "" }, state, "unknown_request_state"},
		"another server": {func(c *testCall) {
			c.server, c.subject = "web", bus.AtSubject("test", "w1", "web", mcp.MethodToolsCall)
		}, state, "unknown_request_state"},
		"another tool":      {func(c *testCall) { c.tool = "twice" }, state, "other_request_state"},
		"other arguments":   {func(c *testCall) { c.args = `{"n":9007199254740992}` }, state, "other_request_state"},
		"no arguments":      {func(c *testCall) { c.args = `{}` }, state, "other_request_state"},
		"tampered state":    {func(*testCall) {}, state + "-TAMPERED", "unknown_request_state"},
		"foreign state":     {func(c *testCall) { c.subject = bus.AtSubject("test", "w1", "pipe", mcp.MethodToolsCall) }, "whatever", "unknown_request_state"},
		"responses no map":  {func(c *testCall) { c.extra = strings.Replace(c.extra, yes, `[]`, 1) }, state, "invalid_params"},
		"response no map":   {func(c *testCall) { c.extra = strings.Replace(c.extra, yes, `{"ask-1":7}`, 1) }, state, "invalid_params"},
		"state no string":   {func(c *testCall) { c.extra = `,"requestState":7` }, state, "invalid_params"},
		"by the wrong name": {func(c *testCall) { c.subject = bus.AtSubject("test", "w1", "nobody", mcp.MethodToolsCall) }, state, mcp.ReasonBackend},
	} {
		retry := answerTo(call, c.state, yes)
		c.change(&retry)
		if _, err := h.do(retry); faultOf(t, err).Reason != c.reason {
			t.Errorf("%s: %v, want %s", name, err, c.reason)
		}
	}
	// None of that disturbed it; the subject of the epoch will do as well.
	retry := answerTo(call, state, yes)
	retry.subject = ""
	if value, err := h.do(retry); err != nil || textOf(value) != "accept:yes" {
		t.Errorf("the right one: %s, %v", value, err)
	}
}

// A policy that changed meanwhile holds for the retry too.
func TestPolicyIsAskedAgainOnResume(t *testing.T) {
	t.Parallel()
	servers := "\nservers:\n  web: {url: " + serveHTTP(t, newAsker()) + ", era: legacy}\n"
	h := newTestHub(t, "policy: allow_all"+servers)
	call := testCall{server: "web", tool: "once", caps: allCaps}
	value, err := h.do(call)
	if err != nil {
		t.Fatal(err)
	}
	_, state := questions(t, value)
	h.apply("policy: {deny: ['web/once'], allow: ['*/*']}" + servers)
	h.untilFault(testCall{server: "web", tool: "once"}, mcp.KindDenied)
	if _, err := h.do(answerTo(call, state, "{"+accept("ask-1", "yes")+"}")); !mcp.IsKind(err, mcp.KindDenied) {
		t.Errorf("the retry of a call that is denied now: %v", err)
	}
	h.apply("policy: allow_all" + servers)
	for deadline := time.Now().Add(patience); ; { // and the call is over
		_, err := h.do(answerTo(call, state, "{"+accept("ask-1", "yes")+"}"))
		if faultOf(t, err).Reason == "unknown_request_state" {
			return
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// A server that gives its question up goes on, and the caller finds the result.
func TestWithdrawnQuestion(t *testing.T) {
	t.Parallel()
	h := askerHub(t)
	call := testCall{server: "pipe", tool: "impatient", caps: allCaps}
	value, err := h.do(call)
	if err != nil {
		t.Fatal(err)
	}
	_, state := questions(t, value)
	// Its turn on the connection is free only when the call has ended.
	if got := h.text("pipe", "roots", ""); !strings.HasPrefix(got, "error") {
		t.Errorf("roots gives %q", got)
	}
	value, err = h.do(answerTo(call, state, "{"+accept("ask-1", "late")+"}"))
	if err != nil || !strings.HasPrefix(textOf(value), "error: ") {
		t.Errorf("the late answer: %s, %v", value, err)
	}
}

func TestParkedCallOfADeadServer(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  bed: {builtin: testbed, era: legacy}\n")
	call := testCall{server: "bed", tool: "ask", caps: `{"elicitation":{}}`}
	value, err := h.do(call)
	if err != nil {
		t.Fatal(err)
	}
	_, state := questions(t, value)
	h.apply("policy: allow_all\nservers:\n  bed: {builtin: testbed}\n") // another connection
	h.until("bed modern", func(v *registry.View) bool {
		return v.Get("bed").Ready() && v.Get("bed").Status.Info.Era == mcp.EraModern
	})
	if _, err := h.do(answerTo(call, state, "{"+accept("ask-1", "x")+"}")); faultOf(t, err).Reason != "unknown_request_state" {
		t.Errorf("the retry: %v", err)
	}
}

// What a modern server asked outlives the worker, a parked call does not.
func TestRetryAfterItsWorker(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  new: {builtin: testbed}\n  old: {builtin: testbed, era: legacy}\n")
	ask := func(id string) (testCall, string) {
		call := testCall{server: id, tool: "ask", caps: `{"elicitation":{}}`, principal: "ada"}
		value, err := h.do(call)
		if err != nil {
			t.Fatal(err)
		}
		_, state := questions(t, value)
		return call, state
	}
	modern, modernState := ask("new")
	legacy, legacyState := ask("old")
	epoch := h.ready("new").Epoch()
	h.worker.stop(errTestEnds)
	<-h.worker.done
	h.worker.conn.Close()
	h.worker = h.startWorker("w1") // even one of the same name
	for _, id := range []string{"new", "old"} {
		h.until(id+" is owned anew", func(v *registry.View) bool { s := v.Get(id); return s != nil && s.Ready() && s.Epoch() > epoch })
	}
	modern.extra = `,"requestState":` + string(mcp.QuoteString(modernState)) + `,"inputResponses":{"name":{"action":"accept","content":{"name":"Ada"}}}`
	if value, err := h.do(modern); err != nil || textOf(value) != "Hello, Ada!" {
		t.Errorf("the modern server's retry: %s, %v", value, err)
	}
	if _, err := h.do(answerTo(legacy, legacyState, "{"+accept("ask-1", "x")+"}")); faultOf(t, err).Reason != reasonUnknownState {
		t.Errorf("the parked call's retry: %v", err)
	}
}

// A caller that was asked and never returns loses its call after a while.
func TestParkedCallExpires(t *testing.T) {
	t.Parallel()
	seal := testSeal(t)
	synctest.Test(t, func(t *testing.T) {
		lot := newLot("w1", seal)
		ctx, cancel := context.WithCancelCause(t.Context())
		p := newParkedForTest(lot, cancel, allCaps)
		answered := make(chan *mcp.Error, 1)
		go func() {
			_, e := p.request(ctx, mcp.MethodRootsList, nil)
			answered <- e
		}()
		<-p.asked
		if p.park() == nil {
			t.Fatal("not parked")
		}
		start := time.Now()
		<-ctx.Done()
		f, ok := errors.AsType[*mcp.Fault](context.Cause(ctx))
		if !ok || f.Kind != mcp.KindTimeout || time.Since(start) != parkFor {
			t.Errorf("ended after %v with %v", time.Since(start), context.Cause(ctx))
		}
		if e := <-answered; e == nil || len(lot.waiting) != 0 {
			t.Errorf("the server heard %v; %d calls wait", e, len(lot.waiting))
		}
	})
}

// Beyond the limit a question is refused, and the call goes on.
func TestParkingLotIsBounded(t *testing.T) {
	t.Parallel()
	lot := newLot("w1", testSeal(t))
	lot.limit = 1
	first := newParkedForTest(lot, func(error) {}, allCaps)
	if _, ok := lot.add(first, false); !ok {
		t.Fatal("no place in an empty lot")
	}
	p := newParkedForTest(lot, func(error) {}, allCaps)
	answered := make(chan *mcp.Error, 1)
	go func() {
		_, e := p.request(t.Context(), mcp.MethodRootsList, nil)
		answered <- e
	}()
	<-p.asked
	if value := p.park(); value != nil {
		t.Errorf("parked beyond the limit: %s", value)
	}
	if e := <-answered; e == nil || !strings.Contains(e.Message, "too many calls") {
		t.Errorf("the server heard %v", e)
	}
	lot.drop(p.first.server)
	if len(lot.waiting) != 1 {
		t.Error("the call of another server was dropped")
	}
	lot.drop(first.first.server)
	if len(lot.waiting) != 0 {
		t.Error("a call is kept after its server has ended")
	}
}

// A caller that vanishes while it attends the call cancels it.
func TestAttendingCallerVanishes(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  old: {builtin: testbed, era: legacy}\n")
	ctx, cancel := context.WithCancel(t.Context())
	call := h.start(testCall{server: "old", tool: "hang", caps: allCaps, ctx: ctx})
	cancel()
	if out := <-call; !errors.Is(out.err, context.Canceled) {
		t.Errorf("the caller got %v", out.err)
	}
	if e := h.event("call", "old", "finished", 1); field(e, "outcome") != `"cancelled"` {
		t.Errorf("event %s", e.Data)
	}
	if got := h.text("old", "echo", `{"text":"next"}`); got != "next" { // the turn is free again
		t.Errorf("echo gives %q", got)
	}
}

func newParkedForTest(l *lot, cancel context.CancelCauseFunc, caps string) *parked {
	meta := jsontext.Value(`{"` + mcp.MetaClientCapabilities + `":` + caps + `}`)
	return &parked{
		first: &call{server: &server{id: "x", lot: l}, in: &bus.Incoming{}, message: &mcp.Message{Method: mcp.MethodToolsCall, Params: jsontext.Value("{}")}}, lot: l, cancel: cancel,
		abilities: abilitiesOf(meta), asked: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

func TestLegacyErrors(t *testing.T) {
	t.Parallel()
	h := askerHub(t)
	value, err := h.do(testCall{server: "pipe", tool: "visit", caps: allCaps})
	if err != nil {
		t.Fatal(err)
	}
	asked, state := questions(t, value)
	if want := `{"method":"elicitation/create","params":{"mode":"url","url":"https://example.org/in","message":"Sign in"}}`; asked["url-1"] != want || state != "" {
		t.Errorf("asked %v, state %q", asked, state)
	}
	// The retry has answers and no state; the server must not see them.
	_, err = h.do(testCall{server: "pipe", tool: "visit", extra: `,"inputResponses":{"url-1":{"action":"accept"}}`})
	if e, ok := errors.AsType[*mcp.Error](err); !ok || e.Code != mcp.CodeMissingCapability || string(e.Data) != `{"requiredCapabilities":{"elicitation":{"url":{}}}}` {
		t.Errorf("without the capability: %v", err)
	}
	_, err = h.do(testCall{server: "pipe", tool: "lost"})
	if e, ok := errors.AsType[*mcp.Error](err); !ok || e.Code != mcp.CodeInvalidParams || string(e.Data) != `{"uri":"x:y"}` || e.Message != "no such resource" {
		t.Errorf("-32002 became %v", err)
	}
}

func TestAbilities(t *testing.T) {
	t.Parallel()
	for caps, want := range map[string]abilities{
		`{}`: {}, `null`: {}, `[]`: {}, `"x"`: {}, `{"elicitation":null}`: {}, `{"roots":true}`: {},
		`{"elicitation":{}}`:                              {form: true},
		`{"elicitation":{"form":{}}}`:                     {form: true},
		`{"elicitation":{"url":{}}}`:                      {url: true},
		`{"elicitation":{"url":{},"form":{}}}`:            {url: true, form: true},
		`{"sampling":{},"roots":{"listChanged":true}}`:    {sampling: true, roots: true},
		`{"sampling":{"tools":{}},"x":{"elicitation":1}}`: {sampling: true, samplingTools: true},
	} {
		if got := abilitiesOf(jsontext.Value(`{"` + mcp.MetaClientCapabilities + `":` + caps + `}`)); got != want {
			t.Errorf("%s: %+v, want %+v", caps, got, want)
		}
	}
	all := abilities{form: true, url: true, sampling: true, samplingTools: true, roots: true}
	for _, c := range []struct {
		able           abilities
		method, params string
		code           int64
		required       string
	}{
		{abilities{sampling: true}, mcp.MethodSample, `{"tools":[]}`, mcp.CodeInvalidParams, `{"sampling":{"tools":{}}}`},
		{abilities{sampling: true}, mcp.MethodSample, `{"toolChoice":{}}`, mcp.CodeInvalidParams, `{"sampling":{"tools":{}}}`},
		{abilities{}, mcp.MethodSample, `{"tools":[]}`, mcp.CodeMethodNotFound, `{"sampling":{"tools":{}}}`},
		{abilities{}, mcp.MethodSample, `{}`, mcp.CodeMethodNotFound, `{"sampling":{}}`},
		{abilities{}, mcp.MethodRootsList, ``, mcp.CodeMethodNotFound, `{"roots":{}}`},
		{abilities{}, mcp.MethodElicit, `{"message":"m"}`, mcp.CodeMethodNotFound, `{"elicitation":{"form":{}}}`},
		{abilities{url: true}, mcp.MethodElicit, `{"message":"m"}`, mcp.CodeInvalidParams, `{"elicitation":{"form":{}}}`},
		{abilities{form: true}, mcp.MethodElicit, `{"mode":"url"}`, mcp.CodeInvalidParams, `{"elicitation":{"url":{}}}`},
		{all, "tools/call", ``, mcp.CodeMethodNotFound, ``},
		{all, mcp.MethodSample, `{"tools":[]}`, 0, ``},
		{all, mcp.MethodElicit, `{"mode":"url"}`, 0, ``},
		{all, mcp.MethodElicit, `{"mode":"form"}`, 0, ``},
		{all, mcp.MethodRootsList, `{}`, 0, ``},
	} {
		e, required := c.able.refuse(c.method, jsontext.Value(c.params))
		if (e == nil) != (c.code == 0) || e != nil && e.Code != c.code || required != c.required {
			t.Errorf("%+v asked for %s %s: %v, requires %q", c.able, c.method, c.params, e, required)
		}
	}
}

func TestInputRequestLeavesBehind(t *testing.T) {
	t.Parallel()
	got, err := inputRequest(mcp.MethodElicit, jsontext.Value(`{"message":"m","task":{"ttl":1},"elicitationId":"e","x":1e400,"_meta":{"progressToken":3,"a/b":1}}`))
	if want := `{"method":"elicitation/create","params":{"message":"m","x":1e400,"_meta":{"a/b":1}}}`; err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := inputRequest(mcp.MethodRootsList, nil); err != nil || string(got) != `{"method":"roots/list"}` {
		t.Errorf("%s, %v", got, err)
	}
}

func TestLeastBusy(t *testing.T) {
	t.Parallel()
	if !slices.Equal([]int{leastBusy(links(3, 1, 2)).slot, leastBusy(links(0, 0)).slot}, []int{1, 0}) {
		t.Error("not the least busy connection")
	}
}

func links(busy ...int64) []*link {
	var out []*link
	for i, n := range busy {
		l := &link{slot: i}
		l.busy.Store(n)
		out = append(out, l)
	}
	return out
}

// TestCrowded: a call whose caller does not come back is given up soon when others
// wait for its server, and otherwise not.
func TestCrowded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLot("w", nil)
		ended := func(p *parked) func() time.Duration {
			start, end := time.Now(), time.Duration(0)
			p.cancel = func(error) { end = time.Since(start) }
			return func() time.Duration { return end }
		}
		patient, hurried, late := &parked{lot: l}, &parked{lot: l}, &parked{lot: l}
		patientEnd, hurriedEnd, lateEnd := ended(patient), ended(hurried), ended(late)
		for _, p := range []*parked{patient, hurried, late} {
			p.place, _ = l.add(p, p.crowded)
		}
		time.Sleep(10 * time.Second)
		hurried.waited()
		time.Sleep(30 * time.Second)
		hurried.waited() // again makes no difference
		time.Sleep(parkFor - 45*time.Second)
		late.waited() // 5 s are left, and no more are given
		time.Sleep(time.Hour)
		synctest.Wait()
		if patientEnd() != parkFor || hurriedEnd() != 10*time.Second+crowdedFor || lateEnd() != parkFor {
			t.Errorf("they were given up after %v, %v, %v", patientEnd(), hurriedEnd(), lateEnd())
		}
		next := &parked{lot: l, crowded: true}
		nextEnd := ended(next)
		next.place, _ = l.add(next, next.crowded)
		time.Sleep(time.Hour)
		synctest.Wait()
		if nextEnd() != crowdedFor {
			t.Errorf("one that is waited for already was given up after %v", nextEnd())
		}
	})
}
