package oauth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"toolhub/internal/mcp"
)

// grant is a token and what it takes to renew it. It does not change.
type grant struct {
	token        *oauth2.Token
	issuer       string
	endpoint     string // where tokens come from
	resource     string
	registration *registration
	// asked are the scopes that were asked for, granted those that there are.
	asked, granted []string
	refreshed      bool // it came from a refresh token
}

// renew replaces an expired or refused grant without asking anybody, or drops it
// if that cannot be. Any other failure leaves it: a lost answer is no refusal.
func (c *Client) renew(ctx context.Context, g *grant) error {
	next := *g
	params := url.Values{"grant_type": {"client_credentials"}}
	if g.token.RefreshToken != "" {
		next.refreshed = true
		params = url.Values{"grant_type": {"refresh_token"}, "refresh_token": {g.token.RefreshToken}}
	} else if len(g.asked) > 0 {
		params.Set("scope", strings.Join(g.asked, " "))
	}
	err := c.fetch(ctx, &next, params)
	if f, ok := errors.AsType[*mcp.Fault](err); ok && f.Reason == reasonRefused {
		c.log.Info("the authorization server does not renew the token", "reason", f.Message)
		c.set(nil)
		return nil
	}
	if err != nil {
		return err
	}
	c.set(&next)
	return nil
}

// reasonRefused: the authorization server gives no token for what it was shown.
const reasonRefused = "refused"

// fetch makes a request to the token endpoint and completes g with the answer.
// clientcredentials is x/oauth2's way to make such a request with parameters of
// one's own; the type of grant is in params.
func (c *Client) fetch(ctx context.Context, g *grant, params url.Values) error {
	reg := g.registration
	request := clientcredentials.Config{ClientID: reg.id, TokenURL: g.endpoint, EndpointParams: params, AuthStyle: reg.style}
	params.Set("resource", g.resource)
	switch {
	case reg.secret != nil:
		secret, err := reg.secret(ctx)
		if err != nil {
			return err
		}
		request.ClientSecret = secret
	case reg.key != nil:
		assertion, err := assert(reg.id, g.issuer, reg.key)
		if err != nil {
			return c.fault("key", "the client's key cannot sign: %s", plain(err))
		}
		params.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
		params.Set("client_assertion", assertion)
	}
	// A caller who gives up now does not take the answer with it: the refresh token
	// or code that was shown is worth nothing any more. requestTimeout bounds it.
	ctx = context.WithoutCancel(ctx)
	token, err := request.Token(context.WithValue(ctx, oauth2.HTTPClient, c.direct))
	if err != nil {
		return c.fetchError(g, err)
	}
	if !strings.EqualFold(token.Type(), "bearer") {
		return c.fault("token_type", "the authorization server gives a token of the type %q, only Bearer can be used", mcp.Shorten(token.Type(), 40))
	}
	g.token, g.granted = token, g.asked
	if scope, ok := token.Extra("scope").(string); ok && scope != "" {
		g.granted = strings.Fields(scope)
	}
	return nil
}

// fetchError is what may be told of a request that brought no token; the library's
// error has the whole answer.
func (c *Client) fetchError(g *grant, err error) error {
	e, ok := errors.AsType[*oauth2.RetrieveError](err)
	if !ok {
		f := c.fault("token_request", "the authorization server %q did not answer the request for a token", g.issuer)
		if u, ok := errors.AsType[*url.Error](err); ok {
			f.Message += ": " + plain(u)
			f.Retryable = true
		}
		return f
	}
	f := c.fault("token_request", "the authorization server %q gives no token (status %d)", g.issuer, e.Response.StatusCode)
	if e.ErrorCode != "" {
		f.Message += ": " + mcp.Shorten(e.ErrorCode+" "+e.ErrorDescription, 200)
	}
	switch status := e.Response.StatusCode; {
	case status >= 500, status == http.StatusTooManyRequests, status == http.StatusRequestTimeout:
		f.Retryable = true
	case status >= 400: // whatever it calls it: not every server says invalid_grant
		f.Reason = reasonRefused
		if e.ErrorCode == "invalid_client" || e.ErrorCode == "unauthorized_client" {
			c.forget(g.issuer)
		}
	}
	return f
}

// assert is a client's assertion of who it is (RFC 7523), for one issuer and once.
func assert(id, issuer string, key crypto.Signer) (string, error) {
	now := time.Now()
	return jwt.NewWithClaims(signingMethod(key), jwt.RegisteredClaims{
		Issuer: id, Subject: id, Audience: jwt.ClaimStrings{issuer}, ID: rand.Text(),
		IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(time.Minute)),
	}).SignedString(key)
}

// signingMethod is how key signs, nil if it cannot.
func signingMethod(key crypto.Signer) jwt.SigningMethod {
	switch key := key.(type) {
	case *ecdsa.PrivateKey:
		switch key.Curve.Params().BitSize {
		case 256:
			return jwt.SigningMethodES256
		case 384:
			return jwt.SigningMethodES384
		case 521:
			return jwt.SigningMethodES512
		}
	case *rsa.PrivateKey:
		return jwt.SigningMethodRS256
	case ed25519.PrivateKey:
		return jwt.SigningMethodEdDSA
	}
	return nil
}
