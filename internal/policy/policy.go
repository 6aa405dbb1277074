package policy

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/catalog"
)

// Policy is a compiled [Spec]. It is immutable and may be used concurrently.
type Policy struct{}

// Compile checks and compiles a policy. The error joins one [*SpecError] for
// each thing that is wrong, all of them.
func Compile(spec Spec) (*Policy, error) { panic("later") }

// AllowAll reports whether this is the policy that allows everything (P1).
func (p *Policy) AllowAll() bool { panic("later") }

// Input is a call to decide about.
type Input struct {
	// Server and Tool name the tool by the operator's id and the server's own name.
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
	Now   time.Time
	// HasApprover says whether somebody could be asked.
	HasApprover bool
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
func (p *Policy) Decide(in Input) Decision { panic("later") }

// Never reports whether every call of the tool would be denied, whatever its
// arguments, taint and time (L2): an unconditional deny rule matches, or one
// whose condition is true and looks at none of them; or no ask or allow rule
// can match and the default is deny. Arguments, Taint and Now are not looked at.
func (p *Policy) Never(in Input) bool { panic("later") }

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
	Field  string `json:"field"`
	// Matched says that pattern and condition match, so that only a stronger rule won.
	Matched bool `json:"matched"`
	// Why says what was missing, or what was stronger.
	Why string `json:"why"`
}

// Explain is Decide with reasons. Its decision is always Decide's.
func (p *Policy) Explain(in Input) Explanation { panic("later") }
