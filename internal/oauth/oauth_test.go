package oauth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/golang-jwt/jwt/v5"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"toolhub/internal/mcp"
)

// TestFlow: the first refusal leads to a token, with which all else is done.
func TestFlow(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		method string
		change func(*Config, *authorityServer)
		client string // prefix of the client's id
	}{
		"dynamic, public":         {method: methodNone, client: "client"},
		"dynamic, secret":         {method: methodPost, client: "client"},
		"dynamic, secret, header": {method: methodBasic, client: "client"},
		"metadata document": {method: methodNone, client: "https://hub.example/client.json", change: func(c *Config, a *authorityServer) {
			c.MetadataURL, a.metadata = "https://hub.example/client.json", map[string]any{"client_id_metadata_document_supported": true}
		}},
		"metadata document, not supported": {method: methodNone, client: "client", change: func(c *Config, _ *authorityServer) {
			c.MetadataURL = "https://hub.example/client.json"
		}},
		"registered": {method: methodBasic, client: "byhand", change: func(c *Config, a *authorityServer) {
			a.clients["byhand"] = "s3cret+/&"
			c.MetadataURL, a.metadata = "https://hub.example/client.json", map[string]any{"client_id_metadata_document_supported": true}
			c.Registered = &Registered{ID: "byhand", Issuer: a.URL, Secret: func(context.Context) (string, error) { return "s3cret+/&", nil }}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAuthority(t)
			p := newProtected(t, a)
			a.method, p.scope = test.method, "read write"
			c := newClient(t, p, func(cfg *Config) {
				if test.change != nil {
					test.change(cfg, a)
				}
			})
			conn := connect(t, p, c)
			for range 3 {
				wantReason(t, "call", call(t.Context(), conn), "")
			}
			wantCounts(t, a, 1, 1, 0, 0)
			if got := a.consents[0]; got.Get("scope") != "read write" || got.Get("resource") != p.URL+"/mcp" || !strings.HasPrefix(got.Get("client_id"), test.client) || got.Get("redirect_uri") != redirectURL {
				t.Errorf("asked for %v", got)
			}
		})
	}
}

// TestOneConsentForAll: calls that are refused at once ask the user once, and have
// the same answer.
func TestOneConsentForAll(t *testing.T) {
	t.Parallel()
	for name, denied := range map[string]bool{"given": false, "denied": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n = 20
			a := newAuthority(t)
			p := newProtected(t, a)
			var asked atomic.Int32
			var refused sync.WaitGroup
			refused.Add(n)
			c := newClient(t, p, func(cfg *Config) {
				cfg.Consent = func(ctx context.Context, at string) (Answer, error) {
					asked.Add(1)
					refused.Wait() // all of them are here
					if denied {
						u, _ := url.Parse(at)
						return Answer{Error: "access_denied", State: u.Query().Get("state"), Issuer: a.URL}, nil
					}
					return consents(ctx, at)
				}
			})
			conn, err := mcp.ConnectHTTP(t.Context(), mcp.HTTPTarget{URL: p.URL + "/mcp", Token: c.Token, Challenged: func(ctx context.Context, ch mcp.Challenge) (bool, error) {
				refused.Done()
				return c.Challenged(ctx, ch)
			}}, mcp.ConnectOptions{Server: "s"})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			var calls sync.WaitGroup
			for range n {
				calls.Go(func() {
					want := ""
					if denied {
						want = "consent"
					}
					wantReason(t, "call", call(t.Context(), conn), want)
				})
			}
			calls.Wait()
			if got := asked.Load(); got != 1 {
				t.Errorf("the user was asked %d times", got)
			}
		})
	}
}

// TestGivenUp: when the call gives up for which the user was asked, the next one
// asks again; it does not share the fate of the first.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	p := newProtected(t, a)
	asked := make(chan struct{}, 2)
	var first atomic.Bool
	c := newClient(t, p, func(cfg *Config) {
		cfg.Consent = func(ctx context.Context, at string) (Answer, error) {
			asked <- struct{}{}
			if first.CompareAndSwap(false, true) {
				<-ctx.Done()
				return Answer{}, ctx.Err()
			}
			return consents(ctx, at)
		}
	})
	conn := connect(t, p, c)
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	calls.Go(func() {
		if err := call(ctx, conn); !errors.Is(err, context.Canceled) {
			t.Errorf("the first call: %v", err)
		}
	})
	<-asked
	calls.Go(func() { wantReason(t, "the second call", call(t.Context(), conn), "") })
	cancel()
	calls.Wait()
}

