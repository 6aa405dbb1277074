package router

import (
	"context"
	"crypto/rand"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// filter is what a client wants to hear of, as far as the hub has it to tell.
type filter struct{ tools bool }

// parseFilter reads the params of subscriptions/listen.
func parseFilter(params jsontext.Value) (filter, *mcp.Error) {
	var wanted filter
	notifications := mcp.Field(params, "notifications")
	if notifications.Kind() != '{' {
		return wanted, mcp.InvalidParams("params.notifications must be an object that says what is listened for")
	}
	err := mcp.EachField(notifications, func(name string, v jsontext.Value) error {
		switch name {
		case "toolsListChanged", "promptsListChanged", "resourcesListChanged":
			if k := v.Kind(); k != 't' && k != 'f' {
				return mcp.InvalidParams("params.notifications." + name + " must be true or false")
			}
			wanted.tools = wanted.tools || name == "toolsListChanged" && v.Kind() == 't'
		case "resourceSubscriptions":
			if v.Kind() != '[' {
				return mcp.InvalidParams("params.notifications." + name + " must be a list of URIs")
			}
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
	id     jsontext.Value // of the request
	wanted filter
}

// tag is the member of _meta that says which subscription a message belongs to.
func (l *listening) tag() string {
	return `"_meta":{"` + mcp.MetaSubscriptionID + `":` + string(l.id) + `}`
}

// acknowledged is the first message: what of the filter is honoured.
func (l *listening) acknowledged() []byte {
	honoured := `{}`
	if l.wanted.tools {
		honoured = `{"toolsListChanged":true}`
	}
	return mcp.AppendRequest(nil, nil, mcp.NotifyAcknowledged, jsontext.Value(`{"notifications":`+honoured+`,`+l.tag()+`}`))
}

func (l *listening) toolsChanged() []byte {
	return mcp.AppendRequest(nil, nil, mcp.NotifyToolsChanged, jsontext.Value(`{`+l.tag()+`}`))
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
	l := &listening{id: m.ID, wanted: wanted}
	// In front of the acknowledgement, so that no change behind it is missed.
	var changes <-chan struct{}
	if wanted.tools {
		sub := f.engine.subscribe(scope, c)
		defer sub.Close()
		changes = sub.C
	}
	if send(l.acknowledged()) != nil {
		return nil
	}
	for {
		select {
		case <-changes:
			if send(l.toolsChanged()) != nil {
				return nil
			}
		case <-ctx.Done():
			return nil
		case <-f.draining:
			return l.ended()
		}
	}
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

// serveStream is the stream of a session (GET): it tells of changes of the
// session's list. There is one per session; a new one ends the one before, whose
// client may be gone without a sign.
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
	sub := f.engine.subscribe(scope, caller{principal: s.record().Principal, era: mcp.EraLegacy})
	defer sub.Close()
	// Before the client can know of the stream, and so open a newer one.
	f.sessions.claimStream(ctx, s, st)
	if p.start(": ok\n\n") != nil {
		return
	}
	for {
		select {
		case <-sub.C:
			if p.send(toolsChanged) != nil {
				return
			}
		case <-ctx.Done():
			return
		case <-s.gone:
			return
		case <-f.draining:
			return
		}
	}
}

// toolsChanged is the notification in the initialize era.
var toolsChanged = mcp.AppendRequest(nil, nil, mcp.NotifyToolsChanged, nil)

// stream is the GET of a session.
type stream struct {
	id     string
	cancel context.CancelFunc
	// claimed says that the record of the session had its id: from then on another
	// id there is that of a newer stream. Guarded by session.mu.
	claimed bool
}

// replaceStream ends the session's stream, if there is one here, and puts the one
// that cancel ends in its place.
func (s *session) replaceStream(cancel context.CancelFunc) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream != nil {
		s.stream.cancel()
	}
	s.stream = &stream{id: rand.Text(), cancel: cancel}
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

// dropStream forgets a stream that has ended.
func (s *session) dropStream(old *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream == old {
		s.stream = nil
	}
}
