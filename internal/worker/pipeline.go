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
	case mcp.MethodToolsCall, mcp.MethodResourcesRead, mcp.MethodPromptsGet, mcp.MethodComplete:
		return s.serve(ctx, in, &m)
	case mcp.MethodTasksGet, mcp.MethodTasksUpdate, mcp.MethodTasksCancel:
		return s.serveTask(ctx, in, &m)
	case mcp.MethodListen:
		return s.watch.listen(ctx, in, &m)
	case mcp.MethodToolsList, mcp.MethodResourcesList, mcp.MethodTemplatesList, mcp.MethodPromptsList:
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

// serve is the pipeline: selection, policy, the request. What comes between
// and after these steps later (hooks, validation, shaping) has its place here.
func (s *server) serve(ctx context.Context, in *bus.Incoming, m *mcp.Message) (bus.Reply, error) {
	params, err := readCallParams(m)
	if err != nil {
		return bus.Reply{}, err
	}
	live, def := s.live.Load(), s.definition()
	c := &call{server: s, in: in, message: m, params: params, def: def, start: time.Now()}
	if err := c.pick(live); err != nil {
		return bus.Reply{}, err
	}
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

// pick finds what the call is about. A tool or prompt must be in the current
// accepted catalog, and no filter may leave it out. A resource need not: links
// and templates lead to what is not listed, and the server knows what there is.
func (c *call) pick(live *serving) error {
	if live.catalog == nil {
		return live.unavailable
	}
	kind, key := c.params.kind, c.params.key
	known := false
	switch kind {
	case catalog.KindTool:
		var t *catalog.Tool
		if t, known = live.catalog.Tool(key); known {
			c.tool, c.digest = t, t.Digest
		}
		known = known && c.def.Filter.Selects(c.server.id, key)
	case catalog.KindPrompt:
		var p *catalog.Item
		if p, known = live.catalog.Prompt(key); known {
			c.digest = p.Digest
		}
	default:
		if r, ok := live.catalog.Resource(key); ok {
			c.digest = r.Digest
		}
		known = true
	}
	if !known {
		f := mcp.NewFault(mcp.KindNotFound, "unknown_"+string(kind), "server %q has no %s %.130q", c.server.id, kind, key)
		f.Server = c.server.id
		return f
	}
	if live.unavailable != nil {
		return live.unavailable
	}
	return nil
}

// call is one request on its way through the pipeline.
type call struct {
	server   *server
	in       *bus.Incoming
	message  *mcp.Message
	params   callParams
	tool     *catalog.Tool // nil if it is about none
	digest   string        // of the definition, "" of what is not listed
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
		f = mcp.NewFault(mcp.KindDenied, "approval_required", "%s %s/%s needs an approval and this hub has no approver (%s)", c.verb(), c.server.id, c.policyName(), c.decision.Field)
	default:
		f = mcp.NewFault(mcp.KindDenied, "policy", "%s %s/%s is denied by the policy (%s)", c.verb(), c.server.id, c.policyName(), c.decision.Field)
	}
	if c.decision.Failed != "" {
		f.Message += "; its condition could not be evaluated for these arguments"
	}
	f.Server = c.server.id
	return f
}

// policyName is what rules know the subject of the call by.
func (c *call) policyName() string { return catalog.PolicyName(c.params.kind, c.params.key) }

// verb is what the caller wants to do, for errors.
func (c *call) verb() string {
	switch c.message.Method {
	case mcp.MethodToolsCall:
		return "calling"
	case mcp.MethodResourcesRead:
		return "reading"
	case mcp.MethodPromptsGet:
		return "getting"
	}
	return "completing arguments of"
}

