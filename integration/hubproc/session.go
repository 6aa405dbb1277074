package hubproc

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Initialize opens a legacy session at path and returns its id. Capabilities is
// the client's, a JSON object.
func (h *Hub) Initialize(ctx context.Context, path, capabilities string) (session string, err error) {
	r, err := h.Post(ctx, path, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+Legacy+`","capabilities":`+capabilities+
		`,"clientInfo":{"name":"test","version":"1"}}}`, nil)
	switch {
	case err != nil:
		return "", err
	case r.Error != nil:
		return "", r.Error
	case r.Session == "":
		return "", fmt.Errorf("initialize gave no session: %v", r)
	}
	n, err := h.Post(ctx, path, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, legacyHeader(r.Session))
	if err == nil && n.Status != http.StatusAccepted {
		err = fmt.Errorf("notifications/initialized: %v", n)
	}
	return r.Session, err
}

func legacyHeader(session string) map[string]string {
	return map[string]string{"Mcp-Session-Id": session, "Mcp-Protocol-Version": Legacy}
}

// SessionRequest sends one request of a legacy session; params is a JSON object.
func (h *Hub) SessionRequest(ctx context.Context, path, session, method, params string) (*Response, error) {
	return h.Post(ctx, path, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params), legacyHeader(session))
}

// Subscribe opens the stream on which changes of lists are told: that of a
// legacy session, or with an empty session a modern one. Once it returns the
// stream is open. The channel gets the method of each message and is closed with
// the stream, which ctx ends.
func (h *Hub) Subscribe(ctx context.Context, path, session string) (<-chan string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.URL+path, nil)
	if err != nil {
		return nil, err
	}
	header := legacyHeader(session)
	if session == "" {
		body := `{"jsonrpc":"2.0","id":"listen","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` + Meta + `}}`
		if req, err = http.NewRequestWithContext(ctx, http.MethodPost, h.URL+path, strings.NewReader(body)); err != nil {
			return nil, err
		}
		header = map[string]string{"Mcp-Protocol-Version": Modern, "Mcp-Method": "subscriptions/listen", "Content-Type": "application/json"}
	}
	header["Accept"] = "application/json, text/event-stream"
	for name, value := range header {
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		res.Body.Close()
		return nil, fmt.Errorf("the stream was refused: %s %s", res.Status, res.Header.Get("Content-Type"))
	}
	methods, first := make(chan string, 100), make(chan string, 1)
	go func() {
		defer close(methods)
		defer close(first)
		defer res.Body.Close()
		into := methods
		if session == "" {
			into = first // the acknowledgement is the first message
		}
		_ = Events(res.Body, func(data []byte) error { // ends with ctx
			var m struct{ Method string }
			if err := json.Unmarshal(data, &m); err != nil {
				return err
			}
			select {
			case into <- m.Method:
			case <-ctx.Done():
				return ctx.Err()
			}
			into = methods
			return nil
		})
	}()
	if session == "" {
		if ack := <-first; ack != "notifications/subscriptions/acknowledged" {
			return nil, fmt.Errorf("a stream begins with its acknowledgement, not with %s", strconv.Quote(ack))
		}
	}
	return methods, nil
}
