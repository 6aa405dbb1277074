package bus

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"toolhub/internal/mcp"
)

// replyGrace is how much longer than its deadline a caller waits, so that the
// other side's own word on the timeout gets through.
const replyGrace = 250 * time.Millisecond

// partTimeout bounds the wait for the next part of a big message, or for the
// invitation to send one.
const partTimeout = 10 * time.Second

// Reasons of faults that say that a call never started.
const (
	// ReasonNoResponders: nobody serves the subject.
	ReasonNoResponders = "no_responders"
	// ReasonDisconnected: there is no connection to NATS.
	ReasonDisconnected = "bus_disconnected"
)

// Request is one call.
type Request struct {
	// Subject is one of [CallSubject], [AtSubject] or [APISubject].
	Subject string
	// Body is a whole JSON-RPC request.
	Body []byte
	Meta Meta
	// Sign has the call signed though it names nobody, so that the other side knows
	// that this is so (P10). A call that names somebody always is.
	Sign bool
	// Worker is the identity of the process that serves Subject, if it is
	// known: it gets the cancellation, and [Conn.Abandon] and [Conn.AbandonEpoch] end the call.
	Worker string
}

// Meta is what a call carries that is not MCP. A call from a program that is
// none of ours may have none of it.
type Meta struct {
	// CallID names the call. "" makes Call choose one.
	CallID string
	// Deadline is when the caller stops waiting. Zero is never.
	Deadline time.Time
	// Principal is who is calling, as authenticated; "" is unknown.
	Principal string
	// ClientEra is the era that the client speaks; "" is unknown.
	ClientEra mcp.Era
	// ToolSet is the id of the ToolSet that the name was resolved in.
	ToolSet string
	// Taint lists the servers whose output is in the context of the caller's model.
	Taint []string
	// Traceparent and Tracestate are the W3C trace context.
	Traceparent, Tracestate string
	// Server and Method are read from the subject, on the side that serves.
	Server, Method string
	// Signed says, on the side that serves, that a process of the hub has made the
	// call, so that what it says of itself is true. One that is not names neither
	// principal nor taint, and who made it is not known.
	Signed bool
}

// Reply is the end of a call.
type Reply struct {
	// Body is a whole JSON-RPC response.
	Body []byte
	// IsError says that Body is an error response of the server itself.
	IsError bool
}

var errDeadline = errors.New("deadline passed")

// Call makes one call and waits for its end. notify gets each notification, in
// order, on the caller's goroutine; nil drops them. An error is an [*mcp.Fault]:
//
//   - unavailable/no_responders: nobody serves the subject, the call never started;
//   - unavailable/bus_disconnected: there is no connection, the call never left;
//   - unavailable/outcome_unknown: the connection was lost while the call ran;
//   - timeout: Deadline has passed;
//   - message_too_large: the body or the reply is beyond the limit;
//   - unavailable/hub_key: the call names somebody and cannot be signed just now;
//   - whatever fault the side that serves replied with;
//
// with the id of the call if it was sent and taken, or the cause of ctx, if ctx
// ended first. Then the other side is told to cancel.
func (c *Conn) Call(ctx context.Context, r *Request, notify func(body []byte)) (Reply, error) {
	if ctx.Err() != nil {
		return Reply{}, context.Cause(ctx)
	}
	meta := r.Meta
	if meta.CallID == "" {
		meta.CallID = c.newID()
	}
	deadline := meta.Deadline
	if d, ok := ctx.Deadline(); ok && (meta.Deadline.IsZero() || d.Before(meta.Deadline)) {
		meta.Deadline = d
	}
	if !meta.Deadline.IsZero() && !meta.Deadline.After(time.Now()) {
		return Reply{}, c.blame(r, mcp.NewFault(mcp.KindTimeout, "expired", "the deadline of the call has passed before it was sent"))
	}
	sig, fault := c.signature(ctx, r, &meta)
	if fault != nil {
		return Reply{}, c.blame(r, fault)
	}
	w := c.mux.open(r.Subject, r.Worker)
	defer w.close()
	if !deadline.IsZero() {
		w.timer.Reset(time.Until(deadline) + replyGrace)
	}
	msg, rest, fault := c.firstMessage(r, &meta, sig, w.header)
	if fault != nil {
		return Reply{}, c.blame(r, fault)
	}
	msg.Reply = w.inbox()
	if err := c.calls.nc.PublishMsg(&msg); err != nil {
		return Reply{}, c.blame(r, publishFault(err, len(r.Body)))
	}
	reply, err := c.await(ctx, w, notify, rest)
	if err == nil {
		return reply, nil
	}
	if ctx.Err() != nil && err == context.Cause(ctx) { //nolint:errorlint // a fault is a cause like any other, and the caller's own
		c.cancel(r.Worker, meta.CallID)
		return Reply{}, err
	}
	if fault, ok := errors.AsType[*mcp.Fault](err); ok {
		if fault.CallID == "" && fault.Reason != ReasonNoResponders {
			fault.CallID = meta.CallID
		}
		if fault.Kind == mcp.KindProtocol || fault.Kind == mcp.KindMessageTooLarge {
			c.cancel(r.Worker, meta.CallID)
		}
		return Reply{}, c.blame(r, fault)
	}
	c.cancel(r.Worker, meta.CallID)
	if err == errDeadline { //nolint:errorlint // never wrapped
		fault := mcp.NewFault(mcp.KindTimeout, "deadline", "no answer within the time allowed")
		fault.CallID = meta.CallID
		return Reply{}, c.blame(r, fault)
	}
	return Reply{}, err
}

