//lint:file-ignore SA1019 elicitation by requests is of the initialize era, which servers go on using.

package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/config"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// newLibrary is a server of either era with resources, templates and prompts.
// Its tool touch tells of an update of the resource in its argument; legacy_only
// is there for initialize only.
func newLibrary() *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "library", Version: "1"}, &sdk.ServerOptions{
		CompletionHandler: func(_ context.Context, req *sdk.CompleteRequest) (*sdk.CompleteResult, error) {
			return &sdk.CompleteResult{Completion: sdk.CompletionResultDetails{Values: []string{req.Params.Ref.Name + req.Params.Ref.URI + ":" + req.Params.Argument.Value}}}, nil
		},
		SubscribeHandler: func(_ context.Context, req *sdk.SubscribeRequest) error {
			if strings.Contains(req.Params.URI, "static") {
				return errors.New("this never changes")
			}
			return nil
		},
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
	})
	read := func(_ context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: req.Params.URI, Text: "content of " + req.Params.URI}}}, nil
	}
	for _, uri := range []string{"lib:static", "lib:news", "lib:secret", "lib:shelf/"} {
		s.AddResource(&sdk.Resource{URI: uri, Name: uri}, read)
	}
	s.AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: "lib:book/{id}", Name: "book"}, read)
	s.AddPrompt(&sdk.Prompt{Name: "greet", Arguments: []*sdk.PromptArgument{{Name: "name"}}}, func(_ context.Context, req *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
		return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{{Role: "user", Content: &sdk.TextContent{Text: "hello " + req.Params.Arguments["name"]}}}}, nil
	})
	s.AddPrompt(&sdk.Prompt{Name: "asks"}, func(ctx context.Context, req *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
		res, err := req.Session.Elicit(ctx, &sdk.ElicitParams{Message: "who?", RequestedSchema: json.RawMessage(`{"type":"object","properties":{"v":{"type":"string"}}}`)})
		if err != nil {
			return nil, err
		}
		return &sdk.GetPromptResult{Messages: []*sdk.PromptMessage{{Role: "user", Content: &sdk.TextContent{Text: fmt.Sprint("hello ", res.Content["v"])}}}}, nil
	})
	schema := json.RawMessage(`{"type":"object"}`)
	s.AddTool(&sdk.Tool{Name: "touch", InputSchema: schema}, func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		var in struct{ URI string }
		if err := json.Unmarshal(req.Params.Arguments, &in); err != nil {
			return nil, err
		}
		return testbedText("touched"), s.ResourceUpdated(ctx, &sdk.ResourceUpdatedNotificationParams{URI: in.URI})
	})
	s.AddTool(&sdk.Tool{Name: "exit", InputSchema: schema}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		panic("the library burns")
	})
	s.AddTool(&sdk.Tool{Name: "era", InputSchema: schema}, func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return testbedText(libraryEra(req.Session)), nil
	})
	s.AddTool(&sdk.Tool{Name: "legacy_only", InputSchema: schema}, func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return testbedText(libraryEra(req.Session)), nil
	})
	s.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			res, err := next(ctx, method, req)
			if list, ok := res.(*sdk.ListToolsResult); ok && libraryEra(req.GetSession().(*sdk.ServerSession)) == "modern" {
				list.Tools = slices.DeleteFunc(list.Tools, func(t *sdk.Tool) bool { return t.Name == "legacy_only" })
			}
			return res, err
		}
	})
	return s
}

func libraryEra(s *sdk.ServerSession) string {
	if init := s.InitializeParams(); init != nil && init.ProtocolVersion < mcp.Version20260728 {
		return "legacy"
	}
	return "modern"
}

// ask makes any request to a server, as the client of an era.
func (h *testHub) askAs(era mcp.Era, server, method, params string) (jsontext.Value, error) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	body := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params)
	reply, err := h.conn.Call(ctx, &bus.Request{
		Subject: bus.CallSubject("test", server, h.ready(server).Epoch(), method), Body: body, Worker: "w1", Meta: bus.Meta{ClientEra: era},
	}, nil)
	if err != nil {
		return nil, err
	}
	m, err := mcp.ParseMessage(reply.Body, mcp.Lenient)
	if err == nil && m.Err != nil {
		err = m.Err
	}
	return m.Result, err
}

