package embedded_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"toolhub/internal/bus"
	"toolhub/internal/bus/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const quick = 5 * time.Second // for what must not wait for a time-out

func start(t *testing.T, cfg embedded.Config) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

func connect(t *testing.T, s *embedded.Server) *bus.Conn {
	t.Helper()
	c, err := bus.Connect(t.Context(), bus.Config{Hub: "test", Identity: "w1", InProcess: s.InProcess(), NKeyFile: s.NKeyFile()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// startFails checks that Start fails at once with words that help.
func startFails(t *testing.T, cfg embedded.Config, words ...string) {
	t.Helper()
	began := time.Now()
	s, err := embedded.Start(t.Context(), cfg)
	if err == nil {
		s.Shutdown()
		t.Fatalf("started with %+v", cfg)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	if took := time.Since(began); took > quick {
		t.Errorf("it took %v to say %q", took, err)
	}
}

// dial connects over TCP with the key in a file, "" for none.
func dial(url, nkeyFile string) (*nats.Conn, error) {
	opts := []nats.Option{nats.Timeout(quick)}
	if nkeyFile != "" {
		o, err := nats.NkeyOptionFromSeed(nkeyFile)
		if err != nil {
			return nil, err
		}
		opts = append(opts, o)
	}
	return nats.Connect(url, opts...)
}

func TestRestartKeepsEverything(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "state")
	s := start(t, embedded.Config{StateDir: dir})
	c := connect(t, s)
	rev, err := c.Put(t.Context(), bus.BucketDefs, bus.Key(bus.KeyServer, "a"), []byte("1"), bus.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	before, err := os.ReadFile(s.NKeyFile())
	if err != nil {
		t.Fatal(err)
	}
	s.Shutdown()
	s.Shutdown() // is no harm

	s = start(t, embedded.Config{StateDir: dir, NoListener: true})
	if after, err := os.ReadFile(s.NKeyFile()); err != nil || string(after) != string(before) {
		t.Errorf("the key has changed (%v)", err)
	}
	if e, err := connect(t, s).Get(t.Context(), bus.BucketDefs, bus.Key(bus.KeyServer, "a")); err != nil || string(e.Value) != "1" || e.Rev != rev {
		t.Errorf("got %+v, %v", e, err)
	}
	if s.URL() != "" || s.ClientCommand() != "" {
		t.Errorf("a server without a listener has the URL %q and the command %q", s.URL(), s.ClientCommand())
	}
}

func TestStateDirBelongsToOneServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, embedded.Config{StateDir: dir})
	startFails(t, embedded.Config{StateDir: dir}, dir, "another hub", "hub.lock")
	connect(t, s) // the first one has taken no harm
	s.Shutdown()
	// A hub whose NATS runs elsewhere holds the same lock.
	unlock, err := embedded.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	startFails(t, embedded.Config{StateDir: dir}, dir, "another hub", "hub.lock")
	unlock()
	start(t, embedded.Config{StateDir: dir})
	if unlock, err := embedded.Lock(dir); err == nil {
		unlock()
		t.Error("the lock of a running server was to be had")
	}
}

func TestBadStateDir(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	startFails(t, embedded.Config{StateDir: file}, "state_dir", file)
	startFails(t, embedded.Config{StateDir: filepath.Join(file, "below")}, "state_dir", file)

	store := t.TempDir() // JetStream cannot make its directory
	if err := os.WriteFile(filepath.Join(store, "nats"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	startFails(t, embedded.Config{StateDir: store, NoListener: true}, "state_dir", store)

	key := t.TempDir()
	if err := os.MkdirAll(filepath.Join(key, "keys"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(key, "keys", "hub.nk"), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	startFails(t, embedded.Config{StateDir: key}, "hub.nk", "remove it")
	startFails(t, embedded.Config{}, "state_dir")
}

func TestPortInUse(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	addr := ln.Addr().(*net.TCPAddr)
	dir := t.TempDir()
	startFails(t, embedded.Config{StateDir: dir, Port: addr.Port}, "nats.listen", addr.String(), "in use")
	ln.Close()
	s := start(t, embedded.Config{StateDir: dir, Port: addr.Port}) // the failed start has let go of all
	if want := "nats://" + addr.String(); s.URL() != want {
		t.Errorf("the URL is %s, want %s", s.URL(), want)
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for word, cfg := range map[string]embedded.Config{
		"loopback":    {Host: "0.0.0.0"},
		"example.com": {Host: "example.com"},
		"65536":       {Port: 65536},
		"max payload": {MaxPayload: 1 << 30},
		"max store":   {MaxStore: -1},
	} {
		cfg.StateDir = t.TempDir()
		startFails(t, cfg, word)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := embedded.Start(ctx, embedded.Config{StateDir: t.TempDir()}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestOnlyKeysOpenIt: other users of the machine can reach the port.
func TestOnlyKeysOpenIt(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "it's a dir")
	s := start(t, embedded.Config{StateDir: dir})
	if nc, err := dial(s.URL(), ""); err == nil {
		nc.Close()
		t.Error("a client without a key was let in")
	} else if !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("a client without a key: %v", err)
	}
	other := start(t, embedded.Config{StateDir: t.TempDir(), NoListener: true})
	if nc, err := dial(s.URL(), other.NKeyFile()); err == nil {
		nc.Close()
		t.Error("a client with the key of another hub was let in")
	}
	if _, err := bus.Connect(t.Context(), bus.Config{Hub: "test", Identity: "x", URL: s.URL()}); err == nil {
		t.Error("a process of the hub was let in without a key")
	}
	c, err := bus.Connect(t.Context(), bus.Config{Hub: "test", Identity: "cli", URL: s.URL(), NKeyFile: s.AdminNKeyFile()})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// TestClientCommand: what is printed for the operator works in a shell as it stands.
func TestClientCommand(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "it's $HOME")
	s := start(t, embedded.Config{StateDir: dir})
	// The shell's own splitting, into one line per word.
	out, err := exec.Command("sh", "-c", `nats() { printf '%s\n' "$@"; }; `+s.ClientCommand()).Output()
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(words) != 4 || words[0] != "--server" || words[2] != "--nkey" {
		t.Fatalf("%s is split into %q", s.ClientCommand(), words)
	}
	nc, err := dial(words[1], words[3])
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.FlushTimeout(quick); err != nil {
		t.Error(err)
	}
}

func TestFilesArePrivate(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	s := start(t, embedded.Config{StateDir: dir})
	connect(t, s)
	for _, path := range []string{"hub.lock", "keys/hub.nk", "keys/admin.nk"} {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 0600", path, info.Mode(), err)
		}
	}
	for _, path := range []string{"", "keys"} {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%q: %v, %v; want mode 0700", path, info.Mode(), err)
		}
	}
	s.Shutdown()
	if err := os.Chmod(s.NKeyFile(), 0o644); err != nil {
		t.Fatal(err)
	}
	start(t, embedded.Config{StateDir: dir})
	if info, err := os.Stat(s.NKeyFile()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a key that others could read: %v, %v", info.Mode(), err)
	}
}

func TestShutdownLetsGoOfAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, embedded.Config{StateDir: dir})
	_, port, err := net.SplitHostPort(strings.TrimPrefix(s.URL(), "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	s.Shutdown()
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: n})
	if err != nil {
		t.Fatalf("the port is still in use: %v", err)
	}
	ln.Close()
}

func TestReadyFast(t *testing.T) {
	t.Parallel()
	began := time.Now()
	s := start(t, embedded.Config{StateDir: t.TempDir()})
	ready := time.Since(began)
	connect(t, s)
	t.Logf("ready in %v, a hub in it in %v", ready, time.Since(began))
	if ready > quick {
		t.Errorf("ready after %v", ready)
	}
}
