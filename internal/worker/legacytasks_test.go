package worker

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
)

// TestTaskRequired: a tool that can only be called as a task is called as one, and
// its result looks like any other.
func TestTaskRequired(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		created, result string
		timeouts        int    // of tasks/result before the result
		status          string // that tasks/get tells meanwhile
		want            string // part of the result or the error
		calls           string
	}{
		"a task":         {`{"task":{"taskId":"t1","status":"working"}}`, `{"content":[],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t1"},"own":1}}`, 0, "", `{"content":[],"_meta":{"own":1}}`, "tools/call tasks/result"},
		"at once":        {`{"content":[{"type":"text","text":"now"}]}`, "", 0, "", `"now"`, "tools/call"},
		"no task":        {`{}`, "", 0, "", "names no task", "tools/call"},
		"it takes long":  {`{"task":{"taskId":"t1"}}`, `{"content":[]}`, 2, "working", `{"content":[]}`, "tools/call tasks/result tasks/get tasks/result tasks/get tasks/result"},
		"it is lost":     {`{"task":{"taskId":"t1"}}`, `{"content":[]}`, 2, "cancelled", "timeout", "tools/call tasks/result tasks/get"},
		"it never comes": {`{"task":{"taskId":"t1"}}`, `{"content":[]}`, 99, "working", "timeout", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			var calls []string
			timeouts := c.timeouts
			conn := newScripted(func(call *mcp.Call) (jsontext.Value, error) {
				calls = append(calls, call.Method)
				switch call.Method {
				case mcp.MethodToolsCall:
					if mcp.Field(mcp.Field(call.Params, "task"), "ttl") == nil {
						t.Errorf("%s: no task in %s", name, call.Params)
					}
					return jsontext.Value(c.created), nil
				case mcp.MethodTasksGet:
					return jsontext.Value(`{"taskId":"t1","status":"` + c.status + `"}`), nil
				}
				if got := mcp.FieldString(call.Params, "taskId"); got != "t1" || mcp.Field(call.Params, "arguments") != nil || mcp.Field(call.Params, "_meta") == nil {
					t.Errorf("%s: the result is asked for with %s", name, call.Params)
				}
				if timeouts--; timeouts >= 0 {
					time.Sleep(time.Minute)
					return nil, mcp.NewFault(mcp.KindTimeout, "request", "no answer")
				}
				return jsontext.Value(c.result), nil
			})
			call := &call{tool: &catalog.Tool{TaskRequired: true}}
			value, err := call.carryOut(t.Context(), newLink(conn, nil), &mcp.Call{
				Method: mcp.MethodToolsCall, Params: jsontext.Value(`{"name":"x","arguments":{},"_meta":{"progressToken":1}}`), MaxTotal: 10 * time.Minute,
			})
			if got := string(value) + " " + fmt.Sprint(err); !strings.Contains(got, c.want) {
				t.Errorf("%s: %s, want %s", name, got, c.want)
			}
			if got := strings.Join(calls, " "); c.calls != "" && got != c.calls {
				t.Errorf("%s: %s, want %s", name, got, c.calls)
			}
			if len(calls) > 25 {
				t.Errorf("%s: %d calls", name, len(calls))
			}
		})
	}
	// Whoever goes away takes the task along.
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := ""
	conn := newScripted(func(call *mcp.Call) (jsontext.Value, error) {
		switch call.Method {
		case mcp.MethodTasksResult:
			cancel()
			return nil, context.Canceled
		case mcp.MethodTasksCancel:
			cancelled = mcp.FieldString(call.Params, "taskId")
		}
		return jsontext.Value(`{"task":{"taskId":"t1"}}`), nil
	})
	_, err := (&call{tool: &catalog.Tool{TaskRequired: true}}).carryOut(ctx, newLink(conn, nil), &mcp.Call{Method: mcp.MethodToolsCall, Params: jsontext.Value(`{"name":"x"}`)})
	if err == nil || cancelled != "t1" {
		t.Errorf("cancelled %q, %v", cancelled, err)
	}
}

// TestClientTasks: a server may make tasks of what it asks.
func TestClientTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		callCtx, end := context.WithCancel(t.Context())
		defer end()
		answers := make(chan jsontext.Value)
		tasks := &clientTasks{
			call: callCtx,
			ask: func(ctx context.Context, method string, _ jsontext.Value) (jsontext.Value, *mcp.Error) {
				select {
				case v := <-answers:
					if v == nil {
						return nil, mcp.InvalidParams("no")
					}
					return v, nil
				case <-ctx.Done():
					return nil, mcp.InvalidParams("withdrawn " + method)
				}
			},
			able: func(method string, _ jsontext.Value) *mcp.Error {
				if method == mcp.MethodElicit {
					return mcp.MethodNotFound(method)
				}
				return nil
			},
		}
		do := func(method, params string) string {
			v, err := tasks.request(callCtx, method, jsontext.Value(params))
			if err != nil {
				return err.Message
			}
			return string(v)
		}
		start := func() string {
			got := do(mcp.MethodSample, `{"task":{"ttl":1},"messages":[]}`)
			id := mcp.FieldString(mcp.Field(jsontext.Value(got), "task"), "taskId")
			if id == "" {
				t.Fatal(got)
			}
			return `{"taskId":"` + id + `"}`
		}
		status := func(id string) string {
			synctest.Wait()
			return mcp.FieldString(jsontext.Value(do(mcp.MethodTasksGet, id)), "status")
		}
		one := start()
		if got := status(one); got != "working" {
			t.Errorf("at first it is %s", got)
		}
		var group sync.WaitGroup
		result := ""
		group.Go(func() { result = do(mcp.MethodTasksResult, one) })
		answers <- jsontext.Value(`{"model":"m"}`)
		group.Wait()
		if !strings.HasPrefix(result, `{"model":"m","_meta":{"io.modelcontextprotocol/related-task":{"taskId":`) || status(one) != "completed" {
			t.Errorf("the result is %s, it is %s", result, status(one))
		}
		two := start()
		answers <- nil
		if got := do(mcp.MethodTasksResult, two); got != "no" || status(two) != "failed" {
			t.Errorf("a refusal: %s, it is %s", got, status(two))
		}
		three := start()
		if got := mcp.FieldString(jsontext.Value(do(mcp.MethodTasksCancel, three)), "status"); got != "cancelled" || do(mcp.MethodTasksCancel, three) != "the task has ended" {
			t.Errorf("cancelled it is %s", got)
		}
		if got := do(mcp.MethodTasksGet, `{"taskId":"x"}`); !strings.Contains(got, "no task of this call") {
			t.Errorf("an unknown one: %s", got)
		}
		if got := strings.Count(do(mcp.MethodTasksList, `{}`), "taskId"); got != 3 {
			t.Errorf("%d are listed", got)
		}
		// What the caller cannot be asked is refused at once, and is no task.
		group.Go(func() { result = do(mcp.MethodElicit, `{"task":{},"message":"?"}`) })
		answers <- jsontext.Value(`{"asked":"plainly"}`)
		if group.Wait(); result != `{"asked":"plainly"}` {
			t.Errorf("%s", result)
		}
		last := start()
		for range maxClientTasks - 4 {
			start()
		}
		if got := do(mcp.MethodSample, `{"task":{}}`); !strings.Contains(got, "too many") {
			t.Errorf("one more: %s", got)
		}
		end()
		tasks.group.Wait()
		if got := status(last); got != "cancelled" {
			t.Errorf("after the call it is %s", got)
		}
	})
}
