package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

const (
	// markerTTL is how long the markers of deletions stay. A watcher that was
	// away for half of it compares the whole bucket instead of resuming.
	markerTTL = time.Hour
	// eventAge is how long events are kept.
	eventAge = 7 * 24 * time.Hour
	// provisionTimeout bounds the making of all buckets: each is several writes
	// that are forced to the disk.
	provisionTimeout = 10 * time.Second
)

type bucketSpec struct {
	name        string
	description string
	history     uint8
}

func bucketSpecs() []bucketSpec {
	return []bucketSpec{
		{BucketDefs, "definitions: settings and servers", 10},
		{BucketReg, "registry: leases, ownership, catalogs, status", 1},
		{BucketPolicy, "named policies", 10},
		{BucketSessions, "legacy MCP sessions", 1},
		{BucketKeys, "secrets of the hub", 1},
	}
}

func bucketNames() []string {
	var names []string
	for _, s := range bucketSpecs() {
		names = append(names, s.name)
	}
	return names
}

// provision makes what does not exist of the hub's buckets and its stream. What
// exists stays as it is: an operator may have changed it.
func (c *Conn) provision(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, provisionTimeout)
	defer cancel()
	specs := bucketSpecs()
	made := make([]*bucket, len(specs))
	g, making := errgroup.WithContext(ctx)
	for i, spec := range specs {
		g.Go(func() error {
			b, err := c.provisionBucket(making, spec)
			if err != nil {
				return fmt.Errorf("couldn't make the bucket %s: %w", BucketName(c.cfg.Hub, spec.name), err)
			}
			made[i] = b
			return nil
		})
	}
	g.Go(func() error {
		if err := c.provisionEvents(making); err != nil {
			return fmt.Errorf("couldn't make the stream %s: %w", EventStream(c.cfg.Hub), err)
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return err
	}
	if c.buckets == nil { // it is made once, by Connect; what is in it stays right
		c.buckets = make(map[string]*bucket, len(specs))
		for i, spec := range specs {
			c.buckets[spec.name] = made[i]
		}
	}
	return c.keepSeal(ctx)
}

func (c *Conn) provisionBucket(ctx context.Context, spec bucketSpec) (*bucket, error) {
	name := BucketName(c.cfg.Hub, spec.name)
	stream, err := c.js.Stream(ctx, "KV_"+name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = c.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: name, Description: "Toolhub: " + spec.description,
			History: spec.history, MaxValueSize: MaxValueBytes, Storage: jetstream.FileStorage,
			Replicas: c.cfg.Replicas, LimitMarkerTTL: markerTTL,
		})
		if err == nil || errors.Is(err, jetstream.ErrBucketExists) { // another process was faster
			stream, err = c.js.Stream(ctx, "KV_"+name)
		}
	}
	if err != nil {
		return nil, err
	}
	cfg := stream.CachedInfo().Config
	if !cfg.AllowMsgTTL || cfg.SubjectDeleteMarkerTTL == 0 {
		return nil, fmt.Errorf("it exists without limit_marker_ttl, which leases need: set it to %v", markerTTL)
	}
	return &bucket{name: name, stream: stream, history: cfg.MaxMsgsPerSubject > 1}, nil
}

func (c *Conn) provisionEvents(ctx context.Context) error {
	name := EventStream(c.cfg.Hub)
	_, err := c.js.Stream(ctx, name)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	cfg := jetstream.StreamConfig{
		Name: name, Description: "Toolhub: events", Subjects: []string{eventPrefix(c.cfg.Hub) + ">"},
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
		MaxAge: eventAge, MaxBytes: c.cfg.EventBytes, MaxMsgSize: maxEventBytes, Replicas: c.cfg.Replicas,
		AllowDirect: true,
	}
	if c.cfg.Replicas == 1 {
		// An event must not cost a write to the disk that calls wait for.
		cfg.PersistMode = jetstream.AsyncPersistMode
	}
	_, err = c.js.CreateStream(ctx, cfg)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process was faster
		return nil
	}
	return err
}
