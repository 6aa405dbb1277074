package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"toolhub/internal/bus"
	"toolhub/internal/bus/embedded"
	"toolhub/internal/catalog"
	"toolhub/internal/config"
	"toolhub/internal/mcp"
	"toolhub/internal/policy"
)

// twoSeals are those of two hubs.
var twoSeals = sync.OnceValues(func() (seals [2]*bus.Seal, err error) {
	dir, err := os.MkdirTemp("", "seals")
	if err != nil {
		return seals, err
	}
	defer os.RemoveAll(dir)
	srv, err := embedded.Start(context.Background(), embedded.Config{StateDir: dir, NoListener: true})
	if err != nil {
		return seals, err
	}
	defer srv.Shutdown()
	for i, hub := range []string{"test", "other"} {
		conn, err := bus.Connect(context.Background(), bus.Config{Hub: hub, Identity: "w1", InProcess: srv.InProcess(), NKeyFile: srv.NKeyFile()})
		if err != nil {
			return seals, err
		}
		defer conn.Close()
		if seals[i], err = conn.Seal(context.Background()); err != nil {
			return seals, err
		}
	}
	return seals, nil
})

func testSeal(t testing.TB) *bus.Seal {
	t.Helper()
	seals, err := twoSeals()
	if err != nil {
		t.Fatal(err)
	}
	return seals[0]
}

// askBench is a server without a bus: two tools, replicas that answer as answer says.
func askBench(t testing.TB, seal *bus.Seal, era mcp.Era, replicas int, answer func(replica int, call *mcp.Call) (jsontext.Value, error)) *server {
	t.Helper()
	p, err := policy.Compile(policy.Spec{Allow: []policy.Rule{{Tool: "*/*"}}})
	if err != nil {
		t.Fatal(err)
	}
	srv := serverOf(config.Server{ID: "s", Command: "x", Replicas: replicas}.Effective(config.Settings{}))
	srv.Policy = p
	settings := config.Settings{}.WithDefaults()
	s := newServer(newDefinition(&settings, srv, ""), nil, newLot("w1", seal), discardEvents, nil, discardLog())
	live := &serving{}
	for n := range max(1, replicas) {
		conn := newScripted(func(call *mcp.Call) (jsontext.Value, error) { return answer(n, call) })
		conn.info.Era, conn.info.Capabilities = era, jsontext.Value(`{"tools":{}}`)
		l := newLink(conn, nil)
		l.slot = n
		live.links = append(live.links, l)
		live.catalog = catalog.New("s", conn.info, catalog.Lists{
			Tools: []jsontext.Value{jsontext.Value(`{"name":"ask","inputSchema":{"type":"object"}}`), jsontext.Value(`{"name":"other","inputSchema":{"type":"object"}}`)},
		})
	}
	s.live.Store(live)
	return s
}

// run makes a call as if it had come over the bus.
func run(s *server, c testCall) (jsontext.Value, error) {
	reply, err := s.handle(context.Background(), &bus.Incoming{
		Body: c.body(), Meta: bus.Meta{Signed: true, Principal: c.principal, Method: mcp.MethodToolsCall, Server: "s"},
	})
	if err != nil {
		return nil, err
	}
	m, err := mcp.ParseMessage(reply.Body, mcp.Lenient)
	if err != nil {
		return nil, err
	}
	if m.Err != nil {
		return nil, m.Err
	}
	return m.Result, nil
}

// asksOnce answers a request without inputResponses with a result that asks, and
// the one with them with what they and the requestState are.
func asksOnce(state string) func(int, *mcp.Call) (jsontext.Value, error) {
	return func(replica int, call *mcp.Call) (jsontext.Value, error) {
		if mcp.Field(call.Params, "inputResponses") == nil {
			value := `{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list"}}`
			if state != "" {
				value += `, "requestState" : ` + state
			}
			return jsontext.Value(value + `,"x":1e400}`), nil
		}
		return fmt.Appendf(nil, `{"resultType":"complete","replica":%d,"got":%s,"state":%s}`,
			replica, mcp.Field(call.Params, "inputResponses"), or(string(mcp.Field(call.Params, "requestState")), "null")), nil
	}
}

