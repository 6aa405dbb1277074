package mcp

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// maxResumes is how often the stream of one legacy call is taken up again.
const maxResumes = 5

// stream reads the event stream that answers a call. One of a legacy server that
// breaks off is resumed; one of a modern server never is, since its end is the
// call's.
func (c *httpConn) stream(x *httpExchange, resp *http.Response) (jsontext.Value, error) {
	rd := newEventReader(x.noticing(resp.Body), c.opts.MaxMessageBytes)
	defer func() {
		x.retry = rd.retry
		rd.release()
	}()
	for resumes := 0; ; {
		m, err := c.nextAnswer(x, rd)
		if err == nil {
			if rd.err == nil { // else it has ended, and is done with
				c.drain(resp)
			}
			_ = resp.Body.Close()
			return answer(&m)
		}
		_ = resp.Body.Close()
		if isInvalidAnswer(err) {
			return nil, err
		}
		if f, ok := asFault(err); ok {
			c.stats.tooLarge.Add(1)
			x.cancel(f) // nobody reads the rest
			c.tellCancelled(x)
			return nil, c.named(f)
		}
		if x.ctx.Err() != nil {
			return nil, c.broken(x, err)
		}
		for {
			if x.era == EraModern || rd.lastID == "" || resumes == maxResumes {
				return nil, OutcomeUnknown(c.opts.Server, "the server ended the stream without an answer, the call may have run: %s", plainError(err))
			}
			resumes++
			if resp, err = c.resume(x, rd); err != nil {
				if x.ctx.Err() != nil {
					return nil, c.broken(x, err)
				}
				continue
			}
			if resp.StatusCode != http.StatusOK || !isEventStream(resp) {
				_ = resp.Body.Close()
				return nil, OutcomeUnknown(c.opts.Server, "the server ended the stream without an answer and does not resume it (status %d), the call may have run", resp.StatusCode)
			}
			rd.reopen(x.noticing(resp.Body))
			break
		}
	}
}

// nextAnswer reads events up to the answer.
func (c *httpConn) nextAnswer(x *httpExchange, rd *eventReader) (Message, error) {
	for {
		ev, err := rd.next()
		if err != nil {
			return Message{}, err
		}
		m, err := c.parse(ev)
		switch {
		case err == errNoMessage:
		case err != nil:
			if claim := readClaim(ev.data); claim.of(x.id) {
				return Message{}, invalidAnswer(c.opts.Server, err)
			}
		case x.handle(&m):
			return m, nil
		}
	}
}

// parse reads the message of an event; errNoMessage is for one that has none.
func (c *httpConn) parse(ev serverEvent) (Message, error) {
	if ev.kind != "" && ev.kind != "message" || len(ev.data) == 0 {
		return Message{}, errNoMessage
	}
	m, err := ParseMessage(ev.data, Lenient)
	if err != nil && c.stats.noise.Add(1) == 1 {
		c.log.Warn("the server sends events that are no JSON-RPC messages", "bytes", len(ev.data))
	}
	return m, err
}

var errNoMessage = errors.New("the event has no message")

// resume waits as long as the server asked for and asks for the rest.
func (c *httpConn) resume(x *httpExchange, rd *eventReader) (*http.Response, error) {
	wait := time.Second
	if rd.retry > 0 {
		wait = min(rd.retry, 30*time.Second)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-x.ctx.Done():
		return nil, x.ctx.Err()
	}
	return c.get(x.ctx, x.session, rd.lastID)
}

// drain reads the little that may be left of an answer, such as the end of its
// stream, which is on its way, so that the connection can be used again. A server
// that leaves its streams open is waited for only now and then.
func (c *httpConn) drain(resp *http.Response) {
	const patience, most, tries, again = 5 * time.Millisecond, 4 << 10, 3, 16
	defer resp.Body.Close()
	if c.unended.Load() >= tries && c.unended.Add(1)%again != 0 {
		return
	}
	timer := time.AfterFunc(patience, func() { _ = resp.Body.Close() })
	defer timer.Stop()
	if _, err := io.CopyN(io.Discard, resp.Body, most); errors.Is(err, io.EOF) {
		c.unended.Store(0)
	} else {
		c.unended.Add(1)
	}
}

func isEventStream(resp *http.Response) bool {
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	encoding := resp.Header.Get("Content-Encoding")
	return strings.EqualFold(strings.TrimSpace(kind), "text/event-stream") && (encoding == "" || strings.EqualFold(encoding, "identity"))
}

// noticing is r, with traffic called whenever something comes.
func (x *httpExchange) noticing(r io.Reader) io.Reader {
	if x.traffic == nil {
		return r
	}
	return &trafficReader{r, x.traffic}
}

type trafficReader struct {
	io.Reader
	traffic func()
}

func (r *trafficReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.traffic()
	}
	return n, err
}
