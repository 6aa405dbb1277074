package router

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
	"toolhub/internal/registry"
)

// metaTaint is the key of _meta that lists the servers whose output is in the
// context of the caller's model (P9).
const metaTaint = "toolhub/taint"

// call sends a request to the owner of what it is about. The reply's body is a
// whole response with the caller's id. It goes out at most once, but for the case
// in which it provably never left.
func (e *engine) call(ctx context.Context, req *request, notify func(body []byte)) (bus.Reply, error) {
	var told told
	if err := told.read(req.params); err != nil {
		return bus.Reply{}, err
	}
	to, err := routes[req.method](e, req, told.toolSet)
	if err != nil {
		return bus.Reply{}, err
	}
	params := req.params
	if to.change != nil {
		if params, err = mcp.Edit(params, *to.change); err != nil {
			return bus.Reply{}, err
		}
	}
	out := &bus.Request{
		Sign: true,
		Body: mcp.AppendRequest(make([]byte, 0, len(params)+len(req.id)+80), req.id, req.method, params),
		Meta: bus.Meta{
			Principal: req.caller.principal, ClientEra: req.caller.era, ToolSet: to.toolSet, Taint: told.taint,
			Traceparent: told.traceparent, Tracestate: told.tracestate, Server: to.server,
		},
	}
	s, err := e.ready(to.server)
	if err != nil {
		return bus.Reply{}, err
	}
	set := e.list(req.scope, req.caller).set
	reply, err := e.deliver(ctx, s, req.method, told.parkedAt, out, notify)
	if err != nil {
		return bus.Reply{}, err
	}
	if reply, err = ownAnswer(reply, req.id, to.server); err != nil {
		return bus.Reply{}, err
	}
	return present(req, to.server, set, reply)
}

// deliver sends the call to s, or, if s turns out to be out of date, to the owner
// after that one: a call that nobody took has certainly not run.
func (e *engine) deliver(ctx context.Context, s *registry.Server, method, parkedAt string, out *bus.Request, notify func([]byte)) (bus.Reply, error) {
	reply, err := e.send(ctx, s, method, parkedAt, out, notify)
	if isReason(err, bus.ReasonNoResponders) {
		if now, _ := e.ready(s.ID()); now != nil && now.Epoch() != s.Epoch() {
			return e.send(ctx, now, method, parkedAt, out, notify)
		}
	}
	return reply, err
}

// send makes the call to the owner of s, or to the worker in which the call
// waits that this one continues (K6).
func (e *engine) send(ctx context.Context, s *registry.Server, method, parkedAt string, out *bus.Request, notify func([]byte)) (bus.Reply, error) {
	out.Subject, out.Worker = bus.CallSubject(e.conn.Hub(), s.ID(), s.Epoch(), method), s.Own.Worker
	if parkedAt == "" {
		return e.conn.Call(ctx, out, notify)
	}
	out.Subject, out.Worker = bus.AtSubject(e.conn.Hub(), parkedAt, s.ID(), method), parkedAt
	reply, err := e.conn.Call(ctx, out, notify)
	if isReason(err, bus.ReasonNoResponders) {
		f := mcp.NewFault(mcp.KindInvalid, "unknown_request_state", "no call waits under this requestState: its worker is gone; make the call again without it")
		f.Server = s.ID()
		err = f
	}
	return reply, err
}

func isReason(err error, reason string) bool {
	f, ok := errors.AsType[*mcp.Fault](err)
	return ok && f.Reason == reason
}

// ownAnswer is the reply as the answer to the request with id. The bytes of a
// worker's reply are it already; those of another program may not be.
func ownAnswer(reply bus.Reply, id jsontext.Value, server string) (bus.Reply, error) {
	if rest, ok := bytes.CutPrefix(reply.Body, []byte(`{"jsonrpc":"2.0","id":`)); ok && len(rest) > len(id) && bytes.HasPrefix(rest, id) && rest[len(id)] == ',' {
		return reply, nil
	}
	m, err := mcp.ParseMessage(reply.Body, mcp.Lenient)
	switch {
	case err == nil && m.Err != nil:
		return bus.Reply{Body: mcp.AppendError(nil, id, m.Err), IsError: true}, nil
	case err == nil && m.IsResponse():
		return bus.Reply{Body: mcp.AppendResult(nil, id, m.Result)}, nil
	}
	f := mcp.NewFault(mcp.KindProtocol, "reply", "what answered for the server sent no JSON-RPC response")
	f.Server = server
	return bus.Reply{}, f
}

