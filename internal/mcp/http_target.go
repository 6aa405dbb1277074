package mcp

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// HTTPTarget is a Streamable HTTP server.
type HTTPTarget struct {
	// URL is the MCP endpoint: absolute, http or https, without user info and
	// fragment.
	URL string
	// Headers go with every request. Those that the connection sets itself are
	// refused: see [CheckHeader].
	Headers map[string]string
	// Token returns the bearer token of a request, "" for none. It is called for
	// each request with that request's ctx. Nil: no token. It is refused for
	// plain http to anything but loopback.
	Token func(ctx context.Context) (string, error)
	// Challenged hears that the server refused a request with 401 or 403, and
	// reports whether to send it again, with the token that Token has now. It may
	// take as long as a human needs; calls at the same time must not each ask one.
	// The ctx is the request's. The error becomes the request's. Nil: never again.
	Challenged func(ctx context.Context, challenge Challenge) (again bool, err error)
	// TLS is for servers that need other roots or a client certificate.
	TLS *tls.Config
	// DialContext makes the connections, for a policy on addresses. Nil uses the
	// system's, and the proxy of the environment.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// idleConn is how long an unused connection is kept. The common servers' own
// limit begins at 5 s (Node, uvicorn): a request on a connection that the server
// is just closing is lost, and must not be repeated.
const idleConn = 4 * time.Second

// transport has what all requests to one target share.
func (t *HTTPTarget) transport() *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true) // a stream has a connection of its own, so that closing it is seen
	rt := &http.Transport{
		Protocols:              &protocols,
		DisableCompression:     true,
		MaxIdleConns:           0,
		MaxIdleConnsPerHost:    256,
		IdleConnTimeout:        idleConn,
		TLSClientConfig:        t.TLS,
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
		DialContext:            t.DialContext,
		// Small requests and answers: larger buffers cost memory per connection.
		ReadBufferSize: 8 << 10,
	}
	if t.DialContext == nil {
		rt.DialContext = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
		rt.Proxy = http.ProxyFromEnvironment
	}
	return rt
}

// parse checks the target.
func (t *HTTPTarget) parse() (*url.URL, error) {
	u, err := url.Parse(t.URL)
	switch {
	case err != nil: // its text would repeat the URL, with whatever is in it
		return nil, NewFault(KindInvalid, "url", "url is not a valid URL; it must be an absolute http or https URL")
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "":
		return nil, NewFault(KindInvalid, "url", "url must be an absolute http or https URL")
	case u.User != nil:
		return nil, NewFault(KindInvalid, "url", "url must not hold user info; credentials belong in auth")
	case u.Fragment != "":
		return nil, NewFault(KindInvalid, "url", "url must not have a fragment")
	case t.Token != nil && u.Scheme == "http" && !IsLoopback(u.Hostname()):
		return nil, NewFault(KindInvalid, "plain_http", "credentials are not sent over plain http to %s; use https", u.Hostname())
	}
	for name, value := range t.Headers {
		if err := CheckHeader(name, value); err != nil {
			return nil, NewFault(KindInvalid, "headers", "headers: %q %v", name, err)
		}
	}
	return u, nil
}

// IsLoopback reports whether host, a name or an address with or without
// brackets, is this machine and nothing else.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
	return err == nil && ip.Unmap().IsLoopback()
}

var reservedHeaders = map[string]bool{
	"Idempotency-Key": true, "X-Idempotency-Key": true, // they make the transport repeat requests
	"Authorization": true, "Host": true, "Last-Event-Id": true, "Expect": true,
	"Connection": true, "Keep-Alive": true, "Proxy-Connection": true, "Proxy-Authenticate": true, "Proxy-Authorization": true,
	"Origin": true, // it is for browsers; servers refuse those that they do not know
	"Te":     true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
}

// CheckHeader checks a header that an operator wants to send with every request
// ([HTTPTarget].Headers): the error says, without the name, what is wrong with
// it. Those that the connection sets itself are refused: accept*, authorization,
// content-*, host, mcp-*, last-event-id, origin, idempotency keys and the
// hop-by-hop ones.
func CheckHeader(name, value string) error {
	key := http.CanonicalHeaderKey(name)
	switch {
	case !isToken(name):
		return errors.New("is no name of an HTTP header")
	case reservedHeaders[key], strings.HasPrefix(key, "Mcp-"), strings.HasPrefix(key, "Accept"), strings.HasPrefix(key, "Content-"):
		return errors.New("is set by the connection itself and cannot be configured; credentials belong in auth")
	case !isHeaderValue(value):
		return errors.New("has a character that no header may have, such as the end of a line")
	}
	return nil
}

func isHeaderValue(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' && s[i] != '\t' || s[i] == 0x7f {
			return false
		}
	}
	return true
}

// isVisible reports whether s is 1 to most bytes of visible ASCII.
func isVisible(s string, most int) bool {
	if s == "" || len(s) > most {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
