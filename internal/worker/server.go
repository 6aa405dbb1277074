package worker

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"

	"toolhub/internal/bus"
	"toolhub/internal/catalog"
	"toolhub/internal/config"
	"toolhub/internal/mcp"
	"toolhub/internal/policy"
	"toolhub/internal/registry"
)

// definition is what a server is to be, as of now. It is immutable; a change
// of what [definition.connection] covers needs a new server.
type definition struct {
	*registry.Server
	// refusal is why a limit of the worker keeps the server from being started, "".
	refusal string
	// maxItems is how many tools, resources, templates and prompts the hub takes in all.
	maxItems     int
	drainTimeout time.Duration
	// cacheable says that the policy has no condition, so that its decision about a
	// thing is always the same; decisions has those made, by policy name.
	cacheable bool
	decisions *sync.Map // of policy.Decision
}

func newDefinition(settings *config.Settings, s *registry.Server, refusal string) *definition {
	d := &definition{
		Server: s, refusal: refusal, maxItems: settings.MaxCatalogItems, drainTimeout: settings.DrainTimeout.Std(),
		decisions: &sync.Map{},
	}
	if s.Policy != nil {
		spec := s.Policy.Spec()
		d.cacheable = !slices.ContainsFunc(slices.Concat(spec.Deny, spec.Ask, spec.Allow), func(r policy.Rule) bool { return r.When != "" })
	}
	return d
}

// same reports whether the view has nothing new for d: what the registry works
// out of a definition and the settings changes only when one of them does.
func (d *definition) same(settings *config.Settings, s *registry.Server, refusal string) bool {
	return d.Definition == s.Definition && d.Policy == s.Policy && d.Filter == s.Filter && d.refusal == refusal &&
		d.maxItems == settings.MaxCatalogItems && d.drainTimeout == settings.DrainTimeout.Std()
}

// ours reports whether the server is a process or goroutine that the worker starts.
func (d *definition) ours() bool { return d.Config.Command != "" || d.Config.Builtin != "" }

// connection is everything that a running connection depends on, for comparison.
// All that is left out takes effect at once, without touching the connection.
func (d *definition) connection() string {
	c := d.Config
	c.Prefix, c.Policy, c.Trusted = nil, nil, false
	c.Naming, c.URIs, c.HideDenied, c.Tools, c.Audit = "", "", nil, nil, ""
	c.Timeout, c.MaxTotalTimeout, c.RefetchInterval, c.HealthInterval, c.BreakerThreshold = 0, 0, 0, 0, 0
	c.RestartBackoff = config.Backoff{}
	b, err := json.Marshal(c, json.Deterministic(true))
	if err != nil {
		return err.Error()
	}
	return d.refusal + "\n" + string(b)
}

// serving is what a call finds. It is immutable.
type serving struct {
	// unavailable is why no call can be sent just now, nil if one can.
	unavailable *mcp.Fault
	links       []*link
	// catalog is the current accepted one, nil before the first.
	catalog *catalog.Catalog
	// legacyOnly has what only the legacy connections of a server in both eras list.
	legacyOnly map[itemKey]bool
}

// server is one server in one epoch of its ownership. Its goroutine (run) owns
// all fields below inbox; other goroutines send it functions with do and read
// the two pointers.
type server struct {
	id       string
	log      *slog.Logger
	dial     dialer
	emit     func(bus.Event)
	post     func(post) // hands a status and a catalog to the outbox; never blocks
	lot      *lot
	secrets  *redactor                  // for what events have of calls
	def      atomic.Pointer[definition] // replaced by update
	before   atomic.Int64               // items of the servers ahead in the listing order
	live     atomic.Pointer[serving]    // what calls see
	rates    rates
	watch    watch // of resources
	replicas int
	// mirror says that each replica has a connection in either era.
	mirror bool
	// calls are those that may outlive the request that began them. They end with
	// the server's connections; whoever stops server and service waits for them.
	calls sync.WaitGroup

	inbox   chan func()
	rejudge chan struct{} // has a token when def or before has changed
	refetch chan struct{} // has a token when the lists are wanted anew
	ended   chan struct{} // closed when run has ended
	leaving chan struct{} // closed when the server is about to stop
	left    sync.Once     // closing leaving

	links    []*link // by slot, nil while it has none
	failures []failure
	catalog  *catalog.Catalog // the last accepted one
	listings listings         // what it was made of
	listed   bool             // catalog, or the failure to get one, is of the present connection
	stale    kindSet          // the lists that may have changed
	fetching bool
	fetchCtx context.Context
	nextList time.Time // not before (refetch_interval)
	expires  time.Time // end of ttlMs, zero if there is none
	misses   int       // fetches failed in a row
	missed   string    // why the last one failed
	overfull error     // why a limit keeps the catalog out
	latency  time.Duration
	fetches  sync.WaitGroup

	posted  post            // what was posted last
	emitted registry.Status // what an event told last
}

