package router

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// filter is what a client wants to hear of.
type filter struct {
	lists listSet
	uris  []string // of resources, each once, in order
	tasks []string // ids, likewise
}

// parseFilter reads the params of subscriptions/listen.
func parseFilter(params jsontext.Value) (filter, *mcp.Error) {
	var wanted filter
	notifications := mcp.Field(params, "notifications")
	if notifications.Kind() != '{' {
		return wanted, mcp.InvalidParams("params.notifications must be an object that says what is listened for")
	}
	err := mcp.EachField(notifications, func(name string, v jsontext.Value) error {
		for _, notice := range changeNotices {
			if name != notice.filter {
				continue
			}
			if k := v.Kind(); k != 't' && k != 'f' {
				return mcp.InvalidParams("params.notifications." + name + " must be true or false")
			}
			if v.Kind() == 't' {
				wanted.lists |= notice.list
			}
		}
		into := map[string]*[]string{"resourceSubscriptions": &wanted.uris, "taskIds": &wanted.tasks}[name]
		if into == nil {
			return nil
		}
		list, ok := stringList(v)
		if !ok {
			return mcp.InvalidParams("params.notifications." + name + " must be a list of strings")
		}
		slices.Sort(list)
		if *into = slices.Compact(list); len(*into) > maxWatched {
			return mcp.InvalidParams(fmt.Sprintf("params.notifications.%s has %d members, at most %d are allowed", name, len(*into), maxWatched))
		}
		return nil
	})
	if err != nil {
		return wanted, toError(err)
	}
	return wanted, nil
}

// listening makes the messages of one subscriptions/listen.
type listening struct {
	id jsontext.Value // of the request
}

// tag is the member of _meta that says which subscription a message belongs to.
func (l *listening) tag() string {
	return `"_meta":{"` + mcp.MetaSubscriptionID + `":` + string(l.id) + `}`
}

// acknowledged is the first message: what of the filter is honoured.
func (l *listening) acknowledged(wanted filter, resources, tasks []string) []byte {
	b := []byte(`{"notifications":{`)
	for _, notice := range changeNotices {
		if wanted.lists&notice.list != 0 {
			b = appendComma(b)
			b = append(mcp.AppendString(b, notice.filter), ":true"...)
		}
	}
	for _, honoured := range []struct {
		name string
		list []string
	}{{`"resourceSubscriptions":[`, resources}, {`"taskIds":[`, tasks}} {
		if len(honoured.list) == 0 {
			continue
		}
		b = append(appendComma(b), honoured.name...)
		for i, id := range honoured.list {
			if i > 0 {
				b = append(b, ',')
			}
			b = mcp.AppendString(b, id)
		}
		b = append(b, ']')
	}
	b = append(append(append(b, "},"...), l.tag()...), '}')
	return mcp.AppendRequest(nil, nil, mcp.NotifyAcknowledged, b)
}

func appendComma(b []byte) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	return b
}

func (l *listening) listChanged(method string) []byte {
	return mcp.AppendRequest(nil, nil, method, jsontext.Value(`{`+l.tag()+`}`))
}

func (l *listening) updated(uri string) []byte {
	return mcp.AppendRequest(nil, nil, mcp.NotifyResourceUpdated, jsontext.Value(`{"uri":`+string(mcp.QuoteString(uri))+`,`+l.tag()+`}`))
}

// task tells of the state of a task, an object.
func (l *listening) task(state jsontext.Value) []byte {
	params, err := mcp.Edit(state, mcp.Change{Name: "_meta", Value: jsontext.Value(`{"` + mcp.MetaSubscriptionID + `":` + string(l.id) + `}`)})
	if err != nil {
		return nil
	}
	return mcp.AppendRequest(nil, nil, mcp.NotifyTask, params)
}

// ended is the response, with which the hub ends the subscription.
func (l *listening) ended() []byte {
	return mcp.AppendResult(nil, l.id, jsontext.Value(`{"resultType":"complete",`+l.tag()+`}`))
}

