package integration_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"toolhub/integration/hubproc"
)

// TestTasks: a task of a server (extension tasks) is used over any router, and
// outlives the one that it was made over; its id is of no use in other forms.
func TestTasks(t *testing.T) {
	t.Parallel()
	yaml := fmt.Sprintf("hub: tasks\nnats: {url: %q}\npolicy: allow_all\nservers:\n  jobs: {url: %q}\n  other: {builtin: dice}\n", natsServer(t), listener(t, "taskserver", "{addr}"))
	definer := startProgram(t, hubproc.Config{Binary: binary("hub"), Dir: t.TempDir(), YAML: yaml})
	offered(t, definer, "jobs__greet")
	stop(t, definer)
	program(t, "hub-worker", yaml, false)
	one, two := program(t, "hub-router", yaml, true), program(t, "hub-router", yaml, true)
	const able = `{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	client := func(h *hubproc.Hub, capabilities string) *eraClient {
		offered(t, h, "jobs__greet")
		return (&eraClient{t: t, url: h.URL + "/mcp", modern: true, capabilities: capabilities}).open()
	}
	first, second := client(one, able), client(two, able)
	type state struct {
		ResultType, TaskID, Status string
		InputRequests              map[string]wire
		Result                     struct{ Content []struct{ Text string } }
	}
	read := func(e *exchanged) (s state) {
		t.Helper()
		if e.err != nil || json.Unmarshal(e.result, &s) != nil {
			t.Fatal(e)
		}
		return s
	}
	about := func(c *eraClient, method, id, more string) *exchanged {
		return c.do(method, fmt.Sprintf(`{"taskId":%q%s}`, id, more))
	}
	task := read(first.do("tools/call", `{"name":"jobs__multi_input","arguments":{}}`))
	if task.ResultType != "task" || !strings.HasPrefix(task.TaskID, "toolhub-task:jobs:") || strings.Contains(task.TaskID, "taskserver") {
		t.Fatalf("%+v", task)
	}
	heard := make(chan wire, 100)
	listening(t, second, task.TaskID, heard)
	one.Kill()
	var asked state
	eventually(t, func() error {
		if asked = read(about(second, "tasks/get", task.TaskID, "")); asked.Status != "input_required" {
			return fmt.Errorf("it is %s", asked.Status)
		}
		return nil
	})
	if asked.TaskID != task.TaskID || !strings.Contains(string(asked.InputRequests["name"].Params), `"[jobs] Who?"`) {
		t.Errorf("%+v", asked)
	}
	// Other ids, and clients that do not have the extension.
	for id, want := range map[string]int64{
		task.TaskID + "x": -32602, "toolhub-task:other:" + strings.TrimPrefix(task.TaskID, "toolhub-task:jobs:"): -32602, "toolhub-task:nobody:x": -32602, "x": -32602, "": -32602,
	} {
		for _, method := range []string{"tasks/get", "tasks/cancel", "tasks/update"} {
			if e := about(second, method, id, ""); e.err == nil || e.err.Code != want {
				t.Errorf("%s %q: %v", method, id, e)
			}
		}
	}
	plain := client(two, "{}")
	if e := about(plain, "tasks/get", task.TaskID, ""); e.err == nil || e.err.Code != -32021 || !strings.Contains(string(e.err.Data), "io.modelcontextprotocol/tasks") {
		t.Errorf("without the extension: %v", e)
	}
	if e := plain.do("tools/call", `{"name":"jobs__slow_compute","arguments":{"seconds":0}}`); firstText(e) != "computed" {
		t.Errorf("a call without the extension: %v", e)
	}
	legacy := (&eraClient{t: t, url: two.URL + "/mcp", capabilities: able}).open()
	if e := legacy.do("tools/call", `{"name":"jobs__slow_compute","arguments":{"seconds":0}}`); firstText(e) != "computed" {
		t.Errorf("a call of the initialize era: %v", e)
	}
	if e := legacy.do("tasks/get", `{"taskId":"x"}`); e.err == nil || e.err.Code != -32601 {
		t.Errorf("tasks/get in the initialize era: %v", e)
	}
	for _, answer := range []string{`"name":{"action":"accept","content":{"name":"Ada"}}`, `"age":{"action":"accept","content":{"age":36}}`} {
		if e := about(second, "tasks/update", task.TaskID, `,"inputResponses":{`+answer+`}`); e.err != nil || !strings.Contains(string(e.result), `"resultType":"complete"`) {
			t.Fatalf("tasks/update: %v", e)
		}
	}
	eventually(t, func() error {
		s := read(about(second, "tasks/get", task.TaskID, ""))
		if s.Status != "completed" || !strings.Contains(s.Result.Content[0].Text, "Ada") {
			return fmt.Errorf("it is %+v", s)
		}
		return nil
	})
	hears(t, heard, "notifications/tasks", `"completed"`)
	// One that is cancelled ends so.
	slow := read(second.do("tools/call", `{"name":"jobs__slow_compute","arguments":{"seconds":60}}`))
	if e := about(second, "tasks/cancel", slow.TaskID, ""); e.err != nil {
		t.Error(e)
	}
	if s := read(about(second, "tasks/get", slow.TaskID, "")); s.Status != "cancelled" {
		t.Errorf("after the cancellation it is %s", s.Status)
	}
}

// listening has heard get what is told of a task.
func listening(t *testing.T, c *eraClient, id string, heard chan<- wire) {
	t.Helper()
	stream := c.listenTo(`{"taskIds":["` + id + `"]}`)
	if ack := <-stream; !strings.Contains(string(ack.Params), `"taskIds":["`+id+`"]`) {
		t.Fatalf("acknowledged is %s", ack.Params)
	}
	go func() {
		for m := range stream {
			if !strings.Contains(string(m.Params), `"taskId":"`+id+`"`) || !strings.Contains(string(m.Params), "subscriptionId") {
				t.Errorf("heard %s", m.Params)
			}
			heard <- m
		}
	}()
}
