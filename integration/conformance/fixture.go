package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"

	"toolhub/integration/hubproc"
)

// fixture is the Go SDK's everything-server over HTTP. A process of it speaks one
// era, so there are two behind one URL, where each request goes to the one that
// it is for: a server of both eras, as the specification allows it.
type fixture struct {
	binary string
	urls   map[string]string // of the processes, by era
	url    string            // of both

	front     *httptest.Server
	processes []*exec.Cmd
}

func startFixture(ctx context.Context, binary string) (*fixture, error) {
	f := &fixture{binary: binary, urls: make(map[string]string)}
	proxies := make(map[string]*httputil.ReverseProxy)
	for era, stateless := range map[string]string{"legacy": "-stateless=false", "modern": "-stateless=true"} {
		addr, err := hubproc.FreeAddr()
		if err != nil {
			return nil, f.fail(err)
		}
		process := exec.CommandContext(ctx, binary, "-http", addr, stateless)
		if err := process.Start(); err != nil {
			return nil, f.fail(err)
		}
		f.processes = append(f.processes, process)
		f.urls[era] = "http://" + addr + "/"
		target := &url.URL{Scheme: "http", Host: addr}
		proxies[era] = &httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
			FlushInterval: -1,
			// A hub that goes away closes streams; that is not worth a line.
			ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
		}
		if err := hubproc.Until(ctx, func() error {
			resp, err := http.Get(f.urls[era])
			if err == nil {
				_ = resp.Body.Close()
			}
			return err
		}); err != nil {
			return nil, f.fail(err)
		}
	}
	f.front = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxies[eraOf(r.Header, body)].ServeHTTP(w, r)
	}))
	f.url = f.front.URL + "/"
	return f, nil
}

// eraOf is the era that a request is of: what its header says, or its _meta.
func eraOf(header http.Header, body []byte) string {
	var message struct {
		Params struct {
			Meta map[string]any `json:"_meta"`
		} `json:"params"`
	}
	_ = json.Unmarshal(body, &message) // what cannot be read is for a server to refuse
	_, inMeta := message.Params.Meta["io.modelcontextprotocol/protocolVersion"]
	if inMeta || header.Get("Mcp-Protocol-Version") >= "2026-07-28" {
		return "modern"
	}
	return "legacy"
}

// fail stops what has been started so far.
func (f *fixture) fail(err error) error {
	f.stop()
	return err
}

// stop ends the processes.
func (f *fixture) stop() {
	if f.front != nil {
		f.front.CloseClientConnections()
		f.front.Close()
	}
	for _, process := range f.processes {
		_ = process.Process.Kill()
		_ = process.Wait()
	}
}
