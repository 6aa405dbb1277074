package policy

// Effect is what a rule or a decision says.
type Effect string

// The effects.
const (
	Allow Effect = "allow"
	// Ask needs an approval. Where there is no approver it amounts to Deny.
	Ask  Effect = "ask"
	Deny Effect = "deny"
)

// Spec is a policy as written. In JSON it is "allow_all", or an object with
// the members deny, ask, allow and default.
type Spec struct {
	// AllowAll is the policy that allows everything, by its name only (P1). It
	// has no other member.
	AllowAll bool
	Deny     []Rule
	Ask      []Rule
	Allow    []Rule
	// Default is the effect where no rule matches; "" asks where there is an
	// approver and denies where there is none.
	Default Effect
}

// Rule is one rule as written. In JSON it is the pattern as a string, or an
// object with the members tool and when (and file and line, if known).
type Rule struct {
	// Tool is a glob over "server/tool", see [catalog.CompilePattern].
	Tool string
	// When is a CEL expression of type bool, "" for none.
	When string
	// File and Line say where the rule was written, for errors and explanations.
	File string
	Line int
}

// SpecError is one thing wrong with a [Spec].
type SpecError struct {
	// Field is like "deny[2].when".
	Field string
	File  string
	Line  int
	// Message says what is wrong and what would be right.
	Message string
}

// Error implements error.
func (e *SpecError) Error() string { panic("later") }

// MarshalJSON implements the JSON form described at [Spec].
func (s Spec) MarshalJSON() ([]byte, error) { panic("later") }

// UnmarshalJSON implements the JSON form described at [Spec], strictly.
func (s *Spec) UnmarshalJSON(data []byte) error { panic("later") }

// MarshalJSON implements the JSON form described at [Rule].
func (r Rule) MarshalJSON() ([]byte, error) { panic("later") }

// UnmarshalJSON implements the JSON form described at [Rule], strictly.
func (r *Rule) UnmarshalJSON(data []byte) error { panic("later") }
