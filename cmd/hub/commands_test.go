package main

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
	"toolhub/schema"
)

// Arguments are written for policy explain as they are for call: a value is text
// where the tool wants text, also of a tool that policy hides from every list.
func TestExplainTakesArgumentsAsCallDoes(t *testing.T) {
	t.Parallel()
	h := start(t, t.TempDir(), configuration(`policy:
  deny: [testbed/fail_rpc]
  ask: [{tool: testbed/fail, when: 'args.message == "7"'}]
  allow: [{tool: testbed/slow, when: 'args.ms == 7'}, testbed/fail]`, "servers:", "  testbed: {builtin: testbed}"))
	h.eventually("testbed__fail", "tools")
	for args, want := range map[string]string{
		"testbed/fail message=7":              "ask: ",
		`testbed/fail {"message":"7"}`:        "ask: ",
		"testbed/fail message:=7":             "allow: ",
		"testbed/fail message=8":              "allow: ",
		"testbed/fail":                        "ask: ",
		"testbed/slow ms=7 steps=1":           "allow: ",
		"testbed/slow ms=8":                   "deny: ",
		"testbed/fail_rpc message=7 code=7":   "deny: ",
		"testbed/nothing message=7 code:=[7]": "deny: ",
	} {
		code, out, errs := h.ask(append([]string{"policy", "explain"}, strings.Fields(args)...)...)
		if code != 0 || !strings.HasPrefix(out, want) {
			t.Errorf("policy explain %s: exit code %d, want %s\n%s%s", args, code, want, out, errs)
		}
	}
	_, out, _ := h.ask("policy", "explain", "--json", "testbed/fail_rpc")
	if got := mcp.Field(mcp.Field(jsontext.Value(out), "input_schema"), "properties"); mcp.Field(got, "code") == nil {
		t.Errorf("no input schema of a hidden tool: %s", out)
	}
}