func retryOf(c testCall, state string) testCall {
	c.extra = `,"requestState":` + string(mcp.QuoteString(state)) + `,"inputResponses":{"k":{"roots":[]}}`
	return c
}

// TestOwnStateComesBack: a modern server gets its own state back byte for byte,
// none if it gave none, in the replica that asked, and callers do not see it.
func TestOwnStateComesBack(t *testing.T) {
	t.Parallel()
	for _, own := range []string{``, `""`, `"a:b\"ä"`, `"\u00e4\ud83d\ude00\n"`, `"` + strings.Repeat("long", 50_000) + `"`, `"toolhub-park:w1:x"`} {
		s := askBench(t, testSeal(t), mcp.EraModern, 3, asksOnce(own))
		for replica := range 3 {
			for n, l := range s.live.Load().links {
				l.busy.Store(1)
				if n == replica {
					l.busy.Store(0)
				}
			}
			call := testCall{tool: "ask", principal: "ada", caps: asksRoots}
			value, err := run(s, call)
			if err != nil {
				t.Fatal(err)
			}
			state := mcp.FieldString(value, "requestState")
			if state == "" || len(own) > 2 && strings.Contains(state, mcp.Text(jsontext.Value(own))) || !bytes.Contains(value, []byte(`"inputRequests":{"k":{"method":"roots/list"}}`)) || !bytes.Contains(value, []byte(`"x":1e400`)) {
				t.Fatalf("the result is %s", value)
			}
			for _, l := range s.live.Load().links {
				l.busy.Store(0) // any other would be as good
			}
			s.live.Load().links[replica].busy.Store(9)
			value, err = run(s, retryOf(call, state))
			if want := fmt.Sprintf(`{"resultType":"complete","replica":%d,"got":{"k":{"roots":[]}},"state":%s}`, replica, or(own, "null")); err != nil || string(value) != want {
				t.Errorf("the retry: %s, %v, want %s", value, err, want)
			}
		}
	}
	s := askBench(t, testSeal(t), mcp.EraModern, 1, asksOnce(`7`))
	if _, err := run(s, testCall{tool: "ask", caps: asksRoots}); !mcp.IsKind(err, mcp.KindProtocol) {
		t.Errorf("a state that is no string: %v", err)
	}
}

// TestReplicaThatAskedIsGone: no other replica gets the state instead.
func TestReplicaThatAskedIsGone(t *testing.T) {
	t.Parallel()
	s := askBench(t, testSeal(t), mcp.EraModern, 2, asksOnce(`"mine"`))
	live := s.live.Load()
	live.links[0].busy.Store(5)
	value, err := run(s, testCall{tool: "ask", caps: asksRoots})
	if err != nil {
		t.Fatal(err)
	}
	s.live.Store(&serving{links: live.links[:1], catalog: live.catalog})
	_, err = run(s, retryOf(testCall{tool: "ask", caps: asksRoots}, mcp.FieldString(value, "requestState")))
	if f := faultOf(t, err); f.Kind != mcp.KindUnavailable || !f.Retryable {
		t.Errorf("got %v", f)
	}
}

// wantRefused checks that a requestState was refused as the caller's own fault.
func wantRefused(t *testing.T, what string, err error, reason string) {
	t.Helper()
	f, ok := errors.AsType[*mcp.Fault](err)
	if !ok || f.Reason != reason || f.Server != "s" || f.RPC().Code != mcp.CodeInvalidParams {
		t.Errorf("%s: %v, want %s as JSON-RPC error -32602", what, err, reason)
	}
}