// TestItems: what a server has beside tools is listed and reached, whichever era
// the server speaks.
func TestItems(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: {allow: ['*/*'], deny: ['*/resource:lib:secret*', '*/prompt:hidden']}\nservers:\n  modern: "+child("library")+"\n  legacy: "+child("library", "era: legacy")+"\n")
	for _, server := range []string{"modern", "legacy"} {
		s := h.ready(server)
		if got := s.Catalog.Counts(); got.Resources != 4 || got.Templates != 1 || got.Prompts != 2 {
			t.Errorf("%s: the catalog has %+v", server, got)
		}
		for _, c := range []struct{ method, params, want string }{
			{mcp.MethodResourcesRead, `{"uri":"lib:news"}`, `"text":"content of lib:news"`},
			{mcp.MethodResourcesRead, `{"uri":"lib:news"}`, `"resultType":"complete"`},
			{mcp.MethodResourcesRead, `{"uri":"lib:news"}`, `"ttlMs":0`},
			{mcp.MethodResourcesRead, `{"uri":"lib:book/7"}`, `"text":"content of lib:book/7"`},
			{mcp.MethodResourcesRead, `{"uri":"lib:nothing"}`, `-32602 {"uri":"lib:nothing"}`},
			{mcp.MethodResourcesRead, `{"uri":"lib:secret"}`, `denied policy`},
			{mcp.MethodResourcesRead, `{"uri":"lib:news/../secret"}`, `denied policy`},
			{mcp.MethodResourcesRead, `{"uri":7}`, `invalid invalid_params`},
			{mcp.MethodPromptsGet, `{"name":"greet","arguments":{"name":"Ada"}}`, `"text":"hello Ada"`},
			{mcp.MethodPromptsGet, `{"name":"nobody"}`, `not_found unknown_prompt`},
			{mcp.MethodPromptsGet, `{}`, `invalid invalid_params`},
			{mcp.MethodComplete, `{"ref":{"type":"ref/prompt","name":"greet"},"argument":{"name":"name","value":"A"}}`, `"values":["greet:A"]`},
			{mcp.MethodComplete, `{"ref":{"type":"ref/resource","uri":"lib:book/{id}"},"argument":{"name":"id","value":"9"}}`, `"values":["lib:book/{id}:9"]`},
			{mcp.MethodComplete, `{"ref":{"type":"ref/prompt","name":"nobody"},"argument":{"name":"name","value":"A"}}`, `not_found unknown_prompt`},
			{mcp.MethodComplete, `{"ref":{"type":"ref/tool","name":"touch"}}`, `invalid invalid_params`},
			{mcp.MethodResourcesList, `{}`, `"uri":"lib:static"`},
			{mcp.MethodTemplatesList, `{}`, `"resourceTemplates":[{`},
			{mcp.MethodPromptsList, `{}`, `"name":"asks"`},
		} {
			value, err := h.askAs(mcp.EraModern, server, c.method, withMeta(c.params))
			if got := outcomeOf(value, err); !strings.Contains(got, c.want) {
				t.Errorf("%s: %s %s: %.300s, want %s", server, c.method, c.params, got, c.want)
			}
		}
		list, err := h.askAs(mcp.EraModern, server, mcp.MethodResourcesList, withMeta(`{}`))
		if err != nil || strings.Contains(string(list), "secret") {
			t.Errorf("%s: what is denied is listed: %s, %v", server, list, err)
		}
	}
}

func withMeta(params string) string {
	meta := `"_meta":{"` + mcp.MetaProtocolVersion + `":"` + mcp.LatestModern + `","` + mcp.MetaClientCapabilities + `":{"elicitation":{}}}}`
	if params == "{}" {
		return "{" + meta
	}
	return strings.TrimSuffix(params, "}") + "," + meta
}

