package router

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/bus"
	"toolhub/internal/mcp"
)

const (
	// sessionTTL is how long a session lives that nobody uses. A use renews it,
	// and so does an open stream.
	sessionTTL = 30 * time.Minute
	// sessionTimeout bounds the reading and writing of a session during a request.
	sessionTimeout = 3 * time.Second
	// defaultLogLevel holds until a client sets another one.
	defaultLogLevel = "info"
)

// record is what there is to know of a session, as the bucket keeps it: any
// router serves the session from it.
type record struct {
	Version   string `json:"version"`
	Principal string `json:"principal"`
	// Scope is the server of an endpoint that shows one server only.
	Scope string `json:"scope,omitempty"`
	// Capabilities and ClientInfo are the client's, as modern requests carry them.
	Capabilities jsontext.Value `json:"capabilities"`
	ClientInfo   jsontext.Value `json:"client_info,omitempty"`
	LogLevel     string         `json:"log_level"`
	Started      time.Time      `json:"started"`
	// Stream names the newest stream (GET) of the session, "" if it had none.
	Stream string `json:"stream,omitzero"`
	// Subscriptions are the exposed URIs of the resources subscribed to, in order.
	Subscriptions []string `json:"subscriptions,omitzero"`
}

// session is a session as this router uses it.
type session struct {
	id string

	mu       sync.Mutex
	rec      *record // guarded by mu; what it points to never changes
	rev      uint64  // guarded by mu; of rec in the bucket
	renewed  time.Time
	renewing bool
	checked  uint64 // guarded by sessions.mu; the gap after which rec was last read
	ended    bool
	calls    map[string]*call         // by raw id
	asked    map[string]chan<- []byte // by raw id: who waits for the client's response
	stream   *stream                  // the client's GET
	watching *watching                // of the stream
}

// call is a call of a session that runs here.
type call struct{ cancel context.CancelCauseFunc }

// record is the session's record as last seen.
func (s *session) record() *record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec
}

// begin registers a call, so that the client can cancel it; the function
// returned ends that.
func (s *session) begin(id jsontext.Value, cancel context.CancelCauseFunc) (end func()) {
	c := &call{cancel}
	key := string(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		cancel(errSessionEnded)
	}
	if s.calls == nil {
		s.calls = make(map[string]*call)
	}
	s.calls[key] = c // of two with one id, which is the client's mistake, the last can be cancelled
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.calls[key] == c {
			delete(s.calls, key)
		}
	}
}

// cancel cancels the call with a raw id and reports whether it runs here.
func (s *session) cancel(id jsontext.Value) bool {
	s.mu.Lock()
	c := s.calls[string(id)]
	s.mu.Unlock()
	if c == nil {
		return false
	}
	c.cancel(errClientCancelled)
	return true
}

// expect makes the client's response to the request with a raw id go to answer,
// which must have room for it. The function returned ends that.
func (s *session) expect(id jsontext.Value, answer chan<- []byte) (end func()) {
	key := string(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked == nil {
		s.asked = make(map[string]chan<- []byte)
	}
	s.asked[key] = answer
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.asked, key)
	}
}

// respond passes a response of the client on and reports whether anybody here
// waits for it. Of two responses to one request the first counts.
func (s *session) respond(id jsontext.Value, body []byte) bool {
	s.mu.Lock()
	answer := s.asked[string(id)]
	delete(s.asked, string(id))
	s.mu.Unlock()
	if answer == nil {
		return false
	}
	answer <- bytes.Clone(body)
	return true
}

// finish ends the session as far as this router has to do with it.
func (s *session) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	for _, c := range s.calls {
		c.cancel(errSessionEnded)
	}
	if s.stream != nil {
		s.stream.cancel()
	}
}

var (
	errNoSession       = errors.New("no such session")
	errClientCancelled = mcp.NewFault(mcp.KindUnavailable, mcp.ReasonCancelled, "the client cancelled the call")
	errSessionEnded    = mcp.NewFault(mcp.KindUnavailable, mcp.ReasonCancelled, "the session of the call has ended")
)

// sessions are the sessions that this router has seen in use. The bucket decides
// what exists; a watch of it keeps what is known here true.
type sessions struct {
	conn  *bus.Conn
	log   *slog.Logger
	ttl   time.Duration
	tasks *sync.WaitGroup

	mu      sync.Mutex
	byID    map[string]*session
	loading map[string]*load // guarded by mu; those that are being read
	// live says that the watch is current; gaps counts how often it began to be,
	// since a session may have ended unseen before.
	live bool
	gaps uint64
}

// load is a session that is being read, by the first who asked for it.
type load struct {
	done chan struct{}
	dead bool // guarded by sessions.mu; it was deleted meanwhile
	s    *session
	err  error
}

