package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"toolhub/internal/catalog"
	"toolhub/internal/config"
	"toolhub/internal/mcp"
)

// scripted is a connection that answers as a function says, and nothing can be
// subscribed to.
type scripted struct {
	mcp.Conn
	info   mcp.ServerInfo
	answer func(call *mcp.Call) (jsontext.Value, error)
	done   chan struct{}
	once   sync.Once
	err    error // set before done is closed
}

func newScripted(answer func(call *mcp.Call) (jsontext.Value, error)) *scripted {
	return &scripted{
		info:   mcp.ServerInfo{Era: mcp.EraModern, Version: mcp.LatestModern, Capabilities: jsontext.Value(`{"tools":{}}`)},
		answer: answer, done: make(chan struct{}),
	}
}

func (s *scripted) Call(ctx context.Context, call *mcp.Call) (jsontext.Value, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return s.answer(call)
}
func (s *scripted) Info() *mcp.ServerInfo { return &s.info }
func (s *scripted) Done() <-chan struct{} { return s.done }
func (s *scripted) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

func (s *scripted) Close(context.Context) error {
	s.lose(nil)
	return nil
}

func (s *scripted) lose(err error) {
	s.once.Do(func() {
		s.err = err
		close(s.done)
	})
}

// pages answers tools/list with the pages in turn, by cursor.
func pages(byCursor map[string]string) *scripted {
	return newScripted(func(call *mcp.Call) (jsontext.Value, error) {
		cursor := "first"
		if v := mcp.Field(call.Params, "cursor"); v != nil {
			cursor = mcp.Text(v)
		}
		page, ok := byCursor[cursor]
		if !ok {
			return nil, mcp.InvalidParams("no cursor " + cursor)
		}
		return jsontext.Value(page), nil
	})
}

