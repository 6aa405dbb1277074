package oauth

import (
	"context"
	"crypto"
	"errors"
	"net/url"
	"slices"
	"time"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"toolhub/internal/mcp"
)

// Registered is a client that an authorization server knows already.
type Registered struct {
	ID string
	// Secret returns the client's secret. It is called whenever it is needed, and
	// nothing keeps it. Nil for a client without one.
	Secret func(context.Context) (string, error)
	// Key signs assertions in place of a secret (private_key_jwt, RFC 7523): an
	// *ecdsa.PrivateKey, *rsa.PrivateKey or ed25519.PrivateKey.
	Key crypto.Signer
	// Issuer is the authorization server that knows the client; the credentials go
	// to no other. "" is whichever the server names.
	Issuer string
}

func (r *Registered) validate() error {
	switch {
	case r.ID == "":
		return errors.New("a registered client has an id")
	case r.Secret != nil && r.Key != nil:
		return errors.New("a registered client has a secret or a key, not both")
	case r.Key != nil && signingMethod(r.Key) == nil:
		return errors.New("the key of a registered client is to be an ECDSA key on P-256, P-384 or P-521, an RSA or an Ed25519 key")
	}
	return nil
}

// registration is how the client is known to one authorization server.
type registration struct {
	id      string
	secret  func(context.Context) (string, error) // nil for none
	key     crypto.Signer                         // nil for none
	style   oauth2.AuthStyle
	expires time.Time // of the secret, zero for never
}

// register is the registration with an authorization server: the one there is, or
// a new one. A registration is never taken to another issuer.
func (c *Client) register(ctx context.Context, at *authority) (*registration, error) {
	if r := c.cfg.Registered; r != nil {
		reg := &registration{id: r.ID, secret: r.Secret, key: r.Key, style: oauth2.AuthStyleInParams}
		if r.Secret != nil {
			reg.style = secretStyle(at.TokenEndpointAuthMethodsSupported)
		}
		return reg, nil
	}
	if c.cfg.MetadataURL != "" && at.ClientIDMetadataDocumentSupported {
		return &registration{id: c.cfg.MetadataURL, style: oauth2.AuthStyleInParams}, nil
	}
	if c.cfg.Dynamic == nil || at.RegistrationEndpoint == "" {
		return nil, c.fault("registration", "the authorization server %q knows none of the configured ways to be known to it", at.Issuer)
	}
	if reg := c.registrations[at.Issuer]; reg != nil && (reg.expires.IsZero() || time.Now().Before(reg.expires)) {
		return reg, nil
	}
	reg, err := c.registerDynamically(ctx, at)
	if err == nil {
		c.registrations[at.Issuer] = reg
	}
	return reg, err
}

func (c *Client) registerDynamically(ctx context.Context, at *authority) (*registration, error) {
	asked := *c.cfg.Dynamic
	if asked.TokenEndpointAuthMethod == "" {
		for _, method := range []string{methodPost, methodBasic, methodNone} {
			if slices.Contains(at.TokenEndpointAuthMethodsSupported, method) {
				asked.TokenEndpointAuthMethod = method
				break
			}
		}
	}
	got, err := oauthex.RegisterClient(ctx, at.RegistrationEndpoint, &asked, c.direct)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		why := "it did not answer as expected" // the error may have the whole answer
		if e, ok := errors.AsType[*oauthex.ClientRegistrationError](err); ok {
			why = mcp.Shorten(e.ErrorCode+" "+e.ErrorDescription, 200)
		} else if e, ok := errors.AsType[*url.Error](err); ok {
			why = plain(e)
		}
		return nil, c.fault("registration", "the authorization server %q does not register the client: %s", at.Issuer, why)
	}
	reg := &registration{id: got.ClientID, style: oauth2.AuthStyleInParams, expires: got.ClientSecretExpiresAt}
	if secret := got.ClientSecret; secret != "" && got.TokenEndpointAuthMethod != methodNone {
		reg.secret = func(context.Context) (string, error) { return secret, nil }
		if got.TokenEndpointAuthMethod != methodPost { // by RFC 7591 it is Basic where nothing else is said
			reg.style = oauth2.AuthStyleInHeader
		}
	}
	return reg, nil
}

// forget drops a registration that its authorization server does not know any more.
func (c *Client) forget(issuer string) { delete(c.registrations, issuer) }

// Methods of authentication at a token endpoint (RFC 7591).
const (
	methodBasic = "client_secret_basic"
	methodPost  = "client_secret_post"
	methodNone  = "none"
)

// secretStyle is how a secret is shown to a server that takes it these ways: as a
// parameter where that is possible, which OAuth 2.1 prefers and which servers that
// list both get right; in the header where nothing is said (RFC 8414).
func secretStyle(supported []string) oauth2.AuthStyle {
	if slices.Contains(supported, methodPost) {
		return oauth2.AuthStyleInParams
	}
	return oauth2.AuthStyleInHeader
}

// dynamic completes what a client registers as.
func dynamic(m oauthex.ClientRegistrationMetadata, redirectURL string) *oauthex.ClientRegistrationMetadata {
	if len(m.RedirectURIs) == 0 {
		m.RedirectURIs = []string{redirectURL}
	}
	if m.ClientName == "" {
		m.ClientName = "toolhub"
	}
	if m.GrantTypes == nil {
		m.GrantTypes = []string{"authorization_code", "refresh_token"}
	}
	if m.ResponseTypes == nil {
		m.ResponseTypes = []string{"code"}
	}
	if m.ApplicationType == "" { // OpenID servers refuse loopback redirects of web applications
		m.ApplicationType = "web"
		u, err := url.Parse(redirectURL)
		if err == nil && (u.Scheme != "https" && u.Scheme != "http" || mcp.IsLoopback(u.Hostname())) {
			m.ApplicationType = "native"
		}
	}
	return &m
}
