package mcp

import "sync"

// running are the calls of a session that the server may be working on. A request
// that a server makes on the standalone stream names none of them, although many
// servers ask there what they need for a call: it can be answered only where there
// is no doubt which one that is.
type running struct {
	mu    sync.Mutex
	calls map[*httpExchange]bool // true: it has not always been the only one
}

// runsCode reports whether a method can make a server do something that it needs
// an answer for.
func runsCode(method string) bool {
	switch method {
	case MethodToolsCall, MethodPromptsGet, MethodResourcesRead, MethodComplete, MethodTasksResult:
		return true
	}
	return false
}

func (r *running) enter(x *httpExchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = make(map[*httpExchange]bool)
	}
	for other := range r.calls {
		r.calls[other] = true
	}
	r.calls[x] = len(r.calls) > 0
}

func (r *running) leave(x *httpExchange) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.calls, x)
}

// take gives a request to the one call that has been alone since it began, and
// reports whether there is such a call that answers it. What one caller is asked
// must not reach another.
func (r *running) take(m *Message) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for x, accompanied := range r.calls {
		return !accompanied && x.take(m)
	}
	return false
}
