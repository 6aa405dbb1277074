package router

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// libraryLists has something of each kind.
func libraryLists() catalog.Lists {
	return catalog.Lists{
		Tools:     defs("link"),
		Resources: []jsontext.Value{jsontext.Value(`{"uri":"lib:a","name":"a"}`), jsontext.Value(`{"uri":"lib:secret","name":"s"}`)},
		Templates: []jsontext.Value{
			jsontext.Value(`{"uriTemplate":"lib:book/{id}","name":"book"}`),
			jsontext.Value(`{"uriTemplate":"lib:book/{id}/{page}","name":"page"}`),
			jsontext.Value(`{"uriTemplate":"lib:book/{+any}","name":"any"}`),
			jsontext.Value(`{"uriTemplate":"lib:shelf/{id}","name":"shelf"}`),
		},
		Prompts: []jsontext.Value{jsontext.Value(`{"name":"greet","arguments":[{"name":"who"}]}`), jsontext.Value(`{"name":"quiz"}`)},
		Hints: map[catalog.Kind]catalog.Hint{
			catalog.KindTool: {TTLMS: 9000, Public: true}, catalog.KindPrompt: {TTLMS: 5000, Public: true}, catalog.KindResource: {TTLMS: 7000},
		},
	}
}

// library answers as its worker would: with what it was asked for, under its own
// names and URIs.
func library(_ context.Context, in *bus.Incoming) (bus.Reply, error) {
	m, err := mcp.ParseMessage(in.Body, mcp.Strict)
	if err != nil {
		return bus.Reply{}, err
	}
	p, err := mcp.ParseParams(m.Params)
	if err != nil {
		return bus.Reply{}, err
	}
	answer := func(result string) (bus.Reply, error) {
		return bus.Reply{Body: mcp.AppendResult(nil, m.ID, jsontext.Value(result))}, nil
	}
	switch m.Method {
	case mcp.MethodToolsCall:
		return answer(`{"resultType":"complete","content":[{"type":"resource_link","uri":"lib:new","x":1e400},{"type":"resource","resource":{"uri":"lib:a","text":"t"}},` +
			`{"type":"resource_link","uri":"https://example.org/"},{"type":"text","text":"lib:a"}],"big":9007199254740993}`)
	case mcp.MethodResourcesRead:
		if p.URI == "lib:nothing" {
			return bus.Reply{Body: mcp.AppendError(nil, m.ID, &mcp.Error{Code: mcp.CodeInvalidParams, Message: "no", Data: jsontext.Value(`{"uri":"lib:nothing","more":1}`)}), IsError: true}, nil
		}
		if p.URI == "lib:shelf/ask" && mcp.Field(m.Params, "inputResponses") == nil {
			return answer(`{"resultType":"input_required","inputRequests":{"q":{"method":"elicitation/create","params":{"mode":"form","message":"who?","requestedSchema":{"type":"object","properties":{}}}}},"requestState":"s"}`)
		}
		return answer(`{"resultType":"complete","contents":[{"uri":` + string(mcp.QuoteString(p.URI)) + `,"text":"x"}],"ttlMs":5,"cacheScope":"public"}`)
	case mcp.MethodPromptsGet:
		if state := mcp.FieldString(m.Params, "requestState"); p.Name == "quiz" && len(state) < 2 { // asks twice
			return answer(`{"resultType":"input_required","inputRequests":{"q":{"method":"elicitation/create","params":{"mode":"form","message":"round ` + strconv.Itoa(len(state)) + `","requestedSchema":{"type":"object","properties":{}}}}},"requestState":"` + state + `x"}`)
		}
		return answer(`{"resultType":"complete","messages":[{"role":"user","content":{"type":"resource","resource":{"uri":"lib:a","text":"` + p.Name + `"}}},` +
			`{"role":"user","content":[{"type":"resource_link","uri":"lib:b","name":"b"}]}],"ttlMs":1}`)
	case mcp.MethodComplete:
		return answer(`{"resultType":"complete","completion":{"values":[` + string(mcp.QuoteString(string(mcp.Field(m.Params, "ref")))) + `]}}`)
	}
	return bus.Reply{Body: mcp.AppendError(nil, m.ID, mcp.MethodNotFound(m.Method)), IsError: true}, nil
}