func newSessions(conn *bus.Conn, log *slog.Logger, tasks *sync.WaitGroup) *sessions {
	return &sessions{conn: conn, log: log, ttl: sessionTTL, tasks: tasks, byID: make(map[string]*session), loading: make(map[string]*load)}
}

// run watches the bucket until ctx ends.
func (t *sessions) run(ctx context.Context) error {
	err := t.conn.Watch(ctx, bus.BucketSessions, bus.KeyFilter(bus.KeySession), func(batch []bus.Entry) {
		for i := range batch {
			t.apply(&batch[i])
		}
	}, func(live bool, _ string) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.live = live; live {
			t.gaps++
		}
	})
	return fmt.Errorf("couldn't watch the sessions: %w", err)
}

// apply takes over what became of a session that is in use here.
func (t *sessions) apply(e *bus.Entry) {
	_, names, ok := bus.ParseKey(e.Key)
	if !ok || len(names) != 1 {
		return
	}
	t.mu.Lock()
	s, l := t.byID[names[0]], t.loading[names[0]]
	if e.Deleted {
		delete(t.byID, names[0])
		if l != nil {
			l.dead = true
		}
	}
	t.mu.Unlock()
	switch {
	case s == nil:
	case e.Deleted:
		s.finish()
	default:
		s.update(e)
	}
}

// update takes a newer revision of the record over.
func (s *session) update(e *bus.Entry) {
	rec := new(record)
	if json.Unmarshal(e.Value, rec) != nil {
		return // no router writes such a thing
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Rev > s.rev {
		s.rev, s.renewed = e.Rev, time.Now()
		s.setLocked(rec)
		s.overtakenLocked()
	}
}

// create starts a session.
func (t *sessions) create(ctx context.Context, rec *record) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	value, err := json.Marshal(rec)
	if err != nil {
		return nil, fmt.Errorf("couldn't encode a session: %w", err)
	}
	if !t.conn.Connected() {
		return nil, errDisconnected()
	}
	s := &session{id: rand.Text(), rec: rec, renewed: time.Now()}
	var none uint64
	s.rev, err = t.conn.Put(ctx, bus.BucketSessions, bus.Key(bus.KeySession, s.id), value, bus.PutOptions{Revision: &none, TTL: t.ttl})
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	s.checked = t.gaps
	t.byID[s.id] = s
	t.mu.Unlock()
	return s, nil
}

func errDisconnected() *mcp.Fault {
	return mcp.Unavailable("", bus.ReasonDisconnected, "there is no connection to NATS just now")
}

