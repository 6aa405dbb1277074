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
	"2026-07-28 server-stateless":            {1, noChange},
}

const (
	asJSON   = "answers without notifications are JSON, as the specification allows; the check about streams wants streams"
	noChange = "it adds a tool that is there already, which the SDK's server announces; the hub does not, since no client's list has changed"
)

// gaps are the required scenarios that the hub does not pass yet, with what it
// lacks. They count as failed; with -gaps they are the only ones that may fail,
// and each of them must, so that the list cannot be older than the hub.
var gaps = map[string]string{
	"2025-11-25 completion-complete":                    completion,
	"2025-11-25 resources-list":                         resources,
	"2025-11-25 resources-read-text":                    resources,
	"2025-11-25 resources-read-binary":                  resources,
	"2025-11-25 resources-templates-read":               resources,
	"2025-11-25 resources-subscribe":                    resources,
	"2025-11-25 resources-unsubscribe":                  resources,
	"2025-11-25 prompts-list":                           prompts,
	"2025-11-25 prompts-get-simple":                     prompts,
	"2025-11-25 prompts-get-with-args":                  prompts,
	"2025-11-25 prompts-get-embedded-resource":          prompts,
	"2025-11-25 prompts-get-with-image":                 prompts,
	"2026-07-28 server-stateless":                       prompts,
	"2026-07-28 completion-complete":                    completion,
	"2026-07-28 resources-list":                         resources,
	"2026-07-28 resources-read-text":                    resources,
	"2026-07-28 resources-read-binary":                  resources,
	"2026-07-28 resources-templates-read":               resources,
	"2026-07-28 sep-2164-resource-not-found":            resources,
	"2026-07-28 prompts-list":                           prompts,
	"2026-07-28 prompts-get-simple":                     prompts,
	"2026-07-28 prompts-get-with-args":                  prompts,
	"2026-07-28 prompts-get-embedded-resource":          prompts,
	"2026-07-28 prompts-get-with-image":                 prompts,
	"2026-07-28 caching":                                resources,
	"2026-07-28 input-required-result-non-tool-request": prompts,
}

const (
	resources  = "routers do not serve resources yet"
	prompts    = "routers do not serve prompts yet"
	completion = "routers do not serve completion yet"
)