// TestTampered: a requestState fits the request that got it, unchanged and in
// time, and nothing else.
func TestTampered(t *testing.T) {
	t.Parallel()
	seals, err := twoSeals()
	if err != nil {
		t.Fatal(err)
	}
	for _, era := range []mcp.Era{mcp.EraModern, mcp.EraLegacy} {
		t.Run(string(era), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ending, end := context.WithCancel(t.Context())
				defer end()
				answer := asksOnce(`"own"`)
				if era == mcp.EraLegacy {
					answer = func(_ int, call *mcp.Call) (jsontext.Value, error) {
						value, e := call.Request(ending, mcp.MethodRootsList, nil)
						if e != nil {
							return nil, e
						}
						return jsontext.Value(`{"got":` + string(value) + `}`), nil
					}
				}
				s := askBench(t, seals[0], era, 1, answer)
				s.lot.wait = 3 * time.Hour // so that the envelope ends first
				foreign := askBench(t, seals[1], era, 1, answer)
				elsewhere := askBench(t, seals[0], era, 1, answer)
				elsewhere.id, elsewhere.lot.worker = "s2", "w2"
				ask := func(s *server, c testCall) string {
					t.Helper()
					value, err := run(s, c)
					if err != nil {
						t.Fatal(err)
					}
					_, state := questions(t, value)
					return state
				}
				call := testCall{tool: "ask", principal: "ada", caps: allCaps, args: `{"n":9007199254740993,"o":{"a":1,"b":[1,2]}}`}
				state := ask(s, call)
				retry := retryOf(call, state)
				if era == mcp.EraLegacy {
					retry.extra = strings.Replace(retry.extra, `"k"`, `"ask-1"`, 1)
				}
				refused := func(what, reason string, change func(*testCall)) {
					t.Helper()
					c := retry
					change(&c)
					_, err := run(s, c)
					wantRefused(t, what, err, reason)
				}
				as := func(state string) func(*testCall) {
					return func(c *testCall) {
						c.extra = strings.Replace(c.extra, string(mcp.QuoteString(mcp.FieldString(jsontext.Value("{"+c.extra[1:]+"}"), "requestState"))), string(mcp.QuoteString(state)), 1)
					}
				}
				for i := range state {
					for _, c := range []byte("aZ0-_:=\n") {
						if state[i] != c {
							refused(fmt.Sprintf("%q as character %d", c, i), reasonUnknownState, as(state[:i]+string([]byte{c})+state[i+1:]))
						}
					}
					refused(fmt.Sprintf("its first %d characters", i), reasonUnknownState, as(state[:i]))
				}
				for _, other := range []string{state + "-TAMPERED", state + ":", " " + state, strings.ToLower(state), "asked", "own", bus.ParkState("w1", "x"), bus.ParkState("w2", state), bus.ParkState("w1", state)} {
					refused("another state", reasonUnknownState, as(other))
				}
				if _, secret, parked := bus.CutParkState(state); parked {
					refused("the state without its worker", reasonUnknownState, as(secret))
					refused("the state of another worker", reasonUnknownState, as(bus.ParkState("w2", secret)))
				}
				refused("another hub's state", reasonUnknownState, as(ask(foreign, call)))
				refused("another server's state", reasonUnknownState, as(ask(elsewhere, call)))
				refused("another principal", reasonUnknownState, func(c *testCall) { c.principal = "eve" })
				refused("no principal", reasonUnknownState, func(c *testCall) { c.principal = "" })
				refused("a parameter more", reasonOtherState, func(c *testCall) { c.extra += `,"more":1` })
				refused("another tool", reasonOtherState, func(c *testCall) { c.tool = "other" })
				for _, args := range []string{`{}`, `{"n":9007199254740992,"o":{"a":1,"b":[1,2]}}`, `{"n":9007199254740993,"o":{"a":1,"b":[2,1]}}`, `{"n":9007199254740993}`} {
					refused("the arguments "+args, reasonOtherState, func(c *testCall) { c.args = args })
				}
				// None of that has used it up.
				retry.args = ` { "o":{"b":[1,2], "a":1}, "n":9007199254740993 } `
				if value, err := run(s, retry); err != nil || !strings.Contains(string(value), `"roots":[]`) {
					t.Fatalf("the right one: %s, %v", value, err)
				}
				if era == mcp.EraLegacy {
					refused("the state of a call that has ended", reasonUnknownState, func(*testCall) {})
				}
				// In time, and not later.
				late := ask(s, call)
				time.Sleep(stateFor - time.Millisecond)
				if era == mcp.EraModern { // asked for again, it is as good
					if _, err := run(s, retryOf(call, late)); err != nil {
						t.Errorf("at the last moment: %v", err)
					}
				}
				time.Sleep(time.Millisecond)
				refused("a late state", reasonUnknownState, as(late))
				end()
				for _, s := range []*server{s, foreign, elsewhere} {
					s.lot.drop(s)
					s.calls.Wait()
				}
			})
		})
	}
}

