package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
	"toolhub/internal/policy"
)

var (
	hubName    = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,31}$`)
	policyName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,63}$`)
)

// ValidateHub reports what is wrong with the name of a hub.
func ValidateHub(name string) error {
	if !hubName.MatchString(name) {
		return fmt.Errorf("%q is no name of a hub; write 1 to 32 of a-z, 0-9, _ and -, a letter first", name)
	}
	return nil
}

// validate reports what is wrong with f beyond its form.
func (d *decoder) validate(f *File) {
	if _, ok := d.lines["hub"]; ok && !d.reported("hub") {
		if err := ValidateHub(f.Hub); err != nil {
			d.reportField("hub", "%v", err)
		}
	}
	d.listen("listen", f.Listen)
	d.nats(&f.NATS)
	d.settings(&f.Settings)
	stdio := 0
	limits := f.WithDefaults()
	for i := range f.Servers {
		s := &f.Servers[i]
		at := join("servers", s.ID)
		d.server(at, s, &f.Settings)
		if i >= limits.MaxServers && limits.MaxServers > 0 {
			d.reportField(at, "is server %d, but max_servers is %d; raise max_servers or remove a server", i+1, limits.MaxServers)
		}
		if s.Command == "" {
			continue
		}
		processes := max(1, s.Replicas)
		if stdio += processes; stdio > limits.MaxStdioServers && limits.MaxStdioServers > 0 && !d.reported(at+".replicas") {
			d.reportField(at, "brings the processes to %d (it has %d), but max_stdio_servers is %d; raise max_stdio_servers, or remove a server or replicas", stdio, processes, limits.MaxStdioServers)
		}
	}
}

// ValidateListen reports what is wrong with an address to listen on.
func ValidateListen(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q is no address; write host:port, such as %s", addr, DefaultListen)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || port != strconv.FormatUint(n, 10) {
		return fmt.Errorf("%q has no port; write a number from 0 (any free port) to 65535 behind the colon", addr)
	}
	if !mcp.IsLoopback(host) {
		return fmt.Errorf("%q is not a loopback address; whoever reaches the hub may call its tools, so write 127.0.0.1, ::1 or localhost", host)
	}
	return nil
}

func (d *decoder) listen(field, addr string) {
	if addr == "" {
		return
	}
	if err := ValidateListen(addr); err != nil {
		d.reportField(field, "%v", err)
	}
}

func (d *decoder) nats(n *NATS) {
	d.listen("nats.listen", n.Listen)
	if n.URL == "" {
		if (n.NKey != "" || n.Creds != "") && !d.reported("nats.url") {
			d.reportField("nats", "has credentials but no url; the hub's own NATS server makes its own, so add url or remove nkey and creds")
		}
		return
	}
	if n.Listen != "" {
		d.reportField("nats.listen", "is for the hub's own NATS server, but url names another; remove one of the two")
	}
	if n.NKey != "" && n.Creds != "" {
		d.reportField("nats.creds", "nkey and creds are both given; keep one")
	}
	for server := range strings.SplitSeq(n.URL, ",") {
		u, err := url.Parse(strings.TrimSpace(server))
		switch {
		case err != nil || u.Host == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme):
			d.reportField("nats.url", "%q is no NATS address; write nats://host:4222, or tls://, ws:// or wss://", withoutSecrets(server))
		case u.User != nil:
			d.reportField("nats.url", "has credentials in it; put them into a file and name it in nkey or creds")
		}
	}
}

// withoutSecrets is a URL that may be shown: without what stands before an @ and
// behind a ?.
func withoutSecrets(s string) string {
	s, query, _ := strings.Cut(s, "?")
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		s = "…" + s[i:]
	}
	if query != "" {
		s += "?…"
	}
	return s
}

func (d *decoder) settings(s *Settings) {
	if s.Policy == nil {
		if _, ok := d.lines["policy"]; !ok {
			d.reportField("policy", "is required; write rules (deny, ask, allow), or policy: allow_all to allow every call")
		}
	} else {
		d.checkPolicy("policy", s.Policy, s)
	}
	for name, spec := range s.Policies {
		at := join("policies", name)
		if name == AllowAll || !policyName.MatchString(name) {
			d.reportField(at, "is no name of a policy; write a-z, 0-9, _ and -, a letter first, but not %s", AllowAll)
		}
		d.checkSpec(at, spec)
	}
	if s.Naming.Validate() == nil {
		if err := s.Naming.ValidatePrefix(s.Prefix); err != nil {
			d.reportField("prefix", "%v", err)
		}
	}
	d.positive("", map[string]int64{
		"max_servers":       int64(s.MaxServers),
		"max_catalog_items": int64(s.MaxCatalogItems),
		"max_stdio_servers": int64(s.MaxStdioServers),
		"page_size":         int64(s.PageSize),
		"drain_timeout":     int64(s.DrainTimeout),
	})
	d.governance("", &s.Governance, Governance{})
}

