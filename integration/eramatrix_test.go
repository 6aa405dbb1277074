package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"toolhub/integration/hubproc"
)

// cell is one way through the matrix: a client of an era before a backend of an
// era, which it sees under names of its own.
type cell struct {
	t                     *testing.T
	url                   string
	id                    string // of the server, "" directly
	modern, modernBackend bool
}

// tool and uri are the exposed forms.
func (c *cell) tool(name string) string {
	if c.id == "" {
		return name
	}
	return c.id + "__" + name
}

func (c *cell) uri(own string) string {
	if c.id == "" {
		return own
	}
	return "mcp-proxy://" + c.id + "/" + own
}

const everything = `{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}`

// client is one with these capabilities, whose user answers everything.
func (c *cell) client(capabilities string) *eraClient {
	c.t.Helper()
	client := &eraClient{t: c.t, url: c.url, modern: c.modern, capabilities: capabilities, level: "warning"}
	if capabilities != "{}" {
		client.user = obliging()
	}
	return client.open()
}

// obliging answers what it is asked, forms with the number of the answer.
func obliging() func(string, json.RawMessage) string {
	var n atomic.Int64
	return func(method string, params json.RawMessage) string {
		switch method {
		case "sampling/createMessage":
			return `{"role":"assistant","model":"m","content":{"type":"text","text":"forty-two"}}`
		case "roots/list":
			return `{"roots":[{"uri":"file:///home"}]}`
		}
		if strings.Contains(string(params), `"url"`) {
			return `{"action":"accept"}`
		}
		return fmt.Sprintf(`{"action":"accept","content":{"answer":"answer %d"}}`, n.Add(1))
	}
}

