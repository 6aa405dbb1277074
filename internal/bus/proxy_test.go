package bus

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy is a network between a client and a server that can be made bad.
type proxy struct {
	ln     net.Listener
	target string
	mute   atomic.Bool // what the server says is swallowed
	deaf   atomic.Bool // what the client says is swallowed
	wg     sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // guarded by mu; nil once closed
}

func startProxy(t testing.TB, s *testServer) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{ln: ln, target: s.url()[len("nats://"):], conns: map[net.Conn]struct{}{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		ln.Close()
		p.mu.Lock()
		conns := p.conns
		p.conns = nil
		p.mu.Unlock()
		for c := range conns {
			c.Close()
		}
		p.wg.Wait()
	})
	return p
}

func (p *proxy) url() string { return "nats://" + p.ln.Addr().String() }

func (p *proxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		srv, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		if p.conns == nil {
			p.mu.Unlock()
			client.Close()
			srv.Close()
			return
		}
		p.conns[client], p.conns[srv] = struct{}{}, struct{}{}
		p.wg.Go(func() { p.copy(srv, client, &p.deaf) })
		p.wg.Go(func() { p.copy(client, srv, &p.mute) })
		p.mu.Unlock()
	}
}

func (p *proxy) copy(to, from net.Conn, swallow *atomic.Bool) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if swallow.Load() {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// cut breaks all connections; new ones are taken.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
		delete(p.conns, c)
	}
}
