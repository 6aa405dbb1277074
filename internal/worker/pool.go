package worker

import (
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// route chooses the connection for a request and makes its params: the replica
// that asked for input, if the caller comes back with that, with the server's
// own state (K6); else one of the caller's era, if the server is connected in
// both, that has the least to do.
func (c *call) route(live *serving, back *envelope) (*link, jsontext.Value, error) {
	params := c.message.Params
	if back != nil {
		for _, l := range live.links {
			if l.slot == back.Replica {
				params, err := mcp.Edit(params, mcp.Change{Name: "requestState", Value: back.own})
				return l, params, err
			}
		}
		return nil, nil, mcp.Unavailable(c.server.id, mcp.ReasonBackend, "the replica of server %q that asked for input is not connected", c.server.id)
	}
	links := live.links
	if c.server.mirror {
		era := mcp.EraModern
		if c.in.Meta.ClientEra == mcp.EraLegacy || live.legacyOnly[itemKey{c.params.kind, c.params.key}] {
			era = mcp.EraLegacy
		}
		// Any is better than none: what is of another era is translated.
		if same := slices.DeleteFunc(slices.Clone(links), func(l *link) bool { return l.era() != era }); len(same) > 0 {
			links = same
		}
	}
	if len(links) == 1 {
		return links[0], params, nil
	}
	return leastBusy(links), params, nil
}

func leastBusy(links []*link) *link {
	best, least := links[0], links[0].busy.Load()
	for _, l := range links[1:] {
		if n := l.busy.Load(); n < least {
			best, least = l, n
		}
	}
	return best
}