func (c *cell) call(client *eraClient, tool, args string) *exchanged {
	c.t.Helper()
	return client.do("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s,"_meta":{"progressToken":"p","traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}`, c.tool(tool), args))
}

// feature is one row: what it does, and what has to come of it. A word in braces
// is replaced by what holds for the cell.
type feature struct {
	name string
	do   func(c *cell) string
	want string
	// refused is what comes of it in cells that cannot have it, by "client/backend".
	refused map[string]string
	// hubOnly says that a server alone does not do it.
	hubOnly bool
}

func era(modern bool) string {
	if modern {
		return "modern"
	}
	return "legacy"
}

var features = []feature{
	{name: "calls", want: `hi | isError | error -31999 {"why":"test"}`, do: func(c *cell) string {
		client := c.client("{}")
		refused := c.call(client, "refuse", `{}`)
		code := ""
		if refused.err != nil {
			code = fmt.Sprintf("error %d %s", refused.err.Code, refused.err.Data)
		}
		failed := c.call(client, "fail", `{}`)
		isError := ""
		if strings.Contains(failed.String(), `"isError":true`) {
			isError = "isError"
		}
		return firstText(c.call(client, "echo", `{"text":"hi"}`)) + " | " + isError + " | " + code
	}},
	{name: "lists, page by page", want: "tools 16 resources 3 resourceTemplates 1 prompts 3", do: func(c *cell) string {
		client := c.client("{}")
		var out []string
		for _, list := range []struct{ method, member, mine string }{
			{"tools/list", "tools", c.tool("")}, {"resources/list", "resources", c.uri("")}, {"resources/templates/list", "resourceTemplates", c.uri("")}, {"prompts/list", "prompts", c.tool("")},
		} {
			n := 0
			for params := "{}"; params != ""; {
				e := client.do(list.method, params)
				var page map[string]json.RawMessage
				if e.err != nil || json.Unmarshal(e.result, &page) != nil {
					return e.String()
				}
				var items []map[string]any
				if err := json.Unmarshal(page[list.member], &items); err != nil {
					return e.String()
				}
				if c.id != "" && len(items) > 5 {
					return fmt.Sprintf("a page of %d", len(items))
				}
				for _, item := range items {
					key := item["name"]
					if list.member == "resources" {
						key = item["uri"]
					} else if list.member == "resourceTemplates" {
						key = item["uriTemplate"]
					}
					if k := fmt.Sprint(key); strings.HasPrefix(k, list.mine) && !strings.Contains(k, "added") {
						n++
					}
				}
				params = ""
				if page["nextCursor"] != nil {
					params = `{"cursor":` + string(page["nextCursor"]) + `}`
				}
			}
			out = append(out, fmt.Sprintf("%s %d", list.member, n))
		}
		return strings.Join(out, " ")
	}},
	{name: "reading", want: "the content of every://static | AAEC/w== | the content of every://items/7 | error {not found} {uri:none}", do: func(c *cell) string {
		client := c.client("{}")
		var out []string
		for _, own := range []string{"every://static", "every://binary", "every://items/7"} {
			e := client.do("resources/read", fmt.Sprintf(`{"uri":%q}`, c.uri(own)))
			var result struct {
				Contents []struct{ URI, Text, Blob string }
			}
			if e.err != nil || json.Unmarshal(e.result, &result) != nil || len(result.Contents) != 1 || result.Contents[0].URI != c.uri(own) {
				return e.String()
			}
			out = append(out, result.Contents[0].Text+result.Contents[0].Blob)
		}
		e := client.do("resources/read", fmt.Sprintf(`{"uri":%q}`, c.uri("every://none")))
		if e.err == nil {
			return e.String()
		}
		var data struct{ URI string }
		_ = json.Unmarshal(e.err.Data, &data)
		return strings.Join(append(out, fmt.Sprintf("error %d %s", e.err.Code, data.URI)), " | ")
	}},
	{name: "prompts", want: "Hello, Ada! | {uri:static} {uri:items} | error -32602", do: func(c *cell) string {
		client := c.client("{}")
		greet := client.do("prompts/get", fmt.Sprintf(`{"name":%q,"arguments":{"name":"Ada"}}`, c.tool("greet")))
		type prompt struct {
			Messages []struct {
				Content struct {
					Text, URI string
					Resource  struct{ URI string }
				}
			}
		}
		var p, illustrated prompt
		if greet.err != nil || json.Unmarshal(greet.result, &p) != nil || len(p.Messages) != 1 {
			return greet.String()
		}
		e := client.do("prompts/get", fmt.Sprintf(`{"name":%q}`, c.tool("illustrated")))
		if e.err != nil || json.Unmarshal(e.result, &illustrated) != nil || len(illustrated.Messages) != 2 {
			return e.String()
		}
		unknown := client.do("prompts/get", fmt.Sprintf(`{"name":%q}`, c.tool("nobody")))
		if unknown.err == nil {
			return unknown.String()
		}
		return fmt.Sprintf("%s | %s %s | error %d", p.Messages[0].Content.Text, illustrated.Messages[0].Content.Resource.URI, illustrated.Messages[1].Content.URI, unknown.err.Code)
	}},
	{name: "completion", want: "name of greet A | id of every://items/{id} 7", do: func(c *cell) string {
		client := c.client("{}")
		var out []string
		for _, params := range []string{
			fmt.Sprintf(`{"ref":{"type":"ref/prompt","name":%q},"argument":{"name":"name","value":"A"}}`, c.tool("greet")),
			fmt.Sprintf(`{"ref":{"type":"ref/resource","uri":%q},"argument":{"name":"id","value":"7"}}`, c.uri("every://items/{id}")),
		} {
			e := client.do("completion/complete", params)
			var result struct{ Completion struct{ Values []string } }
			if e.err != nil || json.Unmarshal(e.result, &result) != nil || len(result.Completion.Values) != 1 {
				return e.String()
			}
			out = append(out, result.Completion.Values[0])
		}
		return strings.Join(out, " | ")
	}},
	{name: "links", want: "the content of every://static, the content of every://items/7, https://example.com/doc, embedded {uri:static}", do: func(c *cell) string {
		client := c.client("{}")
		e := c.call(client, "link", `{}`)
		var result struct {
			Content []struct {
				URI      string
				Resource struct{ URI, Text string }
			}
		}
		if e.err != nil || json.Unmarshal(e.result, &result) != nil || len(result.Content) != 4 {
			return e.String()
		}
		var out []string
		for _, link := range result.Content[:2] {
			read := client.do("resources/read", fmt.Sprintf(`{"uri":%q}`, link.URI))
			var contents struct{ Contents []struct{ Text string } }
			if read.err != nil || json.Unmarshal(read.result, &contents) != nil || len(contents.Contents) != 1 {
				return read.String()
			}
			out = append(out, contents.Contents[0].Text)
		}
		embedded := result.Content[3].Resource
		return strings.Join(append(out, result.Content[2].URI, embedded.Text+" "+embedded.URI), ", ")
	}},
	{name: "progress and logs before the result, in order", want: "progress 1, w 1, progress 2, w 2 | w: 2 steps", do: func(c *cell) string {
		e := c.call(c.client("{}"), "work", `{"text":"w","steps":2}`)
		var notes []string
		for _, m := range e.notes {
			var p struct {
				ProgressToken string
				Progress      float64
				Level, Data   string
			}
			_ = json.Unmarshal(m.Params, &p)
			switch {
			case m.Method == "notifications/progress" && p.ProgressToken == "p":
				notes = append(notes, fmt.Sprintf("progress %v", p.Progress))
			case m.Method == "notifications/message" && p.Level == "warning":
				notes = append(notes, p.Data)
			default:
				notes = append(notes, m.Method+string(m.Params))
			}
		}
		return strings.Join(notes, ", ") + " | " + firstText(e)
	}},
	{
		name: "capabilities, level and trace of the caller", want: "elicitation warning traceparent",
		refused: map[string]string{
			// A session has its capabilities and its level from its beginning: the hub's.
			"modern/legacy": "elicitation traceparent", "legacy/legacy": "elicitation traceparent",
		},
		do: func(c *cell) string {
			text := firstText(c.call(c.client(`{"elicitation":{}}`), "caller", `{}`))
			var out []string
			for _, word := range []string{"elicitation", "warning", "traceparent"} {
				if strings.Contains(text, word) {
					out = append(out, word)
				}
			}
			return strings.Join(out, " ")
		},
	},
	{name: "cancellation", want: "cancelled", do: func(c *cell) string {
		client := c.client("{}")
		before := firstText(c.call(client, "hung", `{}`))
		ctx, cancel := context.WithCancel(soon(c.t))
		defer cancel()
		client.noted = func(id string, _ wire) { // it has begun
			if client.modern {
				cancel()
			} else {
				client.send(ctx, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+id+`}}`)
			}
		}
		e := client.doIn(ctx, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":{},"_meta":{"progressToken":"p"}}`, c.tool("hang")))
		if e.err == nil && c.id != "" { // some servers say so in their result
			return e.String()
		}
		err := hubproc.Until(soon(c.t), func() error {
			if firstText(c.call(c.client("{}"), "hung", `{}`)) == before {
				return fmt.Errorf("not cancelled: %v", e)
			}
			return nil
		})
		if err != nil {
			return err.Error()
		}
		return "cancelled"
	}},
	{name: "a form", want: "{asks}q? > accept answer 1", do: func(c *cell) string { return asking(c.call(c.client(everything), "ask", `{"text":"q?"}`)) }},
	{name: "two forms in turn", want: "{asks}q?, {asks}after answer 1 > answer 1 and answer 2", do: func(c *cell) string {
		return asking(c.call(c.client(everything), "ask_twice", `{"text":"q?"}`))
	}},
	{name: "a form and a model at once", want: "{asks}q?, sampling/createMessage > answer 1 and forty-two", do: func(c *cell) string {
		e := c.call(c.client(everything), "ask_both", `{"text":"q?"}`)
		slices.Sort(e.asked)
		return asking(e)
	}},
	{name: "a URL", want: "{asks}go > accept", do: func(c *cell) string { return asking(c.call(c.client(everything), "visit", `{"text":"go"}`)) }},
	{name: "sampling", want: "sampling/createMessage > the model says: forty-two", do: func(c *cell) string {
		return asking(c.call(c.client(everything), "sample", `{"text":"why?"}`))
	}},
	{name: "roots", want: "roots/list > file:///home", do: func(c *cell) string { return asking(c.call(c.client(everything), "roots", `{}`)) }},
	{name: "a form for a prompt", want: "{asks}who? > Hello, answer 1!", do: func(c *cell) string {
		e := c.client(everything).do("prompts/get", fmt.Sprintf(`{"name":%q}`, c.tool("interview")))
		var p struct {
			Messages []struct{ Content struct{ Text string } }
		}
		if e.err != nil || json.Unmarshal(e.result, &p) != nil || len(p.Messages) != 1 {
			return e.String()
		}
		return strings.Join(e.asked, ", ") + " > " + p.Messages[0].Content.Text
	}},
	{
		name: "a form for a client that has none", hubOnly: true, want: "error -32021", do: func(c *cell) string {
			e := c.call(c.client("{}"), "ask", `{"text":"q?"}`)
			if e.err == nil {
				return firstText(e)
			}
			return fmt.Sprintf("error %d", e.err.Code)
		},
		refused: map[string]string{
			"legacy/modern": "error -32600", // this era has no code for it
			// The server asks in its call, hears that it cannot, and says so in its own words.
			"modern/legacy": `calling "elicitation/create": method not found: "elicitation/create"`, "legacy/legacy": `calling "elicitation/create": method not found: "elicitation/create"`,
		},
	},
	{
		name: "a requestState that was changed", hubOnly: true, want: "error -32602",
		refused: map[string]string{"legacy/modern": "there is none", "legacy/legacy": "there is none"},
		do: func(c *cell) string {
			if !c.modern {
				return "there is none"
			}
			client := c.client(everything)
			client.user = nil
			e := c.call(client, "ask", `{"text":"q?"}`)
			var result struct{ RequestState string }
			if err := json.Unmarshal(e.result, &result); err != nil || result.RequestState == "" {
				return e.String()
			}
			again := func(state string) *exchanged {
				return client.do("tools/call", fmt.Sprintf(`{"name":%q,"arguments":{"text":"q?"},"inputResponses":{"form":{"action":"cancel"},"ask-1":{"action":"cancel"}},"requestState":%q}`, c.tool("ask"), state))
			}
			e = again(result.RequestState + "-TAMPERED")
			if e.err == nil {
				return e.String()
			}
			// Nothing is lost by that.
			if right := firstText(again(result.RequestState)); !strings.HasPrefix(right, "cancel") {
				return right
			}
			return fmt.Sprintf("error %d", e.err.Code)
		},
	},
	{name: "changes of lists", want: "heard", do: func(c *cell) string {
		client := c.client("{}")
		heard := client.listen()
		for _, list := range []string{"tools", "prompts", "resources"} {
			c.call(client, "change", fmt.Sprintf(`{"text":%q,"steps":%d}`, list, changes.Add(1)))
			hears(c.t, heard, "notifications/"+list+"/list_changed", "")
		}
		return "heard"
	}},
	{name: "updates of resources", want: "heard", do: func(c *cell) string {
		client := c.client("{}")
		heard := client.listen(c.uri("every://watched"), c.uri("every://items/9"))
		for _, own := range []string{"every://watched", "every://items/9"} {
			if got := firstText(c.call(client, "touch", fmt.Sprintf(`{"text":%q}`, own))); !strings.Contains(got, "touched") {
				return got
			}
			hears(c.t, heard, "notifications/resources/updated", `"`+c.uri(own)+`"`)
		}
		return "heard"
	}},
	{name: "health", hubOnly: true, want: "up", do: func(c *cell) string {
		capability := `{"extensions":{"toolhub/health":{}}}`
		if !c.modern {
			capability = `{"experimental":{"toolhub/health":{}}}`
		}
		e := c.client(capability).do("proxy/health", `{}`)
		var result struct{ Status string }
		_ = json.Unmarshal(e.result, &result)
		if without := c.client("{}").do("proxy/health", `{}`); without.err == nil || without.err.Code != -32601 {
			return "without the extension: " + without.String()
		}
		return result.Status
	}},
}