// itemRequest is a request of a modern client.
func itemRequest(t testing.TB, method, params string) *request {
	t.Helper()
	p, err := mcp.ParseParams(jsontext.Value(params))
	if err != nil {
		t.Fatal(err)
	}
	return &request{id: jsontext.Value("1"), method: method, params: jsontext.Value(params), name: p.Name, uri: p.URI}
}

const libraryHub = "hub: test\npolicy: {allow: ['*/*'], deny: ['*/resource:lib:secret']}\nservers:\n  lib: {builtin: clock}\n  raw: {builtin: clock, uris: original, prefix: raw_}\n"

func newLibraryHub(t *testing.T) *testHub {
	h := newTestHub(t, libraryHub)
	for _, id := range []string{"lib", "raw"} {
		lists := libraryLists()
		if id == "raw" {
			lists = catalog.Lists{Resources: []jsontext.Value{jsontext.Value(`{"uri":"raw:a","name":"a"}`)}}
		}
		s := h.claim(id, library)
		s.publishLists(lists)
		s.status(registry.Status{State: registry.StateUp})
		h.until(id+" ready", s.isReady)
	}
	return h
}

// TestItemsAreRouted: every kind of thing is listed under its exposed name or URI,
// and a request that names it so reaches its server under its own.
func TestItemsAreRouted(t *testing.T) {
	t.Parallel()
	h := newLibraryHub(t)
	for _, c := range []struct{ method, params, want string }{
		{mcp.MethodResourcesList, `{}`, `"resources":[{"uri":"mcp-proxy://lib/lib:a","name":"a"},{"uri":"raw:a","name":"a"}]`},
		{mcp.MethodResourcesList, `{}`, `"ttlMs":0,"cacheScope":"private"`},
		{mcp.MethodTemplatesList, `{}`, `"resourceTemplates":[{"uriTemplate":"mcp-proxy://lib/lib:book/{id}","name":"book"}`},
		{mcp.MethodPromptsList, `{}`, `"prompts":[{"name":"lib__greet","arguments":[{"name":"who"}]},{"name":"lib__quiz"}],"ttlMs":5000,"cacheScope":"public"`},
		{mcp.MethodPromptsList, `{"cursor":"x"}`, `"code":-32602`},
		{mcp.MethodToolsCall, `{"name":"lib__link"}`, `[{"type":"resource_link","uri":"mcp-proxy://lib/lib:new","x":1e400},{"type":"resource","resource":{"uri":"mcp-proxy://lib/lib:a","text":"t"}},{"type":"resource_link","uri":"https://example.org/"},{"type":"text","text":"lib:a"}],"big":9007199254740993}`},
		{mcp.MethodResourcesRead, `{"uri":"mcp-proxy://lib/lib:a"}`, `[{"uri":"mcp-proxy://lib/lib:a","text":"x"}],"ttlMs":5,"cacheScope":"public"`},
		{mcp.MethodResourcesRead, `{"uri":"mcp-proxy://lib/lib:unlisted"}`, `"uri":"mcp-proxy://lib/lib:unlisted"`},
		{mcp.MethodResourcesRead, `{"uri":"mcp-proxy://lib/lib:shelf/7"}`, `"uri":"mcp-proxy://lib/lib:shelf/7"`},
		{mcp.MethodResourcesRead, `{"uri":"mcp-proxy://lib/lib:book/7"}`, `ambiguous`},
		{mcp.MethodResourcesRead, `{"uri":"mcp-proxy://lib/lib:nothing"}`, `"code":-32602,"message":"no","data":{"uri":"mcp-proxy://lib/lib:nothing","more":1}`},
		{mcp.MethodResourcesRead, `{"uri":"mcp-proxy://lib/lib:secret"}`, `"code":-32602`},
		{mcp.MethodResourcesRead, `{"uri":"mcp-proxy://nobody/lib:a"}`, `"data":{"uri":"mcp-proxy://nobody/lib:a"}`},
		{mcp.MethodResourcesRead, `{"uri":"raw:a"}`, `[{"uri":"raw:a","text":"x"}]`},
		{mcp.MethodResourcesRead, `{"uri":"raw:unlisted"}`, `[{"uri":"raw:unlisted","text":"x"}]`},
		{mcp.MethodResourcesRead, `{}`, `params.uri is missing`},
		{mcp.MethodPromptsGet, `{"name":"lib__greet"}`, `{"uri":"mcp-proxy://lib/lib:a","text":"greet"}}},{"role":"user","content":[{"type":"resource_link","uri":"mcp-proxy://lib/lib:b","name":"b"}]}],"ttlMs":1`},
		{mcp.MethodPromptsGet, `{"name":"greet"}`, `unknown prompt: \"greet\"`},
		{mcp.MethodPromptsGet, `{}`, `params.name is missing`},
		{mcp.MethodComplete, `{"ref":{"type":"ref/prompt","name":"lib__greet"}}`, `{\"type\":\"ref/prompt\",\"name\":\"greet\"}`},
		{mcp.MethodComplete, `{"ref":{"type":"ref/resource","uri":"mcp-proxy://lib/lib:book/{id}"}}`, `\"uri\":\"lib:book/{id}\"`},
		{mcp.MethodComplete, `{"ref":{"type":"ref/resource","uri":"mcp-proxy://lib/lib:shelf/1"}}`, `\"uri\":\"lib:shelf/1\"`},
		{mcp.MethodComplete, `{"ref":{"type":"ref/prompt"}}`, `params.ref.name must be a string`},
		{mcp.MethodComplete, `{}`, `params.ref.type must be`},
		{mcp.MethodResourcesRead, `{"uri":"mcp-proxy://lib/lib:shelf/ask"}`, `"message":"[lib] who?"`},
		{methodHealth, `{}`, `-32601`},
		{methodHealth, `{"_meta":{"io.modelcontextprotocol/clientCapabilities":{"extensions":{"toolhub/health":{}}}}}`, `{"resultType":"complete","status":"up","servers":2,"up":2,"degraded":0,"down":0}`},
	} {
		a := h.engine.do(h.ctx(), itemRequest(t, c.method, c.params), nil)
		if !strings.Contains(string(a.body), c.want) {
			t.Errorf("%s %s:\n%s\nwant %s", c.method, c.params, a.body, c.want)
		}
	}
	// One server alone is seen as it is.
	for _, c := range []struct{ method, params, want string }{
		{mcp.MethodResourcesList, `{}`, `"resources":[{"uri":"lib:a","name":"a"}]`},
		{mcp.MethodResourcesRead, `{"uri":"lib:a"}`, `[{"uri":"lib:a","text":"x"}]`},
		{mcp.MethodResourcesRead, `{"uri":"lib:shelf/ask"}`, `"message":"who?"`},
		{mcp.MethodPromptsGet, `{"name":"greet"}`, `{"uri":"lib:a","text":"greet"}`},
	} {
		req := itemRequest(t, c.method, c.params)
		req.scope = "lib"
		if a := h.engine.do(h.ctx(), req, nil); !strings.Contains(string(a.body), c.want) {
			t.Errorf("lib alone: %s %s:\n%s\nwant %s", c.method, c.params, a.body, c.want)
		}
	}
}