// outcomeOf is a result, or what is wrong in few words.
func outcomeOf(value jsontext.Value, err error) string {
	if e, ok := errors.AsType[*mcp.Error](err); ok {
		return fmt.Sprint(e.Code, " ", string(e.Data))
	}
	if f, ok := errors.AsType[*mcp.Fault](err); ok {
		return string(f.Kind) + " " + f.Reason
	}
	return string(value)
}

// TestPromptAsks: a legacy server may ask for input while it makes a prompt.
func TestPromptAsks(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  lib: "+child("library", "era: legacy")+"\n")
	value, err := h.askAs(mcp.EraModern, "lib", mcp.MethodPromptsGet, withMeta(`{"name":"asks"}`))
	if err != nil || !strings.Contains(string(value), `"message":"who?"`) {
		t.Fatalf("%s, %v", value, err)
	}
	state := mcp.Field(value, "requestState")
	back := `{"name":"asks","requestState":` + string(state) + `,"inputResponses":{"ask-1":{"action":"accept","content":{"v":"Ada"}}}}`
	value, err = h.askAs(mcp.EraModern, "lib", mcp.MethodPromptsGet, withMeta(back))
	if err != nil || !strings.Contains(string(value), "hello Ada") {
		t.Fatalf("%s, %v", value, err)
	}
	// What is sealed for a prompt is of no use for a tool.
	if _, err := h.askAs(mcp.EraModern, "lib", mcp.MethodToolsCall, withMeta(`{"name":"touch","requestState":`+string(state)+`}`)); !mcp.IsKind(err, mcp.KindInvalid) {
		t.Errorf("the state of a prompt for a tool: %v", err)
	}
}

// TestMirror: each caller meets the connection of its own era, and what is in one
// era only is reached by everybody.
func TestMirror(t *testing.T) {
	t.Parallel()
	h := newTestHub(t, "policy: allow_all\nservers:\n  lib: "+child("library", "era: mirror")+"\n")
	// What is in one era only comes last.
	h.until("the lists of both eras", func(v *registry.View) bool {
		s := v.Get("lib")
		return s != nil && s.State() == registry.StateUp && s.Catalog != nil && len(s.Catalog.Tools) == 4 && s.Catalog.Tools[3].Name == "legacy_only"
	})
	for _, c := range []struct {
		era        mcp.Era
		tool, want string
	}{{mcp.EraModern, "era", "modern"}, {mcp.EraLegacy, "era", "legacy"}, {"", "era", "modern"}, {mcp.EraModern, "legacy_only", "legacy"}, {mcp.EraLegacy, "legacy_only", "legacy"}} {
		value, err := h.askAs(c.era, "lib", mcp.MethodToolsCall, withMeta(`{"name":"`+c.tool+`"}`))
		if err != nil || textOf(value) != c.want {
			t.Errorf("%s called by %q: %s, %v", c.tool, c.era, value, err)
		}
	}
}

