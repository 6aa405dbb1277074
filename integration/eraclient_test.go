package integration_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"

	"toolhub/integration/hubproc"
)

// eraClient is a client of one era at one endpoint, down to the messages.
type eraClient struct {
	t            testing.TB
	url          string
	pick         func() string // chooses the URL of each message in place of url; may be nil
	modern       bool
	capabilities string // "" is {}
	level        string // of log messages
	// user answers what a server asks; nil refuses.
	user    func(method string, params json.RawMessage) string
	session string // of the initialize era
	// noted hears of the notifications before a response as they come, with the id
	// of the request; it may be nil.
	noted func(id string, m wire)

	mu sync.Mutex
	id int // guarded by mu
}

// wire is one JSON-RPC message.
type wire struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *wireError      `json:"error"`
}

type wireError struct {
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// exchanged is how one request went.
type exchanged struct {
	result json.RawMessage
	err    *wireError
	notes  []wire   // notifications before the response, in order
	asked  []string // messages and methods of what the server asked
}

// String is the outcome in short.
func (e *exchanged) String() string {
	if e.err != nil {
		return fmt.Sprintf("error %d: %s %s", e.err.Code, e.err.Message, e.err.Data)
	}
	return string(e.result)
}

// open starts the session of a legacy client.
func (c *eraClient) open() *eraClient {
	c.t.Helper()
	if c.capabilities == "" {
		c.capabilities = "{}"
	}
	if c.modern {
		return c
	}
	e, res := c.exchange(soon(c.t), "initialize", fmt.Sprintf(`{"protocolVersion":%q,"capabilities":%s,"clientInfo":{"name":"test","version":"1"}}`, hubproc.Legacy, c.capabilities), nil)
	if e.err != nil || res == nil || res.Header.Get("Mcp-Session-Id") == "" {
		c.t.Fatalf("initialize: %v", e)
	}
	c.session = res.Header.Get("Mcp-Session-Id")
	c.send(soon(c.t), `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if c.level != "" {
		if e := c.do("logging/setLevel", `{"level":"`+c.level+`"}`); e.err != nil {
			c.t.Fatalf("logging/setLevel: %v", e)
		}
	}
	return c
}

// send posts a message that gets no answer.
func (c *eraClient) send(ctx context.Context, body string) {
	res, err := c.post(ctx, body, nil)
	if err != nil {
		c.t.Errorf("couldn't send %.100s: %v", body, err)
		return
	}
	res.Body.Close()
}

func (c *eraClient) at() string {
	if c.pick != nil {
		return c.pick()
	}
	return c.url
}

func (c *eraClient) post(ctx context.Context, body string, header map[string]string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.at(), strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if c.session != "" {
		req.Header.Set("Mcp-Session-Id", c.session)
		req.Header.Set("Mcp-Protocol-Version", hubproc.Legacy)
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	return http.DefaultClient.Do(req)
}

// do makes a request; params is an object. A modern client makes it again, with
// the answers, as long as the server asks.
func (c *eraClient) do(method, params string) *exchanged {
	c.t.Helper()
	return c.doIn(soon(c.t), method, params)
}

func (c *eraClient) doIn(ctx context.Context, method, params string) *exchanged {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(params), &fields); err != nil {
		panic(err)
	}
	all := &exchanged{}
	for round := 0; ; round++ {
		e, _ := c.exchange(ctx, method, c.complete(fields), mirrored(method, fields))
		e.notes, e.asked = append(all.notes, e.notes...), append(all.asked, e.asked...)
		all = e
		var result struct {
			Type     string          `json:"resultType"`
			State    json.RawMessage `json:"requestState"`
			Requests map[string]wire `json:"inputRequests"`
		}
		if e.err != nil || json.Unmarshal(e.result, &result) != nil || result.Type != "input_required" || c.user == nil || round == 10 {
			return e
		}
		responses := make(map[string]json.RawMessage)
		for key, ask := range result.Requests {
			all.asked = append(all.asked, question(ask))
			responses[key] = json.RawMessage(c.user(ask.Method, ask.Params))
		}
		fields["inputResponses"], _ = json.Marshal(responses)
		delete(fields, "requestState")
		if result.State != nil {
			fields["requestState"] = result.State
		}
	}
}

// question is what a server asks, in short.
func question(m wire) string {
	var params struct{ Message string }
	_ = json.Unmarshal(m.Params, &params) // what has none is a request like any other
	return m.Method + " " + params.Message
}

// complete adds what a modern request has to say.
func (c *eraClient) complete(fields map[string]json.RawMessage) string {
	all := make(map[string]json.RawMessage, len(fields)+1)
	maps.Copy(all, fields)
	if c.modern {
		meta := make(map[string]json.RawMessage)
		if fields["_meta"] != nil {
			if err := json.Unmarshal(fields["_meta"], &meta); err != nil {
				panic(err)
			}
		}
		meta["io.modelcontextprotocol/protocolVersion"] = json.RawMessage(`"` + hubproc.Modern + `"`)
		meta["io.modelcontextprotocol/clientCapabilities"] = json.RawMessage(c.capabilities)
		if c.level != "" {
			meta["io.modelcontextprotocol/logLevel"] = json.RawMessage(`"` + c.level + `"`)
		}
		all["_meta"], _ = json.Marshal(meta)
	}
	b, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// mirrored are the headers that mirror a modern request.
func mirrored(method string, fields map[string]json.RawMessage) map[string]string {
	header := map[string]string{"Mcp-Method": method}
	for _, member := range []string{"name", "uri", "taskId"} {
		var v string
		if fields[member] != nil && json.Unmarshal(fields[member], &v) == nil {
			header["Mcp-Name"] = v
		}
	}
	return header
}

// exchange makes one request and answers what a legacy server asks meanwhile.
func (c *eraClient) exchange(ctx context.Context, method, params string, mirror map[string]string) (*exchanged, *http.Response) {
	c.mu.Lock()
	c.id++
	id := fmt.Sprint(c.id)
	c.mu.Unlock()
	header := map[string]string{}
	if c.modern {
		header = mirror
		header["Mcp-Protocol-Version"] = hubproc.Modern
	}
	e := &exchanged{}
	failed := func(err error) (*exchanged, *http.Response) {
		e.err = &wireError{Message: err.Error()}
		return e, nil
	}
	res, err := c.post(ctx, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params), header)
	if err != nil {
		return failed(err)
	}
	defer res.Body.Close()
	done := false
	take := func(data []byte) error {
		var m wire
		if err := json.Unmarshal(data, &m); err != nil {
			return fmt.Errorf("%w: %.200s", err, data)
		}
		switch {
		case m.Method != "" && m.ID != nil:
			e.asked = append(e.asked, question(m))
			answer := `"error":{"code":-32601,"message":"not supported"}`
			if c.user != nil {
				answer = `"result":` + c.user(m.Method, m.Params)
			}
			c.send(ctx, `{"jsonrpc":"2.0","id":`+string(m.ID)+`,`+answer+`}`)
		case m.Method != "":
			if done {
				return fmt.Errorf("behind the response there is %.100s", data)
			}
			e.notes = append(e.notes, m)
			if c.noted != nil {
				c.noted(id, m)
			}
		case string(m.ID) != id && string(m.ID) != "null" && m.ID != nil:
			return fmt.Errorf("a response to another request: %.200s", data)
		default:
			e.result, e.err, done = m.Result, m.Error, true
		}
		return nil
	}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		err = hubproc.Events(res.Body, take)
	} else {
		var body []byte
		if body, err = io.ReadAll(res.Body); err == nil {
			if !bytes.HasPrefix(body, []byte("{")) {
				return failed(fmt.Errorf("HTTP %s: %.200s", res.Status, body))
			}
			err = take(body)
		}
	}
	if err == nil && !done {
		err = fmt.Errorf("the stream ended without a response")
	}
	if err != nil {
		return failed(err)
	}
	return e, res
}

// listen opens the stream of changes: subscriptions/listen about all lists and the
// resources, or the GET of a session that has subscribed to them. The channel is
// closed when the stream ends, which it does with the test.
func (c *eraClient) listen(uris ...string) <-chan wire {
	c.t.Helper()
	list, _ := json.Marshal(append([]string{}, uris...))
	heard := c.listenTo(`{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true,"resourceSubscriptions":` + string(list) + `}`)
	if c.modern {
		select {
		case ack := <-heard:
			if ack.Method != "notifications/subscriptions/acknowledged" {
				c.t.Errorf("a stream begins with %s", ack.Method)
			}
		case <-soon(c.t).Done():
			c.t.Fatal("no acknowledgement")
		}
		return heard
	}
	for _, uri := range uris {
		if e := c.do("resources/subscribe", fmt.Sprintf(`{"uri":%q}`, uri)); e.err != nil {
			c.t.Fatalf("resources/subscribe %s: %v", uri, e)
		}
	}
	return heard
}

// listenTo opens the stream of changes, a modern one with a filter.
func (c *eraClient) listenTo(filter string) <-chan wire {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	heard := make(chan wire, 1000)
	var res *http.Response
	var err error
	if c.modern {
		params := map[string]json.RawMessage{"notifications": json.RawMessage(filter)}
		res, err = c.post(ctx, `{"jsonrpc":"2.0","id":"listen","method":"subscriptions/listen","params":`+c.complete(params)+`}`,
			map[string]string{"Mcp-Protocol-Version": hubproc.Modern, "Mcp-Method": "subscriptions/listen"})
	} else {
		var req *http.Request
		if req, err = http.NewRequestWithContext(ctx, http.MethodGet, c.at(), nil); err == nil {
			req.Header.Set("Accept", "text/event-stream")
			req.Header.Set("Mcp-Session-Id", c.session)
			req.Header.Set("Mcp-Protocol-Version", hubproc.Legacy)
			res, err = http.DefaultClient.Do(req)
		}
	}
	if err == nil && res.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		err = fmt.Errorf("HTTP %s: %.200s", res.Status, body)
	}
	if err != nil {
		cancel()
		c.t.Fatalf("couldn't listen: %v", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(heard)
		defer res.Body.Close()
		_ = hubproc.Events(res.Body, func(data []byte) error { // ends with ctx
			var m wire
			if err := json.Unmarshal(data, &m); err != nil {
				return err
			}
			heard <- m
			return nil
		})
	}()
	c.t.Cleanup(func() {
		cancel()
		<-ended
	})
	return heard
}

// hears waits for a message, and passes over others.
func hears(t testing.TB, heard <-chan wire, method, part string) {
	t.Helper()
	var others []string
	for late := soon(t).Done(); ; {
		select {
		case m, ok := <-heard:
			if !ok {
				t.Fatalf("the stream ended before %s", method)
			}
			if m.Method == method && strings.Contains(string(m.Params), part) {
				return
			}
			others = append(others, m.Method)
		case <-late:
			t.Fatalf("never heard %s %s, but %v", method, part, others)
		}
	}
}