// TestItemsOfServersThatSleep: what a server has that is not ready just now is not
// unknown, but unavailable (K5).
func TestItemsOfServersThatSleep(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, libraryHub)
	s := h.claim("lib", library)
	s.publishLists(libraryLists())
	s.status(registry.Status{State: registry.StateDown, Reason: "gone"})
	h.until("lib down", func(v *registry.View) bool {
		return v.Get("lib").Catalog != nil && v.Get("lib").State() == registry.StateDown
	})
	for method, params := range map[string]string{
		mcp.MethodResourcesRead: `{"uri":"mcp-proxy://lib/lib:a"}`, mcp.MethodPromptsGet: `{"name":"lib__greet"}`,
		mcp.MethodToolsCall: `{"name":"lib__link"}`, mcp.MethodComplete: `{"ref":{"type":"ref/prompt","name":"lib__greet"}}`,
	} {
		if f := faultIn(h.engine.do(h.ctx(), itemRequest(t, method, params), nil)); f == nil || f.Kind != mcp.KindUnavailable {
			t.Errorf("%s: %v", method, f)
		}
	}
	health := itemRequest(t, methodHealth, `{"_meta":{"io.modelcontextprotocol/clientCapabilities":{"experimental":{"toolhub/health":{}}}}}`)
	if a := h.engine.do(h.ctx(), health, nil); !strings.Contains(string(a.body), `"status":"down"`) || strings.Contains(string(a.body), "lib") {
		t.Errorf("health: %s", a.body)
	}
}

