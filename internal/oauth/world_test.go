package oauth

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"go.uber.org/goleak"

	"toolhub/internal/mcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authorityServer is an authorization server that checks what it is sent as the
// RFCs demand, and fails the test where a client does what it must never do.
type authorityServer struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	metadata map[string]any // changes to the metadata, nil values are left out
	iss      string         // of answers: "" the issuer's, "-" none
	redirect url.Values     // changes to the answer to a request for consent
	answer   func(params url.Values) (status int, body string)
	served   func() // called before a request for a token is answered
	method   string // token_endpoint_auth_method of registrations
	lifetime int    // of tokens in seconds, 0 for one without an end
	rotate   bool   // a refresh brings another refresh token

	tokens    map[string][]string   // scopes by token
	refreshes map[string][]string   // scopes by refresh token that is good
	codes     map[string]url.Values // requests for consent by code
	clients   map[string]string     // secrets by id
	requests  []url.Values          // to the token endpoint
	consents  []url.Values
	n         int
}

func newAuthority(t *testing.T) *authorityServer {
	a := &authorityServer{
		t: t, rotate: true, method: methodNone, tokens: map[string][]string{}, refreshes: map[string][]string{},
		codes: map[string]url.Values{}, clients: map[string]string{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/oauth-authorization-server", a.serveMetadata)
	mux.HandleFunc("POST /register", a.serveRegister)
	mux.HandleFunc("GET /authorize", a.serveAuthorize)
	mux.HandleFunc("POST /token", a.serveToken)
	a.Server = httptest.NewServer(mux)
	t.Cleanup(a.Close)
	return a
}

func sendJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b)
}

func (a *authorityServer) serveMetadata(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := map[string]any{
		"issuer": a.URL, "authorization_endpoint": a.URL + "/authorize", "token_endpoint": a.URL + "/token", "registration_endpoint": a.URL + "/register",
		"response_types_supported": []string{"code"}, "code_challenge_methods_supported": []string{"S256"},
		"token_endpoint_auth_methods_supported": []string{a.method}, "authorization_response_iss_parameter_supported": true,
	}
	maps.Copy(m, a.metadata)
	maps.DeleteFunc(m, func(_ string, v any) bool { return v == nil })
	sendJSON(w, 200, m)
}

func (a *authorityServer) next(what string) string {
	a.n++
	return fmt.Sprintf("%s%d-of-%s", what, a.n, a.Listener.Addr())
}

func (a *authorityServer) serveRegister(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	var m oauthex.ClientRegistrationMetadata
	if err := json.Unmarshal(body, &m); err != nil || len(m.RedirectURIs) != 1 || m.ApplicationType != "native" || !slices.Contains(m.GrantTypes, "refresh_token") {
		a.t.Errorf("registration: %s %v", body, err)
	}
	id, secret := a.next("client"), ""
	if a.method != methodNone {
		secret = a.next("secret")
	}
	a.clients[id] = secret
	sendJSON(w, 201, map[string]any{"client_id": id, "client_secret": secret, "redirect_uris": m.RedirectURIs, "token_endpoint_auth_method": a.method})
}

func (a *authorityServer) serveAuthorize(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := r.URL.Query()
	if _, ok := a.clients[q.Get("client_id")]; !ok && !strings.HasPrefix(q.Get("client_id"), "https://") {
		a.t.Errorf("consent for the client %q, which is not known here", q.Get("client_id"))
	}
	if q.Get("response_type") != "code" || q.Get("code_challenge_method") != "S256" || len(q.Get("state")) < 16 || q.Get("resource") == "" {
		a.t.Errorf("request for consent: %v", q)
	}
	code := a.next("code")
	a.codes[code], a.consents = q, append(a.consents, q)
	back := url.Values{"code": {code}, "state": {q.Get("state")}, "iss": {a.URL}}
	switch a.iss {
	case "":
	case "-":
		back.Del("iss")
	default:
		back.Set("iss", a.iss)
	}
	maps.Copy(back, a.redirect)
	w.Header().Set("Location", q.Get("redirect_uri")+"?"+back.Encode())
	w.WriteHeader(302)
}

