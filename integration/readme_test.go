//go:build !race

package integration_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestREADMETestCommand runs the README's test command in a clean clone, with
// nothing but Go. These tests themselves are left out there. It would be the same
// once more under the race detector, so it is not built then. It has the machine
// for itself: it is not parallel.
func TestREADMETestCommand(t *testing.T) {
	dir := clone(t)
	readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := shell(t.Context(), dir, goOnly(t, insideREADME+"=1"), block(t, string(readme), "test")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ok  \ttoolhub/internal/mcp") {
		t.Errorf("the README's test command: %v\n%s", err, out)
	}
}
