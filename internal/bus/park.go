package bus

import "strings"

// parkPrefix begins the requestState of a call that waits in one worker.
const parkPrefix = "toolhub-park:"

// ParkState is the requestState of a call that waits in worker for input of its
// caller. secret is what the worker knows it by, without a ":".
func ParkState(worker, secret string) string { return parkPrefix + worker + ":" + secret }

// ParkedAt is the worker in which a call with this requestState waits; its
// continuation goes to [AtSubject]. It reports false for any other requestState.
func ParkedAt(requestState string) (worker string, ok bool) {
	rest, ok := strings.CutPrefix(requestState, parkPrefix)
	i := strings.LastIndexByte(rest, ':')
	if !ok || i <= 0 {
		return "", false
	}
	return rest[:i], true
}
