package policy

import (
	"fmt"
	"slices"

	"toolhub/internal/catalog"
)

// Explanation is a decision with all that did not make it (P4).
type Explanation struct {
	Decision Decision `json:"decision"`
	// Hints are what the conditions were given for annotations.
	Hints catalog.Hints `json:"annotations"`
	// Losers are all other rules, those whose pattern matches first.
	Losers []Loser `json:"losers"`
}

// Loser is a rule that did not decide.
type Loser struct {
	Effect Effect `json:"effect"`
	Rule   *Rule  `json:"rule"`
	// Field is where the rule stands in the policy, like "ask[0]".
	Field string `json:"field"`
	// Matched says that pattern and condition match, so that only a stronger rule won.
	Matched bool `json:"matched"`
	// Why says what was missing, or what was stronger.
	Why string `json:"why"`
}

// Explain is Decide with reasons. Its decision is always Decide's.
func (p *Policy) Explain(in Input) Explanation {
	d := p.Decide(in)
	var shared evaluation
	shared.begin(in)
	e := Explanation{Decision: d, Hints: shared.vars.hints, Losers: []Loser{}}
	rules := slices.Concat(p.deny.all, p.grant.all)
	var won *rule
	for _, r := range rules {
		if r.field == d.Field {
			won = r
		}
	}
	var unmatched []Loser
	t := newTarget(in)
	for _, r := range rules {
		if r == won {
			continue
		}
		l := Loser{Effect: r.effect, Rule: &r.Rule, Field: r.field}
		switch {
		case !r.pattern.MatchServer(in.Server):
			l.Why = "its pattern does not match the server"
		case !t.coveredBy(r):
			l.Why = "its pattern does not match the tool"
			if r.pattern.MatchKey(t.kind, t.key) {
				l.Why = "its pattern matches the URI, but not where it leads"
			}
		default:
			// Each on a budget of its own: the decision is made already.
			var failed string
			shared.left = maxTotalCost
			l.Matched, failed = r.matches(&shared)
			switch {
			case !l.Matched && failed != "":
				l.Why = "its condition failed, which is no match for an allow rule: " + failed
			case !l.Matched:
				l.Why = "its condition is false"
			case won == nil: // only the budget of a decision can make that difference
				l.Why = "the conditions of this decision cost more than allowed before it came to this one"
			default:
				l.Why = won.beats(r)
			}
			e.Losers = append(e.Losers, l)
			continue
		}
		unmatched = append(unmatched, l)
	}
	e.Losers = append(e.Losers, unmatched...)
	return e
}

// beats says why r, which decided, is stronger than a rule that matches too.
func (r *rule) beats(other *rule) string {
	if r.effect == Deny {
		if other.effect == Deny {
			return r.field + " denies already"
		}
		return fmt.Sprintf("%s denies, and a deny rule wins", r.field)
	}
	s, t := r.pattern.Literal()
	os, ot := other.pattern.Literal()
	switch {
	case (r.when != nil) != (other.when != nil):
		return r.field + " is more specific: it has a condition"
	case s != os:
		return fmt.Sprintf("%s is more specific: %d literal characters of the server, this has %d", r.field, s, os)
	case t != ot:
		return fmt.Sprintf("%s is more specific: %d literal characters of the tool, this has %d", r.field, t, ot)
	case r.effect != other.effect:
		return fmt.Sprintf("%s is as specific, and ask wins a tie", r.field)
	}
	return r.field + " is as specific and stands before it"
}
