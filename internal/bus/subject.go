package bus

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// All subjects begin with this token.
const root = "toolhub"

// AnyEpoch is the epoch in the subject of a server that several workers serve
// at once, in a queue group.
const AnyEpoch uint64 = 0

// AnyIdentity, as the identity of a control subject, reaches every process of
// the hub. No process may have it as its identity.
const AnyIdentity = "any"

// Verbs of control subjects.
const (
	// CtlCancel ends the call whose id is the body.
	CtlCancel = "cancel"
)

// maxToken bounds one escaped token, so that four of them make a key shorter
// than 512 bytes. What is longer becomes a digest, which cannot be read back.
const maxToken = 120

// MaxKeyBytes bounds a key of a bucket: a server closes the connection that
// sends a control line beyond its limit.
const MaxKeyBytes = 511

// CallSubject is where one server takes calls of method in one epoch of its
// ownership; every "/" of method separates tokens. epoch may be [AnyEpoch].
func CallSubject(hub, server string, epoch uint64, method string) string {
	return callPrefix(hub, server, epoch) + path(method, '/')
}

// ServeSubject matches the [CallSubject] of every method.
func ServeSubject(hub, server string, epoch uint64) string {
	return callPrefix(hub, server, epoch) + ">"
}

func callPrefix(hub, server string, epoch uint64) string {
	e := "any"
	if epoch != AnyEpoch {
		e = strconv.FormatUint(epoch, 10)
	}
	return root + "." + token(hub) + ".call." + token(server) + "." + e + "."
}

// AtSubject is where one worker takes a call for a server that must reach the
// very process that asked for input.
func AtSubject(hub, worker, server, method string) string {
	return root + "." + token(hub) + ".at." + token(worker) + "." + token(server) + "." + path(method, '/')
}

// ServeAtSubject matches the [AtSubject] of every server and method.
func ServeAtSubject(hub, worker string) string {
	return root + "." + token(hub) + ".at." + token(worker) + ".>"
}

// CtlSubject is where one process takes control messages. identity may be [AnyIdentity].
func CtlSubject(hub, identity, verb string) string {
	return root + "." + token(hub) + ".ctl." + token(identity) + "." + token(verb)
}

// APISubject is where routers take one operation of the operator API; every "."
// of op separates tokens.
func APISubject(hub, op string) string {
	return root + "." + token(hub) + ".api." + path(op, '.')
}

// ServeAPISubject matches the [APISubject] of every operation.
func ServeAPISubject(hub string) string { return root + "." + token(hub) + ".api.>" }

// SessionSubject is where routers take messages about one legacy session: the
// one that holds what a message is about acts on it.
func SessionSubject(hub, session string) string {
	return root + "." + token(hub) + ".session." + token(session)
}

// ServeSessionSubject matches the [SessionSubject] of every session.
func ServeSessionSubject(hub string) string { return root + "." + token(hub) + ".session.>" }

// eventSubject is where an event is published: see [Event]. prefix is that of
// its hub.
func eventSubject(prefix, kind, id, what string) string {
	return prefix + token(kind) + "." + token(id) + "." + token(what)
}

// EventFilter makes the filter of [Conn.Events] from the parts of an event's
// subject, each of which may be "*". Without parts it matches every event;
// parts that are left off match anything.
func EventFilter(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		if p != "*" {
			p = token(p)
		}
		b.WriteString(p)
		b.WriteByte('.')
	}
	if len(parts) < 3 {
		return b.String() + ">"
	}
	return strings.TrimSuffix(b.String(), ".")
}

func eventPrefix(hub string) string { return root + "." + token(hub) + ".event." }

// Area says which of the families of subjects a [Subject] belongs to.
type Area string

// The areas: the third token of every subject.
const (
	AreaCall    Area = "call"
	AreaAt      Area = "at"
	AreaCtl     Area = "ctl"
	AreaAPI     Area = "api"
	AreaSession Area = "session"
	AreaEvent   Area = "event"
)

// Subject is a subject taken apart. Which fields are set depends on Area.
type Subject struct {
	Hub  string
	Area Area
	// Server and Epoch are of a call; Server also of at.
	Server string
	Epoch  uint64
	// Method is the MCP method (call, at), the operation (api) or the verb (ctl).
	Method string
	// Identity is the process addressed (at, ctl).
	Identity string
	// Session is the session id (session).
	Session string
	// Kind, ID and What are of an event.
	Kind, ID, What string
}

// ParseSubject takes apart what the functions above build. It reports false for
// any other subject, and where a name was so long that only its digest is left.
func ParseSubject(s string) (Subject, bool) {
	raw := strings.Split(s, ".")
	if len(raw) < 4 || raw[0] != root {
		return Subject{}, false
	}
	t := make([]string, len(raw))
	for i, r := range raw {
		var ok bool
		if t[i], ok = untoken(r); !ok {
			return Subject{}, false
		}
	}
	out := Subject{Hub: t[1], Area: Area(raw[2])}
	switch n := len(t); {
	case out.Area == AreaCall && n >= 6:
		out.Server, out.Method = t[3], strings.Join(t[5:], "/")
		if raw[4] != "any" {
			epoch, err := strconv.ParseUint(raw[4], 10, 64)
			if err != nil || epoch == AnyEpoch || strconv.FormatUint(epoch, 10) != raw[4] {
				return Subject{}, false
			}
			out.Epoch = epoch
		}
	case out.Area == AreaAt && n >= 6:
		out.Identity, out.Server, out.Method = t[3], t[4], strings.Join(t[5:], "/")
	case out.Area == AreaCtl && n == 5:
		out.Identity, out.Method = t[3], t[4]
	case out.Area == AreaAPI:
		out.Method = strings.Join(t[3:], ".")
	case out.Area == AreaSession && n == 4:
		out.Session = t[3]
	case out.Area == AreaEvent && n == 6:
		out.Kind, out.ID, out.What = t[3], t[4], t[5]
	default:
		return Subject{}, false
	}
	return out, true
}

