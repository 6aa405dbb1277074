package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/gofrs/flock"

	"toolhub/internal/bus/embedded"
	"toolhub/internal/config"
	"toolhub/internal/daemon"
	"toolhub/internal/mcp"
)

func newTestConsole(terminal bool) (c *console, out, errs *bytes.Buffer) {
	out, errs = new(bytes.Buffer), new(bytes.Buffer)
	return &console{in: strings.NewReader(""), out: out, err: errs, terminal: terminal, errTerminal: terminal}, out, errs
}

// The table of exit codes in docs/decisions/0007 is that of the program.
func TestExitCodesAreDocumented(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../docs/decisions/0007-errors-and-exit-codes.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []int
	for _, m := range regexp.MustCompile(`(?m)^\| (\d+) \|`).FindAllStringSubmatch(string(data), -1) {
		n, _ := strconv.Atoi(m[1])
		documented = append(documented, n)
	}
	var codes []int
	for _, e := range exitCodes {
		codes = append(codes, e.code)
		if !strings.Contains(exitCodeHelp(), e.meaning) {
			t.Errorf("%d is not in the help", e.code)
		}
	}
	// The page's revision history is a table with numbers too.
	if len(documented) < len(codes) || fmt.Sprint(documented[:len(codes)]) != fmt.Sprint(codes) {
		t.Errorf("documented %v, used %v", documented, codes)
	}
}

func TestExitCode(t *testing.T) {
	t.Parallel()
	for _, k := range []struct {
		err  error
		code int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{usageError{"x"}, 2},
		{&config.Error{}, 2},
		{fmt.Errorf("a: %w", usageError{"x"}), 2},
		{mcp.NewFault(mcp.KindInvalid, "r", "m"), 2},
		{mcp.NewFault(mcp.KindDenied, "r", "m"), 3},
		{mcp.Unavailable("s", "r", "m"), 4},
		{mcp.OutcomeUnknown("s", "m"), 4},
		{mcp.NewFault(mcp.KindOverloaded, "r", "m"), 4},
		{mcp.NewFault(mcp.KindRateLimited, "r", "m"), 4},
		{&mcp.Error{Code: -1}, 5},
		{reported{5}, 5},
		{mcp.NewFault(mcp.KindTimeout, "r", "m"), 6},
		{context.DeadlineExceeded, 6},
		{mcp.NewFault(mcp.KindNotFound, "r", "m"), 7},
		{mcp.NewFault(mcp.KindTransport, "r", "m"), 1},
		{mcp.NewFault(mcp.KindAuth, "r", "m"), 1},
		{daemon.Signal{Signal: syscall.SIGINT}, 130},
		{fmt.Errorf("a: %w", mcp.NewFault(mcp.KindNotFound, "r", "m")), 7},
	} {
		if got := exitCode(k.err); got != k.code {
			t.Errorf("%v: %d, want %d", k.err, got, k.code)
		}
	}
}

