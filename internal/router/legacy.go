package router

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// legacyPost is one message of the initialize era. err is what is wrong with its
// params.
type legacyPost struct {
	scope   string
	session *session // nil if the client named none
	accepts mcp.Accepts
	message *mcp.Message
	params  *mcp.Params
	err     error
}

// findSession finds the session that a client names, or answers that there is none.
func (f *fronts) findSession(w http.ResponseWriter, r *http.Request, id, scope string) (*session, bool) {
	s, err := f.sessions.get(r.Context(), id)
	if err == nil {
		rec := s.record()
		if rec.Scope == scope && rec.Principal == anonymous {
			f.sessions.touch(s)
			return s, true
		}
		err = errNoSession // a session is good for whom and where it was opened
	}
	if err != errNoSession { //nolint:errorlint // never wrapped
		f.refuseUnread(w, r, http.StatusServiceUnavailable, toError(err))
		return nil, false
	}
	f.refuseUnread(w, r, http.StatusNotFound, &mcp.Error{Code: mcp.CodeInvalidRequest, Message: "there is no such session (any more): start one with initialize"})
	return nil, false
}

// needSession answers a request that names no session.
func needSession(w http.ResponseWriter, id jsontext.Value) {
	refuse(w, http.StatusBadRequest, id, &mcp.Error{Code: mcp.CodeInvalidRequest, Message: "the header " + mcp.HeaderSession + " is missing: start a session with initialize, or send stateless requests of MCP " + mcp.Version20260728})
}

// checkLegacyVersion answers a message with a version that does not exist.
func checkLegacyVersion(w http.ResponseWriter, h http.Header) bool {
	for _, v := range h[mcp.HeaderVersion] {
		if !mcp.KnownVersion(v) {
			refuse(w, http.StatusBadRequest, nil, mcp.UnsupportedVersion(v))
			return false
		}
	}
	return true
}

func (f *fronts) legacyPost(w http.ResponseWriter, r *http.Request, p *legacyPost) {
	m := p.message
	if m.Method == mcp.MethodInitialize && m.IsRequest() {
		f.initialize(w, r, p)
		return
	}
	if p.session == nil {
		if m.Method == mcp.MethodPing && m.IsRequest() {
			writeJSON(w, http.StatusOK, mcp.AppendResult(nil, m.ID, jsontext.Value("{}"))) // a probe needs no session
			return
		}
		needSession(w, m.ID)
		return
	}
	if !checkLegacyVersion(w, r.Header) {
		return
	}
	s := p.session
	switch {
	case m.IsResponse():
		f.respond(r.Context(), s, m)
		w.WriteHeader(http.StatusAccepted)
	case m.IsNotification():
		if m.Method == mcp.NotifyCancelled {
			f.cancelCall(r.Context(), s, mcp.Field(m.Params, "requestId"))
		}
		w.WriteHeader(http.StatusAccepted)
	default:
		out := f.open(w, p.accepts, s)
		defer out.close(m.ID)
		// A client that goes away does not cancel in this era.
		ctx, cancel := context.WithCancelCause(f.base)
		defer cancel(nil)
		defer s.begin(m.ID, cancel)()
		c := &legacyCall{f: f, record: s.record(), scope: p.scope, message: m, params: p.params, send: out.send, expect: s.expect, watch: s.watch}
		c.change = func(edit func(*record)) error { return f.sessions.change(ctx, s, edit) }
		if p.err != nil {
			out.finish(http.StatusOK, mcp.AppendError(nil, m.ID, toError(p.err)))
			return
		}
		out.finish(http.StatusOK, c.run(ctx))
	}
}

// respond passes a client's response on to whoever waits for it, here or at
// another router. One that nobody waits for is late, which is no mistake.
func (f *fronts) respond(ctx context.Context, s *session, m *mcp.Message) {
	if m.ID == nil {
		return
	}
	var body []byte
	if m.Err != nil {
		body = mcp.AppendError(nil, m.ID, m.Err)
	} else {
		body = mcp.AppendResult(nil, m.ID, m.Result)
	}
	if !s.respond(m.ID, body) {
		f.sessions.tell(ctx, s, sessionResponse, "message", body)
	}
}

// cancelCall cancels a call of a session, here or at another router.
func (f *fronts) cancelCall(ctx context.Context, s *session, id jsontext.Value) {
	if id != nil && !s.cancel(id) {
		f.sessions.tell(ctx, s, sessionCancel, "id", id)
	}
}

