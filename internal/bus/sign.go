package bus

import (
	"context"
	"crypto/hmac"
	"encoding/base64"
	"hash"
	"strings"

	"toolhub/internal/mcp"
)

// ReasonUnsigned: the call names a principal or taint, and no process of the hub
// vouches for it.
const ReasonUnsigned = "unsigned"

// reasonKey: the key of the hub cannot be had just now.
const reasonKey = "hub_key"

// sigParam begins the last field of [HeaderCall].
const sigParam = "&sig="

// sigBytes is the size of a signature: half of a HMAC-SHA256 is as much as
// anybody could guess.
const sigBytes = 16

// signature is what signs one call: all of its [HeaderCall], where it goes, and
// its body, by a digest. That a call is not made again with all of that is up to
// the memory of call ids, the deadline and the epoch in the subject.
type signature struct {
	seal    *Seal
	subject string
	digest  [gcmTagBytes]byte // of the body
}

// signature is nil for a process that has not asked for the hub's key and neither
// names anybody nor wants one: it makes the call as any program may.
func (c *Conn) signature(ctx context.Context, r *Request, meta *Meta) (*signature, *mcp.Fault) {
	seal := c.seal.Load()
	if seal == nil {
		if !r.Sign && !meta.names() {
			return nil, nil
		}
		if !c.Connected() { // as without a key to get: at once
			return nil, mcp.Unavailable("", ReasonDisconnected, "there is no connection to NATS just now")
		}
		var fault *mcp.Fault
		if seal, fault = c.callSeal(ctx); fault != nil {
			return nil, fault
		}
	}
	return &signature{seal, r.Subject, seal.digest(r.Body)}, nil
}

// names reports whether m says what only a process of the hub can know.
func (m *Meta) names() bool { return m.Principal != "" || len(m.Taint) > 0 }

func (c *Conn) callSeal(ctx context.Context) (*Seal, *mcp.Fault) {
	seal, err := c.Seal(ctx)
	if err != nil {
		c.log.Warn("no key to sign calls with", "error", err)
		return nil, mcp.Unavailable("", reasonKey, "the key of the hub, by which calls are signed, cannot be read just now")
	}
	return seal, nil
}

// append appends the signature of text, which is to be the header up to here.
func (s *signature) append(text []byte) []byte {
	var sum [sigBytes]byte
	s.seal.sign(&sum, s.subject, text, &s.digest)
	return base64.RawURLEncoding.AppendEncode(append(text, sigParam...), sum[:])
}

// digest is a universal hash of a body, the one of AES-GCM: SHA-256 would double
// the cost of a call with a body of 1 MiB. That it always has the same nonce does
// no harm since nobody gets to see it; it only goes into the signature, where
// HMAC hides it.
func (s *Seal) digest(body []byte) (d [gcmTagBytes]byte) {
	var nonce [gcmNonceBytes]byte
	s.bodies.Seal(d[:0], nonce[:], nil, body)
	return d
}

// signer is what one signature needs at a time.
type signer struct {
	mac hash.Hash
	buf []byte
}

func (s *Seal) sign(sum *[sigBytes]byte, subject string, text []byte, digest *[gcmTagBytes]byte) {
	w := s.signers.Get().(*signer)
	defer s.signers.Put(w)
	// Neither a subject nor a query string has a line end, and a digest has its
	// length, so no two calls are the same text.
	b := append(w.buf[:0], subject...)
	b = append(b, '\n')
	b = append(b, text...)
	b = append(b, '\n')
	b = append(b, digest[:]...)
	w.mac.Reset()
	w.mac.Write(b)
	w.buf = w.mac.Sum(b)
	copy(sum[:], w.buf[len(b):])
}

// proof is a signature as it came: that of text, in its one spelling.
type proof struct{ text, sig string }

func proofOf(header string) proof {
	i := strings.LastIndex(header, sigParam)
	if i < 0 {
		return proof{}
	}
	return proof{header[:i], header[i+len(sigParam):]}
}

// verify finds out whether a process of the hub has made the call. One of
// another program is nobody's in particular, and refused if it says whose.
func (in *Incoming) verify(ctx context.Context) error {
	if in.proof.sig != "" {
		seal, fault := in.service.conn.callSeal(ctx)
		if fault != nil {
			return fault
		}
		s := signature{seal, in.Subject, seal.digest(in.Body)}
		text := []byte(in.proof.text)
		want := s.append(text)[len(text)+len(sigParam):]
		if hmac.Equal(want, []byte(in.proof.sig)) {
			in.Meta.Signed = true
			return nil
		}
	}
	if in.Meta.names() {
		return mcp.NewFault(mcp.KindDenied, ReasonUnsigned, "the call names a principal or taint, and only routers of this hub may: it has no valid signature")
	}
	return nil
}
