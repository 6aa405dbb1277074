package router

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"toolhub/internal/bus/embedded"
	"toolhub/internal/mcp"
)

// TestSizeLimit: max_message_bytes of the hub holds on every transport, in both
// directions and both eras, however little one message of NATS carries (B2, B5).
func TestSizeLimit(t *testing.T) {
	t.Parallel()
	const limit = 40 << 20
	yaml := strings.Replace(bedHub, "servers:", "max_message_bytes: 40MiB\nservers:", 1)
	b := newBedOn(t, newIdleHubOn(t, yaml, embedded.Config{MaxPayload: 256 << 10}))
	r := b.router("r1")
	c := b.client()
	session := b.initialize(c, r.url, "2025-11-25", "{}")
	p := b.pipe(t.Context(), r)
	// The answer has what was sent, so that one call is both directions.
	modern := func(text string) string {
		res, body := b.exchange(c, modernPost(t.Context(), r.url, "echo", text))
		if len(text) > limit != (res.StatusCode == http.StatusRequestEntityTooLarge) {
			t.Errorf("%s for %d bytes", res.Status, len(text))
		}
		return body
	}
	legacy := func(text string) string {
		_, body := b.exchange(c, sessionPost(t.Context(), r.url, session, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":`+text+`}}`))
		return body
	}
	chunked := func(text string) string {
		req := modernPost(t.Context(), r.url, "echo", text)
		req.ContentLength, req.Body = -1, io.NopCloser(req.Body)
		_, body := b.exchange(c, req)
		return body
	}
	stdio := func(text string) string {
		p.send(strings.Replace(pipeCall("1", "echo"), "{}", text, 1))
		return p.next(`"id":1`)
	}
	for name, call := range map[string]func(string) string{"modern": modern, "legacy": legacy, "chunked": chunked, "stdio": stdio} {
		for _, size := range []int{9 << 20, 33 << 20} {
			text := strings.Repeat("x", size)
			if got, want := call(`{"x":"`+text+`"}`), `{\"x\":\"`+text+`\"}`; !strings.Contains(got, want) || strings.Contains(got, `"error"`) {
				t.Errorf("%s: %d bytes came back as %d: %.300s", name, size, len(got), got)
			}
		}
		got := call(`{"x":"` + strings.Repeat("x", limit) + `"}`)
		var code, size int
		if _, text, ok := strings.Cut(got, `"error":{"code":`); ok {
			_, _ = fmt.Sscanf(text, `%d,"message":"the message of`, &code)
			_, text, _ = strings.Cut(text, " of ")
			_, _ = fmt.Sscanf(strings.TrimPrefix(text, "more than "), "%d bytes", &size)
		}
		if code != mcp.CodeInternal || size < limit || !strings.Contains(got, fmt.Sprintf("limit of %d bytes", limit)) || !strings.Contains(got, `"kind":"message_too_large"`) {
			t.Errorf("%s: too much is answered with %.300s", name, got)
		}
	}
}

// TestSizeLimitIsTheHubs: a hub that wants less takes less, and what stdio takes
// follows a changed configuration.
func TestSizeLimitIsTheHubs(t *testing.T) {
	t.Parallel()
	small := strings.Replace(bedHub, "servers:", "max_message_bytes: 64KiB\nservers:", 1)
	b := newBedOn(t, newIdleHub(t, small))
	r := b.router("r1")
	c := b.client()
	p := b.pipe(t.Context(), r)
	text := `{"x":"` + strings.Repeat("x", 100<<10) + `"}`
	if res, body := b.exchange(c, modernPost(t.Context(), r.url, "echo", text)); res.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(body, "limit of 65536 bytes") {
		t.Errorf("%s %.300s", res.Status, body)
	}
	call := strings.Replace(pipeCall("1", "echo"), "{}", text, 1)
	p.send(call)
	p.next(`"id":1`, "message_too_large", "limit of 65536 bytes")
	b.apply(bedHub)
	b.eventually("the new limit is known", func() bool { return r.engine.maxMessageBytes() == mcp.DefaultMaxMessageBytes })
	p.send(call)
	p.next(`"id":1`, `"result"`)
	if res, body := b.exchange(c, modernPost(t.Context(), r.url, "echo", text)); res.StatusCode != http.StatusOK {
		t.Errorf("%s %.300s", res.Status, body)
	}
}