// TestRefresh: a token that has expired is renewed once for all, with the refresh
// token of the last time.
func TestRefresh(t *testing.T) {
	t.Parallel()
	for name, rotate := range map[string]bool{"rotated": true, "kept": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAuthority(t)
			p := newProtected(t, a)
			a.rotate, a.lifetime = rotate, 5 // which counts as expired at once
			c := newClient(t, p, nil)
			conn := connect(t, p, c)
			wantReason(t, "first", call(t.Context(), conn), "")
			wantCounts(t, a, 1, 1, 1, 0) // the token of the flow, and another one to repeat the call with
			a.do(func() { a.lifetime = 3600 })
			var calls sync.WaitGroup
			for range 20 {
				calls.Go(func() { wantReason(t, "call", call(t.Context(), conn), "") })
			}
			calls.Wait()
			wantCounts(t, a, 1, 1, 2, 0)
		})
	}
}

// TestRefreshOutlivesCaller: what a caller gives up in the middle of a refresh is its
// call. The refresh token is used up, so what came for it must be kept.
func TestRefreshOutlivesCaller(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	p := newProtected(t, a)
	a.lifetime = 5
	c := newClient(t, p, nil)
	conn := connect(t, p, c)
	wantReason(t, "first", call(t.Context(), conn), "")
	ctx, cancel := context.WithCancel(t.Context())
	a.do(func() { a.lifetime, a.served = 3600, cancel })
	if err := call(ctx, conn); !errors.Is(err, context.Canceled) {
		t.Errorf("the call that was given up: %v", err)
	}
	a.do(func() { a.served = nil })
	wantReason(t, "second", call(t.Context(), conn), "")
	if n := len(a.consents); n != 1 {
		t.Errorf("%d consents: the renewed token was lost", n)
	}
}

// TestRefreshFails: a refresh token that is worth nothing leads to consent; an
// authorization server that is out of order does not.
func TestRefreshFails(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	p := newProtected(t, a)
	a.lifetime = 5
	c := newClient(t, p, nil)
	conn := connect(t, p, c)
	wantReason(t, "first", call(t.Context(), conn), "")
	a.do(func() {
		a.answer = func(url.Values) (int, string) { return 503, `{"secret":"sesame"}` }
	})
	err := call(t.Context(), conn)
	wantReason(t, "out of order", err, "token_request")
	if f, _ := errors.AsType[*mcp.Fault](err); f == nil || !f.Retryable || strings.Contains(f.Error(), "sesame") {
		t.Errorf("fault %v", err)
	}
	a.do(func() { a.answer, a.lifetime = nil, 3600 })
	wantReason(t, "in order again", call(t.Context(), conn), "")
	if n := len(a.consents); n != 1 {
		t.Errorf("%d consents, the refresh token was good all the time", n)
	}
	a.do(func() { clear(a.refreshes); a.lifetime = 5 })
	a.forgetTokens()
	a.do(func() { a.lifetime = 3600 })
	wantReason(t, "revoked", call(t.Context(), conn), "")
	if n := len(a.consents); n != 2 {
		t.Errorf("%d consents, want another one", n)
	}
}

// TestRefusedToken: a token that is refused although it should be good is renewed
// first, then asked for anew, and then the server is not believed any more.
func TestRefusedToken(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	p := newProtected(t, a)
	c := newClient(t, p, nil)
	conn := connect(t, p, c)
	wantReason(t, "first", call(t.Context(), conn), "")
	a.forgetTokens()
	wantReason(t, "renewed", call(t.Context(), conn), "")
	wantCounts(t, a, 1, 1, 1, 0)
	p.do(func() { p.refuse = true })
	wantReason(t, "refused", call(t.Context(), conn), "token_refused")
	wantCounts(t, a, 2, 2, 2, 0)
	// A server that goes on like that does not make the user's day.
	for range 30 {
		if err := call(t.Context(), conn); err == nil {
			t.Error("the server refuses everything, and yet a call succeeds")
		}
	}
	if n := len(a.consents); n > flowBurst {
		t.Errorf("the user was asked %d times", n)
	}
}