// TestStateForTheOtherKind: what a server of one era gave is nothing to the
// connection of the other that came after it.
func TestStateForTheOtherKind(t *testing.T) {
	t.Parallel()
	modern := askBench(t, testSeal(t), mcp.EraModern, 1, asksOnce(`"own"`))
	legacy := askBench(t, testSeal(t), mcp.EraLegacy, 1, func(int, *mcp.Call) (jsontext.Value, error) {
		t.Error("the server was called")
		return nil, errors.New("no")
	})
	value, err := run(modern, testCall{tool: "ask", caps: asksRoots})
	if err != nil {
		t.Fatal(err)
	}
	_, err = run(legacy, retryOf(testCall{tool: "ask", caps: asksRoots}, mcp.FieldString(value, "requestState")))
	wantRefused(t, "a modern state at a legacy server", err, reasonUnknownState)
}

// FuzzUnwrap: no requestState from outside makes a worker panic or opens anything.
func FuzzUnwrap(f *testing.F) {
	s := askBench(f, testSeal(f), mcp.EraModern, 1, asksOnce(`"own"`))
	value, err := run(s, testCall{tool: "ask", caps: asksRoots})
	if err != nil {
		f.Fatal(err)
	}
	state := mcp.FieldString(value, "requestState")
	f.Add(state + "x")
	f.Add(bus.ParkState("w1", state))
	f.Add(bus.ParkState("", ""))
	f.Add("")
	// Sealed by the hub, and no envelope all the same.
	f.Add(s.lot.seal.Close(purposeState, nil))
	f.Add(s.lot.seal.Close(purposeState, []byte(`{"server":"s"}`)))
	f.Add(s.lot.seal.Close(purposeState, []byte("[]\n\"own\"")))
	f.Add(bus.ParkState("w1", s.lot.seal.Close(purposeParked+"w1", []byte(`{"server":"s","place":"x","expires":99999999999999}`))))
	f.Fuzz(func(t *testing.T, text string) {
		if text == state {
			return
		}
		c := &call{
			server: s, in: &bus.Incoming{}, message: &mcp.Message{Method: mcp.MethodToolsCall, Params: jsontext.Value(`{"name":"ask"}`)},
			params: callParams{key: "ask", state: mcp.QuoteString(text)},
		}
		if e, err := c.unwrap(); err == nil {
			t.Errorf("%q was opened: %+v", text, e)
		}
	})
}

