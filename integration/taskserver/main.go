// Command taskserver is a modern MCP server with the extension of tasks, which the
// official SDKs do not have yet. It has the tools that the conformance suite's
// scenarios about tasks call, over Streamable HTTP without sessions.
//
//	taskserver ADDR
package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	version   = "2026-07-28"
	extension = "io.modelcontextprotocol/tasks"
	metaCaps  = "io.modelcontextprotocol/clientCapabilities"
)

type object = map[string]any

// message is a request.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name, TaskID   string
		Arguments      object
		InputResponses map[string]struct {
			Action  string
			Content object
		}
		Meta          map[string]json.RawMessage `json:"_meta"`
		Notifications struct{ TaskIDs []string }
	} `json:"params"`
}

// declares reports whether the caller declared the extension.
func (m *message) declares() bool {
	var caps struct {
		Extensions map[string]any `json:"extensions"`
	}
	_ = json.Unmarshal(m.Params.Meta[metaCaps], &caps) // what has none declares none
	_, ok := caps.Extensions[extension]
	return ok
}

type fault struct {
	status int
	code   int
	text   string
	data   any
}

func missing() *fault {
	return &fault{http.StatusBadRequest, -32021, "the extension of tasks is not declared", object{"requiredCapabilities": object{"extensions": object{extension: object{}}}}}
}

// task is one task. It is guarded by server.mu.
type task struct {
	id               string
	created, updated time.Time
	status           string
	result, err      object
	asks             object // inputRequests
	given            object // what was answered
	wake             chan struct{}
}

func (t *task) envelope() object {
	return object{
		"taskId": t.id, "status": t.status, "createdAt": t.created.Format(time.RFC3339Nano), "lastUpdatedAt": t.updated.Format(time.RFC3339Nano),
		"ttlMs": 600_000, "pollIntervalMs": 100,
	}
}

func (t *task) detailed() object {
	d := t.envelope()
	switch {
	case t.status == "completed":
		d["result"] = t.result
	case t.status == "failed":
		d["error"] = t.err
	case t.status == "input_required":
		d["inputRequests"] = t.asks
	}
	return d
}

func (t *task) ended() bool {
	return t.status == "completed" || t.status == "failed" || t.status == "cancelled"
}

type server struct {
	mu      sync.Mutex
	tasks   map[string]*task
	changed chan struct{} // closed with the next change of any task
}

// set changes a task and tells whoever listens. It reports whether it could.
func (s *server) set(t *task, change func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.ended() {
		return false
	}
	change()
	t.updated = time.Now().UTC()
	close(s.changed)
	s.changed = make(chan struct{})
	return true
}

func text(format string, args ...any) object {
	return object{"content": []any{object{"type": "text", "text": fmt.Sprintf(format, args...)}}}
}

// start makes a task of work, which returns the result or the error.
func (s *server) start(work func(t *task) (result, err object)) object {
	now := time.Now().UTC()
	t := &task{id: rand.Text(), created: now, updated: now, status: "working", wake: make(chan struct{}, 1)}
	s.mu.Lock()
	s.tasks[t.id] = t
	created := t.envelope()
	s.mu.Unlock()
	go func() {
		result, err := work(t)
		s.set(t, func() {
			if t.status, t.result, t.err = "completed", result, err; err != nil {
				t.status = "failed"
			}
		})
	}()
	created["resultType"] = "task"
	return created
}

// ask waits until everything is answered.
func (s *server) ask(t *task, questions object) object {
	s.set(t, func() { t.status, t.asks, t.given = "input_required", questions, object{} })
	for range t.wake {
		s.mu.Lock()
		open := len(t.asks)
		s.mu.Unlock()
		if open == 0 {
			break
		}
	}
	s.set(t, func() { t.status = "working" })
	return t.given
}

func form(text, field, kind string) object {
	return object{"method": "elicitation/create", "params": object{
		"mode": "form", "message": text,
		"requestedSchema": object{"type": "object", "properties": object{field: object{"type": kind}}, "required": []string{field}},
	}}
}

func tools() []object {
	var list []object
	for _, name := range []string{"greet", "slow_compute", "failing_job", "protocol_error_job", "confirm_delete", "multi_input", "test_tool_with_task"} {
		list = append(list, object{"name": name, "description": "a tool about tasks", "inputSchema": object{"type": "object"}})
	}
	return list
}

