package bus

import (
	"context"
	"errors"
	"time"
)

// The buckets of a hub. [BucketName] gives their names in NATS.
const (
	BucketDefs     = "defs"
	BucketReg      = "reg"
	BucketPolicy   = "policy"
	BucketSessions = "sessions"
)

// MaxValueBytes bounds one value of a bucket.
const MaxValueBytes = 512 << 10

var (
	// ErrNotFound: the key does not exist or was deleted.
	ErrNotFound = errors.New("key not found")
	// ErrConflict: the key, or the key that fences the write, is not at the
	// revision that was expected. Nothing was written.
	ErrConflict = errors.New("wrong revision")
)

// Entry is one revision of a key.
type Entry struct {
	Key   string
	Value []byte
	// Rev is the revision, unique in its bucket and growing.
	Rev uint64
	// Created is when the server stored it, by its clock.
	Created time.Time
	// TTL is how long it lives from Created on; 0 is for ever.
	TTL time.Duration
	// Deleted says that the key is gone; there is no Value.
	Deleted bool
}

// PutOptions makes a write conditional. Revision and FenceKey exclude each other.
type PutOptions struct {
	// Revision is the one that the key must be at; 0 means it must not exist.
	// Nil writes whatever is there.
	Revision *uint64
	// TTL removes the key after this time, in whole seconds; 0 never does.
	TTL time.Duration
	// FenceKey is another key of the same bucket that must be at FenceRev.
	FenceKey string
	FenceRev uint64
}

// Get reads the newest revision of a key, or fails with [ErrNotFound].
func (c *Conn) Get(ctx context.Context, bucket, key string) (Entry, error) {
	return Entry{}, errors.New("not yet")
}

// Put writes a key and returns its revision. It fails with [ErrConflict] if a
// condition of opts does not hold. If the answer to a conditional write is
// lost, it is found out whether it was done.
func (c *Conn) Put(ctx context.Context, bucket, key string, value []byte, opts PutOptions) (uint64, error) {
	return 0, errors.New("not yet")
}

// Delete removes a key, under the conditions of opts (TTL is ignored). To delete
// a key that does not exist is no error.
func (c *Conn) Delete(ctx context.Context, bucket, key string, opts PutOptions) error {
	return errors.New("not yet")
}
