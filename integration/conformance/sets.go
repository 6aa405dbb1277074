package main

// left is what of required scenarios the hub does otherwise than the fixture, with
// a reason: how many checks may be neither passed nor failed (the suite skips
// them or calls them information).
var left = map[string]struct {
	checks int
	why    string
}{
	"2025-11-25 server-sse-multiple-streams": {1, asJSON},
	"2026-07-28 server-sse-multiple-streams": {1, asJSON},
	"2026-07-28 server-stateless":            {2, noChange},
}

// taskScenarios are the suite's about the extension of tasks, which the revisions do
// not require; tasks-status-notifications is not written yet, and always skipped.
var taskScenarios = []string{
	"tasks-lifecycle", "tasks-capability-negotiation", "tasks-wire-fields", "tasks-request-state-removal", "tasks-mrtr-input",
	"tasks-request-headers", "tasks-dispatch-and-envelope", "tasks-required-task-error", "tasks-mrtr-composition",
}

const (
	asJSON   = "answers without notifications are JSON, as the specification allows; the check about streams wants streams"
	noChange = "its tools add a tool and a prompt and take them out again, which the SDK's server announces; the hub does only if it saw them, since otherwise no client's list has changed"
)
