package router

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
)

const (
	// maxRounds bounds how often one call may ask its caller for input.
	maxRounds = 10
	// inputTimeout is how long a client may take to answer: a person may be behind it.
	inputTimeout = 10 * time.Minute
	// retryDelay is how long a call waits before it is repeated that asked for
	// nothing but that; it doubles each time.
	retryDelay = 100 * time.Millisecond
	// abandonTimeout bounds the telling of a worker that nobody comes back to it.
	abandonTimeout = 5 * time.Second
)

// do calls the engine for a client of the initialize era. Where a server wants
// input, the client is asked in requests of its era while its call goes on, and
// the call is repeated with the answers.
func (c *legacyCall) do(ctx context.Context, req *request) []byte {
	original := req.params
	notify := func(body []byte) { _ = c.send(body) }
	var state jsontext.Value // of a round whose answers the worker does not have yet
	defer func() { c.abandon(ctx, req, original, state) }()
	for round := 1; ; round++ {
		state = nil
		a := c.f.engine.do(ctx, req, notify)
		if a.err != nil {
			if e := mcp.LegacyError(a.err, req.method); e != a.err {
				return mcp.AppendError(nil, req.id, e)
			}
			return a.body
		}
		if _, ok := catalog.ListedBy(req.method); ok {
			return a.body // it is in the caller's era
		}
		body, info, err := mcp.LegacyResponse(a.body, req.method)
		switch {
		case err != nil:
			return c.fail(mcp.NewFault(mcp.KindProtocol, "bad_response", "the server's response cannot be understood: %v", err))
		case info.Type == mcp.ResultComplete:
			return body
		case info.Type != mcp.ResultInputRequired:
			return c.fail(mcp.NewFault(mcp.KindProtocol, "result_type", "the server answers with a result of type %.40q, which MCP %s cannot say", info.Type, c.record.Version))
		}
		state = info.RequestState
		switch {
		case round == maxRounds:
			return c.fail(mcp.NewFault(mcp.KindProtocol, "too_many_rounds", "the server asked for input %d times, which is the limit", maxRounds))
		}
		var given answers
		if info.InputRequests == nil {
			err = pause(ctx, retryDelay<<(round-1))
		} else {
			_, parked := bus.ParkedAt(mcp.Text(state))
			given, err = c.ask(ctx, info.InputRequests, parked)
		}
		if err != nil {
			return mcp.AppendError(nil, req.id, toError(err))
		}
		if req.params, err = given.edit(original, state); err != nil {
			return mcp.AppendError(nil, req.id, toError(err))
		}
	}
}

// abandon ends the call that waits in a worker for answers that do not come. A
// server that has answered holds nothing, so there is nobody to tell.
func (c *legacyCall) abandon(ctx context.Context, req *request, original, state jsontext.Value) {
	if _, parked := bus.ParkedAt(mcp.Text(state)); !parked {
		return
	}
	again := *req
	var err error
	if again.params, err = (answers{refused: jsontext.Value(bus.RefusedAll)}).edit(original, state); err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout) // it may be over for ctx's end
	defer cancel()
	c.f.engine.do(ctx, &again, nil) // what it says is of no interest: it has ended, or will for want of answers
}

// answers are what a client has answered to all that a server wanted to know.
type answers struct {
	responses jsontext.Value // nil if nothing was asked
	refused   jsontext.Value // what [bus.MetaRefused] says, nil if nothing was
}

// edit makes the params of the next round of a request.
func (a answers) edit(params, state jsontext.Value) (jsontext.Value, error) {
	changes := []mcp.Change{{Name: "inputResponses", Value: a.responses}, {Name: "requestState", Value: state}}
	if a.refused != nil {
		meta, err := mcp.Edit(mcp.Field(params, "_meta"), mcp.Change{Name: bus.MetaRefused, Value: a.refused})
		if err != nil {
			return nil, err
		}
		changes = append(changes, mcp.Change{Name: "_meta", Value: meta})
	}
	return mcp.Edit(params, changes...)
}

func (c *legacyCall) fail(f *mcp.Fault) []byte { return mcp.AppendError(nil, c.message.ID, f.RPC()) }

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// question is one request to the client.
type question struct {
	key    string // what the server calls it
	method string
	id     jsontext.Value
	answer chan []byte
}

