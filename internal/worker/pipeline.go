package worker

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
	"toolhub/internal/policy"
)

// handle answers one request from the bus. It is the only way to a server, so
// what it does not let through, nobody can call (P10).
func (s *server) handle(ctx context.Context, in *bus.Incoming) (bus.Reply, error) {
	// Strict: the policy must see the very arguments that the server will see.
	m, err := mcp.ParseMessage(in.Body, mcp.Strict)
	if err != nil {
		return bus.Reply{}, mcp.NewFault(mcp.KindInvalid, "invalid_request", "the call is no JSON-RPC request: %v", err)
	}
	if !m.IsRequest() || m.Method != in.Meta.Method {
		return bus.Reply{}, mcp.NewFault(mcp.KindInvalid, "invalid_request", "the call must be a JSON-RPC request of the method in its subject, %q", in.Meta.Method)
	}
	switch m.Method {
	case mcp.MethodToolsCall:
		return s.callTool(ctx, in, &m)
	case mcp.MethodToolsList:
		return s.listReply(in, &m)
	case mcp.MethodDiscover:
		return s.discoverReply(&m)
	case mcp.MethodPing:
		return result(m.ID, jsontext.Value(`{"resultType":"complete"}`)), nil
	}
	return bus.Reply{Body: mcp.AppendError(nil, m.ID, mcp.MethodNotFound(m.Method)), IsError: true}, nil
}

func result(id, value jsontext.Value) bus.Reply {
	body := make([]byte, 0, len(id)+len(value)+40)
	return bus.Reply{Body: mcp.AppendResult(body, id, value)}
}

// toolCall is what the pipeline reads of the params of tools/call.
type toolCall struct {
	name             string
	arguments        jsontext.Value // nil when absent, like all below
	meta             jsontext.Value
	state, responses jsontext.Value // of a caller that was asked for input
}

func readToolCall(params jsontext.Value) (toolCall, error) {
	var t toolCall
	wrong := func(name, kind string) error {
		return mcp.NewFault(mcp.KindInvalid, "invalid_params", "params.%s must be %s", name, kind)
	}
	if params == nil {
		return t, wrong("name", "a string")
	}
	named := false
	err := mcp.EachField(params, func(name string, v jsontext.Value) error {
		switch name {
		case "name":
			if named = v.Kind() == '"'; !named {
				return wrong(name, "a string")
			}
			t.name = mcp.Text(v)
		case "requestState":
			if v.Kind() != '"' {
				return wrong(name, "a string")
			}
			t.state = v
		case "arguments", "_meta", "inputResponses":
			if name == "arguments" && v.Kind() == 'n' {
				return nil // as good as absent; see mcp.ParseParams
			}
			if v.Kind() != '{' {
				return wrong(name, "an object")
			}
			switch name {
			case "arguments":
				t.arguments = v
			case "_meta":
				t.meta = v
			default:
				t.responses = v
			}
		}
		return nil
	})
	if err == nil && !named {
		err = wrong("name", "a string")
	}
	return t, err
}

// callTool is the pipeline: selection, policy, the request. What comes between
// and after these steps later (hooks, validation, shaping) has its place here.
func (s *server) callTool(ctx context.Context, in *bus.Incoming, m *mcp.Message) (bus.Reply, error) {
	params, err := readToolCall(m.Params)
	if err != nil {
		return bus.Reply{}, err
	}
	live, def := s.live.Load(), s.definition()
	tool, err := s.selectTool(live, def, params.name)
	if err != nil {
		return bus.Reply{}, err
	}
	c := &call{server: s, in: in, message: m, params: params, tool: tool, def: def, start: time.Now()}
	if err := c.decide(); err != nil {
		c.emit("denied", "denied", bus.Reply{})
		c.giveUp(err)
		return bus.Reply{}, err
	}
	c.emit("started", "", bus.Reply{})
	reply, err := c.send(ctx, live)
	c.emit("finished", c.outcome(reply, err), reply)
	return reply, err
}

// selectTool finds a tool that may be called: it is in the current accepted
// catalog and no filter leaves it out.
func (s *server) selectTool(live *serving, def *definition, name string) (*catalog.Tool, error) {
	if live.catalog == nil {
		return nil, live.unavailable
	}
	t, ok := live.catalog.Tool(name)
	if !ok || !def.Filter.Selects(s.id, name) {
		f := mcp.NewFault(mcp.KindNotFound, "unknown_tool", "server %q has no tool %.130q", s.id, name)
		f.Server = s.id
		return nil, f
	}
	if live.unavailable != nil {
		return nil, live.unavailable
	}
	return t, nil
}