func TestRead(t *testing.T) {
	t.Parallel()
	endless := 0
	for name, c := range map[string]struct {
		conn  *scripted
		tools int
		ttl   time.Duration
		want  string // part of the error
	}{
		"one page":           {conn: pages(map[string]string{"first": `{"tools":[{"name":"a"},{"name":"b"}]}`}), tools: 2},
		"no tools":           {conn: pages(map[string]string{"first": `{"tools":[]}`})},
		"several pages":      {conn: pages(map[string]string{"first": `{"tools":[1],"nextCursor":"x"}`, "x": `{"tools":[],"nextCursor":"y"}`, "y": `{"tools":[2,3]}`}), tools: 3},
		"empty cursor":       {conn: pages(map[string]string{"first": `{"tools":[1],"nextCursor":""}`, "": `{"tools":[2]}`}), tools: 2},
		"null cursor":        {conn: pages(map[string]string{"first": `{"tools":[1],"nextCursor":null}`}), tools: 1},
		"least ttl":          {conn: pages(map[string]string{"first": `{"tools":[1],"nextCursor":"x","ttlMs":5000}`, "x": `{"tools":[],"ttlMs":2000}`}), tools: 1, ttl: 2 * time.Second},
		"ttl without sense":  {conn: pages(map[string]string{"first": `{"tools":[1],"nextCursor":"x","ttlMs":-1}`, "x": `{"tools":[],"nextCursor":"y","ttlMs":"5"}`, "y": `{"tools":[],"ttlMs":99999999999999999999}`}), tools: 1},
		"loop":               {conn: pages(map[string]string{"first": `{"tools":[1],"nextCursor":"x"}`, "x": `{"tools":[1],"nextCursor":"x"}`}), want: "repeats the cursor"},
		"loop of two":        {conn: pages(map[string]string{"first": `{"tools":[1],"nextCursor":"x"}`, "x": `{"tools":[1],"nextCursor":"y"}`, "y": `{"tools":[1],"nextCursor":"x"}`}), want: "repeats the cursor"},
		"loop of the empty":  {conn: pages(map[string]string{"first": `{"tools":[1],"nextCursor":""}`, "": `{"tools":[1],"nextCursor":""}`}), want: "repeats the cursor"},
		"cursor no string":   {conn: pages(map[string]string{"first": `{"tools":[1],"nextCursor":7}`}), want: "nextCursor must be a string"},
		"no array":           {conn: pages(map[string]string{"first": `{"tools":{}}`}), want: "no array of tools"},
		"nothing":            {conn: pages(map[string]string{"first": `{}`}), want: "no array of tools"},
		"no object":          {conn: pages(map[string]string{"first": `[]`}), want: "page 1"},
		"an error":           {conn: pages(nil), want: "no cursor first"},
		"too many":           {conn: pages(map[string]string{"first": `{"tools":[` + strings.Repeat("1,", 50) + `1]}`}), want: "max_catalog_items"},
		"too many over time": {conn: pages(map[string]string{"first": `{"tools":[` + strings.Repeat("1,", 29) + `1],"nextCursor":"x"}`, "x": `{"tools":[` + strings.Repeat("1,", 29) + `1]}`}), want: "max_catalog_items"},
		"endless": {conn: newScripted(func(*mcp.Call) (jsontext.Value, error) {
			endless++
			return jsontext.Value(fmt.Sprintf(`{"tools":[],"nextCursor":"%d"}`, endless)), nil
		}), want: "more than 1000 pages"},
	} {
		r := reader{server: "s", conn: c.conn, timeout: time.Second, limit: 50}
		list, err := r.read(t.Context(), allKinds, nil)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want == "":
			if len(list.defs[0]) != c.tools || list.ttl() != c.ttl {
				t.Errorf("%s: %d tools, ttl %v", name, len(list.defs[0]), list.ttl())
			}
		case err == nil || !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	silent := newScripted(nil)
	silent.info.Capabilities = jsontext.Value(`{"logging":{}}`)
	r := reader{server: "s", conn: silent, timeout: time.Second, limit: 50}
	if list, err := r.read(t.Context(), allKinds, nil); err != nil || list.ttl() != 0 {
		t.Errorf("a server without lists: %v, %v", list, err)
	}
}

func FuzzListPage(f *testing.F) {
	f.Add([]byte(`{"tools":[{"name":"a"}],"nextCursor":"x","ttlMs":1}`))
	f.Add([]byte(`{"tools":[1,],"nextCursor":""}`))
	f.Add([]byte(`{"tools":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		// Only what ParseMessage lets through gets here.
		if _, err := mcp.ParseMessage(append(append([]byte(`{"jsonrpc":"2.0","id":1,"result":`), data...), '}'), mcp.Lenient); err != nil {
			return
		}
		p := paging{member: "tools", room: 100}
		if _, _, err := p.add(data); err != nil {
			return
		}
		c := catalog.New("s", mcp.ServerInfo{}, catalog.Lists{Tools: p.defs})
		if len(c.Tools)+len(c.Rejected) < len(p.defs) {
			t.Errorf("%d tools became %d and %d", len(p.defs), len(c.Tools), len(c.Rejected))
		}
	})
}

// bench is one server without NATS, in a bubble of synthetic time.
type bench struct {
	*server
	start    time.Time
	stopping context.CancelFunc
	ended    chan struct{}

	mu      sync.Mutex
	dials   []time.Duration // since the start
	conn    *scripted       // the current connection
	fail    error           // what the next dial fails with
	changed func()          // tells the server that its list changed
}

func testDefinition(change func(*config.Server)) *definition {
	c := config.Server{ID: "s", Command: "x"}.Effective(config.Settings{})
	if change != nil {
		change(&c)
	}
	d := &definition{Server: serverOf(c), maxItems: 100, decisions: &sync.Map{}}
	return d
}

// startBench runs a server whose connections answer as answer says.
func startBench(t *testing.T, def *definition, answer func(call *mcp.Call) (jsontext.Value, error)) *bench {
	b := &bench{start: time.Now(), ended: make(chan struct{})}
	dial := func(_ context.Context, _ mcp.EraChoice, tell news) (*link, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.dials = append(b.dials, time.Since(b.start))
		if b.fail != nil {
			return nil, b.fail
		}
		b.conn, b.changed = newScripted(answer), func() { tell.listChanged(allKinds) }
		if def.Config.Era == config.EraLegacy {
			b.conn.info.Era = mcp.EraLegacy
		}
		return newLink(b.conn, nil), nil
	}
	b.server = newServer(def, dial, newLot("w", nil), discardEvents, func(post) {}, discardLog())
	ctx, cancel := context.WithCancel(t.Context())
	b.stopping = cancel
	go func() {
		defer close(b.ended)
		b.run(ctx, ctx)
	}()
	t.Cleanup(b.stop)
	return b
}

// failWith makes the next dials fail.
func (b *bench) failWith(err error) {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = err
}

// dialled is the times of the dials so far.
func (b *bench) dialled() []time.Duration {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.dials)
}

// lose breaks the connection.
func (b *bench) lose() {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conn.lose(errors.New("gone"))
}

// tell tells the server that its list has changed.
func (b *bench) tell() {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed()
}

func (b *bench) stop() {
	b.stopping()
	<-b.ended
}

// state waits until nothing moves, and says what the server would tell.
func (b *bench) state() (state string, withheld bool, attempts int) {
	synctest.Wait()
	out := make(chan post, 1)
	b.do(func() { out <- post{status: b.describe()} })
	p := <-out
	return string(p.status.State), p.status.Withheld, p.status.Attempts
}

const oneTool = `{"tools":[{"name":"a","inputSchema":{"type":"object"}}]}`

// Before attempt n there is a wait of at most 1 s·2ⁿ⁻¹, capped at 30 s, and every
// shorter one is as likely; after a minute of running it starts over.
func TestRestartBackoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := startBench(t, testDefinition(nil), func(*mcp.Call) (jsontext.Value, error) { return jsontext.Value(oneTool), nil })
		synctest.Wait()
		b.failWith(errors.New("nothing there"))
		b.lose()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		var early, late bool
		dials := b.dialled()
		for i := 1; i < len(dials); i++ { // dials[0] went well
			gap := dials[i] - dials[i-1]
			limit := min(time.Second<<min(i-1, 10), 30*time.Second)
			if gap > limit {
				t.Errorf("wait %d was %v, at most %v is right", i, gap, limit)
			}
			early = early || i > 6 && gap < 12*time.Second
			late = late || i > 6 && gap > 18*time.Second
		}
		if n := len(b.dialled()); n < 25 || n > 200 {
			t.Errorf("%d attempts in ten minutes", n)
		}
		if !early || !late {
			t.Errorf("the waits are not spread: %v", dials)
		}
		if state, _, attempts := b.state(); state != "failed" || attempts != len(b.dialled()) {
			t.Errorf("state %s after %d attempts, %d dials", state, attempts, len(b.dialled()))
		}
		// It runs for less than a minute: the count goes on. For longer: it starts over.
		b.failWith(nil)
		time.Sleep(31 * time.Second)
		b.failWith(errors.New("nothing there"))
		b.lose()
		if _, _, attempts := b.state(); attempts < 10 {
			t.Errorf("%d attempts after a short life", attempts)
		}
		b.failWith(nil)
		time.Sleep(2 * time.Minute)
		b.failWith(errors.New("nothing there"))
		b.lose()
		if _, _, attempts := b.state(); attempts != 1 {
			t.Errorf("%d attempts after a long life", attempts)
		}
	})
}

// A URL costs nothing to ask, so it is asked every second; but refused
// credentials are not, and a server that names a time is left alone so long.
func TestReconnectEverySecond(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err       error
		from, to  int // dials in a minute
		wantState string
	}{
		"down":         {errors.New("connection refused"), 59, 62, "down"},
		"credentials":  {mcp.NewFault(mcp.KindAuth, "unauthorized", "no"), 4, 40, "down"},
		"rate limited": {&mcp.Fault{Kind: mcp.KindRateLimited, RetryAfterMS: 20_000}, 3, 4, "down"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				def := testDefinition(func(s *config.Server) { s.Command, s.URL = "", "http://x/mcp" })
				b := startBench(t, def, func(*mcp.Call) (jsontext.Value, error) { return jsontext.Value(oneTool), nil })
				synctest.Wait()
				b.failWith(c.err)
				before := len(b.dialled())
				b.lose()
				time.Sleep(time.Minute)
				state, _, attempts := b.state()
				if n := len(b.dialled()) - before; n < c.from || n > c.to || state != c.wantState || attempts != 0 {
					t.Errorf("%d dials, state %s, %d attempts", n, state, attempts)
				}
				b.failWith(nil)
				time.Sleep(40 * time.Second)
				if state, _, _ := b.state(); state != "up" {
					t.Errorf("afterwards it is %s", state)
				}
			})
		})
	}
}

// Three failed fetches in a row leave the tools out; one that succeeds brings
// them back. Until then the last accepted list stays (L4).
func TestBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var bad bool
		fetches := 0
		b := startBench(t, testDefinition(nil), func(call *mcp.Call) (jsontext.Value, error) {
			mu.Lock()
			defer mu.Unlock()
			if call.Method != mcp.MethodToolsList {
				return jsontext.Value(`{}`), nil
			}
			fetches++
			if bad {
				return nil, &mcp.Error{Code: mcp.CodeInternal, Message: "the list is broken"}
			}
			return jsontext.Value(oneTool), nil
		})
		set := func(v bool) {
			mu.Lock()
			defer mu.Unlock()
			bad = v
		}
		fetched := func() int {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return fetches
		}
		if state, _, _ := b.state(); state != "up" || fetched() != 1 {
			t.Fatalf("%s after %d fetches", state, fetched())
		}
		// A storm of changes is one fetch a second.
		for range 100 {
			b.tell()
		}
		time.Sleep(10 * time.Second)
		for range 50 {
			b.tell()
			time.Sleep(100 * time.Millisecond)
		}
		if n := fetched(); n < 6 || n > 8 {
			t.Errorf("%d fetches", n)
		}
		time.Sleep(10 * time.Second)
		set(true)
		b.tell()
		if state, withheld, _ := b.state(); state != "degraded" || withheld || b.live.Load().unavailable != nil {
			t.Errorf("after one failure: %s, withheld %v, %v", state, withheld, b.live.Load().unavailable)
		}
		time.Sleep(10 * time.Second)
		if state, withheld, _ := b.state(); state != "degraded" || !withheld || b.live.Load().unavailable == nil {
			t.Errorf("after several failures: %s, withheld %v", state, withheld)
		}
		before := fetched()
		time.Sleep(10 * time.Minute)
		if n := fetched() - before; n < 15 || n > 60 {
			t.Errorf("%d fetches of a broken list in ten minutes", n)
		}
		set(false)
		time.Sleep(time.Minute)
		if state, withheld, _ := b.state(); state != "up" || withheld || b.live.Load().unavailable != nil {
			t.Errorf("afterwards: %s, withheld %v", state, withheld)
		}
	})
}

// A list with a time to live is fetched again when it is over, and not before.
func TestTTL(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var fetches atomic.Int64
		b := startBench(t, testDefinition(nil), func(call *mcp.Call) (jsontext.Value, error) {
			if call.Method == mcp.MethodToolsList {
				fetches.Add(1)
			}
			return jsontext.Value(strings.TrimSuffix(oneTool, "}") + `,"ttlMs":20000}`), nil
		})
		b.state()
		time.Sleep(19 * time.Second)
		synctest.Wait()
		if n := fetches.Load(); n != 1 {
			t.Errorf("%d fetches before the end", n)
		}
		time.Sleep(42 * time.Second)
		synctest.Wait()
		if n := fetches.Load(); n != 4 {
			t.Errorf("%d fetches in a minute, want 4", n)
		}
	})
}

// The health probe notices a server that went deaf, unless it is busy.
func TestHealthProbe(t *testing.T) {
	t.Parallel()
	for _, era := range []mcp.Era{mcp.EraModern, mcp.EraLegacy} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var deaf bool
			asked := map[string]int{}
			def := testDefinition(func(s *config.Server) { s.Era = config.Era(era) })
			b := startBench(t, def, func(call *mcp.Call) (jsontext.Value, error) {
				mu.Lock()
				defer mu.Unlock()
				asked[call.Method]++
				if deaf {
					return nil, mcp.NewFault(mcp.KindTimeout, "request", "no answer")
				}
				if call.Method == mcp.MethodToolsList {
					return jsontext.Value(oneTool), nil
				}
				return nil, mcp.MethodNotFound(call.Method) // an answer too
			})
			b.state()
			time.Sleep(91 * time.Second)
			calls := func(asked map[string]int, method string) int {
				mu.Lock()
				defer mu.Unlock()
				if method == "" {
					return len(asked)
				}
				return asked[method]
			}
			state, _, _ := b.state()
			want := map[mcp.Era]string{mcp.EraModern: mcp.MethodDiscover, mcp.EraLegacy: mcp.MethodPing}[era]
			if state != "up" || calls(asked, want) != 3 || calls(asked, "") != 2 || len(b.dialled()) != 1 {
				t.Errorf("%s: %s after %v and %d dials", era, state, asked, len(b.dialled()))
			}
			mu.Lock()
			deaf = true
			mu.Unlock()
			l := b.live.Load().links[0]
			l.busy.Add(1)
			time.Sleep(time.Minute)
			if state, _, _ := b.state(); state != "up" {
				t.Errorf("%s: a busy server is %s", era, state)
			}
			l.busy.Add(-1)
			time.Sleep(31 * time.Second)
			b.state()
			if len(b.dialled()) < 2 {
				t.Errorf("%s: a deaf server was not connected anew", era)
			}
		})
	}
}
