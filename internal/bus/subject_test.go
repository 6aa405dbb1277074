package bus

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// hostile are names that break a subject or a key if they are not escaped.
var hostile = []string{
	"", ".", "..", "*", ">", "a.b", "a b", "a\tb", "a\r\nb", "tools/call", "=", "==", "=2e", "=2E", "===", "any", "0",
	"\x00", "\xff\xfe", "ünïcödé", "日本語", "🦜", "a/b", "$SYS", "$KV.x", "_INBOX", "-", "_", "a=b", "%2e", "\"", "'; drop",
	strings.Repeat("a", 119), strings.Repeat("a", 120), strings.Repeat("a", 121), strings.Repeat("日", 40), strings.Repeat("日", 41), strings.Repeat("x.", 4000),
}

// anyName is a name of the kind that people, programs and attackers choose.
func anyName() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.SampledFrom(hostile),
		rapid.String(),
		rapid.StringMatching(`[a-z][a-z0-9_]{0,31}`),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 200), func(b []byte) string { return string(b) }),
	)
}

// readable reports whether a name survives: a long one is replaced by its digest.
func readable(names ...string) bool {
	for _, n := range names {
		if strings.HasPrefix(token(n), "==") {
			return false
		}
	}
	return true
}

var subjectForm = regexp.MustCompile(`^[a-zA-Z0-9_=-]+(\.[a-zA-Z0-9_=-]+)*$`)

// failer is *testing.T and *rapid.T.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func checkSubject(t failer, s string) {
	t.Helper()
	if !subjectForm.MatchString(s) || len(s) > 2000 {
		t.Fatalf("%q is no subject that is safe to publish on", s)
	}
}

func roundTrip(t failer, subject string, want Subject, names ...string) {
	t.Helper()
	checkSubject(t, subject)
	got, ok := ParseSubject(subject)
	if ok != readable(names...) {
		t.Fatalf("ParseSubject(%q) = %v, names %q", subject, ok, names)
	}
	if !ok {
		want = Subject{}
	}
	if got != want {
		t.Fatalf("ParseSubject(%q) = %+v, want %+v", subject, got, want)
	}
}

func checkAllSubjects(t failer, hub, a, b, c string, epoch uint64) {
	t.Helper()
	method := "tools/call"
	roundTrip(t, CallSubject(hub, a, epoch, method), Subject{Hub: hub, Area: AreaCall, Server: a, Epoch: epoch, Method: method}, hub, a)
	roundTrip(t, AtSubject(hub, b, a, method), Subject{Hub: hub, Area: AreaAt, Identity: b, Server: a, Method: method}, hub, a, b)
	roundTrip(t, CtlSubject(hub, a, b), Subject{Hub: hub, Area: AreaCtl, Identity: a, Method: b}, hub, a, b)
	roundTrip(t, SessionSubject(hub, a), Subject{Hub: hub, Area: AreaSession, Session: a}, hub, a)
	roundTrip(t, eventSubject(eventPrefix(hub), a, b, c), Subject{Hub: hub, Area: AreaEvent, Kind: a, ID: b, What: c}, hub, a, b, c)
	roundTrip(t, APISubject(hub, "servers.list"), Subject{Hub: hub, Area: AreaAPI, Method: "servers.list"}, hub)
	// A method or an operation of any form; a long one is a digest as a whole or in part.
	for _, s := range []string{CallSubject(hub, a, epoch, c), APISubject(hub, c)} {
		checkSubject(t, s)
		if got, ok := ParseSubject(s); ok && got.Method != c {
			t.Fatalf("ParseSubject(%q).Method = %q, want %q", s, got.Method, c)
		}
	}
	for _, key := range []string{Key(KeyServer, a), Key(KeyLease, a, b), Key(a, b, c)} {
		if err := checkKey(key); err != nil {
			t.Fatal(err)
		}
	}
	kind, names, ok := ParseKey(Key(a, b, c))
	if ok != readable(a, b, c) || ok && (kind != a || len(names) != 2 || names[0] != b || names[1] != c) {
		t.Fatalf("ParseKey(Key(%q, %q, %q)) = %q, %q, %v", a, b, c, kind, names, ok)
	}
	if stream := EventStream(hub); !regexp.MustCompile(`^[a-zA-Z0-9_-]+$`).MatchString(stream) {
		t.Fatalf("%q is no name of a stream", stream)
	}
}

func TestSubjectsRoundTrip(t *testing.T) {
	t.Parallel()
	for _, h := range hostile {
		checkAllSubjects(t, "test", h, "w1", h, 7)
		checkAllSubjects(t, h, "a", h, "b", AnyEpoch)
	}
	rapid.Check(t, func(t *rapid.T) {
		name := anyName()
		checkAllSubjects(t, name.Draw(t, "hub"), name.Draw(t, "a"), name.Draw(t, "b"), name.Draw(t, "c"), rapid.Uint64().Draw(t, "epoch"))
	})
}

