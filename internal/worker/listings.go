package worker

import (
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/catalog"
	"toolhub/internal/mcp"
)

// listings are what a server lists in each era that it is connected in. They are
// immutable.
type listings struct{ modern, legacy *listing }

func (l listings) of(era mcp.Era) *listing {
	if era == mcp.EraLegacy {
		return l.legacy
	}
	return l.modern
}

func (l listings) with(era mcp.Era, list *listing) listings {
	if era == mcp.EraLegacy {
		l.legacy = list
	} else {
		l.modern = list
	}
	return l
}

// ttl is the least time that one of the lists may be kept, 0 if none says.
func (l listings) ttl() time.Duration {
	var least time.Duration
	for _, list := range []*listing{l.modern, l.legacy} {
		if list == nil {
			continue
		}
		if ttl := list.ttl(); ttl > 0 && (least == 0 || ttl < least) {
			least = ttl
		}
	}
	return least
}

// itemKey names one thing of a server.
type itemKey struct {
	kind catalog.Kind
	key  string
}

// union is what there is in either era; of what is in both, the modern
// definition, which says more.
func (l listings) union() catalog.Lists {
	only := l.legacyOnly()
	out := catalog.Lists{Hints: make(map[catalog.Kind]catalog.Hint)}
	into := [4]*[]jsontext.Value{&out.Tools, &out.Resources, &out.Templates, &out.Prompts}
	for i, kind := range catalog.Kinds() {
		switch {
		case l.modern == nil && l.legacy == nil:
			continue
		case l.modern == nil:
			*into[i] = l.legacy.defs[i]
		case l.legacy == nil:
			*into[i] = l.modern.defs[i]
		default:
			*into[i] = slices.Clone(l.modern.defs[i])
			for _, def := range l.legacy.defs[i] {
				if only[itemKey{kind, mcp.FieldString(def, kind.Listing().Key)}] {
					*into[i] = append(*into[i], def)
				}
			}
		}
		// A legacy list says nothing about how long it holds, so neither does the union.
		if l.legacy == nil && l.modern.hints[i] != nil {
			out.Hints[kind] = *l.modern.hints[i]
		}
	}
	return out
}

// legacyOnly is what a server in both eras has in the legacy one only, nil if
// there is nothing.
func (l listings) legacyOnly() map[itemKey]bool {
	if l.modern == nil || l.legacy == nil {
		return nil
	}
	var only map[itemKey]bool
	for i, kind := range catalog.Kinds() {
		member := kind.Listing().Key
		known := make(map[string]bool, len(l.modern.defs[i]))
		for _, def := range l.modern.defs[i] {
			known[mcp.FieldString(def, member)] = true
		}
		for _, def := range l.legacy.defs[i] {
			key := mcp.FieldString(def, member)
			if known[key] {
				continue
			}
			if only == nil {
				only = make(map[itemKey]bool)
			}
			only[itemKey{kind, key}] = true
		}
	}
	return only
}