// call is one tools/call on its way through the pipeline.
type call struct {
	server   *server
	in       *bus.Incoming
	message  *mcp.Message
	params   toolCall
	tool     *catalog.Tool
	def      *definition
	decision policy.Decision
	start    time.Time
	asks     bool // the result asks for input
}

// decide asks the policy. The fault says which rule refused the call.
func (c *call) decide() error {
	c.decision = c.def.decide(c)
	var f *mcp.Fault
	switch c.decision.Effect {
	case policy.Allow:
		return nil
	case policy.Ask:
		// Nobody can be asked yet, so an ask rule is a refusal with a hint.
		f = mcp.NewFault(mcp.KindDenied, "approval_required", "calling %s/%s needs an approval and this hub has no approver (%s)", c.server.id, c.tool.Name, c.decision.Field)
	default:
		f = mcp.NewFault(mcp.KindDenied, "policy", "calling %s/%s is denied by the policy (%s)", c.server.id, c.tool.Name, c.decision.Field)
	}
	if c.decision.Failed != "" {
		f.Message += "; its condition could not be evaluated for these arguments"
	}
	f.Server = c.server.id
	return f
}

func (d *definition) decide(c *call) policy.Decision {
	if d.Policy == nil {
		return policy.Decision{Effect: policy.Deny, Field: "default", Reason: "there is no usable policy"}
	}
	if d.cacheable {
		if known, ok := d.decisions.Load(c.tool.Name); ok {
			return known.(policy.Decision)
		}
	}
	in := policy.Input{
		Server: c.server.id, Tool: c.tool.Name,
		Annotations: c.tool.Annotations, Trusted: d.Config.Trusted,
		Arguments: c.params.arguments, Principal: c.in.Meta.Principal, Taint: c.in.Meta.Taint,
		TaintUnknown: !c.in.Meta.Signed, Now: c.start,
	}
	if d.Policy.UsesRate() {
		in.Rate = c.server.rates.count(c.tool.Name, c.in.Meta.Principal, c.start)
	}
	decision := d.Policy.Decide(in)
	if d.cacheable {
		d.decisions.Store(c.tool.Name, decision)
	}
	return decision
}

// send makes the request, at most once (K10), and its answer the reply.
func (c *call) send(ctx context.Context, live *serving) (bus.Reply, error) {
	back, err := c.unwrap()
	if err != nil {
		return bus.Reply{}, err
	}
	if back != nil && back.Place != "" {
		return c.resume(ctx, back.Place)
	}
	l, params, err := c.route(live, back)
	if err != nil {
		return bus.Reply{}, err
	}
	legacy := l.conn.Info().Era == mcp.EraLegacy
	if params, err = c.strip(params, legacy); err != nil {
		return bus.Reply{}, err
	}
	request := &mcp.Call{
		Method: mcp.MethodToolsCall, Params: params,
		Timeout: c.def.Config.Timeout.Std(), MaxTotal: c.def.Config.MaxTotalTimeout.Std(),
	}
	if legacy {
		return c.callLegacy(ctx, l, request)
	}
	request.Headers = mcp.ParamHeaderValues(c.tool.Headers, c.params.arguments)
	request.Notify = c.notify
	value, err := l.call(ctx, request)
	if err == nil && bytes.Contains(value, inputRequiredWord) && mcp.FieldString(value, "resultType") == mcp.ResultInputRequired {
		c.asks = true
		value, err = c.wrapAsk(value, l.replica)
	}
	return c.reply(value, err)
}

var (
	inputRequiredWord = []byte(`"input_required"`)
	hubMeta           = []byte(`"toolhub/`)
	tasksExtension    = "io.modelcontextprotocol/tasks"
)

// strip takes out of the params what is not for the server: what callers tell
// the hub in _meta; the extension of tasks, since nobody could ask the hub for
// the end of one; and what a legacy server would not know.
func (c *call) strip(params jsontext.Value, legacy bool) (jsontext.Value, error) {
	var changes []mcp.Change
	if legacy && c.params.state != nil {
		f := mcp.NewFault(mcp.KindInvalid, reasonUnknownState, "server %q gave no requestState", c.server.id)
		f.Server = c.server.id
		return nil, f
	}
	if legacy && c.params.responses != nil {
		changes = append(changes, mcp.Change{Name: "inputResponses"})
	}
	if bytes.Contains(c.params.meta, hubMeta) || bytes.Contains(c.params.meta, []byte(tasksExtension)) {
		meta, err := stripMeta(c.params.meta)
		if err != nil {
			return nil, err
		}
		changes = append(changes, mcp.Change{Name: "_meta", Value: meta})
	}
	if changes == nil {
		return params, nil
	}
	return mcp.Edit(params, changes...)
}

