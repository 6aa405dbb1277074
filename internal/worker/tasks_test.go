package worker

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
)

// TestTaskIDs: the id of a task is of use to its caller, at its server, and to
// nobody else; which server it is, and nothing more, is to be seen in it.
func TestTaskIDs(t *testing.T) {
	t.Parallel()
	s := askBench(t, testSeal(t), mcp.EraModern, 1, nil)
	task, err := s.exposeTask(jsontext.Value(`{"resultType":"task","taskId":"own \u00e4","status":"working","x":1e400}`), "ada", 3)
	if err != nil {
		t.Fatal(err)
	}
	id := mcp.FieldString(task, "taskId")
	if server, _, ok := bus.CutTaskID(id); !ok || server != "s" || strings.Contains(id, "own") || !strings.Contains(string(task), `"x":1e400`) {
		t.Fatalf("%s", task)
	}
	if ref, err := s.openTask(id, "ada"); err != nil || ref.ID != "own ä" || ref.Slot != 3 {
		t.Errorf("%+v, %v", ref, err)
	}
	_, secret, _ := bus.CutTaskID(id)
	for name, c := range map[string]struct{ id, principal string }{
		"somebody else": {id, "eve"}, "nobody": {id, ""}, "changed": {id + "A", "ada"}, "another server": {bus.TaskID("t", secret), "ada"},
		"plain": {"own ä", "ada"}, "empty": {"", "ada"}, "no secret": {"toolhub-task:s:", "ada"},
		"a requestState": {bus.TaskID("s", s.lot.seal.Close(purposeState, []byte(`{"id":"x"}`))), "ada"},
	} {
		_, err := s.openTask(c.id, c.principal)
		if e, ok := errors.AsType[*mcp.Error](err); !ok || e.Code != mcp.CodeInvalidParams {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.exposeTask(jsontext.Value(`{"taskId":7}`), "ada", 0); !mcp.IsKind(err, mcp.KindProtocol) {
		t.Errorf("a task without an id: %v", err)
	}
}
