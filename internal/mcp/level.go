package mcp

import (
	"context"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// logLevel is a level of RFC 5424 as MCP names it; the zero value is no level,
// and a smaller one is more verbose.
type logLevel int

var logLevels = []string{"", "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// parseLogLevel is 0 for a name that is none.
func parseLogLevel(name string) logLevel { return logLevel(max(0, slices.Index(logLevels, name))) }

// levelState is the log level of one legacy session: the most verbose that any
// call wanted, since there is one level for all; what a call did not want is
// filtered from its notifications.
type levelState struct {
	mu    sync.Mutex
	level logLevel
	busy  chan struct{} // closed when the setLevel in progress is over, nil when there is none
}

// raise makes the session at least as verbose as x wants it.
func (s *levelState) raise(x *exchange, ask func(context.Context, string, jsontext.Value) (jsontext.Value, error)) error {
	if x.level == 0 || !x.hop.Info().Has("logging") {
		return nil
	}
	for {
		s.mu.Lock()
		if s.level != 0 && s.level <= x.level {
			s.mu.Unlock()
			return nil
		}
		busy := s.busy
		if busy == nil {
			break
		}
		s.mu.Unlock()
		select {
		case <-busy:
		case <-x.ctx.Done():
			return x.gaveUp(false)
		}
	}
	s.busy = make(chan struct{})
	s.mu.Unlock()
	params := append(append(jsontext.Value(`{"level":`), QuoteString(logLevels[x.level])...), '}')
	_, err := ask(x.ctx, MethodSetLevel, params)
	s.mu.Lock()
	close(s.busy)
	s.busy = nil
	if x.ctx.Err() == nil {
		// A server that refuses would do so again: its messages come as they come.
		s.level = x.level
	}
	s.mu.Unlock()
	if err != nil {
		x.hop.log.Debug("logging/setLevel failed", "error", err)
	}
	if x.ctx.Err() != nil {
		return x.gaveUp(false)
	}
	return nil
}
