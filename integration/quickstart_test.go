package integration_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"toolhub/integration/hubproc"
)

// insideREADME is set where the README's test command runs as a test.
const insideREADME = "TOOLHUB_INSIDE_README_TEST"

// clone is what a newcomer has after `git clone`: the files of this repository
// that git knows, or would know with the next commit, and nothing else.
func clone(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("couldn't ask git for the files of the repository: %v", err)
	}
	dir := t.TempDir()
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		info, err := os.Stat(filepath.Join("..", name))
		if errors.Is(err, os.ErrNotExist) {
			continue // deleted, not yet committed
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, info.Mode()); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// block is the command block that follows <!-- name --> in a README.
func block(t *testing.T, readme, name string) string {
	t.Helper()
	m := regexp.MustCompile("(?s)<!-- " + name + " -->\n```sh\n(.*?)```").FindStringSubmatch(readme)
	if m == nil {
		t.Fatalf("README.md has no command block after <!-- %s -->", name)
	}
	return m[1]
}

// goOnly is the environment of a machine that has Go and what systems have, but
// no Node, no hub and no network for Go.
func goOnly(t *testing.T, extra ...string) []string {
	t.Helper()
	bin := t.TempDir()
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		programs, err := os.ReadDir(dir)
		if err != nil {
			continue // as a shell does
		}
		for _, p := range programs {
			switch p.Name() {
			case "node", "nodejs", "npm", "npx", "hub", "nats", "nats-server":
				continue
			}
			if err := os.Symlink(filepath.Join(dir, p.Name()), filepath.Join(bin, p.Name())); err != nil && !errors.Is(err, os.ErrExist) {
				t.Fatal(err)
			}
		}
	}
	// What `go env -w` writes, since servers get no other variables of Go.
	var settings strings.Builder
	settings.WriteString("GOPROXY=off\n")
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH"} {
		out, err := exec.Command("go", "env", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		settings.WriteString(name + "=" + string(out))
	}
	home := t.TempDir()
	if err := os.MkdirAll(filepath.Join(home, "go"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "go", "env"), []byte(settings.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return append([]string{"PATH=" + bin, "HOME=" + home, "XDG_CONFIG_HOME=" + home, "TMPDIR=" + t.TempDir()}, extra...)
}

// TestQuickstart copies the commands of the README and runs them in a clean
// clone: the first starts the hub, the others are typed in a second terminal. Only
// the ports are others, so that the test disturbs nobody.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	dir := clone(t)
	readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	start, next := block(t, string(readme), "quickstart"), block(t, string(readme), "next")

	board, err := hubproc.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	const port = "127.0.0.1:7790"
	file := filepath.Join(dir, "examples/quickstart/hub.yaml")
	config, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(config, []byte(port)); n < 2 {
		t.Fatalf("%s has %s %d times; this test replaces it", file, port, n)
	}
	if err := os.WriteFile(file, bytes.ReplaceAll(config, []byte(port), []byte(board)), 0o644); err != nil {
		t.Fatal(err)
	}
	env := goOnly(t, "XDG_STATE_HOME="+t.TempDir(), "TOOLHUB_LISTEN=127.0.0.1:0")

	first := shell(context.Background(), dir, env, "exec "+start) // so that its exit code is the hub's
	output, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	log := new(bytes.Buffer)
	first.Stderr = log
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	ready, read := make(chan struct{}), make(chan struct{})
	said := new(bytes.Buffer)
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			fmt.Fprintln(said, lines.Text())
			if strings.Contains(lines.Text(), "next") {
				close(ready)
			}
		}
	}()
	ended := false
	end := func() {
		if ended {
			return
		}
		ended = true
		// Ctrl-C, to the hub alone so that its exit code is seen: a go command that
		// is interrupted has one of its own.
		for _, pid := range hubproc.Children(first.Process.Pid) {
			if err := syscall.Kill(pid, syscall.SIGINT); err != nil {
				t.Error(err)
			}
		}
		<-read
		if err := first.Wait(); err != nil {
			t.Errorf("the hub ended with %v\n%s\n%s", err, said, log)
		}
		noProcess(t, dir)
	}
	defer end()
	select {
	case <-ready:
	case <-read:
		t.Fatalf("the hub ended:\n%s\n%s", said, log)
	case <-time.After(10 * time.Minute): // it is built first
		t.Fatalf("the hub doesn't say that it runs:\n%s\n%s", said, log)
	}

	// A person takes longer to change to a second terminal than Go to build the
	// example servers; a test does not.
	eventually(t, func() error {
		out, err := shell(soon(t), dir, env, "go run ./cmd/hub tools").CombinedOutput()
		for _, want := range []string{"notes__add_note", "board__add_note", "clock__now"} {
			if !bytes.Contains(out, []byte(want)) {
				return fmt.Errorf("hub tools doesn't list %s (%v):\n%s", want, err, out)
			}
		}
		return err
	})
	out, err := shell(soon(t), dir, env, "set -e\n"+next).CombinedOutput()
	if err != nil {
		t.Errorf("the commands of the second terminal: %v", err)
	}
	for _, want := range []string{"notes", "board", "clock", "up", "notes__add_note", "board__add_note", "Europe/Berlin", "wrote hello.md", "the board has 1 notes now", "deny", "notes/delete_*"} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("the commands don't show %q", want)
		}
	}
	if bytes.Contains(out, []byte("delete_note ")) && bytes.Contains(out, []byte("notes__delete_note")) {
		t.Error("notes__delete_note is listed although the policy denies it")
	}
	if t.Failed() {
		t.Logf("they wrote:\n%s", out)
	}
	// What the README says of it.
	if note, err := os.ReadFile(filepath.Join(dir, ".toolhub/notes/hello.md")); err != nil || string(note) != "written through the hub" {
		t.Errorf("the note is %q, %v", note, err)
	}
	res, err := http.Get("http://" + board + "/")
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || !bytes.Contains(page, []byte(`<li class="pink">look at`)) {
		t.Errorf("the board doesn't show the note: %v\n%s", err, page)
	}
	denied, err := shell(soon(t), dir, env, "go run ./cmd/hub call board__clear_board").CombinedOutput()
	if err == nil || !bytes.Contains(denied, []byte("exit status 3")) {
		t.Errorf("board__clear_board: %v, want exit status 3 (denied)\n%s", err, denied)
	}
	end()
	status, err := exec.Command("git", "-C", "..", "check-ignore", "-q", ".toolhub/").CombinedOutput()
	if err != nil {
		t.Errorf(".toolhub of the quick start is not ignored by git: %v %s", err, status)
	}
}

// shell runs a command block as a terminal does, in a process group of its own.
func shell(ctx context.Context, dir string, env []string, commands string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", commands)
	cmd.Dir, cmd.Env = dir, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd
}