// TestLegacyItems: a client of the initialize era gets its own form of results and
// errors, and is asked in its own way.
func TestLegacyItems(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.apply(strings.Replace(libraryHub, "lib: {builtin: clock}", "lib: {builtin: clock}\n  t: {builtin: clock, prefix: \"\"}", 1))
	b.eventually("lib defined", func() bool { return b.registry.View().Get("lib") != nil })
	s := b.claim("lib", library)
	s.publishLists(libraryLists())
	s.status(registry.Status{State: registry.StateUp})
	r := b.router("r1")
	c := b.client()
	session := b.initialize(c, r.url, mcp.LatestLegacy, `{"elicitation":{}}`)
	do := func(method, params string) string {
		_, body := b.exchange(c, sessionPost(t.Context(), r.url, session, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params)))
		return body
	}
	b.eventually("lib ready", func() bool { return strings.Contains(do(mcp.MethodPromptsList, `{}`), "lib__greet") })
	for _, c := range []struct{ method, params, want, not string }{
		{mcp.MethodResourcesList, `{}`, `{"uri":"mcp-proxy://lib/lib:a","name":"a"}`, "ttlMs"},
		{mcp.MethodResourcesRead, `{"uri":"mcp-proxy://lib/lib:a"}`, `[{"uri":"mcp-proxy://lib/lib:a","text":"x"}]`, "ttlMs"},
		{mcp.MethodResourcesRead, `{"uri":"mcp-proxy://lib/lib:nothing"}`, `"code":-32002,"message":"no","data":{"uri":"mcp-proxy://lib/lib:nothing"`, ""},
		{mcp.MethodResourcesRead, `{"uri":"none:here"}`, `"code":-32002`, ""},
		{mcp.MethodPromptsGet, `{"name":"lib__greet"}`, `"text":"greet"`, "resultType"},
		{mcp.MethodPromptsGet, `{"name":"nobody"}`, `"code":-32602`, ""},
		{mcp.MethodComplete, `{"ref":{"type":"ref/prompt","name":"lib__greet"},"argument":{"name":"who","value":"a"}}`, `"completion":{"values":[`, "resultType"},
	} {
		if got := do(c.method, c.params); !strings.Contains(got, c.want) || c.not != "" && strings.Contains(got, c.not) {
			t.Errorf("%s %s:\n%s\nwant %s", c.method, c.params, got, c.want)
		}
	}
	e := b.open(c, sessionPost(t.Context(), r.url, session, `{"jsonrpc":"2.0","id":7,"method":"resources/read","params":{"uri":"mcp-proxy://lib/lib:shelf/ask"}}`))
	question := e.message("elicitation/create", `"message":"[lib] who?"`)
	id := mcp.Field(jsontext.Value(question), "id")
	b.exchange(c, sessionPost(t.Context(), r.url, session, `{"jsonrpc":"2.0","id":`+string(id)+`,"result":{"action":"accept","content":{}}}`))
	e.message(`"uri":"mcp-proxy://lib/lib:shelf/ask"`)
	// A prompt may ask more than once.
	e = b.open(c, sessionPost(t.Context(), r.url, session, `{"jsonrpc":"2.0","id":8,"method":"prompts/get","params":{"name":"lib__quiz"}}`))
	for round := range 2 {
		id := mcp.Field(jsontext.Value(e.message("elicitation/create", fmt.Sprintf(`"message":"[lib] round %d"`, round))), "id")
		b.exchange(c, sessionPost(t.Context(), r.url, session, `{"jsonrpc":"2.0","id":`+string(id)+`,"result":{"action":"accept","content":{}}}`))
	}
	e.message(`"id":8`, `"text":"quiz"`, `"uri":"mcp-proxy://lib/lib:a"`)
}

