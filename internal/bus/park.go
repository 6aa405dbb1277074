package bus

import "strings"

// parkPrefix begins the requestState of a call that waits in one worker.
const parkPrefix = "toolhub-park:"

// MetaRefused is the key of _meta by which a router that brings a parked call's
// answers says what the client has refused: an object of JSON-RPC errors by the
// key of what was asked. [RefusedAll] in its place says that nobody will come
// back. MCP itself has no way to say either.
const MetaRefused = "toolhub/refused"

// RefusedAll is the value of [MetaRefused] that ends a parked call.
const RefusedAll = `"all"`

// ParkState is the requestState of a call that waits in worker for input of its
// caller. secret is what the worker knows it by, without a ":".
func ParkState(worker, secret string) string { return parkPrefix + worker + ":" + secret }

// CutParkState takes apart what [ParkState] has made, and reports false for
// anything else.
func CutParkState(requestState string) (worker, secret string, ok bool) {
	rest, ok := strings.CutPrefix(requestState, parkPrefix)
	i := strings.LastIndexByte(rest, ':')
	if !ok || i <= 0 {
		return "", "", false
	}
	return rest[:i], rest[i+1:], true
}

// taskPrefix begins the id of a task of a server.
const taskPrefix = "toolhub-task:"

// TaskID is the id by which callers know a task of a server. secret is what the
// server's workers know it by, without a ":".
func TaskID(server, secret string) string { return taskPrefix + server + ":" + secret }

// CutTaskID takes apart what [TaskID] has made, and reports false for anything else.
func CutTaskID(id string) (server, secret string, ok bool) {
	rest, ok := strings.CutPrefix(id, taskPrefix)
	if ok {
		server, secret, ok = strings.Cut(rest, ":")
	}
	return server, secret, ok && server != "" && secret != ""
}

// ParkedAt is the worker in which a call with this requestState waits; its
// continuation goes to [AtSubject]. It reports false for any other requestState.
func ParkedAt(requestState string) (worker string, ok bool) {
	worker, _, ok = CutParkState(requestState)
	return worker, ok
}
