package hubproc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
)

// Versions of the protocol that tests ask for, one of each era.
const (
	Legacy = "2025-11-25"
	Modern = "2026-07-28"
)

// Meta is the _meta of a modern request without capabilities.
const Meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"` + Modern + `","io.modelcontextprotocol/clientCapabilities":{},` +
	`"io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"}}`

// Response is the answer to one JSON-RPC request, read to its end.
type Response struct {
	Status  int
	Header  http.Header
	Session string
	// Body is the whole body when it is no stream.
	Body []byte
	// Before are the messages that came on the stream before the response.
	Before []json.RawMessage

	Result json.RawMessage
	Error  *Error
}

// Error is the JSON-RPC error of a response.
type Error struct {
	Code    int64
	Message string
	Data    struct {
		Kind      string
		Reason    string
		Retryable bool
		Server    string
	}
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("%s (%d %s %s)", e.Message, e.Code, e.Data.Kind, e.Data.Reason)
}

// String is the response as a test shows it, cut after 600 bytes.
func (r *Response) String() string {
	s := fmt.Sprintf("HTTP %d %s%s", r.Status, r.Body, r.Result)
	if len(s) > 600 {
		s = s[:600] + "…"
	}
	return s
}

// Post sends body to path and reads the whole answer, JSON or a stream. A
// header that is set to "" is left out.
func (h *Hub) Post(ctx context.Context, path, body string, header map[string]string) (*Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for name, value := range header {
		if value == "" {
			req.Header.Del(name)
		} else {
			req.Header.Set(name, value)
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	r := &Response{Status: res.StatusCode, Header: res.Header, Session: res.Header.Get("Mcp-Session-Id")}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		return r, Events(res.Body, func(data []byte) error { return r.take(data) })
	}
	if r.Body, err = io.ReadAll(res.Body); err != nil {
		return nil, err
	}
	if bytes.HasPrefix(r.Body, []byte("{")) {
		return r, r.take(r.Body)
	}
	return r, nil
}

func (r *Response) take(data []byte) error {
	var m struct {
		Method string
		Result json.RawMessage
		Error  *Error
	}
	if err := json.Unmarshal(data, &m); err != nil {
		// Data of an error of a peer is not ours and may have any form.
		var loose struct{ Error struct{ Code int64 } }
		if json.Unmarshal(data, &loose) != nil {
			return fmt.Errorf("no JSON-RPC message: %w: %.200s", err, data)
		}
		m.Error = &Error{Code: loose.Error.Code, Message: string(data)}
	}
	if m.Method != "" {
		r.Before = append(r.Before, bytes.Clone(data))
		return nil
	}
	r.Result, r.Error = m.Result, m.Error
	return nil
}

// Events reads a stream of server-sent events to its end and hands on the data
// of each.
func Events(stream io.Reader, f func(data []byte) error) error {
	in := bufio.NewReader(stream)
	var data []byte
	for {
		line, err := in.ReadBytes('\n')
		line = bytes.TrimRight(line, "\r\n")
		if rest, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			data = append(data, bytes.TrimPrefix(rest, []byte(" "))...)
		} else if len(line) == 0 && len(data) > 0 {
			if err := f(data); err != nil {
				return err
			}
			data = nil
		}
		switch err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}

// Request sends one modern request; params is the object without its _meta and
// without braces.
func (h *Hub) Request(ctx context.Context, path, method, params string, header map[string]string) (*Response, error) {
	if params != "" {
		params += ","
	}
	all := map[string]string{"Mcp-Protocol-Version": Modern, "Mcp-Method": method}
	maps.Copy(all, header)
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s%s}}`, method, params, Meta)
	return h.Post(ctx, path, body, all)
}

// Call calls a tool at /mcp, modern, with args as a JSON object. What the tool
// said is the text of its first content; isError says that it reports an error.
// The error is an [*Error] if the endpoint answered with one.
func (h *Hub) Call(ctx context.Context, tool, args string) (text string, isError bool, err error) {
	name, err := json.Marshal(tool)
	if err != nil {
		return "", false, err
	}
	r, err := h.Request(ctx, "/mcp", "tools/call", fmt.Sprintf(`"name":%s,"arguments":%s`, name, args), map[string]string{"Mcp-Name": tool})
	switch {
	case err != nil:
		return "", false, err
	case r.Error != nil:
		return "", false, r.Error
	case r.Result == nil:
		return "", false, fmt.Errorf("no result: %v", r)
	}
	var result struct {
		IsError bool
		Content []struct{ Text string }
	}
	if err := json.Unmarshal(r.Result, &result); err != nil {
		return "", false, err
	}
	if len(result.Content) > 0 {
		text = result.Content[0].Text
	}
	return text, result.IsError, nil
}

// Tools lists the exposed names at /mcp, all pages, in order.
func (h *Hub) Tools(ctx context.Context) ([]string, error) {
	var names []string
	for params := ""; ; {
		r, err := h.Request(ctx, "/mcp", "tools/list", params, nil)
		if err != nil {
			return nil, err
		}
		if r.Error != nil {
			return nil, r.Error
		}
		var page struct {
			Tools      []struct{ Name string }
			NextCursor *string
		}
		if err := json.Unmarshal(r.Result, &page); err != nil {
			return nil, fmt.Errorf("%w: %v", err, r)
		}
		for _, tool := range page.Tools {
			names = append(names, tool.Name)
		}
		if page.NextCursor == nil {
			return names, nil
		}
		params = `"cursor":` + strconv.Quote(*page.NextCursor)
	}
}
