package oauth

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/oauth2"

	"toolhub/internal/mcp"
)

// authorize does what a refusal of g asks for, g being nil where there was no token.
func (c *Client) authorize(ctx context.Context, g *grant, challenge mcp.Challenge) (again bool, err error) {
	w := c.read(challenge.Values)
	stepUp := challenge.Status == http.StatusForbidden
	if stepUp && !w.insufficient {
		return false, nil // it is forbidden, whatever the token
	}
	at, err := c.discover(ctx, w)
	if err != nil {
		return false, err
	}
	scopes := w.scopes
	if len(scopes) == 0 {
		scopes = at.scopes
	}
	if g != nil && g.issuer != at.Issuer {
		c.log.Info("the server has another authorization server now", "issuer", at.Issuer)
		g = nil // what one gave is nothing to the other
	}
	if g != nil {
		switch {
		case stepUp && contains(g.asked, scopes):
			return false, nil // that was asked for already, and refused or of no use
		case !stepUp && challenge.Attempt == 0 && g.token.RefreshToken != "":
			err := c.renew(ctx, g)
			if err != nil || c.current() != nil {
				return err == nil, err
			}
		case !stepUp && challenge.Attempt > 0 && !g.refreshed:
			return false, c.fault("token_refused", "the server refuses the token that its authorization server has just given")
		}
		scopes = union(g.granted, scopes)
	}
	if !c.flows.Allow() {
		c.log.Warn("the server asks for consent again and again; this time nobody is asked")
		return false, nil
	}
	reg, err := c.register(ctx, at)
	if err != nil {
		return false, err
	}
	params := url.Values{"grant_type": {"client_credentials"}}
	if c.cfg.Consent != nil {
		if slices.Contains(at.ScopesSupported, offlineAccess) {
			scopes = union(scopes, []string{offlineAccess}) // else it gives no refresh token (SEP-2207)
		}
		if params, err = c.consent(ctx, at, reg, scopes); err != nil {
			return false, err
		}
	} else if len(scopes) > 0 {
		params.Set("scope", strings.Join(scopes, " "))
	}
	next := &grant{issuer: at.Issuer, endpoint: at.TokenEndpoint, resource: at.resource, registration: reg, asked: scopes}
	if err := c.fetch(ctx, next, params); err != nil {
		return false, err
	}
	c.set(next)
	return true, nil
}

const offlineAccess = "offline_access"

// consent asks the user, and returns the parameters that turn the consent into a
// token.
func (c *Client) consent(ctx context.Context, at *authority, reg *registration, scopes []string) (url.Values, error) {
	verifier, state := oauth2.GenerateVerifier(), rand.Text()
	request := oauth2.Config{
		ClientID: reg.id, RedirectURL: c.cfg.RedirectURL, Scopes: scopes, Endpoint: oauth2.Endpoint{AuthURL: at.AuthorizationEndpoint},
	}
	answer, err := c.cfg.Consent(ctx, request.AuthCodeURL(state, oauth2.S256ChallengeOption(verifier), oauth2.SetAuthURLParam("resource", at.resource)))
	if err != nil {
		return nil, err
	}
	// Before anything else in the answer is believed (RFC 9207): a code of another
	// issuer must not be shown to this one, and an error of another one says nothing.
	switch {
	case answer.State != state:
		return nil, c.fault("state", "the answer to the request for consent is not for this request")
	case answer.Issuer != "" && answer.Issuer != at.Issuer:
		return nil, c.fault("issuer", "the answer to the request for consent is from %q and not from %q", mcp.Shorten(answer.Issuer, 200), at.Issuer)
	case answer.Issuer == "" && at.AuthorizationResponseIssParameterSupported:
		return nil, c.fault("issuer", "the answer to the request for consent does not say who it is from, although %q always says so", at.Issuer)
	case answer.Error != "":
		return nil, c.fault("consent", "there is no consent: %s", mcp.Shorten(answer.Error, 200))
	case answer.Code == "":
		return nil, c.fault("consent", "the answer to the request for consent has no code")
	}
	return url.Values{
		"grant_type": {"authorization_code"}, "code": {answer.Code}, "redirect_uri": {c.cfg.RedirectURL}, "code_verifier": {verifier},
	}, nil
}

// union is a and what only b has.
func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// contains reports whether all of some are in all.
func contains(all, some []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}
