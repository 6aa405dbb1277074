package oauth

import (
	"context"
	"testing"
	"time"

	"github.com/oauth2-proxy/mockoidc"
)

// TestOpenIDProvider: against a provider that nobody wrote for these tests. Its
// metadata is where OpenID Connect has it, below a path; it takes secrets as
// parameters, and its access tokens are signed and expire.
func TestOpenIDProvider(t *testing.T) {
	t.Parallel()
	provider, err := mockoidc.Run()
	if err != nil {
		t.Fatal(err)
	}
	defer provider.Shutdown()
	p := newProtected(t, nil)
	p.issuer = provider.Issuer()
	p.accepts = func(token string) bool {
		parsed, err := provider.Keypair.VerifyJWT(token, provider.Now)
		return err == nil && parsed.Valid
	}
	p.scope = "openid email"
	consented := 0
	c := newClient(t, p, func(cfg *Config) {
		cfg.Registered = &Registered{
			ID: provider.ClientID, Issuer: provider.Issuer(),
			Secret: func(context.Context) (string, error) { return provider.ClientSecret, nil },
		}
		cfg.Consent = func(ctx context.Context, at string) (Answer, error) {
			consented++
			return consents(ctx, at)
		}
	})
	conn := connect(t, p, c)
	wantReason(t, "first", call(t.Context(), conn), "")
	first := c.current().token.AccessToken
	provider.FastForward(provider.AccessTTL + time.Minute)
	wantReason(t, "after the token has expired", call(t.Context(), conn), "")
	if c.current().token.AccessToken == first {
		t.Error("the token was not renewed")
	}
	provider.FastForward(provider.RefreshTTL + time.Minute)
	wantReason(t, "after the refresh token has expired", call(t.Context(), conn), "")
	if consented != 2 {
		t.Errorf("the user was asked %d times, want twice", consented)
	}
}