// parts are what is left of a request after its first message.
type parts struct {
	body []byte
	n    int // parts in all
	size int // bytes in all
	step int
}

// firstMessage makes the message that starts a call, and what does not fit into it.
func (c *Conn) firstMessage(r *Request, meta *Meta, sig *signature, header nats.Header) (nats.Msg, parts, *mcp.Fault) {
	size := len(r.Body)
	if size > c.mux.max {
		return nats.Msg{}, parts{}, tooLarge("a request", size, c.mux.max)
	}
	encodeMeta(header, meta, span{}, sig)
	used := headerSize(header)
	if used > maxMetaBytes {
		return nats.Msg{}, parts{}, mcp.NewFault(mcp.KindInvalid, "meta_too_large",
			"principal, taint and trace context of the call take %d bytes, beyond the limit of %d", used, maxMetaBytes)
	}
	msg := nats.Msg{Subject: r.Subject, Header: header, Data: r.Body}
	limit := partLimit(c.calls.nc, used+replyHeaderBytes)
	if size <= limit {
		return msg, parts{}, nil
	}
	if limit <= 0 {
		return nats.Msg{}, parts{}, tooLarge("the metadata of a call", used, int(c.calls.nc.MaxPayload()))
	}
	p := parts{body: r.Body[limit:], n: split(size, limit), size: size, step: limit}
	encodeMeta(header, meta, span{part: 1, parts: p.n, size: size}, sig)
	msg.Data = r.Body[:limit]
	return msg, p, nil
}

// await takes the replies of a call until its end.
func (c *Conn) await(ctx context.Context, w *waiter, notify func([]byte), rest parts) (Reply, error) {
	var a assembler
	for {
		in, err := w.next(ctx)
		if err != nil {
			return Reply{}, err
		}
		switch in.kind {
		case kindNoResponders:
			return Reply{}, mcp.Unavailable("", ReasonNoResponders, "nobody serves the call just now")
		case kindBroken:
			f := *in.fault // shared by all calls that failed together
			return Reply{}, &f
		case kindContinue:
			if err := c.sendRest(in.reply, rest); err != nil {
				return Reply{}, err
			}
			rest = parts{}
			continue
		case kindMore:
			continue
		}
		body, whole := a.add(in)
		if !whole {
			continue
		}
		a = assembler{}
		switch in.kind {
		case kindNotify:
			if notify != nil {
				notify(body)
			}
		case kindResult:
			return Reply{Body: body, IsError: in.foreign && isErrorResponse(body)}, nil
		case kindError:
			return Reply{Body: body, IsError: true}, nil
		case kindFault:
			return Reply{}, decodeFault(body)
		}
	}
}