func (d *definition) decide(c *call) policy.Decision {
	if d.Policy == nil {
		return policy.Decision{Effect: policy.Deny, Field: "default", Reason: "there is no usable policy"}
	}
	name := c.policyName()
	cacheable := d.cacheable && c.digest != "" // of what is not listed there is no end
	if cacheable {
		if known, ok := d.decisions.Load(name); ok {
			return known.(policy.Decision)
		}
	}
	in := policy.Input{
		Server: c.server.id, Tool: name, Trusted: d.Config.Trusted,
		Arguments: c.params.arguments, Principal: c.in.Meta.Principal, Taint: c.in.Meta.Taint,
		TaintUnknown: !c.in.Meta.Signed, Now: c.start,
	}
	if c.tool != nil {
		in.Annotations = c.tool.Annotations
	}
	if d.Policy.UsesRate() {
		in.Rate = c.server.rates.count(name, c.in.Meta.Principal, c.start)
	}
	decision := d.Policy.Decide(in)
	if cacheable {
		d.decisions.Store(name, decision)
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
	legacy := l.era() == mcp.EraLegacy
	tasks := c.tool != nil && l.conn.Info().Tasks()
	if params, err = c.strip(params, legacy, tasks); err != nil {
		return bus.Reply{}, err
	}
	request := &mcp.Call{
		Method: c.message.Method, Params: params,
		Timeout: c.def.Config.Timeout.Std(), MaxTotal: c.def.Config.MaxTotalTimeout.Std(),
	}
	if legacy {
		return c.callLegacy(ctx, l, request)
	}
	if c.tool != nil {
		request.Headers = mcp.ParamHeaderValues(c.tool.Headers, c.params.arguments)
	}
	request.Notify = c.notify
	value, err := l.call(ctx, request)
	if err == nil && c.message.Method != mcp.MethodComplete && bytes.Contains(value, inputRequiredWord) && mcp.FieldString(value, "resultType") == mcp.ResultInputRequired {
		c.asks = true
		value, err = c.wrapAsk(value, l.slot)
	}
	if err == nil && bytes.Contains(value, taskWord) && mcp.FieldString(value, "resultType") == mcp.ResultTask {
		value, err = c.sealTask(value, l.slot)
	}
	return c.reply(value, err)
}

var (
	inputRequiredWord = []byte(`"input_required"`)
	taskWord          = []byte(`"task"`)
	hubMeta           = []byte(`"toolhub/`)
)

// strip takes out of the params what is not for the server: what callers tell
// the hub in _meta; the extension of tasks, where the server has none; and what a
// legacy server would not know.
func (c *call) strip(params jsontext.Value, legacy, tasks bool) (jsontext.Value, error) {
	var changes []mcp.Change
	if legacy && c.params.state != nil {
		f := mcp.NewFault(mcp.KindInvalid, reasonUnknownState, "server %q gave no requestState", c.server.id)
		f.Server = c.server.id
		return nil, f
	}
	if legacy && c.params.responses != nil {
		changes = append(changes, mcp.Change{Name: "inputResponses"})
	}
	if bytes.Contains(c.params.meta, hubMeta) || !tasks && bytes.Contains(c.params.meta, []byte(mcp.ExtensionTasks)) {
		meta, err := stripMeta(c.params.meta, tasks)
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

func stripMeta(meta jsontext.Value, tasks bool) (jsontext.Value, error) {
	var changes []mcp.Change
	err := mcp.EachField(meta, func(name string, v jsontext.Value) error {
		switch {
		case strings.HasPrefix(name, "toolhub/"):
			changes = append(changes, mcp.Change{Name: name})
		case name == mcp.MetaClientCapabilities && !tasks:
			extensions := mcp.Field(v, "extensions")
			if mcp.Field(extensions, mcp.ExtensionTasks) == nil {
				return nil
			}
			extensions, err := mcp.Edit(extensions, mcp.Change{Name: mcp.ExtensionTasks})
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
		if value, err = modernResult(value); err == nil && c.message.Method == mcp.MethodResourcesRead {
			value, err = uncached(value)
		}
		if err == nil {
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

// uncached adds to what was read that nobody may keep it, where the server does
// not say (2026-07-28, server/utilities/caching).
func uncached(value jsontext.Value) (jsontext.Value, error) {
	var changes []mcp.Change
	if mcp.Field(value, "ttlMs") == nil {
		changes = append(changes, mcp.Change{Name: "ttlMs", Value: jsontext.Value("0")})
	}
	if mcp.Field(value, "cacheScope") == nil {
		changes = append(changes, mcp.Change{Name: "cacheScope", Value: jsontext.Value(`"private"`)})
	}
	if changes == nil || mcp.FieldString(value, "resultType") != mcp.ResultComplete {
		return value, nil
	}
	return mcp.Edit(value, changes...)
}

// listReply is the server's own list, for whoever looks at one server on the
// bus: what may be called, under the server's own names, in one page.
func (s *server) listReply(in *bus.Incoming, m *mcp.Message) (bus.Reply, error) {
	live, def := s.live.Load(), s.definition()
	if live.unavailable != nil {
		return bus.Reply{}, live.unavailable
	}
	offered := def.Projection()
	kind, _ := catalog.ListedBy(m.Method)
	value := append([]byte(`{"resultType":"complete","`), kind.Listing().Member+`":[`...)
	comma := func() {
		if value[len(value)-1] != '[' {
			value = append(value, ',')
		}
	}
	switch kind {
	case catalog.KindTool:
		for i := range live.catalog.Tools {
			if t := &live.catalog.Tools[i]; offered.Offers(t, in.Meta.Principal) {
				comma()
				value = t.AppendDef(value, t.Name, false)
			}
		}
	default:
		for _, it := range live.catalog.List(kind) {
			if offered.OffersItem(kind, it.Key, in.Meta.Principal) {
				comma()
				value = it.AppendDef(value, it.Key)
			}
		}
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