// ask asks the client all that a server wants to know, at once, and waits for
// the answers. It returns them as the server gets them. Only a call that waits in
// a worker can go on with a refusal; MCP has no word for it.
func (c *legacyCall) ask(ctx context.Context, requests jsontext.Value, parked bool) (answers, error) {
	var questions []*question
	var bodies [][]byte
	err := mcp.EachField(requests, func(key string, v jsontext.Value) error {
		q := &question{key: key, method: mcp.FieldString(v, "method"), id: mcp.QuoteString("toolhub-" + rand.Text()), answer: make(chan []byte, 1)}
		params := mcp.Field(v, "params")
		if err := c.allowed(q.method, params); err != nil {
			return err
		}
		params, err := c.legacyInput(q.method, params)
		if err != nil {
			return err
		}
		questions = append(questions, q)
		bodies = append(bodies, mcp.AppendRequest(nil, q.id, q.method, params))
		return nil
	})
	if err != nil {
		return answers{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, inputTimeout, mcp.NewFault(mcp.KindTimeout, "input", "the client did not give the input that the server asked for within %s", inputTimeout))
	defer cancel()
	for i, q := range questions {
		defer c.expect(q.id, q.answer)()
		if err := c.send(bodies[i]); err != nil {
			c.withdraw(questions[:i])
			return answers{}, mcp.NewFault(mcp.KindTransport, "input", "the server asks for input (%s), and the client cannot be asked: %v", q.method, err)
		}
	}
	responses, refused := []byte{'{'}, []byte{'{'}
	for i, q := range questions {
		select {
		case body := <-q.answer:
			m, err := mcp.ParseMessage(body, mcp.Lenient)
			switch {
			case err != nil:
				err = mcp.NewFault(mcp.KindInvalid, "input", "the client's answer to %s cannot be understood: %v", q.method, err)
			case m.Err != nil && q.method != mcp.MethodElicit && parked:
				refused = appendMember(refused, q.key, m.Err.JSON())
				continue
			case m.Err != nil && q.method != mcp.MethodElicit:
				err = mcp.NewFault(mcp.KindInvalid, "input", "the client refused %s: %s", q.method, m.Err.Message)
			case m.Err != nil:
				// What asked may be waiting with all its state, and this it understands.
				m.Result = jsontext.Value(`{"action":"cancel"}`)
			}
			if err != nil {
				c.withdraw(questions[i+1:])
				return answers{}, err
			}
			responses = appendMember(responses, q.key, m.Result)
		case <-ctx.Done():
			c.withdraw(questions[i:])
			return answers{}, context.Cause(ctx)
		}
	}
	out := answers{responses: append(responses, '}')}
	if len(refused) > 1 {
		out.refused = append(refused, '}')
	}
	return out, nil
}

// appendMember appends to an object that is not closed yet.
func appendMember(b []byte, name string, value jsontext.Value) []byte {
	if len(b) > 1 {
		b = append(b, ',')
	}
	return append(append(mcp.AppendString(b, name), ':'), value...)
}

// withdraw tells the client that questions need no answer any more.
func (c *legacyCall) withdraw(questions []*question) {
	for _, q := range questions {
		params := append(append([]byte(`{"requestId":`), q.id...), '}')
		_ = c.send(mcp.AppendRequest(nil, nil, mcp.NotifyCancelled, params)) // a client that is gone needs no telling
	}
}

// inputMethods are the requests that a server may make of a client, by the
// capability that allows them.
var inputMethods = map[string]string{
	mcp.MethodElicit:    mcp.CapabilityElicitation,
	mcp.MethodSample:    mcp.CapabilitySampling,
	mcp.MethodRootsList: mcp.CapabilityRoots,
}

// allowed reports an error for what this client cannot be asked.
func (c *legacyCall) allowed(method string, params jsontext.Value) error {
	capability, ok := inputMethods[method]
	if !ok {
		return mcp.NewFault(mcp.KindProtocol, "input", "the server asks for input by %.60q, which MCP %s does not have", method, c.record.Version)
	}
	declared := mcp.Field(c.record.Capabilities, capability)
	if declared != nil && capability == mcp.CapabilityElicitation {
		// {} means forms.
		mode := elicitMode(params)
		if mode != "form" || mcp.Field(declared, "url") != nil {
			declared = mcp.Field(declared, mode)
		}
		capability += "." + mode
	}
	if declared == nil {
		return &mcp.Error{Code: mcp.CodeInvalidRequest, Message: fmt.Sprintf("the server asks for input by %s, and the client did not declare the capability %q in initialize", method, capability)}
	}
	return nil
}

func elicitMode(params jsontext.Value) string {
	if mode := mcp.FieldString(params, "mode"); mode != "" {
		return mode
	}
	return "form"
}

// legacyInput is the params of a request to the client in the client's version.
func (c *legacyCall) legacyInput(method string, params jsontext.Value) (jsontext.Value, error) {
	if method != mcp.MethodElicit {
		return params, nil
	}
	if !slices.Contains([]string{"form", "url"}, elicitMode(params)) {
		return nil, mcp.NewFault(mcp.KindProtocol, "input", "the server asks for input in the mode %.40q, which MCP %s does not have", elicitMode(params), c.record.Version)
	}
	switch {
	case c.record.Version < mcp.Version20251125:
		return mcp.Edit(params, mcp.Change{Name: "mode"})
	case elicitMode(params) == "url" && mcp.Field(params, "elicitationId") == nil:
		return mcp.Edit(params, mcp.Change{Name: "elicitationId", Value: mcp.QuoteString(rand.Text())})
	}
	return params, nil
}
