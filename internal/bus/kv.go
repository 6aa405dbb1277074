package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The buckets of a hub. [BucketName] gives their names in NATS.
const (
	BucketDefs     = "defs"
	BucketReg      = "reg"
	BucketPolicy   = "policy"
	BucketSessions = "sessions"
	BucketKeys     = "keys"
)

// MaxValueBytes bounds one value of a bucket.
const MaxValueBytes = 512 << 10

const (
	// apiTimeout bounds one request to JetStream: a refusal for lack of
	// permission is never answered.
	apiTimeout = 2 * time.Second
	// operationTimeout bounds a whole operation if its ctx does not; the
	// election of a leader in a cluster takes up to 9 s.
	operationTimeout = 12 * time.Second
	retryWait        = 50 * time.Millisecond
)

var (
	// ErrNotFound: the key does not exist or was deleted.
	ErrNotFound = errors.New("key not found")
	// ErrConflict: the key, or the key that fences the write, is not at the
	// revision that was expected. Nothing was written.
	ErrConflict = errors.New("wrong revision")
	// ErrNotPermitted: NATS does not permit the operation to this identity.
	ErrNotPermitted = errors.New("not permitted")
)

// Headers of messages in a bucket: those of NATS, and one of ours.
const (
	headerOperation   = "KV-Operation"
	headerRollup      = "Nats-Rollup"
	headerTTL         = "Nats-TTL"
	headerMarker      = "Nats-Marker-Reason"
	headerExpectedSeq = "Nats-Expected-Last-Subject-Sequence"
	headerExpectedKey = "Nats-Expected-Last-Subject-Sequence-Subject"
	// headerWrite tells one conditional write from another with the same value.
	headerWrite = "Toolhub-Write"
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

// bucket is one bucket as this process uses it.
type bucket struct {
	name   string // in NATS
	stream jetstream.Stream
	// history says that older revisions are kept, so that a marker of a
	// deletion must not go before them.
	history bool
}

func (b *bucket) subject(key string) string { return "$KV." + b.name + "." + key }

func (c *Conn) bucket(name string) (*bucket, error) {
	b := c.buckets[name]
	if b == nil {
		return nil, fmt.Errorf("no bucket %q: the buckets are %s", name, strings.Join(bucketNames(), ", "))
	}
	return b, nil
}

func checkKey(key string) error {
	if key == "" || len(key) > MaxKeyBytes || key[0] == '.' || key[len(key)-1] == '.' || strings.Contains(key, "..") {
		return fmt.Errorf("key %.40q: must have 1 to %d bytes and no empty part between dots", key, MaxKeyBytes)
	}
	for i := 0; i < len(key); i++ {
		if c := key[i]; !plain(c) && c != '=' && c != '.' && c != '/' {
			return fmt.Errorf("key %.40q: byte %q is not allowed, build keys with Key", key, c)
		}
	}
	return nil
}

// Get reads the newest revision of a key, or fails with [ErrNotFound].
func (c *Conn) Get(ctx context.Context, bucket, key string) (Entry, error) {
	b, err := c.bucket(bucket)
	if err != nil {
		return Entry{}, err
	}
	if err := checkKey(key); err != nil {
		return Entry{}, err
	}
	var e Entry
	err = c.retry(ctx, func(ctx context.Context) (bool, error) {
		msg, err := b.stream.GetLastMsgForSubject(ctx, b.subject(key))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return true, ErrNotFound
		}
		if err != nil {
			return false, err
		}
		e = entryOf(key, msg.Data, msg.Header, msg.Sequence, msg.Time)
		return true, nil
	})
	if err == nil && e.Deleted {
		err = ErrNotFound
	}
	if err != nil {
		return Entry{}, fmt.Errorf("couldn't get %s of %s: %w", key, bucket, err)
	}
	return e, nil
}