// initialize opens a session. It waits for no server.
func (f *fronts) initialize(w http.ResponseWriter, r *http.Request, p *legacyPost) {
	m := p.message
	if p.err != nil {
		refuse(w, http.StatusOK, m.ID, toError(p.err))
		return
	}
	rec, e := newRecord(m.Params, p.scope)
	if e != nil {
		refuse(w, http.StatusOK, m.ID, e)
		return
	}
	s, err := f.sessions.create(r.Context(), rec)
	if err != nil {
		f.log.Warn("couldn't start a session", "error", err)
		refuse(w, http.StatusOK, m.ID, mcp.Unavailable("", "session_unwritable", "a session cannot be started just now").RPC())
		return
	}
	w.Header()[mcp.HeaderSession] = []string{s.id}
	out := f.open(w, p.accepts, s)
	defer out.close(m.ID)
	out.finish(http.StatusOK, mcp.AppendResult(nil, m.ID, f.welcome(rec)))
}

// newRecord makes the record of a session from the params of initialize.
func newRecord(params jsontext.Value, scope string) (*record, *mcp.Error) {
	wanted := mcp.FieldString(params, "protocolVersion")
	if wanted == "" {
		return nil, mcp.InvalidParams("params.protocolVersion must be the version that the client wants to speak")
	}
	rec := &record{Version: mcp.LatestLegacy, Principal: anonymous, Scope: scope, LogLevel: defaultLogLevel, Started: time.Now().UTC()}
	if slices.Contains(mcp.LegacyVersions(), wanted) {
		rec.Version = wanted
	}
	capabilities := mcp.Field(params, "capabilities")
	if capabilities.Kind() != '{' {
		return nil, mcp.InvalidParams("params.capabilities must be an object")
	}
	drop := []mcp.Change{{Name: "tasks"}, {Name: "extensions"}} // they are not translated
	if health := mcp.Field(mcp.Field(capabilities, "extensions"), extensionHealth); health != nil {
		drop[1].Value = append(append([]byte(`{"`+extensionHealth+`":`), health...), '}') // but for the one that is the hub's own
	}
	if rec.Version < mcp.Version20250618 {
		drop = append(drop, mcp.Change{Name: mcp.CapabilityElicitation})
	} else if elicitation := mcp.Field(capabilities, mcp.CapabilityElicitation); rec.Version < mcp.Version20251125 && elicitation != nil {
		drop = append(drop, mcp.Change{Name: mcp.CapabilityElicitation, Value: jsontext.Value("{}")}) // no modes yet
	}
	var err error
	if rec.Capabilities, err = mcp.Edit(capabilities, drop...); err != nil {
		return nil, toError(err)
	}
	if info := mcp.Field(params, "clientInfo"); info.Kind() == '{' {
		rec.ClientInfo = info.Clone()
	}
	if len(rec.Capabilities)+len(rec.ClientInfo) > maxClientBytes {
		return nil, mcp.InvalidParams("params.capabilities and params.clientInfo are too long")
	}
	return rec, nil
}

// maxClientBytes bounds what a client may say of itself, since each of its calls
// carries it.
const maxClientBytes = 32 << 10

// welcome is the result of initialize.
func (f *fronts) welcome(rec *record) jsontext.Value {
	d := f.engine.discover(rec.Scope)
	b := mcp.AppendString([]byte(`{"protocolVersion":`), rec.Version)
	b = append(append(b, `,"capabilities":`...), legacyCapabilities...)
	b = append(append(b, `,"serverInfo":`...), d.ServerInfo...)
	if d.Instructions != "" {
		b = mcp.AppendString(append(b, `,"instructions":`...), d.Instructions)
	}
	return append(b, '}')
}

