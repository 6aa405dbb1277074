package mcp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// lineReader reads newline-delimited messages (2026-07-28, basic/transports/stdio).
// A line beyond the limit is skipped whole, so the connection outlives it.
type lineReader struct {
	br *bufio.Reader
	// limit is how long a line may be; it is asked once a line has begun.
	limit func() int
	// open says that the last line had no end: whoever wrote it may have wanted to
	// write more.
	open bool
}

func newLineReader(r io.Reader, maxBytes int) *lineReader {
	return &lineReader{br: bufio.NewReaderSize(r, 64<<10), limit: func() int { return maxBytes }}
}

// longLineError reports a line that was skipped because of its length. Head and
// tail are its first and last bytes, enough to tell which request it answers.
type longLineError struct {
	size, limit int
	head, tail  []byte
}

// edge is how much of each end of a long line is kept.
const edge = 512

func (e *longLineError) Error() string {
	return fmt.Sprintf("a message of %d bytes is beyond the limit of %d bytes", e.size, e.limit)
}

// next returns the next line that is not blank, without its end; the bytes are
// the caller's. The error is a [*longLineError] for a skipped line, after which
// reading goes on, or else the end.
func (r *lineReader) next() ([]byte, error) {
	for {
		line, err := r.line()
		line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte("\ufeff")))
		if len(line) > 0 || err != nil {
			return line, err
		}
	}
}

func (r *lineReader) line() ([]byte, error) {
	chunk, err := r.br.ReadSlice('\n')
	most := r.limit()
	if err == nil || errors.Is(err, io.EOF) {
		if len(chunk) == 0 {
			return nil, err
		}
		if len(chunk)-1 > most {
			return nil, &longLineError{size: len(chunk), limit: most, head: clone(chunk[:min(edge, len(chunk))]), tail: clone(chunk[max(0, len(chunk)-edge):])}
		}
		r.open = err != nil
		return clone(chunk), nil // a last line without an end counts; the EOF comes again
	}
	if !errors.Is(err, bufio.ErrBufferFull) {
		return nil, err
	}
	buf := append(make([]byte, 0, 4*len(chunk)), chunk...)
	size := len(chunk)
	for {
		chunk, err = r.br.ReadSlice('\n')
		size += len(chunk)
		if size-1 <= most {
			buf = append(buf, chunk...)
		} else {
			buf = keepEdges(buf, chunk)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		case size-1 > most:
			return nil, &longLineError{size: size, limit: most, head: buf[:edge], tail: clone(bytes.TrimSpace(buf[edge:]))}
		default:
			r.open = err != nil
			return buf, nil
		}
	}
}

// keepEdges makes buf the first [edge] bytes of a line and the last ones as far
// as they are known.
func keepEdges(buf, chunk []byte) []byte {
	tail := append(clone(buf[max(edge, len(buf)-edge):]), chunk...)
	buf = append(make([]byte, 0, 2*edge), buf[:edge]...)
	return append(buf, tail[max(0, len(tail)-edge):]...)
}

func clone(b []byte) []byte { return append([]byte(nil), b...) }

// answeredID looks for the id of the request that a skipped line answers. It
// believes only what stands at the top level of the message: members of the
// envelope in front of the first big one, or behind the last.
func (e *longLineError) answeredID() (id []byte) {
	for rest := bytes.TrimPrefix(bytes.TrimSpace(e.head), []byte{'{'}); ; {
		name, value, after, ok := cutMember(rest)
		if !ok {
			break
		}
		if name == "id" {
			return value
		}
		rest = bytes.TrimLeft(after, ", \t")
	}
	tail := bytes.TrimSpace(e.tail)
	if !bytes.HasSuffix(tail, []byte{'}'}) {
		return nil
	}
	// Members of the envelope are tried at each comma of the tail, and count if
	// nothing but such members follows up to the closing brace.
	for from := tail; ; {
		i := bytes.IndexByte(from, ',')
		if i < 0 {
			return nil
		}
		from = from[i+1:]
		id = nil
		rest := from
		for {
			name, value, after, ok := cutMember(rest)
			if !ok {
				break
			}
			if name == "id" {
				id = value
			}
			if len(after) == 1 && after[0] == '}' {
				return id
			}
			rest = bytes.TrimLeft(after, ", \t")
		}
	}
}

// cutMember cuts a jsonrpc or id member with a simple value off the front of s.
func cutMember(s []byte) (name string, value, after []byte, ok bool) {
	s = bytes.TrimLeft(s, " \t")
	for _, name := range []string{"jsonrpc", "id"} {
		rest, found := bytes.CutPrefix(s, []byte(`"`+name+`"`))
		if !found {
			continue
		}
		rest = bytes.TrimLeft(rest, " \t:")
		end := bytes.IndexAny(rest, ",}")
		if end < 0 {
			return "", nil, nil, false
		}
		return name, bytes.TrimSpace(rest[:end]), rest[end:], true
	}
	return "", nil, nil, false
}
