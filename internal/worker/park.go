package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
)

// Bounds on calls that wait for input of their callers.
const (
	// parkFor is how long a call waits for its caller to come back: longer than the
	// ten minutes that routers give a client of the initialize era for its answer.
	parkFor = 11 * time.Minute
	// crowdedFor is how long it waits while others wait for the server: longer than a
	// human takes for a short answer, and short enough that one who does not come
	// back is not for long in the way of all.
	crowdedFor = time.Minute
	// maxParked bounds the calls that wait in one worker.
	maxParked = 1000
	// maxQuestions bounds what one call asks at a time.
	maxQuestions = 16
	// maxHeld bounds the notifications that are kept for a caller that is away.
	maxHeld = 256
)

// parked is a call to a legacy server that may ask its caller for input: the
// server's request ends the caller's call with a result that says what is
// wanted, while the call to the server goes on. Its caller, who brings the
// answers with the requestState (see [envelope]), gets the rest of it.
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
	required  string        // what the first refused request needed of them, "" if none was refused
	held      [][]byte      // notifications for a caller that is away
	questions []*question   // open ones, in the order asked
	count     int           // of all questions
	place     string        // in the lot, "" while it is attended
	crowded   bool          // others wait for it
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
	p := &parked{
		first: c, lot: c.server.lot, in: c.in, abilities: abilitiesOf(c.params.meta),
		asked: make(chan struct{}, 1), done: make(chan struct{}),
	}
	request.Notify, request.Waited = p.notify, p.waited
	if p.abilities == (abilities{}) {
		request.Request = p.request
		p.value, p.err = c.carryOut(ctx, l, request)
		return p.reply(c)
	}
	callCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	p.cancel = cancel
	tasks := newClientTasks(callCtx, p)
	request.Request = tasks.request
	c.server.calls.Go(func() {
		defer close(p.done)
		defer tasks.group.Wait()
		defer cancel(nil)
		p.value, p.err = c.carryOut(callCtx, l, request)
	})
	return p.attend(ctx, c)
}

// resume goes on with the call that waits in place.
func (c *call) resume(ctx context.Context, place string) (bus.Reply, error) {
	answers, err := readAnswers(c.params.responses)
	if err != nil {
		return bus.Reply{}, err
	}
	refused := mcp.Field(c.params.meta, bus.MetaRefused)
	if string(refused) == bus.RefusedAll {
		c.giveUp(clientLeft)
		return bus.Reply{}, clientLeft
	}
	if err := readRefusals(refused, answers); err != nil {
		return bus.Reply{}, err
	}
	p, err := c.server.lot.take(c.server, place)
	if err != nil {
		return bus.Reply{}, err
	}
	p.attach(c, answers)
	return p.attend(ctx, c)
}

// clientLeft ends a parked call. It is shared: not to be changed.
var clientLeft = mcp.NewFault(mcp.KindUnavailable, mcp.ReasonCancelled, "the client does not answer what the server asked")

// giveUp ends the call that c wanted to continue and must not: it would only be
// in the way of others.
func (c *call) giveUp(why error) {
	e, err := c.unwrap()
	if err != nil || e == nil || e.Place == "" {
		return
	}
	if p, err := c.server.lot.take(c.server, e.Place); err == nil {
		p.cancel(why)
	}
}