// get finds a session, in the bucket if it was not used here before. It fails
// with errNoSession, or with a fault if that cannot be found out just now.
func (t *sessions) get(ctx context.Context, id string) (*session, error) {
	t.mu.Lock()
	// While the watch is cut off, what is known has to do.
	if s := t.byID[id]; s != nil && (s.checked == t.gaps || !t.live) {
		t.mu.Unlock()
		return s, nil
	}
	l := t.loading[id]
	if l != nil {
		t.mu.Unlock()
		select {
		case <-l.done:
			return l.s, l.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	l = &load{done: make(chan struct{})}
	t.loading[id] = l
	gaps := t.gaps
	t.mu.Unlock()

	// Others wait for it, so it does not end with the one who asked first.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sessionTimeout)
	defer cancel()
	e, err := t.read(ctx, id)
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.byID[id]
	switch {
	case err == nil && l.dead:
		l.err = errNoSession
	case err != nil:
		l.err = err
		if errors.Is(err, errNoSession) && s != nil {
			delete(t.byID, id)
			s.finish()
		}
	default:
		if s == nil {
			s = &session{id: id}
		}
		if s.update(&e); s.rec == nil {
			l.err = errNoSession
			break
		}
		s.checked = gaps
		t.byID[id] = s
		l.s = s
	}
	delete(t.loading, id)
	close(l.done)
	return l.s, l.err
}

// read reads the record of a session.
func (t *sessions) read(ctx context.Context, id string) (bus.Entry, error) {
	if !plausible(id) {
		return bus.Entry{}, errNoSession
	}
	if !t.conn.Connected() {
		return bus.Entry{}, errDisconnected()
	}
	e, err := t.conn.Get(ctx, bus.BucketSessions, bus.Key(bus.KeySession, id))
	if errors.Is(err, bus.ErrNotFound) {
		return bus.Entry{}, errNoSession
	}
	if err != nil {
		t.log.Warn("couldn't read a session", "error", err)
		return bus.Entry{}, mcp.Unavailable("", "session_unreadable", "the session cannot be read just now")
	}
	return e, nil
}

// plausible reports whether id looks like one that rand.Text made.
func plausible(id string) bool {
	for i := 0; i < len(id); i++ {
		if c := id[i]; (c < 'A' || c > 'Z') && (c < '2' || c > '7') {
			return false
		}
	}
	return len(id) >= 26 && len(id) <= 64
}

// change writes a changed record, whatever other routers write at the same time.
func (t *sessions) change(ctx context.Context, s *session, edit func(*record)) error {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	for {
		s.mu.Lock()
		rec, rev := *s.rec, s.rev
		s.mu.Unlock()
		edit(&rec)
		err := t.store(ctx, s, &rec, rev)
		if !errors.Is(err, bus.ErrConflict) {
			return err
		}
		e, err := t.read(ctx, s.id)
		if err != nil {
			return err
		}
		s.update(&e)
	}
}

// store writes the record of a session that is at rev.
func (t *sessions) store(ctx context.Context, s *session, rec *record, rev uint64) error {
	value, err := json.Marshal(rec)
	if err != nil {
		return fmt.Errorf("couldn't encode a session: %w", err)
	}
	if !t.conn.Connected() {
		return errDisconnected()
	}
	next, err := t.conn.Put(ctx, bus.BucketSessions, bus.Key(bus.KeySession, s.id), value, bus.PutOptions{Revision: &rev, TTL: t.ttl})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if next > s.rev {
		s.rev, s.renewed = next, time.Now()
		s.setLocked(rec)
	}
	return nil
}

// setLocked replaces the record, and tells the stream what it has to know.
func (s *session) setLocked(rec *record) {
	changed := s.rec != nil && !slices.Equal(s.rec.Subscriptions, rec.Subscriptions)
	s.rec = rec
	if changed && s.stream != nil {
		select {
		case s.stream.wake <- struct{}{}:
		default:
		}
	}
}

// touch notes that the session is in use. Its life is renewed in the background,
// long before it ends.
func (t *sessions) touch(s *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.renewing || time.Since(s.renewed) < t.ttl/4 {
		return
	}
	s.renewing = true
	rec, rev := s.rec, s.rev
	t.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), sessionTimeout)
		defer cancel()
		err := t.store(ctx, s, rec, rev)
		// After a conflict another router has renewed it, which the watch will tell.
		if err != nil && !errors.Is(err, bus.ErrConflict) {
			t.log.Warn("couldn't renew a session", "error", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.renewing = false
	})
}

// delete ends a session everywhere.
func (t *sessions) delete(ctx context.Context, s *session) error {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	if !t.conn.Connected() {
		return errDisconnected()
	}
	if err := t.conn.Delete(ctx, bus.BucketSessions, bus.Key(bus.KeySession, s.id), bus.PutOptions{}); err != nil {
		return err
	}
	t.mu.Lock()
	if t.byID[s.id] == s {
		delete(t.byID, s.id)
	}
	t.mu.Unlock()
	s.finish()
	return nil
}

// Methods of the messages between routers about sessions. Every router gets
// each of them, and those that hold what it is about act.
const (
	sessionResponse = "session/response" // {session, message}: the client's response to a request
	sessionCancel   = "session/cancel"   // {session, id}: the client cancelled a call
)

// tell tells all routers something about a session.
func (t *sessions) tell(ctx context.Context, s *session, method, member string, value jsontext.Value) {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	params := append(mcp.AppendString([]byte(`{"session":`), s.id), `,"`+member+`":`...)
	params = append(append(params, value...), '}')
	body := mcp.AppendRequest(nil, mcp.IntID(1), method, params)
	_, err := t.conn.Call(ctx, &bus.Request{Subject: bus.SessionSubject(t.conn.Hub(), s.id), Body: body}, nil)
	if err != nil {
		t.log.Warn("couldn't tell the other routers about a session", "method", method, "error", err)
	}
}

// remote takes what another router tells.
func (t *sessions) remote(_ context.Context, in *bus.Incoming) (bus.Reply, error) {
	m, err := mcp.ParseMessage(in.Body, mcp.Lenient)
	if err != nil {
		return bus.Reply{}, mcp.NewFault(mcp.KindInvalid, "session_message", "%v", err)
	}
	t.mu.Lock()
	s := t.byID[mcp.FieldString(m.Params, "session")]
	t.mu.Unlock()
	if s != nil {
		switch m.Method {
		case sessionResponse:
			message := mcp.Field(m.Params, "message")
			s.respond(mcp.Field(message, "id"), message)
		case sessionCancel:
			s.cancel(mcp.Field(m.Params, "id"))
		}
	}
	return bus.Reply{Body: mcp.AppendResult(nil, m.ID, jsontext.Value("{}"))}, nil
}
