package policy

import (
	"strings"
	"sync"
	"testing"
	"time"

	"toolhub/internal/catalog"
)

// when is a rule with a condition.
func when(tool, condition string) Rule { return Rule{Tool: tool, When: condition} }

// on are rules without conditions.
func on(tools ...string) []Rule {
	var rules []Rule
	for _, tool := range tools {
		rules = append(rules, Rule{Tool: tool})
	}
	return rules
}

func compile(t testing.TB, spec Spec) *Policy {
	t.Helper()
	p, err := Compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// call is the input of a call of "server/tool".
func call(name string) Input {
	server, tool, _ := strings.Cut(name, "/")
	return Input{Server: server, Tool: tool, Now: time.Date(2026, 12, 1, 8, 30, 0, 0, time.UTC)}
}

func TestDecide(t *testing.T) { // P3
	t.Parallel()
	always, never := "tool != ''", "tool == ''"
	for _, k := range []struct {
		name string
		spec Spec
		in   Input
		want Effect
		by   string
	}{
		{"a deny rule wins over the most specific allow", Spec{Deny: on("*/*"), Allow: on("a/read")}, call("a/read"), Deny, "deny[0]"},
		{"a deny rule wins over one with a condition", Spec{Deny: on("*/*"), Allow: []Rule{when("a/read", always)}}, call("a/read"), Deny, "deny[0]"},
		{"a deny rule whose condition is false does not count", Spec{Deny: []Rule{when("*/*", never)}, Allow: on("*/*")}, call("a/x"), Allow, "allow[0]"},
		{"the first deny rule is named", Spec{Deny: on("b/*", "a/*", "*/*")}, call("a/x"), Deny, "deny[1]"},
		{"a deny rule without a condition is looked at first", Spec{Deny: []Rule{when("a/*", always), {Tool: "*/*"}}}, call("a/x"), Deny, "deny[1]"},

		{"a condition beats none, whatever the lengths", Spec{Ask: []Rule{when("*/*", always)}, Allow: on("a/read")}, call("a/read"), Ask, "ask[0]"},
		{"also for allow", Spec{Ask: on("a/read"), Allow: []Rule{when("*/*", always)}}, call("a/read"), Allow, "allow[0]"},
		{"a false condition leaves the rule without", Spec{Ask: on("a/read"), Allow: []Rule{when("a/read", never)}}, call("a/read"), Ask, "ask[0]"},
		{"among conditions the longer server part", Spec{Ask: []Rule{when("*/read", always)}, Allow: []Rule{when("a/*", always)}}, call("a/read"), Allow, "allow[0]"},

		{"the longer server part wins", Spec{Ask: on("*/delete_everything"), Allow: on("a/*")}, call("a/delete_everything"), Allow, "allow[0]"},
		{"a longer glob of the server too", Spec{Ask: on("git*/*"), Allow: on("gi*/get_issue")}, call("github/get_issue"), Ask, "ask[0]"},
		{"then the longer tool part", Spec{Ask: on("github/*"), Allow: on("github/get_*")}, call("github/get_issue"), Allow, "allow[0]"},
		{"the shorter tool part for what the longer leaves", Spec{Ask: on("github/*"), Allow: on("github/get_*")}, call("github/create_issue"), Ask, "ask[0]"},
		{"ask over a longer tool part of an allow", Spec{Ask: on("a/read_file"), Allow: on("a/read_*")}, call("a/read_file"), Ask, "ask[0]"},
		{"of alternatives the shortest counts", Spec{Ask: on("a/read_*"), Allow: on("a/{read_file,x}")}, call("a/read_file"), Ask, "ask[0]"},

		{"a tie asks", Spec{Ask: on("a/read"), Allow: on("a/read")}, call("a/read"), Ask, "ask[0]"},
		{"a tie of different patterns asks", Spec{Ask: on("a/*_file"), Allow: on("a/read_*")}, call("a/read_file"), Ask, "ask[0]"},
		{"a tie of conditions asks", Spec{Ask: []Rule{when("a/*", always)}, Allow: []Rule{when("a/*", always)}}, call("a/x"), Ask, "ask[0]"},
		{"of equals the first", Spec{Allow: on("a/x*", "a/*x")}, call("a/x"), Allow, "allow[0]"},

		{"no rule: denied where nobody can be asked", Spec{Allow: on("a/*")}, call("b/x"), Deny, "default"},
		{"no rule: asked where somebody can be", Spec{Allow: on("a/*")}, func() Input { in := call("b/x"); in.HasApprover = true; return in }(), Ask, "default"},
		{"the default allows", Spec{Deny: on("a/*"), Default: Allow}, call("b/x"), Allow, "default"},
		{"the default denies although somebody can be asked", Spec{Default: Deny}, func() Input { in := call("b/x"); in.HasApprover = true; return in }(), Deny, "default"},
		{"the default asks although nobody can be asked", Spec{Default: Ask}, call("b/x"), Ask, "default"},
		{"an empty policy denies", Spec{}, call("a/x"), Deny, "default"},

		{"allow_all", Spec{AllowAll: true}, call("a/x"), Allow, "allow[0]"},
		{"* is */*", Spec{Allow: on("*")}, call("a/x"), Allow, "allow[0]"},
		{"an exposed name is not what rules match", Spec{Allow: on("a/x")}, call("a/a__x"), Deny, "default"},
		{"case counts", Spec{Allow: on("a/read")}, call("a/READ"), Deny, "default"},
		{"a tool whose name holds another's", Spec{Allow: on("a/read")}, call("a/read_all"), Deny, "default"},
		{"rules of other servers do not count", Spec{Deny: on("b/x"), Ask: on("c/x"), Allow: on("a/x")}, call("a/x"), Allow, "allow[0]"},
	} {
		p := compile(t, k.spec)
		got := p.Decide(k.in)
		if got.Effect != k.want || got.Field != k.by || got.Failed != "" {
			t.Errorf("%s: %s by %s (%s), want %s by %s", k.name, got.Effect, got.Field, got.Reason, k.want, k.by)
		}
		if (got.Rule == nil) != (k.by == "default") || got.Reason == "" {
			t.Errorf("%s: rule %v, reason %q", k.name, got.Rule, got.Reason)
		}
		explained(t, k.name, p, k.in)
	}
}

// explained checks that an explanation holds together: it decides as Decide
// does, and every other rule is in it once with a reason.
func explained(t testing.TB, name string, p *Policy, in Input) {
	t.Helper()
	e := p.Explain(in)
	if d := p.Decide(in); e.Decision != d {
		t.Errorf("%s: explained as %+v, decided as %+v", name, e.Decision, d)
	}
	seen := map[string]bool{e.Decision.Field: true}
	for _, l := range e.Losers {
		if seen[l.Field] || l.Why == "" || l.Rule == nil {
			t.Errorf("%s: loser %+v", name, l)
		}
		seen[l.Field] = true
	}
	rules := len(p.deny.all) + len(p.grant.all)
	if e.Decision.Rule == nil {
		rules++ // the default is none of them
	}
	if len(seen) != rules {
		t.Errorf("%s: %d of %d rules are explained", name, len(seen), rules)
	}
}

func TestExplain(t *testing.T) { // P4
	t.Parallel()
	p := compile(t, Spec{
		Deny:  []Rule{{Tool: "*/delete_*"}, when("github/*", "args.force == true")},
		Ask:   []Rule{{Tool: "github/*", File: "hub.yaml", Line: 7}, when("*/get_issue", "args.n > 9")},
		Allow: []Rule{{Tool: "github/get_*"}, {Tool: "*/*"}, {Tool: "fs/*"}, when("github/*", "args.missing == 1")},
	})
	in := call("github/get_issue")
	in.Arguments = []byte(`{"n":1,"force":false}`)
	e := p.Explain(in)
	if e.Decision.Effect != Allow || e.Decision.Field != "allow[0]" {
		t.Fatalf("%+v", e.Decision)
	}
	why := map[string]string{}
	matched := map[string]bool{}
	for _, l := range e.Losers {
		why[l.Field], matched[l.Field] = l.Why, l.Matched
		if l.Field == "ask[0]" && (l.Rule.File != "hub.yaml" || l.Rule.Line != 7 || l.Effect != Ask) {
			t.Errorf("the place of a loser is lost: %+v", l)
		}
	}
	for field, want := range map[string]string{
		"deny[0]":  "does not match the tool",
		"deny[1]":  "its condition is false",
		"ask[0]":   "allow[0] is more specific: 4 literal characters of the tool, this has 0",
		"ask[1]":   "its condition is false",
		"allow[1]": "allow[0] is more specific: 6 literal characters of the server, this has 0",
		"allow[2]": "does not match the server",
		"allow[3]": "its condition failed, which is no match for an allow rule: a member that the condition reads is not there",
	} {
		if !strings.Contains(why[field], want) {
			t.Errorf("%s: %q, want %q", field, why[field], want)
		}
		if matched[field] != strings.Contains(want, "more specific") {
			t.Errorf("%s: matched %v", field, matched[field])
		}
	}
	if len(why) != 7 {
		t.Errorf("%d losers: %v", len(why), why)
	}
	in.Arguments = []byte(`{"n":10,"force":true}`)
	e = p.Explain(in)
	if e.Decision.Field != "deny[1]" || !strings.Contains(e.Decision.Reason, "denied by the rule github/* (deny[1]), whose condition is true") {
		t.Errorf("%+v", e.Decision)
	}
	for _, l := range e.Losers {
		if l.Field == "allow[0]" && l.Why != "deny[1] denies, and a deny rule wins" {
			t.Errorf("%+v", l)
		}
	}
	tie := compile(t, Spec{Ask: on("a/x"), Allow: on("a/x", "a/x")}).Explain(call("a/x"))
	if len(tie.Losers) != 2 || !strings.Contains(tie.Losers[0].Why, "ask wins a tie") {
		t.Errorf("%+v", tie)
	}
	same := compile(t, Spec{Allow: on("a/x", "a/x")}).Explain(call("a/x"))
	if len(same.Losers) != 1 || !strings.Contains(same.Losers[0].Why, "stands before it") {
		t.Errorf("%+v", same)
	}
}

func TestBadPolicy(t *testing.T) {
	t.Parallel()
	_, err := Compile(Spec{
		Deny:    []Rule{{Tool: "github__delete", File: "hub.yaml", Line: 3}, {Tool: "a/*"}},
		Ask:     []Rule{{Tool: "", Line: 5}, when("a/[", "args.x +")},
		Allow:   []Rule{when("a/*", "argz.x == 1"), when("a/*", "args.x"), when("a/*", "'a'"), when("b/*", "args.s.matches('(')")},
		Default: "perhaps",
	})
	if err == nil {
		t.Fatal("it compiles")
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%T joins nothing", err)
	}
	want := []string{
		`hub.yaml:3: deny[0].tool: pattern "github__delete": patterns match "server/tool" and not exposed names; write "github/delete"`,
		`5: ask[0].tool: `,
		`ask[1].tool: `,
		`ask[1].when: at column 9: `,
		`allow[0].when: at column 1: undeclared reference to 'argz'`,
		`allow[1].when: a condition is true or false, this is dyn; compare it with something`,
		`allow[2].when: a condition is true or false, this is string`,
		`allow[3].when: `,
		`default: the default is "allow", "ask" or "deny", this is "perhaps"`,
	}
	got := joined.Unwrap()
	if len(got) != len(want) {
		t.Errorf("%d problems, want %d:\n%v", len(got), len(want), err)
	}
	for i, w := range want {
		if i >= len(got) {
			break
		}
		if _, ok := got[i].(*SpecError); !ok || !strings.HasPrefix(got[i].Error(), w) {
			t.Errorf("got  %v\nwant %s…", got[i], w)
		}
	}
	for _, bad := range []Spec{{AllowAll: true, Deny: on("a/*")}, {AllowAll: true, Default: Deny}} {
		if _, err := Compile(bad); err == nil || !strings.Contains(err.Error(), "allow_all stands alone") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestNever(t *testing.T) { // L2
	t.Parallel()
	for _, k := range []struct {
		name string
		spec Spec
		want bool
	}{
		{"denied", Spec{Deny: on("a/x"), Allow: on("*/*")}, true},
		{"denied by the default", Spec{Allow: on("b/*"), Default: Deny}, true},
		{"denied since nobody can be asked", Spec{Allow: on("b/*")}, true},
		{"allowed", Spec{Allow: on("a/*")}, false},
		{"asked: it may be approved one day", Spec{Ask: on("a/*")}, false},
		{"denied for some arguments", Spec{Deny: []Rule{when("a/x", "args.n == 1")}, Allow: on("*/*")}, false},
		{"denied at times", Spec{Deny: []Rule{when("a/x", "now.getHours() > 20")}, Allow: on("*/*")}, false},
		{"denied with a taint", Spec{Deny: []Rule{when("a/x", "tainted()")}, Allow: on("*/*")}, false},
		{"denied to this principal", Spec{Deny: []Rule{when("a/x", "principal == ''")}, Allow: on("*/*")}, true},
		{"denied to others", Spec{Deny: []Rule{when("a/x", "principal == 'bob'")}, Allow: on("*/*")}, false},
		{"denied for its hints", Spec{Deny: []Rule{when("*/*", "annotations.destructive")}, Allow: on("*/*")}, true},
		{"allowed for some arguments", Spec{Allow: []Rule{when("a/x", "args.n == 1")}}, false},
		{"allowed to others", Spec{Allow: []Rule{when("a/x", "principal == 'bob'")}}, true},
		{"a deny condition that fails counts", Spec{Deny: []Rule{when("a/x", "claims.team == 'x'")}, Allow: on("*/*")}, true},
	} {
		if got := compile(t, k.spec).Never(call("a/x")); got != k.want {
			t.Errorf("%s: %v", k.name, got)
		}
	}
}

func TestConcurrentDecide(t *testing.T) {
	t.Parallel()
	p := compile(t, Spec{
		Deny:  []Rule{when("*/*", "args.n > 50")},
		Allow: []Rule{when("*/*", "principal == 'p' && !tainted()")},
	})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 100 {
				in := call("a/x")
				in.Principal, in.Arguments = "p", []byte(`{"n":`+string(rune('0'+n%10))+string(rune('0'+i))+`}`)
				want := Allow
				if n%10*10+i > 50 {
					want = Deny
				}
				if n%10 == 0 { // JSON has no numbers that start with 0
					in.Arguments, want = []byte(`{"n":1}`), Allow
				}
				if got := p.Decide(in); got.Effect != want {
					t.Errorf("%s: %+v", in.Arguments, got)
				}
			}
		})
	}
	wg.Wait()
}