func (a *authorityServer) serveToken(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_ = r.ParseForm()
	p := r.PostForm
	a.requests = append(a.requests, p)
	if a.served != nil {
		a.served()
	}
	if a.answer != nil {
		status, body := a.answer(p)
		if status == 307 {
			w.Header().Set("Location", body)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		return
	}
	refuse := func(code string) { sendJSON(w, 400, map[string]any{"error": code, "error_description": "so it is"}) }
	id, secret, basic := r.BasicAuth()
	if basic { // RFC 6749, 2.3.1
		id, _ = url.QueryUnescape(id)
		secret, _ = url.QueryUnescape(secret)
	} else {
		id, secret = p.Get("client_id"), p.Get("client_secret")
	}
	if want, ok := a.clients[id]; ok && (want != secret || (a.method == methodBasic) != basic) && a.method != "private_key_jwt" {
		refuse("invalid_client")
		return
	}
	if p.Get("resource") == "" {
		a.t.Errorf("a request for a token without a resource: %v", p)
	}
	var scopes []string
	switch p.Get("grant_type") {
	case "authorization_code":
		q := a.codes[p.Get("code")]
		sum := sha256.Sum256([]byte(p.Get("code_verifier")))
		if q == nil || q.Get("redirect_uri") != p.Get("redirect_uri") || q.Get("client_id") != id || base64.RawURLEncoding.EncodeToString(sum[:]) != q.Get("code_challenge") || q.Get("resource") != p.Get("resource") {
			a.t.Errorf("the code %q does not belong to this request: %v, %v", p.Get("code"), q, p)
			refuse("invalid_grant")
			return
		}
		delete(a.codes, p.Get("code"))
		scopes = strings.Fields(q.Get("scope"))
	case "refresh_token":
		var ok bool
		if scopes, ok = a.refreshes[p.Get("refresh_token")]; !ok {
			refuse("invalid_grant")
			return
		}
	case "client_credentials":
		scopes = strings.Fields(p.Get("scope"))
	}
	token := map[string]any{"access_token": a.next("token"), "token_type": "bearer", "scope": strings.Join(scopes, " ")}
	a.tokens[token["access_token"].(string)] = scopes
	if a.lifetime != 0 {
		token["expires_in"] = a.lifetime
	}
	if p.Get("grant_type") != "client_credentials" && (a.rotate || p.Get("refresh_token") == "") {
		delete(a.refreshes, p.Get("refresh_token"))
		refresh := a.next("refresh")
		a.refreshes[refresh], token["refresh_token"] = scopes, refresh
	}
	sendJSON(w, 200, token)
}

// counts are the numbers of consents and of requests for tokens by type of grant.
func (a *authorityServer) counts() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := map[string]int{}
	for _, r := range a.requests {
		n[r.Get("grant_type")]++
	}
	return fmt.Sprintf("consents %d codes %d refreshes %d credentials %d", len(a.consents), n["authorization_code"], n["refresh_token"], n["client_credentials"])
}