// TestItemsOverStdio: all kinds of things reach a client on stdio, in both eras.
func TestItemsOverStdio(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.apply(strings.Replace(libraryHub, "lib: {builtin: clock}", "lib: {builtin: clock}\n  t: {builtin: clock, prefix: \"\"}", 1))
	b.eventually("lib defined", func() bool { return b.registry.View().Get("lib") != nil })
	s := b.claim("lib", library)
	s.publishLists(libraryLists())
	s.status(registry.Status{State: registry.StateUp})
	r := b.router("r1")
	b.eventually("lib ready", func() bool { return s.isReady(r.engine.registry.View()) })
	modern, legacy := b.pipe(t.Context(), r), b.pipe(t.Context(), r)
	legacy.send(strings.Replace(pipeInitialize, `"elicitation":{}`, `"extensions":{"toolhub/health":{},"other/one":{}}`, 1))
	legacy.next(`"experimental":{"toolhub/health":{}}`)
	for i, c := range []struct{ method, params, modern, legacy string }{
		{mcp.MethodResourcesList, ``, `{"uri":"mcp-proxy://lib/lib:a","name":"a"}],"ttlMs":7000,"cacheScope":"private"`, `{"uri":"mcp-proxy://lib/lib:a","name":"a"}]}}`},
		{mcp.MethodTemplatesList, ``, `"uriTemplate":"mcp-proxy://lib/lib:shelf/{id}"`, `"uriTemplate":"mcp-proxy://lib/lib:shelf/{id}"`},
		{mcp.MethodPromptsList, ``, `"name":"lib__quiz"`, `"name":"lib__quiz"`},
		{mcp.MethodResourcesRead, `"uri":"mcp-proxy://lib/lib:a",`, `"ttlMs":5`, `{"contents":[{"uri":"mcp-proxy://lib/lib:a","text":"x"}]}`},
		{mcp.MethodResourcesRead, `"uri":"mcp-proxy://lib/lib:nothing",`, `-32602`, `-32002`},
		{mcp.MethodPromptsGet, `"name":"lib__greet",`, `"text":"greet"`, `"text":"greet"`},
		{mcp.MethodComplete, `"ref":{"type":"ref/prompt","name":"lib__greet"},"argument":{"name":"who","value":""},`, `\"name\":\"greet\"`, `\"name\":\"greet\"`},
		{methodHealth, ``, `-32601`, `{"status":"degraded","servers":3,"up":2,"degraded":0,"down":1}`},
	} {
		id := fmt.Sprintf(`"id":%d`, i+1)
		modern.send(`{"jsonrpc":"2.0",` + id + `,"method":"` + c.method + `","params":{` + c.params + clientMeta + `}}`)
		modern.next(id, c.modern)
		legacy.send(`{"jsonrpc":"2.0",` + id + `,"method":"` + c.method + `","params":{` + strings.TrimSuffix(c.params, ",") + `}}`)
		legacy.next(id, c.legacy)
	}
}

// TestPromptAgainstAList: a prompt that was offered can be got by its list's id even
// after the list has changed (K2), whatever has become of the tools.
func TestPromptAgainstAList(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  lib: {builtin: clock}\n  b: {builtin: clock, prefix: lib__}\n")
	lib := h.claim("lib", library)
	lib.publishLists(libraryLists())
	lib.status(registry.Status{State: registry.StateUp})
	h.until("ready", lib.isReady)
	listed := h.engine.do(h.ctx(), itemRequest(t, mcp.MethodPromptsList, `{}`), nil)
	offered := h.engine.list("", caller{}).set.Digest(catalog.KindPrompt)
	if !strings.Contains(string(listed.body), `"_meta":{"toolhub/toolset":"`+offered+`",`) {
		t.Errorf("the list does not say which it is: %s", listed.body)
	}
	// From here on two prompts have the name, so nobody gets it.
	b := h.claim("b", library)
	b.publishLists(catalog.Lists{Prompts: []jsontext.Value{jsontext.Value(`{"name":"greet"}`)}})
	b.status(registry.Status{State: registry.StateUp})
	h.until("ready", b.isReady)
	get := func(id string) string {
		return string(h.engine.do(h.ctx(), itemRequest(t, mcp.MethodPromptsGet, `{"name":"lib__greet","_meta":{"toolhub/toolset":"`+id+`"}}`), nil).body)
	}
	for what, c := range map[string]struct{ id, want string }{
		"present":     {h.engine.list("", caller{}).set.Digest(catalog.KindPrompt), "unknown prompt"}, // makes the list
		"unknown":     {"0123", "unknown prompt"},
		"of tools":    {h.engine.list("", caller{}).set.ID, "unknown prompt"},
		"was offered": {offered, `"text":"greet"`},
	} {
		if got := get(c.id); !strings.Contains(got, c.want) {
			t.Errorf("against a list that is %s: %s", what, got)
		}
	}
	// A prompt of a server that is gone is not unknown.
	lib.unclaim()
	h.until("gone", func(v *registry.View) bool { return !lib.isReady(v) })
	if f := faultIn(h.engine.do(h.ctx(), itemRequest(t, mcp.MethodPromptsGet, `{"name":"lib__quiz"}`), nil)); f == nil || f.Kind != mcp.KindUnavailable {
		t.Errorf("of a server that is gone: %v", f)
	}
}

