package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"toolhub/internal/bus"
	"toolhub/internal/config"
	"toolhub/internal/daemon"
	"toolhub/internal/mcp"
)

// The exit codes of hub, for scripts. exitCodes is the one place that says what
// they mean.
const (
	exitOK          = daemon.ExitOK
	exitFailed      = daemon.ExitFailed
	exitUsage       = daemon.ExitUsage
	exitDenied      = 3
	exitUnavailable = 4
	exitToolError   = 5
	exitTimeout     = 6
	exitNotFound    = 7
	exitKilled      = daemon.ExitKilled
)

var exitCodes = []struct {
	code    int
	meaning string
}{
	{exitOK, "done"},
	{exitFailed, "failed for a reason that has no code of its own"},
	{exitUsage, "wrong usage, or a configuration or arguments that do not hold"},
	{exitDenied, "denied by the policy"},
	{exitUnavailable, "the hub or the server is not there or overloaded; nothing was done unless the message says otherwise"},
	{exitToolError, "the tool ran and reported an error (isError), or the server answered with one"},
	{exitTimeout, "no answer in the time allowed"},
	{exitNotFound, "no such server, tool, resource or prompt"},
	{exitKilled, "interrupted"},
}

func exitCodeHelp() string {
	var b strings.Builder
	b.WriteString("Exit codes:")
	for _, e := range exitCodes {
		fmt.Fprintf(&b, "\n  %-3d %s", e.code, e.meaning)
	}
	return b.String()
}

// usageError is a command line that cannot be run.
type usageError struct{ text string }

// Error implements error.
func (e usageError) Error() string { return e.text }

// reported ends a command that has shown all there is to say.
type reported struct{ code int }

// Error implements error.
func (r reported) Error() string { return fmt.Sprintf("exit code %d", r.code) }

// exitCode is the exit code that err means.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if f, ok := errors.AsType[*mcp.Fault](err); ok {
		switch f.Kind {
		case mcp.KindDenied:
			return exitDenied
		case mcp.KindUnavailable, mcp.KindOverloaded, mcp.KindRateLimited:
			return exitUnavailable
		case mcp.KindTimeout:
			return exitTimeout
		case mcp.KindNotFound:
			return exitNotFound
		case mcp.KindInvalid:
			return exitUsage
		}
		return exitFailed
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	if _, ok := errors.AsType[daemon.UsageError](err); ok {
		return exitUsage
	}
	if _, ok := errors.AsType[*config.Error](err); ok {
		return exitUsage
	}
	if r, ok := errors.AsType[reported](err); ok {
		return r.code
	}
	if _, ok := errors.AsType[*mcp.Error](err); ok {
		return exitToolError
	}
	if _, ok := errors.AsType[daemon.Signal](err); ok {
		return exitKilled
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return exitTimeout
	}
	return exitFailed
}

// hint says what to do about a fault, "" where there is nothing to say.
func hint(f *mcp.Fault) string {
	switch {
	case f.Reason == mcp.ReasonOutcomeUnknown:
		return "the call may have run; look before you repeat it"
	case f.Reason == bus.ReasonNoResponders && f.Server == "":
		return "no router of this hub answers; is it running under this name? (--hub, --state-dir, --nats)"
	case f.Kind == mcp.KindDenied:
		return "hub policy explain shows the rule that decided"
	case f.Kind == mcp.KindUnavailable && f.Server != "":
		return "hub servers shows the state of each server"
	case f.Kind == mcp.KindNotFound && f.Reason == "unknown_tool":
		return "hub tools lists what there is"
	case f.Kind == mcp.KindNotFound && f.Reason == "unknown_item":
		return "hub resources and hub prompts list what there is"
	case f.Kind == mcp.KindTimeout:
		return "allow more time with --timeout, or at the hub with timeout and max_total_timeout"
	case f.Kind == mcp.KindAuth:
		return "the server refused the hub's credentials: see headers and auth in its configuration"
	case f.Kind == mcp.KindMessageTooLarge:
		return "the limit is max_message_bytes in the configuration"
	case f.Retryable:
		return "it may work when tried again"
	}
	return ""
}
