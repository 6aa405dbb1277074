package worker

import (
	"context"
	"errors"
	"slices"

	"github.com/go-json-experiment/json"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
)

// Verbs of the control subjects that a worker takes, JSON-RPC requests whatever
// their method; a worker also takes those for [bus.AnyIdentity].
const (
	// ctlRefresh fetches the lists of the servers in params.servers now, of all if
	// there are none. The result names those that run here.
	ctlRefresh = "refresh"
	// ctlDrain ends the worker in order.
	ctlDrain = "drain"
)

// order is what came by a control subject, for the incarnation's goroutine.
type order struct {
	verb    string
	servers []string      // of refresh, nil for all
	found   *[]string     // those of them that run here
	done    chan struct{} // closed when it is obeyed
}

// serveControl takes control messages until stop is called.
func (in *incarnation) serveControl() (stop func(), err error) {
	var services []*bus.Service
	stop = func() {
		for _, s := range services {
			s.Stop()
		}
	}
	for _, identity := range []string{in.id, bus.AnyIdentity} {
		for _, verb := range []string{ctlRefresh, ctlDrain} {
			if identity == bus.AnyIdentity && verb == ctlDrain {
				continue // nobody means all at once
			}
			s, err := in.conn.Serve(bus.CtlSubject(in.conn.Hub(), identity, verb), "", 0, func(ctx context.Context, call *bus.Incoming) (bus.Reply, error) {
				return in.control(ctx, verb, call)
			})
			if err != nil {
				stop()
				return nil, err
			}
			services = append(services, s)
		}
	}
	return stop, nil
}

func (in *incarnation) control(ctx context.Context, verb string, call *bus.Incoming) (bus.Reply, error) {
	m, err := mcp.ParseMessage(call.Body, mcp.Strict)
	if err != nil || !m.IsRequest() {
		return bus.Reply{}, mcp.NewFault(mcp.KindInvalid, "invalid_request", "a control message must be a JSON-RPC request")
	}
	var params struct {
		Servers []string `json:"servers"`
	}
	if m.Params != nil {
		if err := json.Unmarshal(m.Params, &params); err != nil {
			return bus.Reply{}, mcp.NewFault(mcp.KindInvalid, "invalid_params", "params: %v", err)
		}
	}
	found := []string{}
	o := order{verb: verb, servers: params.Servers, found: &found, done: make(chan struct{})}
	gone := mcp.Unavailable("", "stopping", "the worker is stopping")
	select {
	case in.orders <- o:
	case <-ctx.Done():
		return bus.Reply{}, context.Cause(ctx)
	case <-in.hard.Done():
		return bus.Reply{}, gone
	}
	<-o.done // soon: whoever takes an order obeys without waiting
	value, err := json.Marshal(map[string][]string{"servers": found})
	if err != nil {
		return bus.Reply{}, errors.Join(errors.New("couldn't encode the answer"), err)
	}
	return result(m.ID, value), nil
}

// obey carries out an order on the incarnation's goroutine.
func (in *incarnation) obey(o order) {
	defer close(o.done)
	for id, h := range in.hosts {
		if o.servers == nil || slices.Contains(o.servers, id) {
			h.server.refresh()
			*o.found = append(*o.found, id)
		}
	}
	slices.Sort(*o.found)
}
