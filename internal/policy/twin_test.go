package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"pgregory.net/rapid"
)

// A twinRule is a rule whose meaning is written down a second time, in the most
// obvious way.
type twinRule struct {
	effect Effect
	field  string
	server string // a name, or with a * at its end the beginning of one
	tool   string
	// condition is "" for none; truth is what it comes to: 1, 0 or -1 for failed.
	condition string
	truth     func(Input) int
}

func covers(pattern, name string) bool {
	if start, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, start)
	}
	return pattern == name
}

func literal(pattern string) int { return len(strings.TrimSuffix(pattern, "*")) }

// counts says whether the rule matches the call (P3, and a failed condition
// counts against the call).
func (r *twinRule) counts(in Input) bool {
	if !covers(r.server, in.Server) || !covers(r.tool, in.Tool) {
		return false
	}
	if r.condition == "" {
		return true
	}
	if truth := r.truth(in); truth >= 0 {
		return truth == 1
	}
	return r.effect != Allow
}

// twin decides by the text of P3 alone.
func twin(rules []twinRule, byDefault Effect, in Input) (Effect, map[string]bool) {
	winners := map[string]bool{}
	for i := range rules {
		if r := &rules[i]; r.effect == Deny && r.counts(in) {
			winners[r.field] = true
		}
	}
	if len(winners) > 0 {
		return Deny, winners
	}
	better := func(a, b *twinRule) int {
		if (a.condition != "") != (b.condition != "") {
			if a.condition != "" {
				return 1
			}
			return -1
		}
		if d := literal(a.server) - literal(b.server); d != 0 {
			return d
		}
		return literal(a.tool) - literal(b.tool)
	}
	var best []*twinRule
	for i := range rules {
		r := &rules[i]
		if r.effect == Deny || !r.counts(in) {
			continue
		}
		switch {
		case len(best) == 0 || better(r, best[0]) > 0:
			best = []*twinRule{r}
		case better(r, best[0]) == 0:
			best = append(best, r)
		}
	}
	if len(best) > 0 {
		effect := Allow
		for _, r := range best {
			if r.effect == Ask {
				effect = Ask
			}
		}
		for _, r := range best {
			if r.effect == effect {
				winners[r.field] = true
			}
		}
		return effect, winners
	}
	winners["default"] = true
	switch {
	case byDefault != "":
		return byDefault, winners
	case in.HasApprover:
		return Ask, winners
	}
	return Deny, winners
}

func yes(b bool) int {
	if b {
		return 1
	}
	return 0
}

func hasN(in Input) bool {
	return string(in.Arguments) == `{"n":1}` || string(in.Arguments) == `{"n":5}`
}

var twinConditions = []struct {
	text   string
	varies bool
	truth  func(Input) int
}{
	{"", false, nil},
	{"principal == 'amy'", false, func(in Input) int { return yes(in.Principal == "amy") }},
	{"!annotations.readOnly", false, func(in Input) int {
		return yes(!in.Trusted || in.Annotations.ReadOnly == nil || !*in.Annotations.ReadOnly)
	}},
	{"args.n > 3", true, func(in Input) int {
		if !hasN(in) {
			return -1
		}
		return yes(string(in.Arguments) == `{"n":5}`)
	}},
	{"has(args.n)", true, func(in Input) int {
		if string(in.Arguments) == `{"n":1,"n":2}` {
			return -1
		}
		return yes(hasN(in))
	}},
	{"tainted(['ba'])", true, func(in Input) int {
		for _, t := range in.Taint {
			if t != "ba" && t != in.Server {
				return 1
			}
		}
		return 0
	}},
	{"rate > 2", true, func(in Input) int { return yes(in.Rate > 2) }},
	{"claims.level > 2", false, func(in Input) int {
		if in.Claims == nil {
			return -1
		}
		return yes(in.Claims["level"].(int64) > 2)
	}},
}

func drawInput(t *rapid.T) Input {
	in := call(rapid.SampledFrom([]string{"a", "ab", "ba"}).Draw(t, "server") + "/" + rapid.SampledFrom([]string{"r", "re", "rx", "w"}).Draw(t, "tool"))
	in.Principal = rapid.SampledFrom([]string{"", "amy", "bob"}).Draw(t, "principal")
	in.Arguments = []byte(rapid.SampledFrom([]string{`{}`, `{"n":1}`, `{"n":5}`, `{"n":1,"n":2}`}).Draw(t, "arguments"))
	in.Taint = rapid.SliceOfN(rapid.SampledFrom([]string{"a", "ab", "ba"}), 0, 2).Draw(t, "taint")
	in.Rate = rapid.Int64Range(0, 4).Draw(t, "rate")
	in.Trusted = rapid.Bool().Draw(t, "trusted")
	in.HasApprover = rapid.Bool().Draw(t, "approver")
	if rapid.Bool().Draw(t, "hint") {
		in.Annotations.ReadOnly = new(rapid.Bool().Draw(t, "read_only"))
	}
	if level := rapid.Int64Range(-1, 4).Draw(t, "level"); level >= 0 {
		in.Claims = map[string]any{"level": level}
	}
	return in
}

