package oauth

import (
	"context"
	"net/url"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// authority is who may give out tokens for the resource.
type authority struct {
	*oauthex.AuthServerMeta
	// resource is what the tokens are for (RFC 8707).
	resource string
	// scopes are those that the resource knows.
	scopes []string
}

// wanted is what a refusal asks for.
type wanted struct {
	metadataURL string
	scopes      []string
	// insufficient says that the token is good and its scopes are too few.
	insufficient bool
}

// read reads the challenges of a refusal. Nonsense is as good as none.
func (c *Client) read(values []string) wanted {
	challenges, err := oauthex.ParseWWWAuthenticate(values)
	if err != nil {
		c.log.Warn("the server's WWW-Authenticate cannot be read", "error", plain(err))
	}
	var w wanted
	for _, challenge := range challenges {
		if w.metadataURL == "" {
			w.metadataURL = challenge.Params["resource_metadata"]
		}
		if challenge.Scheme != "bearer" {
			continue
		}
		if len(w.scopes) == 0 {
			w.scopes = strings.Fields(challenge.Params["scope"])
		}
		w.insufficient = w.insufficient || challenge.Params["error"] == "insufficient_scope"
	}
	return w
}

// discover finds the authorization server (basic/authorization, discovery):
// the resource's metadata where the server says it is, at the endpoint's path, at
// the root; then the authorization server's own.
func (c *Client) discover(ctx context.Context, w wanted) (*authority, error) {
	resource, err := c.resourceMetadata(ctx, w.metadataURL)
	if err != nil {
		return nil, err
	}
	issuers := resource.AuthorizationServers
	if len(issuers) == 0 {
		return nil, c.fault("discovery", "the server's resource metadata names no authorization server")
	}
	issuer := issuers[0]
	if r := c.cfg.Registered; r != nil && r.Issuer != "" {
		if !slices.Contains(issuers, r.Issuer) {
			return nil, c.fault("issuer", "the client is registered with %q, the server's authorization server is %q: its credentials are not taken there", r.Issuer, issuer)
		}
		issuer = r.Issuer
	}
	meta, err := auth.GetAuthServerMetadata(ctx, issuer, c.discovery)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, c.fault("discovery", "the metadata of the authorization server cannot be used: %s", plain(err))
	case meta == nil:
		return c.defaults(issuer, resource)
	case !slices.Contains(meta.CodeChallengeMethodsSupported, "S256"):
		return nil, c.fault("discovery", "the authorization server does not support PKCE with S256, which the protocol demands")
	}
	return &authority{AuthServerMeta: meta, resource: resource.Resource, scopes: resource.ScopesSupported}, nil
}

// resourceMetadata reads the metadata of the resource. A server that says where
// it is must have it; one that says nothing and has none may be of 2025-03-26,
// where the authorization server is at the root of the MCP server.
func (c *Client) resourceMetadata(ctx context.Context, named string) (*oauthex.ProtectedResourceMetadata, error) {
	endpoint, err := url.Parse(c.cfg.URL)
	if err != nil {
		return nil, c.fault("discovery", "the server's URL cannot be read")
	}
	root := url.URL{Scheme: endpoint.Scheme, Host: endpoint.Host}
	const wellKnown = "/.well-known/oauth-protected-resource"
	atPath := *endpoint
	atPath.Path = wellKnown + "/" + strings.TrimLeft(endpoint.Path, "/")
	var failure error
	for _, at := range []struct{ url, resource string }{
		{named, c.cfg.URL},
		{atPath.String(), c.cfg.URL},
		{root.String() + wellKnown, root.String()},
	} {
		if at.url == "" {
			continue
		}
		found, err := oauthex.GetProtectedResourceMetadata(ctx, at.url, at.resource, c.discovery)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err == nil && found != nil:
			return found, nil
		case failure == nil:
			failure = err
		}
	}
	if named != "" && failure != nil {
		return nil, c.fault("discovery", "the resource metadata that the server refers to cannot be used: %s", plain(failure))
	}
	return &oauthex.ProtectedResourceMetadata{Resource: c.cfg.URL, AuthorizationServers: []string{root.String()}}, nil
}

// defaults are the endpoints of an authorization server without metadata, which
// 2025-03-26 allows at the MCP server itself only.
func (c *Client) defaults(issuer string, resource *oauthex.ProtectedResourceMetadata) (*authority, error) {
	base, err := url.Parse(issuer)
	if endpoint, _ := url.Parse(c.cfg.URL); err != nil || base.Host != endpoint.Host || base.Scheme != endpoint.Scheme {
		return nil, c.fault("discovery", "the authorization server %q has no metadata", issuer)
	}
	at := func(name string) string { return base.JoinPath(name).String() }
	return &authority{
		AuthServerMeta: &oauthex.AuthServerMeta{
			Issuer: issuer, AuthorizationEndpoint: at("authorize"), TokenEndpoint: at("token"), RegistrationEndpoint: at("register"),
		},
		resource: resource.Resource,
	}, nil
}
