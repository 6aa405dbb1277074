# The commands of a working day. The README has the two that a newcomer needs.
# .ci/run runs what a change must pass; `make check` is its part without npm.

GO    ?= go
TOOL   = $(GO) tool -modfile=tools/go.mod
FILES  = $$(find . -name '*.go' -not -path './.cache/*')

.PHONY: help test race check lint fmt fuzz npm integration conformance bench schema quickstart ci vuln

help:          ## this list
	@grep -hE '^[a-z]+: .*##|^[a-z]+:  *##' $(MAKEFILE_LIST) | sed 's/:.*##/ -/'

quickstart:    ## start the quick-start hub
	$(GO) run ./cmd/hub up examples/quickstart/hub.yaml

test:          ## all tests that need only Go
	$(GO) test ./...

race:          ## the same under the race detector, in random order
	$(TOOL) gotestsum --format pkgname -- -race -shuffle=on ./...

check: lint race ## lint and race: what .ci/run does, without npm

lint:          ## format, modernizers, vet, staticcheck, dead code
	./.ci/run lint

fmt:           ## let gofumpt and go fix write
	$(TOOL) gofumpt -w $(FILES)
	$(GO) fix ./...

fuzz:          ## every fuzz target for FUZZTIME (default 20s) each
	./.ci/run fuzz

npm:           ## install the pinned npm peers into .cache/npm
	./integration/install-npm

integration: npm ## the tests against npm's reference servers and inspector
	$(GO) test -tags npm -run Npm -count 1 -v ./integration

conformance: npm ## the official conformance suite: hub and worker's client, RUNS times (default 1)
	$(GO) run ./integration/conformance -runs $(or $(RUNS),1)

bench:         ## direct, through the hub, and the floor, in one run
	./integration/bench

schema:        ## regenerate what is generated
	./.ci/run generate

vuln:          ## known vulnerabilities (asks vuln.go.dev)
	$(TOOL) govulncheck ./...

ci:            ## everything
	./.ci/run
