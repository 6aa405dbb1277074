package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"toolhub/internal/catalog"
	"toolhub/internal/policy"
)

func parse(t testing.TB, text string) *File {
	t.Helper()
	f, err := Parse("/etc/toolhub/hub.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// full has every field that a file can have.
const full = `
x-common: &common
  timeout: 20s
hub: work
listen: "127.0.0.1:7000"
state_dir: state
nats:
  listen: "[::1]:4222"
policy: careful
policies:
  careful:
    deny: ["*/delete_*"]
    ask:
      - tool: "*/*"
        when: annotations.openWorld && tainted()
    allow: [fs/read_*]
    default: deny
  open: allow_all
prefix: w_
max_servers: 5
max_catalog_items: 500
max_stdio_servers: 4
page_size: 50
drain_timeout: 1m30s
naming: hub
audit: bodies
hide_denied: false
tools: {include: ["*/*"], exclude: [fs/write_*]}
timeout: 2m
max_total_timeout: 1h
request_timeout: 10s
listen_idle_timeout: 3m
startup_timeout: 2m
probe_timeout: 1s
stdio_queue_timeout: 5s
refetch_interval: 500ms
health_interval: 15s
breaker_threshold: 4
max_message_bytes: 16 MiB
restart_backoff: {initial: 100ms, max: 1s, reset_after: 10s}
servers:
  fs:
    <<: *common
    command: ./bin/fs
    args: [-v, 7, true]
    env: {ROOT: "${file:root.txt}", PORT: 8080, PLAIN: "a$${b}"}
    cwd: data
    replicas: 3
    era: legacy
    prefix: ""
    trusted: true
    policy: open
  web:
    url: https://mcp.example.com/mcp?x=1
    headers: {X-Team: red, X-Api-Key: "${env:KEY}"}
    auth: {bearer: "${file:/run/token}"}
    insecure_skip_tls_verify: true
    naming: mcp
    prefix: w.
    uris: original
    policy:
      allow: [web/search]
      default: ask
    audit: none
  clock:
    builtin: clock
    builtin_config: {zone: UTC, big: 9007199254740993, list: [1, null, true, 1.5, "x"]}
`

func TestFullFile(t *testing.T) {
	t.Parallel()
	f := parse(t, full)
	hide, empty, prefix := false, "", "w."
	rule := func(line int, tool, when string) policy.Rule {
		return policy.Rule{Tool: tool, When: when, File: "/etc/toolhub/hub.yaml", Line: line}
	}
	want := &File{
		name: f.name, lines: f.lines,
		Hub: "work", Listen: "127.0.0.1:7000", StateDir: "/etc/toolhub/state", NATS: NATS{Listen: "[::1]:4222"},
		Settings: Settings{
			Policy: &Policy{Name: "careful"},
			Policies: map[string]policy.Spec{
				"careful": {
					Deny: []policy.Rule{rule(12, "*/delete_*", "")}, Ask: []policy.Rule{rule(14, "*/*", "annotations.openWorld && tainted()")},
					Allow: []policy.Rule{rule(16, "fs/read_*", "")}, Default: policy.Deny,
				},
				"open": {AllowAll: true},
			},
			Prefix: "w_", MaxServers: 5, MaxCatalogItems: 500, MaxStdioServers: 4, PageSize: 50, DrainTimeout: Duration(90 * time.Second),
			Governance: Governance{
				Audit: AuditBodies, Naming: catalog.NamingHub, HideDenied: &hide, Tools: &catalog.Filter{Include: []string{"*/*"}, Exclude: []string{"fs/write_*"}},
				Timeout: Duration(2 * time.Minute), MaxTotalTimeout: Duration(time.Hour), RequestTimeout: Duration(10 * time.Second),
				ListenIdleTimeout: Duration(3 * time.Minute), StartupTimeout: Duration(2 * time.Minute), ProbeTimeout: Duration(time.Second),
				StdioQueueTimeout: Duration(5 * time.Second), RefetchInterval: Duration(500 * time.Millisecond), HealthInterval: Duration(15 * time.Second),
				BreakerThreshold: 4, MaxMessageBytes: 16 << 20,
				RestartBackoff: Backoff{Initial: Duration(100 * time.Millisecond), Max: Duration(time.Second), ResetAfter: Duration(10 * time.Second)},
			},
		},
		Servers: []Server{
			{
				ID: "fs", Command: "/etc/toolhub/bin/fs", Args: []string{"-v", "7", "true"}, Cwd: "/etc/toolhub/data", Replicas: 3, Era: EraLegacy,
				Env:    map[string]Ref{"ROOT": "${file:/etc/toolhub/root.txt}", "PORT": "8080", "PLAIN": "a$${b}"},
				Prefix: &empty, Trusted: true, Policy: &Policy{Name: "open"}, Governance: Governance{Timeout: Duration(20 * time.Second)},
			},
			{
				ID: "web", URL: "https://mcp.example.com/mcp?x=1", Headers: map[string]Ref{"X-Team": "red", "X-Api-Key": "${env:KEY}"},
				Auth: &Auth{Bearer: "${file:/run/token}"}, InsecureSkipTLSVerify: true, Prefix: &prefix, URIs: "original",
				Policy:     &Policy{Spec: policy.Spec{Allow: []policy.Rule{rule(62, "web/search", "")}, Default: policy.Ask}},
				Governance: Governance{Naming: catalog.NamingMCP, Audit: AuditNone},
			},
			{ID: "clock", Builtin: "clock", BuiltinConfig: []byte(`{"zone":"UTC","big":9007199254740993,"list":[1,null,true,1.5,"x"]}`)},
		},
	}
	if !reflect.DeepEqual(f, want) {
		got, _ := json.Marshal(f, json.Deterministic(true))
		wanted, _ := json.Marshal(want, json.Deterministic(true))
		t.Errorf("got  %s\nwant %s", got, wanted)
	}
	// What a hub stores of it comes back the same.
	for _, v := range []any{&f.Settings, &f.Servers} {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		again := reflect.New(reflect.TypeOf(v).Elem())
		if err := json.Unmarshal(data, again.Interface(), json.RejectUnknownMembers(true)); err != nil || !reflect.DeepEqual(again.Interface(), v) {
			t.Errorf("%v: %s became %+v", err, data, again)
		}
	}
}

// The fields that full does not set.
func TestFullFileIsFull(t *testing.T) {
	t.Parallel()
	f := parse(t, full)
	var missing []string
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		if v.Kind() == reflect.Pointer && !v.IsNil() {
			if v.Elem().Kind() != reflect.Struct {
				return // false is a value too
			}
			v = v.Elem()
		}
		switch {
		case v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[Policy]() && v.Type() != reflect.TypeFor[catalog.Filter]():
			for _, field := range fieldsOf(v.Type()) {
				walk(join(path, field.name), v.FieldByIndex(field.index))
			}
		case v.IsZero():
			missing = append(missing, path)
		}
	}
	servers := f.Servers
	f.Servers = nil
	walk("", reflect.ValueOf(f))
	if got := strings.Join(missing, " "); got != "nats.url nats.nkey nats.creds servers" {
		t.Errorf("not set: %s", got)
	}
	for _, field := range fieldsOf(reflect.TypeFor[Server]()) {
		set := field.index[0] == reflect.TypeFor[Server]().NumField()-1 // Governance: set at the hub
		for i := range servers {
			set = set || !reflect.ValueOf(servers[i]).FieldByIndex(field.index).IsZero()
		}
		if !set {
			t.Errorf("no server sets %s", field.name)
		}
	}
}

func TestDefaults(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	f := parse(t, "policy: allow_all\nservers:\n  notes:\n    command: notes\n")
	if f.Hub != "hub" || f.Listen != "127.0.0.1:7780" || f.NATS.Listen != "127.0.0.1:0" || f.StateDir != filepath.Join(state, "toolhub", "hub") {
		t.Errorf("%+v", f)
	}
	if s := f.Servers[0]; s.Cwd != "/etc/toolhub" || s.Command != "notes" {
		t.Errorf("a command without a / is looked up in PATH and runs in the file's folder: %+v", s)
	}
	s := f.WithDefaults()
	if s.MaxServers != 32 || s.MaxCatalogItems != 1000 || s.MaxStdioServers != 16 || s.Naming != catalog.NamingHub || s.Audit != AuditNone || !*s.HideDenied {
		t.Errorf("%+v", s)
	}
	data, err := json.Marshal(f.Settings)
	if err != nil || string(data) != `{"policy":"allow_all"}` {
		t.Errorf("what is left out is not stored: %s %v", data, err)
	}
	with := parse(t, "policy: allow_all\nnats: {url: 'nats://a:4222, tls://b', creds: n.creds}\n")
	if with.NATS.Listen != "" || with.NATS.Creds != "/etc/toolhub/n.creds" {
		t.Errorf("%+v", with.NATS)
	}
}

// What is refused elsewhere and is right here.
func TestGoodFiles(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a server's prefix in place of a hub's that its naming does not take": lines("naming: mcp", "prefix: a.", "servers:", "  s: {command: x, naming: hub, prefix: ''}"),
		"a shell's own variables":         server("command: sh", `args: [-c, 'echo ${HOME} ${env:-x} ${file:=y} $${a}']`),
		"a condition on a reference":      "policy:\n  deny: [{tool: a/*, when: 'args.x == \"${env:SECRET}\"'}]\n",
		"parameters that are none":        server("url: https://a/?keyword=x&author=y&max_tokens=3&monkey=z&token=&design=w"),
		"headers that go through":         server("url: https://a/", "headers: {User-Agent: x, X-Team: y, Cookie: '${env:C}'}"),
		"a reference where it is at home": server("url: https://a/?v=1", "headers: {X-Api-Key: '${file:k}'}", "auth: {bearer: '${env:T}'}"),
	} {
		if _, err := Parse("hub.yaml", []byte(text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEffective(t *testing.T) { // C5
	t.Parallel()
	f := parse(t, full)
	fs, web, clock := f.Servers[0].Effective(f.Settings), f.Servers[1].Effective(f.Settings), f.Servers[2].Effective(f.Settings)
	if fs.Timeout != Duration(20*time.Second) || web.Timeout != Duration(2*time.Minute) {
		t.Errorf("timeout: %s %s", fs.Timeout, web.Timeout)
	}
	if fs.MaxTotalTimeout != Duration(time.Hour) || fs.RestartBackoff.ResetAfter != Duration(10*time.Second) || *fs.HideDenied {
		t.Errorf("%+v", fs.Governance)
	}
	if fs.Naming != catalog.NamingHub || web.Naming != catalog.NamingMCP {
		t.Errorf("naming: %s %s", fs.Naming, web.Naming)
	}
	if fs.Policy.Name != "open" || web.Policy.Spec.Default != policy.Ask || clock.Policy.Name != "careful" {
		t.Errorf("policy: %+v %+v %+v", fs.Policy, web.Policy, clock.Policy)
	}
	if fs.Era != EraLegacy || web.Era != EraAuto || fs.Replicas != 3 || web.Replicas != 1 {
		t.Errorf("%s %s %d %d", fs.Era, web.Era, fs.Replicas, web.Replicas)
	}
	if fs.Kind() != KindStdio || web.Kind() != KindHTTP || clock.Kind() != KindBuiltin || (&Server{Command: "x", URL: "http://localhost"}).Kind() != KindHTTP {
		t.Error("kind")
	}
	// Every field of Governance is inherited: none was forgotten in over.
	var none, all Governance
	v := reflect.ValueOf(defaults().Governance)
	if got := none.over(defaults().Governance); !reflect.DeepEqual(got, defaults().Governance) {
		t.Errorf("%+v", got)
	}
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("%s has no default", v.Type().Field(i).Name)
		}
	}
	all.Timeout = 1
	if got := all.over(defaults().Governance); got.Timeout != 1 {
		t.Error("what is set is kept")
	}
	for name, want := range map[string]bool{"": false, "careful": true, "nobody": false} {
		p := &Policy{Name: name}
		if name == "" {
			p = nil
		}
		if _, err := f.Resolve(p); (err == nil) != want {
			t.Errorf("%q: %v", name, err)
		}
	}
	if spec, err := f.Resolve(web.Policy); err != nil || spec.Default != policy.Ask {
		t.Errorf("%+v %v", spec, err)
	}
}

func TestExamplesLoad(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../examples/*/hub.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("%v %v", files, err)
	}
	for _, file := range files {
		f, err := Load(file)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, s := range f.Servers {
			for name, path := range map[string]string{"cwd": s.Cwd, "state_dir": f.StateDir} {
				if path != "" && !filepath.IsAbs(path) {
					t.Errorf("%s: %s of %s is %s", file, name, s.ID, path)
				}
			}
		}
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Load(filepath.Join(dir, "none.yaml")); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("%v", err)
	}
	if _, err := Load(dir); err == nil {
		t.Error("a folder loads")
	}
	path := filepath.Join(dir, "hub.yaml")
	if err := os.WriteFile(path, []byte("policy: allow_all\nserver: {}\nnats: {nkey: x}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(path)
	e, ok := errors.AsType[*Error](err)
	if !ok || len(e.Problems) != 2 {
		t.Fatalf("%v", err)
	}
	want := path + `:2: server: is not known here; did you mean "servers"?` + "\n" + path + `:3: nats: has credentials but no url`
	if !strings.HasPrefix(e.Error(), want) {
		t.Errorf("got  %s\nwant %s…", e, want)
	}
}

func TestProblemOfOthers(t *testing.T) {
	t.Parallel()
	f := parse(t, full)
	if p := f.Problem("servers.clock.builtin", "no such %s", "thing"); p.String() != "/etc/toolhub/hub.yaml:66: servers.clock.builtin: no such thing" {
		t.Error(p)
	}
	if p := f.Problem("servers.clock.none", "x"); p.Line != 65 {
		t.Errorf("a field that is not there is at what is around it: %s", p)
	}
}

func TestDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"30s": 30 * time.Second, "1m30s": 90 * time.Second, "500ms": 500 * time.Millisecond, "0": 0, "1.5h": 90 * time.Minute} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err != nil || d.Std() != want {
			t.Errorf("%s: %s %v", text, d, err)
		}
		var again Duration
		if err := again.UnmarshalText([]byte(d.String())); err != nil || again != d {
			t.Errorf("%s is written as %s", text, d)
		}
	}
	for d, want := range map[time.Duration]string{time.Minute: "1m", time.Hour: "1h", 90 * time.Minute: "1h30m", 10 * time.Second: "10s", 0: "0s", time.Hour + time.Second: "1h0m1s"} {
		if got := Duration(d).String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Size{"8MiB": 8 << 20, "8 MiB": 8 << 20, "64KB": 64000, "64kB": 64000, "4096": 4096, "1GiB": 1 << 30, "10B": 10, "0": 0} {
		var s Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%s: %d %v", text, s, err)
		}
		var again Size
		if err := again.UnmarshalText([]byte(s.String())); err != nil || again != s {
			t.Errorf("%s is written as %s", text, s)
		}
	}
}

// fmt.Sprint of everything that a program holds of a configuration shows no more
// than references.
func TestConfigurationShowsNoSecret(t *testing.T) {
	t.Setenv("KEY", "s3cr3t")
	f := parse(t, full)
	secret, err := f.Servers[1].Headers["X-Api-Key"].Resolve()
	if err != nil || secret.Reveal() != "s3cr3t" {
		t.Fatal(err)
	}
	data, err := json.Marshal(f.Servers)
	if err != nil {
		t.Fatal(err)
	}
	for _, shown := range []string{fmt.Sprintf("%v %+v %#v", f, f, f), string(data)} {
		if strings.Contains(shown, "s3cr3t") || !strings.Contains(shown, "${env:KEY}") {
			t.Error(shown)
		}
	}
}