// TestStepUp: what a token may not do is asked for beside what it may, once.
func TestStepUp(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	p := newProtected(t, a)
	c := newClient(t, p, nil)
	conn := connect(t, p, c)
	wantReason(t, "first", call(t.Context(), conn), "")
	p.do(func() { p.scope = "write" })
	wantReason(t, "step up", call(t.Context(), conn), "")
	wantCounts(t, a, 2, 2, 0, 0)
	if got := a.consents[1].Get("scope"); got != "read write" {
		t.Errorf("asked for %q, want the old scope and the new one", got)
	}
	if first, second := a.consents[0].Get("client_id"), a.consents[1].Get("client_id"); first != second {
		t.Errorf("registered twice: %s, %s", first, second)
	}
	for range 3 { // the same scope again, which the server does not see in the token
		a.do(func() {
			for token := range a.tokens {
				a.tokens[token] = []string{"read"}
			}
		})
		wantReason(t, "no use", call(t.Context(), conn), "forbidden")
	}
	wantCounts(t, a, 2, 2, 0, 0)
}

// TestForbidden: a 403 that is not about scopes is one, whatever the token.
func TestForbidden(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	c := newClient(t, newProtected(t, a), nil)
	again, err := c.Challenged(t.Context(), mcp.Challenge{Status: 403, Values: []string{`Bearer error="access_denied"`}})
	if again || err != nil {
		t.Errorf("again %v, error %v", again, err)
	}
	wantCounts(t, a, 0, 0, 0, 0)
}

// TestAnswers: an answer to the request for consent that is not the issuer's own
// leads nowhere, above all to no request for a token.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		iss        string
		advertised any
		redirect   url.Values
		want       string
	}{
		"advertised":            {advertised: true},
		"not advertised":        {iss: "-"},
		"right, not advertised": {},
		"missing":               {iss: "-", advertised: true, want: "issuer"},
		"wrong":                 {iss: "https://evil.example", advertised: true, want: "issuer"},
		"wrong, not advertised": {iss: "https://evil.example", want: "issuer"},
		"nearly":                {iss: "/", advertised: true, want: "issuer"},
		"state":                 {advertised: true, redirect: url.Values{"state": {"x"}}, want: "state"},
		"denied":                {advertised: true, redirect: url.Values{"error": {"access_denied"}, "code": {""}}, want: "consent"},
		"no code":               {advertised: true, redirect: url.Values{"code": {""}}, want: "consent"},
		"error of another":      {iss: "https://evil.example", redirect: url.Values{"error": {"access_denied"}}, want: "issuer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAuthority(t)
			p := newProtected(t, a)
			a.iss, a.redirect, a.metadata = test.iss, test.redirect, map[string]any{"authorization_response_iss_parameter_supported": test.advertised}
			if test.iss == "/" {
				a.iss = a.URL + "/"
			}
			wantReason(t, "call", call(t.Context(), connect(t, p, newClient(t, p, nil))), test.want)
			if test.want != "" {
				wantCounts(t, a, 1, 0, 0, 0)
			}
		})
	}
}

// TestIssuers: what one authorization server gave or knows goes to no other. (That
// no foreign client is seen there is checked by the servers.)
func TestIssuers(t *testing.T) {
	t.Parallel()
	t.Run("moved", func(t *testing.T) {
		t.Parallel()
		old, other := newAuthority(t), newAuthority(t)
		p := newProtected(t, old)
		c := newClient(t, p, nil)
		conn := connect(t, p, c)
		wantReason(t, "first", call(t.Context(), conn), "")
		p.do(func() { p.authority = other })
		wantReason(t, "moved", call(t.Context(), conn), "")
		wantCounts(t, old, 1, 1, 0, 0) // its refresh token, too, stays where it is
		wantCounts(t, other, 1, 1, 0, 0)
	})
	t.Run("registered elsewhere", func(t *testing.T) {
		t.Parallel()
		a := newAuthority(t)
		p := newProtected(t, a)
		c := newClient(t, p, func(cfg *Config) { cfg.Registered = &Registered{ID: "x", Issuer: "https://issuer.example"} })
		wantReason(t, "call", call(t.Context(), connect(t, p, c)), "issuer")
		wantCounts(t, a, 0, 0, 0, 0)
	})
	t.Run("unknown again", func(t *testing.T) {
		t.Parallel()
		a := newAuthority(t)
		p := newProtected(t, a)
		c := newClient(t, p, nil)
		conn := connect(t, p, c)
		wantReason(t, "first", call(t.Context(), conn), "")
		a.forgetTokens()
		a.do(func() {
			a.answer = func(url.Values) (int, string) { return 401, `{"error":"invalid_client"}` }
		})
		wantReason(t, "the client is not known any more", call(t.Context(), conn), "refused")
		a.do(func() { a.answer = nil })
		wantReason(t, "registered anew", call(t.Context(), conn), "")
		if first, last := a.consents[0].Get("client_id"), a.consents[len(a.consents)-1].Get("client_id"); first == last {
			t.Errorf("the client is still %s", first)
		}
	})
}

