package router

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/config"
	"toolhub/internal/mcp"
	"toolhub/internal/policy"
	"toolhub/internal/registry"
)

const (
	// apiQueue is the queue group in which the routers of a hub share operators' requests.
	apiQueue = "routers"
	// maxOperations bounds the operators' requests that run at the same time.
	maxOperations = 1024
)

// api is the operator API: JSON-RPC requests over the bus, whose method is the
// operation in their subject.
type api struct {
	engine  *engine
	started time.Time
}

// operations are the requests that are answered from the View.
var operations = map[string]func(*api, jsontext.Value) (any, error){
	"servers.list":             (*api).serversList,
	"tools.list":               (*api).toolsList,
	"resources.list":           itemsList(catalog.KindResource, "resources"),
	"resources.templates.list": itemsList(catalog.KindTemplate, "resourceTemplates"),
	"prompts.list":             itemsList(catalog.KindPrompt, "prompts"),
	"policy.explain":           (*api).policyExplain,
	"hub.status":               (*api).hubStatus,
}

// handle answers one request.
func (a *api) handle(ctx context.Context, in *bus.Incoming) (bus.Reply, error) {
	m, err := mcp.ParseMessage(in.Body, mcp.Strict)
	if err != nil {
		return bus.Reply{}, mcp.NewFault(mcp.KindInvalid, "invalid_request", "the request is no JSON-RPC: %v", err)
	}
	operation, known := operations[in.Meta.Method]
	d, delivers := deliveries[in.Meta.Method]
	if !known && !delivers {
		return bus.Reply{Body: mcp.AppendError(nil, m.ID, mcp.MethodNotFound(in.Meta.Method)), IsError: true}, nil
	}
	if !m.IsRequest() || m.Method != in.Meta.Method {
		return bus.Reply{}, mcp.NewFault(mcp.KindInvalid, "invalid_request", "the request must be a JSON-RPC request of the method in its subject, %q", in.Meta.Method)
	}
	if delivers {
		return a.deliver(ctx, in, &m, &d)
	}
	result, err := operation(a, m.Params)
	if err != nil {
		return bus.Reply{}, err
	}
	raw, err := json.Marshal(result, json.Deterministic(true))
	if err != nil {
		return bus.Reply{}, fmt.Errorf("couldn't encode the result of %s: %w", m.Method, err)
	}
	return bus.Reply{Body: mcp.AppendResult(nil, m.ID, raw)}, nil
}

// param is one member of an operation's params. Text goes into text, an object
// into object.
type param struct {
	name     string
	text     *string
	object   *jsontext.Value
	required bool
}

// readParams reads params strictly. The error names the member that is wrong and
// says what would be right.
func readParams(params jsontext.Value, want ...param) error {
	invalid := func(format string, args ...any) error {
		return mcp.NewFault(mcp.KindInvalid, "invalid_params", format, args...)
	}
	if params == nil {
		params = jsontext.Value("{}")
	}
	seen := make(map[string]bool, len(want))
	err := mcp.EachField(params, func(name string, v jsontext.Value) error {
		i := slices.IndexFunc(want, func(p param) bool { return p.name == name })
		switch {
		case i < 0 && len(want) == 0:
			return invalid("params.%.64s is unknown, this operation takes no params", name)
		case i < 0:
			names := make([]string, len(want))
			for i, p := range want {
				names[i] = p.name
			}
			return invalid("params.%.64s is unknown, there are %s", name, strings.Join(names, ", "))
		case want[i].text != nil && v.Kind() != '"':
			return invalid("params.%s must be a string", name)
		case want[i].object != nil && v.Kind() != '{':
			return invalid("params.%s must be an object", name)
		case want[i].text != nil:
			*want[i].text = mcp.Text(v)
		default:
			*want[i].object = v
		}
		seen[name] = true
		return nil
	})
	if err != nil {
		return err
	}
	for _, p := range want {
		if p.required && (!seen[p.name] || p.text != nil && *p.text == "") {
			return invalid("params.%s is missing", p.name)
		}
	}
	return nil
}

// serverStatus is one server as operators see it.
type serverStatus struct {
	ID     string          `json:"id"`
	Kind   config.Kind     `json:"kind"`
	Source registry.Source `json:"source"`
	State  registry.State  `json:"state"`
	// Ready says that its tools are listed and can be called.
	Ready bool      `json:"ready"`
	Since time.Time `json:"since,omitzero"`
	// Era and Version are of the protocol that the server speaks.
	Era     mcp.Era             `json:"era,omitempty"`
	Version string              `json:"version,omitempty"`
	Server  *mcp.Implementation `json:"server,omitempty"`
	// Tools counts the accepted tools of the catalog, hidden ones included.
	Tools     int       `json:"tools"`
	Catalog   string    `json:"catalog,omitempty"`
	LatencyMS float64   `json:"latency_ms,omitzero"`
	Attempts  int       `json:"attempts,omitzero"`
	Reason    string    `json:"reason,omitempty"`
	RetryAt   time.Time `json:"retry_at,omitzero"`
	Withheld  bool      `json:"withheld,omitzero"`
	// Owner is the worker that serves it, in Epoch.
	Owner    string             `json:"owner,omitempty"`
	Epoch    uint64             `json:"epoch,omitzero"`
	Stderr   []string           `json:"stderr,omitempty"`
	Rejected []catalog.Rejected `json:"rejected,omitempty"`
}