func entryOf(key string, data []byte, h nats.Header, seq uint64, created time.Time) Entry {
	e := Entry{Key: key, Value: data, Rev: seq, Created: created}
	if headerGet(h, headerOperation) != "" || headerGet(h, headerMarker) != "" {
		e.Deleted, e.Value = true, nil
		return e
	}
	if ttl := headerGet(h, headerTTL); ttl != "" {
		if d, err := time.ParseDuration(ttl); err == nil {
			e.TTL = d
		} else if n, err := strconv.ParseInt(ttl, 10, 32); err == nil {
			e.TTL = time.Duration(n) * time.Second
		}
	}
	return e
}

// Put writes a key and returns its revision. It fails with [ErrConflict] if a
// condition of opts does not hold. If the answer to a conditional write is
// lost, it is found out whether it was done.
func (c *Conn) Put(ctx context.Context, bucket, key string, value []byte, opts PutOptions) (uint64, error) {
	rev, err := c.put(ctx, bucket, key, value, opts)
	if err != nil {
		return 0, fmt.Errorf("couldn't put %s of %s: %w", key, bucket, err)
	}
	return rev, nil
}

func (c *Conn) put(ctx context.Context, bucket, key string, value []byte, opts PutOptions) (uint64, error) {
	b, err := c.bucket(bucket)
	if err != nil {
		return 0, err
	}
	if len(value) > MaxValueBytes {
		return 0, fmt.Errorf("the value has %d bytes, the limit is %d", len(value), MaxValueBytes)
	}
	header := nats.Header{}
	if opts.TTL != 0 {
		if opts.TTL < time.Second || opts.TTL%time.Second != 0 {
			return 0, fmt.Errorf("TTL must be whole seconds and at least one, got %v", opts.TTL)
		}
		header[headerTTL] = []string{strconv.FormatInt(int64(opts.TTL/time.Second), 10) + "s"}
	}
	return c.write(ctx, b, key, value, header, opts)
}

// Delete removes a key, under the conditions of opts (TTL is ignored). To delete
// a key that does not exist is no error.
func (c *Conn) Delete(ctx context.Context, bucket, key string, opts PutOptions) error {
	b, err := c.bucket(bucket)
	if err == nil {
		header := nats.Header{headerOperation: {"DEL"}}
		if !b.history {
			// The marker goes with the values it marks; watchers that were away
			// for longer compare the whole bucket anyway.
			header = nats.Header{headerOperation: {"PURGE"}, headerRollup: {"sub"}, headerTTL: {markerTTL.String()}}
		}
		_, err = c.write(ctx, b, key, nil, header, opts)
	}
	if err != nil {
		return fmt.Errorf("couldn't delete %s of %s: %w", key, bucket, err)
	}
	return nil
}

// write publishes one message into a bucket, until it is known whether it is
// there or ctx ends.
func (c *Conn) write(ctx context.Context, b *bucket, key string, value []byte, header nats.Header, opts PutOptions) (uint64, error) {
	if err := checkKey(key); err != nil {
		return 0, err
	}
	if opts.Revision != nil && opts.FenceKey != "" {
		return 0, errors.New("NATS checks one condition: Revision and FenceKey exclude each other")
	}
	msg := &nats.Msg{Subject: b.subject(key), Header: header, Data: value}
	var nonce string
	switch {
	case opts.Revision != nil:
		nonce = c.newID()
		header[headerWrite] = []string{nonce}
		header[headerExpectedSeq] = []string{strconv.FormatUint(*opts.Revision, 10)}
	case opts.FenceKey != "":
		if err := checkKey(opts.FenceKey); err != nil {
			return 0, err
		}
		header[headerExpectedSeq] = []string{strconv.FormatUint(opts.FenceRev, 10)}
		header[headerExpectedKey] = []string{b.subject(opts.FenceKey)}
	}
	var rev uint64
	err := c.retry(ctx, func(ctx context.Context) (bool, error) {
		ctx, stop := c.control.watchRefusal(ctx, msg.Subject)
		defer stop()
		ack, err := c.js.PublishMsg(ctx, msg)
		if err == nil {
			rev = ack.Sequence
			return true, nil
		}
		if errors.Is(context.Cause(ctx), ErrNotPermitted) {
			return true, context.Cause(ctx)
		}
		if !isConflict(err) {
			return isFinal(err), err
		}
		if opts.Revision == nil {
			return true, ErrConflict
		}
		// Either somebody else was faster, or an earlier attempt of ours was
		// done and its answer lost.
		last, err := c.leaderRead(ctx, b, key)
		switch {
		case errors.Is(err, ErrNotFound):
			return true, ErrConflict
		case err != nil:
			return false, err
		case last.nonce == nonce:
			rev = last.seq
			return true, nil
		case *opts.Revision == 0 && last.deleted && header[headerExpectedSeq][0] != strconv.FormatUint(last.seq, 10):
			// It does not exist, but for the marker of its deletion.
			header[headerExpectedSeq] = []string{strconv.FormatUint(last.seq, 10)}
			return false, nil
		}
		return true, ErrConflict
	})
	return rev, err
}