// TestRedirects: a request with credentials follows none.
func TestRedirects(t *testing.T) {
	t.Parallel()
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the thief got %s %s", r.Method, r.URL)
	}))
	defer thief.Close()
	a := newAuthority(t)
	a.answer = func(url.Values) (int, string) { return 307, thief.URL }
	p := newProtected(t, a)
	wantReason(t, "call", call(t.Context(), connect(t, p, newClient(t, p, nil))), "token_request")
}

// TestTokenAnswers: what a token endpoint can say instead of giving a token, none
// of which is repeated but what is meant to be.
func TestTokenAnswers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status     int
		body, want string
	}{
		"refused":     {400, `{"error":"invalid_grant","error_description":"used","hint":"sesame"}`, "refused"},
		"no JSON":     {500, `sesame`, "token_request"},
		"no token":    {200, `{"access_token":"","x":"sesame"}`, "token_request"},
		"other type":  {200, `{"access_token":"sesame","token_type":"DPoP"}`, "token_type"},
		"bad content": {200, `{"access_token":"sesame`, "token_request"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAuthority(t)
			a.answer = func(url.Values) (int, string) { return test.status, test.body }
			p := newProtected(t, a)
			err := call(t.Context(), connect(t, p, newClient(t, p, nil)))
			wantReason(t, "call", err, test.want)
			if err != nil && strings.Contains(err.Error(), "sesame") {
				t.Errorf("the error repeats the answer: %v", err)
			}
		})
	}
}

// TestDiscovery: where metadata may be, and what must not be taken for it.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*protected, *authorityServer)
		want   string
	}{
		"named":       {change: func(p *protected, _ *authorityServer) { p.at = "/elsewhere" }},
		"at the path": {change: func(p *protected, _ *authorityServer) { p.challenge = false }},
		"at the root": {change: func(p *protected, _ *authorityServer) {
			p.challenge, p.at, p.resource = false, "/.well-known/oauth-protected-resource", p.URL
		}},
		"of another":        {change: func(p *protected, _ *authorityServer) { p.resource = "https://evil.example/mcp" }, want: "discovery"},
		"nowhere":           {change: func(p *protected, _ *authorityServer) { p.challenge, p.at = false, "/nowhere" }, want: "registration"},
		"issuer of another": {change: func(_ *protected, a *authorityServer) { a.metadata = map[string]any{"issuer": "https://evil.example"} }, want: "discovery"},
		"no PKCE": {change: func(_ *protected, a *authorityServer) {
			a.metadata = map[string]any{"code_challenge_methods_supported": nil}
		}, want: "discovery"},
		"plain PKCE": {change: func(_ *protected, a *authorityServer) {
			a.metadata = map[string]any{"code_challenge_methods_supported": []string{"plain"}}
		}, want: "discovery"},
		"plain http": {change: func(_ *protected, a *authorityServer) {
			a.metadata = map[string]any{"token_endpoint": "http://example.com/token"}
		}, want: "discovery"},
		"script": {change: func(_ *protected, a *authorityServer) {
			a.metadata = map[string]any{"authorization_endpoint": "javascript:alert(1)"}
		}, want: "discovery"},
		"registers nobody": {change: func(_ *protected, a *authorityServer) { a.metadata = map[string]any{"registration_endpoint": nil} }, want: "registration"},
		"registers not here": {change: func(_ *protected, a *authorityServer) {
			a.metadata = map[string]any{"registration_endpoint": a.URL + "/nowhere"}
		}, want: "registration"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAuthority(t)
			p := newProtected(t, a)
			test.change(p, a)
			wantReason(t, "call", call(t.Context(), connect(t, p, newClient(t, p, nil))), test.want)
			if test.want != "" {
				wantCounts(t, a, 0, 0, 0, 0)
			}
		})
	}
}

// TestOfflineAccess: refresh tokens are asked for where that takes a scope.
func TestOfflineAccess(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.metadata = map[string]any{"scopes_supported": []string{"read", "offline_access"}}
	p := newProtected(t, a)
	wantReason(t, "call", call(t.Context(), connect(t, p, newClient(t, p, nil))), "")
	if got := a.consents[0].Get("scope"); got != "read offline_access" {
		t.Errorf("asked for %q", got)
	}
}

