package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
)

// A badFile is a file that does not load, and all that is wrong with it, each
// problem as "line field: part of the message".
type badFile struct {
	name string
	text string
	want []string
	// schema says that the JSON Schema finds something wrong too.
	schema bool
}

// ok is the least that loads; lines is it with more lines behind.
const ok = "policy: allow_all\n"

func lines(more ...string) string { return ok + strings.Join(more, "\n") + "\n" }

// server is a file with one server, whose fields start in line 4.
func server(fields ...string) string {
	return ok + "servers:\n  a:\n    " + strings.Join(fields, "\n    ") + "\n"
}

var badFiles = []badFile{
	// The file as a whole.
	{"empty", "", []string{"1 : the file is empty"}, false},
	{"only a comment", "# nothing\n", []string{"1 : the file is empty"}, false},
	{"only null", "~\n", []string{"1 : the file is empty"}, true},
	{"a list", "- policy\n", []string{"1 : wants a mapping (name: value) with at least policy and servers, this is a list"}, true},
	{"a text", "policy\n", []string{`1 : wants a mapping (name: value) with at least policy and servers, this is "policy"`}, true},
	{"two documents", ok + "---\n" + ok, []string{"2 : a second YAML document starts here"}, false},
	{"no YAML", "policy: [a\nservers: {}\n", []string{"1 : this is no valid YAML"}, false},
	{"a quote that does not end", ok + "hub: \"a\n", []string{"2 : this is no valid YAML"}, false},
	{"tabs", ok + "servers:\n\ta:\n\t\tcommand: x\n", []string{"3 : this is no valid YAML: a tab is used for indentation; YAML wants spaces"}, false},
	{"a tab behind spaces", ok + "servers:\n  a:\n  \tcommand: x\n", []string{"4 : this is no valid YAML: a tab is used"}, false},
	{"bad UTF-8", ok + "hub: \"a\xff\"\n", []string{"2 : the text is not UTF-8"}, false},
	{"UTF-16", "\xff\xfep\x00o\x00", []string{"1 : the text is not UTF-8"}, false},
	{"a control character", ok + "hub: \"a\x01\"\n", []string{"2 : this is no valid YAML: a control character is not allowed"}, false},
	{"NUL", "\x00", []string{"1 : this is no valid YAML: a control character"}, false},
	{"too large", ok + "# " + strings.Repeat("x", maxFileBytes), []string{"0 : the file is larger than 4MiB"}, false},
	{"a bomb of aliases", bomb(9, 9), []string{"1 servers.a.builtin_config*: the file has more than 500000 values, its aliases included"}, false},
	{"a bomb of merges", mergeBomb(), []string{"2 servers.a.builtin_config: the file has more than 500000 values"}, false},
	{"an alias of itself", ok + "servers:\n  a: &a\n    command: x\n    builtin_config: *a\n", []string{"3 servers.a.builtin_config.builtin_config*: values are nested deeper than 64 levels", "5 servers.a.builtin_config: is given without builtin"}, false},
	{"an unknown anchor", ok + "servers: *none\n", []string{"* : this is no valid YAML: unknown anchor 'none'"}, false},
	{"nested too deep", ok + "servers:\n  a:\n    builtin: clock\n    builtin_config: " + strings.Repeat("[", 80) + strings.Repeat("]", 80) + "\n", []string{"5 servers.a.builtin_config" + "*: values are nested deeper than 64 levels"}, false},
	{"an unknown tag", ok + "hub: !secret a\n", []string{"2 hub: the tag !secret is not known here; remove it"}, false},
	{"binary", ok + "hub: !!binary aGk=\n", []string{"2 hub: the tag !!binary is not known here"}, false},
	{"a key of a list", ok + "[a, b]: c\n", []string{"2 : a key must be a plain word"}, false},
	{"a key that is too long", ok + strings.Repeat("k", 300) + ": c\n", []string{"2 *: is a key of 300 bytes; at most 256"}, true},

	// Typos and types.
	{"no policy", "servers: {}\n", []string{"1 policy: is required; write rules (deny, ask, allow), or policy: allow_all"}, true},
	{"policy without a value", "policy:\n", []string{"1 policy: has no value; it wants allow_all, the name of a policy, or rules"}, true},
	{"a typo", lines("polices: {}"), []string{`2 polices: is not known here; did you mean "policies"?`}, true},
	{"another one's word", lines("mcpServers: {}"), []string{`2 mcpServers: is not known here; did you mean "servers"?`}, true},
	{"camelCase", lines("maxServers: 3"), []string{`2 maxServers: is not known here; did you mean "max_servers"?`}, true},
	{"capitals", lines("Hub: x"), []string{`2 Hub: is not known here; did you mean "hub"?`}, true},
	{"an unknown word", lines("zzzzzzzzz: 1"), []string{"2 zzzzzzzzz: is not known here; known are hub, listen"}, true},
	{"a key with a zero-width character", lines("hu\u200bb: x"), []string{`2 "hu\u200bb": is not known here; did you mean "hub"?`}, true},
	{"a key twice", lines("hub: a", "hub: b"), []string{"3 hub: is given twice, first in line 2; remove one"}, false},
	{"a typo at a server", server("command: x", "trustd: true"), []string{`5 servers.a.trustd: is not known here; did you mean "trusted"?`}, true},
	{"a word of another at a server", server("cmd: x"), []string{`4 servers.a.cmd: is not known here; did you mean "command"?`, "3 servers.a: says no way to reach the server"}, true},
	{"the hub's at a server", server("command: x", "max_servers: 3"), []string{"5 servers.a.max_servers: is not known here"}, true},
	{"a typo in auth", server("url: https://a/", "auth: {bearer_token: x}"), []string{`5 servers.a.auth.bearer_token: is not known here; did you mean "bearer"?`}, true},
	{"a text for a number", lines("max_servers: many"), []string{`2 max_servers: wants a whole number, this is "many"`}, true},
	{"a fraction for a number", lines("page_size: 1.5"), []string{`2 page_size: wants a whole number, this is "1.5"`}, true},
	{"a number that is too large", lines("page_size: 99999999999999999999"), []string{`2 page_size: wants a whole number`}, false},
	{"a text for true", server("command: x", "trusted: \"true\""), []string{`5 servers.a.trusted: wants true or false, this is "true"`}, true},
	{"yes for true", lines("hide_denied: yes"), []string{`2 hide_denied: wants true or false, this is "yes"`}, true},
	{"a list for a text", server("command: [x]"), []string{"4 servers.a.command: wants a text, this is a list"}, true},
	{"a text for a list", server("command: x", "args: -v"), []string{`5 servers.a.args: wants a list ([a, b], or one - item per line), this is "-v"`}, true},
	{"a list for a mapping", server("command: x", "env: [A=b]"), []string{"5 servers.a.env: wants a mapping (name: value), this is a list"}, true},
	{"null for a text", lines("hub:"), []string{"2 hub: has no value; it wants a text, or remove the line"}, true},
	{"a list of servers", lines("servers:", "  - command: x"), []string{"3 servers: wants a mapping from server id to server (github: {url: …}), this is a list"}, true},
	{"a server that is a text", lines("servers:", "  a: x"), []string{`3 servers.a: wants a mapping (name: value), this is "x"`}, true},
	{"a server that is nothing", lines("servers:", "  a:"), []string{"3 servers.a: has no value; it wants a mapping"}, true},
	{"a number JSON does not have", server("builtin: clock", "builtin_config: {a: 0x1f}"), []string{`5 servers.a.builtin_config.a: "0x1f" is no JSON number`}, false},
	{"infinity", server("builtin: clock", "builtin_config: [.inf]"), []string{`5 servers.a.builtin_config[0]: ".inf" is no JSON number`}, false},

	// Names.
	{"a hub's name", lines("hub: My Hub"), []string{`2 hub: "My Hub" is no name of a hub; write 1 to 32 of a-z, 0-9, _ and -, a letter first`}, true},
	{"a hub's name with dots", lines("hub: a.b"), []string{`2 hub: "a.b" is no name`}, true},
	{"an empty hub's name", lines("hub: ''"), []string{`2 hub: "" is no name`}, true},
	{"a server id with capitals", lines("servers:", "  GitHub: {command: x}"), []string{`3 servers.GitHub: server id "GitHub": it must start with a letter a-z`}, true},
	{"a server id with a dash", lines("servers:", "  git-hub: {command: x}"), []string{`3 servers.git-hub: server id "git-hub": '-' is not allowed, only a-z, 0-9 and _ are`}, true},
	{"a server id with __", lines("servers:", "  git__hub: {command: x}"), []string{`3 servers.git__hub: server id "git__hub": it must not contain "__"`}, true},
	{"a server id with _ at its end", lines("servers:", "  github_: {command: x}"), []string{`3 servers.github_: server id "github_": it must not end in "_"`}, true},
	{"a server id that starts with a digit", lines("servers:", "  9p: {command: x}"), []string{`3 servers.9p: server id "9p": it must start with a letter`}, true},
	{"a server id that is too long", lines("servers:", "  "+strings.Repeat("a", 33)+": {command: x}"), []string{"3 *: it has 33 characters, at most 32 are allowed"}, true},
	{"an empty server id", lines("servers:", "  '': {command: x}"), []string{`3 servers."": server id "" is empty`}, true},
	{"a server id with a zero-width character", lines("servers:", "  git\u200bhub: {command: x}"), []string{`3 servers."git\u200bhub": server id "git\u200bhub": '\u200b' is not allowed`}, true},
	{"a server id of look-alikes", lines("servers:", "  gіthub: {command: x}"), []string{`3 servers."g\u0456thub": *'і' is not allowed`}, true},
	{"a server id twice", lines("servers:", "  a: {command: x}", "  a: {command: y}"), []string{"4 servers.a: is given twice, first in line 3"}, false},
	{"an unknown naming", lines("naming: camel"), []string{`2 naming: "camel" is not known; write one of hub, mcp`}, true},
	{"an unknown audit", lines("audit: all"), []string{`2 audit: "all" is not known; write one of none, bodies`}, true},
	{"an unknown naming at a server", server("command: x", "naming: HUB"), []string{`5 servers.a.naming: "HUB" is not known`}, true},
	{"a prefix with a dot", lines("prefix: a."), []string{`2 prefix: prefix "a." has '.' at byte 1, exposed names have A-Z, a-z, 0-9, _ and - only`}, false},
	{"a prefix that is too long", lines("prefix: " + strings.Repeat("p", 51)), []string{"2 prefix: *has 51 bytes, at most 50"}, false},
	{"a prefix with a zero-width character", lines("prefix: \"a\u200b\""), []string{`2 prefix: prefix "a\u200b" has '\u200b'`}, true},
	{"a server's prefix", server("command: x", "prefix: a/"), []string{`5 servers.a.prefix: prefix "a/" has '/'`}, true},
	{"a hub's prefix that a server's naming does not take", lines("naming: mcp", "prefix: a.", "servers:", "  s:", "    command: x", "    naming: hub"), []string{`7 servers.s.naming: the hub's prefix does not go with it`}, false},
	{"a policy's name", lines("policies: {All: allow_all}"), []string{"2 policies.All: is no name of a policy"}, true},
	{"allow_all as a policy's name", lines("policies: {allow_all: {deny: [a/*]}}"), []string{"2 policies.allow_all: is no name of a policy"}, true},

	// Addresses and sizes.
	{"listen without a port", lines("listen: localhost"), []string{`2 listen: "localhost" is no address; write host:port, such as 127.0.0.1:7780`}, true},
	{"listen to the world", lines("listen: 0.0.0.0:7780"), []string{`2 listen: "0.0.0.0" is not a loopback address; whoever reaches the hub may call its tools`}, false},
	{"listen to every address", lines("listen: ':7780'"), []string{`2 listen: "" is not a loopback address`}, false},
	{"listen to a name", lines("listen: example.com:80"), []string{`2 listen: "example.com" is not a loopback address`}, false},
	{"a port that is none", lines("listen: 127.0.0.1:http"), []string{`2 listen: "127.0.0.1:http" has no port; write a number from 0 (any free port) to 65535`}, true},
	{"a port that is too large", lines("listen: 127.0.0.1:65536"), []string{"2 listen: *has no port"}, false},
	{"nats.listen to the world", lines("nats: {listen: '[::]:4222'}"), []string{`2 nats.listen: "::" is not a loopback address`}, false},
	{"a NATS URL of http", lines("nats: {url: 'http://a:4222'}"), []string{`2 nats.url: "http://a:4222" is no NATS address; write nats://host:4222`}, true},
	{"a NATS URL with a password", lines("nats: {url: 'nats://u:hunter2@a'}"), []string{"2 nats.url: has credentials in it; put them into a file"}, false},
	{"a NATS URL with a password and worse", lines("nats: {url: 'tcp://u:hunter2@a'}"), []string{`2 nats.url: "…@a" is no NATS address`}, true},
	{"two credentials for NATS", lines("nats: {url: 'nats://a', nkey: a, creds: b}"), []string{"2 nats.creds: nkey and creds are both given; keep one"}, true},
	{"credentials for no NATS", lines("nats: {creds: b}"), []string{"2 nats: has credentials but no url"}, true},
	{"listen beside a NATS URL", lines("nats: {url: 'nats://a', listen: '127.0.0.1:1'}"), []string{"2 nats.listen: is for the hub's own NATS server, but url names another"}, true},
	{"a duration without a unit", lines("timeout: 30"), []string{`2 timeout: "30" has no unit; write 30s for seconds or 30ms for milliseconds`}, true},
	{"a duration in words", lines("timeout: 30 seconds"), []string{`2 timeout: "30 seconds" is no duration; write a number with its unit, such as 30s`}, true},
	{"a duration of days", lines("drain_timeout: 1d"), []string{`2 drain_timeout: "1d" is no duration`}, true},
	{"a duration without a value", lines("timeout:"), []string{"2 timeout: has no value; it wants a value such as 30s, or remove the line"}, true},
	{"a negative duration", lines("timeout: -5s"), []string{"2 timeout: must be more than 0; leave it out for the default"}, true},
	{"no duration at all", lines("health_interval: 0"), []string{"2 health_interval: must be more than 0"}, false},
	{"a backoff without a unit", lines("restart_backoff: {initial: 5}"), []string{`2 restart_backoff.initial: "5" has no unit`}, true},
	{"a backoff upside down", lines("restart_backoff: {initial: 5m}"), []string{"2 restart_backoff: initial is 5m, more than max (30s)"}, false},
	{"a timeout above its maximum", lines("timeout: 20m"), []string{"2 timeout: is 20m, more than max_total_timeout (10m); raise max_total_timeout or lower timeout"}, false},
	{"a server's timeout above the hub's maximum", lines("max_total_timeout: 2m", "servers:", "  a:", "    command: x", "    timeout: 3m"), []string{"6 servers.a.timeout: is 3m, more than max_total_timeout (2m)"}, false},
	{"a size in words", lines("max_message_bytes: 8 megabytes"), []string{`2 max_message_bytes: "8 megabytes" is no size; write whole bytes with a unit, such as 8MiB`}, true},
	{"half a byte", lines("max_message_bytes: 1.5MiB"), []string{`2 max_message_bytes: "1.5MiB" is no size`}, true},
	{"a size that is too large", lines("max_message_bytes: 9999999999GiB"), []string{`is no size`}, false},
	{"a size that is too small", lines("max_message_bytes: 100"), []string{"2 max_message_bytes: is 100B, too little for MCP; write at least 4KiB"}, false},
	{"no servers allowed", lines("max_servers: 0"), []string{"2 max_servers: must be more than 0"}, true},
	{"a negative limit", lines("page_size: -1"), []string{"2 page_size: must be more than 0"}, true},
	{"too many servers", lines("max_servers: 1", "servers:", "  a: {builtin: clock}", "  b: {builtin: clock}"), []string{"5 servers.b: is server 2, but max_servers is 1; raise max_servers or remove a server"}, false},
	{"too many servers with a command", lines("max_stdio_servers: 1", "servers:", "  a: {command: x}", "  b: {builtin: clock}", "  c: {command: x}"), []string{"6 servers.c: brings the processes to 2 (it has 1), but max_stdio_servers is 1; raise max_stdio_servers, or remove a server or replicas"}, false},
	{"more processes than allowed", lines("max_stdio_servers: 4", "servers:", "  a: {command: x}", "  b: {command: x, replicas: 3}", "  c: {command: x, replicas: 2}"), []string{"6 servers.c: brings the processes to 6 (it has 2), but max_stdio_servers is 4"}, false},

	// Policies.
	{"an unknown policy", lines("servers:", "  a: {command: x, policy: strict}", "policies: {stricter: allow_all}"), []string{`3 servers.a.policy: there is no policy "strict" in policies; did you mean "stricter"?`}, false},
	{"a rule that is an exposed name", "policy:\n  deny: [github__delete]\n", []string{`2 policy.deny[0].tool: pattern "github__delete": patterns match "server/tool" and not exposed names; write "github/delete"`}, false},
	{"a rule without a server", "policy:\n  allow:\n    - read_*\n", []string{`3 policy.allow[0].tool: pattern "read_*": there is no "/" between server and tool`}, false},
	{"a bad glob", "policy:\n  allow:\n    - a/[x\n    - b/{x\n", []string{"3 policy.allow[0].tool: *close the class with ]", "4 policy.allow[1].tool: *close it with }"}, false},
	{"a bad condition", "policy:\n  ask:\n    - tool: a/*\n      when: args.n >\n", []string{"3 policy.ask[0].when: at column 9: "}, false},
	{"a condition with an unknown name", "policy:\n  ask: [{tool: a/*, when: arguments.n > 1}]\n", []string{"2 policy.ask[0].when: at column 1: undeclared reference to 'arguments'; there are args,"}, false},
	{"a condition that is no condition", "policy:\n  ask: [{tool: a/*, when: '3'}]\n", []string{"2 policy.ask[0].when: a condition is true or false, this is int"}, false},
	{"a rule without a pattern", "policy:\n  ask: [{when: 'true'}]\n", []string{`2 policy.ask[0].tool: *the pattern is empty`}, true},
	{"a typo in a rule", "policy:\n  ask: [{tool: a/*, wen: 'true'}]\n", []string{`2 policy.ask[0].wen: is not known here; did you mean "when"?`}, true},
	{"a typo in a policy", "policy:\n  alow: [a/*]\n", []string{`2 policy.alow: is not known here; did you mean "allow"?`}, true},
	{"a bad default", "policy:\n  default: maybe\n", []string{`2 policy.default: the default is "allow", "ask" or "deny", this is "maybe"`}, true},
	{"a policy that is a list", "policy: [a/*]\n", []string{"1 policy: wants allow_all, the name of a policy, or rules (deny, ask, allow), this is a list"}, true},
	{"a named policy of a name", lines("policies: {a: b}"), []string{`2 policies.a: wants allow_all, or rules (deny, ask, allow), this is "b"`}, true},
	{"a bad glob of a filter", lines("tools: {exclude: [a/b, a]}"), []string{`2 tools.exclude[1]: "a": there is no "/"`}, false},
	{"a typo in a filter", lines("tools: {only: [a/b]}"), []string{"2 tools.only: is not known here"}, true},

	// Servers.
	{"no way to reach a server", server("trusted: true"), []string{"3 servers.a: says no way to reach the server; write command (a program), url (Streamable HTTP) or builtin"}, true},
	{"two ways to reach a server", server("command: x", "builtin: clock"), []string{"5 servers.a.builtin: stands beside command or url; a server has either builtin, or command, url or both"}, true},
	{"an empty command", server("command: ''"), []string{"4 servers.a.command: is empty"}, true},
	{"an empty url", server("url: ''"), []string{"4 servers.a.url: is empty"}, true},
	{"arguments without a command", server("url: https://a/", "args: [x]"), []string{"5 servers.a.args: is given without command; add command or remove it"}, true},
	{"headers without a url", server("command: x", "headers: {A: b}"), []string{"5 servers.a.headers: is given without url"}, true},
	{"configuration of no builtin", server("command: x", "builtin_config: {}"), []string{"5 servers.a.builtin_config: is given without builtin"}, true},
	{"a command line", server("command: npx -y thing"), []string{`4 servers.a.command: "npx -y thing" has spaces in it and no shell takes it apart; write command: npx and args: [-y, thing]`}, false},
	{"NUL in a command", server(`command: "a\0b"`), []string{"4 servers.a.command: has a NUL character"}, false},
	{"a bad environment variable", server("command: x", "env: {'A=B': c}"), []string{"5 servers.a.env.A=B: is no name of an environment variable"}, true},
	{"a secret written out", server("command: x", "env: {GITHUB_TOKEN: abc}"), []string{"5 servers.a.env.GITHUB_TOKEN: is written out here; keep it elsewhere and refer to it with ${env:NAME} or ${file:PATH}"}, false},
	{"a bad reference", server("command: x", "env: {A: '${HOME}'}"), []string{"5 servers.a.env.A: ${HOME} is no reference; write ${env:NAME} or ${file:PATH}, or $${ for a plain ${"}, false},
	{"a reference that is not closed", server("command: x", "env: {A: '${env:HOME'}"), []string{"5 servers.a.env.A: a reference is not closed"}, false},
	{"a reference to nothing", server("command: x", "env: {A: '${file:}'}"), []string{"5 servers.a.env.A: ${file:} names nothing"}, false},
	{"references where nobody resolves them", ok + "hub: '${env:HUB}'\nlisten: '${env:ADDR}'\nstate_dir: /s/${env:USER}\nnats: {url: 'nats://${env:HOST}', creds: '${file:/c}'}\nprefix: ${env:P}\nservers:\n  a:\n    command: ${env:HOME}/bin/x\n    args: [--token, 'x${env:T}', '--key=${file:k}']\n    cwd: ${env:HOME}\n    url: http://localhost/${env:PATH}\n  b:\n    url: ${file:url}\n    era: ${env:ERA}\n    policy: ${env:POLICY}\n  c:\n    builtin: ${env:B}\n    builtin_config:\n      deep: [{key: '${file:k}'}]\n    tools: {include: ['c/${env:T}']}\n", []string{
		`2 hub: has the reference "${env:HUB}", but references are resolved in env, headers and auth only; write the value itself, or give the server a secret by one of these`,
		"3 listen: has the reference", "4 state_dir: has the reference", "5 nats.url: has the reference", "5 nats.creds: has the reference", "6 prefix: has the reference",
		"9 servers.a.command: has the reference", `10 servers.a.args[1]: has the reference "${env:T}"`, `10 servers.a.args[2]: has the reference "${file:k}"`,
		"11 servers.a.cwd: has the reference", "12 servers.a.url: has the reference",
		"14 servers.b.url: has the reference", "15 servers.b.era: has the reference", "16 servers.b.policy: has the reference",
		"18 servers.c.builtin: has the reference", "20 servers.c.builtin_config.deep[0].key: has the reference", "21 servers.c.tools.include[0]: has the reference",
	}, true},
	{"a reference in a rule", "policy:\n  allow:\n    - ${env:S}/*\n    - {tool: '${env:S}/*'}\n  default: ${env:D}\npolicies: {a: {deny: ['${file:x}']}}\n", []string{
		"3 policy.allow[0]: has the reference", "4 policy.allow[1].tool: has the reference", "5 policy.default: has the reference", "6 policies.a.deny[0]: has the reference",
	}, true},
	{"no replicas", server("command: x", "replicas: 0"), []string{"5 servers.a.replicas: must be from 1 to 64"}, true},
	{"too many replicas", server("command: x", "replicas: 65"), []string{"5 servers.a.replicas: must be from 1 to 64"}, true},
	{"replicas of one url", server("command: x", "url: http://localhost:1/", "replicas: 2"), []string{"6 servers.a.replicas: several processes cannot all serve one url"}, false},
	{"a url without a scheme", server("url: mcp.example.com/mcp"), []string{`4 servers.a.url: "mcp.example.com/mcp" is no absolute http or https URL, such as https://mcp.example.com/mcp`}, true},
	{"a url of ftp", server("url: ftp://a/"), []string{`4 servers.a.url: "ftp://a/" is no absolute http or https URL`}, true},
	{"a url without a host", server("url: 'http:///mcp'"), []string{"4 servers.a.url: *no absolute"}, true},
	{"a url that is none", server("url: 'http://[::1'"), []string{"4 servers.a.url: *no absolute"}, false},
	{"a url with a port that is none", server("url: 'http://a:99999/'"), []string{`4 servers.a.url: "99999" is no port`}, false},
	{"a url with a password", server("url: https://u:hunter2@a/"), []string{"4 servers.a.url: has a user name or password in it; write auth"}, false},
	{"a bad url with a password", server("url: ftp://u:hunter2@a/"), []string{`4 servers.a.url: "…@a/" is no absolute`}, true},
	{"a bad url with a key", server("url: ftp://a/?key=hunter2"), []string{`4 servers.a.url: "ftp://a/?…" is no absolute`}, true},
	{"a url with a key", server("url: https://a/mcp?q=1&api_key=hunter2"), []string{`4 servers.a.url: has a credential in it, the parameter "api_key"; send it in headers (X-Api-Key: ${env:NAME}) or as auth: {bearer: ${env:NAME}}`}, false},
	{"a url with keys in all spellings", server("url: 'https://a/?key=hunter2&accessToken=hunter2;X-Amz-Signature=hunter2&APIKEY=hunter2&s%69g=hunter2&client_secret=hunter2&password=hunter2&token=hunter2&subscriptionKey=hunter2'"), []string{
		`the parameter "key"`, `the parameter "accessToken"`, `the parameter "X-Amz-Signature"`, `the parameter "APIKEY"`, `the parameter "sig"`, `the parameter "client_secret"`, `the parameter "password"`, `the parameter "token"`, `the parameter "subscriptionKey"`,
	}, false},
	{"a url with a fragment", server("url: https://a/#b"), []string{"4 servers.a.url: has a fragment (#…)"}, false},
	{"TLS that nobody uses", server("url: http://localhost/", "insecure_skip_tls_verify: true"), []string{"5 servers.a.insecure_skip_tls_verify: means nothing for an http URL"}, false},
	{"a token over plain http", server("url: http://a/", "auth: {bearer: '${env:T}'}"), []string{"5 servers.a.auth.bearer: would be sent over plain http to a; use https"}, false},
	{"a token written out", server("url: https://a/", "auth: {bearer: hunter2}"), []string{"5 servers.a.auth.bearer: is written out here"}, false},
	{"auth without a token", server("url: https://a/", "auth: {}"), []string{"5 servers.a.auth.bearer: is missing; write bearer: ${env:NAME} or ${file:PATH}"}, true},
	{"a header that is none", server("url: https://a/", "headers: {'a b': c}"), []string{`5 servers.a.headers."a b": is no name of an HTTP header`}, true},
	{"a header of the transport", server("url: https://a/", "headers: {Mcp-Session-Id: x, Host: b}"), []string{"5 servers.a.headers.Host: is set by the connection itself", "5 servers.a.headers.Mcp-Session-Id: is set by the connection itself"}, false},
	{"headers that would never go through", server("url: https://a/", "headers: {Content-Language: de, accept-language: de, Idempotency-Key: x, Origin: 'https://b'}"), []string{
		"5 servers.a.headers.Content-Language: is set by the connection itself", "5 servers.a.headers.accept-language: is set by", "5 servers.a.headers.Idempotency-Key: is set by", "5 servers.a.headers.Origin: is set by",
	}, false},
	{"an Authorization header", server("url: https://a/", "headers: {authorization: '${env:T}'}"), []string{"5 servers.a.headers.authorization: is set by the connection itself and cannot be configured; credentials belong in auth; write auth: {bearer: ${env:NAME}}"}, false},
	{"a header twice", server("url: https://a/", "headers: {X-A: b, x-a: c}"), []string{"5 servers.a.headers.x-a: is the same header as X-A; keep one"}, false},
	{"a header with a line break", server("url: https://a/", `headers: {X-A: "b\nc"}`), []string{"5 servers.a.headers.X-A: has a character that no header may have"}, false},
	{"a key written out in a header", server("url: https://a/", "headers: {X-Api-Key: hunter2}"), []string{"5 servers.a.headers.X-Api-Key: is written out here"}, false},
	{"an unknown era", server("command: x", "era: old"), []string{`5 servers.a.era: "old" is not known; write one of auto, legacy, modern`}, true},

	// Many at once: all are listed, in the order of the lines.
	{"many problems", "polcy: x\nhub: A\nlisten: x\ntimeout: 5\nservers:\n  A:\n    command: x\n    era: x\n  b: {}\n", []string{
		"1 policy: is required", `1 polcy: is not known here; did you mean "policy"?`, "2 hub: ", "3 listen: ", "4 timeout: ", "6 servers.A: ", "8 servers.A.era: ", "9 servers.b: says no way",
	}, true},
}

