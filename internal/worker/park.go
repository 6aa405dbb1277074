package worker

import (
	"bytes"
	"context"
	"crypto/rand"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
)

// Bounds on calls that wait for input of their callers.
const (
	// parkFor is how long a call waits for its caller to come back.
	parkFor = 5 * time.Minute
	// maxParked bounds the calls that wait in one worker.
	maxParked = 1000
	// maxQuestions bounds what one call asks at a time.
	maxQuestions = 16
	// maxHeld bounds the notifications that are kept for a caller that is away.
	maxHeld = 256
)

// parked is a call to a legacy server that may ask its caller for input: the
// server's request ends the caller's call with a result that says what is
// wanted, while the call to the server goes on. Whoever brings the answers,
// and knows the secret in the requestState, gets the rest of it.
//
//	attended ──the server asks──► waiting in the lot ──the caller returns──► attended
type parked struct {
	first  *call
	lot    *lot
	cancel context.CancelCauseFunc // of the call to the server
	asked  chan struct{}           // has a token when there is a new question
	done   chan struct{}           // closed when the server has answered
	value  jsontext.Value          // set before done is closed, like err
	err    error

	mu        sync.Mutex
	in        *bus.Incoming // the caller, nil while it is away
	abilities abilities     // of the caller
	held      [][]byte      // notifications for a caller that is away
	questions []*question   // open ones, in the order asked
	count     int           // of all questions
}

// question is a request of the server's that waits for its answer.
type question struct {
	key     string
	request jsontext.Value // as a member of inputRequests
	answer  chan answer    // has room for the only one
}

type answer struct {
	value jsontext.Value
	err   *mcp.Error
}

// callLegacy makes a call to a legacy server. Only for a caller that can be
// asked something does it outlive this one request.
func (c *call) callLegacy(ctx context.Context, l *link, request *mcp.Call) (bus.Reply, error) {
	able := abilitiesOf(c.params.meta)
	if able == (abilities{}) {
		request.Notify = c.notify
		value, err := l.call(ctx, request)
		return c.replyLegacy(able, value, err)
	}
	callCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	p := &parked{
		first: c, lot: c.server.lot, cancel: cancel, in: c.in, abilities: able,
		asked: make(chan struct{}, 1), done: make(chan struct{}),
	}
	request.Notify, request.Request = p.notify, p.request
	c.server.calls.Go(func() {
		defer close(p.done)
		defer cancel(nil)
		p.value, p.err = l.call(callCtx, request)
	})
	return p.attend(ctx, c)
}

// resume goes on with the call that waits under c's requestState.
func (c *call) resume(ctx context.Context) (bus.Reply, error) {
	answers, err := readAnswers(c.params.responses)
	if err != nil {
		return bus.Reply{}, err
	}
	p, err := c.server.lot.take(c)
	if err != nil {
		return bus.Reply{}, err
	}
	p.attach(c, answers)
	return p.attend(ctx, c)
}

// giveUp ends the call that c wanted to continue and must not: it would only be
// in the way of others.
func (c *call) giveUp(why error) {
	if p, err := c.server.lot.take(c); err == nil {
		p.cancel(why)
	}
}

// attend waits with the caller until the server has answered or asks something.
func (p *parked) attend(ctx context.Context, c *call) (bus.Reply, error) {
	for {
		select {
		case <-p.done:
			return c.replyLegacy(p.abilities, p.value, p.err)
		case <-ctx.Done():
			p.cancel(context.Cause(ctx))
			<-p.done
			return c.replyLegacy(p.abilities, p.value, p.err)
		case <-p.asked:
			if value := p.park(); value != nil {
				c.asks = true
				return result(c.message.ID, value), nil
			}
		}
	}
}

// park lets the caller go with the open questions, nil if there are none.
func (p *parked) park() jsontext.Value {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.questions) == 0 {
		return nil // withdrawn meanwhile
	}
	state, ok := p.lot.add(p)
	if !ok {
		for _, q := range p.questions {
			q.answer <- answer{err: &mcp.Error{Code: mcp.CodeInternal, Message: "too many calls wait for input of their callers"}}
		}
		p.questions = nil
		return nil
	}
	p.in = nil
	keys := make([]string, 0, len(p.questions))
	requests := make(map[string]jsontext.Value, len(p.questions))
	for _, q := range p.questions {
		keys, requests[q.key] = append(keys, q.key), q.request
	}
	return inputRequired(keys, requests, state)
}

// attach gives the call to a caller that came back, with what it was kept, and
// the answers to the server. What is left unanswered is asked again.
func (p *parked) attach(c *call, answers map[string]jsontext.Value) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.in, p.abilities = c.in, abilitiesOf(c.params.meta)
	for _, body := range p.held {
		_ = c.in.Notify(body)
	}
	p.held = nil
	p.questions = slices.DeleteFunc(p.questions, func(q *question) bool {
		value, ok := answers[q.key]
		if ok {
			q.answer <- answer{value: legacyResponse(value)}
		}
		return ok
	})
	if len(p.questions) > 0 {
		p.tell()
	}
}

func (p *parked) tell() {
	select {
	case p.asked <- struct{}{}:
	default:
	}
}

