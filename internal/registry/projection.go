package registry

import (
	"toolhub/internal/catalog"
	"toolhub/internal/policy"
)

// Projection decides which tools, resources and prompts of one server are offered (L2): equal ones offer
// the same to the same principal.
type Projection struct {
	Server string
	Filter *catalog.Selection
	// Policy is the server's, nil if it has none that could allow anything.
	Policy *policy.Policy
	// HideDenied leaves out what is denied whatever the arguments.
	HideDenied bool
	// Trusted says that the server's hints about its tools are believed.
	Trusted bool
}

// Projection is what decides which tools of s are offered.
func (s *Server) Projection() Projection {
	return Projection{
		Server: s.ID(), Filter: s.Filter, Policy: s.Policy, Trusted: s.Config.Trusted,
		HideDenied: s.Config.HideDenied == nil || *s.Config.HideDenied, // the default; a Config made by hand may lack it
	}
}

// Offers reports whether t is offered to the principal: the filter selects it,
// and not every call of it would be denied.
func (p *Projection) Offers(t *catalog.Tool, principal string) bool {
	if !p.Filter.Selects(p.Server, t.Name) {
		return false
	}
	if !p.HideDenied {
		return true
	}
	return p.Policy != nil && !p.Policy.Never(policy.Input{
		Server: p.Server, Tool: t.Name, Annotations: t.Annotations, Trusted: p.Trusted, Principal: principal,
	})
}

// OffersItem is Offers for a thing of another kind, by its key. The filter is about
// tools only.
func (p *Projection) OffersItem(kind catalog.Kind, key, principal string) bool {
	if !p.HideDenied {
		return true
	}
	return p.Policy != nil && !p.Policy.Never(policy.Input{Server: p.Server, Tool: catalog.PolicyName(kind, key), Principal: principal})
}