func stripMeta(meta jsontext.Value) (jsontext.Value, error) {
	var changes []mcp.Change
	err := mcp.EachField(meta, func(name string, v jsontext.Value) error {
		switch {
		case strings.HasPrefix(name, "toolhub/"):
			changes = append(changes, mcp.Change{Name: name})
		case name == mcp.MetaClientCapabilities:
			extensions := mcp.Field(v, "extensions")
			if mcp.Field(extensions, tasksExtension) == nil {
				return nil
			}
			extensions, err := mcp.Edit(extensions, mcp.Change{Name: tasksExtension})
			if err != nil {
				return err
			}
			capabilities, err := mcp.Edit(v, mcp.Change{Name: "extensions", Value: extensions})
			if err != nil {
				return err
			}
			changes = append(changes, mcp.Change{Name: name, Value: capabilities})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return mcp.Edit(meta, changes...)
}

// notify passes a notification of the server to the caller. That the caller
// cannot be reached just now shows at the end, where it sees the gap.
func (c *call) notify(method string, params jsontext.Value) {
	_ = c.in.Notify(notification(method, params))
}

func notification(method string, params jsontext.Value) []byte {
	return mcp.AppendRequest(make([]byte, 0, len(params)+len(method)+48), nil, method, params)
}

// reply makes a server's answer the reply: a result in modern form, or the
// server's own error.
func (c *call) reply(value jsontext.Value, err error) (bus.Reply, error) {
	if err == nil {
		if value, err = modernResult(value); err == nil {
			return result(c.message.ID, value), nil
		}
	}
	if e, ok := errors.AsType[*mcp.Error](err); ok {
		return bus.Reply{Body: mcp.AppendError(nil, c.message.ID, e), IsError: true}, nil
	}
	if f, ok := errors.AsType[*mcp.Fault](err); ok {
		named := *f
		named.Server = c.server.id
		if f.Kind == mcp.KindUnavailable && f.Reason != mcp.ReasonCancelled && !f.Retryable {
			named.Reason = mcp.ReasonOutcomeUnknown // the worker stopped while the server had the call
		}
		err = &named
	}
	return bus.Reply{}, err
}

var resultTypeName = []byte(`"resultType"`)

// modernResult adds resultType, which a legacy result has not. A modern
// result is returned as it is.
func modernResult(value jsontext.Value) (jsontext.Value, error) {
	if value.Kind() != '{' {
		return nil, mcp.NewFault(mcp.KindProtocol, "result", "the server's result is no JSON object")
	}
	// Searching bytes is far cheaper than parsing a large result. (An escaped
	// name would be missed, but nobody writes one in plain letters' stead.) In
	// valid JSON neither end can look like that by what is in a string: its quotes
	// would have backslashes.
	if bytes.HasPrefix(value, resultTypeFirst) || bytes.HasSuffix(value, resultTypeLast) || bytes.Contains(value, resultTypeName) && mcp.Field(value, "resultType") != nil {
		return value, nil
	}
	open := bytes.IndexByte(value, '{') + 1
	rest := bytes.TrimLeft(value[open:], " \t\r\n")
	out := make([]byte, 0, len(rest)+32)
	out = append(out, `{"resultType":"complete"`...)
	if rest[0] != '}' {
		out = append(out, ',')
	}
	return append(out, rest...), nil
}

var resultTypeFirst, resultTypeLast = []byte(`{"resultType":"`), []byte(`,"resultType":"complete"}`)

// listReply is the server's own list, for whoever looks at one server on the
// bus: what may be called, under the server's own names, in one page.
func (s *server) listReply(in *bus.Incoming, m *mcp.Message) (bus.Reply, error) {
	live, def := s.live.Load(), s.definition()
	if live.unavailable != nil {
		return bus.Reply{}, live.unavailable
	}
	offered := def.Projection()
	value := []byte(`{"resultType":"complete","tools":[`)
	for i := range live.catalog.Tools {
		t := &live.catalog.Tools[i]
		if !offered.Offers(t, in.Meta.Principal) {
			continue
		}
		if value[len(value)-1] != '[' {
			value = append(value, ',')
		}
		value = t.AppendDef(value, t.Name, false)
	}
	value = append(value, `],"ttlMs":0,"cacheScope":"private"}`...)
	return result(m.ID, value), nil
}

// discoverReply is what the server says of itself, as server/discover has it.
func (s *server) discoverReply(m *mcp.Message) (bus.Reply, error) {
	live := s.live.Load()
	if live.unavailable != nil {
		return bus.Reply{}, live.unavailable
	}
	info := live.links[0].conn.Info()
	d := mcp.Discovery{
		Capabilities: info.Capabilities, Instructions: info.Instructions,
		ServerInfo: mcp.ServerInfoJSON(info.Server.Name, info.Server.Version),
	}
	return result(m.ID, d.Result()), nil
}
