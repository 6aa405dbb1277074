package integration_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"toolhub/integration/hubproc"
)

// talker is one of many clients that use the same ids and progress tokens at the
// same time. All that it sends has its marker, and so must all that it hears.
type talker struct {
	*eraClient
	marker string
	heard  <-chan wire
	dice   *rand.Rand
}

// wrong reports what was heard that is not the talker's own.
func (k *talker) wrong(what string, got any) {
	k.t.Errorf("%s, %s: %.300v", k.marker, what, got)
}

// checkNotes checks what came before a result: progress and logs of this call only,
// all of them, in order, and no log below the level of the caller.
func (k *talker) checkNotes(e *exchanged, mark string, steps int) {
	var want, got []string
	for n := range steps {
		want = append(want, fmt.Sprintf("progress %d", n+1))
		if k.level == "debug" {
			want = append(want, fmt.Sprintf("debug %s %d", mark, n+1))
		}
		want = append(want, fmt.Sprintf("warning %s %d", mark, n+1))
	}
	for _, m := range e.notes {
		var p struct {
			ProgressToken, Level, Data, Message string
			Progress                            int
		}
		if err := json.Unmarshal(m.Params, &p); err != nil {
			k.wrong("a notification", string(m.Params))
			return
		}
		switch {
		case m.Method == "notifications/message":
			got = append(got, p.Level+" "+p.Data)
		case p.ProgressToken == "t" && (p.Message == "" || p.Message == mark):
			got = append(got, fmt.Sprintf("progress %d", p.Progress))
		default:
			got = append(got, string(m.Params))
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		k.wrong("notifications", fmt.Sprintf("%v, want %v", got, want))
	}
}

// talk makes one call of a server, and checks that all of it is its own.
func (k *talker) talk(server string, n int) {
	mark := fmt.Sprintf("%s call %d", k.marker, n)
	call := func(tool, args string) *exchanged {
		return k.do("tools/call", fmt.Sprintf(`{"name":"%s__%s","arguments":%s,"_meta":{"progressToken":"t"}}`, server, tool, args))
	}
	text := fmt.Sprintf(`{"text":%q,"steps":%d}`, mark, 1+n%3)
	var e *exchanged
	var want string
	switch k.dice.IntN(5) {
	case 0:
		e, want = call("echo", text), mark
	case 1:
		e, want = call("work", text), fmt.Sprintf("%s: %d steps", mark, 1+n%3)
		k.checkNotes(e, mark, 1+n%3)
	case 2:
		e, want = call("ask", text), "accept "+k.marker
		if fmt.Sprint(e.asked) != fmt.Sprintf("[elicitation/create [%s] %s]", server, mark) {
			k.wrong("asked", e.asked)
		}
	case 3:
		e, want = call("sample", text), "the model says: "+k.marker
		if len(e.asked) != 1 {
			k.wrong("asked", e.asked)
		}
	case 4:
		own := "every://items/" + k.marker
		e, want = call("touch", fmt.Sprintf(`{"text":%q}`, own)), "touched "+own
		hears(k.t, k.heard, "notifications/resources/updated", `"mcp-proxy://`+server+"/"+own+`"`)
	}
	if got := firstText(e); got != want {
		k.wrong("a result of "+server, got+", want "+want)
	}
}

// TestNoCrossTalk: of 50 clients of both eras, before servers of both eras that
// all of them share, over two routers that are chosen at random for each message,
// none hears what belongs to another, and each hears all of its own.
func TestNoCrossTalk(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	urls := everyfeature(t)
	var yaml strings.Builder
	yaml.WriteString(fmt.Sprintf("hub: crowd\nnats: {url: %q}\npolicy: allow_all\nstdio_queue_timeout: 2m\nservers:\n", natsServer(t)))
	var servers []string
	for _, e := range []string{"legacy", "modern"} {
		yaml.WriteString(fmt.Sprintf("  stdio_%s: {command: %q, era: %[1]s, env: {MARK: \"{dir}\"}}\n  http_%[1]s: {url: %[3]q, era: %[1]s}\n", e, binary("everyfeature"), urls[e]))
		servers = append(servers, "stdio_"+e, "http_"+e)
	}
	definer := startProgram(t, hubproc.Config{Binary: binary("hub"), Dir: t.TempDir(), YAML: yaml.String()})
	offered(t, definer, "stdio_legacy__echo")
	stop(t, definer)
	program(t, "hub-worker", yaml.String(), false)
	routers := []*hubproc.Hub{program(t, "hub-router", yaml.String(), true), program(t, "hub-router", yaml.String(), true)}
	for _, r := range routers {
		offered(t, r, "stdio_legacy__echo", "stdio_modern__echo", "http_legacy__echo", "http_modern__echo")
	}
	talkers := make([]*talker, 50)
	var opening sync.WaitGroup
	for i := range talkers {
		k := &talker{marker: fmt.Sprintf("m%d", i), dice: rand.New(rand.NewPCG(seed, uint64(i)))}
		var mu sync.Mutex // answers are given while a call waits
		pick := rand.New(rand.NewPCG(seed, uint64(1000+i)))
		k.eraClient = &eraClient{
			t: t, modern: i%2 == 0, capabilities: everything, level: []string{"debug", "warning"}[i/2%2],
			pick: func() string {
				mu.Lock()
				defer mu.Unlock()
				return routers[pick.IntN(2)].URL + "/mcp"
			},
			user: func(method string, params json.RawMessage) string {
				if !strings.Contains(string(params), k.marker+" call") {
					k.wrong("asked", method+string(params))
				}
				if method == "sampling/createMessage" {
					return fmt.Sprintf(`{"role":"assistant","model":"m","content":{"type":"text","text":%q}}`, k.marker)
				}
				return fmt.Sprintf(`{"action":"accept","content":{"answer":%q}}`, k.marker)
			},
		}
		talkers[i] = k
		opening.Go(func() {
			k.open()
			var uris []string
			for _, server := range servers {
				uris = append(uris, "mcp-proxy://"+server+"/every://items/"+k.marker)
			}
			k.heard = k.listen(uris...)
		})
	}
	opening.Wait()
	if t.Failed() {
		return
	}
	var talking sync.WaitGroup
	for _, k := range talkers {
		talking.Go(func() {
			for n := range 12 {
				k.talk(servers[k.dice.IntN(len(servers))], n)
			}
		})
	}
	talking.Wait()
	// What is left on the streams is their own, too.
	for _, k := range talkers {
		for len(k.heard) > 0 {
			if m := <-k.heard; m.Method != "notifications/resources/updated" || !strings.Contains(string(m.Params), "/every://items/"+k.marker+`"`) {
				k.wrong("on the stream", m.Method+string(m.Params))
			}
		}
	}
}
