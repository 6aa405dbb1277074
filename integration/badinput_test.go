package integration_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"toolhub/integration/hubproc"
)

// TestBadInput is a table of what each side of the hub may be fed: the file, the
// endpoint in both eras, the stdio front, the servers behind it (the bus is in
// badbus_test.go). Each row has what must come of it, and after each row a good
// server behind the same hub still lists and answers.
func TestBadInput(t *testing.T) {
	t.Parallel()
	t.Run("file", badFiles)
	t.Run("endpoint", badRequests)
	t.Run("stdio", badLines)
	t.Run("answers", badAnswers)
	t.Run("starts", badStarts)
	t.Run("bus", badMessages)
}

// fine checks that the good server of the hub is not impressed.
func fine(t *testing.T, h *hubproc.Hub) {
	t.Helper()
	names, err := h.Tools(soon(t))
	if err != nil || !slices.Contains(names, "dice__roll") {
		t.Errorf("afterwards the list is %v, %v", names, err)
	}
	says(t, h, "dice__roll", `{"dice":"1d6"}`, "1d6")
}

const dice = "policy: allow_all\nservers:\n  dice: {builtin: dice}\n"

// A badFile is a configuration and what is said about it.
type badFile struct {
	name, text string
	want       []string
}

var badFilesTable = []badFile{
	{"empty", "", []string{"empty", "policy"}},
	{"garbage", "\x00\x01\x02\xff\xfe", []string{"UTF-8"}},
	{"not UTF-8", "policy: allow_all\nservers:\n  a: {builtin: \"d\xffce\"}\n", []string{":3:", "UTF-8"}},
	{"half a file", "policy: allow_all\nservers:\n  a: {builtin: dice", []string{"YAML"}},
	{"a tab", "policy: allow_all\nservers:\n\ta: {builtin: dice}\n", []string{":3:", "tab"}},
	{"a list", "- policy\n- servers\n", []string{"mapping"}},
	{"JSON of another program", `{"mcpServers":{"a":{"command":"x"}},"policy":"allow_all"}`, []string{"mcpServers", "servers"}},
	{"no policy", "servers:\n  dice: {builtin: dice}\n", []string{"policy"}},
	{"a typo", dice + "  a: {comand: x}\n", []string{":4:", "servers.a.comand", `"command"`}},
	{"a key twice", dice + "policy: allow_all\n", []string{":4:", "policy", "twice", "line 1"}},
	{"a server twice", dice + "  dice: {builtin: dice}\n", []string{":4:", "servers.dice", "twice"}},
	{"a bad id", "policy: allow_all\nservers:\n  No: {builtin: dice}\n  a__b: {builtin: dice}\n  c_: {builtin: dice}\n  zero\u200bwidth: {builtin: dice}\n", []string{":3:", ":4:", ":5:", ":6:"}},
	{"no way to reach it", "policy: allow_all\nservers:\n  a: {}\n", []string{":3:", "servers.a", "command", "url"}},
	{"two ways", "policy: allow_all\nservers:\n  a: {builtin: dice, command: x}\n", []string{"servers.a"}},
	{"an unknown builtin", "policy: allow_all\nservers:\n  a: {builtin: nonsense}\n", []string{":3:", "servers.a.builtin", "dice"}},
	{"a bad duration", dice + "timeout: soon\n", []string{":4:", "timeout", "30s"}},
	{"a bad size", dice + "max_message_bytes: -1\n", []string{":4:", "max_message_bytes"}},
	{"a bad URL", "policy: allow_all\nservers:\n  a: {url: \"ftp://example.com\"}\n  b: {url: \"http://\"}\n  c: {url: \"://\"}\n", []string{":3:", ":4:", ":5:"}},
	{"a bad glob", "policy: {allow: [\"[/*\"]}\nservers:\n  dice: {builtin: dice}\n", []string{":1:", "policy.allow"}},
	{"bad CEL", "policy: {allow: [{tool: \"*/*\", when: \"1 +\"}]}\nservers:\n  dice: {builtin: dice}\n", []string{":1:", "when"}},
	{"a policy that is not there", "policy: careful\nservers:\n  dice: {builtin: dice}\n", []string{":1:", "careful"}},
	{"an open address", dice + "listen: 0.0.0.0:7780\n", []string{"loopback"}},
	{"nested deep", "policy: allow_all\nservers:\n  a: {builtin: dice, builtin_config: " + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + "}\n", []string{":3:"}},
	{"a bomb of aliases", bomb(), []string{"values"}},
	{"too many servers", tooMany(), []string{"max_servers", "32"}},
	{"several at once", "servers:\n  A: {builtin: dice}\n  b: {url: x, timeout: never}\ntimeoot: 3s\n", []string{"policy", "servers.A", "servers.b.url", "servers.b.timeout", "timeoot"}},
	{"larger than any file", dice + "x-padding: " + strings.Repeat("y", 5<<20) + "\n", []string{"larger"}},
}

