// Package oauth gets, keeps and renews the tokens with which one MCP server is
// reached (2026-07-28, basic/authorization). What the protocol and its RFCs say
// is mostly in libraries: the Go SDK's oauthex and auth packages find the
// authorization server and register clients, golang.org/x/oauth2 speaks to token
// endpoints. Here is what holds them together and what they leave open.
//
//	mcp.HTTPTarget.Token ──────► a token that is still good, or refreshed
//	mcp.HTTPTarget.Challenged ─► 401, 403: one flow for all that wait
//	                               discovery.go     whom to ask, and for what
//	                               registration.go  as whom
//	                               flow.go          the user's consent, or our own credentials
//	                               token.go         the token endpoint
//
// A [Client] belongs to one resource and one principal. It asks nobody twice at
// the same time, gives up instead of asking for ever, never takes a token of one
// authorization server to another, and shows no secret in an error.
package oauth

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/time/rate"

	"toolhub/internal/mcp"
)

// Config is how a [Client] makes itself known and where tokens come from. Of the
// ways to be known to an authorization server those that are configured are tried
// in the order of the specification: Registered, MetadataURL, Dynamic.
type Config struct {
	// Server is the server's id in the hub, for faults.
	Server string
	// URL is the MCP endpoint that the tokens are for, as it is in
	// [mcp.HTTPTarget].
	URL string

	// Registered is a client that somebody has registered by hand.
	Registered *Registered
	// MetadataURL is the https URL of a Client ID Metadata Document, used with
	// authorization servers that support those.
	MetadataURL string
	// Dynamic is what to register as with an authorization server that takes
	// anybody (RFC 7591); New fills in what follows from the rest.
	Dynamic *oauthex.ClientRegistrationMetadata

	// Consent brings the user to url and returns what the authorization server
	// sent to RedirectURL. It may take as long as the user does, and must end with
	// ctx. Nil: there is no user, tokens are for Registered itself (client
	// credentials).
	Consent     func(ctx context.Context, url string) (Answer, error)
	RedirectURL string

	// HTTP makes all requests: discovery, registration and tokens. The addresses
	// come from the server, so a client that is to be kept from some has a
	// transport that does so. Nil uses the SDK's, which reaches no private address
	// for discovery. Timeout and redirects are set here.
	HTTP *http.Client
	// Logger is for the operator; nil discards.
	Logger *slog.Logger
}

// Answer is what an authorization server says to a redirect URL.
type Answer struct {
	Code, State, Issuer string
	// Error is the error code if there is no Code, such as access_denied.
	Error string
}

// AnswerOf reads the query of a request to the redirect URL.
func AnswerOf(query url.Values) Answer {
	return Answer{Code: query.Get("code"), State: query.Get("state"), Issuer: query.Get("iss"), Error: query.Get("error")}
}

// Client has the token for one server. Its methods may be called concurrently:
// Token and Challenged are those of [mcp.HTTPTarget].
type Client struct {
	cfg Config
	log *slog.Logger
	// discovery follows redirects as the SDK allows it, direct none: a request with
	// credentials goes where it is addressed to.
	discovery, direct *http.Client
	flows             *rate.Limiter

	mu     sync.Mutex
	grant  *grant  // nil while there is none
	flight *flight // nil while nobody gets another one
	// registrations are those made by ourselves, by issuer.
	registrations map[string]*registration
}

// flight is the making of another grant, which everybody waits for who needs one.
type flight struct {
	done             chan struct{}
	again, abandoned bool
	err              error
}

// A user is not asked more often than that, whatever the server does.
const (
	flowBurst = 3
	flowEvery = 20 * time.Second
)

// requestTimeout bounds each request to an authorization server.
const requestTimeout = 30 * time.Second

// New makes a client that has no token yet: the server's first refusal says where
// to get one.
func New(cfg Config) (*Client, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	c := &Client{
		cfg: cfg, log: cfg.Logger.With("server", cfg.Server), flows: rate.NewLimiter(rate.Every(flowEvery), flowBurst),
		registrations: make(map[string]*registration),
	}
	var base http.Client
	if cfg.HTTP != nil {
		base = *cfg.HTTP
	}
	base.Timeout, base.Jar, base.CheckRedirect = requestTimeout, nil, nil
	direct := base
	direct.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.discovery, c.direct = &base, &direct
	return c, nil
}