// Decide, Explain and Never agree with the obvious implementation.
func TestTwin(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		spec := Spec{Default: rapid.SampledFrom([]Effect{"", Allow, Ask, Deny}).Draw(t, "default")}
		var rules []twinRule
		for _, effect := range []Effect{Deny, Ask, Allow} {
			for i := range rapid.IntRange(0, 4).Draw(t, string(effect)) {
				c := twinConditions[max(0, rapid.IntRange(-4, len(twinConditions)-1).Draw(t, "condition"))]
				r := twinRule{
					effect: effect, field: fmt.Sprintf("%s[%d]", effect, i), condition: c.text, truth: c.truth,
					server: rapid.SampledFrom([]string{"*", "a", "a*", "ab", "ba", "b*"}).Draw(t, "pattern"),
					tool:   rapid.SampledFrom([]string{"*", "r", "r*", "re", "w"}).Draw(t, "pattern"),
				}
				rules = append(rules, r)
				rule := Rule{Tool: r.server + "/" + r.tool, When: r.condition}
				switch effect {
				case Deny:
					spec.Deny = append(spec.Deny, rule)
				case Ask:
					spec.Ask = append(spec.Ask, rule)
				case Allow:
					spec.Allow = append(spec.Allow, rule)
				}
			}
		}
		p, err := Compile(spec)
		if err != nil {
			t.Fatal(err)
		}
		for range 8 {
			in := drawInput(t)
			want, winners := twin(rules, spec.Default, in)
			got := p.Decide(in)
			if got.Effect != want || !winners[got.Field] {
				t.Fatalf("%+v: %s by %s, want %s by one of %v", in, got.Effect, got.Field, want, winners)
			}
			if e := p.Explain(in); e.Decision != got || len(e.Losers) != len(rules)-yes(got.Rule != nil) {
				t.Fatalf("explained as %+v with %d losers", e.Decision, len(e.Losers))
			}
			if p.Never(in) {
				other := in
				other.Arguments = []byte(rapid.SampledFrom([]string{`{}`, `{"n":1}`, `{"n":5}`}).Draw(t, "other"))
				other.Rate = rapid.Int64Range(0, 4).Draw(t, "other")
				other.Taint = rapid.SliceOfN(rapid.SampledFrom([]string{"a", "ab", "ba"}), 0, 2).Draw(t, "other")
				for _, in := range []Input{in, other} {
					if d := p.Decide(in); d.Effect != Deny {
						t.Fatalf("never, and yet %+v for %+v", d, in)
					}
				}
			}
		}
	})
}

func FuzzCompile(f *testing.F) {
	for _, s := range []string{
		`"allow_all"`, `"allow"`, `{}`, `{"default":"ask"}`, `{"deny":["*/delete_*"],"ask":["github/*"],"allow":["github/get_*",{"tool":"*/*","when":"args.n > 3"}]}`,
		`{"allow":[{"tool":"a/*","when":"tainted(['x']) || claims.a.b in [1,2]","file":"f","line":3}]}`, `{"deny":["a/[x"],"deny":[]}`,
		`{"allow":[{"tool":"a/*","when":"args.l.all(x, args.l.exists(y, x == y)) && now.getHours() < 3"}]}`,
	} {
		f.Add([]byte(s), []byte(`{"n":1,"l":[1,2,3]}`), "github", "get_x")
	}
	f.Fuzz(func(t *testing.T, data, arguments []byte, server, tool string) {
		var spec Spec
		if json.Unmarshal(data, &spec) != nil {
			return
		}
		p, err := Compile(spec)
		if err != nil {
			for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
				if _, ok := e.(*SpecError); !ok {
					t.Errorf("%T: %v", e, e)
				}
			}
			return
		}
		in := Input{Server: server, Tool: tool, Arguments: arguments, Taint: []string{"x"}}
		d := p.Decide(in)
		if d != p.Explain(in).Decision || d != p.Decide(in) {
			t.Errorf("%+v is not what is explained", d)
		}
		if p.Never(in) && d.Effect != Deny {
			t.Errorf("never, and yet %+v", d)
		}
		// Stored and read again, it means the same.
		stored, err := json.Marshal(p.Spec())
		if err != nil {
			t.Fatal(err)
		}
		var again Spec
		if err := json.Unmarshal(stored, &again); err != nil {
			t.Fatalf("%s: %v", stored, err)
		}
		if q := compile(t, again).Decide(in); q.Effect != d.Effect || q.Field != d.Field {
			t.Errorf("%s: %+v became %+v", stored, d, q)
		}
	})
}
