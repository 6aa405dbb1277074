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
	"toolhub/internal/policy"
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
	// Policies are the servers, not new, whose own policy is another one now: in
	// their definition, or the named one that it refers to.
	Policies []string
}

// policyEvent is the data of policy.changed.
type policyEvent struct {
	// Settings says that the hub's settings have changed, policies among them.
	Settings bool `json:"settings"`
	// Servers are those of [Diff.Policies], at most [maxEventServers].
	Servers []string `json:"servers"`
}

// maxEventServers keeps an event far below what an event may hold.
const maxEventServers = 1000

// emit tells what has changed.
func (d *Diff) emit(conn *bus.Conn) {
	if d.Settings || len(d.Policies) > 0 {
		conn.Emit(bus.Event{Kind: "policy", Subject: conn.Hub(), What: "changed", Data: policyEvent{
			Settings: d.Settings, Servers: d.Policies[:min(len(d.Policies), maxEventServers)],
		}})
	}
	for _, id := range d.Removed {
		conn.Emit(bus.Event{Kind: "server", Subject: id, What: "removed"})
	}
}

// Apply makes the file's definition the hub's: settings and servers are written
// where they differ, servers of an earlier file that are not in this one are
// removed, servers added at runtime stay. It is idempotent and touches nothing
// that is unchanged. What an Apply that fails has changed by then is in the Diff.
func Apply(ctx context.Context, conn *bus.Conn, file *config.File) (diff Diff, err error) {
	defer func() {
		slices.Sort(diff.Removed)
		slices.Sort(diff.Policies)
		diff.emit(conn)
	}()
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
		return err == nil, err
	}
	var before config.Settings
	if old, ok := have[bus.Key(bus.KeySettings)]; ok {
		_ = json.Unmarshal(old.Value, &before) // what cannot be read has no policies
	}
	policyChanged := func(old, now *config.Server) bool {
		return !bytes.Equal(ownPolicy(before, old), ownPolicy(file.Settings, now))
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
		old, known := have[key]
		switch {
		case !known:
			diff.Added = append(diff.Added, s.ID)
		case changed:
			diff.Changed = append(diff.Changed, s.ID)
		}
		var d Definition
		if known && json.Unmarshal(old.Value, &d) == nil && policyChanged(&d.Server, &s) {
			diff.Policies = append(diff.Policies, s.ID)
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
			if policyChanged(&d.Server, &d.Server) {
				diff.Policies = append(diff.Policies, id)
			}
			continue
		}
		if err := conn.Delete(ctx, bus.BucketDefs, key, bus.PutOptions{}); err != nil {
			return diff, fmt.Errorf("couldn't remove server %q: %w", id, err)
		}
		diff.Removed = append(diff.Removed, id)
	}
	return diff, nil
}

// ownPolicy is the policy in force for s alone, nil if the hub's is: whatever its
// name is, and wherever its rules stand.
func ownPolicy(settings config.Settings, s *config.Server) []byte {
	if s.Policy == nil {
		return nil
	}
	spec, err := settings.Resolve(s.Policy)
	if err != nil {
		return []byte(err.Error())
	}
	for _, rules := range []*[]policy.Rule{&spec.Deny, &spec.Ask, &spec.Allow} {
		*rules = slices.Clone(*rules)
		for i := range *rules {
			(*rules)[i].File, (*rules)[i].Line = "", 0
		}
	}
	data, err := json.Marshal(spec, json.Deterministic(true))
	if err != nil {
		return []byte(err.Error())
	}
	return data
}
