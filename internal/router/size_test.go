package router

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

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
	for _, tt := range []struct {
		name  string
		call  func(string) string
		sizes []int
	}{
		{"stdio", stdio, []int{9 << 20}},
		{"modern", modern, []int{9 << 20, 33 << 20}},
		{"legacy", legacy, []int{9 << 20}},
		{"chunked", chunked, []int{9 << 20}},
	} {
		name, call := tt.name, tt.call
		for _, size := range tt.sizes {
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

// TestRefusalArrives: a client that writes the whole body before it reads gets
// the answer, not a broken connection (B1).
func TestRefusalArrives(t *testing.T) {
	t.Parallel()
	const limit = mcp.DefaultMaxMessageBytes
	const size = 3 * limit // more than the buffers between the two take
	long := strings.Repeat("x", size)
	b := newBed(t)
	r := b.router("r1")
	addr := strings.TrimPrefix(r.base, "http://")
	const jsonType, stream = "Content-Type: application/json\r\n", "Accept: application/json, text/event-stream\r\n"
	for _, tt := range []struct {
		name, path, headers string
		host                string // "" is the right one
		chunked             bool
		status              int
		says                string
	}{
		{name: "too big", headers: jsonType + stream, status: 413, says: fmt.Sprintf("%d bytes is beyond the limit of %d bytes", size, limit)},
		{name: "too big, of unknown size", headers: jsonType + stream, chunked: true, status: 413, says: fmt.Sprintf("limit of %d bytes", limit)},
		{name: "content type", headers: "Content-Type: text/plain\r\n" + stream, status: 415, says: "application/json"},
		{name: "accept", headers: jsonType + "Accept: text/html\r\n", status: 406, says: "Accept must allow"},
		{name: "encoding", headers: jsonType + stream + "Content-Encoding: gzip\r\n", status: 415, says: "Content-Encoding"},
		{name: "no such session", headers: jsonType + stream + "Mcp-Session-Id: AAAAAAAAAAAAAAAAAAAAAAAAAA\r\n", status: 404, says: "no such session"},
		{name: "no such server", path: "/s/nope/mcp", headers: jsonType + stream, status: 404, says: "no server"},
		{name: "foreign host", host: "evil.example", headers: jsonType + stream, status: 403, says: "evil.example"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			host, path := addr, "/mcp"
			if tt.host != "" {
				host = tt.host
			}
			if tt.path != "" {
				path = tt.path
			}
			head := "POST " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + tt.headers
			body := long
			if tt.chunked {
				head += "Transfer-Encoding: chunked\r\n\r\n"
				body = fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", size, body)
			} else {
				head += fmt.Sprintf("Content-Length: %d\r\n\r\n", size)
			}
			for data := head + body; data != ""; { // in steps, as clients write it
				n := min(len(data), 64<<10)
				if _, err := io.WriteString(conn, data[:n]); err != nil {
					t.Fatalf("the connection breaks while the body is written: %v", err)
				}
				data = data[n:]
			}
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			got, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != tt.status || !strings.Contains(string(got), tt.says) {
				t.Errorf("%v %s %s, want %d with %q", err, res.Status, got, tt.status, tt.says)
			}
		})
	}
}

// TestRefusalIsBounded: what a refused client goes on to send is not read for
// ever, and who asks first is not made to send anything.
func TestRefusalIsBounded(t *testing.T) {
	t.Parallel()
	b := newBedOn(t, newIdleHub(t, strings.Replace(bedHub, "servers:", "max_message_bytes: 64KiB\nservers:", 1)))
	r := b.router("r1")
	addr := strings.TrimPrefix(r.base, "http://")
	dial := func(headers string) net.Conn {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "POST /mcp HTTP/1.1\r\nHost: "+addr+"\r\nContent-Type: application/json\r\nContent-Length: 1000000000000\r\n"+headers+"\r\n"); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	conn := dial("")
	chunk := make([]byte, 64<<10)
	sent := 0
	for {
		n, err := conn.Write(chunk)
		sent += n
		if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
			t.Fatalf("the router neither reads nor closes after %d bytes", sent)
		}
		if err != nil {
			break
		}
		if sent > 1<<30 {
			t.Fatalf("%d bytes are read of a request that was refused", sent)
		}
	}
	// The answer to one that asks comes although nothing is sent, and then the end.
	got, err := io.ReadAll(dial("Expect: 100-continue\r\n"))
	if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 413 ") || !strings.Contains(string(got), "message_too_large") {
		t.Errorf("%v after %.300q", err, got)
	}
}