// Key kinds: the first token of a key, in the bucket named.
const (
	KeySettings = "settings" // defs: the hub's own settings
	KeyServer   = "server"   // defs: server.<id>
	KeyLease    = "lease"    // reg: lease.<worker>.<incarnation>
	KeyOwn      = "own"      // reg: own.<server>; its revision is the epoch
	KeyCatalog  = "cat"      // reg: cat.<server>
	KeyPart     = "part"     // reg: part.<hash>
	KeyStatus   = "status"   // reg: status.<server>
	KeyPolicy   = "policy"   // policy: policy.<name>
	KeySession  = "session"  // sessions: session.<id>
	KeySeal     = "seal"     // keys: the key of [Seal]
)

// Key builds a key of a bucket from its kind and names; names are escaped, and
// one beyond 120 bytes is replaced by its digest.
func Key(kind string, names ...string) string {
	var b strings.Builder
	b.WriteString(token(kind))
	for _, n := range names {
		b.WriteByte('.')
		b.WriteString(token(n))
	}
	return b.String()
}

// KeyFilter matches every key of kind, for [Conn.Watch].
func KeyFilter(kind string) string { return token(kind) + ".>" }

// ParseKey takes apart what [Key] builds. It reports false for any other key,
// and where a name was so long that only its digest is left.
func ParseKey(key string) (kind string, names []string, ok bool) {
	for i, r := range strings.Split(key, ".") {
		t, ok := untoken(r)
		if !ok {
			return "", nil, false
		}
		if i == 0 {
			kind = t
		} else {
			names = append(names, t)
		}
	}
	return kind, names, true
}

// BucketName is the real name of a bucket of hub, as `nats kv ls` shows it.
func BucketName(hub, bucket string) string { return "TOOLHUB_" + word(hub) + "_" + bucket }

// EventStream is the name of the stream that keeps the events of hub.
func EventStream(hub string) string { return "TOOLHUB_" + word(hub) + "_events" }

// inboxPrefix is the root of all reply subjects of a process, so that one
// permission covers them.
func inboxPrefix(identity string) string { return "_INBOX." + token(identity) }

// path escapes the parts of s between separators and joins them with dots.
func path(s string, sep byte) string {
	if len(s) > maxToken {
		return token(s)
	}
	parts := strings.Split(s, string(sep))
	for i, p := range parts {
		parts[i] = token(p)
	}
	return strings.Join(parts, ".")
}

func plain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// token makes one token of a subject or key from any name: bytes other than
// letters, digits, "_" and "-" become "=" and two hex digits, the empty name
// becomes "=", and a name that would be too long "==" and its digest.
func token(s string) string {
	escape := s == ""
	for i := 0; i < len(s) && !escape; i++ {
		escape = !plain(s[i])
	}
	if !escape && len(s) <= maxToken {
		return s
	}
	if s == "" {
		return "="
	}
	out := make([]byte, 0, min(3*len(s), maxToken+3))
	for i := 0; i < len(s); i++ {
		if c := s[i]; plain(c) {
			out = append(out, c)
		} else {
			out = append(out, '=')
			out = hex.AppendEncode(out, []byte{c})
		}
		if len(out) > maxToken {
			sum := sha256.Sum256([]byte(s))
			return "==" + hex.EncodeToString(sum[:16])
		}
	}
	return string(out)
}

// untoken is the name that token was made from, false if it was made from none
// or is a digest.
func untoken(t string) (string, bool) {
	if t == "=" {
		return "", true
	}
	if t == "" || len(t) > maxToken {
		return "", false
	}
	if strings.IndexByte(t, '=') < 0 {
		for i := 0; i < len(t); i++ {
			if !plain(t[i]) {
				return "", false
			}
		}
		return t, true
	}
	out := make([]byte, 0, len(t))
	for i := 0; i < len(t); i++ {
		c := t[i]
		switch {
		case plain(c):
			out = append(out, c)
		case c == '=' && i+2 < len(t):
			var b [1]byte
			if _, err := hex.Decode(b[:], []byte(t[i+1:i+3])); err != nil {
				return "", false
			}
			out = append(out, b[0])
			i += 2
		default:
			return "", false
		}
	}
	s := string(out)
	return s, token(s) == t // refuses other spellings of the same name
}

// word makes a part of a stream or bucket name, where "=" and "." are not
// allowed: bytes other than letters and digits become "-" and two hex digits.
func word(s string) string {
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if c := s[i]; plain(c) && c != '-' {
			out = append(out, c)
		} else {
			out = append(out, '-')
			out = hex.AppendEncode(out, []byte{c})
		}
	}
	return string(out)
}