func TestDecisionsWithoutConditionsAllocateNothing(t *testing.T) { // not parallel: it counts allocations
	p := compile(t, Spec{Deny: on("*/delete_*"), Ask: on("github/*"), Allow: on("github/get_*")})
	in := call("github/get_issue")
	if n := testing.AllocsPerRun(100, func() { p.Decide(in) }); n > 0 {
		t.Errorf("a decision costs %v allocations", n)
	}
}

func BenchmarkDecide(b *testing.B) {
	run := func(name string, spec Spec, in Input, want Effect) {
		p := compile(b, spec)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if p.Decide(in).Effect != want {
					b.Fatal("wrong")
				}
			}
		})
	}
	in := call("github/get_issue")
	in.Annotations = catalog.Annotations{ReadOnly: new(true)}
	in.Arguments = []byte(`{"owner":"a","repo":"b","number":17,"labels":["bug","later"]}`)
	run("rules=4", Spec{Deny: on("*/delete_*"), Ask: on("github/*"), Allow: on("github/get_*", "fs/read_*")}, in, Allow)
	var many []Rule
	for i := range 1000 {
		many = append(many, Rule{Tool: "s" + strings.Repeat("x", 1+i%9) + string(rune('a'+i%26)) + "/tool"})
	}
	run("rules=1000", Spec{Deny: many, Allow: append(many[:len(many):len(many)], Rule{Tool: "github/*"})}, in, Allow)
	run("when=hint", Spec{Allow: []Rule{when("*/*", "!annotations.readOnly")}}, in, Allow)
	run("when=args", Spec{Deny: []Rule{when("github/*", "args.number > 100")}, Allow: on("*/*")}, in, Allow)
	costly := in // what the most expensive condition costs before it is stopped
	costly.Arguments = []byte(`{"v":[` + strings.Repeat("1,", 1000) + `1]}`)
	run("when=too-expensive", Spec{Deny: []Rule{when("*/*", "args.v.all(a, args.v.all(b, a == b))")}}, costly, Deny)
}