// notify passes a notification on, or keeps it while the caller is away.
func (p *parked) notify(method string, params jsontext.Value) {
	body := notification(method, params)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.in != nil:
		_ = p.in.Notify(body)
	case len(p.held) < maxHeld:
		p.held = append(p.held, body)
	}
}

// request asks the caller what the server wants to know.
func (p *parked) request(ctx context.Context, method string, params jsontext.Value) (jsontext.Value, *mcp.Error) {
	request, err := inputRequest(method, params)
	if err != nil {
		return nil, &mcp.Error{Code: mcp.CodeInvalidParams, Message: err.Error()}
	}
	q := &question{request: request, answer: make(chan answer, 1)}
	p.mu.Lock()
	refusal := p.abilities.refuse(method, params)
	if refusal == nil && len(p.questions) >= maxQuestions {
		refusal = &mcp.Error{Code: mcp.CodeInternal, Message: "too many questions are open in this call"}
	}
	if refusal == nil {
		p.count++
		q.key = "ask-" + strconv.Itoa(p.count)
		p.questions = append(p.questions, q)
		p.tell()
	}
	p.mu.Unlock()
	if refusal != nil {
		return nil, refusal
	}
	select {
	case a := <-q.answer:
		return a.value, a.err
	case <-ctx.Done(): // withdrawn, or the call has ended
	}
	p.mu.Lock()
	p.questions = slices.DeleteFunc(p.questions, func(other *question) bool { return other == q })
	p.mu.Unlock()
	return nil, &mcp.Error{Code: mcp.CodeInternal, Message: "the request was withdrawn"}
}

// readAnswers reads the inputResponses of a caller that came back.
func readAnswers(responses jsontext.Value) (map[string]jsontext.Value, error) {
	answers := map[string]jsontext.Value{}
	if responses == nil {
		return answers, nil
	}
	err := mcp.EachField(responses, func(key string, v jsontext.Value) error {
		if v.Kind() != '{' {
			return mcp.NewFault(mcp.KindInvalid, "invalid_params", "params.inputResponses.%.40s must be an object", key)
		}
		answers[key] = v
		return nil
	})
	if _, ours := err.(*mcp.Error); ours {
		err = mcp.NewFault(mcp.KindInvalid, "invalid_params", "params.inputResponses must be an object")
	}
	return answers, err
}

// lot has the calls of one worker that wait for their callers.
type lot struct {
	worker string
	limit  int
	wait   time.Duration

	mu      sync.Mutex
	waiting map[string]*place // by requestState
}

type place struct {
	parked *parked
	expiry *time.Timer
}

func newLot(worker string) *lot {
	return &lot{worker: worker, limit: maxParked, wait: parkFor, waiting: map[string]*place{}}
}

// add gives p a place and the requestState that leads back to it, once.
func (l *lot) add(p *parked) (state string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) >= l.limit {
		return "", false
	}
	state = bus.ParkState(l.worker, rand.Text())
	l.waiting[state] = &place{parked: p, expiry: time.AfterFunc(l.wait, func() { l.expire(state) })}
	return state, true
}

func (l *lot) expire(state string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := l.waiting[state]; at != nil {
		delete(l.waiting, state)
		at.parked.cancel(mcp.NewFault(mcp.KindTimeout, "input", "no answer to what the server asked came within %v", l.wait))
	}
}

// take finds the call that c continues and frees its place. Whoever has a
// requestState of another caller learns nothing, not even that there is one.
func (l *lot) take(c *call) (*parked, error) {
	state := mcp.Text(c.params.state)
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.waiting[state]
	if at == nil || at.parked.first.server != c.server || at.parked.first.in.Meta.Principal != c.in.Meta.Principal {
		f := mcp.NewFault(mcp.KindInvalid, "unknown_request_state", "no call waits under this requestState: it has ended, or took too long; make the call again without it")
		f.Server = c.server.id
		return nil, f
	}
	// The policy has just decided about these arguments; the server has the first ones.
	first := at.parked.first
	if first.params.name != c.params.name || !sameJSON(first.params.arguments, c.params.arguments) {
		f := mcp.NewFault(mcp.KindInvalid, "other_request_state", "this requestState belongs to a call with another tool or other arguments")
		f.Server = c.server.id
		return nil, f
	}
	at.expiry.Stop()
	delete(l.waiting, state)
	return at.parked, nil
}

// drop ends all waiting calls to a server that has stopped.
func (l *lot) drop(s *server) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for state, at := range l.waiting {
		if at.parked.first.server == s {
			at.expiry.Stop()
			delete(l.waiting, state)
			at.parked.cancel(mcp.Unavailable(s.id, mcp.ReasonBackend, "the server was stopped"))
		}
	}
}

// sameJSON reports whether two arguments objects are the same but for white space
// and the order of members; an absent one is empty. Numbers are the same if they are written the same.
func sameJSON(a, b jsontext.Value) bool {
	if bytes.Equal(a, b) {
		return true
	}
	a, b = a.Clone(), b.Clone()
	for _, v := range []*jsontext.Value{&a, &b} {
		if len(*v) == 0 {
			*v = jsontext.Value("{}")
		}
		err := v.Format(jsontext.ReorderRawObjects(true), jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false))
		if err != nil {
			return false
		}
	}
	return bytes.Equal(a, b)
}
