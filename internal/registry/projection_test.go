package registry_test

import (
	"strings"
	"testing"

	"toolhub/internal/registry"
)

// TestProjection: what is offered is what a filter selects and what could be
// allowed to that principal (L2).
func TestProjection(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.apply(`
policy:
  deny: [{tool: '*/admin', when: 'principal != "root"'}, '*/never']
  allow: ['*/*']
servers:
  a: {builtin: clock, tools: {exclude: ['a/filtered']}}
  b: {builtin: clock, hide_denied: false, tools: {exclude: ['b/filtered']}}
`)
	v := h.until("both", func(v *registry.View) bool { return ids(v) == "a b" })
	for server, want := range map[string]map[string]string{
		"a": {"": "plain", "alice": "plain", "root": "plain admin"},
		"b": {"": "plain admin never"},
	} {
		s := v.Get(server)
		p := s.Projection()
		if p != s.Projection() {
			t.Errorf("two projections of server %s are not equal", server)
		}
		c := listing(server, "plain", "admin", "never", "filtered")
		for principal, names := range want {
			var got []string
			for i := range c.Tools {
				if p.Offers(&c.Tools[i], principal) {
					got = append(got, c.Tools[i].Name)
				}
			}
			if strings.Join(got, " ") != names {
				t.Errorf("%s offers %q to %q, want %q", server, got, principal, names)
			}
		}
		p.Policy = nil
		if p.HideDenied && p.Offers(&c.Tools[0], "root") {
			t.Errorf("%s offers what no policy allows", server)
		}
	}
}