// listenTo sends the changes that a modern client asked for until ctx ends, send
// fails, or the router drains; only then does it return a response.
func (f *fronts) listenTo(ctx context.Context, scope string, c caller, m *mcp.Message, send func([]byte) error) (response []byte) {
	wanted, e := parseFilter(m.Params)
	if e != nil {
		return mcp.AppendError(nil, m.ID, e)
	}
	if wanted.tasks != nil && !mcp.Declares(mcp.Field(m.Params, "_meta"), mcp.ExtensionTasks) {
		return mcp.AppendError(nil, m.ID, mcp.MissingExtension(mcp.ExtensionTasks))
	}
	l := &listening{id: m.ID}
	// In front of the acknowledgement, so that no change behind it is missed.
	sub := f.engine.subscribe(scope, c, wanted.lists)
	defer sub.Close()
	watch := f.engine.watch(scope, c)
	defer watch.Close()
	tasks := f.engine.watchTasks(ctx, scope, c, wanted.tasks)
	defer tasks.Close()
	if send(l.acknowledged(wanted, watch.add(ctx, wanted.uris), tasks.honoured)) != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx) // before tasks is closed
	defer cancel()
	tasks.forward(ctx, func(state jsontext.Value) error { return send(l.task(state)) })
	if f.tell(ctx, sub, watch, send, l.listChanged, l.updated, nil) == errDraining {
		return l.ended()
	}
	return nil
}

var errDraining = errors.New("the router is stopping")