// All commands against one hub, each by its exit code and by what it prints.
func TestCommands(t *testing.T) { // R7, docs/decisions/0007
	t.Parallel()
	h := start(t, t.TempDir(), configuration(everything,
		"servers:", "  testbed: {builtin: testbed}", "  dice: {builtin: dice}", "  broken: {command: /nonexistent/program}"))
	h.eventually("dice__roll", "tools")
	h.eventually("testbed__echo", "tools")
	h.eventually("failed", "servers")
	for _, k := range []struct {
		args string
		code int
		out  string
		errs string
	}{
		{"servers", 0, "broken", ""},
		{"tools", 0, "testbed__echo", ""},
		{"tools --server dice", 0, "dice__roll", ""},
		{"tools --server nobody", 7, "", "nobody"},
		{"tools --format anthropic", 0, `"input_schema":`, ""},
		{"tools --format openai", 0, `"type":"function"`, ""},
		{"tools --format gemini", 0, `[{"functionDeclarations":`, ""},
		{"tools --format cobol", 2, "", "anthropic"},
		{`call testbed__echo {"text":"hi"}`, 0, "hi\n", ""},
		{"call testbed__echo text=7", 0, "7\n", ""},
		{"call testbed__echo text:=7", 5, "", "text"},
		{"call testbed__echo text=a text=b", 2, "", "text is given twice"},
		{"call testbed__echo text", 2, "", "neither key=value nor a JSON object"},
		{"call testbed__echo [1]", 2, "", ""},
		{"call --json dice__roll", 0, `"content":[`, ""},
		{"call testbed__nothing", 7, "", "hub tools lists what there is"},
		{"call testbed__fail_rpc", 3, "", "the policy denies every call of testbed/fail_rpc"},
		{"call testbed__ask", 3, "", "hub policy explain"},
		{"call testbed__hang --timeout 200ms", 6, "", "--timeout"},
		{"call testbed__hang --timeout=-1s", 2, "", "--timeout must be more than 0"},
		{"call testbed__fail", 5, "", "the tool reported an error:"},
		{"resources", 0, "", "there are none"},
		{"resources --json", 0, `{"resources":[]}`, ""},
		{"resources --templates --server nobody", 7, "", "nobody"},
		{"prompts", 0, "", "there are none"},
		{"read x:nothing", 7, "", "there is no resource"},
		{"read x:nothing --timeout=-1s", 2, "", "--timeout must be more than 0"},
		{"policy explain testbed/fail_rpc", 0, "by      deny[0] testbed/fail_rpc", ""},
		{"policy explain testbed/ask {}", 0, "ask: ", ""},
		{"policy explain --json dice/roll", 0, `"effect":"allow"`, ""},
		{"policy explain nobody/x", 7, "", "nobody"},
		{"policy explain dice", 2, "", "server/tool"},
		{"policy explain dice/roll [1]", 2, "", "neither key=value nor a JSON object"},
		{"policy explain dice/roll {1}", 2, "", "no JSON object"},
		{"policy explain testbed/fail_rpc code=1 code=2", 2, "", "code is given twice"},
		{"policy explain nobody/x a=1", 7, "", "nobody"},
		{"events", 0, "server.dice.up", ""},
		{"events --since 1h server.broken.failed", 0, "attempt=", ""},
		{"events --since=-1h", 2, "", "--since must be more than 0"},
		{"events --json policy", 0, `"kind":"policy"`, ""},
		{"events a.b.c.d", 2, "", "more than three parts"},
		{"servers --hub other", 2, "", `is that of hub "hub", not "other"`},
		{"servers --nkey x", 2, "", "--nkey and --creds go with --nats"},
		{"servers --nats nats://127.0.0.1:1", 4, "", "couldn't reach hub"},
		{"servers --nats nats://127.0.0.1:1 --hub A", 2, "", "no name of a hub"},
		{"nonsense", 2, "", "nonsense"},
		{"up", 2, "", "<file>"},
	} {
		args := strings.Fields(k.args)
		code, out, errs := h.ask(args...)
		if code != k.code || !strings.Contains(out, k.out) || !strings.Contains(errs, k.errs) {
			t.Errorf("%s: exit code %d, want %d, %q and %q\n%s%s", fmtArgs(args), code, k.code, k.out, k.errs, out, errs)
		}
		if k.code != 0 && out != "" {
			t.Errorf("%s: an error on stdout: %s", fmtArgs(args), out)
		}
		for _, arg := range args {
			if arg != "--json" && arg != "--format" || k.code != 0 {
				continue
			}
			for line := range strings.Lines(out) {
				if v := jsontext.Value(line); !v.IsValid() {
					t.Errorf("%s: no JSON: %s", fmtArgs(args), line)
				}
			}
		}
	}
	h.stop()
}

func TestConfigCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := dir + "/hub.yaml"
	write(t, dir, configuration(everything, "servers: {a: {builtin: clock}}"))
	if code, out, _ := hub("config", "check", path); code != 0 || !strings.HasSuffix(out, "hub hub with 1 server holds\n") {
		t.Errorf("%d %s", code, out)
	}
	if code, out, _ := hub("config", "check", "--json", path); code != 0 || out != "[]\n" {
		t.Errorf("%d %s", code, out)
	}
	write(t, dir, configuration("polcy: x", "servers: {a: {builtin: clock}}"))
	if code, out, errs := hub("config", "check", path); code != exitUsage || out != "" || strings.Count(errs, "\n") != 2 || !strings.Contains(errs, path+":3: polcy: ") {
		t.Errorf("%d %s%s", code, out, errs)
	}
	if code, out, _ := hub("config", "check", "--json", path); code != exitUsage || !strings.Contains(out, `"field":"polcy"`) || !strings.Contains(out, `"line":3`) {
		t.Errorf("%d %s", code, out)
	}
	if code, _, errs := hub("config", "check", dir+"/none.yaml"); code != exitUsage || !strings.Contains(errs, "no such file") {
		t.Errorf("%d %s", code, errs)
	}
	if code, out, _ := hub("config", "schema"); code != 0 || out != string(schema.Hub) {
		t.Errorf("%d %.200s", code, out)
	}
	if code, out, _ := hub("--help"); code != 0 || !strings.Contains(out, "Exit codes:") || !strings.Contains(out, "bench") {
		t.Errorf("%d %s", code, out)
	}
}

