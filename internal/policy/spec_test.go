package policy

import (
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
)

func TestSpecJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Spec{
		`"allow_all"`: {AllowAll: true},
		`{}`:          {},
		`{"deny":["a/*"],"ask":[{"tool":"b/*","when":"tainted()","file":"hub.yaml","line":3}],"allow":[{"tool":"c/*","when":"args.n == 1"}],"default":"ask"}`: {
			Deny: on("a/*"), Ask: []Rule{{Tool: "b/*", When: "tainted()", File: "hub.yaml", Line: 3}},
			Allow: []Rule{when("c/*", "args.n == 1")}, Default: Ask,
		},
	} {
		var got Spec
		if err := json.Unmarshal([]byte(text), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v %v", text, got, err)
		}
		if out, err := json.Marshal(want); err != nil || string(out) != text {
			t.Errorf("got  %s %v\nwant %s", out, err, text)
		}
	}
	for text, says := range map[string]string{
		`"allow"`: `"allow_all" or an object`, `3`: "object with deny", `null`: "object with deny", `[]`: "object with deny",
		`{"Deny":[]}`: "unknown", `{"deny":[],"deny":[]}`: "duplicate", `{"permit":["a/*"]}`: "unknown",
		`{"deny":"a/*"}`: "", `{"deny":[3]}`: "a rule is a pattern", `{"deny":[null]}`: "a rule is a pattern",
		`{"deny":[{"tool":"a/*","if":"x"}]}`: "unknown", `{"deny":[{"tool":"a/*","tool":"b/*"}]}`: "duplicate",
	} {
		var got Spec
		if err := json.Unmarshal([]byte(text), &got); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %+v %v, want %q", text, got, err, says)
		}
	}
	if _, err := json.Marshal(Spec{AllowAll: true, Deny: on("a/*")}); err == nil {
		t.Error("allow_all with rules is written")
	}
}
