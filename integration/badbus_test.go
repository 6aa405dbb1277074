package integration_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"toolhub/integration/hubproc"
)

func unmarshal(text string, v any) error { return json.Unmarshal([]byte(text), v) }

// natsOf connects to the NATS server of a hub as its operator may.
func natsOf(t *testing.T, h *hubproc.Hub) *nats.Conn {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.Dir, "state", "hub.json"))
	if err != nil {
		t.Fatal(err)
	}
	var running struct{ NATS struct{ URL, NKey string } }
	if err := json.Unmarshal(data, &running); err != nil {
		t.Fatal(err)
	}
	client := running.NATS
	info, err := os.Stat(client.NKey)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the operator's credentials: %v, %v, want mode 0600", info, err)
	}
	key, err := nats.NkeyOptionFromSeed(client.NKey)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(client.URL, key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// badMessages writes to the subjects and buckets of a hub what nobody should.
func badMessages(t *testing.T) {
	t.Parallel()
	h := start(t, `hub: bus
policy: {deny: [victim/fail], allow: ["*/*"]}
servers:
  dice: {builtin: dice}
  victim: {builtin: testbed}
`)
	offered(t, h, "dice__roll", "victim__echo")
	nc := natsOf(t, h)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	reg, err := js.KeyValue(soon(t), "TOOLHUB_bus_reg")
	if err != nil {
		t.Fatal(err)
	}
	own, err := reg.Get(soon(t), "own.victim")
	if err != nil {
		t.Fatal(err)
	}
	epoch := own.Revision()
	method := func(epoch uint64, m string) string {
		return "toolhub.bus.call.victim." + strconv.FormatUint(epoch, 10) + "." + m
	}
	toolsCall := method(epoch, "tools.call")
	request := func(name, args string) string {
		return `{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":` + name + `,"arguments":` + args + `}}`
	}
	echo := request(`"echo"`, `{"text":"hello"}`)
	deadline := "deadline=" + strconv.FormatInt(time.Now().Add(-time.Hour).UnixMilli(), 10)

	for _, row := range []struct {
		name, subject, header, body string
		want                        string // kind of the reply ("fault") and text in it; "": no responders
		text                        string
	}{
		{"a good call", toolsCall, "", echo, "result", "hello"},
		{"nothing", toolsCall, "", "", "fault", "invalid"},
		{"garbage", toolsCall, "", "\x00\xff<html>", "fault", "invalid"},
		{"half a message", toolsCall, "", echo[:30], "fault", "invalid"},
		{"not UTF-8", toolsCall, "", request("\"\xff\"", "{}"), "fault", "UTF-8"},
		{"a bomb of nesting", toolsCall, "", request(`"echo"`, strings.Repeat("[", 100_000)+strings.Repeat("]", 100_000)), "fault", "nested"},
		{"a batch", toolsCall, "", "[" + echo + "]", "fault", "batch"},
		{"a response", toolsCall, "", `{"jsonrpc":"2.0","id":1,"result":{}}`, "fault", "invalid"},
		{"a notification", toolsCall, "", `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"echo"}}`, "fault", "invalid"},
		{"another method than the subject's", method(epoch, "tools.list"), "", echo, "fault", "method"},
		{"a name twice", toolsCall, "", `{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"echo","name":"fail","arguments":{}}}`, "fault", "duplicate"},
		{"no name", toolsCall, "", `{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{}}`, "fault", "name"},
		{"a name that is a number", toolsCall, "", request("5", "{}"), "fault", "name"},
		{"arguments that are a text", toolsCall, "", request(`"echo"`, `"x"`), "fault", "arguments"},
		{"a denied tool", toolsCall, "", request(`"fail"`, "{}"), "fault", "denied"},
		{"a denied tool by its exposed name", toolsCall, "", request(`"victim__fail"`, "{}"), "fault", "not_found"},
		{"no such tool", toolsCall, "", request(`"nonsense"`, "{}"), "fault", "not_found"},
		{"a name with a zero-width character", toolsCall, "", request(`"ec`+"\u200b"+`ho"`, "{}"), "fault", "not_found"},
		{"no such method", method(epoch, "nonsense.method"), "", `{"jsonrpc":"2.0","id":"x","method":"nonsense/method"}`, "error", "-32601"},
		{"a header that is none", toolsCall, "%zz=%%%", echo, "fault", "call_header"},
		{"a deadline that is a word", toolsCall, "id=h1&deadline=soon", echo, "fault", "deadline"},
		{"a deadline that has passed", toolsCall, "id=h2&" + deadline, echo, "fault", "timeout"},
		{"parts of nothing", toolsCall, "id=h3&parts=5&size=2", echo, "fault", "parts"},
		{"parts without end", toolsCall, "id=h4&parts=9999999&size=9223372036854775807", echo, "fault", "message_too_large"},
		{"negative parts", toolsCall, "id=h5&parts=-1&size=-1", echo, "fault", "parts"},
		{"an epoch that is over", method(epoch-1, "tools.call"), "", echo, "", ""},
		{"an epoch to come", method(epoch+1000, "tools.call"), "", echo, "", ""},
		{"an epoch that is a word", "toolhub.bus.call.victim.now.tools.call", "", echo, "", ""},
		{"a server that is none", "toolhub.bus.call.nobody.1.tools.call", "", echo, "", ""},
		{"operator: garbage", "toolhub.bus.api.servers.list", "", "\xff\x00", "", "invalid"},
		{"operator: no such operation", "toolhub.bus.api.nonsense", "", `{"jsonrpc":"2.0","id":1,"method":"nonsense"}`, "", ""},
		{"operator: a call of nothing", "toolhub.bus.api.tools.call", "", `{"jsonrpc":"2.0","id":1,"method":"tools.call","params":{}}`, "", ""},
		{"operator: a bomb of nesting", "toolhub.bus.api.policy.explain", "", `{"jsonrpc":"2.0","id":1,"method":"policy.explain","params":` + strings.Repeat(`{"a":`, 50_000) + `1` + strings.Repeat(`}`, 50_000) + `}`, "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			msg := nats.NewMsg(row.subject)
			msg.Data = []byte(row.body)
			if row.header != "" {
				msg.Header.Set("Toolhub-Call", row.header)
			}
			reply, err := nc.RequestMsgWithContext(soon(t), msg)
			operator := strings.HasPrefix(row.name, "operator")
			switch {
			case operator:
				// Whatever its form, it is an error, and not silence.
				if err != nil || !strings.Contains(string(reply.Data), `"error"`) {
					t.Errorf("%v, %v, want an error", err, reply)
				}
			case row.want == "":
				if !errors.Is(err, nats.ErrNoResponders) {
					t.Errorf("%v, want no responders", err)
				}
			case err != nil:
				t.Error(err)
			case row.want == "result" && reply.Header.Get("Toolhub-Reply") == "" && strings.Contains(string(reply.Data), row.text):
				// The only reply, to one who doesn't know the header.
			case !strings.HasPrefix(reply.Header.Get("Toolhub-Reply"), row.want+" ") || !strings.Contains(string(reply.Data), row.text):
				t.Errorf("%s %.500s, want %s with %q", reply.Header.Get("Toolhub-Reply"), reply.Data, row.want, row.text)
			}
			fine(t, h)
		})
	}

	// What asks for no answer has nobody to tell: it must do no harm.
	for _, row := range []struct{ subject, header, body string }{
		{toolsCall, "", "\xff"},
		{toolsCall, "parts=3&size=4", "{"},
		{"toolhub.bus.ctl.any.cancel", "", "\xff\x00"},
		{"toolhub.bus.ctl.any.cancel", "", strings.Repeat("x", 100_000)},
		{"toolhub.bus.ctl.any.nonsense", "", "x"},
		{"toolhub.bus.session.nobody", "", "\xff\x00"},
		{"toolhub.bus.event.server.dice.removed", "", "this is no event"},
		{"toolhub.bus.event.server.dice.up", "", `{"id":7,"time":"yesterday"}`},
		{"toolhub.bus.event.x.y.z", "", strings.Repeat("[", 100_000)},
	} {
		msg := nats.NewMsg(row.subject)
		msg.Data = []byte(row.body)
		if row.header != "" {
			msg.Header.Set("Toolhub-Call", row.header)
		}
		if err := nc.PublishMsg(msg); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.FlushWithContext(soon(t)); err != nil {
		t.Fatal(err)
	}
	fine(t, h)
	if _, stderr, code := h.Operator(soon(t), "events", "--json"); code != 0 {
		t.Errorf("hub events: exit code %d: %s", code, stderr)
	}

	// State that nobody can have meant.
	for _, bucket := range []string{"defs", "reg", "policy", "sessions"} {
		kv, err := js.KeyValue(soon(t), "TOOLHUB_bus_"+bucket)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{
			"server.broken", "server", "server.a.b", "own.nobody", "own.broken", "cat.nobody", "status.nobody.nobody", "status.victim.nobody",
			"lease.nobody.1", "lease.x", "part.0", "policy.x", "session.x", "nonsense", "a/b=c", "==", "=zz",
		} {
			for _, value := range []string{"", "\xff\x00", "{", `{"server":7}`, `[]`, `"text"`, strings.Repeat(`{"a":`, 20_000)} {
				if _, err := kv.PutString(soon(t), key, value); err != nil {
					t.Fatalf("%s %s: %v", bucket, key, err)
				}
			}
		}
		fine(t, h)
	}
	// The definition and the catalog of one server become nonsense: the others
	// do not care.
	defs, err := js.KeyValue(soon(t), "TOOLHUB_bus_defs")
	if err != nil {
		t.Fatal(err)
	}
	for _, write := range []struct {
		kv  jetstream.KeyValue
		key string
	}{{reg, "cat.victim"}, {reg, "own.victim"}, {defs, "server.victim"}} {
		if _, err := write.kv.PutString(soon(t), write.key, "{\xff"); err != nil {
			t.Fatal(err)
		}
		fine(t, h)
	}
	// Settings that cannot be read are no policy, and without one nothing is
	// allowed.
	if _, err := defs.PutString(soon(t), "settings", "{\xff"); err != nil {
		t.Fatal(err)
	}
	withdrawn(t, h, "dice__roll")
	if _, _, err := h.Call(soon(t), "dice__roll", "{}"); err == nil {
		t.Error("a tool can be called without a policy")
	}
	// A new start of the same hub writes its file over it.
	stop(t, h)
	again, err := h.Again(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	watch(t, again)
	offered(t, again, "dice__roll", "victim__echo")
	fine(t, again)
	if _, _, err := again.Call(soon(t), "victim__fail", "{}"); err == nil {
		t.Error(fmt.Sprint("the denied tool can be called after the state was damaged: ", err))
	}
	stop(t, again)
}

// forgedCalls has a program that may publish and subscribe, and does not know the
// hub's key, make calls in the names of others.
func forgedCalls(t *testing.T) {
	t.Parallel()
	h := start(t, `hub: forged
policy:
  deny: [{tool: dice/roll, when: tainted()}]
  allow: [{tool: testbed/echo, when: 'principal == "ada"'}, {tool: testbed/fail, when: 'principal == ""'}, "dice/*"]
servers:
  dice: {builtin: dice}
  testbed: {builtin: testbed}
`)
	offered(t, h, "dice__roll")
	nc := natsOf(t, h)
	spy, err := nc.SubscribeSync("toolhub.forged.call.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.FlushWithContext(soon(t)); err != nil {
		t.Fatal(err)
	}
	// caught is what the program sees of a call that a router makes.
	caught := func(tool, args string, more ...string) *nats.Msg {
		t.Helper()
		if stdout, stderr, code := h.Operator(soon(t), append([]string{"call", tool, args}, more...)...); code != 0 {
			t.Fatalf("hub call %s: exit code %d: %s%s", tool, code, stdout, stderr)
		}
		msg, err := spy.NextMsgWithContext(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		return msg
	}
	adas := caught("testbed__echo", `{"text":"a secret"}`, "--principal", "ada")
	header := adas.Header.Get("Toolhub-Call")
	if !strings.Contains(header, "principal=ada") || !strings.Contains(header, "&sig=") {
		t.Fatalf("the router's own call has the header %q", header)
	}
	unsigned, sig, _ := strings.Cut(header, "&sig=")
	nobodys := caught("dice__roll", `{"dice":"1d6"}`)
	_, nobodysSig, _ := strings.Cut(nobodys.Header.Get("Toolhub-Call"), "&sig=")
	other := strings.Replace(string(adas.Data), "a secret", "another", 1)
	replace := func(old, new string) string { return strings.Replace(header, old, new, 1) }
	for _, row := range []struct{ name, header, body, text string }{
		{"the very call again", header, "", "duplicate_call"},
		{"without a signature", strings.Replace(unsigned, "id=", "id=f0", 1), "", "unsigned"},
		{"by hand", "principal=ada", other, "unsigned"},
		{"by hand, signed with nonsense", "id=f1&principal=ada&sig=AAAAAAAAAAAAAAAAAAAAAA", other, "unsigned"},
		{"with another id", replace("id=", "id=f2"), "", "unsigned"},
		{"with another id and body", replace("id=", "id=f3"), other, "unsigned"},
		{"as another principal", replace("principal=ada", "principal=eve"), "", "duplicate_call"},
		{"as another principal with another id", strings.Replace(replace("principal=ada", "principal=eve"), "id=", "id=f4", 1), "", "unsigned"},
		{"with nobody's signature", strings.Replace(replace(sig, nobodysSig), "id=", "id=f5", 1), "", "unsigned"},
		{"with a principal behind the signature", "id=f6&sig=" + sig + "&principal=ada", "", "unsigned"},
		{"with taint of its own", "id=f7&taint=web", "", "unsigned"},
		{"as nobody", "id=f8", "", "policy"},
		{"without any header", "", "", "policy"},
	} {
		msg := nats.NewMsg(adas.Subject)
		if msg.Data = adas.Data; row.body != "" {
			msg.Data = []byte(row.body)
		}
		if row.header != "" {
			msg.Header.Set("Toolhub-Call", row.header)
		}
		reply, err := nc.RequestMsgWithContext(soon(t), msg)
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
		} else if !strings.HasPrefix(reply.Header.Get("Toolhub-Reply"), "fault ") || !strings.Contains(string(reply.Data), row.text) {
			t.Errorf("%s: %s, want a fault with %q", row.name, reply.Data, row.text)
		}
	}
	// Who says nothing is nobody in particular, and nothing is known of what is in
	// the context of its model.
	msg := nats.NewMsg(adas.Subject)
	msg.Data = []byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fail","arguments":{"message":"to nobody"}}}`)
	if reply, err := nc.RequestMsgWithContext(soon(t), msg); err != nil || !strings.Contains(string(reply.Data), "to nobody") {
		t.Errorf("what everybody may: %v, %+v", err, reply)
	}
	msg = nats.NewMsg(nobodys.Subject)
	msg.Data = nobodys.Data
	if reply, err := nc.RequestMsgWithContext(soon(t), msg); err != nil || !strings.Contains(string(reply.Data), `"denied"`) || !strings.Contains(string(reply.Data), "deny[0]") {
		t.Errorf("what the tainted may not: %v, %+v", err, reply)
	}
	says(t, h, "dice__roll", `{"dice":"1d6"}`, "1d6")
}