// TestClientCredentials: without a user the client's own credentials do, as a
// secret or as an assertion, and again when the token has expired.
func TestClientCredentials(t *testing.T) {
	t.Parallel()
	secret := func(context.Context) (string, error) { return "s3cret", nil }
	es, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	rs, _ := rsa.GenerateKey(rand.Reader, 2048)
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	for name, test := range map[string]struct {
		method string
		r      Registered
		key    crypto.PublicKey
	}{
		"header":     {methodBasic, Registered{ID: "me", Secret: secret}, nil},
		"parameters": {methodPost, Registered{ID: "me", Secret: secret}, nil},
		"ES256":      {"private_key_jwt", Registered{ID: "me", Key: es}, &es.PublicKey},
		"RS256":      {"private_key_jwt", Registered{ID: "me", Key: rs}, &rs.PublicKey},
		"EdDSA":      {"private_key_jwt", Registered{ID: "me", Key: ed}, ed.Public()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAuthority(t)
			a.method, a.clients["me"], a.lifetime = test.method, "s3cret", 5
			p := newProtected(t, a)
			c := newClient(t, p, func(cfg *Config) { cfg.Registered, cfg.Consent, cfg.Dynamic = &test.r, nil, nil })
			conn := connect(t, p, c)
			wantReason(t, "first", call(t.Context(), conn), "")
			a.do(func() { a.lifetime = 3600 })
			for range 3 {
				wantReason(t, "call", call(t.Context(), conn), "")
			}
			wantCounts(t, a, 0, 0, 0, 3)
			if test.key == nil {
				return
			}
			seen := map[string]bool{}
			for _, r := range a.requests {
				var claims jwt.RegisteredClaims
				_, err := jwt.ParseWithClaims(r.Get("client_assertion"), &claims, func(*jwt.Token) (any, error) { return test.key, nil },
					jwt.WithAudience(a.URL), jwt.WithIssuer("me"), jwt.WithSubject("me"), jwt.WithExpirationRequired(), jwt.WithIssuedAt())
				if err != nil || seen[claims.ID] || r.Get("client_id") != "me" || r.Get("client_assertion_type") != "urn:ietf:params:oauth:client-assertion-type:jwt-bearer" {
					t.Errorf("%v: %v", r, err)
				}
				seen[claims.ID] = true
			}
		})
	}
}

// TestSecretFails: why there is no secret is for whoever keeps it to say.
func TestSecretFails(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	p := newProtected(t, a)
	c := newClient(t, p, func(cfg *Config) {
		cfg.Consent = nil
		cfg.Registered = &Registered{ID: "me", Secret: func(context.Context) (string, error) { return "", errors.New("sesame is gone") }}
	})
	err := call(t.Context(), connect(t, p, c))
	wantReason(t, "call", err, "no_token")
	if err != nil && strings.Contains(err.Error(), "sesame") {
		t.Errorf("the error tells too much: %v", err)
	}
}

// TestConfig: what cannot work is refused before anything is sent.
func TestConfig(t *testing.T) {
	t.Parallel()
	secret := func(context.Context) (string, error) { return "s", nil }
	p224, _ := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	good := Config{URL: "https://h/mcp", Dynamic: &oauthex.ClientRegistrationMetadata{}, RedirectURL: redirectURL, Consent: consents}
	for name, change := range map[string]func(*Config){
		"URL":                   func(c *Config) { c.URL = "/mcp" },
		"no way":                func(c *Config) { c.Dynamic = nil },
		"redirect":              func(c *Config) { c.RedirectURL = "" },
		"document":              func(c *Config) { c.MetadataURL = "http://h/x" },
		"document at the root":  func(c *Config) { c.MetadataURL = "https://h/" },
		"no user, no client":    func(c *Config) { c.Consent = nil },
		"no user, public":       func(c *Config) { c.Consent, c.Registered = nil, &Registered{ID: "x"} },
		"no id":                 func(c *Config) { c.Registered = &Registered{Secret: secret} },
		"secret and key":        func(c *Config) { c.Registered = &Registered{ID: "x", Secret: secret, Key: p224} },
		"a key of another kind": func(c *Config) { c.Registered = &Registered{ID: "x", Key: p224} },
	} {
		cfg := good
		change(&cfg)
		_, err := New(cfg)
		if f, ok := errors.AsType[*mcp.Fault](err); !ok || f.Kind != mcp.KindInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
}