// Only a policy with a condition on the rate makes its owner count, and a rate
// that nobody counted is that of the first call.
func TestRate(t *testing.T) { // P2
	t.Parallel()
	for _, tt := range []struct {
		spec Spec
		uses bool
	}{
		{Spec{AllowAll: true}, false},
		{Spec{Deny: []Rule{when("a/*", "args.rate > 3")}}, false},
		{Spec{Deny: []Rule{when("a/*", "'rate' == tool")}}, false},
		{Spec{Allow: []Rule{when("a/*", "rate < 3")}}, true},
		{Spec{Ask: []Rule{{Tool: "*/*"}, when("a/*", "tainted() || rate > 100")}}, true},
	} {
		if p := compile(t, tt.spec); p.UsesRate() != tt.uses {
			t.Errorf("%+v: %v", tt.spec, p.UsesRate())
		}
	}
	p := compile(t, Spec{Deny: []Rule{when("mail/send", "rate > 2")}, Allow: []Rule{{Tool: "*/*"}}})
	in := call("mail/send")
	for rate, want := range map[int64]Effect{0: Allow, 1: Allow, 2: Allow, 3: Deny, 1 << 40: Deny} {
		in.Rate = rate
		if d := p.Decide(in); d.Effect != want || p.Explain(in).Decision != d {
			t.Errorf("at a rate of %d: %+v", rate, d)
		}
	}
	if p.Never(in) {
		t.Error("what is denied by its rate is denied for ever")
	}
	if is, failed := holds(t, "rate == 1", call("a/b")); !is {
		t.Errorf("without a count the rate is not 1 (%s)", failed)
	}
}
