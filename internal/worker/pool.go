package worker

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// replicaPrefix begins the requestState that a pool hands out: a server with
// several replicas must get its own state back in the replica that made it (K6).
// Behind it come the number of the replica and, if there was one, ":" and the
// replica's own state.
const replicaPrefix = "toolhub-replica:"

// route chooses the connection for a call and makes the params that its server
// is to see: the replica that asked for input if this is the answer, else the
// one with the fewest calls.
func (c *call) route(live *serving) (*link, jsontext.Value, error) {
	params := c.message.Params
	if c.server.replicas <= 1 {
		return live.links[0], params, nil
	}
	number, own, pinned := unpinState(c.params.state)
	if !pinned {
		return leastBusy(live.links), params, nil
	}
	for _, l := range live.links {
		if l.replica == number {
			params, err := mcp.Edit(params, mcp.Change{Name: "requestState", Value: own})
			return l, params, err
		}
	}
	return nil, nil, mcp.Unavailable(c.server.id, mcp.ReasonBackend, "the replica of server %q that asked for input is not connected", c.server.id)
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

// pinState makes a result that asks for input come back to replica number.
func pinState(value jsontext.Value, number int) (jsontext.Value, error) {
	state := replicaPrefix + strconv.Itoa(number)
	if own := mcp.Field(value, "requestState"); own != nil {
		state += ":" + mcp.Text(own)
	}
	return mcp.Edit(value, mcp.Change{Name: "requestState", Value: mcp.QuoteString(state)})
}

// unpinState takes apart what pinState made; own is nil if the server gave no
// state. It reports false for any other state.
func unpinState(state jsontext.Value) (number int, own jsontext.Value, ok bool) {
	rest, ok := strings.CutPrefix(mcp.Text(state), replicaPrefix)
	if !ok {
		return 0, nil, false
	}
	digits, text, has := strings.Cut(rest, ":")
	number, err := strconv.Atoi(digits)
	if err != nil || number < 0 || strconv.Itoa(number) != digits {
		return 0, nil, false
	}
	if has {
		own = mcp.QuoteString(text)
	}
	return number, own, true
}
