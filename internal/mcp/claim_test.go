package mcp

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

func TestReadClaim(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]bool{
		`{"jsonrpc":"2.0","id":7}`:                          true,
		" \t{ \"id\" : \"7\" , \"error\" : [\"]\"] }":       true,
		`{"id":7,"result":{"a":"\"}`:                        true,
		`{"\u0069d":7,"result":1}`:                          true,
		`{"id":7.0,"result":[}`:                             true,
		`{"id":8,"id":7,"result":{}}`:                       true,
		`{"id":7}`:                                          false,
		`{"id":7,"level":"info"}`:                           false,
		`{"jsonrpc":"2.0","id":7`:                           false,
		`{"jsonrpc":"2.0","id":77}`:                         false,
		`{"jsonrpc":"2.0","id":7,"method":"x"}`:             false,
		`{"jsonrpc":"2.0","method":7,"id":7}`:               false,
		`{"jsonrpc":"2.0","id":{"id":7}}`:                   false,
		`{"jsonrpc":"2.0","result":{"id":7}}`:               false,
		`{"jsonrpc":"2.0","result":"x\",\"id\":7,\"y\":8"}`: false,
		`[{"jsonrpc":"2.0","id":7}]`:                        false,
		"":                                                  false, "{": false, `{"`: false, `{"id"`: false, `{"id":`: false, `{"id" 7}`: false, "null": false,
	} {
		if c := readClaim([]byte(in)); c.of(7) != want {
			t.Errorf("%s claims to answer 7: %v, want %v", in, !want, want)
		}
	}
}

// FuzzClaim: what is a response is also one by what can be read of its envelope.
func FuzzClaim(f *testing.F) {
	for _, s := range []string{`{"jsonrpc":"2.0","id":7,"result":{}}`, `{"id":"a","error":{"code":1,"message":"\u00e4"},"jsonrpc":"2.0"}`, `{"x":[{"]":1}],"jsonrpc":"2.0","method":"m"}`, `{"id":7,"result":"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := readClaim(data)
		m, err := ParseMessage(data, Lenient)
		if err != nil {
			return
		}
		if c.request == m.IsResponse() || !c.answer {
			t.Errorf("%s: %+v", data, c)
		}
		if m.ID != nil && !slices.ContainsFunc(c.ids, func(id jsontext.Value) bool { return string(id) == string(m.ID) }) {
			t.Errorf("%s: the ids are %q", data, c.ids)
		}
	})
}

// A broken answer that names two calls fails neither: either may still get its own.
func TestStdioAmbiguousAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var first *Message
		c, _ := connectPeer(t, modernPeer(func(p *peer, m *Message) {
			switch {
			case m.Method != MethodToolsCall:
			case first == nil:
				first = m
			default:
				p.line(`{"jsonrpc":"2.0","id":%s,"id":%s,"result":{}}`, first.ID, m.ID)
				p.result(m, `{"n":2}`)
				p.result(first, `{"n":1}`)
			}
		}), ConnectOptions{})
		defer closeConn(t, c)
		var calls sync.WaitGroup
		for i, want := range []string{`{"n":1}`, `{"n":2}`} {
			calls.Go(func() {
				time.Sleep(time.Duration(i) * time.Second) // so that they come in this order
				result, err := c.Call(t.Context(), toolCall("t"))
				wantOutcome(t, "call", result, err, want)
			})
		}
		calls.Wait()
	})
}

// TestRequestID: a refusal carries the id that its request plainly has, and no other.
func TestRequestID(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{
		`{"jsonrpc":"2.0","id":3,"method":"m","params":[]}`:         `3`,
		`{"id":"x","method":"m","params":{"a":1,"a":2}}`:            `"x"`,
		"{\"id\":3,\"method\":\"\xff\"}":                            `3`,
		`{"id":3,"method":"m","params":` + strings.Repeat("[", 600): `3`,
		`{"method":"m","id":3,"params":` + strings.Repeat("[", 600): `3`,
		`{"id":3,"id":4,"method":"m"}`:                              ``,
		`{"id":1.5,"method":"m"}`:                                   ``,
		`{"id":[1],"method":"m"}`:                                   ``,
		`{"id":3,"result":{}}`:                                      ``,
		`[{"id":3,"method":"m"}]`:                                   ``,
		`{"id":"` + "\xff" + `","method":"m"}`:                      ``,
		`nonsense`:                                                  ``,
	} {
		if got := RequestID([]byte(data)); string(got) != want {
			t.Errorf("%.60q: %s, want %s", data, got, want)
		}
	}
}