func (a *authorityServer) do(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// forgetTokens makes the tokens so far worth nothing.
func (a *authorityServer) forgetTokens() { a.do(func() { clear(a.tokens) }) }

// protected is an MCP server that demands tokens of its authority.
type protected struct {
	*httptest.Server
	t         *testing.T
	mu        sync.Mutex
	authority *authorityServer
	// issuer and accepts stand for the authority's, if it is nil.
	issuer    string
	accepts   func(token string) bool
	scope     string // that every call needs
	challenge bool   // says so in the challenge, and where the metadata is
	at        string // where the metadata is
	resource  string // in the metadata, "" the URL
	refuse    bool   // whatever the token
}

func newProtected(t *testing.T, a *authorityServer) *protected {
	p := &protected{t: t, authority: a, challenge: true, at: "/.well-known/oauth-protected-resource/mcp"}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *protected) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	at, a, scope, challenge, refuse, resource, issuer := p.at, p.authority, p.scope, p.challenge, p.refuse, p.resource, p.issuer
	p.mu.Unlock()
	if a != nil {
		issuer = a.URL
	}
	if r.URL.Path != "/mcp" {
		if r.URL.Path != at {
			http.NotFound(w, r)
			return
		}
		if resource == "" {
			resource = p.URL + "/mcp"
		}
		sendJSON(w, 200, map[string]any{"resource": resource, "authorization_servers": []string{issuer}, "scopes_supported": []string{"read"}})
		return
	}
	if r.Method != http.MethodPost {
		w.WriteHeader(405)
		return
	}
	body, _ := io.ReadAll(r.Body)
	m, err := mcp.ParseMessage(body, mcp.Strict)
	if err != nil {
		p.t.Errorf("the client sent %s: %v", body, err)
		return
	}
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	var scopes []string
	good := false
	if a != nil {
		a.do(func() { scopes, good = a.tokens[token] })
	} else {
		scopes, good = strings.Fields(scope), p.accepts(token)
	}
	header := ""
	if challenge {
		header = `Bearer resource_metadata="` + p.URL + at + `"`
		if scope != "" {
			header += `, scope="` + scope + `"`
		}
	}
	switch {
	case m.Method == mcp.MethodDiscover: // open to all, so that a connection is made without a token
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(mcp.AppendResult(nil, m.ID, (&mcp.Discovery{ServerInfo: mcp.ServerInfoJSON("p", "1")}).Result()))
	case !good || refuse:
		if header != "" {
			w.Header().Set("WWW-Authenticate", header)
		}
		w.WriteHeader(401)
	case scope != "" && !contains(scopes, strings.Fields(scope)):
		w.Header().Set("WWW-Authenticate", header+`, error="insufficient_scope"`)
		w.WriteHeader(403)
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(mcp.AppendResult(nil, m.ID, []byte(`{"resultType":"complete"}`)))
	}
}

func (p *protected) do(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

const redirectURL = "http://127.0.0.1:3000/callback"

// consents is a user who consents to everything.
func consents(ctx context.Context, at string) (Answer, error) {
	browser := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer browser.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return Answer{}, err
	}
	resp, err := browser.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	back, err := resp.Location()
	if err != nil {
		return Answer{}, err
	}
	return AnswerOf(back.Query()), nil
}

// newClient is a client with a user who consents, changed.
func newClient(t *testing.T, p *protected, change func(*Config)) *Client {
	t.Helper()
	transport := &http.Transport{DialContext: nil}
	t.Cleanup(transport.CloseIdleConnections)
	cfg := Config{
		Server: "s", URL: p.URL + "/mcp", Dynamic: &oauthex.ClientRegistrationMetadata{}, RedirectURL: redirectURL, Consent: consents,
		HTTP: &http.Client{Transport: roundTripper{transport}},
	}
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// roundTripper hides a transport from the SDK, which would make one of its own for
// each request of discovery, with connections that no test can close.
type roundTripper struct{ http.RoundTripper }

// connect is a connection as workers make it.
func connect(t *testing.T, p *protected, c *Client) mcp.Conn {
	t.Helper()
	conn, err := mcp.ConnectHTTP(t.Context(), mcp.HTTPTarget{URL: p.URL + "/mcp", Token: c.Token, Challenged: c.Challenged}, mcp.ConnectOptions{Server: "s"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return conn
}

func call(ctx context.Context, conn mcp.Conn) error {
	_, err := conn.Call(ctx, &mcp.Call{Method: mcp.MethodToolsCall, Params: []byte(`{"name":"t","arguments":{}}`)})
	return err
}

// wantReason checks for a fault of kind auth with the reason, "" for none.
func wantReason(t *testing.T, what string, err error, reason string) {
	t.Helper()
	f, ok := errors.AsType[*mcp.Fault](err)
	switch {
	case reason == "" && err != nil:
		t.Errorf("%s: %v", what, err)
	case reason != "" && (!ok || f.Reason != reason || f.Kind != mcp.KindAuth || f.Server != "s"):
		t.Errorf("%s: got %v, want auth (%s) of s", what, err, reason)
	}
}

func wantCounts(t *testing.T, a *authorityServer, consents, codes, refreshes, credentials int) {
	t.Helper()
	want := fmt.Sprintf("consents %d codes %d refreshes %d credentials %d", consents, codes, refreshes, credentials)
	if got := a.counts(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
