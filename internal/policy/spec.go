package policy

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

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

// AllowAllName is what [Spec.AllowAll] is called in files and JSON.
const AllowAllName = "allow_all"

// Rule is one rule as written. In JSON it is the pattern as a string, or an
// object with the members tool and when (and file and line, if known).
type Rule struct {
	// Tool is a glob over "server/tool", see [catalog.CompilePattern].
	Tool string
	// When is a CEL expression of type bool, "" for none. Besides what the call is
	// about it can look at rate, how many calls of this tool this principal has
	// made in the last minute, this one and refused ones included, as counted by
	// the worker that owns the server: {"tool": "mail/send", "when": "rate > 10"}
	// as a deny rule lets ten through.
	When string
	// File and Line say where the rule was written, for errors and explanations.
	File string
	Line int
}

// SpecError is one thing wrong with a [Spec].
type SpecError struct {
	// Field is like "deny[2].when".
	Field string
	// File and Line are the rule's, "" and 0 where there is none.
	File string
	Line int
	// Message says what is wrong and what would be right.
	Message string
}

// Error implements error.
func (e *SpecError) Error() string {
	s := e.Field + ": " + e.Message
	if e.Line > 0 {
		s = strconv.Itoa(e.Line) + ": " + s
		if e.File != "" {
			s = e.File + ":" + s
		}
	}
	return s
}

// specJSON and ruleJSON are the object forms.
type specJSON struct {
	Deny    []Rule `json:"deny,omitempty"`
	Ask     []Rule `json:"ask,omitempty"`
	Allow   []Rule `json:"allow,omitempty"`
	Default Effect `json:"default,omitempty"`
}

type ruleJSON struct {
	Tool string `json:"tool"`
	When string `json:"when,omitempty"`
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitzero"`
}

// MarshalJSON writes the JSON form described at [Spec].
func (s Spec) MarshalJSON() ([]byte, error) {
	if !s.AllowAll {
		return json.Marshal(specJSON{s.Deny, s.Ask, s.Allow, s.Default})
	}
	if len(s.Deny)+len(s.Ask)+len(s.Allow) > 0 || s.Default != "" {
		return nil, errors.New("a policy that is allow_all has no rules and no default")
	}
	return json.Marshal(AllowAllName)
}

// UnmarshalJSON reads the JSON form described at [Spec], strictly: unknown and
// duplicate members are errors.
func (s *Spec) UnmarshalJSON(data []byte) error {
	switch v := jsontext.Value(data); v.Kind() {
	case '"':
		var name string
		if err := json.Unmarshal(data, &name); err != nil {
			return err
		}
		if name != AllowAllName {
			return fmt.Errorf("a policy is %q or an object with deny, ask, allow and default, this is %q", AllowAllName, name)
		}
		*s = Spec{AllowAll: true}
		return nil
	case '{':
		var o specJSON
		if err := json.Unmarshal(data, &o, json.RejectUnknownMembers(true)); err != nil {
			return err
		}
		*s = Spec{Deny: o.Deny, Ask: o.Ask, Allow: o.Allow, Default: o.Default}
		return nil
	}
	return fmt.Errorf("a policy is %q or an object with deny, ask, allow and default", AllowAllName)
}

// MarshalJSON writes the JSON form described at [Rule].
func (r Rule) MarshalJSON() ([]byte, error) {
	if r.When == "" && r.File == "" && r.Line == 0 {
		return json.Marshal(r.Tool)
	}
	return json.Marshal(ruleJSON(r))
}

// UnmarshalJSON reads the JSON form described at [Rule], strictly: unknown and
// duplicate members are errors.
func (r *Rule) UnmarshalJSON(data []byte) error {
	switch v := jsontext.Value(data); v.Kind() {
	case '"':
		*r = Rule{}
		return json.Unmarshal(data, &r.Tool)
	case '{':
		var o ruleJSON
		if err := json.Unmarshal(data, &o, json.RejectUnknownMembers(true)); err != nil {
			return err
		}
		*r = Rule(o)
		return nil
	}
	return errors.New(`a rule is a pattern like "server/tool" or an object with tool and when`)
}
