package policy

import (
	"encoding/hex"
	"path"
	"slices"
	"strings"

	"toolhub/internal/catalog"
)

// target is what a decision is about, in the spellings that rules are held against.
//
// One resource has many URIs: a server may well read file:///a/../b or
// file:///%62 as file:///b. So a deny or ask rule counts as soon as it covers any
// spelling, and an allow rule covers a URI that climbs (..) only if it covers
// wherever that may lead, too.
type target struct {
	server string
	kind   catalog.Kind
	// key is the name or URI as it was asked for.
	key string
	// others are further spellings of a URI, nil as a rule.
	others []string
	// climbs says that the URI has "..", and the others are where that leads.
	climbs bool
}

func newTarget(in Input) target {
	t := target{server: in.Server}
	if t.kind, t.key = catalog.CutPolicyName(in.Tool); t.kind != catalog.KindResource {
		return t
	}
	// A fragment is no part of what is read (RFC 3986), but not every server knows that.
	body, _, _ := strings.Cut(t.key, "#")
	for _, uri := range slices.Compact([]string{t.key, body}) {
		plain, climbs := plainURIs(uri)
		t.climbs = t.climbs || climbs
		for _, spelling := range append(plain, uri) {
			if spelling != t.key && !slices.Contains(t.others, spelling) {
				t.others = append(t.others, spelling)
			}
		}
	}
	return t
}

// coveredBy reports whether the tool part of the rule's pattern covers the target.
func (t *target) coveredBy(r *rule) bool {
	covers := func(key string) bool { return r.pattern.MatchKey(t.kind, key) }
	switch {
	case len(t.others) == 0:
		return covers(t.key)
	case r.effect != Allow:
		return covers(t.key) || slices.ContainsFunc(t.others, covers)
	case !covers(t.key):
		return false
	}
	return !t.climbs || !slices.ContainsFunc(t.others, func(key string) bool { return !covers(key) })
}

// plainURIs are the plainest spellings of a URI: scheme and host in lower case,
// nothing percent-encoded, single slashes, and no dot segments. There is a second one
// where the server may take the host for the first step of a path. climbs
// says that there was a "..".
func plainURIs(uri string) (plain []string, climbs bool) {
	scheme, rest, ok := strings.Cut(uri, ":")
	if !ok {
		return nil, false
	}
	scheme = strings.ToLower(scheme) + ":"
	rest = strings.ReplaceAll(decoded(rest), `\`, "/")
	climbs = slices.Contains(strings.Split(rest, "/"), "..")
	all, authority := strings.CutPrefix(rest, "//")
	if !authority {
		return []string{scheme + cleaned(rest)}, climbs
	}
	host, steps := all, ""
	if i := strings.IndexByte(all, '/'); i >= 0 {
		host, steps = all[:i], all[i:]
	}
	host = strings.ToLower(host)
	plain = []string{scheme + "//" + host + cleaned(steps)}
	if climbs && host != "" {
		plain = append(plain, scheme+"/"+cleaned("/"+host+steps))
	}
	return plain, climbs
}

// cleaned is path.Clean, which keeps a slash at the end.
func cleaned(s string) string {
	if s == "" {
		return ""
	}
	clean := path.Clean(s)
	if strings.HasSuffix(s, "/") && clean != "/" {
		clean += "/"
	}
	return clean
}

// decoded is s without percent-encoding, where that is valid.
func decoded(s string) string {
	var b strings.Builder
	for {
		before, after, ok := strings.Cut(s, "%")
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		plain, err := hex.DecodeString(after[:min(2, len(after))])
		if err != nil || len(plain) == 0 {
			b.WriteByte('%')
			s = after
			continue
		}
		b.Write(plain)
		s = after[2:]
	}
}
