package bus

import (
	"bytes"
	"encoding/base64"
	"errors"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// TestSealIsShared: all processes of a hub have one key, whoever asks first, and
// keep it when they start again; another hub has another.
func TestSealIsShared(t *testing.T) {
	t.Parallel()
	s := startServer(t, inProcess)
	const n = 4
	seals := make([]*Seal, n)
	var wg sync.WaitGroup
	for i := range n {
		c := s.connect(t, "w"+string(rune('0'+i)), nil)
		wg.Go(func() {
			var err error
			if seals[i], err = c.Seal(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	token := seals[0].Close("test", []byte("state"))
	for i, seal := range seals {
		if plain, err := seal.Open("test", token); err != nil || string(plain) != "state" {
			t.Errorf("process %d has opened %q, %v", i, plain, err)
		}
	}
	later, err := s.connect(t, "later", nil).Seal(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := later.Open("test", token); err != nil || string(plain) != "state" {
		t.Errorf("a later process has opened %q, %v", plain, err)
	}
	other, err := s.connect(t, "w1", func(c *Config) { c.Hub = "other" }).Seal(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := other.Open("test", token); !errors.Is(err, ErrNotSealed) {
		t.Errorf("another hub has opened %q, %v", plain, err)
	}
}

// TestSealKeyUnusable: a key that is none is an error that says what to do.
func TestSealKeyUnusable(t *testing.T) {
	t.Parallel()
	c := startServer(t, inProcess).connect(t, "w1", nil)
	if _, err := c.Put(t.Context(), BucketKeys, Key(KeySeal), []byte("c2hvcnQ"), PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Seal(t.Context()); err == nil || !strings.Contains(err.Error(), "delete it") {
		t.Errorf("got %v", err)
	}
}

// TestSealTampered: every change of a token, of one character or of its length,
// is noticed.
func TestSealTampered(t *testing.T) {
	t.Parallel()
	seal := newSeal(bytes.Repeat([]byte{1}, sealKeyBytes))
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_+/=\n\r. \x00\xff"
	token := seal.Close("p", []byte("what is inside"))
	refused := func(purpose, token string) {
		t.Helper()
		if plain, err := seal.Open(purpose, token); !errors.Is(err, ErrNotSealed) || plain != nil {
			t.Errorf("Open(%q, %q) = %q, %v", purpose, token, plain, err)
		}
	}
	for i := range token {
		for _, c := range []byte(alphabet) {
			if c != token[i] {
				refused("p", token[:i]+string([]byte{c})+token[i+1:])
			}
			refused("p", token[:i]+string([]byte{c})+token[i:])
		}
		refused("p", token[:i])
		refused("p", token[i+1:])
	}
	refused("p", token+"\n")
	refused("p", token+"=")
	refused("q", token)
	refused("", token)
	if _, err := newSeal(bytes.Repeat([]byte{2}, sealKeyBytes)).Open("p", token); !errors.Is(err, ErrNotSealed) {
		t.Errorf("another key opens it: %v", err)
	}
}

// TestSealRoundTrip: what is closed can be opened, with its purpose only, and
// does not show what is inside.
func TestSealRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seal := newSeal(rapid.SliceOfN(rapid.Byte(), sealKeyBytes, sealKeyBytes).Draw(t, "key"))
		purpose, other := rapid.String().Draw(t, "purpose"), rapid.String().Draw(t, "other")
		plain := rapid.SliceOf(rapid.Byte()).Draw(t, "plain")
		token := seal.Close(purpose, plain)
		if token == seal.Close(purpose, plain) {
			t.Fatal("two tokens are alike")
		}
		got, err := seal.Open(purpose, token)
		if err != nil || !bytes.Equal(got, plain) {
			t.Fatalf("got %q, %v", got, err)
		}
		raw, err := base64.RawURLEncoding.DecodeString(token)
		if err != nil || len(plain) > 8 && bytes.Contains(raw, plain) {
			t.Fatalf("the token %q shows what is in it (%v)", token, err)
		}
		if _, err := seal.Open(other, token); other != purpose && err == nil {
			t.Fatal("opened for another purpose")
		}
	})
}

// FuzzSealOpen: Open never panics, and opens nothing but what Close has made.
func FuzzSealOpen(f *testing.F) {
	seal := newSeal(bytes.Repeat([]byte{7}, sealKeyBytes))
	closed := map[string]bool{} // another process of the fuzzer has made other tokens of these
	for _, plain := range []string{"", "x", strings.Repeat("long ", 100)} {
		token := seal.Close("fuzz", []byte(plain))
		closed[plain] = true
		f.Add("fuzz", token)
		f.Add("", token[:len(token)/2])
	}
	f.Add("fuzz", strings.Repeat("A", 54))
	f.Fuzz(func(t *testing.T, purpose, token string) {
		plain, err := seal.Open(purpose, token)
		if err == nil && (purpose != "fuzz" || !closed[string(plain)]) {
			t.Errorf("Open(%q, %q) = %q", purpose, token, plain)
		}
		if err != nil && plain != nil {
			t.Errorf("Open(%q, %q) has failed and returned %q", purpose, token, plain)
		}
	})
}
