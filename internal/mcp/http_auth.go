package mcp

import (
	"context"
	"net/http"
)

// Challenge is the refusal of a request for its credentials.
type Challenge struct {
	// Status is 401 or 403.
	Status int
	// Values are those of WWW-Authenticate.
	Values []string
	// Token is the bearer token that the request had, "" for none.
	Token string
	// Attempt counts the refusals of this same request before, from 0.
	Attempt int
}

// maxChallenges is how often one request is sent again because it was refused
// for its credentials: an expired token, another issuer's, and a scope too few is
// the most that can come together.
const maxChallenges = 3

// send makes one request as [httpConn.do] does, with the target's credentials and,
// if they are refused and [HTTPTarget].Challenged has others, again with those. A
// request that was refused did not run, so this repeats nothing. The error is a
// [*Fault] if it comes from the credentials. x is the call that the request is
// for, nil for none.
func (c *httpConn) send(ctx context.Context, x *httpExchange, method string, header http.Header, body []byte) (*http.Response, error) {
	for attempt := 0; ; attempt++ {
		if err := c.authorize(ctx, header); err != nil {
			return nil, err
		}
		resp, err := c.do(ctx, method, header, body)
		if err != nil || c.target.Challenged == nil || attempt == maxChallenges ||
			resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden {
			return resp, err
		}
		again, err := c.challenged(ctx, x, resp, attempt, header)
		if !again && err == nil {
			return resp, nil
		}
		_ = resp.Body.Close()
		if err != nil {
			return nil, err
		}
	}
}

// challenged asks for other credentials. That may take a human's time, which is
// not the call's.
func (c *httpConn) challenged(ctx context.Context, x *httpExchange, resp *http.Response, attempt int, header http.Header) (bool, error) {
	if x != nil {
		x.sent = false // this time it did not run for certain
		x.clock.pause()
		defer x.clock.resume()
	}
	var token string
	if header["Authorization"] != nil {
		token = header["Authorization"][0][len(bearer):]
	}
	again, err := c.target.Challenged(ctx, Challenge{
		Status: resp.StatusCode, Values: resp.Header.Values("Www-Authenticate"), Token: token, Attempt: attempt,
	})
	if err != nil {
		return false, c.noToken(ctx, err)
	}
	return again, nil
}

const bearer = "Bearer "

// authorize puts the token of now into header.
func (c *httpConn) authorize(ctx context.Context, header http.Header) error {
	if c.target.Token == nil {
		return nil
	}
	token, err := c.target.Token(ctx)
	switch {
	case err != nil:
		return c.noToken(ctx, err)
	case token == "":
		delete(header, "Authorization")
	case !isVisible(token, 64<<10):
		return c.named(NewFault(KindAuth, "invalid_token", "the token for the server holds a byte that is not visible ASCII, such as a newline at its end"))
	default:
		header["Authorization"] = []string{bearer + token}
	}
	return nil
}

// noToken is the error of a request that there are no credentials for. The text
// of an error that is not meant for others might hold a secret.
func (c *httpConn) noToken(ctx context.Context, err error) error {
	if f, ok := asFault(err); ok {
		return c.named(f)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c.log.Warn("no token for the server")
	return c.named(NewFault(KindAuth, "no_token", "there is no token for the server: the provider of it failed"))
}
