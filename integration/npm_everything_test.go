//go:build npm

package integration_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// everythingTools are the tools of the reference server "everything" with all that
// it can ask of a client, each with arguments and what the result must have in it.
var everythingTools = []struct{ name, args, want string }{
	{"echo", `{"message":"hi"}`, "Echo: hi"},
	{"get-annotated-message", `{"messageType":"error","includeImage":true}`, `"priority":1`},
	{"get-env", `{}`, "PATH"},
	{"get-resource-links", `{"count":3}`, `"uri":"mcp-proxy://every/demo://resource/dynamic/`},
	{"get-resource-reference", `{"resourceType":"Text","resourceId":1}`, `"uri":"mcp-proxy://every/demo://resource/dynamic/text/1"`},
	{"get-structured-content", `{"location":"New York"}`, `"structuredContent":{"temperature":`},
	{"get-sum", `{"a":2,"b":3}`, "The sum of 2 and 3 is 5"},
	{"get-tiny-image", `{}`, `"mimeType":"image/png"`},
	{"gzip-file-as-resource", `{"name":"a.gz","data":"data:text/plain,hello","outputType":"resource"}`, `"mimeType":"application/gzip"`},
	{"toggle-simulated-logging", `{}`, "Started simulated"},
	{"toggle-subscriber-updates", `{}`, "Started simulated resource updated notifications"},
	{"trigger-long-running-operation", `{"duration":0.2,"steps":2}`, "Long running operation completed"},
	{"get-roots-list", `{}`, "file:///home"},
	{"trigger-elicitation-request", `{}`, "User provided the requested information"},
	{"trigger-url-elicitation", `{"url":"https://example.org/consent","message":"go"}`, "User completed the URL elicitation flow"},
	{"trigger-sampling-request", `{"prompt":"x"}`, "forty-two"},
	{"simulate-research-query", `{"topic":"python","ambiguous":true}`, "# Research Report: python (programming)"},
	{"trigger-sampling-request-async", `{"prompt":"x"}`, "Async sampling completed"},
	{"trigger-elicitation-request-async", `{}`, "[COMPLETED] User provided the requested information"},
}

