package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/catalog"
)

// Policy is a compiled [Spec]. It is immutable and may be used concurrently.
type Policy struct {
	spec Spec
	// deny has the rules without a condition first, for they cost nothing;
	// grant has the ask and allow rules, the most specific first. The first
	// that matches in either is the one that counts.
	deny, grant ranking
	// rate says that a condition looks at the rate.
	rate bool
}

// rule is a compiled [Rule].
type rule struct {
	Rule
	effect  Effect
	field   string // "deny[2]"
	rank    int    // position in its ranking
	pattern *catalog.Pattern
	when    *condition // nil for none
	// says is the decision that the rule makes where its condition does not
	// fail, made once so that deciding costs no more than matching.
	says Decision
}

// Compile checks and compiles a policy. The error joins one [*SpecError] for
// each thing that is wrong, all of them.
func Compile(spec Spec) (*Policy, error) {
	p := &Policy{spec: spec}
	var problems []error
	problem := func(field string, r Rule, format string, args ...any) {
		problems = append(problems, &SpecError{Field: field, File: r.File, Line: r.Line, Message: fmt.Sprintf(format, args...)})
	}
	compile := func(effect Effect, rules []Rule) []*rule {
		out := make([]*rule, 0, len(rules))
		for i, r := range rules {
			c := &rule{Rule: r, effect: effect, field: fmt.Sprintf("%s[%d]", effect, i)}
			var err error
			if c.pattern, err = catalog.CompilePattern(r.Tool); err != nil {
				problem(c.field+".tool", r, "%v", err)
			}
			if r.When != "" {
				if c.when, err = compileCondition(r.When); err != nil {
					problem(c.field+".when", r, "%v", err)
				} else if c.when.rate {
					p.rate = true
				}
			}
			c.says = c.decision("")
			out = append(out, c)
		}
		return out
	}
	deny, ask, allow := compile(Deny, spec.Deny), compile(Ask, spec.Ask), compile(Allow, spec.Allow)
	switch spec.Default {
	case "", Allow, Ask, Deny:
	default:
		problem("default", Rule{}, "the default is %q, %q or %q, this is %q", Allow, Ask, Deny, string(spec.Default))
	}
	if spec.AllowAll {
		if len(deny)+len(ask)+len(allow) > 0 || spec.Default != "" {
			problem(AllowAllName, Rule{}, `%s stands alone; a policy with rules says allow: ["*/*"] instead`, AllowAllName)
		}
		allow = compile(Allow, []Rule{{Tool: "*/*"}})
	}
	if problems != nil {
		return nil, errors.Join(problems...)
	}
	slices.SortStableFunc(deny, func(a, b *rule) int { return compareBool(a.when != nil, b.when != nil) })
	grant := slices.Concat(ask, allow) // ask first: it wins ties
	slices.SortStableFunc(grant, moreSpecific)
	p.deny, p.grant = rank(deny), rank(grant)
	return p, nil
}

