package registry

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"toolhub/internal/bus"
	"toolhub/internal/config"
)

// Source says who defined a server.
type Source string

// The sources of a definition.
const (
	// SourceFile: from a configuration file; leaving the file removes it.
	SourceFile Source = "file"
	// SourceRuntime: added while the hub ran; files do not touch it.
	SourceRuntime Source = "runtime"
)

// Definition is a server as defined, before the hub's settings are folded in.
type Definition struct {
	Server config.Server `json:"server"`
	Source Source        `json:"source"`
	// Index is the place in the file that it comes from.
	Index int `json:"index"`
	// Added is when a runtime server was added; zero for those of a file, so that
	// applying the same file twice changes nothing.
	Added time.Time `json:"added,omitzero"`
}

// before is the listing order (L1).
func (d *Definition) before(o *Definition) int {
	if d.Source != o.Source {
		if d.Source == SourceFile {
			return -1
		}
		return 1
	}
	if c := d.Index - o.Index; d.Source == SourceFile && c != 0 {
		return c
	}
	if c := d.Added.Compare(o.Added); c != 0 {
		return c
	}
	return strings.Compare(d.Server.ID, o.Server.ID)
}

// Diff is what [Apply] changed, by server id.
type Diff struct {
	Settings                bool
	Added, Changed, Removed []string
}

// Empty reports whether nothing changed.
func (d Diff) Empty() bool {
	return !d.Settings && len(d.Added)+len(d.Changed)+len(d.Removed) == 0
}

// Apply makes the file's definition the hub's: settings and servers are written
// where they differ, servers of an earlier file that are not in this one are
// removed, servers added at runtime stay. It is idempotent and touches nothing
// that is unchanged.
func Apply(ctx context.Context, conn *bus.Conn, file *config.File) (Diff, error) {
	var diff Diff
	stored, err := conn.List(ctx, bus.BucketDefs, ">")
	if err != nil {
		return diff, fmt.Errorf("couldn't read the definitions of hub %q: %w", conn.Hub(), err)
	}
	have := map[string]bus.Entry{}
	for _, e := range stored {
		have[e.Key] = e
	}
	write := func(key string, v any) (changed bool, err error) {
		data, err := json.Marshal(v, json.Deterministic(true))
		if err != nil {
			return false, err
		}
		old, ok := have[key]
		if ok && bytes.Equal(old.Value, data) {
			return false, nil
		}
		_, err = conn.Put(ctx, bus.BucketDefs, key, data, bus.PutOptions{})
		return true, err
	}
	// Settings first: a server must never run under a policy older than itself.
	if diff.Settings, err = write(bus.Key(bus.KeySettings), file.Settings); err != nil {
		return diff, fmt.Errorf("couldn't write the settings: %w", err)
	}
	for i, s := range file.Servers {
		key := bus.Key(bus.KeyServer, s.ID)
		changed, err := write(key, Definition{Server: s, Source: SourceFile, Index: i})
		if err != nil {
			return diff, fmt.Errorf("couldn't write server %q: %w", s.ID, err)
		}
		if _, known := have[key]; !known {
			diff.Added = append(diff.Added, s.ID)
		} else if changed {
			diff.Changed = append(diff.Changed, s.ID)
		}
		delete(have, key)
	}
	for key, e := range have {
		kind, names, ok := bus.ParseKey(key)
		if !ok || kind != bus.KeyServer || len(names) != 1 {
			continue
		}
		id := names[0]
		var d Definition
		if err := json.Unmarshal(e.Value, &d); err == nil && d.Source != SourceFile {
			continue
		}
		if err := conn.Delete(ctx, bus.BucketDefs, key, bus.PutOptions{}); err != nil {
			return diff, fmt.Errorf("couldn't remove server %q: %w", id, err)
		}
		diff.Removed = append(diff.Removed, id)
	}
	slices.Sort(diff.Removed)
	if diff.Settings {
		conn.Emit(bus.Event{Kind: "policy", Subject: conn.Hub(), What: "changed"})
	}
	for _, id := range diff.Removed {
		conn.Emit(bus.Event{Kind: "server", Subject: id, What: "removed"})
	}
	return diff, nil
}