// bomb is a file whose aliases stand for width^depth values.
func bomb(depth, width int) string {
	var b strings.Builder
	b.WriteString("x-0: &x0 [a]\n")
	for i := range depth {
		fmt.Fprintf(&b, "x-%d: &x%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*x%d,", i), width), ","))
	}
	fmt.Fprintf(&b, "servers:\n  a:\n    builtin: clock\n    builtin_config: *x%d\n", depth)
	return b.String()
}

// mergeBomb merges one large mapping many times.
func mergeBomb() string {
	var b strings.Builder
	b.WriteString(ok + "x-0: &x {")
	for i := range 10_000 {
		fmt.Fprintf(&b, "k%d: 1, ", i)
	}
	b.WriteString("}\nservers:\n  a:\n    builtin: clock\n    builtin_config: {<<: [" + strings.Repeat("*x, ", 10_000) + "]}\n")
	return b.String()
}

// matches compares a problem with "line field: part of the message", where *
// stands for anything.
func (w badFile) matches(want string, p Problem) bool {
	got := fmt.Sprintf("%d %s: %s", p.Line, p.Field, p.Message)
	for i, part := range strings.Split(want, "*") {
		at := strings.Index(got, part)
		if at < 0 || i == 0 && at > 0 && strings.ContainsAny(want[:min(1, len(want))], "0123456789") {
			return false
		}
		got = got[at+len(part):]
	}
	return true
}