// moreSpecific orders ask and allow rules by P3; it is 0 for a tie.
func moreSpecific(a, b *rule) int {
	as, at := a.pattern.Literal()
	bs, bt := b.pattern.Literal()
	return cmp.Or(compareBool(b.when != nil, a.when != nil), cmp.Compare(bs, as), cmp.Compare(bt, at))
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// ranking is an ordered list of rules, laid out so that a decision looks only
// at those that can concern its server.
type ranking struct {
	all []*rule
	// byServer has the rules for one server only, other all the rest.
	byServer map[string][]*rule
	other    []*rule
}

func rank(rules []*rule) ranking {
	r := ranking{all: rules, byServer: make(map[string][]*rule)}
	for i, c := range rules {
		c.rank = i
		if id, ok := c.pattern.ServerID(); ok {
			r.byServer[id] = append(r.byServer[id], c)
		} else {
			r.other = append(r.other, c)
		}
	}
	return r
}

// first is the first rule, in order, whose pattern matches and that accept takes.
func (r *ranking) first(t *target, accept func(*rule) bool) *rule {
	own, other := r.byServer[t.server], r.other
	for len(own)+len(other) > 0 {
		var c *rule
		if len(other) == 0 || len(own) > 0 && own[0].rank < other[0].rank {
			c, own = own[0], own[1:]
			if !t.coveredBy(c) {
				continue
			}
		} else {
			c, other = other[0], other[1:]
			if !t.coveredBy(c) || !c.pattern.MatchServer(t.server) {
				continue
			}
		}
		if accept(c) {
			return c
		}
	}
	return nil
}

// Spec is the policy as written.
func (p *Policy) Spec() Spec { return p.spec }

// AllowAll reports whether this is the policy that allows everything (P1).
func (p *Policy) AllowAll() bool { return p.spec.AllowAll }

// UsesRate reports whether a condition looks at the rate, so that calls have to
// be counted for [Input.Rate].
func (p *Policy) UsesRate() bool { return p.rate }

// Input is a call to decide about.
type Input struct {
	// Server and Tool name the tool by the operator's id and the server's own name;
	// a resource or prompt by its [catalog.PolicyName].
	Server string
	Tool   string
	// Annotations are the server's hints, believed only if Trusted (P5).
	Annotations catalog.Annotations
	Trusted     bool
	// Arguments is the raw arguments object, nil if there is none. It is
	// decoded only if a condition needs it, strictly: one with duplicate names
	// makes every condition that uses it fail.
	Arguments jsontext.Value
	// Principal is who calls, as authenticated, "" if nobody in particular.
	Principal string
	Claims    map[string]any
	// Taint are the ids of the servers whose output is in the model's context.
	Taint []string
	// TaintUnknown says that nobody who could be believed has told it: a condition
	// that looks at it cannot be evaluated.
	TaintUnknown bool
	Now          time.Time
	// Rate is how many calls of this tool this principal has made in the last
	// minute, this one included; 0 is as good as 1.
	Rate int64
	// HasApprover says whether somebody could be asked.
	HasApprover bool
}

// hints are what conditions may assume. Reading a resource and getting a prompt
// change nothing, as the protocol has it; only who answers may be in doubt.
func (in *Input) hints() catalog.Hints {
	if kind, _ := catalog.CutPolicyName(in.Tool); kind != catalog.KindTool {
		return catalog.Hints{ReadOnly: true, Idempotent: true, OpenWorld: true}
	}
	return in.Annotations.Believe(in.Trusted)
}

// Decision is the answer, with what an audit event needs.
type Decision struct {
	Effect Effect `json:"effect"`
	// Rule is the rule that decided, nil where the default did.
	Rule *Rule `json:"rule,omitempty"`
	// Field is where that rule stands in the policy, like "deny[2]", or "default".
	Field string `json:"field"`
	// Reason says it in words, without arguments or claims.
	Reason string `json:"reason"`
	// Failed is why the condition of the rule could not be evaluated, "" if it could.
	Failed string `json:"failed,omitempty"`
}

// Decide decides about a call (P3).
func (p *Policy) Decide(in Input) Decision {
	e := evaluation{left: maxTotalCost}
	var failed string
	accept := func(r *rule) bool {
		if r.when != nil {
			e.begin(in)
		}
		var matches bool
		matches, failed = r.matches(&e)
		return matches
	}
	t := newTarget(in)
	won := p.deny.first(&t, accept)
	if won == nil {
		won = p.grant.first(&t, accept)
	}
	switch {
	case won == nil:
		return p.byDefault(in.HasApprover)
	case failed != "":
		return won.decision(failed)
	}
	return won.says
}

// evaluation is what the conditions of one decision share.
type evaluation struct {
	vars *variables // nil before the first condition
	left uint64     // what they may still cost
}

// begin makes the variables of the call, which most decisions never need.
func (e *evaluation) begin(in Input) {
	if e.vars == nil {
		e.vars = &variables{in: in, hints: in.hints()}
	}
}

// matches reports whether the condition lets the rule count. One that cannot be
// evaluated counts against the call.
func (r *rule) matches(e *evaluation) (matches bool, failed string) {
	if r.when == nil {
		return true, ""
	}
	is, failed := r.when.eval(e)
	if failed != "" {
		return r.effect != Allow, failed
	}
	return is, ""
}

func (r *rule) decision(failed string) Decision {
	d := Decision{Effect: r.effect, Rule: &r.Rule, Field: r.field, Failed: failed}
	d.Reason = fmt.Sprintf("%s by the rule %s (%s)", past(r.effect), r.Tool, r.field)
	switch {
	case failed != "":
		d.Reason += ", whose condition failed and so counts: " + failed
	case r.when != nil:
		d.Reason += ", whose condition is true"
	}
	return d
}

func past(e Effect) string {
	switch e {
	case Allow:
		return "allowed"
	case Deny:
		return "denied"
	}
	return "asked about"
}

func (p *Policy) byDefault(hasApprover bool) Decision {
	d := Decision{Effect: p.spec.Default, Field: "default"}
	switch {
	case d.Effect != "":
		d.Reason = past(d.Effect) + " by the policy's default: no rule matches"
	case hasApprover:
		d.Effect, d.Reason = Ask, "asked about: no rule matches"
	default:
		d.Effect, d.Reason = Deny, "denied: no rule matches, and there is nobody to ask"
	}
	return d
}

// Never reports whether every call of the tool would be denied, whatever its
// arguments, taint, time and rate (L2): an unconditional deny rule matches, or one
// whose condition is true and looks at none of them; or no ask or allow rule
// can match and the default is deny. Arguments, Taint,
// Now and Rate are not looked at.
func (p *Policy) Never(in Input) bool {
	e := evaluation{left: maxTotalCost}
	always := func(r *rule) bool {
		if r.when != nil {
			if r.when.varies {
				return false
			}
			e.begin(in)
		}
		matches, _ := r.matches(&e)
		return matches
	}
	t := newTarget(in)
	if p.deny.first(&t, always) != nil {
		return true
	}
	possible := func(r *rule) bool { return r.when != nil && r.when.varies || always(r) }
	return p.grant.first(&t, possible) == nil && p.byDefault(in.HasApprover).Effect == Deny
}