// bomb is ten lines that stand for 10^9 values.
func bomb() string {
	var b strings.Builder
	b.WriteString(dice + "x-0: &x0 [y, y, y, y, y, y, y, y, y, y]\n")
	for i := range 8 {
		fmt.Fprintf(&b, "x-%d: &x%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*x%d, ", i), 10), ", "))
	}
	b.WriteString("  \n")
	return strings.Replace(b.String(), "servers:\n", "", 1) + "servers:\n  a: {builtin: dice, builtin_config: *x8}\n"
}

func tooMany() string {
	var b strings.Builder
	b.WriteString("policy: allow_all\nservers:\n")
	for i := range 33 {
		fmt.Fprintf(&b, "  s%d: {builtin: dice}\n", i)
	}
	return b.String()
}

func badFiles(t *testing.T) {
	t.Parallel()
	h := start(t, dice)
	offered(t, h, "dice__roll")
	for _, row := range badFilesTable {
		t.Run(row.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "bad.yaml")
			if err := os.WriteFile(file, []byte(row.text), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, command := range [][]string{{"config", "check", file}, {"up", file}} {
				out, err := exec.CommandContext(soon(t), binary("hub"), command...).CombinedOutput()
				if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 2 {
					t.Errorf("hub %s: %v, want exit code 2", command[0], err)
				}
				for _, want := range append(row.want, file) {
					if !bytes.Contains(out, []byte(want)) {
						t.Errorf("hub %s doesn't say %q:\n%.2000s", command[0], want, out)
					}
				}
			}
			// A running hub is given the same file.
			before := strings.Count(h.Log(), "configuration not applied")
			if err := os.Rename(file, filepath.Join(h.Dir, "hub.yaml")); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() error {
				if strings.Count(h.Log(), "configuration not applied") == before {
					return fmt.Errorf("the hub doesn't say that the file was not applied")
				}
				return nil
			})
			fine(t, h)
		})
	}
}

// A badRequest is what is posted to /mcp and what is answered.
type badRequest struct {
	name   string
	body   string
	header map[string]string // over those of a good request; "" leaves one out
	status int               // 0: any in want
	code   int64             // of the JSON-RPC error, 0: none is asked for
	text   string
}

var modern = map[string]string{"Mcp-Protocol-Version": hubproc.Modern, "Mcp-Method": "tools/call", "Mcp-Name": "dice__roll"}

func with(header map[string]string, more ...string) map[string]string {
	out := map[string]string{}
	maps.Copy(out, header)
	for i := 0; i < len(more); i += 2 {
		out[more[i]] = more[i+1]
	}
	return out
}

// call is a modern request for a tool with the raw parts given.
func call(id, name, args string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":` + name + `,"arguments":` + args + `,` + hubproc.Meta + `}}`
}

