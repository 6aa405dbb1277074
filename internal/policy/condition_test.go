package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"toolhub/internal/catalog"
)

// holds decides by a single allow rule with a condition.
func holds(t *testing.T, condition string, in Input) (is bool, failed string) {
	t.Helper()
	p := compile(t, Spec{Allow: []Rule{when("*/*", condition)}, Default: Deny})
	is = p.Decide(in).Effect == Allow
	for _, l := range p.Explain(in).Losers {
		if _, why, ok := strings.Cut(l.Why, "its condition failed, which is no match for an allow rule: "); ok {
			failed = why
		}
	}
	return is, failed
}

func TestConditions(t *testing.T) { // P2, P5, P9
	t.Parallel()
	in := call("github/create_issue")
	in.Principal = "amy"
	in.Rate = 7
	in.Claims = map[string]any{"team": "red", "roles": []any{"dev", "ops"}, "level": float64(3), "ok": true}
	in.Taint = []string{"github", "web"}
	in.Arguments = []byte(`{"title":"h\u00e9llo","n":7,"f":0.5,"force":true,"none":null,"big":9007199254740993,"list":[1,2.0,"x"],"deep":{"a":{"b":"c"}},"huge":18446744073709551615}`)
	untainted := in
	untainted.Taint = []string{"github"}
	for condition, want := range map[string]bool{
		"true": true, "false": false,
		"args.title == 'héllo'":                        true,
		"args.n == 7":                                  true,
		"args.n == 7.0":                                true,
		"args.n > 7":                                   false,
		"args.f < 1":                                   true,
		"args.force == true":                           true,
		"args.none == null":                            true,
		"has(args.missing)":                            false,
		"has(args.n)":                                  true,
		"'title' in args":                              true,
		"args['deep'].a.b == 'c'":                      true,
		"args.big == 9007199254740993":                 true,
		"args.big == 9007199254740992":                 false, // a float would make them equal
		"args.huge == 18446744073709551615u":           true,
		"args.list.exists(x, x == 2)":                  true,
		"args.list.all(x, x == 1)":                     false,
		"size(args.list) == 3":                         true,
		"args.title.startsWith('h')":                   true,
		"args.title.matches('^h.llo$')":                true,
		"principal == 'amy'":                           true,
		"principal in ['bob', 'eve']":                  false,
		"claims.team == 'red'":                         true,
		"'ops' in claims.roles":                        true,
		"claims.level >= 3":                            true,
		"claims.ok == true":                            true,
		"has(claims.missing)":                          false,
		"server == 'github' && tool == 'create_issue'": true,
		"'web' in taint":                               true,
		"size(taint) == 2":                             true,
		"tainted()":                                    true,
		"tainted(['web'])":                             false,
		"tainted(['docs'])":                            true,
		"now > timestamp('2026-12-01T00:00:00Z')":      true,
		"now.getHours() == 8":                          true,
		"rate > 6":                                     true,
		"rate == 7":                                    true,
		"rate > 7":                                     false,
		"now.getDayOfWeek() == 2":                      true,
		"now - timestamp('2026-12-01T08:00:00Z') < duration('1h')": true,
		// An error that does not decide is none.
		"args.missing == 1 || true":  true,
		"args.missing == 1 && false": false,
	} {
		if got, failed := holds(t, condition, in); got != want || failed != "" {
			t.Errorf("%s: %v %s", condition, got, failed)
		}
	}
	// What flows back to the server that it came from tells it nothing new.
	if is, _ := holds(t, "tainted()", untainted); is {
		t.Error("a server taints itself")
	}
	in.Taint = nil
	if is, failed := holds(t, "tainted()", in); is || failed != "" {
		t.Errorf("no taint taints: %s", failed)
	}
	// Of taint that nobody has vouched for nothing can be said.
	in.TaintUnknown = true
	for _, condition := range []string{"tainted()", "!tainted()", "tainted(['web'])", "'web' in taint", "size(taint) == 0"} {
		if is, failed := holds(t, condition, in); is || failed == "" {
			t.Errorf("%s with unknown taint: %v, %q", condition, is, failed)
		}
	}
	if is, failed := holds(t, "tool != ''", in); !is {
		t.Errorf("what looks at something else fails: %s", failed)
	}
	in.TaintUnknown = false
	in.Arguments = nil
	if is, failed := holds(t, "size(args) == 0 && !has(args.n)", in); !is {
		t.Errorf("a call without arguments has none: %s", failed)
	}
	in.Now = time.Date(2026, 12, 1, 23, 0, 0, 0, time.FixedZone("", 3*3600))
	if is, _ := holds(t, "now.getHours() == 20", in); !is {
		t.Error("the time is not UTC")
	}
}