// tell tells a client of changes until ctx ends, send fails or the router drains.
// again is called when wake has a token.
func (f *fronts) tell(ctx context.Context, sub *subscription, watch *watching, send func([]byte) error,
	listChanged, updated func(string) []byte, wake *waker,
) error {
	if wake == nil {
		wake = &waker{}
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var told time.Time // when it was told of resources
	var again <-chan struct{}
	for {
		select {
		case <-sub.C:
			changed := sub.take()
			for _, notice := range changeNotices {
				if changed&notice.list == 0 {
					continue
				}
				if err := send(listChanged(notice.method)); err != nil {
					return err
				}
			}
			continue
		case <-watch.C:
		case <-again:
			again = nil
		case <-timer.C:
		case <-wake.c:
			wake.again()
			continue
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-f.draining:
			return errDraining
		}
		// What changes all the time is told of once per changeInterval.
		if wait := changeInterval - time.Since(told); wait > 0 {
			timer.Reset(wait)
			continue
		}
		var uris []string
		uris, again = watch.take()
		for _, uri := range uris {
			if err := send(updated(uri)); err != nil {
				return err
			}
		}
		if len(uris) > 0 {
			told = time.Now()
		}
	}
}

// waker calls again on the goroutine of [fronts.tell] whenever c has a token.
type waker struct {
	c     chan struct{}
	again func()
}

// listen serves subscriptions/listen over HTTP.
func (f *fronts) listen(ctx context.Context, p *reply, scope string, c caller, m *mcp.Message) {
	if !p.accepts.Stream {
		p.finish(http.StatusNotAcceptable, mcp.AppendError(nil, m.ID, &mcp.Error{Code: mcp.CodeInvalidRequest, Message: "subscriptions/listen is answered with a stream: Accept must allow text/event-stream"}))
		return
	}
	if body := f.listenTo(ctx, scope, c, m, p.send); body != nil {
		p.finish(http.StatusBadRequest, body) // the status is that of an error: behind a stream there is none
	}
}

// serveStream is the stream of a session (GET): it tells of changes. There is one
// per session; a new one ends the one before, whose client may be gone without a sign.
func (f *fronts) serveStream(w http.ResponseWriter, r *http.Request, scope string) {
	id := r.Header.Get(mcp.HeaderSession)
	if id == "" {
		needSession(w, nil)
		return
	}
	s, ok := f.findSession(w, r, id, scope)
	if !ok || !checkLegacyVersion(w, r.Header) {
		return
	}
	accepts := mcp.ParseAccept(r.Header["Accept"])
	if !accepts.Stream {
		refuse(w, http.StatusNotAcceptable, nil, &mcp.Error{Code: mcp.CodeInvalidRequest, Message: "Accept must allow text/event-stream"})
		return
	}
	p := f.open(w, accepts, s)
	defer p.close(nil)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	st := s.replaceStream(cancel)
	defer s.dropStream(st)
	sub := f.engine.subscribe(scope, caller{principal: s.record().Principal, era: mcp.EraLegacy}, allLists)
	defer sub.Close()
	// Before the client can know of the stream, and so open a newer one.
	f.sessions.claimStream(ctx, s, st)
	if p.start(": ok\n\n") != nil {
		return
	}
	f.stream(ctx, scope, s, st, sub, p.send)
}

// stream tells the client of a session of what changes, on the stream st: its
// lists, and the resources that it has subscribed to, wherever it did so.
func (f *fronts) stream(ctx context.Context, scope string, s *session, st *stream, sub *subscription, send func([]byte) error) {
	watch := f.engine.watch(scope, caller{principal: s.record().Principal, era: mcp.EraLegacy})
	defer watch.Close()
	s.hold(watch)
	defer s.release(watch)
	watch.set(s.record().Subscriptions)
	_ = f.tell(ctx, sub, watch, send, legacyListChanged, legacyUpdated, &waker{st.wake, func() { watch.set(s.record().Subscriptions) }})
}

// The notifications in the initialize era.
func legacyListChanged(method string) []byte { return mcp.AppendRequest(nil, nil, method, nil) }

func legacyUpdated(uri string) []byte {
	return mcp.AppendRequest(nil, nil, mcp.NotifyResourceUpdated, jsontext.Value(`{"uri":`+string(mcp.QuoteString(uri))+`}`))
}

// stream is the GET of a session.
type stream struct {
	id     string
	cancel context.CancelFunc
	wake   chan struct{} // has a token when the subscriptions of the session have changed
	// claimed says that the record of the session had its id: from then on another
	// id there is that of a newer stream. Guarded by session.mu.
	claimed bool
}

func newStream(cancel context.CancelFunc) *stream {
	return &stream{id: rand.Text(), cancel: cancel, wake: make(chan struct{}, 1)}
}

// replaceStream ends the session's stream, if there is one here, and puts the one
// that cancel ends in its place.
func (s *session) replaceStream(cancel context.CancelFunc) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream != nil {
		s.stream.cancel()
	}
	s.stream = newStream(cancel)
	if s.ended {
		cancel()
	}
	return s.stream
}

// claimStream makes st the stream of s on all routers. The bucket puts all claims
// in one order, in which the newest wins on every router. Without NATS none is
// ended.
func (t *sessions) claimStream(ctx context.Context, s *session, st *stream) {
	if err := t.change(ctx, s, func(rec *record) { rec.Stream = st.id }); err != nil {
		t.log.Warn("couldn't tell the other routers of a session's stream", "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.claimed = true
	s.overtakenLocked()
}

// overtakenLocked ends the stream if the record names a newer one.
func (s *session) overtakenLocked() {
	if s.stream != nil && s.stream.claimed && s.rec.Stream != s.stream.id {
		s.stream.cancel()
		s.stream = nil
	}
}

// hold makes w what the session's subscriptions of this router go to.
func (s *session) hold(w *watching) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watching = w
}

func (s *session) release(w *watching) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watching == w {
		s.watching = nil
	}
}

// watch subscribes to a resource at once, if the stream of the session is here.
func (s *session) watch(uri string) {
	s.mu.Lock()
	w := s.watching
	s.mu.Unlock()
	if w != nil {
		w.want(uri, false)
	}
}

// dropStream forgets a stream that has ended.
func (s *session) dropStream(old *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream == old {
		s.stream = nil
	}
}