// fillIn answers a form with the first of what is allowed for each field.
func fillIn(method string, params json.RawMessage) string {
	var form struct {
		Mode            string
		RequestedSchema struct {
			Properties map[string]struct {
				Type, Format string
				Minimum      *float64
				Enum         []any
				OneOf        []struct{ Const any }
			}
		}
	}
	if method != "elicitation/create" || json.Unmarshal(params, &form) != nil || form.Mode == "url" {
		return obliging()(method, params)
	}
	content := make(map[string]any)
	for name, p := range form.RequestedSchema.Properties {
		texts := map[string]any{"email": "a@example.org", "uri": "https://example.org", "date": "2020-01-01", "date-time": "2020-01-01T00:00:00Z", "": "text"}
		switch {
		case len(p.OneOf) > 0:
			content[name] = p.OneOf[0].Const
		case len(p.Enum) > 0:
			content[name] = p.Enum[0]
		case p.Type == "boolean":
			content[name] = true
		case p.Type == "array":
			content[name] = []any{}
		case p.Minimum != nil:
			content[name] = *p.Minimum
		case p.Type == "number", p.Type == "integer":
			content[name] = 1
		default:
			content[name] = texts[p.Format]
		}
	}
	b, err := json.Marshal(map[string]any{"action": "accept", "content": content})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// TestNpmServerEverything: all that the reference server has works for a client
// that has the capabilities for it.
func TestNpmServerEverything(t *testing.T) {
	t.Parallel()
	server := filepath.Join(npm(t), "servers/node_modules/@modelcontextprotocol/server-everything/dist/index.js")
	h := start(t, fmt.Sprintf("policy: allow_all\nstartup_timeout: 2m\nprobe_timeout: 20s\nservers:\n  every: {command: %q, args: [%q, stdio], env: {MARK: \"{dir}\"}}\n", node(t), server))
	offered(t, h, "every__trigger-elicitation-request-async") // the last that it registers
	c := (&eraClient{t: t, url: h.URL + "/mcp", capabilities: `{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}`, user: fillIn}).open()

	var tools struct{ Tools []struct{ Name string } }
	var listed, known []string
	if e := c.do("tools/list", "{}"); e.err != nil || json.Unmarshal(e.result, &tools) != nil {
		t.Fatal(e)
	}
	for _, tool := range tools.Tools {
		listed = append(listed, strings.TrimPrefix(tool.Name, "every__"))
	}
	for _, tool := range everythingTools {
		known = append(known, tool.name)
		e := c.do("tools/call", fmt.Sprintf(`{"name":"every__%s","arguments":%s,"_meta":{"progressToken":%q}}`, tool.name, tool.args, tool.name))
		if e.err != nil || !strings.Contains(string(e.result), tool.want) || strings.Contains(string(e.result), `"isError":true`) {
			t.Errorf("%s: %.400s\nwant %s", tool.name, e, tool.want)
		}
	}
	slices.Sort(listed)
	if slices.Sort(known); !slices.Equal(listed, known) {
		t.Errorf("listed are %v", listed)
	}

	items := func(method, member string) (out []map[string]any) {
		var page map[string]json.RawMessage
		e := c.do(method, "{}")
		if e.err != nil || json.Unmarshal(e.result, &page) != nil || json.Unmarshal(page[member], &out) != nil {
			t.Fatalf("%s: %v", method, e)
		}
		return out
	}
	read := func(uri, want string) {
		if e := c.do("resources/read", fmt.Sprintf(`{"uri":%q}`, uri)); e.err != nil || !strings.Contains(string(e.result), want) || !strings.Contains(string(e.result), `"uri":"`+uri+`"`) {
			t.Errorf("%s: %.300s", uri, e)
		}
	}
	static := 0
	var document string
	for _, r := range items("resources/list", "resources") {
		if uri := fmt.Sprint(r["uri"]); strings.HasPrefix(uri, "mcp-proxy://every/demo://resource/static/") {
			static++
			document = uri
			read(uri, `"text":"`)
		}
	}
	templates := items("resources/templates/list", "resourceTemplates")
	for _, r := range templates {
		uri := strings.ReplaceAll(fmt.Sprint(r["uriTemplate"]), "{resourceId}", "3")
		read(uri, "3")
		if e := c.do("completion/complete", fmt.Sprintf(`{"ref":{"type":"ref/resource","uri":%q},"argument":{"name":"resourceId","value":"3"}}`, r["uriTemplate"])); e.err != nil || !strings.Contains(string(e.result), `"3"`) {
			t.Errorf("completion of %s: %v", r["uriTemplate"], e)
		}
	}
	prompts := items("prompts/list", "prompts")
	if static != 7 || len(templates) != 2 || len(prompts) != 4 {
		t.Errorf("%d resources, %d templates, %d prompts", static, len(templates), len(prompts))
	}
	for _, p := range []struct{ name, args, want string }{
		{"simple-prompt", `{}`, "simple prompt without arguments"},
		{"args-prompt", `{"city":"Ulm","state":"BW"}`, "weather in Ulm, BW"},
		{"completable-prompt", `{"department":"Engineering","name":"Ada"}`, "promote Ada to the head of the Engineering team"},
		{"resource-prompt", `{"resourceType":"Text","resourceId":"1"}`, `"uri":"mcp-proxy://every/demo://resource/dynamic/text/1"`},
	} {
		if e := c.do("prompts/get", fmt.Sprintf(`{"name":"every__%s","arguments":%s}`, p.name, p.args)); e.err != nil || !strings.Contains(string(e.result), p.want) {
			t.Errorf("%s: %.300s\nwant %s", p.name, e, p.want)
		}
	}
	if e := c.do("completion/complete", `{"ref":{"type":"ref/prompt","name":"every__completable-prompt"},"argument":{"name":"department","value":"E"}}`); e.err != nil || !strings.Contains(string(e.result), `"Engineering"`) {
		t.Errorf("completion: %v", e)
	}
	// Updates, which toggle-subscriber-updates has begun, come every five seconds.
	heard := c.listen(document)
	hears(t, heard, "notifications/resources/updated", `"`+document+`"`)
	hears(t, heard, "notifications/resources/updated", `"`+document+`"`)
}
