package mcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestHTTPChallenges: a request that is refused for its credentials is sent again
// with others, as often as there are others and the limit allows, and the
// refusals tell all that is needed to get some.
func TestHTTPChallenges(t *testing.T) {
	for name, test := range map[string]struct {
		valid   string // the token that the server takes
		status  int
		next    []string // what Challenged changes the token to; "" is no
		err     error
		cancels bool
		want    string // of the outcome, "" for success
		tokens  []string
		heard   []string
	}{
		"first": {valid: "b", status: 401, next: []string{"b"}, tokens: []string{"", "Bearer b"}, heard: []string{`401 "" 0 [Bearer scope="x y"]`}},
		"three": {
			valid: "d", status: 403, next: []string{"b", "c", "d"}, tokens: []string{"", "Bearer b", "Bearer c", "Bearer d"},
			heard: []string{`403 "" 0 [Bearer scope="x y"]`, `403 "b" 1 [Bearer scope="x y"]`, `403 "c" 2 [Bearer scope="x y"]`},
		},
		"no end": {
			valid: "z", status: 401, next: []string{"b", "c", "d", "e"}, want: "auth/unauthorized", tokens: []string{"", "Bearer b", "Bearer c", "Bearer d"},
			heard: []string{`401 "" 0 [Bearer scope="x y"]`, `401 "b" 1 [Bearer scope="x y"]`, `401 "c" 2 [Bearer scope="x y"]`},
		},
		"none": {valid: "z", status: 403, next: []string{""}, want: "auth/forbidden", tokens: []string{""}, heard: []string{`403 "" 0 [Bearer scope="x y"]`}},
		"typed": {
			valid: "z", status: 401, err: NewFault(KindAuth, "consent_denied", "no"), want: "auth/consent_denied", tokens: []string{""},
			heard: []string{`401 "" 0 [Bearer scope="x y"]`},
		},
		"untyped":   {valid: "z", status: 401, err: errors.New("secret"), want: "auth/no_token", tokens: []string{""}, heard: []string{`401 "" 0 [Bearer scope="x y"]`}},
		"cancelled": {valid: "z", status: 401, cancels: true, want: "context canceled", tokens: []string{""}, heard: []string{`401 "" 0 [Bearer scope="x y"]`}},
	} {
		t.Run(name, func(t *testing.T) {
			w := serveWeb(t, modernWeb(func(a *webAnswer, m *Message) {
				if a.r.Header.Get("Authorization") == "Bearer "+test.valid {
					a.result(m, `{}`)
					return
				}
				a.Header().Set("WWW-Authenticate", `Bearer scope="x y"`)
				a.text(test.status, "no")
			}))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var token string
			var heard []string
			next := test.next
			c, err := ConnectHTTP(t.Context(), HTTPTarget{
				URL: w.URL, Token: func(context.Context) (string, error) { return token, nil },
				Challenged: func(ctx context.Context, c Challenge) (bool, error) {
					heard = append(heard, fmt.Sprintf("%d %q %d %v", c.Status, c.Token, c.Attempt, c.Values))
					switch {
					case test.cancels:
						cancel()
						return false, ctx.Err()
					case test.err != nil:
						return false, test.err
					case next[0] == "":
						return false, nil
					}
					token, next = next[0], next[1:]
					return true, nil
				},
			}, ConnectOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer closeConn(t, c)
			_, err = c.Call(ctx, &Call{Method: MethodToolsCall})
			switch test.want {
			case "":
				if err != nil {
					t.Error(err)
				}
			case "context canceled":
				if !errors.Is(err, context.Canceled) {
					t.Errorf("error %v, want the end of ctx", err)
				}
			default:
				wantOutcome(t, name, nil, err, test.want)
			}
			var tokens []string
			for _, h := range w.headers["POST "+MethodToolsCall] {
				tokens = append(tokens, h.Get("Authorization"))
			}
			if !slices.Equal(tokens, test.tokens) {
				t.Errorf("sent were %q, want %q", tokens, test.tokens)
			}
			if !slices.Equal(heard, test.heard) {
				t.Errorf("heard was %q, want %q", heard, test.heard)
			}
		})
	}
}

// TestChallengeTakesItsTime: the time that a human needs is not that of the call.
func TestChallengeTakesItsTime(t *testing.T) {
	const timeout = 100 * time.Millisecond
	w := serveWeb(t, modernWeb(func(a *webAnswer, m *Message) {
		if a.r.Header.Get("Authorization") == "" {
			a.text(401, "no")
			return
		}
		a.result(m, `{}`)
	}))
	var token string
	c, err := ConnectHTTP(t.Context(), HTTPTarget{
		URL: w.URL, Token: func(context.Context) (string, error) { return token, nil },
		Challenged: func(ctx context.Context, _ Challenge) (bool, error) {
			timer := time.NewTimer(3 * timeout)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
				return false, context.Cause(ctx)
			}
			token = "t"
			return true, nil
		},
	}, ConnectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(t, c)
	if _, err := c.Call(t.Context(), &Call{Method: MethodToolsCall, Timeout: timeout}); err != nil {
		t.Error(err)
	}
}
