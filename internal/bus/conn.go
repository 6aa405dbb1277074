package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"toolhub/internal/mcp"
)

const (
	// pingInterval and maxPings bound how long a dead peer goes unnoticed.
	pingInterval = 2 * time.Second
	maxPings     = 2

	reconnectWait   = 100 * time.Millisecond
	reconnectJitter = 100 * time.Millisecond

	connectTimeout = 5 * time.Second
	// writeTimeout ends a connection whose server does not read.
	writeTimeout = 10 * time.Second

	// envelopeBytes is what a JSON-RPC envelope may add to a message that is
	// itself at the limit.
	envelopeBytes = 64 << 10
)

// Config says how to reach NATS and as whom. Hub, Identity and one of URL and
// InProcess are required.
type Config struct {
	// Hub is the name of the hub; hubs with different names see nothing of each other.
	Hub string
	// Identity names this process among those of the hub. It is part of its
	// inbox, so no two running processes may share it.
	Identity string
	// URL is one or several NATS URLs, separated by commas; it may have a user
	// and password.
	URL string
	// InProcess connects to a server in this process instead of URL.
	InProcess nats.InProcessConnProvider
	// NKeyFile and CredsFile are files with an nkey seed or a user JWT with its seed.
	NKeyFile, CredsFile string
	// Replicas is how many nodes keep the state of a hub that does not exist yet; 0 is 1.
	Replicas int
	// MaxMessageBytes bounds the body of one call and of one reply;
	// 0 is mcp.MaxMessageBytes and some room for the envelope, so that the
	// narrower limits of servers and clients decide.
	MaxMessageBytes int
	// EventBytes bounds the stream of events where it does not exist yet;
	// 0 is 256 MiB with a server in this process, else 1 GiB.
	EventBytes int64
	// Logger gets what happens to the connections; nil discards it.
	Logger *slog.Logger
}

// maxName bounds names that become part of every subject and of bucket names.
const maxName = 64

// Validate reports what is wrong with c, naming the field.
func (c *Config) Validate() error {
	var errs []error
	name := func(field, v string) {
		if v == "" || len(v) > maxName {
			errs = append(errs, fmt.Errorf("%s: must have 1 to %d bytes, %q has %d", field, maxName, v, len(v)))
		}
	}
	name("hub", c.Hub)
	name("identity", c.Identity)
	if c.Identity == AnyIdentity {
		errs = append(errs, fmt.Errorf("identity: %q is reserved, choose another name", AnyIdentity))
	}
	if (c.URL == "") == (c.InProcess == nil) {
		errs = append(errs, errors.New("nats.url: give either a URL or a server in this process"))
	}
	if c.NKeyFile != "" && c.CredsFile != "" {
		errs = append(errs, errors.New("nats.nkey, nats.creds: give one of them"))
	}
	if c.Replicas < 0 || c.Replicas > 5 {
		errs = append(errs, fmt.Errorf("replicas: %d is not between 0 and 5", c.Replicas))
	}
	if c.MaxMessageBytes < 0 {
		errs = append(errs, fmt.Errorf("max_message_bytes: %d is negative", c.MaxMessageBytes))
	}
	return errors.Join(errs...)
}

// Conn is the connection of one process to one hub. All methods may be called
// concurrently.
type Conn struct {
	cfg      Config
	log      *slog.Logger
	control  *link // KV and leases
	calls    *link
	events   *link
	js       jetstream.JetStream // on control
	eventsJS jetstream.JetStream // on events
	buckets  map[string]*bucket  // by short name; never changes
	mux      *mux
	recent   recentCalls
	running  runningCalls
	crew     *crew
	emitter  *emitter
	seal     atomic.Pointer[Seal] // nil until it is needed
	// assembling is how many bytes of requests in parts are held or promised.
	assembling atomic.Int64

	ids    string // prefix of the ids made here
	nextID atomic.Uint64

	closing chan struct{} // closed by Close
	close   sync.Once
	wg      sync.WaitGroup // what c itself has started; see spawn

	mu       sync.Mutex
	services map[*Service]struct{} // guarded by mu; nil once Close was called
}

