package worker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// builtins are the servers that need nothing but this program, by the name that
// a definition's `builtin:` gives. The argument cuts the server's connection.
func builtins() map[string]func(cut func()) *sdk.Server {
	return map[string]func(cut func()) *sdk.Server{
		"clock":   func(func()) *sdk.Server { return newClock(time.Now) },
		"dice":    func(func()) *sdk.Server { return newDice() },
		"testbed": newTestbed,
	}
}

// Builtins lists the names of the builtin servers, sorted.
func Builtins() []string { return slices.Sorted(maps.Keys(builtins())) }

// builtin is a server that runs in the worker, made with the MCP Go SDK. It is
// spoken to as newline-delimited JSON over pipes, the way of a process.
type builtin struct {
	stdin  *io.PipeWriter
	stdout *io.PipeReader
	cancel context.CancelFunc
	ended  chan struct{}
	exit   error // set before ended is closed
}

// startBuiltin starts a builtin server, which must exist; it runs until stop or kill.
func startBuiltin(name string, logger *slog.Logger) *builtin {
	newServer := builtins()[name]
	stdinR, stdinW := io.Pipe()
	stdoutR, stdoutW := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	b := &builtin{stdin: stdinW, stdout: stdoutR, cancel: cancel, ended: make(chan struct{})}
	cut := func() {
		_ = stdoutW.Close()
		_ = stdinR.Close()
	}
	server := newServer(cut)
	server.AddReceivingMiddleware(guardHandlers(ctx, logger))
	go func() {
		defer close(b.ended)
		b.exit = server.Run(ctx, &sdk.IOTransport{Reader: stdinR, Writer: stdoutW})
		if b.exit == nil {
			b.exit = errors.New("the builtin server ended")
		}
		cut()
	}()
	return b
}

// guardHandlers ends every handler with the server's ctx, which the SDK waits for
// for ever otherwise, and keeps a panic from taking the worker down.
func guardHandlers(server context.Context, logger *slog.Logger) sdk.Middleware {
	return func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (result sdk.Result, err error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(server, cancel)()
			defer func() {
				if v := recover(); v != nil {
					logger.Error("builtin server panicked", "method", method, "panic", v)
					result, err = nil, errors.New("internal error")
				}
			}()
			return next(ctx, method, req)
		}
	}
}

func (b *builtin) pipes() (io.WriteCloser, io.ReadCloser) { return b.stdin, b.stdout }
func (b *builtin) done() <-chan struct{}                  { return b.ended }
func (b *builtin) exitErr() error                         { return b.exit }
func (b *builtin) stderr() []string                       { return nil }

func (b *builtin) stop(context.Context) { b.kill() }

// kill ends the server. A builtin has nothing to save, so there is no grace.
func (b *builtin) kill() {
	b.cancel()
	_ = b.stdin.Close()
	_ = b.stdout.Close()
	<-b.ended
}
