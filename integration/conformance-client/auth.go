package main

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"toolhub/internal/mcp"
	"toolhub/internal/oauth"
)

// What the suite expects of every client.
const (
	metadataURL = "https://conformance-test.local/client-metadata.json"
	redirectURL = "http://localhost:3000/callback"
)

// authorized lists the tools of a server that demands a token, and calls one. Its
// user consents to everything.
func authorized(ctx context.Context, c *client) error {
	config := oauth.Config{
		Server: "conf", URL: c.url, MetadataURL: metadataURL, Dynamic: &oauthex.ClientRegistrationMetadata{},
		RedirectURL: redirectURL, Consent: consent,
	}
	if id := mcp.FieldString(c.given, "client_id"); id != "" {
		config.Registered = c.registered(id)
	}
	return c.withToken(ctx, config)
}

// clientCredentials does the same as itself, without a user.
func clientCredentials(ctx context.Context, c *client) error {
	registered := c.registered(mcp.FieldString(c.given, "client_id"))
	if text := mcp.FieldString(c.given, "private_key_pem"); text != "" {
		block, _ := pem.Decode([]byte(text))
		if block == nil {
			return errors.New("the key of the suite is no PEM")
		}
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return err
		}
		registered.Key, _ = key.(crypto.Signer)
	}
	return c.withToken(ctx, oauth.Config{Server: "conf", URL: c.url, Registered: registered})
}

func (c *client) registered(id string) *oauth.Registered {
	r := &oauth.Registered{ID: id}
	if secret := mcp.FieldString(c.given, "client_secret"); secret != "" {
		r.Secret = func(context.Context) (string, error) { return secret, nil }
	}
	return r
}

func (c *client) withToken(ctx context.Context, config oauth.Config) error {
	config.Logger = logger()
	tokens, err := oauth.New(config)
	if err != nil {
		return err
	}
	c.target = func(t *mcp.HTTPTarget) { t.Token, t.Challenged = tokens.Token, tokens.Challenged }
	return c.listAndCall(ctx, "test-tool", jsontext.Value("{}"))
}

// consent is the user: the suite's authorization servers redirect at once.
func consent(ctx context.Context, url string) (oauth.Answer, error) {
	browser := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return oauth.Answer{}, err
	}
	resp, err := browser.Do(req)
	if err != nil {
		return oauth.Answer{}, err
	}
	defer resp.Body.Close()
	back, err := resp.Location()
	if err != nil {
		return oauth.Answer{}, err
	}
	return oauth.AnswerOf(back.Query()), nil
}