// sendRest sends the further parts of a request to where they were asked for.
func (c *Conn) sendRest(to string, rest parts) error {
	if to == "" || rest.n == 0 {
		return mcp.NewFault(mcp.KindProtocol, "bus_continue", "the other side asks for more of a request that is complete")
	}
	for k := 2; k <= rest.n; k++ {
		n := min(rest.step, len(rest.body))
		msg := &nats.Msg{Subject: to, Header: encodeReply(kindMore, k-1, span{part: k, parts: rest.n, size: rest.size}), Data: rest.body[:n]}
		if err := c.calls.nc.PublishMsg(msg); err != nil {
			return publishFault(err, rest.size)
		}
		rest.body = rest.body[n:]
	}
	return nil
}

func publishFault(err error, size int) *mcp.Fault {
	switch {
	case disconnected(err):
		return mcp.Unavailable("", ReasonDisconnected, "there is no connection to NATS just now")
	case errors.Is(err, nats.ErrMaxPayload):
		return mcp.NewFault(mcp.KindMessageTooLarge, "message_too_large", "NATS does not take a message of %d bytes", size)
	default:
		return mcp.NewFault(mcp.KindTransport, "bus_publish", "NATS does not take the call: %v", err)
	}
}

// decodeFault reads the body of a fault reply.
func decodeFault(body []byte) error {
	m, err := mcp.ParseMessage(body, mcp.Lenient)
	if err == nil && m.Err != nil {
		if f := mcp.FaultOf(m.Err); f != nil {
			return f
		}
	}
	return mcp.NewFault(mcp.KindProtocol, "bus_fault", "the other side failed and did not say how")
}

// isErrorResponse looks into the reply of a program that sends no HeaderReply.
func isErrorResponse(body []byte) bool {
	if !bytes.Contains(body, []byte(`"error"`)) {
		return false
	}
	m, err := mcp.ParseMessage(body, mcp.Lenient)
	return err == nil && m.Err != nil
}

// blame completes a fault with the server that the call was for.
func (c *Conn) blame(r *Request, f *mcp.Fault) *mcp.Fault {
	if f.Server == "" {
		if r.Meta.Server != "" {
			f.Server = r.Meta.Server
		} else if s, ok := ParseSubject(r.Subject); ok {
			f.Server = s.Server
		}
	}
	return f
}

// cancel tells whoever serves the call that nobody waits for it any more.
func (c *Conn) cancel(worker, callID string) {
	if worker == "" {
		worker = AnyIdentity
	}
	if err := c.calls.nc.Publish(CtlSubject(c.cfg.Hub, worker, CtlCancel), []byte(callID)); err != nil && !disconnected(err) {
		c.log.Warn("couldn't cancel a call", "call_id", callID, "error", err)
	}
}

// AbandonEpoch ends, as unavailable/outcome_unknown, all calls of this Conn that
// wait for worker as the owner of server in epoch, and those to server at worker.
// It is for whoever learns that the epoch is over.
func (c *Conn) AbandonEpoch(server string, epoch uint64, worker string) {
	byEpoch, at := callPrefix(c.cfg.Hub, server, epoch), AtSubject(c.cfg.Hub, worker, server, "")
	at = strings.TrimSuffix(at, "=") // the empty method
	c.mux.fail(func(w *waiter) bool { return strings.HasPrefix(w.subject, byEpoch) || strings.HasPrefix(w.subject, at) },
		mcp.OutcomeUnknown(server, "the worker that ran the call does not own server %q any more", server))
}

// Abandon ends, as unavailable/outcome_unknown, all calls of this Conn that wait
// for worker. It is for whoever learns that worker is dead.
func (c *Conn) Abandon(worker string) {
	c.mux.fail(func(w *waiter) bool { return w.worker == worker },
		mcp.OutcomeUnknown("", "the worker that ran the call is gone"))
}

// NotesDropped is how many notifications were dropped because their callers
// were too slow.
func (c *Conn) NotesDropped() uint64 { return c.mux.dropped.Load() }
