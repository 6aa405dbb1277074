package worker

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startTestChild starts one of childPrograms as a server process.
func startTestChild(t *testing.T, name string) *process {
	t.Helper()
	p, err := startProcess(t.Context(), &command{Path: os.Args[0], Env: childEnviron(name)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p
}

func readLines(t *testing.T, r *bufio.Reader, n int) []string {
	t.Helper()
	var lines []string
	for range n {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("after %q: %v", lines, err)
		}
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
	return lines
}

func readPids(t *testing.T, r *bufio.Reader, n int) []int {
	t.Helper()
	var pids []int
	for _, line := range readLines(t, r, n) {
		pid, err := strconv.Atoi(line)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

// waitGone waits until none of the processes is left, zombies included.
func waitGone(t *testing.T, pids ...int) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for _, pid := range pids {
		for syscall.Kill(pid, 0) == nil {
			if time.Now().After(deadline) {
				stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
				t.Errorf("process %d is still there: %s", pid, stat)
				break
			}
			<-time.After(time.Millisecond)
		}
	}
}

func TestProcessSpeaksAndEndsWithStdin(t *testing.T) {
	t.Parallel()
	p := startTestChild(t, "cat")
	out := bufio.NewReader(p.stdout)
	for i := range 3 {
		want := strings.Repeat("x", i*100_000) + "end"
		go fmt.Fprintln(p.stdin, want)
		if got := readLines(t, out, 1)[0]; len(got) != len(want) {
			t.Fatalf("got %d bytes, want %d", len(got), len(want))
		}
	}
	start := time.Now()
	p.stop(t.Context())
	if d := time.Since(start); d > stdinGrace {
		t.Errorf("a server that ends with stdin took %v to stop", d)
	}
	if got, want := fmt.Sprint(p.exitErr()), "the process ended with exit code 0"; got != want {
		t.Errorf("exit is %q, want %q", got, want)
	}
}

func TestProcessStopOrder(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		child    string
		least    time.Duration
		output   []string
		wantExit string
	}{
		{"polite", stdinGrace, []string{"ready", "bye"}, "the process ended with exit code 0"},
		{"stubborn", stdinGrace + termGrace, []string{"ready", "term"}, "the process was ended by signal 9 (killed)"},
	} {
		t.Run(tt.child, func(t *testing.T) {
			t.Parallel()
			p := startTestChild(t, tt.child)
			out := bufio.NewReader(p.stdout)
			lines := readLines(t, out, 1)
			rest := make(chan []string)
			go func() {
				line, _ := out.ReadString('\n')
				rest <- []string{strings.TrimSpace(line)}
			}()
			start := time.Now()
			p.stop(t.Context())
			if d := time.Since(start); d < tt.least {
				t.Errorf("it was ended after %v, want %v of grace", d, tt.least)
			}
			if lines = append(lines, <-rest...); !slices.Equal(lines, tt.output) {
				t.Errorf("it wrote %q, want %q", lines, tt.output)
			}
			if got := fmt.Sprint(p.exitErr()); got != tt.wantExit {
				t.Errorf("exit is %q, want %q", got, tt.wantExit)
			}
		})
	}
}

func TestProcessStopIsCutShort(t *testing.T) {
	t.Parallel()
	p := startTestChild(t, "stubborn")
	readLines(t, bufio.NewReader(p.stdout), 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	start := time.Now()
	p.stop(ctx)
	if d := time.Since(start); d > stdinGrace {
		t.Errorf("it took %v", d)
	}
	waitGone(t, p.pid)
}

func TestProcessStartErrors(t *testing.T) {
	t.Parallel()
	noExec := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(noExec, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		cmd  command
		want string
	}{
		{command{Path: "toolhub-no-such-program"}, "toolhub-no-such-program"},
		{command{Path: noExec}, "permission denied"},
		{command{Path: os.Args[0], Dir: "/no/such/folder"}, "/no/such/folder"},
	} {
		p, err := startProcess(t.Context(), &tt.cmd)
		if err == nil {
			p.kill()
			t.Fatalf("%v started", tt.cmd)
		}
		if !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error is %q, want it to say %q", err, tt.want)
		}
	}
}

func TestProcessEnvironmentIsMinimal(t *testing.T) {
	t.Setenv("TOOLHUB_TEST_SECRET", "s3cret")
	t.Setenv("LANG", "C.UTF-8")
	dir := t.TempDir()
	p, err := startProcess(t.Context(), &command{Path: os.Args[0], Dir: dir, Env: map[string]string{childEnv: "env", "LANG": "mine", "EXTRA": "a=b"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.kill()
	var lines []string
	for in := bufio.NewScanner(p.stdout); in.Scan(); {
		lines = append(lines, in.Text())
	}
	for _, want := range []string{"wd=" + dir, "LANG=mine", "EXTRA=a=b", "PATH=" + os.Getenv("PATH")} {
		if !slices.Contains(lines, want) {
			t.Errorf("%q is missing in %q", want, lines)
		}
	}
	for _, line := range lines {
		name, _, _ := strings.Cut(line, "=")
		if name != "wd" && name != "PWD" && name != "EXTRA" && name != childEnv && !slices.Contains(inheritedEnv, name) {
			t.Errorf("%s was inherited", line)
		}
	}
}

func TestProcessStderrIsKept(t *testing.T) {
	t.Parallel()
	p := startTestChild(t, "exit3")
	<-p.done()
	if got := p.stderr(); !slices.Equal(got, []string{"about to fail"}) {
		t.Errorf("stderr is %q", got)
	}
	if got, want := fmt.Sprint(p.exitErr()), "the process ended with exit code 3"; got != want {
		t.Errorf("exit is %q, want %q", got, want)
	}
}

func TestTailIsBounded(t *testing.T) {
	t.Parallel()
	tl := newTail(nil, nil)
	tl.readFrom(strings.NewReader(strings.Repeat("y", 5*tailLineBytes) + "\n" + strings.Repeat("line\r\n", 2*tailLines) + "bad \xff utf8\nno newline"))
	lines := tl.Lines()
	if len(lines) != tailLines || lines[0] != "line" || lines[tailLines-1] != "no newline" || lines[tailLines-2] != "bad \uFFFD utf8" {
		t.Errorf("lines are %q", lines)
	}
	tl = newTail(nil, nil)
	tl.readFrom(strings.NewReader(strings.Repeat("y", 5*tailLineBytes) + "\nnext\n"))
	if lines := tl.Lines(); len(lines) != 2 || len(lines[0]) != tailLineBytes+len("…") || lines[1] != "next" {
		t.Errorf("a long line became %d lines", len(lines))
	}
}

func TestNoOrphans(t *testing.T) {
	t.Parallel()
	// All five below the worker: the server, a child in its group, one that left
	// the group, and a child of each.
	t.Run("the server ends", func(t *testing.T) {
		t.Parallel()
		p := startTestChild(t, "fork")
		pids := readPids(t, bufio.NewReader(p.stdout), 5)
		fmt.Fprintln(p.stdin, "7")
		<-p.done()
		waitGone(t, pids...)
		if got, want := fmt.Sprint(p.exitErr()), "the process ended with exit code 7"; got != want {
			t.Errorf("exit is %q, want %q", got, want)
		}
	})
	t.Run("the server is killed", func(t *testing.T) {
		t.Parallel()
		p := startTestChild(t, "fork")
		pids := readPids(t, bufio.NewReader(p.stdout), 5)
		if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-p.done()
		waitGone(t, pids...)
	})
	t.Run("it is stopped", func(t *testing.T) {
		t.Parallel()
		p := startTestChild(t, "fork")
		pids := readPids(t, bufio.NewReader(p.stdout), 5)
		p.kill()
		waitGone(t, pids...)
	})
	t.Run("the worker is killed", func(t *testing.T) {
		t.Parallel()
		hub := exec.Command(os.Args[0])
		hub.Env = append(os.Environ(), childEnv+"=hub")
		stdout, err := hub.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := hub.Start(); err != nil {
			t.Fatal(err)
		}
		pids := readPids(t, bufio.NewReader(stdout), 5)
		if err := hub.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = hub.Wait()
		waitGone(t, pids...)
	})
	t.Run("the reaper is killed", func(t *testing.T) {
		t.Parallel()
		p := startTestChild(t, "fork")
		pids := readPids(t, bufio.NewReader(p.stdout), 5)
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
		if err != nil {
			t.Skip("needs /proc")
		}
		reaper, err := strconv.Atoi(strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[1])
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(reaper, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-p.done()
		// The two that left the group are beyond reach without their reaper.
		waitGone(t, p.pid)
		var left int
		for _, pid := range pids {
			if syscall.Getpgid(pid); syscall.Kill(pid, 0) == nil {
				left++
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if left > 2 {
			t.Errorf("%d processes are left, want at most the 2 outside the group", left)
		}
	})
}
