package mcp

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"
)

// hop is what the client's connections of every transport have in common: the
// calls in progress, the end of it all, and what is heard outside of calls.
type hop struct {
	opts ConnectOptions
	log  *slog.Logger
	// ctx is the life of the background tasks.
	ctx    context.Context
	cancel context.CancelFunc
	nextID atomic.Uint64
	info   atomic.Pointer[ServerInfo]
	stats  hopStats
	done   chan struct{}

	subs *subscriptions
	// subscriber is for a legacy server, and set by its handshake.
	subscriber *subscriber

	// changing is held while OnListChanged, OnResourceUpdated or OnTask runs.
	changing sync.Mutex

	mu        sync.Mutex
	closed    bool  // set before done is closed; nothing starts any more
	err       error // why, nil for Close
	exchanges map[*exchange]struct{}
	tasks     sync.WaitGroup // exchanges and background tasks; grows only while !closed
}

// hopStats counts what is ignored by design, so that it can be noticed.
type hopStats struct {
	noise        atomic.Int64 // lines or events that are no JSON-RPC
	unknownID    atomic.Int64 // responses that no call waits for
	unattributed atomic.Int64 // notifications that belong to no call
	refused      atomic.Int64 // requests that no call can answer
	tooLarge     atomic.Int64 // messages beyond the limit
	dropped      atomic.Int64 // messages of ours that a stuck server never took
}

func newHop(opts ConnectOptions) *hop {
	ctx, cancel := context.WithCancel(context.Background())
	return &hop{
		opts: opts, log: opts.Logger, ctx: ctx, cancel: cancel,
		done: make(chan struct{}), subs: newSubscriptions(), exchanges: make(map[*exchange]struct{}),
	}
}

func (h *hop) Info() *ServerInfo     { return h.info.Load() }
func (h *hop) Done() <-chan struct{} { return h.done }

// modern is false as long as the era is not known.
func (h *hop) modern() bool {
	info := h.info.Load()
	return info != nil && info.Era == EraModern
}

func (h *hop) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// closedError is the cause with which the calls of a connection end when the
// connection does.
type closedError struct{ why error }

func (e *closedError) Error() string {
	if e.why == nil {
		return "the connection was closed"
	}
	return e.why.Error()
}

// end closes the connection to everything new and ends what runs. Only the
// first reason counts. It reports whether this was the first.
func (h *hop) end(why error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.closed, h.err = true, why
	for x := range h.exchanges {
		x.cancel(&closedError{why})
	}
	h.cancel()
	close(h.done)
	return true
}

// wait waits, within ctx, until everything has ended that ran here.
func (h *hop) wait(ctx context.Context) error {
	ended := make(chan struct{})
	go func() {
		h.tasks.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// spawn runs task in the background, unless the connection is closed.
func (h *hop) spawn(task func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.tasks.Go(task)
	}
}

// begin starts a call as x, which is new. The caller must end it with finish.
func (h *hop) begin(ctx context.Context, x *exchange, call *Call, d *dialect) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	x.Call, x.id, x.hop, x.era = call, h.nextID.Add(1), h, d.era
	if err := x.translate(d); err != nil {
		return h.named(err)
	}
	x.ctx, x.cancel = context.WithCancelCause(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		x.cancel(nil)
		return h.gone(h.err)
	}
	h.tasks.Add(1)
	h.exchanges[x] = struct{}{}
	return nil
}

// gone is the fault of a call that found the connection closed.
func (h *hop) gone(why error) *Fault {
	if why == nil {
		return Unavailable(h.opts.Server, ReasonBackend, "the connection to the server is closed")
	}
	return Unavailable(h.opts.Server, ReasonBackend, "the connection to the server is closed: %v", why)
}

// named puts the server's id into a fault that has none.
func (h *hop) named(err error) error {
	if f, ok := asFault(err); ok && f.Server == "" {
		named := *f
		named.Server = h.opts.Server
		return &named
	}
	return err
}

// changed tells that lists changed, or may have.
func (h *hop) changed(kinds ...ListKind) {
	if h.opts.OnListChanged == nil {
		return
	}
	h.changing.Lock()
	defer h.changing.Unlock()
	for _, kind := range kinds {
		h.opts.OnListChanged(kind)
	}
}

// updated tells that resources changed, or may have.
func (h *hop) updated(uris ...string) {
	if h.opts.OnResourceUpdated == nil {
		return
	}
	h.changing.Lock()
	defer h.changing.Unlock()
	for _, uri := range uris {
		h.opts.OnResourceUpdated(uri)
	}
}

func (h *hop) taskChanged(params jsontext.Value) {
	if h.opts.OnTask == nil {
		return
	}
	h.changing.Lock()
	defer h.changing.Unlock()
	h.opts.OnTask(params)
}

// general deals with a notification that belongs to no call whatever stream it
// comes on, and reports whether it is one.
func (h *hop) general(m *Message) bool {
	switch m.Method {
	case NotifyToolsChanged:
		h.changed(ListTools)
	case NotifyPromptsChanged:
		h.changed(ListPrompts)
	case NotifyResourcesChanged:
		h.changed(ListResources)
	case NotifyResourceUpdated:
		if uri := FieldString(m.Params, "uri"); uri != "" {
			h.updated(uri)
		}
	case NotifyTask:
		h.taskChanged(m.Params)
	default:
		return false
	}
	return true
}

