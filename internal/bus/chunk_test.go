package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"toolhub/internal/mcp"
)

// filler is text in which no two kilobytes are alike.
var filler = sync.OnceValue(func() []byte {
	b := make([]byte, 0, 9<<20)
	for i := 0; len(b) < 9<<20; i++ {
		b = append(b, strings.Repeat("x", 1000)...)
		b = strconv.AppendInt(b, int64(i), 10)
	}
	return b
})

// sized makes a JSON-RPC message of exactly size bytes.
func sized(size int) []byte {
	b := append(make([]byte, 0, size), `{"jsonrpc":"2.0","id":1,"result":"`...)
	b = append(b, filler()[:size-len(b)-2]...)
	return append(b, `"}`...)
}

func TestBigMessagesTravelInParts(t *testing.T) {
	t.Parallel()
	for _, maxPayload := range []int32{8 << 10, 64 << 10, 1 << 20, 8 << 20} {
		t.Run(fmt.Sprint(maxPayload), func(t *testing.T) {
			t.Parallel()
			// The server refuses a bucket whose values do not fit into a message.
			_, caller, worker := pair(t, func(o *server.Options) { o.DontListen, o.MaxPayload = true, maxPayload })
			serve(t, worker, 0, func(_ context.Context, in *Incoming) (Reply, error) {
				if err := in.Notify(in.Body); err != nil {
					return Reply{}, err
				}
				return Reply{Body: in.Body}, nil
			})
			limit := int(maxPayload)
			sizes := []int{limit - 1, limit, limit + 1, 2*limit - 1, 2 * limit, 3*limit + 7, 8 << 20}
			for d := range 8 { // around what fits beside the headers
				sizes = append(sizes, limit-replyHeaderBytes-4+d)
			}
			for _, size := range sizes {
				if size > 8<<20 {
					continue
				}
				body := sized(size)
				var note []byte
				got, err := caller.Call(t.Context(), toEcho(body), func(b []byte) { note = b })
				if err != nil || !bytes.Equal(got.Body, body) || !bytes.Equal(note, body) {
					t.Fatalf("%d bytes: got a reply of %d and a notification of %d bytes, %v", size, len(got.Body), len(note), err)
				}
			}
		})
	}
}

func TestBeyondTheMessageLimit(t *testing.T) {
	t.Parallel()
	const limit = 100 << 10
	s := startServer(t, func(o *server.Options) { o.DontListen, o.MaxPayload = true, 16<<10 })
	small := func(c *Config) { c.MaxMessageBytes = limit }
	caller, worker := s.connect(t, "router.r1", small), s.connect(t, "w1", small)
	big := s.connect(t, "router.big", nil)
	serve(t, worker, 0, func(ctx context.Context, in *Incoming) (Reply, error) {
		if in.Meta.Principal == "at" {
			return Reply{Body: sized(limit)}, nil
		}
		return Reply{Body: sized(limit + 1)}, nil
	})
	if _, err := big.Serve("big", "", 0, func(ctx context.Context, _ *Incoming) (Reply, error) {
		return Reply{Body: sized(limit + 1)}, nil
	}); err != nil {
		t.Fatal(err)
	}
	ok := toEcho(sized(limit))
	ok.Meta.Principal = "at"
	if got, err := caller.Call(t.Context(), ok, nil); err != nil || len(got.Body) != limit {
		t.Errorf("at the limit: %d bytes, %v", len(got.Body), err)
	}
	for what, f := range map[string]func() error{
		"request, seen by the caller": func() error { _, err := caller.Call(t.Context(), toEcho(sized(limit+1)), nil); return err },
		"request, seen by the worker": func() error { _, err := big.Call(t.Context(), toEcho(sized(limit+1)), nil); return err },
		"reply, seen by the worker":   func() error { _, err := caller.Call(t.Context(), toEcho(request(1)), nil); return err },
		"reply, seen by the caller": func() error {
			_, err := caller.Call(t.Context(), &Request{Subject: "big", Body: request(1)}, nil)
			return err
		},
	} {
		f := wantFault(t, f(), mcp.KindMessageTooLarge, "message_too_large")
		if !strings.Contains(f.Message, fmt.Sprint(limit)) {
			t.Errorf("%s: %q does not name the limit", what, f.Message)
		}
	}
}

func TestBigMetadataIsRefused(t *testing.T) {
	t.Parallel()
	_, caller, _ := pair(t, inProcess)
	r := toEcho(request(1))
	r.Meta.Taint = []string{strings.Repeat("x", maxMetaBytes)}
	_, err := caller.Call(t.Context(), r, nil)
	wantFault(t, err, mcp.KindInvalid, "meta_too_large")
}

// TestPartsThatDoNotBelong: a caller that promises one thing and sends another
// gets a fault, and the handler is not run.
func TestPartsThatDoNotBelong(t *testing.T) {
	t.Parallel()
	s, _, worker := pair(t, inProcess)
	serve(t, worker, 0, func(_ context.Context, in *Incoming) (Reply, error) {
		t.Errorf("the handler got %q", in.Body)
		return Reply{}, nil
	})
	nc := s.raw(t)
	for name, second := range map[string]string{
		"another size":   "more 1 2/2 9",
		"another number": "more 1 2/3 8",
		"another kind":   "notify 1 2/2 8",
		"gap":            "more 2 2/2 8",
		"longer":         "more 1 2/2 8",
	} {
		inbox := nc.NewInbox()
		sub, err := nc.SubscribeSync(inbox)
		if err != nil {
			t.Fatal(err)
		}
		msg := &nats.Msg{Subject: toEcho(nil).Subject, Reply: inbox, Data: []byte("1234"), Header: nats.Header{HeaderCall: {"parts=2&size=8"}}}
		if err := nc.PublishMsg(msg); err != nil {
			t.Fatal(err)
		}
		ask, err := sub.NextMsg(patience)
		if err != nil || headerGet(ask.Header, HeaderReply) != "continue 0" {
			t.Fatalf("%s: got %+v, %v", name, ask, err)
		}
		if err := nc.PublishMsg(&nats.Msg{Subject: ask.Reply, Data: []byte("56789"), Header: nats.Header{HeaderReply: {second}}}); err != nil {
			t.Fatal(err)
		}
		answer, err := sub.NextMsg(patience)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if f, ok := errors.AsType[*mcp.Fault](decodeFault(answer.Data)); !ok || f.Kind != mcp.KindProtocol {
			t.Errorf("%s: got %s", name, answer.Data)
		}
	}
}

// TestManyBigCallsAtOnce: parts of different calls do not mix, and the bytes
// that are held for requests are bounded.
func TestManyBigCallsAtOnce(t *testing.T) {
	t.Parallel()
	_, caller, worker := pair(t, func(o *server.Options) { o.DontListen, o.MaxPayload = true, 64<<10 })
	serve(t, worker, 0, func(_ context.Context, in *Incoming) (Reply, error) { return Reply{Body: in.Body}, nil })
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			body := sized(1<<20 + i)
			got, err := caller.Call(t.Context(), toEcho(body), nil)
			if err != nil || !bytes.Equal(got.Body, body) {
				t.Errorf("got %d bytes of %d, %v", len(got.Body), len(body), err)
			}
		})
	}
	wg.Wait()
	if n := worker.assembling.Load(); n != 0 {
		t.Errorf("%d bytes are still counted as arriving", n)
	}
	worker.assembling.Store(maxAssembling(worker.mux.max))
	_, err := caller.Call(t.Context(), toEcho(sized(1<<20)), nil)
	wantFault(t, err, mcp.KindOverloaded, "request_bytes")
}
