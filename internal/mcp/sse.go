package mcp

import (
	"bytes"
	"io"
	"strconv"
	"sync"
	"time"
)

// serverEvent is one event of an event stream.
type serverEvent struct {
	kind string // the event field, "" is message
	data []byte // the reader's caller owns it
}

// dataField begins the lines that the limit of a message is about.
const dataField = "data: "

// eventReader reads an event stream (WHATWG HTML, server-sent events) with a
// limit on each line and on each event.
type eventReader struct {
	r   io.Reader
	max int
	buf []byte
	// buf[pos:end] is read but not used.
	pos, end int
	err      error // of r, delivered when the buffer is used up
	skipLF   bool  // a CR ended the last line, so that an LF belongs to it
	started  bool

	// lastID is the id of the last complete event that had one, and retry the
	// last reconnection time, 0 when there was none. Both outlive the stream.
	lastID string
	retry  time.Duration
}

func newEventReader(r io.Reader, maxBytes int) *eventReader {
	return &eventReader{r: r, max: maxBytes, buf: eventBuffers.Get().(*[eventBuffer]byte)[:]}
}

// eventBuffer is what most events have room in; larger ones get a buffer of
// their own.
const eventBuffer = 4 << 10

var eventBuffers = sync.Pool{New: func() any { return new([eventBuffer]byte) }}

// release gives the buffer back; the reader must not be used any more.
func (e *eventReader) release() {
	if len(e.buf) == eventBuffer {
		eventBuffers.Put((*[eventBuffer]byte)(e.buf))
	}
	e.r, e.buf = nil, nil
}

// reopen goes on with another stream, keeping lastID and retry. What is left
// of an event that was cut off is forgotten.
func (e *eventReader) reopen(r io.Reader) {
	e.r, e.pos, e.end, e.err, e.skipLF, e.started = r, 0, 0, nil, false, false
}

// next returns the next event that has data. The error is a [*Fault] if a line
// or an event is beyond the limit, and otherwise the stream's; io.EOF is its
// end, which forgets an event without its empty line.
func (e *eventReader) next() (serverEvent, error) {
	var (
		ev      serverEvent
		hasData bool
		id      = e.lastID
	)
	for {
		line, err := e.line()
		if err != nil {
			return serverEvent{}, err
		}
		if len(line) == 0 {
			e.lastID = id
			if hasData {
				return ev, nil
			}
			ev = serverEvent{}
			continue
		}
		name, value, _ := bytes.Cut(line, []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		switch string(name) { // the empty name is a comment
		case "data":
			if hasData {
				ev.data = append(ev.data, '\n')
			}
			if len(ev.data)+len(value) > e.max {
				return serverEvent{}, e.tooLarge()
			}
			ev.data = append(ev.data, value...) // out of the buffer, whose bytes do not last
			hasData = true
		case "event":
			ev.kind = string(value)
		case "id":
			if bytes.IndexByte(value, 0) < 0 {
				id = string(value)
			}
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
				e.retry = time.Duration(ms) * time.Millisecond
			}
		}
	}
}

func (e *eventReader) tooLarge() *Fault {
	return NewFault(KindMessageTooLarge, "event_too_large", "the server sent an event beyond the limit of %d bytes", e.max)
}

// line returns the next line without its end, which is LF, CR or CRLF. It is
// valid until the next call.
func (e *eventReader) line() ([]byte, error) {
	scanned := 0
	for {
		if e.skipLF && e.pos < e.end {
			e.skipLF = false
			if e.buf[e.pos] == '\n' {
				e.pos++
			}
		}
		if i := indexLineEnd(e.buf[e.pos+min(scanned, e.end-e.pos) : e.end]); i >= 0 {
			if i += scanned; i > e.max+len(dataField) {
				return nil, e.tooLarge()
			}
			line := e.buf[e.pos : e.pos+i]
			e.skipLF = e.buf[e.pos+i] == '\r'
			e.pos += i + 1
			if !e.started {
				e.started = true
				line = bytes.TrimPrefix(line, []byte("\ufeff"))
			}
			return line, nil
		}
		scanned = e.end - e.pos
		if scanned > e.max+len(dataField) {
			return nil, e.tooLarge()
		}
		if err := e.fill(); err != nil {
			return nil, err
		}
	}
}

func indexLineEnd(b []byte) int {
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		i = len(b)
	}
	if j := bytes.IndexByte(b[:i], '\r'); j >= 0 {
		return j
	}
	if i == len(b) {
		return -1
	}
	return i
}

// fill reads more, and makes room where there is none.
func (e *eventReader) fill() error {
	if e.err != nil {
		return e.err
	}
	if e.pos == e.end {
		e.pos, e.end = 0, 0
	}
	if e.end == len(e.buf) {
		buf := e.buf
		if 2*(e.end-e.pos) > len(e.buf) {
			buf = make([]byte, 2*len(e.buf))
		}
		e.end = copy(buf, e.buf[e.pos:e.end])
		e.pos, e.buf = 0, buf
	}
	for range 100 { // a reader may return nothing now and then, but not for ever
		n, err := e.r.Read(e.buf[e.end:])
		e.end += n
		e.err = err
		if n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	e.err = io.ErrNoProgress
	return e.err
}