// isConflict matches the two codes of a wrong last sequence: replicated streams have their own.
func isConflict(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == 10164)
}

// isFinal reports whether the server has answered, so that a repetition would
// get the same answer.
func isFinal(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	if ok {
		return api.Code < 500
	}
	return errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrConnectionClosed)
}

// retry runs attempt, each time within apiTimeout and while the connection
// lasts, until it says that it is done or ctx ends, after operationTimeout if
// it has no end of its own.
func (c *Conn) retry(ctx context.Context, attempt func(ctx context.Context) (done bool, err error)) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, operationTimeout)
		defer cancel()
	}
	for {
		done, err := c.attempt(ctx, attempt)
		if done {
			return err
		}
		if ctx.Err() != nil {
			if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
				return context.Cause(ctx)
			}
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
		if err == nil {
			continue
		}
		wait := time.NewTimer(retryWait)
		select {
		case <-wait.C:
		case <-ctx.Done():
		case <-c.closing:
			wait.Stop()
			return err
		}
		wait.Stop()
	}
}

func (c *Conn) attempt(ctx context.Context, attempt func(context.Context) (bool, error)) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	down := c.control.downs()
	stop := make(chan struct{})
	defer close(stop)
	select {
	case <-down: // publishing fails by itself
	default:
		// A request whose connection breaks would wait for its whole time.
		go func() {
			select {
			case <-down:
				cancel()
			case <-stop:
			}
		}()
	}
	return attempt(ctx)
}

// leaderEntry is the newest message of a key, as the leader of the stream has it.
type leaderEntry struct {
	seq     uint64
	nonce   string
	deleted bool
}

// leaderRead reads a key from the leader. Other reads may be answered by a
// replica that has not seen the newest write yet.
func (c *Conn) leaderRead(ctx context.Context, b *bucket, key string) (leaderEntry, error) {
	body, err := json.Marshal(struct {
		Subject string `json:"last_by_subj"`
	}{b.subject(key)})
	if err != nil {
		return leaderEntry{}, err
	}
	msg, err := c.control.nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET.KV_"+b.name, body)
	if err != nil {
		return leaderEntry{}, err
	}
	var res struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Seq    uint64 `json:"seq"`
			Header []byte `json:"hdrs"`
		} `json:"message"`
	}
	if err := json.Unmarshal(msg.Data, &res); err != nil {
		return leaderEntry{}, fmt.Errorf("couldn't read the answer of JetStream: %w", err)
	}
	if res.Error != nil {
		if res.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return leaderEntry{}, ErrNotFound
		}
		return leaderEntry{}, res.Error
	}
	if res.Message == nil {
		return leaderEntry{}, errors.New("JetStream answered without a message")
	}
	e := leaderEntry{seq: res.Message.Seq}
	if len(res.Message.Header) > 0 {
		h, err := nats.DecodeHeadersMsg(res.Message.Header)
		if err != nil {
			return leaderEntry{}, err
		}
		e.nonce = headerGet(h, headerWrite)
		e.deleted = headerGet(h, headerOperation) != "" || headerGet(h, headerMarker) != ""
	}
	return e, nil
}
