package bus

import "testing"

func TestParkState(t *testing.T) {
	t.Parallel()
	for _, worker := range []string{"w", "worker-1a", "host:8080", "a:b:c", "ä", "toolhub-park:"} {
		got, ok := ParkedAt(ParkState(worker, "SECRET"))
		if !ok || got != worker {
			t.Errorf("worker %q came back as %q, %v", worker, got, ok)
		}
	}
	for _, state := range []string{"", "toolhub-park", "toolhub-park:", "toolhub-park:x", "toolhub-park::x", "other:w:x", "Toolhub-park:w:x", " toolhub-park:w:x"} {
		if worker, ok := ParkedAt(state); ok {
			t.Errorf("%q is taken for a call parked at %q", state, worker)
		}
	}
}
