package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/klauspost/compress/zstd"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
)

const (
	// inlineBytes is the largest compressed catalog that its manifest carries itself.
	inlineBytes = 48 << 10
	// partBytes is the size of a part; a value stays far below any payload limit.
	partBytes = 256 << 10
	// partGrace is how long a part may be unreferenced: its manifest follows it
	// within seconds, so an older one belongs to nobody.
	partGrace = 10 * time.Minute
	// maxCatalogBytes bounds what a manifest may unpack to, whoever wrote it.
	maxCatalogBytes = 1 << 30
)

// manifest is the value of cat.<server>. Parts come before the manifest that
// names them, so a reader that sees the manifest can have them all.
type manifest struct {
	Epoch    uint64 `json:"epoch"`
	Revision string `json:"revision"`
	Tools    int    `json:"tools"`
	// Bytes is the size of the catalog unpacked.
	Bytes int `json:"bytes"`
	// Inline is the zstd-packed catalog, or Parts are the hashes of its pieces.
	Inline []byte   `json:"inline,omitempty"`
	Parts  []string `json:"parts,omitempty"`
}

// PublishCatalog writes the catalog of server: parts first, then the manifest
// that makes them count. It returns [bus.ErrConflict] when the epoch is over.
func (r *Registry) PublishCatalog(ctx context.Context, epoch uint64, c *catalog.Catalog) error {
	plain, err := c.Encode()
	if err != nil {
		return fmt.Errorf("couldn't encode the catalog of %q: %w", c.Server, err)
	}
	packed := r.packer.EncodeAll(plain, nil)
	m := manifest{Epoch: epoch, Revision: c.Revision, Tools: len(c.Tools), Bytes: len(plain)}
	if len(packed) <= inlineBytes {
		m.Inline = packed
	} else {
		for len(packed) > 0 {
			n := min(partBytes, len(packed))
			sum := sha256.Sum256(packed[:n])
			hash := hex.EncodeToString(sum[:16])
			// Written even if it is there: the fresh date keeps the sweep away from it.
			if _, err := r.conn.Put(ctx, bus.BucketReg, bus.Key(bus.KeyPart, hash), packed[:n], bus.PutOptions{}); err != nil {
				return fmt.Errorf("couldn't write a part of the catalog of %q: %w", c.Server, err)
			}
			m.Parts = append(m.Parts, hash)
			packed = packed[n:]
		}
	}
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if _, err = r.conn.Put(ctx, bus.BucketReg, bus.Key(bus.KeyCatalog, c.Server), data, fenced(c.Server, epoch)); err != nil {
		return fmt.Errorf("couldn't write the catalog of %q: %w", c.Server, err)
	}
	r.conn.Emit(bus.Event{Kind: "catalog", Subject: c.Server, What: "published", Data: map[string]any{
		"epoch": epoch, "revision": c.Revision, "tools": m.Tools, "bytes": m.Bytes, "parts": len(m.Parts),
	}})
	return nil
}

// SweepParts removes the parts that no manifest has named for [partGrace].
func (r *Registry) SweepParts(ctx context.Context, now time.Time) error {
	r.mu.Lock()
	named := map[string]bool{}
	for _, m := range r.manifests {
		for _, hash := range m.Parts {
			named[hash] = true
		}
	}
	var old []bus.Entry
	for hash, p := range r.parts {
		if !named[hash] && now.Sub(p.Created) > partGrace {
			old = append(old, p)
		}
	}
	r.mu.Unlock()
	for _, p := range old {
		// On the revision seen: a part that was written again meanwhile stays.
		err := r.conn.Delete(ctx, bus.BucketReg, p.Key, bus.PutOptions{Revision: &p.Rev})
		if err != nil && !errors.Is(err, bus.ErrConflict) {
			return fmt.Errorf("couldn't remove %q: %w", p.Key, err)
		}
	}
	return nil
}

// unpack is the catalog that m describes; ok is false while a part is missing.
func (r *Registry) unpack(server string, m *manifest) (c *catalog.Catalog, ok bool, err error) {
	packed := m.Inline
	for _, hash := range m.Parts {
		p, there := r.parts[hash]
		if !there {
			return nil, false, nil
		}
		packed = append(packed, p.Value...)
	}
	plain, err := r.unpacker.DecodeAll(packed, make([]byte, 0, min(m.Bytes, maxCatalogBytes)))
	if err != nil {
		return nil, true, fmt.Errorf("couldn't unpack the catalog of %q: %w", server, err)
	}
	if c, err = catalog.Decode(plain); err != nil {
		return nil, true, fmt.Errorf("couldn't decode the catalog of %q: %w", server, err)
	}
	if c.Server != server {
		return nil, true, fmt.Errorf("the catalog of %q says it is of %q", server, c.Server)
	}
	return c, true, nil
}

func newPacker() (*zstd.Encoder, *zstd.Decoder) {
	// Neither starts a goroutine with concurrency 1; options are constants, so
	// the errors cannot happen.
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault))
	if err != nil {
		panic(err)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxCatalogBytes))
	if err != nil {
		panic(err)
	}
	return enc, dec
}
