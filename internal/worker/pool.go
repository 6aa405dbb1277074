package worker

import (
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// route chooses the connection for a call and makes the params that its server
// is to see: for the retry of a request the replica that asked for input, with its
// own state (K6), else the replica with the fewest calls.
func (c *call) route(live *serving, back *envelope) (*link, jsontext.Value, error) {
	params := c.message.Params
	if back != nil {
		for _, l := range live.links {
			if l.replica == back.Replica {
				params, err := mcp.Edit(params, mcp.Change{Name: "requestState", Value: back.own})
				return l, params, err
			}
		}
		return nil, nil, mcp.Unavailable(c.server.id, mcp.ReasonBackend, "the replica of server %q that asked for input is not connected", c.server.id)
	}
	if c.server.replicas <= 1 {
		return live.links[0], params, nil
	}
	return leastBusy(live.links), params, nil
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