func badRequests(t *testing.T) {
	t.Parallel()
	h := start(t, dice)
	offered(t, h, "dice__roll")
	session, err := h.Initialize(soon(t), "/mcp", "{}")
	if err != nil {
		t.Fatal(err)
	}
	legacy := map[string]string{"Mcp-Protocol-Version": hubproc.Legacy, "Mcp-Session-Id": session}
	good := call("1", `"dice__roll"`, "{}")
	deep := strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000)
	rows := []badRequest{
		// What is no message at all, in either era.
		{"nothing", "", modern, 400, -32700, ""},
		{"garbage", "<html>", modern, 400, -32700, "JSON"},
		{"half a message", good[:len(good)/2], modern, 400, -32700, ""},
		{"two messages", good + good, modern, 400, -32700, ""},
		{"a batch", "[" + good + "]", modern, 400, -32600, "batch"},
		{"a text", `"tools/call"`, modern, 400, -32600, ""},
		{"null", `null`, modern, 400, -32600, ""},
		{"not UTF-8", call("1", `"dice__roll"`, "{\"dice\":\"\xff\xfe\"}"), modern, 400, -32700, "UTF-8"},
		{"a bomb of nesting", call("1", `"dice__roll"`, deep), modern, 400, -32700, "nested"},
		{"a bomb of brackets", strings.Repeat("[", 1_000_000), modern, 400, 0, ""},
		{"legacy: nothing", "", legacy, 400, -32700, ""},
		{"legacy: garbage", "<html>", legacy, 400, -32700, "JSON"},
		{"legacy: half a message", `{"jsonrpc":"2.0","id":1,"meth`, legacy, 400, -32700, ""},
		{"legacy: a batch", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, legacy, 400, -32600, "batch"},
		{"legacy: not UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", legacy, 400, -32700, "UTF-8"},
		{"legacy: a bomb of nesting", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"dice__roll","arguments":` + deep + `}}`, legacy, 400, -32700, "nested"},

		// JSON, but no request.
		{"no version", `{"id":1,"method":"tools/list","params":{` + hubproc.Meta + `}}`, modern, 400, -32600, "jsonrpc"},
		{"another version", strings.Replace(good, `"2.0"`, `"1.0"`, 1), modern, 400, -32600, "jsonrpc"},
		{"no method", `{"jsonrpc":"2.0","id":1}`, modern, 400, -32600, ""},
		{"a method that is a number", `{"jsonrpc":"2.0","id":1,"method":7}`, modern, 400, -32600, "method"},
		{"an id that is null", call("null", `"dice__roll"`, "{}"), modern, 400, -32600, "id"},
		{"an id that is an object", call("{}", `"dice__roll"`, "{}"), modern, 400, -32600, "id"},
		{"an id that is a fraction", call("1.5", `"dice__roll"`, "{}"), modern, 400, -32600, "id"},
		{"an id that is true", call("true", `"dice__roll"`, "{}"), modern, 400, -32600, "id"},
		{"params that are a list", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}`, modern, 400, -32600, "params"},
		{"a member twice", `{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/call","params":{"name":"dice__roll",` + hubproc.Meta + `}}`, modern, 400, -32700, "duplicate"},
		{"arguments twice", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"dice__roll","arguments":{},"arguments":{"dice":"2d6"},` + hubproc.Meta + `}}`, modern, 400, -32700, "duplicate"},
		{"an argument twice", call("1", `"dice__roll"`, `{"dice":"1d6","dice":"2d6"}`), modern, 400, -32700, "duplicate"},
		{"a response", `{"jsonrpc":"2.0","id":1,"result":{}}`, modern, 400, 0, ""},
		{"request and response", `{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}`, modern, 400, -32600, "both"},

		// Requests with something wrong in them.
		{"no such method", `{"jsonrpc":"2.0","id":1,"method":"nonsense/method","params":{` + hubproc.Meta + `}}`, with(modern, "Mcp-Method", "nonsense/method", "Mcp-Name", ""), 404, -32601, "nonsense/method"},
		{"a method of the other era", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{` + hubproc.Meta + `}}`, with(modern, "Mcp-Method", "initialize", "Mcp-Name", ""), 404, -32601, ""},
		{"no such tool", call("1", `"dice__nonsense"`, "{}"), with(modern, "Mcp-Name", "dice__nonsense"), 0, -32602, "dice__nonsense"},
		{"a tool of no server", call("1", `"roll"`, "{}"), with(modern, "Mcp-Name", "roll"), 0, -32602, "roll"},
		{"a name with a zero-width character", call("1", `"dice__ro`+"\u200b"+`ll"`, "{}"), with(modern, "Mcp-Name", "=?base64?ZGljZV9fcm/igItsbA==?="), 0, -32602, ""},
		{"an empty name", call("1", `""`, "{}"), with(modern, "Mcp-Name", ""), 0, 0, ""},
		{"a name that is a number", call("1", `7`, "{}"), with(modern, "Mcp-Name", "7"), 0, -32602, "name"},
		{"a name of a megabyte", call("1", `"`+strings.Repeat("n", 1<<20)+`"`, "{}"), with(modern, "Mcp-Name", "n"), 400, -32020, ""},
		{"arguments that are a list", call("1", `"dice__roll"`, "[]"), modern, 0, -32602, "arguments"},
		{"arguments that are a text", call("1", `"dice__roll"`, `"{}"`), modern, 0, -32602, "arguments"},
		{"a bad cursor", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"made up",` + hubproc.Meta + `}}`, with(modern, "Mcp-Method", "tools/list", "Mcp-Name", ""), 0, -32602, "cursor"},
		{"a cursor that is a number", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":7,` + hubproc.Meta + `}}`, with(modern, "Mcp-Method", "tools/list", "Mcp-Name", ""), 0, -32602, "cursor"},
		{"no _meta", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`, with(modern, "Mcp-Method", "tools/list", "Mcp-Name", ""), 400, -32602, "_meta"},
		{"no params", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, with(modern, "Mcp-Method", "tools/list", "Mcp-Name", ""), 400, -32602, ""},
		{"a _meta that is a text", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":"x"}}`, with(modern, "Mcp-Method", "tools/list", "Mcp-Name", ""), 400, -32602, "_meta"},
		{"a version of the future", strings.Replace(good, hubproc.Modern, "2099-01-01", 1), with(modern, "Mcp-Protocol-Version", "2099-01-01"), 400, -32022, ""},
		{"a version that is none", strings.Replace(good, hubproc.Modern, "v999.0.0", 1), with(modern, "Mcp-Protocol-Version", "v999.0.0"), 400, -32022, ""},
		{"header and body of two versions", good, with(modern, "Mcp-Protocol-Version", "2099-01-01"), 400, 0, ""},
		{"header and body of two methods", good, with(modern, "Mcp-Method", "tools/list"), 400, -32020, ""},
		{"header and body of two names", good, with(modern, "Mcp-Name", "dice__other"), 400, -32020, ""},
		{"no method in the header", good, with(modern, "Mcp-Method", ""), 400, -32020, ""},
		{"no name in the header", good, with(modern, "Mcp-Name", ""), 400, -32020, ""},
		{"base64 that is none", good, with(modern, "Mcp-Name", "=?base64?!!!?="), 400, -32020, ""},
		{"legacy: no such method", `{"jsonrpc":"2.0","id":1,"method":"nonsense/method"}`, legacy, 0, -32601, "nonsense/method"},
		{"legacy: no such tool", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nope"}}`, legacy, 0, -32602, "nope"},
		{"legacy: an id that is an object", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, legacy, 400, -32600, "id"},
		{"legacy: an argument twice", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"dice__roll","arguments":{"dice":"1d6","dice":"2d6"}}}`, legacy, 400, -32700, "duplicate"},
		{"legacy: initialize without params", `{"jsonrpc":"2.0","id":1,"method":"initialize"}`, map[string]string{}, 0, -32602, ""},
		{"legacy: a response to no request", `{"jsonrpc":"2.0","id":99,"result":{}}`, legacy, 0, 0, ""},
		{"legacy: a session that is none", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, with(legacy, "Mcp-Session-Id", "made-up"), 404, 0, ""},
		{"legacy: a session id of half a megabyte", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, with(legacy, "Mcp-Session-Id", strings.Repeat("s", 500_000)), 431, 0, ""},
		{"legacy: a session id that is a subject", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, with(legacy, "Mcp-Session-Id", "a.*.>"), 404, 0, ""},
		{"legacy: no session", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, with(legacy, "Mcp-Session-Id", ""), 400, 0, ""},

		// HTTP.
		{"a foreign origin", good, with(modern, "Origin", "https://evil.example"), 403, 0, ""},
		{"legacy: a foreign origin", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, with(legacy, "Origin", "https://evil.example"), 403, 0, ""},
		{"an origin that is none", good, with(modern, "Origin", "null"), 403, 0, ""},
		{"another type", good, with(modern, "Content-Type", "text/plain"), 415, 0, ""},
		{"9 MiB", call("1", `"dice__roll"`, `{"dice":"`+strings.Repeat("x", 9<<20)+`"}`), modern, 413, 0, "8"},
		{"legacy: 9 MiB", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"dice__roll","arguments":{"dice":"` + strings.Repeat("x", 9<<20) + `"}}}`, legacy, 413, 0, "8"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			r, err := h.Post(soon(t), "/mcp", row.body, row.header)
			if err != nil {
				t.Fatal(err)
			}
			if row.status != 0 && r.Status != row.status || r.Status >= 500 {
				t.Errorf("HTTP %d, want %d: %v", r.Status, row.status, r)
			}
			if row.code != 0 && (r.Error == nil || r.Error.Code != row.code) {
				t.Errorf("%v, want the error %d", r, row.code)
			}
			if r.Result != nil {
				t.Errorf("a result: %v", r)
			}
			if row.text != "" && (r.Error == nil || !strings.Contains(r.Error.Message, row.text)) && !bytes.Contains(r.Body, []byte(row.text)) {
				t.Errorf("%v, want %q in it", r, row.text)
			}
			if r.Error != nil && r.Error.Message == "" {
				t.Errorf("%v: an error without a message", r)
			}
			fine(t, h)
		})
	}
	// A foreign Host is what a rebound name of the DNS leads to.
	for _, path := range []string{"/mcp", "/s/dice/mcp"} {
		req, err := http.NewRequestWithContext(soon(t), http.MethodPost, h.URL+path, strings.NewReader(good))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "evil.example"
		for name, value := range with(modern, "Content-Type", "application/json", "Accept", "application/json, text/event-stream") {
			req.Header.Set(name, value)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusForbidden {
			t.Errorf("%s with a foreign Host: %s, want 403", path, res.Status)
		}
	}
	r, err := h.Request(soon(t), "/s/nobody/mcp", "tools/list", "", nil)
	if err != nil || r.Status != http.StatusNotFound || r.Error == nil || !strings.Contains(r.Error.Message, "nobody") {
		t.Errorf("the view of a server that is none: %v, %v", err, r)
	}
	fine(t, h)
}