// serveDelete ends a session.
func (f *fronts) serveDelete(w http.ResponseWriter, r *http.Request, scope string) {
	id := r.Header.Get(mcp.HeaderSession)
	if id == "" {
		needSession(w, nil)
		return
	}
	s, ok := f.findSession(w, r, id, scope)
	if !ok {
		return
	}
	if err := f.sessions.delete(r.Context(), s); err != nil {
		f.log.Warn("couldn't end a session", "error", err)
		refuse(w, http.StatusServiceUnavailable, nil, mcp.Unavailable("", "session_unwritable", "the session cannot be ended just now").RPC())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// modernParams is the params of a legacy request as a modern one carries them:
// with all that the session knows in _meta. A member of _meta that only the hub
// may set is replaced.
func modernParams(params, meta jsontext.Value, rec *record) (jsontext.Value, error) {
	changes := []mcp.Change{
		{Name: mcp.MetaProtocolVersion, Value: modernVersion},
		{Name: mcp.MetaClientCapabilities, Value: rec.Capabilities},
		{Name: mcp.MetaClientInfo, Value: rec.ClientInfo},
		{Name: mcp.MetaLogLevel, Value: mcp.QuoteString(rec.LogLevel)},
	}
	meta, err := mcp.Edit(meta, changes...)
	if err != nil {
		return nil, err
	}
	return mcp.Edit(params, mcp.Change{Name: "_meta", Value: meta})
}

var modernVersion = mcp.QuoteString(mcp.LatestModern)

// legacyCall is one request of a client of the initialize era, over any transport.
type legacyCall struct {
	f       *fronts
	record  *record
	scope   string
	message *mcp.Message
	params  *mcp.Params
	// send writes one message to the client in front of the response.
	send func(body []byte) error
	// expect makes the client's response to a request with a raw id go to answer,
	// which must have room for it, until the function returned is called.
	expect func(id jsontext.Value, answer chan<- []byte) (end func())
	// change changes the record of the session.
	change func(edit func(*record)) error
	// watch subscribes the session to a resource, if its stream is here.
	watch func(uri string)
}

// run serves the request and returns the response.
func (c *legacyCall) run(ctx context.Context) []byte {
	m := c.message
	switch m.Method {
	case mcp.MethodPing:
		return mcp.AppendResult(nil, m.ID, jsontext.Value("{}"))
	case mcp.MethodSetLevel:
		level := mcp.FieldString(m.Params, "level")
		if !mcp.IsLogLevel(level) {
			return mcp.AppendError(nil, m.ID, mcp.InvalidParams("params.level must be a log level: debug, info, notice, warning, error, critical, alert or emergency"))
		}
		return c.changed(func(rec *record) { rec.LogLevel = level })
	case mcp.MethodSubscribe, mcp.MethodUnsubscribe:
		return c.subscribe(ctx)
	case mcp.MethodDiscover, mcp.MethodListen: // of the other era
		return mcp.AppendError(nil, m.ID, mcp.MethodNotFound(m.Method))
	}
	params, err := modernParams(m.Params, c.params.Meta, c.record)
	if err != nil {
		return mcp.AppendError(nil, m.ID, toError(err))
	}
	return c.do(ctx, &request{
		id: m.ID, method: m.Method, params: params, name: c.params.Name, uri: c.params.URI, scope: c.scope,
		caller: caller{principal: c.record.Principal, era: mcp.EraLegacy},
	})
}

// changed changes the record of the session, which is all there was to do.
func (c *legacyCall) changed(edit func(*record)) []byte {
	if err := c.change(edit); err != nil {
		c.f.log.Warn("couldn't change a session", "method", c.message.Method, "error", err)
		return mcp.AppendError(nil, c.message.ID, mcp.Unavailable("", "session_unwritable", "the session cannot be changed just now").RPC())
	}
	return mcp.AppendResult(nil, c.message.ID, jsontext.Value("{}"))
}

// subscribe serves resources/subscribe and resources/unsubscribe. The router that
// has the stream of the session sees the change in its record.
func (c *legacyCall) subscribe(ctx context.Context) []byte {
	uri, id := c.params.URI, c.message.ID
	refuse := func(err error) []byte {
		return mcp.AppendError(nil, id, mcp.LegacyError(toError(err), mcp.MethodResourcesRead))
	}
	if uri == "" {
		return refuse(mcp.InvalidParams("params.uri is missing, it must be the URI of a resource"))
	}
	if c.message.Method == mcp.MethodUnsubscribe {
		return c.changed(func(rec *record) {
			rec.Subscriptions = slices.DeleteFunc(slices.Clone(rec.Subscriptions), func(other string) bool { return other == uri })
		})
	}
	if known := c.record.Subscriptions; len(known) >= maxWatched && !slices.Contains(known, uri) {
		return refuse(mcp.InvalidParams(fmt.Sprintf("the session has %d subscriptions, which is the limit", len(known))))
	}
	if err := c.f.engine.subscribable(ctx, c.scope, caller{principal: c.record.Principal, era: mcp.EraLegacy}, uri, func() { c.watch(uri) }); err != nil {
		return refuse(err)
	}
	return c.changed(func(rec *record) {
		if at, known := slices.BinarySearch(rec.Subscriptions, uri); !known {
			rec.Subscriptions = slices.Insert(slices.Clone(rec.Subscriptions), at, uri)
		}
	})
}