// TestSleepingOriginalURI: a resource that a server lists is not read from another
// that might have it, when its own is not ready.
func TestSleepingOriginalURI(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  a: {builtin: clock, uris: original}\n  b: {builtin: clock, uris: original}\n")
	for id, state := range map[string]registry.State{"a": registry.StateUp, "b": registry.StateDown} {
		s := h.claim(id, library)
		s.publishLists(catalog.Lists{Resources: []jsontext.Value{jsontext.Value(`{"uri":"lib:` + id + `","name":"x"}`)}})
		s.status(registry.Status{State: state})
	}
	h.until("both", func(v *registry.View) bool {
		return v.Get("a").Ready() && v.Get("b").Catalog != nil && v.Get("b").State() == registry.StateDown
	})
	read := func(uri string) answer {
		return h.engine.do(h.ctx(), itemRequest(t, mcp.MethodResourcesRead, `{"uri":"`+uri+`"}`), nil)
	}
	if f := faultIn(read("lib:b")); f == nil || f.Kind != mcp.KindUnavailable || f.Server != "b" {
		t.Errorf("of the sleeping server: %v", f)
	}
	for _, uri := range []string{"lib:a", "lib:unlisted"} {
		if got := read(uri); got.err != nil {
			t.Errorf("%s: %s", uri, got.body)
		}
	}
}

// TestItemsOverHTTP: a modern client reaches all kinds of things, and its headers must
// say what it is about.
func TestItemsOverHTTP(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	// A rule that looks at principals makes all lists their own.
	b.apply("hub: test\npolicy: {allow: ['*/*'], deny: [{tool: '*/resource:lib:b', when: 'principal == \"eve\"'}]}\nservers:\n  t: {builtin: clock, prefix: \"\"}\n  lib: {builtin: clock}\n")
	b.eventually("lib defined", func() bool { return b.registry.View().Get("lib") != nil })
	s := b.claim("lib", library)
	s.publishLists(libraryLists())
	s.status(registry.Status{State: registry.StateUp})
	r := b.router("r1")
	b.eventually("lib ready", func() bool { return s.isReady(r.engine.registry.View()) })
	c := b.client()
	for _, k := range []struct {
		method, params, name string
		status               int
		want                 string
	}{
		{mcp.MethodPromptsList, ``, "", 200, `"ttlMs":0,"cacheScope":"private"`},
		{mcp.MethodResourcesRead, `"uri":"mcp-proxy://lib/lib:a",`, "mcp-proxy://lib/lib:a", 200, `"uri":"mcp-proxy://lib/lib:a"`},
		{mcp.MethodResourcesRead, `"uri":"mcp-proxy://lib/lib:a",`, "lib:a", 400, `"code":-32020`},
		{mcp.MethodResourcesRead, `"uri":"mcp-proxy://lib/lib:nothing",`, "mcp-proxy://lib/lib:nothing", 400, `"code":-32602`},
		{mcp.MethodPromptsGet, `"name":"lib__greet",`, "lib__greet", 200, `"text":"greet"`},
		{mcp.MethodPromptsGet, `"name":"lib__greet",`, "greet", 400, `"code":-32020`},
		{mcp.MethodPromptsGet, `"name":"lib__quiz",`, "lib__quiz", 200, `"message":"[lib] round 0"`},
		{mcp.MethodComplete, `"ref":{"type":"ref/resource","uri":"mcp-proxy://lib/lib:book/{id}"},"argument":{"name":"id","value":"1"},`, "", 200, `\"uri\":\"lib:book/{id}\"`},
		{methodHealth, ``, "", 404, `"code":-32601`},
	} {
		headers := []string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", k.method}
		if k.name != "" {
			headers = append(headers, "Mcp-Name", k.name)
		}
		res, body := b.exchange(c, post(t.Context(), r.url, `{"jsonrpc":"2.0","id":1,"method":"`+k.method+`","params":{`+k.params+clientMeta+`}}`, headers...))
		if res.StatusCode != k.status || !strings.Contains(body, k.want) {
			t.Errorf("%s %s as %q: %s %s", k.method, k.params, k.name, res.Status, body)
		}
	}
}