// changes makes each change of a list a new one.
var changes atomic.Int64

func firstText(e *exchanged) string {
	var result struct{ Content []struct{ Text string } }
	if e.err != nil || json.Unmarshal(e.result, &result) != nil || len(result.Content) == 0 {
		return e.String()
	}
	return result.Content[0].Text
}

func asking(e *exchanged) string {
	asked := make([]string, len(e.asked))
	for i, q := range e.asked {
		asked[i] = strings.TrimSpace(q)
	}
	return strings.Join(asked, ", ") + " > " + firstText(e)
}

// wanted is what has to come of a feature in a cell.
func (f *feature) wanted(c *cell) string {
	want := f.want
	if c.id != "" { // alone a server cannot refuse what it does not know
		if refused, ok := f.refused[era(c.modern)+"/"+era(c.modernBackend)]; ok {
			want = refused
		}
	} else if refused, ok := f.refused["legacy/legacy"]; ok && !c.modern {
		want = refused
	}
	notFound, asks := "-32002", "elicitation/create "
	if c.modern || c.id == "" { // the SDK's server says so in both eras
		notFound = "-32602"
	}
	if c.id != "" {
		asks += "[" + c.id + "] "
	}
	return strings.NewReplacer("{not found}", notFound, "{asks}", asks,
		"{uri:none}", c.uri("every://none"), "{uri:static}", c.uri("every://static"), "{uri:items}", c.uri("every://items/9")).Replace(want)
}