// refusal answers a request of the server's that belongs to no call.
func (h *hop) refusal(m *Message) []byte {
	if m.Method == MethodPing {
		return AppendResult(nil, m.ID, jsontext.Value("{}"))
	}
	h.stats.refused.Add(1)
	return AppendError(nil, m.ID, &Error{Code: CodeMethodNotFound, Message: m.Method + " is refused: it belongs to no call that could answer it"})
}

// exchange is one call in progress.
type exchange struct {
	outgoing
	hop    *hop
	era    Era
	ctx    context.Context // the caller's, ended also by the stopwatch and by the connection's end
	cancel context.CancelCauseFunc
	clock  stopwatch
	// reply sends a response to a request of the server's. It must end with ctx.
	reply func(ctx context.Context, body []byte)

	tasks sync.WaitGroup // the requests of the server's that are being answered
	mu    sync.Mutex
	asked map[string]context.CancelFunc // them by raw id
}

// finish ends the exchange and waits for what it started.
func (x *exchange) finish() {
	x.clock.stop()
	x.cancel(nil)
	x.tasks.Wait()
	x.hop.mu.Lock()
	delete(x.hop.exchanges, x)
	x.hop.mu.Unlock()
	x.hop.tasks.Done()
}

// gaveUp is the error of a call whose ctx has ended; sent says that the server
// may have got the request.
func (x *exchange) gaveUp(sent bool) error {
	cause := context.Cause(x.ctx)
	if c, ok := cause.(*closedError); ok {
		if !sent {
			return x.hop.gone(c.why)
		}
		return OutcomeUnknown(x.hop.opts.Server, "the call may have run: %v", c)
	}
	if f, ok := cause.(*Fault); ok {
		named := *f
		named.Server = x.hop.opts.Server
		named.Retryable = !sent
		return &named
	}
	return cause
}

// wantsCancel reports whether the server is to be told that the call is given up.
func (x *exchange) wantsCancel(sent bool) bool {
	if _, closed := context.Cause(x.ctx).(*closedError); closed {
		return false
	}
	return sent && x.Method != MethodInitialize && x.Method != MethodDiscover
}

// cancellation is the notification that the call is given up.
func (x *exchange) cancellation() []byte {
	return AppendRequest(nil, nil, NotifyCancelled, append(append(jsontext.Value(`{"requestId":`), IntID(x.id)...), '}'))
}

// handle deals with a message that belongs to this call, and reports whether it
// is the answer. Notifications reach the caller before handle returns.
func (x *exchange) handle(m *Message) (answered bool) {
	switch {
	case m.IsResponse():
		// An error without an id is about a request that was not understood.
		if m.ID == nil || isID(m.ID, x.id) {
			return true
		}
		x.hop.stats.unknownID.Add(1)
	case m.IsRequest():
		x.request(m)
	default:
		x.notification(m)
	}
	return false
}

// maxAsked bounds the requests that a server has open during one call.
const maxAsked = 16

func (x *exchange) request(m *Message) {
	if x.era == EraModern { // such servers must not ask, and may not be answered
		x.hop.stats.refused.Add(1)
		return
	}
	if !x.take(m) {
		// On this goroutine, so that a flood of them slows down the server.
		x.reply(x.ctx, x.hop.refusal(m))
	}
}

// take lets Request answer a request, in the background, or reports that it is to
// be refused.
func (x *exchange) take(m *Message) bool {
	ctx, cancel := x.accept(m)
	if ctx == nil {
		return false
	}
	x.clock.pause()
	x.tasks.Go(func() {
		defer cancel()
		result, e := x.Request(ctx, m.Method, m.Params)
		x.clock.resume()
		switch {
		case ctx.Err() != nil: // nobody wants it any more
		case e != nil:
			x.reply(ctx, AppendError(nil, m.ID, e))
		default:
			x.reply(ctx, AppendResult(nil, m.ID, result))
		}
	})
	return true
}

// accept enters a request that Request is to answer into asked; cancel takes it
// out. The nil ctx is for one that is to be refused.
func (x *exchange) accept(m *Message) (ctx context.Context, cancel func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	id := string(m.ID)
	if m.Method == MethodPing || x.Request == nil || len(x.asked) >= maxAsked || x.asked[id] != nil {
		return nil, nil
	}
	ctx, end := context.WithCancel(x.ctx)
	if x.asked == nil {
		x.asked = make(map[string]context.CancelFunc)
	}
	x.asked[id] = end
	return ctx, func() {
		end()
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.asked, id)
	}
}

func (x *exchange) notification(m *Message) {
	params := m.Params
	switch m.Method {
	case NotifyProgress:
		if !isID(Field(params, MetaProgressToken), x.id) || x.token == nil {
			x.hop.stats.unattributed.Add(1)
			return
		}
		x.clock.progress()
		restored, err := Edit(params, Change{MetaProgressToken, x.token})
		if err != nil {
			return // cannot be: ParseMessage has read it
		}
		params = restored
	case NotifyMessage:
		// A caller that names no level wants no messages. One whose level we do
		// not know is let through: better too much than a silent loss.
		level := parseLogLevel(FieldString(params, "level"))
		if x.level == 0 || level != 0 && level < x.level {
			return
		}
	case NotifyCancelled:
		x.mu.Lock()
		cancel := x.asked[string(Field(params, "requestId"))]
		x.mu.Unlock()
		if cancel != nil {
			cancel()
		}
		return
	default:
		if x.hop.general(m) {
			return
		}
	}
	if x.Notify != nil {
		x.Notify(m.Method, params)
	}
}

// answer is what Call returns for the response m.
func answer(m *Message) (jsontext.Value, error) {
	if m.Err != nil {
		return nil, m.Err
	}
	return m.Result, nil
}