// badLines feeds the stdio front. What is no message is answered with an error
// where it can be, and what follows is served.
func badLines(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, err := (&hubproc.Config{Dir: dir, YAML: dice}).Write()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary("hub"), "up", "--stdio", file)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	log := new(bytes.Buffer)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill() // nothing, as a rule
	lines := make(chan string, 100)
	go func() {
		defer close(lines)
		r := bufio.NewReader(out)
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			lines <- line
		}
	}()
	send := func(line string) {
		t.Helper()
		if _, err := in.Write([]byte(line + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	// answered waits for the line with the id.
	answered := func(id string) string {
		t.Helper()
		for {
			select {
			case line, ok := <-lines:
				if !ok {
					t.Fatalf("the hub ended:\n%s", log)
				}
				if strings.Contains(line, `"id":`+id+`,`) {
					return line
				}
			case <-soon(t).Done():
				t.Fatalf("no answer to %s:\n%s", id, log)
			}
		}
	}
	roll := func(id string) string { return call(id, `"dice__roll"`, `{"dice":"1d6"}`) }
	eventually(t, func() error {
		send(roll("0"))
		if line := answered("0"); !strings.Contains(line, "1d6") {
			return fmt.Errorf("the good server says %s", line)
		}
		return nil
	})
	for i, row := range []struct{ name, line, id, want string }{
		{"blank", "", "", ""},
		{"garbage", "<html>", "null", "-32700"},
		{"half a message", roll("1")[:40], "1", "-32700"},
		{"not UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", "1", "-32700"},
		{"a batch", "[" + roll("1") + "]", "null", "-32600"},
		{"an id that is an object", roll("{}"), "null", "-32600"},
		{"a bomb of nesting", call("1", `"dice__roll"`, strings.Repeat("[", 100_000)+strings.Repeat("]", 100_000)), "1", "-32700"},
		{"an argument twice", call("1", `"dice__roll"`, `{"dice":"1d6","dice":"2d6"}`), "1", "-32700"},
		{"9 MiB", call("1", `"dice__roll"`, `{"dice":"`+strings.Repeat("x", 9<<20)+`"}`), "", ""}, // which id it had is not known for sure
		{"9 MiB of nothing", strings.Repeat("x", 9<<20), "", ""},
		{"a response to no request", `{"jsonrpc":"2.0","id":77,"result":{}}`, "", ""},
		{"no such method", `{"jsonrpc":"2.0","id":"m","method":"nonsense/method","params":{` + hubproc.Meta + `}}`, `"m"`, "-32601"},
		{"no such tool", call(`"n"`, `"nope"`, "{}"), `"n"`, "-32602"},
		{"no _meta", `{"jsonrpc":"2.0","id":"p","method":"tools/call","params":{"name":"dice__roll"}}`, `"p"`, ""},
	} {
		send(row.line)
		if row.id != "" {
			if line := answered(row.id); !strings.Contains(line, `"error"`) || !strings.Contains(line, row.want) {
				t.Errorf("%s: %s, want an error %s", row.name, line, row.want)
			}
		}
		id := fmt.Sprintf(`"after %d"`, i)
		send(roll(id))
		if line := answered(id); !strings.Contains(line, "1d6") {
			t.Errorf("after %s: %s", row.name, line)
		}
	}
	// The end of input in the middle of a line is the end.
	if _, err := in.Write([]byte(`{"jsonrpc":`)); err != nil {
		t.Fatal(err)
	}
	in.Close()
	for line := range lines {
		if !strings.Contains(line, `"error"`) {
			t.Errorf("after the end: %s", line)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the hub ended with %v\n%s", err, log)
	}
	noProcess(t, dir)
}

// badAnswers calls the tools of badserver, each of which answers in a bad way of
// its own.
func badAnswers(t *testing.T) {
	t.Parallel()
	h := start(t, fmt.Sprintf(`policy: allow_all
restart_backoff: {initial: 10ms, max: 100ms}
servers:
  bad: {command: %q, args: [-pid, "{dir}/pid"]}
  hasty: {command: %[1]q, args: [-pid, "{dir}/pid2"], timeout: 1s, max_total_timeout: 2s}
  dice: {builtin: dice}
`, binary("badserver")))
	offered(t, h, "bad__good", "hasty__good", "dice__roll")
	const (
		result      = "" // a result with the text
		timeout     = "timeout"
		unavailable = "unavailable"
		tooLarge    = "message_too_large"
		protocol    = "protocol"
		own         = "own" // the server's own error
	)
	for _, row := range []struct {
		tool, kind string
		text       string
	}{
		{"good", result, "fine"},
		{"never", timeout, ""},
		{"exit", unavailable, ""},
		{"garbage", result, "fine"},
		{"half", protocol, ""},
		{"half_exit", unavailable, ""},
		{"long_line", tooLarge, "8388608"},
		{"long_junk", result, "fine"},
		{"near_limit", result, "xxx"},
		{"wrong_id", timeout, ""},
		{"null_id", timeout, ""},
		{"string_id", result, "wrong"}, // some servers make strings of ids; there is no other call it could be
		{"twice", result, "first"},
		{"batch", timeout, ""},
		{"nesting", protocol, ""},
		{"bad_utf8", protocol, ""},
		{"dup_id", protocol, ""},
		{"dup_result", protocol, ""},
		{"no_result", protocol, ""},
		{"both", protocol, ""},
		{"text_result", protocol, ""},
		{"null_result", protocol, ""},
		{"text_error", protocol, ""},
		{"own_error", own, "own words"},
		{"old_rpc", protocol, ""},
		{"close_stdout", unavailable, ""},
		{"flood", result, "flooded"},
		{"late_notify", result, "fine"},
		{"stray_notify", result, "fine"},
		{"ask", result, "-32601"},
		{"list_storm", result, "fine"},
	} {
		t.Run(row.tool, func(t *testing.T) {
			server := "bad"
			if row.kind == timeout {
				server = "hasty" // who doesn't wait as long
			}
			text, isError, err := h.Call(soon(t), server+"__"+row.tool, "{}")
			e, _ := err.(*hubproc.Error)
			switch {
			case row.kind == result:
				if err != nil || isError || !strings.Contains(text, row.text) {
					t.Errorf("%.200q, %v, want the result %q", text, err, row.text)
				}
			case e == nil:
				t.Errorf("%.200q, %v, want an error", text, err)
			case row.kind == own:
				if e.Code != -32000 || !strings.Contains(e.Message, row.text) || e.Data.Kind != "" {
					t.Errorf("%v, want the server's own error", e)
				}
			case e.Data.Kind != row.kind || e.Data.Server != server || !strings.Contains(e.Message, row.text):
				t.Errorf("%v of server %q, want the kind %s of %s and %q", e, e.Data.Server, row.kind, server, row.text)
			}
			fine(t, h)
			// And it is back, or was never away.
			eventually(t, func() error {
				text, _, err := h.Call(soon(t), server+"__good", "{}")
				if err == nil && text != "fine" {
					err = fmt.Errorf("%s__good says %q", server, text)
				}
				return err
			})
		})
	}
	t.Run("numbers", func(t *testing.T) {
		r, err := h.Request(soon(t), "/mcp", "tools/call", `"name":"bad__numbers","arguments":{}`, map[string]string{"Mcp-Name": "bad__numbers"})
		if err != nil || !bytes.Contains(r.Result, []byte(`"structuredContent":{"big":9007199254740993,"huge":1e400,"exact":1.0},"odd":{"b":1,"a":2}`)) {
			t.Errorf("%v, %v", err, r)
		}
	})
}

// badStarts has one server for each way to start badly in one hub, beside a good one.
func badStarts(t *testing.T) {
	t.Parallel()
	everything := []string{"all of its tools"}
	rows := []struct {
		start string
		// up are the server's tools, exposed; none: it is not up and the reason has
		// text in it.
		up   []string
		text string
	}{
		{"exit", nil, "no licence found"},
		{"silent", nil, "initialize"},
		{"banner", everything, ""},
		{"list_never", nil, "list"},
		{"handshake_garbage", nil, ""},
		{"handshake_version", nil, "1999-01-01"},
		{"handshake_text", nil, ""},
		{"names", []string{"good"}, ""},
		{"ten_thousand", nil, "max_catalog_items"},
		{"same_names", []string{"good", "twin"}, ""},
		{"list_text", nil, "list"},
		{"list_object", nil, "tools"},
		{"list_none", nil, "tools"},
		{"list_odd", []string{"good"}, ""},
		{"list_bomb", nil, ""},
		{"list_utf8", nil, ""},
		{"list_long", nil, ""},
		{"cursor_same", nil, "cursor"},
		{"cursor_endless", nil, ""},
		{"crash_later", nil, ""},
		{"deaf", nil, ""},
	}
	var yaml strings.Builder
	yaml.WriteString(`policy: allow_all
max_servers: 64
max_stdio_servers: 64
startup_timeout: 10s
probe_timeout: 1s
request_timeout: 2s
breaker_threshold: 1
restart_backoff: {initial: 1s, max: 4s}
servers:
  dice: {builtin: dice}
  gone: {command: /nonexistent/program}
  nowhere: {command: "{dir}"}
`)
	for _, row := range rows {
		fmt.Fprintf(&yaml, "  %s: {command: %q, args: [-start, %s, -pid, \"{dir}/%s.pid\"]}\n", row.start, binary("badserver"), row.start, row.start)
	}
	h := start(t, yaml.String())
	offered(t, h, "dice__roll")
	rows = append(rows, struct {
		start string
		up    []string
		text  string
	}{"gone", nil, "/nonexistent/program"})
	for _, row := range rows {
		t.Run(row.start, func(t *testing.T) {
			eventually(t, func() error {
				s, err := serverOf(h, row.start)
				if err != nil {
					return err
				}
				names, err := h.Tools(soon(t))
				if err != nil {
					return err
				}
				var mine []string
				for _, name := range names {
					if tool, ok := strings.CutPrefix(name, row.start+"__"); ok {
						mine = append(mine, tool)
					}
				}
				if fmt.Sprint(mine) != fmt.Sprint(row.up) && !(fmt.Sprint(row.up) == fmt.Sprint(everything) && slices.Contains(mine, "good")) {
					return fmt.Errorf("its tools are %v, want %v; it is %+v", mine, row.up, s)
				}
				if isUp := s.State == "up"; isUp != (row.up != nil) {
					return fmt.Errorf("it is %+v", s)
				}
				if row.up == nil && (s.Reason == "" || !strings.Contains(s.Reason+strings.Join(s.Stderr, "\n"), row.text)) {
					return fmt.Errorf("it is %+v, want %q in its reason", s, row.text)
				}
				return nil
			})
			_, _, err := h.Call(soon(t), row.start+"__tool_that_is_not", "{}")
			if e, ok := err.(*hubproc.Error); !ok || e.Code != -32602 && e.Data.Kind != "unavailable" {
				t.Errorf("a call of it: %v", err)
			}
			fine(t, h)
		})
	}
	// What was left out is told.
	for filter, text := range map[string]string{
		"tool.names.rejected":    "invalid_name",
		"tool.list_odd.rejected": "invalid_definition",
	} {
		eventually(t, func() error { return happened(t, h, filter, text) })
	}
}

// TestTenThousandTools: 10,000 tools of one server, where the operator allows that many.
func TestTenThousandTools(t *testing.T) {
	t.Parallel()
	h := start(t, fmt.Sprintf("policy: allow_all\nmax_catalog_items: 20000\nservers:\n  many: {command: %q, args: [-start, ten_thousand, -pid, \"{dir}/pid\"]}\n  dice: {builtin: dice}\n", binary("badserver")))
	offered(t, h, "many__tool_9999", "dice__roll")
	for _, version := range eras {
		cs := connect(t, h.URL+"/mcp", version, nil)
		names := toolNames(t, cs)
		seen := map[string]bool{}
		for _, name := range names {
			seen[name] = true
		}
		if len(names) != 10_001 || len(seen) != 10_001 {
			t.Errorf("%s: %d names, %d of them different, want 10001", version, len(names), len(seen))
		}
	}
	fine(t, h)
}

// server is what `hub servers --json` says of one.
type server struct {
	ID, State, Era, Reason string
	Tools                  int
	Attempts               int
	Stderr                 []string
}

func serverOf(h *hubproc.Hub, id string) (server, error) {
	out, stderr, code := h.Operator(context.Background(), "servers", "--json")
	if code != 0 {
		return server{}, fmt.Errorf("hub servers: exit code %d: %s", code, stderr)
	}
	var list struct{ Servers []server }
	if err := unmarshal(out, &list); err != nil {
		return server{}, err
	}
	for _, s := range list.Servers {
		if s.ID == id {
			return s, nil
		}
	}
	return server{}, fmt.Errorf("hub servers doesn't know %s: %s", id, out)
}