// positive reports those of the fields that are given and not above zero. An
// absent field is zero and has no line of its own.
func (d *decoder) positive(path string, fields map[string]int64) {
	for name, v := range fields {
		at := name
		if path != "" {
			at = path + "." + name
		}
		if _, given := d.lines[at]; given && v <= 0 && !d.reported(at) {
			d.reportField(at, "must be more than 0; leave it out for the default")
		}
	}
}

// reported tells whether something is wrong with field already.
func (d *decoder) reported(field string) bool {
	return slices.ContainsFunc(d.problems, func(p Problem) bool { return p.Field == field })
}

func (d *decoder) governance(path string, g *Governance, hub Governance) {
	at := func(name string) string {
		if path == "" {
			return name
		}
		return path + "." + name
	}
	d.oneOf(at("naming"), string(g.Naming), string(catalog.NamingHub), string(catalog.NamingMCP))
	d.oneOf(at("audit"), string(g.Audit), string(AuditNone), string(AuditBodies))
	if g.Tools != nil && !d.reportedBelow(at("tools")) {
		if _, err := g.Tools.Compile(); err != nil {
			d.joined(at("tools"), err)
		}
	}
	d.positive(path, map[string]int64{
		"timeout":                     int64(g.Timeout),
		"max_total_timeout":           int64(g.MaxTotalTimeout),
		"request_timeout":             int64(g.RequestTimeout),
		"listen_idle_timeout":         int64(g.ListenIdleTimeout),
		"startup_timeout":             int64(g.StartupTimeout),
		"probe_timeout":               int64(g.ProbeTimeout),
		"stdio_queue_timeout":         int64(g.StdioQueueTimeout),
		"refetch_interval":            int64(g.RefetchInterval),
		"health_interval":             int64(g.HealthInterval),
		"breaker_threshold":           int64(g.BreakerThreshold),
		"max_message_bytes":           int64(g.MaxMessageBytes),
		"restart_backoff.initial":     int64(g.RestartBackoff.Initial),
		"restart_backoff.max":         int64(g.RestartBackoff.Max),
		"restart_backoff.reset_after": int64(g.RestartBackoff.ResetAfter),
	})
	in := g.over(hub).over(defaults().Governance)
	if (g.Timeout > 0 || g.MaxTotalTimeout > 0) && in.Timeout > in.MaxTotalTimeout {
		d.reportField(at("timeout"), "is %s, more than max_total_timeout (%s); raise max_total_timeout or lower timeout", in.Timeout, in.MaxTotalTimeout)
	}
	if (g.RestartBackoff.Initial > 0 || g.RestartBackoff.Max > 0) && in.RestartBackoff.Initial > in.RestartBackoff.Max {
		d.reportField(at("restart_backoff"), "initial is %s, more than max (%s); raise max or lower initial", in.RestartBackoff.Initial, in.RestartBackoff.Max)
	}
	if g.MaxMessageBytes > 0 && g.MaxMessageBytes < minMessageBytes {
		d.reportField(at("max_message_bytes"), "is %s, too little for MCP; write at least %s", g.MaxMessageBytes, Size(minMessageBytes))
	}
	if g.MaxMessageBytes > mcp.MaxMessageBytes {
		d.reportField(at("max_message_bytes"), "is %s, more than the hub can carry; write at most %s", g.MaxMessageBytes, Size(mcp.MaxMessageBytes))
	}
}

// minMessageBytes is what no server can do without: a handshake fits in.
const minMessageBytes = 4 << 10

// oneOf reports a value that is given and not among the choices.
func (d *decoder) oneOf(field, value string, choices ...string) {
	if _, given := d.lines[field]; given && !slices.Contains(choices, value) && !d.reported(field) {
		d.reportField(field, "%q is not known; write one of %s", value, strings.Join(choices, ", "))
	}
}

func (d *decoder) checkPolicy(field string, p *Policy, s *Settings) {
	if p.Name == "" {
		d.checkSpec(field, p.Spec)
		return
	}
	if _, ok := s.Policies[p.Name]; ok {
		return
	}
	names := slices.Sorted(maps.Keys(s.Policies))
	d.reportField(field, "there is no policy %q in policies%s", p.Name, suggest(p.Name, append(names, AllowAll)))
}

// checkSpec reports what policy.Compile finds wrong.
func (d *decoder) checkSpec(field string, spec policy.Spec) {
	if d.reportedBelow(field) {
		return // what Compile says of half a policy helps nobody
	}
	if _, err := policy.Compile(spec); err != nil {
		d.joined(field, err)
	}
}

