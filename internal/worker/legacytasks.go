package worker

import (
	"context"
	"crypto/rand"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/mcp"
)

// The tasks of MCP 2025-11-25 (basic/utilities/tasks) end at the worker, since no
// caller has them: a tool that can only be called as a task looks like any other,
// and what a server asks as a task is asked like anything else.

const (
	// taskTTL is how long a server is to keep the result of a task at least.
	taskTTL = time.Hour
	// taskTimeout bounds the small requests about a task.
	taskTimeout = 10 * time.Second
	// maxClientTasks bounds the tasks that a server makes of its questions in one call.
	maxClientTasks = 16
)

// relatedTask is the key of _meta that names the task of a message.
const relatedTask = "io.modelcontextprotocol/related-task"

// carryOut makes the call, as a task if the tool can only be called as one, and
// waits for its result.
func (c *call) carryOut(ctx context.Context, l *link, request *mcp.Call) (jsontext.Value, error) {
	if c.tool == nil || !c.tool.TaskRequired {
		return l.call(ctx, request)
	}
	started := time.Now()
	create := *request
	var err error
	ttl := strconv.AppendInt([]byte(`{"ttl":`), taskTTL.Milliseconds(), 10)
	if create.Params, err = mcp.Edit(request.Params, mcp.Change{Name: "task", Value: append(ttl, '}')}); err != nil {
		return nil, err
	}
	value, err := l.call(ctx, &create)
	if err != nil {
		return nil, err
	}
	id := mcp.Field(mcp.Field(value, "task"), "taskId")
	if id.Kind() != '"' {
		if mcp.Field(value, "content") != nil {
			return value, nil // it has answered at once
		}
		return nil, mcp.NewFault(mcp.KindProtocol, "task", "the server's answer to the call as a task names no task")
	}
	about := &mcp.Call{Method: mcp.MethodTasksGet, Params: append(append([]byte(`{"taskId":`), id...), '}'), Timeout: taskTimeout}
	result := *request
	result.Method = mcp.MethodTasksResult
	if result.Params, err = mcp.Edit(request.Params, mcp.Change{Name: "name"}, mcp.Change{Name: "arguments"}, mcp.Change{Name: "taskId", Value: id}); err != nil {
		return nil, err
	}
	for {
		value, err = l.call(ctx, &result) // lasts until the task has ended
		if ctx.Err() != nil {
			cancel := *about
			cancel.Method = mcp.MethodTasksCancel
			_, _ = l.call(context.WithoutCancel(ctx), &cancel) // nobody waits for what comes of it
			return nil, err
		}
		if !mcp.IsKind(err, mcp.KindTimeout) || time.Since(started) >= request.MaxTotal {
			break
		}
		// A task may work for long and say nothing; while it says that it works, it has time.
		state, stateErr := l.call(ctx, about)
		if status := mcp.FieldString(state, "status"); stateErr != nil || status == "failed" || status == "cancelled" {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	meta := mcp.Field(value, "_meta")
	if mcp.Field(meta, relatedTask) == nil {
		return value, nil
	}
	if meta, err = mcp.Edit(meta, mcp.Change{Name: relatedTask}); err != nil {
		return nil, err
	}
	return mcp.Edit(value, mcp.Change{Name: "_meta", Value: meta})
}

// clientTasks are the questions of a server during one call that it wants to be
// tasks: it gets a task for an answer at once, and asks for the result later.
type clientTasks struct {
	call  context.Context //nolint:containedctx // of the call, which the questions end with
	ask   func(ctx context.Context, method string, params jsontext.Value) (jsontext.Value, *mcp.Error)
	able  func(method string, params jsontext.Value) *mcp.Error
	group sync.WaitGroup // of all questions

	mu    sync.Mutex
	tasks []*clientTask
}

// clientTask is one of them.
type clientTask struct {
	id      string
	created time.Time
	cancel  context.CancelFunc
	done    chan struct{} // closed when it has ended

	// Set before done is closed.
	value     jsontext.Value
	err       *mcp.Error
	ended     time.Time
	cancelled bool
}

func newClientTasks(call context.Context, p *parked) *clientTasks {
	return &clientTasks{call: call, ask: p.request, able: p.able}
}

// able is why the caller cannot be asked this, nil if it can.
func (p *parked) able(method string, params jsontext.Value) *mcp.Error {
	p.mu.Lock()
	defer p.mu.Unlock()
	refusal, _ := p.abilities.refuse(method, params)
	return refusal
}

// request answers a request of the server's.
func (t *clientTasks) request(ctx context.Context, method string, params jsontext.Value) (jsontext.Value, *mcp.Error) {
	switch method {
	case mcp.MethodTasksList:
		return t.list(), nil
	case mcp.MethodTasksGet, mcp.MethodTasksCancel, mcp.MethodTasksResult:
		task := t.find(mcp.FieldString(params, "taskId"))
		if task == nil {
			return nil, mcp.InvalidParams("params.taskId is that of no task of this call")
		}
		return task.answer(ctx, method)
	case mcp.MethodElicit, mcp.MethodSample:
		if mcp.Field(params, "task").Kind() == '{' && t.able(method, params) == nil {
			return t.start(method, params)
		}
	}
	return t.ask(ctx, method, params)
}

// start makes a task of a question.
func (t *clientTasks) start(method string, params jsontext.Value) (jsontext.Value, *mcp.Error) {
	ctx, cancel := context.WithCancel(t.call)
	task := &clientTask{id: rand.Text(), created: time.Now().UTC(), cancel: cancel, done: make(chan struct{})}
	t.mu.Lock()
	full := len(t.tasks) >= maxClientTasks
	if !full {
		t.tasks = append(t.tasks, task)
	}
	t.mu.Unlock()
	if full {
		cancel()
		return nil, &mcp.Error{Code: mcp.CodeInternal, Message: "too many tasks are open in this call"}
	}
	state := task.json()
	t.group.Go(func() {
		defer close(task.done)
		defer cancel()
		task.value, task.err = t.ask(ctx, method, params)
		task.ended, task.cancelled = time.Now().UTC(), ctx.Err() != nil
	})
	return append(append([]byte(`{"task":`), state...), '}'), nil
}

func (t *clientTasks) find(id string) *clientTask {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, task := range t.tasks {
		if task.id == id {
			return task
		}
	}
	return nil
}

func (t *clientTasks) list() jsontext.Value {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := []byte(`{"tasks":[`)
	for i, task := range t.tasks {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, task.json()...)
	}
	return append(b, "]}"...)
}

// answer answers a request about the task.
func (k *clientTask) answer(ctx context.Context, method string) (jsontext.Value, *mcp.Error) {
	switch method {
	case mcp.MethodTasksGet:
		return k.json(), nil
	case mcp.MethodTasksCancel:
		if isClosed(k.done) {
			return nil, mcp.InvalidParams("the task has ended")
		}
		k.cancel()
	}
	select {
	case <-k.done:
	case <-ctx.Done():
		return nil, &mcp.Error{Code: mcp.CodeInternal, Message: "the request was withdrawn"}
	}
	if method == mcp.MethodTasksCancel {
		return k.json(), nil
	}
	if k.err != nil {
		return nil, k.err
	}
	meta, err := mcp.Edit(mcp.Field(k.value, "_meta"), mcp.Change{Name: relatedTask, Value: append(mcp.AppendString([]byte(`{"taskId":`), k.id), '}')})
	if err != nil {
		return nil, &mcp.Error{Code: mcp.CodeInternal, Message: err.Error()}
	}
	value, err := mcp.Edit(k.value, mcp.Change{Name: "_meta", Value: meta})
	if err != nil {
		return nil, &mcp.Error{Code: mcp.CodeInternal, Message: err.Error()}
	}
	return value, nil
}

// json is the task as the protocol has it.
func (k *clientTask) json() jsontext.Value {
	status, updated := "working", k.created
	if isClosed(k.done) {
		updated = k.ended
		switch {
		case k.cancelled:
			status = "cancelled"
		case k.err != nil:
			status = "failed"
		default:
			status = "completed"
		}
	}
	b := mcp.AppendString([]byte(`{"taskId":`), k.id)
	b = append(append(b, `,"status":"`...), status...)
	b = k.created.AppendFormat(append(b, `","createdAt":"`...), time.RFC3339Nano)
	b = updated.AppendFormat(append(b, `","lastUpdatedAt":"`...), time.RFC3339Nano)
	return append(b, `","ttl":null,"pollInterval":500}`...)
}
