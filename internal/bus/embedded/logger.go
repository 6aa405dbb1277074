package embedded

import (
	"fmt"
	"log/slog"
	"sync"
)

// logger is the server's logger. It keeps the first fatal message: the server
// has no other way to say why it did not start.
type logger struct {
	log *slog.Logger

	mu    sync.Mutex
	first string // guarded by mu
}

func newLogger(log *slog.Logger) *logger {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &logger{log: log}
}

func (l *logger) fatal() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

// Fatalf implements server.Logger. Unlike the server's own it does not exit.
func (l *logger) Fatalf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.mu.Lock()
	if l.first == "" {
		l.first = text
	}
	l.mu.Unlock()
	l.log.Error("nats server failed", "text", text)
}

// Errorf implements server.Logger.
func (l *logger) Errorf(format string, v ...any) {
	l.log.Error("nats server", "text", fmt.Sprintf(format, v...))
}

// Warnf implements server.Logger.
func (l *logger) Warnf(format string, v ...any) {
	l.log.Warn("nats server", "text", fmt.Sprintf(format, v...))
}

// Noticef implements server.Logger. The banner of a start is for debugging.
func (l *logger) Noticef(format string, v ...any) {
	l.log.Debug("nats server", "text", fmt.Sprintf(format, v...))
}

// Debugf implements server.Logger.
func (l *logger) Debugf(string, ...any) {}

// Tracef implements server.Logger.
func (l *logger) Tracef(string, ...any) {}