// failure is why a replica has no connection, and when it tries again.
type failure struct {
	reason   string
	attempts int
	delay    time.Duration
	at       time.Time // of the next attempt
	final    bool      // there will be none
	stderr   []string
	// trying says that the next attempt is under way; then peer is what it has
	// started, nil if nothing yet.
	trying bool
	peer   peer
}

func (f *failure) failing() bool { return f.reason != "" && !f.trying }

// output is the last lines of stderr: of the process that is being started if it
// has said something, else of the one before.
func (f *failure) output() []string {
	if f.peer != nil {
		if lines := f.peer.stderr(); len(lines) > 0 {
			return lines
		}
	}
	return f.stderr
}

func (s *server) definition() *definition { return s.def.Load() }

// do runs f on the server's goroutine, soon; after the end, not at all.
func (s *server) do(f func()) {
	select {
	case s.inbox <- f:
	case <-s.ended:
	}
}

func newServer(def *definition, dial dialer, lot *lot, emit func(bus.Event), post func(post), log *slog.Logger) *server {
	s := &server{
		id: def.ID(), log: log, dial: dial, emit: emit, post: post, lot: lot, replicas: max(1, def.Config.Replicas),
		inbox: make(chan func(), 16), rejudge: make(chan struct{}, 1), refetch: make(chan struct{}, 1), ended: make(chan struct{}), leaving: make(chan struct{}),
		mirror: def.Config.Era == config.EraMirror,
	}
	s.watch.server = s
	s.links = make([]*link, s.slots())
	s.failures = make([]failure, s.slots())
	s.def.Store(def)
	s.live.Store(&serving{unavailable: mcp.Unavailable(s.id, mcp.ReasonBackend, "server %q is starting", s.id)})
	return s
}