// attend waits with the caller until the server has answered or asks something.
func (p *parked) attend(ctx context.Context, c *call) (bus.Reply, error) {
	for {
		select {
		case <-p.done:
			return p.reply(c)
		case <-ctx.Done():
			p.cancel(context.Cause(ctx))
			<-p.done
			return p.reply(c)
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
	var state string
	place, ok := p.lot.add(p, p.crowded)
	if ok {
		var err error
		if state, err = p.first.wrap(0, place, nil); err != nil {
			_, _ = p.lot.take(p.first.server, place)
			ok = false
		}
	}
	if !ok {
		for _, q := range p.questions {
			q.answer <- answer{err: &mcp.Error{Code: mcp.CodeInternal, Message: "too many calls wait for input of their callers"}}
		}
		p.questions = nil
		return nil
	}
	p.in, p.place = nil, place
	keys := make([]string, 0, len(p.questions))
	requests := make(map[string]jsontext.Value, len(p.questions))
	for _, q := range p.questions {
		keys, requests[q.key] = append(keys, q.key), q.request
	}
	return inputRequired(keys, requests, state)
}

// attach gives the call to a caller that came back, with what it was kept, and
// the answers to the server. What is left unanswered is asked again.
func (p *parked) attach(c *call, answers map[string]answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.in, p.place, p.abilities = c.in, "", abilitiesOf(c.params.meta)
	for _, body := range p.held {
		_ = c.in.Notify(body)
	}
	p.held = nil
	p.questions = slices.DeleteFunc(p.questions, func(q *question) bool {
		a, ok := answers[q.key]
		if ok {
			q.answer <- a
		}
		return ok
	})
	if len(p.questions) > 0 {
		p.tell()
	}
}

// waited says that another call waits until this one has ended.
func (p *parked) waited() {
	p.mu.Lock()
	place := p.place
	p.crowded = true
	p.mu.Unlock()
	if place != "" {
		p.lot.hurry(place)
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
	if method == mcp.NotifyTaskStatus {
		return // of a task that its caller does not know
	}
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
	refusal, required := p.abilities.refuse(method, params)
	if p.required == "" {
		p.required = required
	}
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

// reply makes the server's answer that of c. A call that fails after the server
// asked for what its caller cannot be asked has failed for that.
func (p *parked) reply(c *call) (bus.Reply, error) {
	p.mu.Lock()
	able, required := p.abilities, p.required
	p.mu.Unlock()
	e, ok := errors.AsType[*mcp.Error](p.err)
	if !ok {
		return c.reply(p.value, p.err)
	}
	if asking, ok := urlsToVisit(e, able); ok {
		c.asks = true
		return result(c.message.ID, asking), nil
	}
	if required != "" && e.Code != codeURLElicitation {
		e = missingCapability(e.Message+" (the server asked for input that this client cannot give)", required)
	}
	return c.reply(nil, modernError(e))
}

// readAnswers reads the inputResponses of a caller that came back.
func readAnswers(responses jsontext.Value) (map[string]answer, error) {
	answers := map[string]answer{}
	if responses == nil {
		return answers, nil
	}
	err := mcp.EachField(responses, func(key string, v jsontext.Value) error {
		if v.Kind() != '{' {
			return mcp.NewFault(mcp.KindInvalid, "invalid_params", "params.inputResponses.%.40s must be an object", key)
		}
		answers[key] = answer{value: legacyResponse(v)}
		return nil
	})
	if _, ours := err.(*mcp.Error); ours {
		err = mcp.NewFault(mcp.KindInvalid, "invalid_params", "params.inputResponses must be an object")
	}
	return answers, err
}

// readRefusals adds what the caller has refused, which [bus.MetaRefused] says.
func readRefusals(refused jsontext.Value, answers map[string]answer) error {
	if refused == nil {
		return nil
	}
	var errs map[string]struct {
		Code    int64          `json:"code"`
		Message string         `json:"message"`
		Data    jsontext.Value `json:"data"`
	}
	if err := json.Unmarshal(refused, &errs); err != nil {
		return mcp.NewFault(mcp.KindInvalid, "invalid_params", "params._meta[%q] must be an object of JSON-RPC errors", bus.MetaRefused)
	}
	for key, e := range errs {
		answers[key] = answer{err: &mcp.Error{Code: e.Code, Message: e.Message, Data: e.Data}}
	}
	return nil
}

// lot has the calls of one worker that wait for their callers.
type lot struct {
	worker string
	seal   *bus.Seal // of what callers are given to come back with
	limit  int
	wait   time.Duration

	mu      sync.Mutex
	waiting map[string]*spot // by place
}

type spot struct {
	parked *parked
	expiry *time.Timer
	ends   time.Time
}

func newLot(worker string, seal *bus.Seal) *lot {
	return &lot{worker: worker, seal: seal, limit: maxParked, wait: parkFor, waiting: map[string]*spot{}}
}

// add gives p a place, which can be taken once.
func (l *lot) add(p *parked, crowded bool) (place string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) >= l.limit {
		return "", false
	}
	place = rand.Text()
	wait := l.wait
	if crowded {
		wait = min(wait, crowdedFor)
	}
	l.waiting[place] = &spot{parked: p, expiry: time.AfterFunc(wait, func() { l.expire(place) }), ends: time.Now().Add(wait)}
	return place, true
}

// hurry shortens the wait of the call in place, which others wait for.
func (l *lot) hurry(place string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := l.waiting[place]; at != nil && time.Until(at.ends) > crowdedFor && at.expiry.Stop() {
		at.ends = time.Now().Add(crowdedFor)
		at.expiry.Reset(crowdedFor)
	}
}

func (l *lot) expire(place string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := l.waiting[place]; at != nil {
		delete(l.waiting, place)
		at.parked.cancel(mcp.NewFault(mcp.KindTimeout, "input", "no answer to what the server asked came in time"))
	}
}

// take finds the call to s that waits in place, and frees that.
func (l *lot) take(s *server, place string) (*parked, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.waiting[place]
	if at == nil || at.parked.first.server != s {
		return nil, unknownPlace(s.id)
	}
	at.expiry.Stop()
	delete(l.waiting, place)
	return at.parked, nil
}

// drop ends all waiting calls to a server that has stopped.
func (l *lot) drop(s *server) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for place, at := range l.waiting {
		if at.parked.first.server == s {
			at.expiry.Stop()
			delete(l.waiting, place)
			at.parked.cancel(mcp.Unavailable(s.id, mcp.ReasonBackend, "the server was stopped"))
		}
	}
}
