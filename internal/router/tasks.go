package router

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
)

// Tasks (extension tasks) are kept by servers, and their ids say all that a router
// has to know: any router serves any of them.

func unknownTask() *mcp.Error { return mcp.InvalidParams("params.taskId is that of no task") }

// routeTask goes by the id of the task, which names its server.
func (e *engine) routeTask(req *request, _ string) (destination, error) {
	if req.caller.era == mcp.EraLegacy { // it has tasks of another kind, which are not offered
		return destination{}, mcp.MethodNotFound(req.method)
	}
	id := mcp.Field(req.params, "taskId")
	if id.Kind() != '"' {
		return destination{}, mcp.InvalidParams("params.taskId must be a string")
	}
	if !mcp.Declares(mcp.Field(req.params, "_meta"), mcp.ExtensionTasks) {
		return destination{}, mcp.MissingExtension(mcp.ExtensionTasks)
	}
	server, ok := e.taskServer(req.scope, mcp.Text(id))
	if !ok {
		return destination{}, unknownTask()
	}
	return destination{server: server}, nil
}

// taskServer is the server that has a task.
func (e *engine) taskServer(scope, id string) (server string, ok bool) {
	server, _, ok = bus.CutTaskID(id)
	return server, ok && (scope == "" || scope == server) && e.registry.View().Get(server) != nil
}

// taskWatch is what one client hears of tasks: one call on the bus for each server
// that has some of them, opened again after any drop.
type taskWatch struct {
	engine   *engine
	caller   caller
	set      *catalog.ToolSet
	honoured []string
	cancel   context.CancelFunc
	group    sync.WaitGroup
	wake     chan struct{} // has a token when there is something in states

	mu     sync.Mutex
	states map[string]jsontext.Value // the newest of each task
}

// watchTasks begins to listen, and waits until the servers have acknowledged it, or
// did not in time. The watch must be closed.
func (e *engine) watchTasks(ctx context.Context, scope string, c caller, ids []string) *taskWatch {
	w := &taskWatch{engine: e, caller: c, set: e.list(scope, c).set, wake: make(chan struct{}, 1), states: make(map[string]jsontext.Value)}
	ctx, w.cancel = context.WithCancel(ctx)
	of := make(map[string][]string)
	for _, id := range ids {
		if server, ok := e.taskServer(scope, id); ok {
			of[server] = append(of[server], id)
		}
	}
	acks := make(chan []string, len(of))
	for server, ids := range of {
		w.group.Go(func() { w.listen(ctx, server, ids, acks) })
	}
	timeout := time.NewTimer(watchTimeout)
	defer timeout.Stop()
	for range of {
		select {
		case ack := <-acks:
			w.honoured = append(w.honoured, ack...)
			continue
		case <-timeout.C:
		case <-ctx.Done():
		}
		break
	}
	slices.Sort(w.honoured)
	return w
}

// Close ends the watch and waits for what it started.
func (w *taskWatch) Close() {
	w.cancel()
	w.group.Wait()
}

// listen keeps one call open. The first acknowledgement, or nil where there is none,
// goes to acks.
func (w *taskWatch) listen(ctx context.Context, server string, ids []string, acks chan<- []string) {
	first := sync.OnceFunc(func() { acks <- nil })
	acknowledged := false
	list, err := json.Marshal(ids)
	if err != nil {
		first()
		return
	}
	body := mcp.AppendRequest(nil, mcp.IntID(1), mcp.MethodListen, slices.Concat([]byte(`{"notifications":{"taskIds":`), list, []byte("}}")))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for delay := firstWatchPause; ctx.Err() == nil; delay = min(2*delay, lastWatchPause) {
		view := w.engine.registry.View()
		s, err := w.engine.ready(server)
		if err == nil {
			_, err = w.engine.conn.Call(ctx, &bus.Request{
				Subject: bus.CallSubject(w.engine.conn.Hub(), server, s.Epoch(), mcp.MethodListen), Worker: s.Own.Worker,
				Sign: true, Meta: bus.Meta{Principal: w.caller.principal, Server: server}, Body: body,
			}, func(body []byte) {
				m, err := mcp.ParseMessage(body, mcp.Lenient)
				switch {
				case err != nil:
				case m.Method == mcp.NotifyAcknowledged && !acknowledged:
					acknowledged = true
					ack, _ := stringList(mcp.Field(mcp.Field(m.Params, "notifications"), "taskIds"))
					acks <- ack
					if len(ack) == 0 {
						stop() // a call for nothing would only take the place of others
					}
				case m.Method == mcp.NotifyTask:
					w.changed(server, m.Params)
				}
			})
		}
		if err != nil && !acknowledged {
			first() // whoever waits hears that it is not acknowledged
			return
		}
		select {
		case <-view.Superseded():
		case <-time.After(delay/2 + rand.N(delay)):
		case <-ctx.Done():
		}
	}
	if !acknowledged {
		first()
	}
}

// changed takes the state of a task, as the caller is to see it.
func (w *taskWatch) changed(server string, state jsontext.Value) {
	// It is what tasks/get answers, and looks to callers like that.
	reply, err := present(&request{method: mcp.MethodTasksGet}, server, w.set, bus.Reply{Body: mcp.AppendResult(nil, mcp.IntID(1), state)})
	if err != nil {
		return
	}
	m, err := mcp.ParseMessage(reply.Body, mcp.Lenient)
	if err != nil {
		return
	}
	w.mu.Lock()
	w.states[mcp.FieldString(m.Result, "taskId")] = m.Result
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// forward hands on what is heard, from now on, until send fails.
func (w *taskWatch) forward(ctx context.Context, send func(state jsontext.Value) error) {
	if len(w.honoured) == 0 {
		return
	}
	w.group.Go(func() {
		for {
			select {
			case <-w.wake:
			case <-ctx.Done():
				return
			}
			w.mu.Lock()
			states := w.states
			w.states = make(map[string]jsontext.Value)
			w.mu.Unlock()
			for _, id := range slices.Sorted(maps.Keys(states)) {
				if send(states[id]) != nil {
					return
				}
			}
		}
	})
}
