package bus

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
)

const (
	// sealKeyBytes is the size of the key of a hub, and of those derived from it.
	sealKeyBytes = 32
	// saltBytes is the random part of a token that its own key is made from. With
	// the nonce they are 192 bits, which no hub makes enough tokens to repeat.
	saltBytes = 12
	// gcmNonceBytes and gcmTagBytes are those of AES-GCM.
	gcmNonceBytes, gcmTagBytes = 12, 16
)

// ErrNotSealed says that a token is none that [Seal.Close] of this hub made for
// this purpose. Why is not told: it would help nobody but a forger.
var ErrNotSealed = errors.New("not sealed by this hub for this purpose")

// Seal is the secret of a hub, which its processes share and nobody else has:
// what they give to callers to bring back is closed by it, and the headers of
// calls are signed by it. All methods may be called concurrently.
type Seal struct {
	key     []byte
	tokens  []byte      // the key that those of tokens are derived from
	bodies  cipher.AEAD // for digests of bodies
	signers sync.Pool   // of *signer
}

// Seal is that of the hub. The first process that asks makes the key, which is
// then kept in the bucket keys: whoever may read it can do what routers can.
func (c *Conn) Seal(ctx context.Context) (*Seal, error) {
	if s := c.seal.Load(); s != nil {
		return s, nil
	}
	key, err := c.sealKey(ctx)
	if err != nil {
		return nil, fmt.Errorf("couldn't get the key of the hub: %w", err)
	}
	s := newSeal(key)
	if !c.seal.CompareAndSwap(nil, s) {
		return c.seal.Load(), nil
	}
	return s, nil
}

func (c *Conn) sealKey(ctx context.Context) ([]byte, error) {
	name := Key(KeySeal)
	for {
		e, err := c.Get(ctx, BucketKeys, name)
		if err == nil {
			key, err := base64.RawURLEncoding.Strict().DecodeString(string(e.Value))
			if err != nil || len(key) != sealKeyBytes {
				return nil, fmt.Errorf("%s of %s is no key of %d bytes in base64url: delete it and start all processes of the hub again",
					name, BucketName(c.cfg.Hub, BucketKeys), sealKeyBytes)
			}
			return key, nil
		}
		if !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		key := make([]byte, sealKeyBytes)
		_, _ = rand.Read(key) // never fails
		err = c.putSealKey(ctx, key)
		if err == nil {
			return key, nil
		}
		if !errors.Is(err, ErrConflict) { // else another process was faster
			return nil, err
		}
	}
}

func (c *Conn) putSealKey(ctx context.Context, key []byte) error {
	none := uint64(0)
	_, err := c.Put(ctx, BucketKeys, Key(KeySeal), []byte(base64.RawURLEncoding.EncodeToString(key)), PutOptions{Revision: &none})
	return err
}

// keepSeal puts the key that this process knows back where NATS has lost it, so
// that the processes that start from now on have it too.
func (c *Conn) keepSeal(ctx context.Context) error {
	s := c.seal.Load()
	if s == nil {
		return nil
	}
	err := c.putSealKey(ctx, s.key)
	if errors.Is(err, ErrConflict) { // it is there
		return nil
	}
	return err
}

func newSeal(key []byte) *Seal {
	derive := func(use string) []byte {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(use))
		return mac.Sum(nil)
	}
	calls := derive("toolhub calls")
	return &Seal{
		key: key, tokens: derive("toolhub tokens"), bodies: newGCM(derive("toolhub bodies")),
		signers: sync.Pool{New: func() any { return &signer{mac: hmac.New(sha256.New, calls)} }},
	}
}

// Close makes a token of plain that only [Seal.Open] of the same hub and purpose
// opens: it can be neither read nor changed, and is fit for a URL. No two are alike.
func (s *Seal) Close(purpose string, plain []byte) string {
	const head = saltBytes + gcmNonceBytes
	token := make([]byte, head, head+len(plain)+gcmTagBytes)
	_, _ = rand.Read(token) // never fails
	token = s.aead(purpose, token[:saltBytes]).Seal(token, token[saltBytes:head], plain, []byte(purpose))
	return base64.RawURLEncoding.EncodeToString(token)
}

// Open is what [Seal.Close] was given, or [ErrNotSealed].
func (s *Seal) Open(purpose, token string) ([]byte, error) {
	// The decoder skips line ends, but a token has only one spelling.
	if strings.ContainsAny(token, "\r\n") {
		return nil, ErrNotSealed
	}
	const head = saltBytes + gcmNonceBytes
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) < head+gcmTagBytes {
		return nil, ErrNotSealed
	}
	plain, err := s.aead(purpose, b[:saltBytes]).Open(nil, b[saltBytes:head], b[head:], []byte(purpose))
	if err != nil {
		return nil, ErrNotSealed
	}
	return plain, nil
}

// aead has the key of one token: that of the hub alone could not be used with
// random nonces of 96 bits for as long as a hub lives.
func (s *Seal) aead(purpose string, salt []byte) cipher.AEAD {
	mac := hmac.New(sha256.New, s.tokens)
	mac.Write(salt) // of fixed length, so nothing can move between it and the purpose
	mac.Write([]byte(purpose))
	return newGCM(mac.Sum(nil))
}

func newGCM(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic("bus: " + err.Error()) // only for another size of key
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic("bus: " + err.Error()) // only for another size of block
	}
	return aead
}