// TestEraMatrix has clients of each era before backends of each era and transport,
// with every feature: it works, or is refused as the table says. The control is a
// client of the backend's own era directly before it.
func TestEraMatrix(t *testing.T) {
	t.Parallel()
	urls := everyfeature(t)
	var yaml strings.Builder
	yaml.WriteString("hub: matrix\npolicy: allow_all\npage_size: 5\nservers:\n")
	for _, e := range []string{"legacy", "modern"} {
		yaml.WriteString(fmt.Sprintf("  stdio_%s: {command: %q, era: %[1]s}\n  http_%[1]s: {url: %[3]q, era: %[1]s}\n", e, binary("everyfeature"), urls[e]))
	}
	h := start(t, yaml.String())
	offered(t, h, "stdio_legacy__echo", "stdio_modern__echo", "http_legacy__echo", "http_modern__echo")
	run := func(name string, c cell) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := c
			c.t = t
			for _, f := range features {
				if f.hubOnly && c.id == "" {
					continue
				}
				if got, want := f.do(&c), f.wanted(&c); got != want {
					t.Errorf("%s: %.300s\nwant %.300s", f.name, got, want)
				}
			}
		})
	}
	for _, backend := range []bool{false, true} {
		run("direct "+era(backend), cell{url: urls[era(backend)], modern: backend, modernBackend: backend})
		for _, client := range []bool{false, true} {
			for _, transport := range []string{"stdio", "http"} {
				id := transport + "_" + era(backend)
				run(fmt.Sprintf("%s client, %s backend over %s", era(client), era(backend), transport),
					cell{url: h.URL + "/mcp", id: id, modern: client, modernBackend: backend})
			}
		}
	}
}
