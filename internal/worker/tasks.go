package worker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
)

// purposeTask is what the ids of tasks are sealed for, with the server behind it,
// which such an id names outside of its seal too.
const purposeTask = "task of "

// taskRef is what callers get as the id of a task, sealed: it brings them back to
// where the task is, and is of use to nobody else.
type taskRef struct {
	Principal string `json:"principal,omitzero"`
	Slot      int    `json:"slot,omitzero"`
	// ID is the server's own.
	ID string `json:"id"`
}

// taskPlace is a task by the connection that has it.
type taskPlace struct {
	slot int
	id   string
}

// sealTask makes a server's answer that it has made a task of the call one that
// its caller can come back with (extension tasks).
func (c *call) sealTask(value jsontext.Value, slot int) (jsontext.Value, error) {
	if !mcp.Declares(c.params.meta, mcp.ExtensionTasks) || c.tool == nil {
		return nil, mcp.NewFault(mcp.KindProtocol, "task", "the server made a task of a call whose caller knows of none")
	}
	return c.server.exposeTask(value, c.in.Meta.Principal, slot)
}

// exposeTask puts the id that the caller knows into what a server says of a task.
func (s *server) exposeTask(task jsontext.Value, principal string, slot int) (jsontext.Value, error) {
	id := mcp.Field(task, "taskId")
	if id.Kind() != '"' {
		return nil, mcp.NewFault(mcp.KindProtocol, "task", "the server's task has no id")
	}
	plain, err := json.Marshal(&taskRef{Principal: principal, Slot: slot, ID: mcp.Text(id)})
	if err != nil {
		return nil, err
	}
	exposed := bus.TaskID(s.id, s.lot.seal.Close(purposeTask+s.id, plain))
	return mcp.Edit(task, mcp.Change{Name: "taskId", Value: mcp.QuoteString(exposed)})
}

// openTask opens the id of a task. Whoever has that of another caller learns
// nothing, not even that it is one.
func (s *server) openTask(exposed, principal string) (taskRef, error) {
	unknown := mcp.InvalidParams("params.taskId is that of no task")
	server, secret, ok := bus.CutTaskID(exposed)
	if !ok || server != s.id {
		return taskRef{}, unknown
	}
	plain, err := s.lot.seal.Open(purposeTask+s.id, secret)
	if err != nil {
		return taskRef{}, unknown
	}
	var ref taskRef
	if err := json.Unmarshal(plain, &ref); err != nil || ref.Principal != principal {
		return taskRef{}, unknown
	}
	return ref, nil
}

// serveTask answers tasks/get, tasks/update and tasks/cancel (extension tasks). What
// may be done about a task was decided when it was made; only who asks is checked.
func (s *server) serveTask(ctx context.Context, in *bus.Incoming, m *mcp.Message) (bus.Reply, error) {
	id, meta := mcp.Field(m.Params, "taskId"), mcp.Field(m.Params, "_meta")
	if id.Kind() != '"' {
		return bus.Reply{}, wrongParam("taskId", "a string")
	}
	c := &call{server: s, in: in, message: m, params: callParams{meta: meta, kind: catalog.KindTool}, def: s.definition(), start: time.Now()}
	if !mcp.Declares(meta, mcp.ExtensionTasks) {
		return c.reply(nil, mcp.MissingExtension(mcp.ExtensionTasks))
	}
	exposed := mcp.Text(id)
	ref, err := s.openTask(exposed, in.Meta.Principal)
	if err != nil {
		return c.reply(nil, err)
	}
	live := s.live.Load()
	at := slices.IndexFunc(live.links, func(l *link) bool { return l.slot == ref.Slot })
	if at < 0 {
		return bus.Reply{}, mcp.Unavailable(s.id, mcp.ReasonBackend, "the connection of server %q that has the task is not there just now", s.id)
	}
	l := live.links[at]
	params, err := c.strip(m.Params, false, true)
	if err != nil {
		return bus.Reply{}, err
	}
	if params, err = mcp.Edit(params, mcp.Change{Name: "taskId", Value: mcp.QuoteString(ref.ID)}); err != nil {
		return bus.Reply{}, err
	}
	value, err := l.call(ctx, &mcp.Call{Method: m.Method, Params: params, Timeout: c.def.Config.Timeout.Std(), MaxTotal: c.def.Config.MaxTotalTimeout.Std(), Notify: c.notify})
	if err == nil && mcp.Field(value, "taskId") != nil {
		value, err = mcp.Edit(value, mcp.Change{Name: "taskId", Value: mcp.QuoteString(exposed)}) // the very id that was asked about
	}
	return c.reply(value, err)
}

// subscribeTasks has connections tell of tasks, and returns the ids of those that
// they will tell of.
func (w *watch) subscribeTasks(ctx context.Context, l *listener, ids []string) []string {
	ctx, cancel := context.WithTimeout(ctx, subscribeTimeout)
	defer cancel()
	var honoured []string
	for _, id := range ids {
		ref, err := w.server.openTask(id, l.principal)
		if err != nil {
			continue
		}
		at := taskPlace{ref.Slot, ref.ID}
		w.mu.Lock()
		i := slices.IndexFunc(w.links, func(l *link) bool { return l.slot == ref.Slot })
		if i < 0 {
			w.mu.Unlock()
			continue
		}
		of := w.links[i]
		w.tasks[at]++
		l.tasks[at] = id
		w.mu.Unlock()
		if err := of.conn.SubscribeTask(ctx, ref.ID); err != nil {
			w.mu.Lock()
			w.dropTaskLocked(l, at)
			w.mu.Unlock()
			continue
		}
		honoured = append(honoured, id)
	}
	return honoured
}

// dropTaskLocked ends one interest, see dropLocked.
func (w *watch) dropTaskLocked(l *listener, at taskPlace) {
	delete(l.tasks, at)
	if w.tasks[at]--; w.tasks[at] > 0 {
		return
	}
	delete(w.tasks, at)
	for _, l := range w.links {
		if l.slot == at.slot {
			l.conn.UnsubscribeTask(at.id)
		}
	}
}

// addTasksLocked has a new connection tell of the tasks that are wanted of it. What
// became of them meanwhile their callers can ask.
func (w *watch) addTasksLocked(ctx context.Context, group *sync.WaitGroup, l *link) {
	for at := range w.tasks {
		if at.slot != l.slot {
			continue
		}
		group.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, subscribeTimeout)
			defer cancel()
			if err := l.conn.SubscribeTask(ctx, at.id); err != nil {
				w.server.log.Warn("couldn't subscribe to a task again", "error", l.secrets.error(err))
			}
		})
	}
}

// taskChanged tells all whom it concerns of the state of a task. It does not block.
func (w *watch) taskChanged(slot int, params jsontext.Value) {
	at := taskPlace{slot, mcp.FieldString(params, "taskId")}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.tasks[at] == 0 {
		return
	}
	for l := range w.listeners {
		id, ok := l.tasks[at]
		if !ok {
			continue
		}
		state, err := mcp.Edit(params, mcp.Change{Name: "taskId", Value: mcp.QuoteString(id)}, mcp.Change{Name: "_meta"})
		if err != nil {
			continue
		}
		l.mu.Lock()
		l.states[id] = state
		l.mu.Unlock()
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}
