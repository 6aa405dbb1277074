package policy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"toolhub/internal/catalog"
)

// The scenarios in testdata: a policy in JSON, an empty line, and calls with the
// decision and the rule that are expected. A call is server/tool and any of
// approver, trusted, closed (the server says that it is no open world) and
// taint=a,b.
func TestScenarios(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 4 {
		t.Fatalf("%v %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for line := range strings.Lines(string(data)) {
				if !strings.HasPrefix(line, "#") {
					lines = append(lines, line)
				}
			}
			text, calls, ok := strings.Cut(strings.Join(lines, ""), "\n\n")
			if !ok {
				t.Fatal("no empty line behind the policy")
			}
			var spec Spec
			if err := json.Unmarshal([]byte(text), &spec); err != nil {
				t.Fatal(err)
			}
			p := compile(t, spec)
			n := 0
			for line := range strings.Lines(calls) {
				words := strings.Fields(line)
				if len(words) < 3 {
					t.Fatalf("%q is no call", line)
				}
				in := call(words[0])
				for _, word := range words[1 : len(words)-2] {
					name, value, _ := strings.Cut(word, "=")
					switch name {
					case "approver":
						in.HasApprover = true
					case "trusted":
						in.Trusted = true
					case "closed":
						in.Annotations = catalog.Annotations{OpenWorld: new(false)}
					case "taint":
						in.Taint = strings.Split(value, ",")
					default:
						t.Fatalf("%q is not known", word)
					}
				}
				n++
				got := p.Decide(in)
				if want := words[len(words)-2:]; string(got.Effect) != want[0] || got.Field != want[1] {
					t.Errorf("%s: %s by %s", strings.TrimSpace(line), got.Effect, got.Field)
				}
				explained(t, line, p, in)
			}
			if n == 0 {
				t.Error("no calls")
			}
		})
	}
}