func TestBadFiles(t *testing.T) { // C1
	t.Parallel()
	if len(badFiles) < 60 {
		t.Errorf("%d files only", len(badFiles))
	}
	names := map[string]bool{}
	for _, k := range badFiles {
		if names[k.name] {
			t.Errorf("%s is there twice", k.name)
		}
		names[k.name] = true
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			_, err := Parse("hub.yaml", []byte(k.text))
			e, isError := errors.AsType[*Error](err)
			if !isError {
				t.Fatalf("%v", err)
			}
			if d := time.Since(start); d > 20*time.Second {
				t.Errorf("it took %s to see that", d)
			}
			if len(e.Problems) != len(k.want) {
				t.Errorf("%d problems, want %d:\n%s", len(e.Problems), len(k.want), e)
			}
			for _, want := range k.want {
				found := false
				for _, p := range e.Problems {
					found = found || k.matches(want, p)
				}
				if !found {
					t.Errorf("not found: %s\nin\n%.2000s", want, e)
				}
			}
			last := 0
			for _, p := range e.Problems {
				if p.File != "hub.yaml" || p.Message == "" || p.Line < last || strings.ContainsAny(p.String(), "\n\u200b") {
					t.Errorf("%+v", p)
				}
				last = p.Line
			}
			if strings.Contains(e.Error(), "hunter2") {
				t.Errorf("a password is shown: %s", e)
			}
		})
	}
}