// TestPartialRefetch: only the list that changed is read anew.
func TestPartialRefetch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		asked := map[string]int{}
		def := testDefinition(nil)
		var changed func(kindSet)
		b := &bench{start: time.Now(), ended: make(chan struct{})}
		dial := func(_ context.Context, _ mcp.EraChoice, tell news) (*link, error) {
			changed = tell.listChanged
			conn := newScripted(func(call *mcp.Call) (jsontext.Value, error) {
				mu.Lock()
				defer mu.Unlock()
				asked[call.Method]++
				switch call.Method {
				case mcp.MethodTemplatesList:
					return nil, mcp.MethodNotFound(call.Method) // as many servers do
				case mcp.MethodResourcesList:
					return jsontext.Value(`{"resources":[{"uri":"x:y","name":"y"}]}`), nil
				case mcp.MethodPromptsList:
					return jsontext.Value(`{"prompts":[{"name":"p"}]}`), nil
				}
				return jsontext.Value(oneTool), nil
			})
			conn.info.Capabilities = jsontext.Value(`{"tools":{},"resources":{},"prompts":{}}`)
			return newLink(conn, nil), nil
		}
		b.server = newServer(def, dial, newLot("w", nil), discardEvents, func(post) {}, discardLog())
		ctx, cancel := context.WithCancel(t.Context())
		b.stopping = cancel
		go func() {
			defer close(b.ended)
			b.run(ctx, ctx)
		}()
		t.Cleanup(b.stop)
		counts := func() [4]int {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return [4]int{asked[mcp.MethodToolsList], asked[mcp.MethodResourcesList], asked[mcp.MethodTemplatesList], asked[mcp.MethodPromptsList]}
		}
		if got := counts(); got != [4]int{1, 1, 1, 1} {
			t.Fatalf("at first: %v", got)
		}
		for i, list := range []mcp.ListKind{mcp.ListPrompts, mcp.ListResources, mcp.ListTools} {
			changed(kindsOf(list))
			time.Sleep(5 * time.Second)
			want := [][4]int{{1, 1, 1, 2}, {1, 2, 2, 2}, {2, 2, 2, 2}}[i]
			if got := counts(); got != want {
				t.Errorf("after a change of %s: %v, want %v", list, got, want)
			}
		}
		if c := b.live.Load().catalog; c.Counts() != (catalog.Counts{Tools: 1, Resources: 1, Prompts: 1}) {
			t.Errorf("the catalog has %+v", c.Counts())
		}
	})
}

// TestWhatTakesNoReconnect: how things are named and listed changes without
// touching the connection; how the server is reached does not.
func TestWhatTakesNoReconnect(t *testing.T) {
	t.Parallel()
	same := testDefinition(nil).connection()
	for name, change := range map[string]func(*config.Server){
		"uris": func(s *config.Server) { s.URIs = catalog.URIsOriginal }, "naming": func(s *config.Server) { s.Naming = catalog.NamingMCP },
		"trusted": func(s *config.Server) { s.Trusted = true }, "timeout": func(s *config.Server) { s.Timeout++ },
	} {
		if testDefinition(change).connection() != same {
			t.Errorf("a change of %s needs a new connection", name)
		}
	}
	for name, change := range map[string]func(*config.Server){
		"era": func(s *config.Server) { s.Era = config.EraMirror }, "command": func(s *config.Server) { s.Command = "y" }, "replicas": func(s *config.Server) { s.Replicas = 3 },
	} {
		if testDefinition(change).connection() == same {
			t.Errorf("a change of %s needs no new connection", name)
		}
	}
}

// TestServerChangesItsEra: what a server listed in the era that it spoke before it
// was replaced by another version is gone with it.
func TestServerChangesItsEra(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		era, tool := mcp.EraLegacy, "old"
		b := &bench{start: time.Now(), ended: make(chan struct{})}
		dial := func(context.Context, mcp.EraChoice, news) (*link, error) {
			name := tool
			b.conn = newScripted(func(*mcp.Call) (jsontext.Value, error) {
				return jsontext.Value(`{"tools":[{"name":"` + name + `","inputSchema":{"type":"object"}}]}`), nil
			})
			b.conn.info.Era = era
			return newLink(b.conn, nil), nil
		}
		b.server = newServer(testDefinition(nil), dial, newLot("w", nil), discardEvents, func(post) {}, discardLog())
		ctx, cancel := context.WithCancel(t.Context())
		b.stopping = cancel
		go func() {
			defer close(b.ended)
			b.run(ctx, ctx)
		}()
		t.Cleanup(b.stop)
		synctest.Wait()
		era, tool = mcp.EraModern, "new"
		b.lose()
		time.Sleep(time.Minute)
		synctest.Wait()
		if c := b.live.Load().catalog; len(c.Tools) != 1 || c.Tools[0].Name != "new" || c.Info.Era != mcp.EraModern {
			t.Errorf("the catalog has %d tools, the first is %s, of era %s", len(c.Tools), c.Tools[0].Name, c.Info.Era)
		}
	})
}