func TestHintsCountAsTheirWorstCase(t *testing.T) { // P5
	t.Parallel()
	kind := catalog.Annotations{ReadOnly: new(true), Destructive: new(false), Idempotent: new(true), OpenWorld: new(false)}
	for _, k := range []struct {
		name        string
		annotations catalog.Annotations
		trusted     bool
		// readOnly, destructive, idempotent, openWorld
		want string
	}{
		{"a kind word of a server that is not trusted", kind, false, "false true false true"},
		{"a kind word of a trusted server", kind, true, "true false true false"},
		{"a trusted server that says nothing", catalog.Annotations{}, true, "false true false true"},
		{"nobody says anything", catalog.Annotations{}, false, "false true false true"},
		{"a bad word of a server that is not trusted", catalog.Annotations{ReadOnly: new(false), Destructive: new(true)}, false, "false true false true"},
	} {
		in := call("a/x")
		in.Annotations, in.Trusted = k.annotations, k.trusted
		var got []string
		for _, hint := range []string{"readOnly", "destructive", "idempotent", "openWorld"} {
			is, failed := holds(t, "annotations."+hint, in)
			if failed != "" {
				t.Errorf("%s: %s", hint, failed)
			}
			got = append(got, fmt.Sprint(is))
		}
		if s := strings.Join(got, " "); s != k.want {
			t.Errorf("%s: %s, want %s", k.name, s, k.want)
		}
	}
}

