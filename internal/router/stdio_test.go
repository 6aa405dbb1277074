package router

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"toolhub/internal/mcp"
)

// pipeClient is a client on stdio.
type pipeClient struct {
	t     testing.TB
	in    *io.PipeWriter
	lines *bufio.Reader
	out   *io.PipeReader // what lines reads
	done  chan error
}

func (b *bed) pipe(ctx context.Context, r *running) *pipeClient {
	b.t.Helper()
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	p := &pipeClient{t: b.t, in: toServer, lines: bufio.NewReaderSize(fromServer, 64<<10), out: fromServer, done: make(chan error, 1)}
	go func() {
		p.done <- r.ServeStdio(ctx, in, out)
		out.Close()
	}()
	hung := time.AfterFunc(3*patience, func() { _ = fromServer.CloseWithError(errors.New("the test hangs")) })
	b.t.Cleanup(func() {
		hung.Stop()
		toServer.Close()
		_, _ = io.Copy(io.Discard, p.lines)
	})
	return p
}

func (p *pipeClient) send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// next reads one line, which must have each of the parts.
func (p *pipeClient) next(parts ...string) string {
	p.t.Helper()
	line, err := p.lines.ReadString('\n')
	if err != nil {
		p.t.Fatalf("reading: %v after %q", err, line)
	}
	for _, part := range parts {
		if !strings.Contains(line, part) {
			p.t.Fatalf("line %.300q, want one with %q", line, part)
		}
	}
	return line
}

func pipeCall(id, tool string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + tool + `","arguments":{},` + clientMeta + `}}`
}

const pipeInitialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{"elicitation":{}},"clientInfo":{"name":"test","version":"1"}}}`

func TestStdioModern(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.router("r1")
	p := b.pipe(t.Context(), r)
	p.send(`{"jsonrpc":"2.0","id":"d","method":"server/discover","params":{` + clientMeta + `}}`)
	p.next(`"id":"d"`, `"supportedVersions":["2026-07-28"]`)
	p.send(pipeCall("1", "progress"))
	p.next(`"progress":1`)
	p.next(`"progress":2`)
	p.next(`"progress":3`)
	p.next(`"id":1`, "done")
	// Requests do not wait for each other.
	p.send(pipeCall("2", "slow"))
	b.tells("slow began")
	p.send(pipeCall("3", "echo"))
	p.next(`"id":3`)
	p.send(pipeCall("2", "echo"))
	p.next(`"id":2`, "running already")
	b.letGo()
	p.next(`"id":2`, "slow is done")
	// A cancelled request gets no response.
	p.send(pipeCall("4", "wait"))
	p.next(`"progress":1`)
	b.tells("began")
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4}}`)
	b.tells("cancelled")
	p.send(`{"jsonrpc":"2.0","id":5,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` + clientMeta + `}}`)
	p.next("acknowledged", `"io.modelcontextprotocol/subscriptionId":5`)
	b.server.publish(bedDefs("echo", "wait"))
	p.next("tools/list_changed", `"io.modelcontextprotocol/subscriptionId":5`)
	// What is wrong is answered, and the pipe goes on.
	p.send(`[{"jsonrpc":"2.0","id":6,"method":"ping"}]`)
	p.next(`"id":null`, "batches")
	p.send(`{nonsense`)
	p.next(`"code":-32700`)
	p.send(strings.Replace(pipeCall("7", "echo"), "2026-07-28", "2027-01-01", 1))
	p.next(`"id":7`, `"code":-32022`)
	p.send(`{"jsonrpc":"2.0","id":8,"method":"tools/list"}`)
	p.next(`"id":8`, `"code":-32602`)
	p.send(`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"x":"` + strings.Repeat("x", mcp.DefaultMaxMessageBytes) + `"}}`)
	p.next(`"id":9`, "message_too_large", "8388608")
	p.send(pipeCall("10", "echo"))
	p.next(`"id":10`, `"result"`)
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`)
	p.send(pipeCall("11", "wait"))
	p.next(`"progress":1`)
	b.tells("began")
	p.in.Close()
	b.tells("cancelled")
	p.next(`"id":11`, `"error"`)
	if err := <-p.done; err != nil {
		t.Error(err)
	}
}

func TestStdioLegacy(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.router("r1")
	p := b.pipe(t.Context(), r)
	p.send(`{"jsonrpc":"2.0","id":"p","method":"ping"}`)
	p.next(`"id":"p","result":{}`)
	p.send(pipeInitialize)
	p.next(`"id":0`, `"protocolVersion":"2025-06-18"`, `"listChanged":true`)
	p.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	p.send(pipeInitialize)
	p.next(`"code":-32600`, "started already")
	p.send(`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"error"}}`)
	p.next(`"id":1,"result":{}`)
	p.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"meta"}}`)
	if line := p.next(`logLevel\":\"error\"`, `clientCapabilities\":{\"elicitation\":{}}`); strings.Contains(line, "resultType") {
		t.Errorf("%s", line)
	}
	p.send(sessionCall("ask"))
	p.next("progress")
	question := p.next("elicitation/create")
	id := question[strings.Index(question, `"toolhub-`) : strings.Index(question, `","method"`)+1]
	p.send(`{"jsonrpc":"2.0","id":` + id + `,"result":{"action":"decline"}}`)
	p.next(`"id":9`, `{\"who\":{\"action\":\"decline\"}}`)
	b.server.publish(bedDefs("echo"))
	if got := p.next(); got != `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`+"\n" {
		t.Errorf("%s", got)
	}
	// A modern request on the same pipe is one.
	p.send(pipeCall("3", "echo"))
	p.next(`"id":3`, "resultType")
	p.in.Close()
	if err := <-p.done; err != nil {
		t.Error(err)
	}
}

// A router that stops lets calls on stdio come to their end.
func TestStdioDrain(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	r := b.router("r1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := b.pipe(ctx, r)
	p.send(`{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` + clientMeta + `}}`)
	p.next("acknowledged")
	p.send(pipeCall("1", "slow"))
	b.tells("slow began")
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		cancel()
		r.stop()
	}()
	p.next(`"id":"l"`, `"resultType":"complete"`)
	b.letGo()
	p.next(`"id":1`, "slow is done")
	select {
	case err := <-p.done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("ServeStdio does not end")
	}
	<-stopped
}

// A client that reads no more is gone, whether it writes or not: what runs for it
// is cancelled.
func TestStdioBrokenOutput(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	p := b.pipe(t.Context(), b.router("r1"))
	p.send(pipeCall("1", "wait"))
	p.next(`"progress":1`)
	b.tells("began")
	p.out.Close()
	p.send(`{"jsonrpc":"2.0","id":2,"method":"server/discover","params":{` + clientMeta + `}}`)
	b.tells("cancelled")
	select {
	case err := <-p.done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("it does not end")
	}
}
