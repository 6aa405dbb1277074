package mcp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// HTTP with SSE is the transport of MCP 2024-11-05 that Streamable HTTP has
// replaced (2024-11-05, basic/transports): the server sends everything on one event
// stream, whose first event says where messages for it are POSTed. That is one pipe
// in each direction, so all the rest is as on one ([ConnectStdio]).

// mayBeSSE reports whether initialize failed as it does before such a server
// (2025-11-25, basic/transports, backwards compatibility).
func mayBeSSE(err error) bool {
	f, ok := errors.AsType[*Fault](err)
	if !ok || f.Reason != "http_status" {
		return false
	}
	switch string(Field(f.Details, "status")) {
	case "400", "404", "405":
		return true
	}
	return false
}

// connectSSE makes a connection to such a server. c has failed to be another one,
// and is of use for its requests only. The error is why is no stream begins here.
func (c *httpConn) connectSSE(ctx context.Context, opts ConnectOptions, why error) (Conn, error) {
	p := &ssePipe{ended: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, p.cancel)
	timeout := time.AfterFunc(c.opts.RequestTimeout, p.cancel)
	events, endpoint, err := c.openSSE(ctx, p, why)
	timeout.Stop()
	if !stop() && err == nil {
		_ = events.body.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		p.cancel()
		c.rt.CloseIdleConnections()
		return nil, err
	}
	p.to = &httpConn{hop: newHop(c.opts), target: c.target, rt: c.rt, fixed: c.fixed}
	p.to.request = &http.Request{URL: endpoint, Host: endpoint.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	var in *io.PipeWriter
	p.PipeReader, in = io.Pipe()
	go p.read(events, in)
	opts.Era = EraChoice(EraLegacy)
	return ConnectStdio(ctx, Pipe{Out: sseOut{p}, In: p}, opts)
}

// sseStream is the event stream of a server.
type sseStream struct {
	body io.ReadCloser
	*eventReader
}

// openSSE opens the stream, and reads where messages go.
func (c *httpConn) openSSE(ctx context.Context, p *ssePipe, why error) (*sseStream, *url.URL, error) {
	header := c.header(nil)
	header["Accept"] = []string{"text/event-stream"}
	resp, err := c.send(p.ctx, nil, http.MethodGet, header, nil)
	switch {
	case ctx.Err() != nil:
		return nil, nil, context.Cause(ctx)
	case err != nil:
		return nil, nil, why
	case resp.StatusCode != http.StatusOK || !isEventStream(resp):
		_ = resp.Body.Close()
		return nil, nil, why
	}
	s := &sseStream{resp.Body, newEventReader(resp.Body, c.opts.MaxMessageBytes)}
	ev, err := s.next()
	var to *url.URL
	if err == nil && ev.kind == "endpoint" {
		to, err = c.request.URL.Parse(string(bytes.TrimSpace(ev.data)))
	}
	switch {
	case err == nil && to == nil:
		err = NewFault(KindProtocol, "sse_endpoint", "the server's event stream begins with the event %q, not with its endpoint", short(ev.kind))
	case err == nil && (to.Scheme != c.request.URL.Scheme || to.Host != c.request.URL.Host || to.User != nil):
		err = NewFault(KindProtocol, "sse_endpoint", "the server's event stream names an endpoint of another origin, where nothing is sent")
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case p.ctx.Err() != nil:
		err = NewFault(KindTimeout, "sse_endpoint", "the server's event stream named no endpoint within %v", c.opts.RequestTimeout)
	case err != nil:
		if _, ours := asFault(err); !ours {
			err = NewFault(KindTransport, "sse_endpoint", "the server's event stream ended before it named its endpoint: %s", plainError(err))
		}
	}
	if err != nil {
		_ = resp.Body.Close()
		s.release()
		return nil, nil, c.named(err)
	}
	return s, to, nil
}

// ssePipe is both ends of a server: a line read is a message of its stream, and a
// line written is POSTed.
type ssePipe struct {
	*io.PipeReader

	ctx    context.Context // of stream and POSTs
	cancel context.CancelFunc
	to     *httpConn     // where messages are POSTed
	ended  chan struct{} // closed when the stream is read to its end
	once   sync.Once
}

// read hands the messages of the stream on, until its end.
func (p *ssePipe) read(s *sseStream, in *io.PipeWriter) {
	defer close(p.ended)
	defer s.body.Close()
	defer s.release()
	for {
		ev, err := s.next()
		if err == nil && (ev.kind == "" || ev.kind == "message") {
			_, err = in.Write(frame(ev.data))
		}
		if err != nil {
			if p.ctx.Err() != nil {
				err = io.EOF
			}
			_ = in.CloseWithError(err)
			return
		}
	}
}

// Close ends everything, and waits for it.
func (p *ssePipe) Close() error {
	p.cancel()
	err := p.PipeReader.Close()
	<-p.ended
	p.once.Do(func() {
		_ = p.to.end(nil)
		p.to.rt.CloseIdleConnections()
	})
	return err
}

// sseOut is the end for writing.
type sseOut struct{ *ssePipe }

// Write POSTs the messages, which are whole lines.
func (o sseOut) Write(lines []byte) (int, error) {
	for line := range bytes.Lines(lines) {
		if err := o.to.post(o.ctx, nil, bytes.TrimSuffix(line, []byte("\n"))); err != nil {
			return 0, errors.New("a message was not taken: " + plainError(err))
		}
	}
	return len(lines), nil
}

// Close ends the stream too, since without the one the other is of no use.
func (o sseOut) Close() error {
	o.cancel()
	return nil
}