// ready is the server with id if it takes calls; the error says why it does not.
func (e *engine) ready(id string) (*registry.Server, error) {
	s := e.registry.View().Get(id)
	switch {
	case s == nil:
		return nil, unknownServer(id)
	case s.Ready():
		return s, nil
	}
	return nil, mcp.Unavailable(id, mcp.ReasonBackend, "server %q is %s, it cannot be called just now", id, describeState(s))
}

func describeState(s *registry.Server) string {
	switch state := s.State(); {
	case state.Serving() && s.Status.Withheld:
		return "withheld, since its list cannot be read"
	case state.Serving():
		return "starting"
	case state == registry.StateFailed:
		return "failing"
	default:
		return string(state)
	}
}

// told is what a call says beside what it is about.
type told struct {
	toolSet                 string
	taint                   []string
	traceparent, tracestate string
	// parkedAt is the worker in which the call waits that this one continues, "" if none.
	parkedAt string
}

// words occur in the params of a call that tells something; most tell nothing,
// and searching is far cheaper than parsing.
var words = [][]byte{[]byte("toolhub"), []byte("traceparent"), []byte("requestState")}

func (t *told) read(params jsontext.Value) error {
	tells := false
	for _, w := range words {
		tells = tells || bytes.Contains(params, w)
	}
	if !tells {
		return nil
	}
	var meta jsontext.Value
	err := mcp.EachField(params, func(name string, v jsontext.Value) error {
		switch name {
		case "requestState":
			t.parkedAt, _ = bus.ParkedAt(mcp.Text(v))
		case "_meta":
			meta = v
		}
		return nil
	})
	if err != nil || meta == nil {
		return err
	}
	return mcp.EachField(meta, func(name string, v jsontext.Value) error {
		switch name {
		case "traceparent":
			t.traceparent = mcp.Text(v)
		case "tracestate":
			t.tracestate = mcp.Text(v)
		case metaToolSet:
			if v.Kind() != '"' {
				return mcp.NewFault(mcp.KindInvalid, "invalid_params", "params._meta[%q] must be a string", metaToolSet)
			}
			t.toolSet = mcp.Text(v)
		case metaTaint:
			var ok bool
			if t.taint, ok = stringList(v); !ok {
				return mcp.NewFault(mcp.KindInvalid, "invalid_params", "params._meta[%q] must be a list of server ids", metaTaint)
			}
		}
		return nil
	})
}

// ownersGrace is how long replies may still come after the news that their
// worker has given its server up: the two travel by different connections.
const ownersGrace = 100 * time.Millisecond

// tenure is one epoch of the ownership of a server.
type tenure struct {
	epoch  uint64
	worker string
}

// watchOwners ends the calls that wait for an owner that is none any more. Such
// an owner may have taken them or not, so what became of them is unknown.
func (e *engine) watchOwners(ctx context.Context) error {
	type ending struct {
		server string
		tenure tenure
		at     time.Time
	}
	owners := make(map[string]tenure)
	var endings []ending // the next one first
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		v := e.registry.View()
		for server, t := range owners {
			if s := v.Get(server); s == nil || s.Epoch() != t.epoch {
				endings = append(endings, ending{server, t, time.Now().Add(ownersGrace)})
				delete(owners, server)
			}
		}
		for _, s := range v.Servers {
			if s.Epoch() != 0 {
				owners[s.ID()] = tenure{s.Epoch(), s.Own.Worker}
			}
		}
		for len(endings) > 0 && !time.Now().Before(endings[0].at) {
			e.conn.AbandonEpoch(endings[0].server, endings[0].tenure.epoch, endings[0].tenure.worker)
			endings = endings[1:]
		}
		timer.Stop()
		if len(endings) > 0 {
			timer.Reset(time.Until(endings[0].at))
		}
		select {
		case <-v.Superseded():
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
