package router

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"

	"toolhub/internal/mcp"
)

// What a call costs at the front alone: the request is in memory, and the answer
// is that of an unknown tool, so that no bus is in the way.
func BenchmarkModernFront(b *testing.B) {
	bed := newBed(b)
	r := bed.router("r1")
	h := r.handler()
	req := modernPost(context.Background(), r.url, "nope", `{"city":"Bonn","n":7}`)
	body, err := io.ReadAll(req.Body)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		req.Body = io.NopCloser(bytes.NewReader(body))
		h.ServeHTTP(&nowhere{h: http.Header{}}, req)
	}
}

// nowhere is a ResponseWriter that keeps nothing.
type nowhere struct{ h http.Header }

func (w *nowhere) Header() http.Header         { return w.h }
func (w *nowhere) WriteHeader(int)             {}
func (w *nowhere) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkCall is a whole call over HTTP and the bus, in both eras, against the
// engine alone.
func BenchmarkCall(b *testing.B) {
	bed := newBed(b)
	r := bed.router("r1")
	c := bed.client()
	session := bed.initialize(c, r.url, "2025-11-25", "{}")
	exchange := func(b *testing.B, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			req.Body = io.NopCloser(bytes.NewReader(body))
			res, err := c.Do(req)
			if err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}
	b.Run("modern", func(b *testing.B) { exchange(b, modernPost(context.Background(), r.url, "echo", `{}`)) })
	b.Run("legacy", func(b *testing.B) {
		exchange(b, sessionPost(context.Background(), r.url, session, sessionCall("echo")))
	})
	b.Run("engine", func(b *testing.B) {
		req := toolRequest("1", "echo", "{}")
		req.caller = caller{principal: anonymous, era: mcp.EraModern}
		b.ReportAllocs()
		for b.Loop() {
			if a := r.engine.do(context.Background(), req, nil); a.err != nil {
				b.Fatal(a.err)
			}
		}
	})
	b.Run("http", func(b *testing.B) { exchange(b, post(context.Background(), r.base+"/healthz", "")) })
}