func TestDifferentNamesNeverShareASubject(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := anyName()
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		if a != b && token(a) == token(b) {
			t.Fatalf("%q and %q are both %q", a, b, token(a))
		}
		if a != b && word(a) == word(b) {
			t.Fatalf("%q and %q are both %q", a, b, word(a))
		}
		if CallSubject("h", a, 1, "m") == CallSubject("h", b, 1, "m") && a != b {
			t.Fatalf("servers %q and %q share a subject", a, b)
		}
	})
}

func TestParseSubjectRefuses(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", "toolhub", "toolhub.test", "toolhub.test.call", "toolhub.test.call.s", "toolhub.test.call.s.1", "other.test.call.s.1.tools.call",
		"toolhub.test.call.s.0.tools.call", "toolhub.test.call.s.01.tools.call", "toolhub.test.call.s.-1.m", "toolhub.test.call.s.x.m",
		"toolhub.test.call.s.18446744073709551616.m", "toolhub.test.call..1.m", "toolhub.test.call.s.1.", "toolhub.test.call.=61.1.m",
		"toolhub.test.call.=6.1.m", "toolhub.test.call.=zz.1.m", "toolhub.test.call.*.1.m", "toolhub.test.call.s.1.>",
		"toolhub.test.ctl.w", "toolhub.test.ctl.w.a.b", "toolhub.test.event.a.b", "toolhub.test.event.a.b.c.d", "toolhub.test.session.a.b",
		"toolhub.test.nothing.a.b", "toolhub.test.call.=2E.1.m",
	} {
		if got, ok := ParseSubject(s); ok || got != (Subject{}) {
			t.Errorf("ParseSubject(%q) = %+v, %v", s, got, ok)
		}
	}
}

func FuzzSubjects(f *testing.F) {
	for _, h := range hostile {
		f.Add("test", h, "b", h, uint64(3))
	}
	f.Fuzz(func(t *testing.T, hub, a, b, c string, epoch uint64) { checkAllSubjects(t, hub, a, b, c, epoch) })
}

// FuzzParseSubject: whatever is parsed is what the functions build, in one form only.
func FuzzParseSubject(f *testing.F) {
	f.Add("toolhub.test.call.github.7.tools.call")
	f.Add("toolhub.test.at.w1.github.tools.call")
	f.Add("toolhub.test.event.server.a=2eb.up")
	f.Fuzz(func(t *testing.T, s string) {
		p, ok := ParseSubject(s)
		if !ok {
			return
		}
		var again string
		switch p.Area {
		case AreaCall:
			again = CallSubject(p.Hub, p.Server, p.Epoch, p.Method)
		case AreaAt:
			again = AtSubject(p.Hub, p.Identity, p.Server, p.Method)
		case AreaCtl:
			again = CtlSubject(p.Hub, p.Identity, p.Method)
		case AreaAPI:
			again = APISubject(p.Hub, p.Method)
		case AreaSession:
			again = SessionSubject(p.Hub, p.Session)
		case AreaEvent:
			again = eventSubject(eventPrefix(p.Hub), p.Kind, p.ID, p.What)
		}
		if q, ok := ParseSubject(again); again != s && ok && q != p {
			t.Fatalf("%q was parsed as %+v, which is built as %q", s, p, again)
		}
	})
}

func TestEventFilter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		parts []string
		want  string
	}{
		{nil, ">"},
		{[]string{"server"}, "server.>"},
		{[]string{"server", "*", "up"}, "server.*.up"},
		{[]string{"call", "git.hub"}, "call.git=2ehub.>"},
		{[]string{">"}, "=3e.>"},
	} {
		if got := EventFilter(c.parts...); got != c.want {
			t.Errorf("EventFilter(%q) = %q, want %q", c.parts, got, c.want)
		}
	}
}

func TestFiltersMatchWhatTheyShould(t *testing.T) {
	t.Parallel()
	for prefix, subjects := range map[string][]string{
		ServeSubject("h", "s", 3):        {CallSubject("h", "s", 3, "tools/call"), CallSubject("h", "s", 3, "ping")},
		ServeSubject("h", "s", AnyEpoch): {CallSubject("h", "s", AnyEpoch, "tools/call")},
		ServeAtSubject("h", "w"):         {AtSubject("h", "w", "s", "tools/call")},
		ServeAPISubject("h"):             {APISubject("h", "servers.list")},
		KeyFilter(KeyServer):             {Key(KeyServer, "a.b")},
	} {
		for _, s := range subjects {
			if !strings.HasPrefix(s, strings.TrimSuffix(prefix, ">")) {
				t.Errorf("%q does not match %q", prefix, s)
			}
		}
	}
}