func (d *decoder) reportedBelow(field string) bool {
	return slices.ContainsFunc(d.problems, func(p Problem) bool {
		return p.Field == field || strings.HasPrefix(p.Field, field+".")
	})
}

// joined reports each of the errors that err joins, at its own field and line
// where it has them.
func (d *decoder) joined(field string, err error) {
	if list, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range list.Unwrap() {
			d.joined(field, e)
		}
		return
	}
	if e, ok := errors.AsType[*policy.SpecError](err); ok {
		at := field
		if e.Field != "" {
			at += "." + e.Field
		}
		line := e.Line
		if line == 0 {
			line = d.line(at)
		}
		d.report(line, at, "%s", e.Message)
		return
	}
	if e, ok := errors.AsType[*catalog.PatternError](err); ok && e.Field != "" {
		d.reportField(field+"."+e.Field, "%q: %s", e.Pattern, e.Message)
		return
	}
	d.reportField(field, "%v", err)
}

func (d *decoder) server(at string, s *Server, hub *Settings) {
	if err := catalog.ValidateServerID(s.ID); err != nil {
		d.reportField(at, "%v", err)
	}
	d.target(at, s)
	d.process(at, s)
	d.remote(at, s)
	d.oneOf(at+".era", string(s.Era), string(EraAuto), string(EraLegacy), string(EraModern), string(EraMirror))
	d.oneOf(at+".uris", string(s.URIs), string(catalog.URIsProxy), string(catalog.URIsOriginal))
	if naming := s.over(hub.Governance).Naming; naming.Validate() == nil {
		if s.Prefix != nil {
			if err := naming.ValidatePrefix(*s.Prefix); err != nil {
				d.reportField(at+".prefix", "%v", err)
			}
		}
		if s.Prefix == nil && naming != hub.Naming && hub.Naming.Validate() == nil && hub.Naming.ValidatePrefix(hub.Prefix) == nil {
			if err := naming.ValidatePrefix(hub.Prefix); err != nil {
				d.reportField(at+".naming", "the hub's prefix does not go with it: %v", err)
			}
		}
	}
	if s.Policy != nil {
		d.checkPolicy(at+".policy", s.Policy, hub)
	}
	d.governance(at, &s.Governance, hub.Governance)
}

// target reports a server that is reached in no way, or in several.
func (d *decoder) target(at string, s *Server) {
	given := func(name string) bool { _, ok := d.lines[at+"."+name]; return ok }
	switch {
	case !given("command") && !given("url") && !given("builtin"):
		if d.reported(at) {
			return // it is not even a mapping
		}
		d.reportField(at, "says no way to reach the server; write command (a program), url (Streamable HTTP) or builtin")
	case given("builtin") && (given("command") || given("url")):
		d.reportField(at+".builtin", "stands beside command or url; a server has either builtin, or command, url or both")
	}
	for name, empty := range map[string]bool{"command": s.Command == "", "url": s.URL == "", "builtin": s.Builtin == ""} {
		if given(name) && empty && !d.reported(at+"."+name) {
			d.reportField(at+"."+name, "is empty")
		}
	}
	for name, needs := range map[string]string{
		"args": "command", "env": "command", "cwd": "command", "replicas": "command",
		"headers": "url", "auth": "url", "insecure_skip_tls_verify": "url",
		"builtin_config": "builtin",
	} {
		if given(name) && !given(needs) {
			d.reportField(at+"."+name, "is given without %s; add %[1]s or remove it", needs)
		}
	}
}

// process reports what is wrong with a server's command.
func (d *decoder) process(at string, s *Server) {
	if strings.ContainsRune(s.Command, 0) || slices.ContainsFunc(s.Args, func(a string) bool { return strings.ContainsRune(a, 0) }) {
		d.reportField(at+".command", "has a NUL character, which no program can be given")
	}
	if s.Command != "" && len(s.Args) == 0 && strings.ContainsAny(strings.TrimSpace(s.Command), " \t") && !strings.ContainsRune(s.Command, '/') {
		first, rest, _ := strings.Cut(strings.TrimSpace(s.Command), " ")
		d.reportField(at+".command", "%q has spaces in it and no shell takes it apart; write command: %s and args: [%s]", s.Command, first, strings.Join(strings.Fields(rest), ", "))
	}
	for name, ref := range s.Env {
		field := join(at+".env", name)
		if name == "" || strings.ContainsAny(name, "=\x00") {
			d.reportField(field, "is no name of an environment variable")
		}
		d.checkRef(field, ref)
		if secretVariable.MatchString(name) && ref != "" && !ref.HasReference() {
			d.reportField(field, writtenOut)
		}
	}
	if _, given := d.lines[at+".replicas"]; given && !d.reported(at+".replicas") {
		switch {
		case s.Replicas < 1 || s.Replicas > 64:
			d.reportField(at+".replicas", "must be from 1 to 64")
		case s.Replicas > 1 && s.URL != "":
			d.reportField(at+".replicas", "several processes cannot all serve one url; remove replicas or url")
		}
	}
}

