package main

import "slices"

// A set is the server half of the requirement set of one revision, and what of
// it is asked of the hub now.
type set struct {
	revision  string
	era       string // what the fixture speaks
	scenarios []scenario
}

// A scenario with a reason in left is not counted.
type scenario struct {
	name string
	left string
	// leftChecks is how many checks of a counted scenario may be neither passed
	// nor failed through the hub (the suite skips them or calls them information);
	// why is what they are about.
	leftChecks int
	why        string
}

func (s set) lists(name string) bool {
	return slices.ContainsFunc(s.scenarios, func(c scenario) bool { return c.name == name })
}

// Why a scenario is left: the hub serves tools only, so far.
const (
	resources  = "resources come next"
	prompts    = "prompts come next"
	completion = "completion comes next"
	tasks      = "an extension that the fixture does not have either"
	// The answer to a call without notifications is JSON, as the specification
	// allows; the suite passes the check about streams only if there are streams.
	asJSON = "answers without notifications are JSON and no streams"
	// Of server-stateless: one check about prompts; and one that adds a tool that
	// is there already, which the SDK's server announces and the hub does not,
	// because no client's list has changed.
	listChanged = "prompts come next; a list that did not change is not announced as changed"
	polling     = "it asks the server to close its stream during a call, which a hub has no reason to do"
)

var sets = []set{
	{"2025-11-25", "legacy", []scenario{
		{name: "server-initialize"},
		{name: "server-session-lifecycle"},
		{name: "logging-set-level"},
		{name: "ping"},
		{name: "tools-list"},
		{name: "tools-call-simple-text"},
		{name: "tools-call-image"},
		{name: "tools-call-audio"},
		{name: "tools-call-embedded-resource"},
		{name: "tools-call-mixed-content"},
		{name: "tools-call-with-logging"},
		{name: "tools-call-error"},
		{name: "tools-call-with-progress"},
		{name: "tools-call-sampling"},
		{name: "tools-call-elicitation"},
		{name: "elicitation-sep1034-defaults"},
		{name: "elicitation-sep1330-enums"},
		{name: "server-sse-multiple-streams", leftChecks: 1, why: asJSON},
		{name: "json-schema-2020-12"},
		{name: "dns-rebinding-protection"},
		{name: "server-sse-polling", left: polling},
		{name: "completion-complete", left: completion},
		{name: "resources-list", left: resources},
		{name: "resources-read-text", left: resources},
		{name: "resources-read-binary", left: resources},
		{name: "resources-templates-read", left: resources},
		{name: "resources-subscribe", left: resources},
		{name: "resources-unsubscribe", left: resources},
		{name: "prompts-list", left: prompts},
		{name: "prompts-get-simple", left: prompts},
		{name: "prompts-get-with-args", left: prompts},
		{name: "prompts-get-embedded-resource", left: prompts},
		{name: "prompts-get-with-image", left: prompts},
	}},
	{"2026-07-28", "modern", []scenario{
		{name: "server-stateless", leftChecks: 2, why: listChanged},
		{name: "tools-list"},
		{name: "tools-call-simple-text"},
		{name: "tools-call-image"},
		{name: "tools-call-audio"},
		{name: "tools-call-embedded-resource"},
		{name: "tools-call-mixed-content"},
		{name: "tools-call-error"},
		{name: "tools-call-with-progress"},
		{name: "server-sse-multiple-streams", leftChecks: 1, why: asJSON},
		{name: "dns-rebinding-protection"},
		{name: "json-schema-2020-12"},
		{name: "http-header-validation"},
		{name: "http-custom-header-server-validation"},
		{name: "input-required-result-basic-elicitation"},
		{name: "input-required-result-basic-sampling"},
		{name: "input-required-result-basic-list-roots"},
		{name: "input-required-result-request-state"},
		{name: "input-required-result-multiple-input-requests"},
		{name: "input-required-result-multi-round"},
		{name: "input-required-result-missing-input-response"},
		{name: "input-required-result-result-type"},
		{name: "input-required-result-unsupported-methods"},
		{name: "input-required-result-tampered-state"},
		{name: "input-required-result-capability-check"},
		{name: "input-required-result-ignore-extra-params"},
		{name: "input-required-result-validate-input"},
		{name: "input-required-result-non-tool-request", left: prompts},
		{name: "caching", left: resources},
		{name: "completion-complete", left: completion},
		{name: "resources-list", left: resources},
		{name: "resources-read-text", left: resources},
		{name: "resources-read-binary", left: resources},
		{name: "resources-templates-read", left: resources},
		{name: "sep-2164-resource-not-found", left: resources},
		{name: "prompts-list", left: prompts},
		{name: "prompts-get-simple", left: prompts},
		{name: "prompts-get-with-args", left: prompts},
		{name: "prompts-get-embedded-resource", left: prompts},
		{name: "prompts-get-with-image", left: prompts},
		{name: "tasks-lifecycle", left: tasks},
		{name: "tasks-capability-negotiation", left: tasks},
		{name: "tasks-wire-fields", left: tasks},
		{name: "tasks-request-state-removal", left: tasks},
		{name: "tasks-mrtr-input", left: tasks},
		{name: "tasks-request-headers", left: tasks},
		{name: "tasks-dispatch-and-envelope", left: tasks},
		{name: "tasks-status-notifications", left: tasks},
		{name: "tasks-required-task-error", left: tasks},
		{name: "tasks-mrtr-composition", left: tasks},
	}},
}