// run connects the server and keeps it connected until stop ends; hard cuts the
// farewell short. When it returns, nothing is left of what it started.
func (s *server) run(stop, hard context.Context) {
	fetchCtx, cancelFetch := context.WithCancel(stop)
	defer cancelFetch()
	s.fetchCtx = fetchCtx

	gone := make(chan struct{}) // all replicas have ended
	if refusal := s.definition().refusal; refusal != "" {
		for i := range s.failures {
			s.failures[i] = failure{reason: refusal, final: true}
		}
		close(gone)
	} else {
		var replicas sync.WaitGroup
		for i := range s.links {
			replicas.Go(func() { (&replica{server: s, slot: i}).run(stop, hard) })
		}
		go func() { replicas.Wait(); close(gone) }()
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for running := true; running; {
		timer.Reset(min(s.nextFetch(), s.nextLook()))
		s.publish()
		select {
		case f := <-s.inbox:
			f()
		case <-s.rejudge:
			s.judge()
		case <-s.refetch:
			s.stale, s.nextList = allKinds, time.Time{}
		case <-timer.C:
		case <-stop.Done():
			running = false
		}
	}
	// The replicas may have something to tell until the last.
	for done := false; !done; {
		select {
		case f := <-s.inbox:
			f()
		case <-gone:
			done = true
		}
	}
	close(s.ended)
	s.fetches.Wait()
}

// update puts a new definition with the same connection in force, and how many
// items there are ahead of the server's. It never waits.
func (s *server) update(d *definition, before int) {
	if s.def.Swap(d) == d && s.before.Swap(int64(before)) == int64(before) {
		return
	}
	s.before.Store(int64(before))
	select {
	case s.rejudge <- struct{}{}:
	default:
	}
}

// leave ends what lasts as long as the server does, so that no drain waits for it.
func (s *server) leave() { s.left.Do(func() { close(s.leaving) }) }

// refresh asks for the list at once, whatever the interval (L3). It never waits.
func (s *server) refresh() {
	select {
	case s.refetch <- struct{}{}:
	default:
	}
}

// The functions below run on the server's goroutine.

// connecting says that a replica tries again. For a server that is not ours to
// start that is every second, and no news.
func (s *server) connecting(number int) {
	if f := &s.failures[number]; s.definition().ours() {
		*f = failure{reason: f.reason, attempts: f.attempts, stderr: f.stderr, trying: true}
	}
}

// started says which process a replica tries to connect to.
func (s *server) started(number int, p peer) {
	if f := &s.failures[number]; f.trying {
		f.stderr, f.peer = f.output(), p // a dialer may need a second process
	}
}

func (s *server) connected(l *link) {
	s.links[l.slot] = l
	s.failures[l.slot] = failure{}
	s.latency = 0
	s.stale = allKinds // what was listed before may have changed meanwhile
	s.nextList = time.Time{}
	s.expose()
	s.watch.add(s.fetchCtx, &s.fetches, l)
}

func (s *server) lost(l *link, reason string) {
	s.watch.remove(l)
	s.links[l.slot] = nil
	s.failures[l.slot] = failure{reason: reason, stderr: l.stderr()}
	s.stale = allKinds
	if len(s.connections()) == 0 {
		s.listed = false
	}
	s.expose()
}

func (s *server) failed(number int, err error, attempts int, delay time.Duration, again bool) {
	s.failures[number] = failure{reason: err.Error(), attempts: attempts, delay: delay, at: time.Now().Add(delay), final: !again}
	if exit, ok := errors.AsType[*exitError](err); ok {
		s.failures[number].stderr = exit.stderr
	}
	s.log.Warn("server failed", "replica", number, "reason", err, "attempts", attempts, "delay", delay)
}

func (s *server) probed(latency time.Duration) { s.latency = latency }

func (s *server) listChanged(kinds kindSet) { s.stale |= kinds }

// nextFetch fetches the list if it is time to, and returns how long until it
// may be again.
func (s *server) nextFetch() time.Duration {
	const idle = time.Hour
	links := s.connections()
	now := time.Now()
	if s.stale == 0 && !s.expires.IsZero() && !now.Before(s.expires) {
		s.stale, s.expires = allKinds, time.Time{}
	}
	switch {
	case s.fetching || len(links) == 0:
		return idle
	case s.stale != 0 && !now.Before(s.nextList):
		s.fetch(s.listers())
		return idle
	case s.stale != 0:
		return s.nextList.Sub(now)
	case !s.expires.IsZero():
		return s.expires.Sub(now)
	}
	return idle
}

// lookEvery is how often the output of a process that is being started is looked
// at. One that runs is looked at whenever there is something to tell.
const lookEvery = 2 * time.Second

// nextLook returns how long until the status may have more to tell.
func (s *server) nextLook() time.Duration {
	for i := range s.failures {
		if s.failures[i].peer != nil {
			return lookEvery
		}
	}
	return time.Hour
}

// listers are the connections whose lists make the catalog: one, or one of each era.
func (s *server) listers() []*link {
	links := s.connections()
	if !s.mirror {
		return links[:1]
	}
	var out []*link
	for _, era := range []mcp.Era{mcp.EraModern, mcp.EraLegacy} {
		if i := slices.IndexFunc(links, func(l *link) bool { return l.era() == era }); i >= 0 {
			out = append(out, links[i])
		}
	}
	return out
}

func (s *server) fetch(links []*link) {
	def := s.definition()
	which, before := s.stale, s.listings
	if !s.mirror { // it may have been of the other era before
		before = listings{}.with(links[0].era(), before.of(links[0].era()))
	}
	s.fetching, s.stale = true, 0 // what changes from here on is seen by the next
	s.nextList = time.Now().Add(def.Config.RefetchInterval.Std())
	s.fetches.Go(func() {
		next, latency, err := before, time.Duration(0), error(nil)
		for _, l := range links {
			r := &reader{server: s.id, conn: l.conn, timeout: def.Config.RequestTimeout.Std(), limit: def.maxItems}
			var list *listing
			if list, err = r.read(s.fetchCtx, which, before.of(l.era())); err != nil {
				err = l.secrets.error(err) // which may have the server's own words
				break
			}
			next, latency = next.with(l.era(), list), r.latency
		}
		var c *catalog.Catalog
		if err == nil {
			c = catalog.New(s.id, *links[0].conn.Info(), next.union())
		}
		s.do(func() { s.fetched(links, which, next, c, latency, err) })
	})
}

// fetched takes what a fetch of the lists in which has brought.
func (s *server) fetched(links []*link, which kindSet, next listings, c *catalog.Catalog, latency time.Duration, err error) {
	s.fetching = false
	for _, l := range links {
		if s.links[l.slot] != l || isClosed(l.conn.Done()) {
			s.stale = allKinds // the connection was lost, which says nothing about the lists
			return
		}
	}
	if err != nil && queued(err) {
		s.stale |= which // the connection is busy, not ill (proxy seed)
		return
	}
	def := s.definition()
	s.listed = true
	if err != nil {
		s.misses++
		s.overfull = nil
		if limit, ok := errors.AsType[*tooMany](err); ok {
			s.overfull = limit
		}
		s.missed = err.Error()
		s.stale |= which
		// A list that keeps failing is asked for less and less often.
		pause := def.Config.RefetchInterval.Std() << min(s.misses-1, 16)
		s.nextList = time.Now().Add(max(def.Config.RefetchInterval.Std(), min(pause, def.Config.HealthInterval.Std())))
		s.log.Warn("couldn't refresh the lists", "error", err, "failures", s.misses)
		s.expose()
		return
	}
	if s.latency == 0 { // the first health probe is some time away
		s.latency = latency
	}
	s.misses, s.missed = 0, ""
	s.listings = next
	s.expires = time.Time{}
	if ttl := next.ttl(); ttl > 0 {
		s.expires = time.Now().Add(ttl)
	}
	if s.catalog == nil || s.catalog.Revision != c.Revision {
		for _, r := range c.Rejected {
			s.log.Warn("a definition is rejected", "kind", r.Kind, "name", r.Tool, "reason", r.Reason, "detail", r.Detail)
			s.emit(bus.Event{Kind: "tool", Subject: s.id, What: "rejected", Data: r})
		}
		s.catalog = c
	}
	s.judge()
}

// judge applies the hub's limit on items to the catalog anew.
func (s *server) judge() {
	s.overfull = nil
	if s.catalog != nil {
		s.overfull = s.quota(s.catalog.Items())
	}
	s.expose()
}

// quota is why the hub does not take that many items of this server, nil if it does (L9).
func (s *server) quota(items int) error {
	limit, before := s.definition().maxItems, int(s.before.Load())
	if before+items <= limit {
		return nil
	}
	return &tooMany{server: s.id, limit: limit, before: before, items: items}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// slots is how many connections the server has when all is well.
func (s *server) slots() int {
	if s.mirror {
		return 2 * s.replicas
	}
	return s.replicas
}

func (s *server) connections() []*link {
	var links []*link
	for _, l := range s.links {
		if l != nil {
			links = append(links, l)
		}
	}
	return links
}

// withheld reports whether the tools are left out although there is a connection (L4).
func (s *server) withheld() bool {
	return s.misses > 0 && s.misses >= s.definition().Config.BreakerThreshold
}

// expose makes what calls see.
func (s *server) expose() {
	next := &serving{links: s.connections(), catalog: s.catalog, legacyOnly: s.listings.legacyOnly()}
	unavailable := func(format string, args ...any) {
		next.unavailable = mcp.Unavailable(s.id, mcp.ReasonBackend, format, args...)
	}
	switch {
	case len(next.links) == 0:
		unavailable("server %q is not connected", s.id)
	case s.overfull != nil:
		unavailable("what server %q offers is left out: %v", s.id, s.overfull)
	case s.withheld():
		unavailable("what server %q offers is left out until its lists can be read again", s.id)
	case s.catalog == nil || !s.listed:
		unavailable("server %q is still starting", s.id)
	}
	s.live.Store(next)
}