// Connect connects to NATS and makes the buckets and the stream of the hub if
// they do not exist. It fails if no server answers within ctx; afterwards the
// connection is kept up for ever.
func Connect(ctx context.Context, cfg Config) (*Conn, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.MaxMessageBytes == 0 {
		cfg.MaxMessageBytes = mcp.MaxMessageBytes + envelopeBytes
	}
	if cfg.EventBytes == 0 {
		cfg.EventBytes = 1 << 30
		if cfg.InProcess != nil {
			cfg.EventBytes = 256 << 20
		}
	}
	if cfg.Replicas == 0 {
		cfg.Replicas = 1
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Conn{
		cfg: cfg, log: cfg.Logger.With("hub", cfg.Hub, "identity", cfg.Identity),
		ids:      nuid.Next() + "-",
		closing:  make(chan struct{}),
		services: make(map[*Service]struct{}),
	}
	c.crew = newCrew(c)
	c.mux = newMux(inboxPrefix(cfg.Identity)+"."+nuid.Next()+".", cfg.MaxMessageBytes)
	if err := c.open(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Conn) open(ctx context.Context) error {
	var err error
	if c.control, err = c.connect(ctx, "control", nil); err != nil {
		return err
	}
	if c.calls, err = c.connect(ctx, "calls", c.mux); err != nil {
		return err
	}
	if c.events, err = c.connect(ctx, "events", nil); err != nil {
		return err
	}
	if c.js, err = jetstream.New(c.control.nc, jetstream.WithDefaultTimeout(apiTimeout)); err != nil {
		return fmt.Errorf("couldn't use JetStream: %w", err)
	}
	if c.eventsJS, err = jetstream.New(c.events.nc, jetstream.WithDefaultTimeout(apiTimeout)); err != nil {
		return fmt.Errorf("couldn't use JetStream: %w", err)
	}
	if err := c.provision(ctx); err != nil {
		return err
	}
	if err := c.subscribe(c.mux.prefix+"*", "", c.mux.deliver); err != nil {
		return err
	}
	for _, identity := range []string{c.cfg.Identity, AnyIdentity} {
		if err := c.subscribe(CtlSubject(c.cfg.Hub, identity, CtlCancel), "", c.cancelCall); err != nil {
			return err
		}
	}
	if err := c.calls.nc.FlushTimeout(apiTimeout); err != nil {
		return fmt.Errorf("couldn't subscribe: %w", err)
	}
	c.emitter = newEmitter(c)
	return c.emitter.start()
}

// spawn runs f on a goroutine that Close waits for, and reports false once
// Close was called.
func (c *Conn) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.services == nil {
		return false
	}
	c.wg.Go(f)
	return true
}

// subscribe subscribes for as long as c lives; f must not block.
func (c *Conn) subscribe(subject, queue string, f nats.MsgHandler) error {
	sub, err := c.calls.nc.QueueSubscribe(subject, queue, f)
	if err == nil {
		err = sub.SetPendingLimits(-1, -1)
	}
	if err != nil {
		return fmt.Errorf("couldn't subscribe to %s: %w", subject, err)
	}
	return nil
}

// connect makes one of the NATS connections; lost calls of m fail when it breaks.
func (c *Conn) connect(ctx context.Context, use string, m *mux) (*link, error) {
	timeout := connectTimeout
	if d, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(d))
	}
	if err := ctx.Err(); err != nil || timeout <= 0 {
		return nil, fmt.Errorf("couldn't connect to NATS: %w", context.Cause(ctx))
	}
	l := &link{log: c.log.With("connection", use), mux: m, down: make(chan struct{}), up: make(chan struct{}), closed: make(chan struct{}), refused: make(map[string]map[*refusal]struct{})}
	close(l.up)
	opts := []nats.Option{
		nats.Name("toolhub " + c.cfg.Hub + " " + c.cfg.Identity + " " + use),
		nats.CustomInboxPrefix(inboxPrefix(c.cfg.Identity)),
		nats.Timeout(timeout),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectJitter, reconnectJitter),
		nats.ReconnectBufSize(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(maxPings),
		nats.FlusherTimeout(writeTimeout),
		nats.ReconnectOnFlusherError(),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { l.lost(err) }),
		nats.ReconnectHandler(func(*nats.Conn) { l.back() }),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) { l.failed(sub, err) }),
		nats.ClosedHandler(func(*nats.Conn) { close(l.closed) }),
	}
	if c.cfg.InProcess != nil {
		opts = append(opts, nats.InProcessServer(c.cfg.InProcess))
	}
	if c.cfg.NKeyFile != "" {
		o, err := nats.NkeyOptionFromSeed(c.cfg.NKeyFile)
		if err != nil {
			return nil, fmt.Errorf("nats.nkey %q: %w", c.cfg.NKeyFile, err)
		}
		opts = append(opts, o)
	}
	if c.cfg.CredsFile != "" {
		opts = append(opts, nats.UserCredentials(c.cfg.CredsFile))
	}
	nc, err := nats.Connect(c.cfg.URL, opts...)
	if err != nil {
		where := "in this process"
		if c.cfg.URL != "" {
			where = "at " + redact(c.cfg.URL)
		}
		return nil, fmt.Errorf("couldn't connect to NATS %s: %w", where, err)
	}
	l.nc = nc
	return l, nil
}

var userinfo = regexp.MustCompile(`//[^/@,]*@`)