func (s *server) call(m *message) (object, *fault) {
	p, tasks := &m.Params, m.declares()
	number := func(name string) time.Duration {
		n, _ := p.Arguments[name].(float64)
		return time.Duration(n * float64(time.Second))
	}
	switch p.Name {
	case "greet":
		return text("Hello, %v!", p.Arguments["name"]), nil
	case "slow_compute":
		if !tasks {
			<-time.After(number("seconds"))
			return text("computed"), nil
		}
		return s.start(func(*task) (object, object) {
			<-time.After(number("seconds"))
			return text("computed"), nil
		}), nil
	}
	if !tasks {
		return nil, missing()
	}
	switch p.Name {
	case "failing_job":
		return s.start(func(*task) (object, object) {
			r := text("the job failed")
			r["isError"] = true
			return r, nil
		}), nil
	case "protocol_error_job":
		return s.start(func(*task) (object, object) { return nil, object{"code": -32603, "message": "the job broke"} }), nil
	case "confirm_delete":
		return s.start(func(t *task) (object, object) {
			return text("confirmed: %v", s.ask(t, object{"confirm": form("Delete it?", "confirm", "boolean")})), nil
		}), nil
	case "multi_input":
		return s.start(func(t *task) (object, object) {
			return text("got %v", s.ask(t, object{"name": form("Who?", "name", "string"), "age": form("How old?", "age", "integer")})), nil
		}), nil
	case "test_tool_with_task":
		answer, ok := p.InputResponses["user_name"]
		if !ok {
			return object{"resultType": "input_required", "inputRequests": object{"user_name": form("What is your name?", "name", "string")}}, nil
		}
		return s.start(func(*task) (object, object) { return text("Hello, %v!", answer.Content["name"]), nil }), nil
	}
	return nil, &fault{http.StatusBadRequest, -32602, "unknown tool", nil}
}

// about answers a request about a task.
func (s *server) about(m *message) (object, *fault) {
	if !m.declares() {
		return nil, missing()
	}
	s.mu.Lock()
	t := s.tasks[m.Params.TaskID]
	s.mu.Unlock()
	if t == nil {
		return nil, &fault{http.StatusBadRequest, -32602, "unknown task", nil}
	}
	switch m.Method {
	case "tasks/get":
		s.mu.Lock()
		defer s.mu.Unlock()
		return t.detailed(), nil
	case "tasks/cancel":
		s.set(t, func() { t.status = "cancelled" })
	case "tasks/update":
		s.set(t, func() {
			for key, answer := range m.Params.InputResponses {
				if t.asks[key] != nil {
					delete(t.asks, key)
					t.given[key] = answer.Content
				}
			}
		})
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
	return object{}, nil
}

func (s *server) answer(m *message) (object, *fault) {
	switch m.Method {
	case "server/discover":
		return object{"supportedVersions": []string{version}, "capabilities": object{"tools": object{}, "extensions": object{extension: object{}}}, "ttlMs": 0, "cacheScope": "private"}, nil
	case "tools/list":
		return object{"tools": tools(), "ttlMs": 0, "cacheScope": "private"}, nil
	case "tools/call":
		return s.call(m)
	case "tasks/get", "tasks/cancel", "tasks/update":
		return s.about(m)
	}
	return nil, &fault{http.StatusNotFound, -32601, "method not found", nil}
}

// mismatch is what is wrong with the headers that mirror the body.
func mismatch(h http.Header, m *message) *fault {
	name := map[string]string{"tools/call": m.Params.Name}[m.Method]
	if m.Method == "tasks/get" || m.Method == "tasks/update" || m.Method == "tasks/cancel" {
		name = m.Params.TaskID
	}
	if h.Get("Mcp-Method") != m.Method || name != "" && strings.TrimSpace(h.Get("Mcp-Name")) != name {
		return &fault{http.StatusBadRequest, -32020, "the headers are not those of the body", nil}
	}
	return nil
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m message
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if m.Method == "subscriptions/listen" {
		s.listen(w, r, &m)
		return
	}
	result, f := object(nil), mismatch(r.Header, &m)
	if f == nil {
		result, f = s.answer(&m)
	}
	out, status := object{"jsonrpc": "2.0", "id": m.ID}, http.StatusOK
	if f != nil {
		status, out["error"] = f.status, object{"code": f.code, "message": f.text, "data": f.data}
	} else {
		if result["resultType"] == nil {
			result["resultType"] = "complete"
		}
		out["result"] = result
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(out) // a caller that is gone needs no answer
}

// listen tells of every change of the tasks that are asked for.
func (s *server) listen(w http.ResponseWriter, r *http.Request, m *message) {
	w.Header().Set("Content-Type", "text/event-stream")
	tell := func(method string, params object) {
		params["_meta"] = object{"io.modelcontextprotocol/subscriptionId": m.ID}
		b, _ := json.Marshal(object{"jsonrpc": "2.0", "method": method, "params": params})
		_, _ = fmt.Fprintf(w, "data: %s\n\n", b) // the end of r says that the caller is gone
		_ = http.NewResponseController(w).Flush()
	}
	seen := make(map[string]time.Time)
	var known []string
	s.mu.Lock()
	for _, id := range m.Params.Notifications.TaskIDs {
		if t := s.tasks[id]; t != nil {
			known, seen[id] = append(known, id), t.updated
		}
	}
	changed := s.changed
	s.mu.Unlock()
	tell("notifications/subscriptions/acknowledged", object{"notifications": object{"taskIds": known}})
	for {
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
		var states []object
		s.mu.Lock()
		changed = s.changed
		for _, id := range known {
			if t := s.tasks[id]; t.updated != seen[id] {
				seen[id] = t.updated
				states = append(states, t.detailed())
			}
		}
		s.mu.Unlock()
		for _, state := range states {
			tell("notifications/tasks", state)
		}
	}
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: taskserver ADDR")
	}
	log.Fatal(http.ListenAndServe(os.Args[1], &server{tasks: make(map[string]*task), changed: make(chan struct{})}))
}