func TestFail(t *testing.T) {
	t.Parallel()
	for _, k := range []struct {
		err  error
		says string
	}{
		{nil, ""},
		{reported{5}, ""},
		{errors.New("a\x1b[31m"), "hub: a\uFFFD[31m\n"},
		{&config.Error{Problems: []config.Problem{{File: "f", Line: 2, Field: "x", Message: "m"}, {File: "f", Message: "n"}}}, "f:2: x: m\nf: n\n"},
		{mcp.OutcomeUnknown("fs", "lost"), "hub: unavailable (outcome_unknown): lost\n  server: fs\n  hint: the call may have run; look before you repeat it\n"},
		{mcp.NewFault(mcp.KindUnavailable, "no_hub", "none; hub up"), "hub: unavailable (no_hub): none; hub up\n"},
		{&mcp.Fault{Kind: mcp.KindRateLimited, Reason: "r", Message: "m", Retryable: true, RetryAfterMS: 1500}, "hub: rate_limited (r): m\n  retry after: 1.5s\n  hint: it may work when tried again\n"},
		{&mcp.Error{Code: -7, Message: "own words"}, "hub: own words (JSON-RPC error -7)\n"},
	} {
		c, out, errs := newTestConsole(false)
		if code := c.fail(k.err); code != exitCode(k.err) || errs.String() != k.says || out.Len() > 0 {
			t.Errorf("%v: %d %q", k.err, code, errs)
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	c, out, _ := newTestConsole(false)
	if err := c.table([][]string{{"A", "LONG", ""}, {"x\ty", "z\nz", "last"}, {"äöü", "\x1b[2J", "e"}}); err != nil {
		t.Fatal(err)
	}
	want := "A    LONG  \nx y  z z   last\näöü  \uFFFD[2J  e\n"
	if out.String() != want {
		t.Errorf("got\n%q\nwant\n%q", out, want)
	}
	if got := shorten("äöüäöü", 4); got != "äöü…" || shorten("abc", 3) != "abc" {
		t.Error(got)
	}
}

func TestRawJSON(t *testing.T) {
	t.Parallel()
	c, out, _ := newTestConsole(false)
	if err := c.raw(jsontext.Value(`{"a":9007199254740993}`)); err != nil || out.String() != "{\"a\":9007199254740993}\n" {
		t.Errorf("%v %q", err, out)
	}
	c, out, _ = newTestConsole(true)
	if err := c.raw(jsontext.Value(`{"a":9007199254740993}`)); err != nil || out.String() != "{\n  \"a\": 9007199254740993\n}\n" {
		t.Errorf("%v %q", err, out)
	}
	if err := c.raw(jsontext.Value(`{`)); err == nil {
		t.Error("no JSON is written")
	}
}

func TestProgressLine(t *testing.T) {
	t.Parallel()
	c, _, errs := newTestConsole(true)
	p := &progressLine{c: c}
	p.notify(mcp.NotifyProgress, jsontext.Value(`{"progress":1,"total":3,"message":"one\ntwo"}`))
	p.notify(mcp.NotifyMessage, jsontext.Value(`{"level":"info","data":{"a":1}}`))
	p.notify(mcp.NotifyProgress, jsontext.Value(`{"progress":2.5}`))
	p.end()
	p.end()
	if want := "\r\x1b[K1/3 one two\r\x1b[Kinfo: {\"a\":1}\n\r\x1b[K2.5\r\x1b[K"; errs.String() != want {
		t.Errorf("got  %q\nwant %q", errs, want)
	}
	c, _, errs = newTestConsole(false)
	(&progressLine{c: c}).notify(mcp.NotifyProgress, jsontext.Value(`{"progress":1}`))
	if errs.Len() > 0 {
		t.Errorf("a file gets progress: %q", errs)
	}
}

func TestServerNote(t *testing.T) {
	t.Parallel()
	l := serverLine{Attempts: 2, RetryAt: time.Now().Add(90 * time.Second), Reason: "it\nbroke"}
	if got := l.note(); got != "attempt 2, again in 1m30s, it broke" {
		t.Error(got)
	}
	if got := (&serverLine{RetryAt: time.Now().Add(-time.Hour)}).note(); got != "" {
		t.Error(got)
	}
	if got := (&serverLine{LatencyMS: 1.25}).latency(); got != "1.2ms" {
		t.Error(got)
	}
}

func TestEventData(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		`{"a":1,"b":"x\ny","c":null,"d":"","e":{"f":[1]}}`: `  a=1 b=x y e={"f":[1]}`,
		`{}`: "", `[1]`: "  [1]",
	} {
		if got := eventData(jsontext.Value(raw)); got != want {
			t.Errorf("%s: %q", raw, got)
		}
	}
	if eventData(nil) != "" {
		t.Error("no data")
	}
}

func TestReadRunning(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := readRunning(dir); !mcp.IsKind(err, mcp.KindUnavailable) {
		t.Error(err)
	}
	r := runningHub{Hub: "h", Endpoint: "http://x", NATS: config.NATS{URL: "nats://x", NKey: "k"}}
	if err := r.write(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := readRunning(dir); !mcp.IsKind(err, mcp.KindUnavailable) {
		t.Errorf("what a killed hub left is believed: %v", err)
	}
	l := flock.New(filepath.Join(dir, embedded.LockFile))
	if ok, err := l.TryLock(); !ok || err != nil {
		t.Fatal(err)
	}
	defer l.Unlock()
	if got, err := readRunning(dir); err != nil || *got != r {
		t.Errorf("%+v %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, runningFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readRunning(dir); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Error(err)
	}
}
