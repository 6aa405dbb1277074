package mcp

import (
	"errors"
	"io"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// ServerPipe is the server's side of the stdio transport: one message a line.
// One goroutine reads; any number may write.
type ServerPipe struct {
	lines *lineReader

	mu  sync.Mutex // held while a line is written, so that lines stay whole
	out io.Writer
	buf []byte // guarded by mu
	err error  // guarded by mu; of the first write that failed
}

// NewServerPipe makes a pipe that reads messages from in, each of at most as many
// bytes as maxBytes says when it comes; nil is [DefaultMaxMessageBytes].
func NewServerPipe(in io.Reader, out io.Writer, maxBytes func() int) *ServerPipe {
	lines := newLineReader(in, DefaultMaxMessageBytes)
	if maxBytes != nil {
		lines.limit = maxBytes
	}
	return &ServerPipe{lines: lines, out: out}
}

// LongLine is the error of [ServerPipe.Read] for a line beyond the limit, which
// was skipped: reading can go on.
type LongLine struct {
	// ID is that of the request as far as it can be told, nil if it cannot.
	ID  jsontext.Value
	err *longLineError
}

// Error implements error.
func (e *LongLine) Error() string { return e.err.Error() }

// Read returns the next line that is not blank; it is the caller's. The error is
// a [*LongLine], after which reading goes on, or the end of the input.
func (p *ServerPipe) Read() ([]byte, error) {
	line, err := p.lines.next()
	if long, ok := errors.AsType[*longLineError](err); ok {
		return nil, &LongLine{ID: long.answeredID(), err: long}
	}
	if len(line) > 0 {
		return line, nil // the end comes again
	}
	return nil, err
}

// Write writes one message as one line. After a write that failed all others
// fail too, since half a line may stand there.
func (p *ServerPipe) Write(message []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	const keep = 64 << 10
	p.buf = frame(append(p.buf[:0], message...))
	_, p.err = p.out.Write(p.buf)
	if cap(p.buf) > keep {
		p.buf = nil
	}
	return p.err
}