func (cfg *Config) complete() error {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	invalid := func(format string, args ...any) error {
		f := mcp.NewFault(mcp.KindInvalid, "oauth", format, args...)
		f.Server = cfg.Server
		return f
	}
	if u, err := url.Parse(cfg.URL); err != nil || u.Host == "" {
		return invalid("the URL that tokens are for must be an absolute one")
	}
	if r := cfg.Registered; r != nil {
		if err := r.validate(); err != nil {
			return invalid("%v", err)
		}
	}
	if cfg.Consent == nil {
		if cfg.Registered == nil || cfg.Registered.Secret == nil && cfg.Registered.Key == nil {
			return invalid("client credentials need a client that is registered, with a secret or a key")
		}
		return nil
	}
	if u, err := url.Parse(cfg.RedirectURL); err != nil || u.Scheme == "" {
		return invalid("a user's consent needs a redirect URL to come back to")
	}
	if u, err := url.Parse(cfg.MetadataURL); cfg.MetadataURL != "" && (err != nil || u.Scheme != "https" || u.Path == "" || u.Path == "/") {
		return invalid("the URL of a client ID metadata document must be an https URL with a path")
	}
	if cfg.Dynamic != nil {
		cfg.Dynamic = dynamic(*cfg.Dynamic, cfg.RedirectURL)
	}
	if cfg.Registered == nil && cfg.MetadataURL == "" && cfg.Dynamic == nil {
		return invalid("there must be a way to be known to authorization servers: a registered client, a metadata document or dynamic registration")
	}
	return nil
}

// Token is a token for the server, "" if there is none and the server has to say
// first where it comes from. One that has expired is renewed, which may take
// requestTimeout.
func (c *Client) Token(ctx context.Context) (string, error) {
	for {
		g := c.current()
		switch {
		case g == nil:
			return "", nil
		case g.token.Valid():
			return g.token.AccessToken, nil
		case g.token.RefreshToken == "" && c.cfg.Consent != nil:
			return g.token.AccessToken, nil // let the server say that it has expired
		}
		_, err := c.once(ctx, g, func(ctx context.Context) (bool, error) { return true, c.renew(ctx, g) })
		if err != nil {
			return "", err
		}
		if now := c.current(); now == g || now != nil && !now.token.Valid() {
			return now.token.AccessToken, nil // the server's clock may be another one
		}
	}
}

// Challenged gets a token that does better than the one that was refused, if
// there is a way. See [mcp.HTTPTarget].
func (c *Client) Challenged(ctx context.Context, challenge mcp.Challenge) (again bool, err error) {
	g := c.current()
	if g != nil && g.token.AccessToken != challenge.Token {
		return true, nil // it has been replaced since the request began
	}
	return c.once(ctx, g, func(ctx context.Context) (bool, error) { return c.authorize(ctx, g, challenge) })
}

func (c *Client) current() *grant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.grant
}

func (c *Client) set(g *grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.grant = g
}

// once runs get unless the grant is no more what the caller saw. What others ask
// for meanwhile has the same outcome: a user who said no is not asked again by
// each of them. Only if the first one gave up, another takes its place.
func (c *Client) once(ctx context.Context, seen *grant, get func(context.Context) (bool, error)) (again bool, err error) {
	for {
		c.mu.Lock()
		if c.grant != seen {
			c.mu.Unlock()
			return true, nil
		}
		f := c.flight
		if f == nil {
			f = &flight{done: make(chan struct{})}
			c.flight = f
			c.mu.Unlock()
			f.again, f.err = get(ctx)
			f.abandoned = f.err != nil && ctx.Err() != nil
			c.mu.Lock()
			c.flight = nil
			c.mu.Unlock()
			close(f.done)
			return f.again, f.err
		}
		c.mu.Unlock()
		select {
		case <-f.done:
			if !f.abandoned {
				return f.again, f.err
			}
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// fault is an error of kind auth that callers may see.
func (c *Client) fault(reason, format string, args ...any) *mcp.Fault {
	f := mcp.NewFault(mcp.KindAuth, reason, format, args...)
	f.Server = c.cfg.Server
	return f
}

// plain is what may be told of a library's error: without the URL, whose query
// may be a secret, and bounded.
func plain(err error) string {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	return mcp.Shorten(err.Error(), 200)
}