func (d *decoder) checkRef(field string, ref Ref) {
	if err := ref.Validate(); err != nil {
		d.reportField(field, "%v", err)
	}
}

// secretHeader matches the names of headers whose value is a credential even
// where it is written out.
var secretHeader = regexp.MustCompile(`(?i)(key|token|secret|passw|cookie|auth|credential)`)

// secretVariable matches the names of environment variables that hold a
// credential by all custom, and few others.
var secretVariable = regexp.MustCompile(`(?i)(^|_)(token|secret|passw(or)?d|(api|access|private|secret)_?key)$`)

// secretParameter matches the names of parameters of a URL that are a
// credential, or prove to have one; camelCase is looked at in snake_case too.
var secretParameter = regexp.MustCompile(`(?i)(token|secret|passw(or)?d|passphrase|signature|credentials?|(api|access|auth|private)key|(^|[-_.])(key|sig|auth|authorization|pwd|pass|jwt|bearer))$`)

// writtenOut says what is wrong with a credential in the file: it would be
// stored with the hub's definition and shown to whoever may look at that.
const writtenOut = "is written out here; keep it elsewhere and refer to it with ${env:NAME} or ${file:PATH}"

// remote reports what is wrong with a server's URL and what is sent to it.
func (d *decoder) remote(at string, s *Server) {
	var credentials []string
	seen := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		value, field, lower := s.Headers[name], join(at+".headers", name), strings.ToLower(name)
		// The references stay as they are: none has a character that no value may have.
		err := mcp.CheckHeader(name, string(value))
		switch {
		case err != nil && lower == "authorization":
			d.reportField(field, "%v; write auth: {bearer: ${env:NAME}}", err)
		case err != nil:
			d.reportField(field, "%v", err)
		case seen[lower] != "":
			d.reportField(field, "is the same header as %s; keep one", seen[lower])
		}
		seen[lower] = name
		d.checkRef(field, value)
		secret := secretHeader.MatchString(name)
		if secret && value != "" && !value.HasReference() && !d.reported(field) {
			d.reportField(field, writtenOut)
		}
		if secret || value.HasReference() {
			credentials = append(credentials, field)
		}
	}
	if s.Auth != nil && !d.reportedBelow(at+".auth") {
		bearer := at + ".auth.bearer"
		switch err := s.Auth.Bearer.Validate(); {
		case s.Auth.Bearer == "":
			d.reportField(bearer, "is missing; write bearer: ${env:NAME} or ${file:PATH}")
		case err != nil:
			d.reportField(bearer, "%v", err)
		case !s.Auth.Bearer.HasReference():
			d.reportField(bearer, writtenOut)
		}
		credentials = append(credentials, bearer)
	}
	if s.URL == "" {
		return
	}
	field := at + ".url"
	u, err := url.Parse(s.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.Opaque != "" {
		d.reportField(field, "%q is no absolute http or https URL, such as https://mcp.example.com/mcp", withoutSecrets(s.URL))
		return
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			d.reportField(field, "%q is no port", port)
		}
	}
	if u.User != nil {
		d.reportField(field, "has a user name or password in it; write auth: {bearer: ${env:NAME}} or headers")
	}
	for pair := range strings.FieldsFuncSeq(u.RawQuery, func(r rune) bool { return r == '&' || r == ';' }) {
		name, value, _ := strings.Cut(pair, "=")
		if plain, err := url.QueryUnescape(name); err == nil {
			name = plain
		}
		if value != "" && (secretParameter.MatchString(name) || secretParameter.MatchString(snake(name))) {
			d.reportField(field, "has a credential in it, the parameter %s; send it in headers (X-Api-Key: ${env:NAME}) or as auth: {bearer: ${env:NAME}}", strconv.QuoteToASCII(name))
		}
	}
	if u.Fragment != "" || strings.Contains(s.URL, "#") {
		d.reportField(field, "has a fragment (#…), which no server gets to see; remove it")
	}
	if u.Scheme == "http" && s.InsecureSkipTLSVerify {
		d.reportField(at+".insecure_skip_tls_verify", "means nothing for an http URL; remove it")
	}
	if u.Scheme == "http" && !mcp.IsLoopback(u.Hostname()) {
		for _, c := range credentials {
			d.reportField(c, "would be sent over plain http to %s; use https", u.Hostname())
		}
	}
}