func TestDigestParams(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{`{"name":"x"}`, `{"name":"x","arguments":{}}`, true},
		{`{"name":"x"}`, `{"name":"x","arguments": { } }`, true},
		{`{"name":"x"}`, `{"name":"x","arguments":null}`, true},
		{`{"name":"x"}`, `{"name":"x","arguments":[]}`, false},
		{`{"name":"x"}`, `{"_meta":{"a":1},"name":"x","requestState":"s","inputResponses":{"k":{}}}`, true},
		{`{"name":"x"}`, `{"name":"y"}`, false},
		{`{"name":"x"}`, `{"uri":"x"}`, false},
		{`{"name":"x"}`, `{"name":"x","other":1}`, false},
		{`{"arguments":{"a":1,"b":{"c":2,"d":3}}}`, ` { "arguments" : {"b":{"d":3,"c":2},"a":1}}`, true},
		{`{"arguments":{"a":[1,2]}}`, `{"arguments":{"a":[2,1]}}`, false},
		{`{"arguments":{"a":9007199254740993}}`, `{"arguments":{"a":9007199254740992}}`, false},
		{`{"arguments":{"a":1e400}}`, `{"arguments":{"a":1e401}}`, false},
		{`{"arguments":{"a":1}}`, `{"arguments":{"a":1,"b":1}}`, false},
		{`{"arguments":{"a":"\u00e4"}}`, `{"arguments":{"a":"ä"}}`, true},
		{`{"arguments":{"_meta":1}}`, `{"arguments":{}}`, false},
	} {
		a, err1 := digestParams(jsontext.Value(c.a))
		b, err2 := digestParams(jsontext.Value(c.b))
		if err1 != nil || err2 != nil || (a == b) != c.want {
			t.Errorf("%s and %s: %s, %v and %s, %v", c.a, c.b, a, err1, b, err2)
		}
	}
}

// TestEnvelopeRoundTrip: whatever a server's state and a request are, the retry of
// the request opens its envelope, and a retry of another one does not.
func TestEnvelopeRoundTrip(t *testing.T) {
	t.Parallel()
	s := askBench(t, testSeal(t), mcp.EraModern, 1, asksOnce(``))
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String()
		one := func(principal, arg string) *call {
			params := jsontext.Value(`{"name":"ask","arguments":{"a":` + string(mcp.QuoteString(arg)) + `}}`)
			return &call{server: s, in: &bus.Incoming{Meta: bus.Meta{Principal: principal}}, message: &mcp.Message{Method: mcp.MethodToolsCall, Params: params}}
		}
		principal, arg := text.Draw(t, "principal"), text.Draw(t, "argument")
		replica, own := rapid.IntRange(0, 99).Draw(t, "replica"), jsontext.Value(nil)
		if rapid.Bool().Draw(t, "has state") {
			own = mcp.QuoteString(text.Draw(t, "state"))
		}
		place := ""
		if rapid.Bool().Draw(t, "parked") {
			place = "place"
		}
		state, err := one(principal, arg).wrap(replica, place, own)
		if err != nil {
			t.Fatal(err)
		}
		retry := one(principal, arg)
		retry.params.state = mcp.QuoteString(state)
		e, err := retry.unwrap()
		if err != nil || e.Replica != replica || e.Place != place || !bytes.Equal(e.own, own) {
			t.Fatalf("got %+v, %v", e, err)
		}
		otherPrincipal, otherArg := text.Draw(t, "another principal"), text.Draw(t, "another argument")
		if otherPrincipal != principal || otherArg != arg {
			retry = one(otherPrincipal, otherArg)
			retry.params.state = mcp.QuoteString(state)
			if e, err := retry.unwrap(); err == nil {
				t.Fatalf("another request opens it: %+v", e)
			}
		}
	})
}

// asksRoots are the capabilities of a caller that can be asked what asksOnce asks.
const asksRoots = `{"roots":{}}`

// TestMayAsk: a server that asks for what its caller has not declared gets an error
// in its caller's place.
func TestMayAsk(t *testing.T) {
	t.Parallel()
	s := askBench(t, testSeal(t), mcp.EraModern, 1, asksOnce(``))
	for _, caps := range []string{"", `{"elicitation":{},"sampling":{}}`} {
		_, err := run(s, testCall{tool: "ask", caps: caps})
		e, ok := errors.AsType[*mcp.Error](err)
		if !ok || e.Code != mcp.CodeMissingCapability || string(e.Data) != `{"requiredCapabilities":{"roots":{}}}` {
			t.Errorf("with %s: %v", caps, err)
		}
	}
}