// redact takes the credentials out of NATS URLs.
func redact(urls string) string { return userinfo.ReplaceAllString(urls, "//") }

// Close ends everything that was started through c and waits for it. Running
// handlers are cancelled; to let them finish, drain the services first.
func (c *Conn) Close() {
	c.close.Do(func() {
		c.mu.Lock()
		services := c.services
		c.services = nil
		c.mu.Unlock()
		for s := range services {
			s.Stop()
		}
		close(c.closing)
		c.wg.Wait()
		for _, l := range []*link{c.events, c.calls, c.control} {
			if l != nil {
				l.nc.Close()
				<-l.closed
			}
		}
		c.mux.fail(func(*waiter) bool { return true }, mcp.OutcomeUnknown("", "the hub is shutting down"))
	})
}

// Hub is the name of the hub.
func (c *Conn) Hub() string { return c.cfg.Hub }

// Identity is the name of this process.
func (c *Conn) Identity() string { return c.cfg.Identity }

// Connected reports whether all connections to NATS are up just now.
func (c *Conn) Connected() bool {
	return c.control.nc.IsConnected() && c.calls.nc.IsConnected() && c.events.nc.IsConnected()
}

// newID makes an id that is unique in the world.
func (c *Conn) newID() string { return c.ids + strconv.FormatUint(c.nextID.Add(1), 36) }

// link is one NATS connection and what is known of its state.
type link struct {
	nc     *nats.Conn
	log    *slog.Logger
	mux    *mux          // whose calls fail when the connection breaks; may be nil
	closed chan struct{} // closed when the connection is closed for good

	mu   sync.Mutex
	down chan struct{} // guarded by mu; closed when the connection is lost, renewed when it is back
	up   chan struct{} // guarded by mu; closed while there is a connection
	// refused has, by subject, those who wait to hear that a publish was not
	// permitted: NATS says so only to the connection. Guarded by mu.
	refused map[string]map[*refusal]struct{}
}

type refusal struct{ cancel context.CancelCauseFunc }

func (l *link) lost(err error) {
	if err != nil {
		l.log.Warn("connection to nats lost", "error", err)
	}
	if l.mux != nil {
		l.mux.fail(func(*waiter) bool { return true }, mcp.OutcomeUnknown("", "the connection to NATS was lost while the call ran"))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.down:
	default:
		close(l.down)
		l.up = make(chan struct{})
	}
}

func (l *link) back() {
	l.log.Info("connection to nats is back")
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.up:
	default:
		close(l.up)
		l.down = make(chan struct{})
	}
}

// downs is closed when the connection is lost, ups while it is there.
func (l *link) downs() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down
}

func (l *link) ups() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up
}

var refusedPublish = regexp.MustCompile(`(?i)permissions violation for publish to "([^"]+)"`)

func (l *link) failed(sub *nats.Subscription, err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		subject := ""
		if sub != nil {
			subject = sub.Subject
		}
		l.log.Warn("nats error", "error", err, "subject", subject)
		return
	}
	l.log.Error("nats refused an operation", "error", err)
	m := refusedPublish.FindStringSubmatch(err.Error())
	if m == nil {
		return
	}
	subject := m[1]
	if l.mux != nil {
		l.mux.fail(func(w *waiter) bool { return w.subject == subject }, notPermitted(subject))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for r := range l.refused[subject] {
		r.cancel(fmt.Errorf("%w to publish to %s", ErrNotPermitted, subject))
	}
}

func notPermitted(subject string) *mcp.Fault {
	return mcp.NewFault(mcp.KindTransport, "not_permitted", "NATS does not permit this process to publish to %s", subject)
}

// watchRefusal returns a ctx that ends with [ErrNotPermitted] when the server
// refuses a publish to subject; stop must be called.
func (l *link) watchRefusal(ctx context.Context, subject string) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	r := &refusal{cancel}
	l.mu.Lock()
	if l.refused[subject] == nil {
		l.refused[subject] = make(map[*refusal]struct{})
	}
	l.refused[subject][r] = struct{}{}
	l.mu.Unlock()
	return ctx, func() {
		l.mu.Lock()
		delete(l.refused[subject], r)
		if len(l.refused[subject]) == 0 {
			delete(l.refused, subject)
		}
		l.mu.Unlock()
		cancel(nil)
	}
}

// disconnected reports whether err says that there is no connection, so that
// nothing was sent.
func disconnected(err error) bool {
	return errors.Is(err, nats.ErrReconnectBufExceeded) || errors.Is(err, nats.ErrConnectionClosed) ||
		errors.Is(err, nats.ErrDisconnected) || errors.Is(err, nats.ErrConnectionReconnecting) ||
		errors.Is(err, nats.ErrConnectionDraining) || strings.Contains(err.Error(), "outbound buffer limit exceeded")
}