func TestPairArguments(t *testing.T) {
	t.Parallel()
	schema := jsontext.Value(`{"properties":{"s":{"type":"string"},"n":{"type":"integer"},"a":{"type":"array"},"any":{}}}`)
	for args, want := range map[string]string{
		"s=7":                       `{"s":"7"}`,
		"s=":                        `{"s":""}`,
		"s=a=b":                     `{"s":"a=b"}`,
		"n=7":                       `{"n":7}`,
		"n=9007199254740993":        `{"n":9007199254740993}`,
		"n=x":                       `{"n":"x"}`,
		"a=[1,2]":                   `{"a":[1,2]}`,
		"any=true":                  `{"any":true}`,
		"any=True":                  `{"any":"True"}`,
		"s:=7":                      `{"s":7}`,
		"unknown=null":              `{"unknown":null}`,
		`s={"a":1} n=1 any={"a":1}`: `{"s":"{\"a\":1}","n":1,"any":{"a":1}}`,
	} {
		got, err := pairArguments(strings.Fields(args), schema)
		if err != nil || string(got) != want {
			t.Errorf("%s: %s %v, want %s", args, got, err, want)
		}
	}
	for args, says := range map[string]string{"s": "neither", "=7": "neither", "s:=x": "write s=x for text", "s=1 s=2": "twice", "s=1 s:=2": "twice", ":=1": "neither"} {
		if got, err := pairArguments(strings.Fields(args), schema); err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %s %v", args, got, err)
		}
	}
	list := jsontext.Value(`{"tools":[{"name":"b"},{"name":"a","inputSchema":{"type":"object"}}]}`)
	if got := schemaOf(list, "a"); string(got) != `{"type":"object"}` || schemaOf(list, "c") != nil || schemaOf(jsontext.Value(`{}`), "a") != nil {
		t.Errorf("%s", got)
	}
}

func TestDescribe(t *testing.T) {
	t.Parallel()
	for block, want := range map[string]string{
		`{"type":"text","text":"a\nb"}`:                                    "a\nb",
		`{"type":"image","mimeType":"image/png","data":"aGVsbG8="}`:        "[image, image/png, 6 bytes; --json has it]",
		`{"type":"resource_link","uri":"file:///a"}`:                       "[resource file:///a]",
		`{"type":"resource","resource":{"uri":"file:///a","text":"t"}}`:    "t",
		`{"type":"resource","resource":{"uri":"file:///a","blob":"AA=="}}`: "[resource file:///a; --json has it]",
		`{"type":"hologram"}`:                                              "[hologram; --json has it]",
	} {
		if got := describe(jsontext.Value(block)); got != want {
			t.Errorf("%s: %s", block, got)
		}
	}
}

func TestShowResult(t *testing.T) {
	t.Parallel()
	for _, k := range []struct {
		result    string
		code      int
		out, errs string
	}{
		{`{"content":[{"type":"text","text":"a"},{"type":"text","text":"b\n"}]}`, 0, "a\nb\n", ""},
		{`{"content":[],"structuredContent":{"n":1}}`, 0, "{\"n\":1}\n", ""},
		{`{"content":[{"type":"text","text":"no"}],"isError":true}`, 5, "", "the tool reported an error:\nno\n"},
		{`{"resultType":"input_required","inputRequests":{}}`, 2, "", ""},
		{`{"content":[{"type":"text","text":"unknown"}],"isError":true,"_meta":{"toolhub/fault":{"kind":"not_found","reason":"unknown_tool","message":"m"}}}`, 7, "", ""},
		{`{"content":7}`, 1, "", ""},
	} {
		c, out, errs := newTestConsole(false)
		err := (&callCmd{}).show(c, jsontext.Value(k.result))
		if exitCode(err) != k.code || out.String() != k.out || errs.String() != k.errs {
			t.Errorf("%s: %v, %q %q", k.result, err, out, errs)
		}
	}
	// A terminal is not commanded by what a tool says.
	c, out, _ := newTestConsole(true)
	if err := (&callCmd{}).show(c, jsontext.Value(`{"content":[{"type":"text","text":"\u001b[2Ja\u202eb\tc\nd"}]}`)); err != nil || out.String() != "\uFFFD[2Ja\uFFFDb\tc\nd\n" {
		t.Errorf("%v %q", err, out)
	}
	if f := mcp.NewFault(mcp.KindDenied, "policy", "no"); exitCode(f) != exitDenied {
		t.Error(exitCode(f))
	}
}
