package bus

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"toolhub/internal/mcp"
)

// TestForgedCalls: a call that names somebody is taken only from a process of the
// hub and only as that has made it; one that names nobody is nobody's.
func TestForgedCalls(t *testing.T) {
	t.Parallel()
	s, caller, worker := pair(t, nil)
	took := make(chan Meta, 1)
	// In a queue, so that a repetition is not refused for its id.
	for _, epoch := range []uint64{testEpoch, testEpoch + 1} {
		if _, err := worker.Serve(ServeSubject("test", "echo", epoch), "q", 0, func(_ context.Context, in *Incoming) (Reply, error) {
			took <- in.Meta
			return Reply{Body: response("")}, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	nc := s.raw(t)
	spy, err := nc.SubscribeSync("toolhub.test.call.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	// catch makes a call and is what another program sees of it.
	catch := func(m Meta, body []byte) *nats.Msg {
		t.Helper()
		r := toEcho(body)
		r.Meta = m
		if _, err := caller.Call(t.Context(), r, nil); err != nil {
			t.Fatal(err)
		}
		if got := within(t, "the call", took); !got.Signed {
			t.Errorf("the router's own call is not signed: %+v", got)
		}
		msg, err := spy.NextMsg(patience)
		if err != nil {
			t.Fatal(err)
		}
		return msg
	}
	ada := catch(Meta{Principal: "ada", ToolSet: "t1"}, request(1))
	eve := catch(Meta{Principal: "eve", ToolSet: "t1"}, request(1))
	tainted := catch(Meta{Taint: []string{"web", "mail"}}, request(1))
	nobody := catch(Meta{}, request(1))
	big := catch(Meta{Principal: "ada"}, sized(9<<20))

	// send replays a call with another header or body.
	send := func(msg *nats.Msg, header func(string) string, change func(*nats.Msg)) error {
		t.Helper()
		forged := &nats.Msg{Subject: msg.Subject, Data: msg.Data, Header: nats.Header{HeaderCall: {headerGet(msg.Header, HeaderCall)}}}
		if header != nil {
			forged.Header[HeaderCall][0] = header(forged.Header[HeaderCall][0])
		}
		if change != nil {
			change(forged)
		}
		answer, err := nc.RequestMsg(forged, patience)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := spy.NextMsg(patience); err != nil { // the forged one
			t.Fatal(err)
		}
		if kind, _, _, ok := decodeReply(headerGet(answer.Header, HeaderReply)); ok && kind == kindFault {
			return decodeFault(answer.Data)
		}
		return nil
	}
	replace := func(old, new string) func(string) string {
		return func(h string) string {
			out := strings.Replace(h, old, new, 1)
			if out == h {
				t.Errorf("%q has no %q", h, old)
			}
			return out
		}
	}
	sigOf := func(msg *nats.Msg) string { return proofOf(headerGet(msg.Header, HeaderCall)).sig }
	if err := send(ada, nil, nil); err != nil {
		t.Errorf("the very call again, where ids are not remembered: %v", err)
	} else if got := within(t, "the call", took); got.Principal != "ada" || !got.Signed {
		t.Errorf("it is %+v", got)
	}
	for name, c := range map[string]struct {
		msg    *nats.Msg
		header func(string) string
		change func(*nats.Msg)
	}{
		"no signature":              {ada, func(h string) string { return proofOf(h).text }, nil},
		"an empty signature":        {ada, func(h string) string { return proofOf(h).text + sigParam }, nil},
		"another principal":         {ada, replace("ada", "eve"), nil},
		"one principal more":        {ada, replace("id=", "principal=eve&id="), nil},
		"one behind the signature":  {nobody, func(h string) string { return h + "&principal=eve" }, nil},
		"another's signature":       {ada, replace(sigOf(ada), sigOf(eve)), nil},
		"nobody's signature":        {ada, replace(sigOf(ada), sigOf(nobody)), nil},
		"another tool set":          {ada, replace("t1", "t2"), nil},
		"a later deadline":          {ada, replace("&sig=", "&deadline=99999999999999&sig="), nil},
		"another id":                {ada, replace("id=", "id=x"), nil},
		"another era":               {ada, replace("&sig=", "&era=legacy&sig="), nil},
		"another body":              {ada, nil, func(m *nats.Msg) { m.Data = request(2) }},
		"no body":                   {ada, nil, func(m *nats.Msg) { m.Data = nil }},
		"another method":            {ada, nil, func(m *nats.Msg) { m.Subject = CallSubject("test", "echo", testEpoch, "tools/list") }},
		"a later epoch":             {ada, nil, func(m *nats.Msg) { m.Subject = CallSubject("test", "echo", testEpoch+1, "tools/call") }},
		"less taint":                {tainted, replace("&taint=web", ""), nil},
		"more taint":                {tainted, replace("&taint=web", "&taint=web&taint=web2"), nil},
		"taint without a signature": {tainted, func(h string) string { return proofOf(h).text }, nil},
		"a signature that goes on":  {ada, func(h string) string { return h + "=" }, nil},
		"made up":                   {ada, func(string) string { return "principal=ada&sig=" + strings.Repeat("A", 22) }, nil},
		"in one part":               {big, func(h string) string { return "id=x&principal=ada" + sigParam + proofOf(h).sig }, nil},
	} {
		err := send(c.msg, c.header, c.change)
		f, ok := err.(*mcp.Fault)
		if !ok || f.Kind != mcp.KindDenied || f.Reason != ReasonUnsigned {
			t.Errorf("%s: %v, want it denied as unsigned", name, err)
		}
	}
	for name, header := range map[string]func(string) string{
		"no signature":       func(h string) string { return proofOf(h).text },
		"no header":          func(string) string { return "" },
		"a wrong signature":  replace(sigOf(nobody), sigOf(ada)),
		"all without taint":  func(h string) string { return strings.ReplaceAll(proofOf(h).text, "taint", "other") },
		"one of another hub": func(h string) string { return proofOf(h).text + sigParam + strings.Repeat("A", 22) },
	} {
		if err := send(nobody, header, nil); err != nil {
			t.Errorf("%s of nobody: %v", name, err)
		} else if got := within(t, "the call", took); got.Signed || got.names() {
			t.Errorf("%s of nobody: %+v", name, got)
		}
	}
	select {
	case m := <-took:
		t.Errorf("a forged call was taken: %+v", m)
	default:
	}
}

// TestSignatureCoversAll: what goes where, what it says and its body all count.
func TestSignatureCoversAll(t *testing.T) {
	t.Parallel()
	seal := newSeal(bytes.Repeat([]byte{1}, sealKeyBytes))
	sign := func(seal *Seal, subject, text, body string) string {
		s := signature{seal, subject, seal.digest([]byte(body))}
		return string(s.append([]byte(text))[len(text)+len(sigParam):])
	}
	base := sign(seal, "a.b", "id=1", "body")
	if again := sign(seal, "a.b", "id=1", "body"); again != base {
		t.Errorf("signed again it is %s, not %s", again, base)
	}
	seen := map[string]string{base: "base"}
	for name, sig := range map[string]string{
		"subject":     sign(seal, "a.c", "id=1", "body"),
		"text":        sign(seal, "a.b", "id=2", "body"),
		"body":        sign(seal, "a.b", "id=1", "bodz"),
		"longer body": sign(seal, "a.b", "id=1", "body\x00"),
		"no body":     sign(seal, "a.b", "id=1", ""),
		"shift":       sign(seal, "a.bi", "d=1", "body"),
		"key":         sign(newSeal(bytes.Repeat([]byte{2}, sealKeyBytes)), "a.b", "id=1", "body"),
	} {
		if other, ok := seen[sig]; ok {
			t.Errorf("%s and %s have the same signature", name, other)
		}
		seen[sig] = name
	}
}

// TestKeySurvivesAWipe: where NATS has lost what it had stored, the processes
// that run put the hub's key back, so that those that start later have the same.
func TestKeySurvivesAWipe(t *testing.T) {
	t.Parallel()
	s := startServer(t, nil)
	c := s.connect(t, "router.r1", nil)
	before, err := c.Seal(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	token := before.Close("p", []byte("x"))
	w := watch(t, c, BucketReg, ">")
	w.until("the snapshot", func(_ map[string]string, live bool) bool { return live })
	s.stop()
	s.wipe()
	s.start()
	eventually(t, "the key is back", func() bool {
		_, err := c.Get(t.Context(), BucketKeys, Key(KeySeal))
		return err == nil
	})
	after, err := s.connect(t, "w1", nil).Seal(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := after.Open("p", token); err != nil || string(plain) != "x" {
		t.Errorf("a process that started later has opened %q, %v", plain, err)
	}
}