func TestTooManyProblems(t *testing.T) {
	t.Parallel()
	_, err := Parse("hub.yaml", []byte(ok+strings.Repeat("- x\n", 0)+func() string {
		var b strings.Builder
		for i := range 5000 {
			fmt.Fprintf(&b, "k%d: 1\n", i)
		}
		return b.String()
	}()))
	e, isError := errors.AsType[*Error](err)
	if !isError || len(e.Problems) != maxProblems+1 {
		t.Fatalf("%.200v", err)
	}
	if got := e.Problems[maxProblems].String(); got != "hub.yaml: there are more than 1000 problems; the rest is not shown" {
		t.Error(got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	for _, k := range badFiles {
		if len(k.text) < 4096 {
			f.Add([]byte(k.text))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("/d/hub.yaml", data)
		if err != nil {
			e, ok := errors.AsType[*Error](err)
			if !ok || len(e.Problems) == 0 {
				t.Fatalf("%v", err)
			}
			for _, p := range e.Problems {
				if p.Message == "" || p.Line < 0 || strings.Count(p.String(), "\n") > 0 {
					t.Errorf("%+v", p)
				}
			}
			return
		}
		// What loads can be used: stored, read again, and made into what runs.
		for _, s := range file.Servers {
			if _, err := file.Resolve(s.Effective(file.Settings).Policy); err != nil {
				t.Error(err)
			}
			data, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			var again Server
			if err := json.Unmarshal(data, &again, json.RejectUnknownMembers(true)); err != nil {
				t.Errorf("%s: %v", data, err)
			}
		}
		if data, err := json.Marshal(file.Settings); err != nil {
			t.Errorf("%s %v", data, err)
		}
	})
}
