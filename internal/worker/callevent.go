package worker

import (
	"errors"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/config"
	"toolhub/internal/mcp"
)

// outcome is how a call ended, in one word for its event.
func (c *call) outcome(reply bus.Reply, err error) string {
	f, ok := errors.AsType[*mcp.Fault](err)
	switch {
	case ok && f.Reason != mcp.ReasonCancelled:
		return string(f.Kind)
	case err != nil:
		return "cancelled"
	case reply.IsError:
		return "error"
	case c.asks:
		return "input_required"
	}
	return "ok"
}

// callEvent is the data of the events call.<server>.{started,finished,denied}.
// It has arguments and results only where the audit is to have bodies.
type callEvent struct {
	CallID    string `json:"call_id"`
	Principal string `json:"principal,omitempty"`
	// Tool is the tool's own name, or the policy name of a resource or prompt.
	Tool string `json:"tool"`
	// Definition is the digest of the definition, "" of a resource that is not listed.
	Definition string `json:"definition,omitempty"`
	// Rule is where the deciding rule stands in the policy.
	Rule       string  `json:"rule,omitempty"`
	ToolSet    string  `json:"toolset,omitempty"`
	Outcome    string  `json:"outcome,omitempty"`
	DurationMS float64 `json:"duration_ms,omitzero"`
	// Arguments are of started and denied, Result is of finished.
	Arguments jsontext.Value `json:"arguments,omitzero"`
	Result    jsontext.Value `json:"result,omitzero"`
	// Truncated says that a body is left out.
	Truncated bool `json:"truncated,omitzero"`
}

// emit tells of the call in an event.
func (c *call) emit(what, outcome string, reply bus.Reply) {
	if c.message.Method == mcp.MethodComplete && what != "denied" {
		return // one for each letter that a user types
	}
	e := callEvent{
		CallID: c.in.Meta.CallID, Principal: c.in.Meta.Principal, Tool: c.policyName(), Definition: c.digest,
		Rule: c.decision.Field, ToolSet: c.in.Meta.ToolSet, Outcome: outcome,
	}
	if what == "finished" {
		e.DurationMS = float64(time.Since(c.start).Microseconds()) / 1000
	}
	if c.def.Config.Audit == config.AuditBodies {
		if what == "finished" {
			e.Result, e.Truncated = c.body(mcp.Field(reply.Body, "result"))
		} else {
			e.Arguments, e.Truncated = c.body(c.params.arguments)
		}
	}
	c.server.emit(bus.Event{Kind: "call", Subject: c.server.id, What: what, Data: e.json()})
}

// maxAuditBody bounds each body in an event.
const maxAuditBody = 32 << 10

// body is v as an event has it: without the server's secrets, and left out if it
// is too large or has what events cannot carry, such as a name twice.
func (c *call) body(v jsontext.Value) (body jsontext.Value, truncated bool) {
	if len(v) > maxAuditBody {
		return nil, true
	}
	v = c.server.secrets.json(v)
	if v == nil || v.IsValid() {
		return v, false
	}
	return nil, true
}

// json is what the tags say, made by hand since it happens twice in each call.
func (e *callEvent) json() jsontext.Value {
	b := make([]byte, 0, 256)
	member := func(name, value string) {
		b = append(b, `,"`...)
		b = append(b, name...)
		b = append(b, `":`...)
		b = mcp.AppendString(b, value)
	}
	optional := func(name, value string) {
		if value != "" {
			member(name, value)
		}
	}
	member("call_id", e.CallID)
	optional("principal", e.Principal)
	member("tool", e.Tool)
	optional("definition", e.Definition)
	optional("rule", e.Rule)
	optional("toolset", e.ToolSet)
	optional("outcome", e.Outcome)
	if e.DurationMS != 0 {
		b = append(b, `,"duration_ms":`...)
		b = strconv.AppendFloat(b, e.DurationMS, 'f', -1, 64)
	}
	if e.Arguments != nil {
		b = append(append(b, `,"arguments":`...), e.Arguments...)
	}
	if e.Result != nil {
		b = append(append(b, `,"result":`...), e.Result...)
	}
	if e.Truncated {
		b = append(b, `,"truncated":true`...)
	}
	b[0] = '{'
	return append(b, '}')
}
