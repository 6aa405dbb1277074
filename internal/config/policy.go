package config

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/policy"
)

// AllowAll is the policy that allows everything; it is not a name that a policy
// can have.
const AllowAll = "allow_all"

// Policy is a policy in place, or the name of one of the hub's policies. In
// JSON and in a file it is "allow_all", a name, or rules.
type Policy struct {
	// Name is the name of a policy, "" for one in place.
	Name string
	// Spec is the policy in place.
	Spec policy.Spec
}

// MarshalJSON implements json.Marshaler.
func (p Policy) MarshalJSON() ([]byte, error) {
	if p.Name != "" {
		return json.Marshal(p.Name)
	}
	return json.Marshal(p.Spec)
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *Policy) UnmarshalJSON(data []byte) error {
	*p = Policy{}
	if jsontext.Value(data).Kind() != '"' {
		return json.Unmarshal(data, &p.Spec)
	}
	if err := json.Unmarshal(data, &p.Name); err != nil {
		return err
	}
	if p.Name == AllowAll {
		*p = Policy{Spec: policy.Spec{AllowAll: true}}
	}
	return nil
}

// Resolve is the policy that p means. The error says that there is none, or
// names one that the hub does not have.
func (s Settings) Resolve(p *Policy) (policy.Spec, error) {
	switch {
	case p == nil:
		return policy.Spec{}, errors.New("a policy is required")
	case p.Name == "":
		return p.Spec, nil
	}
	spec, ok := s.Policies[p.Name]
	if !ok {
		return policy.Spec{}, fmt.Errorf("there is no policy %q in policies", p.Name)
	}
	return spec, nil
}
