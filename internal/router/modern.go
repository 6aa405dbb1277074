package router

import (
	"errors"
	"net/http"

	"toolhub/internal/mcp"
)

// servePost takes one message. Its era is what the version header says, or the
// version in its body.
func (f *fronts) servePost(w http.ResponseWriter, r *http.Request, scope string, modern bool) {
	var s *session
	if id := r.Header.Get(mcp.HeaderSession); id != "" && !modern {
		// In front of everything else, so that nothing hides from a client that
		// its session is gone.
		var ok bool
		if s, ok = f.findSession(w, r, id, scope); !ok {
			return
		}
	}
	if !mcp.IsJSON(r.Header.Get("Content-Type")) {
		f.refuseUnread(w, r, http.StatusUnsupportedMediaType, &mcp.Error{Code: mcp.CodeInvalidRequest, Message: "Content-Type must be application/json"})
		return
	}
	accepts := mcp.ParseAccept(r.Header["Accept"])
	if !accepts.JSON && !accepts.Stream {
		f.refuseUnread(w, r, http.StatusNotAcceptable, &mcp.Error{Code: mcp.CodeInvalidRequest, Message: "Accept must allow application/json or text/event-stream, best both"})
		return
	}
	buf := bodies.Get().(*[]byte)
	defer bodies.Put(buf)
	body, status, e := readBody(w, r, buf, f.engine.maxMessageBytes())
	if e != nil {
		f.refuseUnread(w, r, status, e)
		return
	}
	m, err := mcp.ParseMessage(body, mcp.Strict)
	if err != nil {
		refuse(w, http.StatusBadRequest, mcp.RequestID(body), toError(err))
		return
	}
	params, err := mcp.ParseParams(m.Params)
	var meta mcp.RequestMeta
	if err == nil {
		meta, err = mcp.ReadRequestMeta(params.Meta)
	}
	if !modern && meta.Version != "" && (s == nil || mcp.EraOf(meta.Version) == mcp.EraModern) {
		modern = true // the body says so, and the headers will be found to be wrong
	}
	if !modern {
		f.legacyPost(w, r, &legacyPost{scope: scope, session: s, accepts: accepts, message: &m, params: &params, err: err})
		return
	}
	switch {
	case m.IsResponse():
		refuse(w, http.StatusBadRequest, nil, &mcp.Error{Code: mcp.CodeInvalidRequest, Message: "MCP " + mcp.Version20260728 + " has no responses of clients: answers come in params.inputResponses"})
	case m.IsNotification():
		w.WriteHeader(http.StatusAccepted)
	case err != nil:
		e := toError(err)
		refuse(w, mcp.ModernStatus(e), m.ID, e)
	default:
		f.modernRequest(w, r, scope, accepts, &m, &params, &meta)
	}
}

// modernRequest serves one request that says all about itself.
func (f *fronts) modernRequest(w http.ResponseWriter, r *http.Request, scope string, accepts mcp.Accepts, m *mcp.Message, params *mcp.Params, meta *mcp.RequestMeta) {
	c := caller{principal: anonymous, era: mcp.EraModern}
	if e := f.checkModern(r.Header, scope, c, m, params, meta); e != nil {
		refuse(w, mcp.ModernStatus(e), m.ID, e)
		return
	}
	p := f.open(w, accepts, nil)
	defer p.close(m.ID)
	if m.Method == mcp.MethodListen {
		f.listen(r.Context(), p, scope, c, m)
		return
	}
	req := &request{id: m.ID, method: m.Method, params: m.Params, name: params.Name, uri: params.URI, scope: scope, caller: c}
	a := f.engine.do(r.Context(), req, p.notify)
	if r.Context().Err() != nil {
		return // nobody is there
	}
	p.finish(mcp.ModernStatus(a.err), a.body)
}

// checkModern checks what a modern request says about itself, in the order of
// what the client has to mend first.
func (f *fronts) checkModern(h http.Header, scope string, c caller, m *mcp.Message, params *mcp.Params, meta *mcp.RequestMeta) *mcp.Error {
	if meta.Version != "" {
		if e := mcp.CheckVersionHeader(h, meta.Version); e != nil {
			return e
		}
	}
	if e := meta.CheckModern(); e != nil {
		return e
	}
	if e := mcp.CheckHeaders(h, m, params); e != nil {
		return e
	}
	if m.Method != mcp.MethodToolsCall {
		return nil
	}
	return mcp.CheckParamHeaders(h, f.engine.paramHeaders(scope, c, params.Name), params.Arguments)
}

// toError makes an error of anything that a parser or the engine found.
func toError(err error) *mcp.Error {
	if e, ok := errors.AsType[*mcp.Error](err); ok {
		return e
	}
	if f, ok := errors.AsType[*mcp.Fault](err); ok {
		return f.RPC()
	}
	return &mcp.Error{Code: mcp.CodeInternal, Message: "internal error"}
}