// A condition that cannot be evaluated never lets a call through, in whichever
// list it stands, and its reason has nothing of what the caller sent.
func TestConditionsThatFail(t *testing.T) {
	t.Parallel()
	list := "[" + strings.Repeat("1,", 2000) + "1]"
	const secret = "s3cr3t"
	for _, k := range []struct{ name, condition, arguments, says string }{
		{"a missing member", "args.missing == 1", `{}`, "has() tests for it"},
		{"a missing claim", "claims.team == 'x'", `{}`, "has() tests for it"},
		{"no boolean", "args.v && true", `{"v":"` + secret + `"}`, "does not fit the type"},
		{"another type", "args.v > 3", `{"v":"` + secret + `"}`, "does not fit the type"},
		{"a member of a text", "args.v.w == 1", `{"v":"` + secret + `"}`, ""},
		{"a key of a list", "args.v[7] == 1", `{"v":[1]}`, "too short"},
		{"a division by zero", "1 / args.v == 1", `{"v":0}`, "has no result"},
		{"a remainder of a division by zero", "1 % args.v == 1", `{"v":0}`, "has no result"},
		{"an overflow", "args.v + 1 > 0", `{"v":9223372036854775807}`, "has no result"},
		{"a bad pattern of the caller's", "'x'.matches(args.v)", `{"v":"(` + secret + `"}`, ""},
		{"a timestamp of the caller's", "timestamp(args.v) < now", `{"v":"` + secret + `"}`, ""},
		{"a number beyond any type", "args.v == 1", `{"v":123456789012345678901234567890}`, "too large to be compared"},
		{"a fraction beyond 2^53", "args.v == 1", `{"v":1e300}`, "too large to be compared"},
		{"a name twice", "args.v == 1", `{"v":2,"v":1}`, "have a name twice"},
		{"a name twice, escaped", "args.v == 1", `{"v":2,"\u0076":1}`, "have a name twice"},
		{"no object", "has(args.v)", `[1]`, "not an object"},
		{"no JSON", "has(args.v)", `{"v":`, "no valid JSON"},
		{"no UTF-8", "has(args.v)", "{\"v\":\"\xff\"}", "no valid JSON"},
		{"more behind", "has(args.v)", `{} {}`, "no valid JSON"},
		{"too deep", "has(args.v)", `{"v":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, "nested deeper"},
		{"too expensive", "args.v.all(a, args.v.all(b, args.v.all(c, a == b && b == c)))", `{"v":` + list + `}`, "costs more than allowed"},
		{"a long text, over and over", "args.l.all(x, args.v.contains('b'))", `{"l":` + list + `,"v":"` + strings.Repeat("a", 100_000) + `b"}`, "costs more than allowed"},
	} {
		in := call("a/x")
		in.Arguments = []byte(k.arguments)
		for effect, spec := range map[Effect]Spec{
			Deny:  {Deny: []Rule{when("a/*", k.condition)}, Default: Allow},
			Ask:   {Ask: []Rule{when("a/*", k.condition)}, Default: Allow},
			Allow: {Allow: []Rule{when("a/*", k.condition)}, Default: Deny},
		} {
			p := compile(t, spec)
			got := p.Decide(in)
			want, field := effect, string(effect)+"[0]"
			if effect == Allow {
				want, field = Deny, "default"
			}
			if got.Effect != want || got.Field != field {
				t.Errorf("%s in %s: %s by %s", k.name, effect, got.Effect, got.Field)
			}
			if effect != Allow && (got.Failed == "" || !strings.Contains(got.Failed, k.says) || !strings.Contains(got.Reason, got.Failed)) {
				t.Errorf("%s: failed with %q, want %q", k.name, got.Failed, k.says)
			}
			if effect == Allow {
				for _, l := range p.Explain(in).Losers {
					got.Reason += l.Why
				}
			}
			if strings.Contains(got.Reason, secret) {
				t.Errorf("%s: the reason holds what the caller sent: %s", k.name, got.Reason)
			}
		}
	}
}

// Many conditions, each below its own limit, are bounded together, and what the
// budget does not reach counts against the call.
func TestConditionsTogetherAreBounded(t *testing.T) {
	t.Parallel()
	spec := Spec{Allow: on("*/*")}
	for range 200 {
		spec.Deny = append(spec.Deny, when("*/*", "args.v.exists(a, args.v.exists(b, a == 2))"))
	}
	in := call("a/x")
	in.Arguments = []byte(`{"v":[` + strings.Repeat("1,", 80) + `1]}`)
	got := compile(t, spec).Decide(in)
	if got.Effect != Deny || !strings.Contains(got.Failed, "the conditions of this decision cost more than allowed") {
		t.Errorf("%+v", got)
	}
	in.Arguments = []byte(`{"v":[1]}`)
	if got := compile(t, spec).Decide(in); got.Effect != Allow {
		t.Errorf("a small call: %+v", got)
	}
}

// No expression of a size that a file may hold is dangerous to compile.
func TestConditionsThatDoNotCompile(t *testing.T) {
	t.Parallel()
	for name, condition := range map[string]string{
		"too long":             "true || '" + strings.Repeat("x", maxWhenBytes) + "' == ''",
		"too deep":             strings.Repeat("(", 5000) + "true" + strings.Repeat(")", 5000),
		"a regexp too large":   "args.v.matches('(((((a{100}){100}){100}){100}){100})')",
		"@tainted by its name": "@tainted(taint, server, [])",
		"an unknown function":  "env('HOME') == ''",
		"a type error":         "principal + 1 == 2",
		"an assignment":        "principal = 'x'",
		"two expressions":      "true; true",
		"a wrong duration":     "now - now < duration('1 hour')",
		"a wrong hint":         "annotations.readonly",
		"a wrong argument":     "tainted('web')",
		"too many arguments":   "tainted(['a'], ['b'])",
		"no expression":        "# comment",
	} {
		if _, err := Compile(Spec{Allow: []Rule{when("a/*", condition)}}); err == nil {
			t.Errorf("%s compiles", name)
		} else if s := err.Error(); strings.Contains(s, "\n") || len(s) > 2000 {
			t.Errorf("%s: an error of %d bytes: %.200q", name, len(s), s)
		}
	}
	if _, err := Compile(Spec{Allow: []Rule{when("a/*", "annotations.readOnlyHint")}}); err == nil || !strings.Contains(err.Error(), "annotations.readOnly,") {
		t.Errorf("an unknown name gets no list of those known: %v", err)
	}
}