func statusOf(s *registry.Server) serverStatus {
	out := serverStatus{
		ID: s.ID(), Kind: s.Config.Kind(), Source: s.Definition.Source,
		State: s.State(), Ready: s.Ready(), Epoch: s.Epoch(),
	}
	if s.Catalog != nil {
		out.Tools, out.Catalog = len(s.Catalog.Tools), s.Catalog.Revision
	}
	if out.Epoch == 0 {
		out.Reason = "no worker runs it"
		return out
	}
	out.Owner = s.Own.Worker
	st := s.Status
	if st == nil {
		return out
	}
	out.Since, out.LatencyMS, out.Attempts, out.Reason, out.RetryAt = st.Since, st.LatencyMS, st.Attempts, st.Reason, st.RetryAt
	out.Withheld, out.Stderr, out.Rejected = st.Withheld, st.Stderr, st.Rejected
	if st.Info != nil {
		out.Era, out.Version, out.Server = st.Info.Era, st.Info.Version, &st.Info.Server
	}
	return out
}

func (a *api) serversList(params jsontext.Value) (any, error) {
	if err := readParams(params); err != nil {
		return nil, err
	}
	servers := []serverStatus{}
	for _, s := range a.engine.registry.View().Servers {
		servers = append(servers, statusOf(s))
	}
	return struct {
		Servers []serverStatus `json:"servers"`
	}{servers}, nil
}

// toolsList is the whole list as a principal sees it, or the part of one server,
// by exposed names; with a format it is what that model API takes.
func (a *api) toolsList(params jsontext.Value) (any, error) {
	var format, server, principal string
	err := readParams(params, param{name: "format", text: &format}, param{name: "server", text: &server}, param{name: "principal", text: &principal})
	if err != nil {
		return nil, err
	}
	set := a.engine.list("", caller{principal: principal}).set
	out := struct {
		ToolSet string             `json:"toolset"`
		Tools   jsontext.Value     `json:"tools"`
		Omitted []catalog.Rejected `json:"omitted,omitempty"`
	}{ToolSet: set.ID}
	if server != "" {
		if err := a.engine.known(server); err != nil {
			return nil, err
		}
		set = set.ToolsOf(server)
	}
	if format != "" {
		out.Tools, out.Omitted, err = set.Format(catalog.Format(format))
		if err != nil {
			return nil, mcp.NewFault(mcp.KindInvalid, "invalid_params", "params.format: %v", err)
		}
		return out, nil
	}
	out.Tools, _, err = set.Page(catalog.KindTool, "", false, 0)
	return out, err
}

// policyExplain says how a call would be decided, and why (P4).
func (a *api) policyExplain(params jsontext.Value) (any, error) {
	in := policy.Input{Now: time.Now()}
	err := readParams(params, param{name: "server", text: &in.Server, required: true}, param{name: "tool", text: &in.Tool, required: true},
		param{name: "arguments", object: &in.Arguments}, param{name: "principal", text: &in.Principal})
	if err != nil {
		return nil, err
	}
	s := a.engine.registry.View().Get(in.Server)
	if s == nil {
		return nil, unknownServer(in.Server)
	}
	if s.Policy == nil {
		return nil, &mcp.Fault{Kind: mcp.KindNotFound, Reason: "no_policy", Message: "the hub has no usable policy, so every call is denied", Server: in.Server}
	}
	out := struct {
		policy.Explanation `json:",inline"`

		// ToolKnown says that the server lists the tool, Selected that no filter
		// leaves it out; a call of any other is refused before the policy.
		ToolKnown bool `json:"tool_known"`
		Selected  bool `json:"selected"`
		// InputSchema is the tool's, so that arguments can be written to fit.
		InputSchema jsontext.Value `json:"input_schema,omitzero"`
	}{Selected: s.Filter.Selects(in.Server, in.Tool)}
	in.Trusted = s.Config.Trusted
	if s.Catalog != nil {
		var t *catalog.Tool
		if t, out.ToolKnown = s.Catalog.Tool(in.Tool); out.ToolKnown {
			in.Annotations = t.Annotations
			out.InputSchema = mcp.Field(t.Def, "inputSchema")
		}
	}
	out.Explanation = s.Policy.Explain(in)
	return out, nil
}

// hubStatus is the hub at a glance, as this router sees it.
func (a *api) hubStatus(params jsontext.Value) (any, error) {
	if err := readParams(params); err != nil {
		return nil, err
	}
	type status struct {
		Hub     string    `json:"hub"`
		Router  string    `json:"router"`
		Version string    `json:"version"`
		Started time.Time `json:"started"`
		// Configured says that a definition was applied, Live that what the router
		// knows is up to date.
		Configured bool `json:"configured"`
		Live       bool `json:"live"`
		// Servers counts the servers by state.
		Servers map[registry.State]int `json:"servers"`
		Tools   int                    `json:"tools"`
		ToolSet string                 `json:"toolset"`
		// NotesDropped and EventsDropped count what was lost on its way, since
		// somebody was too slow.
		NotesDropped  uint64 `json:"notes_dropped"`
		EventsDropped uint64 `json:"events_dropped"`
	}
	e := a.engine
	v, set := e.registry.View(), e.list("", caller{}).set
	out := status{
		Hub: e.conn.Hub(), Router: e.conn.Identity(), Version: Version(), Started: a.started.UTC(),
		Configured: v.Configured, Live: v.Live, Servers: map[registry.State]int{}, Tools: len(set.Entries), ToolSet: set.ID,
		NotesDropped: e.conn.NotesDropped(), EventsDropped: e.conn.EventsDropped(),
	}
	for _, s := range v.Servers {
		out.Servers[s.State()]++
	}
	return out, nil
}

// stringList reads a JSON array of strings.
func stringList(v jsontext.Value) ([]string, bool) {
	var out []string
	if v.Kind() != '[' || json.Unmarshal(v, &out) != nil {
		return nil, false
	}
	return out, true
}
