package worker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Times of the shutdown order that MCP prescribes for stdio (2026-07-28,
// basic/transports/stdio): close stdin, wait, SIGTERM, wait, SIGKILL.
const (
	stdinGrace = 2 * time.Second
	termGrace  = 2 * time.Second
	// killGrace bounds the wait for a process that was sent SIGKILL. Only one
	// that hangs in the kernel needs longer, and nobody may wait for that.
	killGrace = 5 * time.Second
)

// inheritedEnv are the variables of the worker that a server gets without being
// told so. All others, where secrets tend to be, have to be named in its env.
var inheritedEnv = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
	// where `go run` finds what is built already; none of them holds a credential
	"GOPATH", "GOROOT", "GOENV", "GOFLAGS", "GOCACHE", "GOMODCACHE", "GOTOOLCHAIN",
}

// command says what process to start.
type command struct {
	// Path is looked up in the PATH that the process gets; a relative path with
	// a slash counts from Dir.
	Path string
	Args []string
	// Env is added to the inherited variables and wins over them.
	Env map[string]string
	// Dir is the working directory, "" for the worker's.
	Dir string
	// Secrets are blotted out in what the process writes to stderr.
	Secrets *redactor
	// Logger gets what the process writes to stderr, at debug.
	Logger *slog.Logger
}

func (c *command) environ() []string {
	env := make(map[string]string, len(inheritedEnv)+len(c.Env))
	for _, name := range inheritedEnv {
		if v, ok := os.LookupEnv(name); ok {
			env[name] = v
		}
	}
	maps.Copy(env, c.Env)
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// peer is a server that speaks newline-delimited JSON on a pair of pipes: a
// [process] or a [builtin]. It has to be ended with stop or kill, also after it
// ended by itself; both wait until all of it is gone.
type peer interface {
	// pipes are the worker's ends. Closing stdin tells the server to go.
	pipes() (stdin io.WriteCloser, stdout io.ReadCloser)
	// done is closed when the server and everything below it are gone; exitErr
	// says how then.
	done() <-chan struct{}
	exitErr() error
	// stderr is the last lines that the server wrote there, oldest first.
	stderr() []string
	// stop asks before it kills; the end of ctx cuts the asking short.
	stop(ctx context.Context)
	kill()
}

// process is a running server process with everything below it.
type process struct {
	stdin   *os.File
	stdout  *os.File
	pid     int // of the server
	tail    *tail
	logging sync.WaitGroup // of stdout
	deaf    bool           // it does not speak on stdin and stdout
	control *os.File
	hangup  func() error // closes control once
	ended   chan struct{}
	exit    error // set before ended is closed
}

// startProcess starts cmd and waits until it runs or is known not to. The error
// of a program that is not there names it.
func startProcess(ctx context.Context, cmd *command) (_ *process, err error) {
	self, err := selfProgram()
	if err != nil {
		return nil, fmt.Errorf("couldn't find the worker's own program: %w", err)
	}
	if cmd.Dir != "" {
		if info, err := os.Stat(cmd.Dir); err != nil || !info.IsDir() {
			return nil, fmt.Errorf("couldn't start %s: its working directory %s is no directory", cmd.Path, cmd.Dir)
		}
	}
	var files []*os.File
	defer func() {
		if err != nil {
			closeAll(files)
		}
	}()
	pipe := func() (r, w *os.File) {
		if err != nil {
			return nil, nil
		}
		if r, w, err = os.Pipe(); err == nil {
			files = append(files, r, w)
		}
		return r, w
	}
	stdinR, stdinW := pipe()
	stdoutR, stdoutW := pipe()
	stderrR, stderrW := pipe()
	controlR, controlW := pipe()
	reportR, reportW := pipe()
	if err != nil {
		return nil, fmt.Errorf("couldn't make a pipe: %w", err)
	}
	reaper := &exec.Cmd{
		Path: self, Args: append([]string{"toolhub-reaper", reapFlag, cmd.Path}, cmd.Args...),
		Env: cmd.environ(), Dir: cmd.Dir,
		Stdin: stdinR, Stdout: stdoutW, Stderr: stderrW, ExtraFiles: []*os.File{controlR, reportW},
		// Its own group, so that ^C at a terminal reaches the worker only.
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	if err = reaper.Start(); err != nil {
		return nil, fmt.Errorf("couldn't start %s: %w", cmd.Path, err)
	}
	closeAll([]*os.File{stdinR, stdoutW, stderrW, controlR, reportW})
	p := &process{
		stdin: stdinW, stdout: stdoutR,
		tail: newTail(cmd.Secrets, cmd.Logger), control: controlW, hangup: sync.OnceValue(controlW.Close),
		ended: make(chan struct{}),
	}
	started := make(chan error, 2) // watch never waits for us
	go p.watch(reaper, reportR, stderrR, started)
	select {
	case err := <-started:
		if err != nil {
			p.kill()
			return nil, fmt.Errorf("couldn't start %s: %w", cmd.Path, err)
		}
		return p, nil
	case <-ctx.Done():
		p.kill()
		return nil, context.Cause(ctx)
	}
}

// watch is the one goroutine of a process (with one below it for stderr): it
// follows the reaper's report to its end and then closes done.
func (p *process) watch(reaper *exec.Cmd, reports, stderr *os.File, started chan<- error) {
	defer close(p.ended)
	defer reports.Close()
	stderrDone := make(chan struct{})
	go func() {
		defer close(stderrDone)
		p.tail.readFrom(stderr)
	}()
	r := bufio.NewReader(reports)
	exit := errors.New("the process was lost: its reaper was killed")
	for orderly := false; ; {
		rep, err := readReport(r)
		if err != nil {
			if !orderly && p.pid != 0 {
				_ = syscall.Kill(-p.pid, syscall.SIGKILL)
			}
			break
		}
		switch rep.word {
		case reportStarted:
			p.pid = rep.number()
			started <- nil
		case reportFailed:
			exit, orderly = errors.New(rep.rest), true
		case reportExited:
			exit, orderly = fmt.Errorf("the process ended with exit code %d", rep.number()), true
		case reportSignalled:
			exit, orderly = fmt.Errorf("the process was ended by signal %d (%s)", rep.number(), syscall.Signal(rep.number())), true
		}
	}
	_ = reaper.Wait()
	if reaper.ProcessState.ExitCode() == 2 && p.pid == 0 {
		exit = errors.New("the reaper did not start: does main call worker.ReapMain first?")
	}
	// Everything that had stderr is dead, so this is only to read the rest; where
	// a process could get away (not on Linux), it must not hold us.
	select {
	case <-stderrDone:
	case <-time.After(killGrace):
	}
	stderr.Close()
	<-stderrDone
	p.exit = exit
	started <- exit // nobody looks if it had started
}

// logStdout keeps stdout with stderr, for a server that does not speak there.
func (p *process) logStdout() {
	p.deaf = true
	p.logging.Go(func() { p.tail.readFrom(p.stdout) })
}

func (p *process) pipes() (io.WriteCloser, io.ReadCloser) { return p.stdin, p.stdout }
func (p *process) done() <-chan struct{}                  { return p.ended }
func (p *process) exitErr() error                         { return p.exit }
func (p *process) stderr() []string                       { return p.tail.Lines() }

// stop ends the process in the order of the specification, each step only
// if the one before did not help. The end of ctx cuts the waiting short.
func (p *process) stop(ctx context.Context) {
	_ = p.stdin.Close()
	grace := stdinGrace
	if p.deaf { // the end of its input tells it nothing
		grace = 0
	}
	if p.endsWithin(ctx, grace) {
		p.kill()
		return
	}
	_, _ = p.control.Write([]byte{orderTerminate})
	p.endsWithin(ctx, termGrace)
	p.kill()
}

// kill ends the process and everything below it at once, waits for that, and
// lets go of the pipes.
func (p *process) kill() {
	_ = p.hangup()
	p.endsWithin(context.Background(), killGrace)
	_ = p.stdin.Close()
	_ = p.stdout.Close()
	p.logging.Wait()
}

func (p *process) endsWithin(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.ended:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// Bounds of what is kept of a server's stderr.
const (
	tailLines     = 40
	tailLineBytes = 2 << 10
)

// tail keeps the last lines of a stream.
type tail struct {
	secrets *redactor
	logger  *slog.Logger

	mu    sync.Mutex
	lines []string // at most tailLines, oldest first
}

func newTail(secrets *redactor, logger *slog.Logger) *tail {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &tail{secrets: secrets, logger: logger}
}

// Lines returns the last lines, oldest first. A line that was too long ends in "…".
func (t *tail) Lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.lines)
}

// readFrom reads r to its end. It never lets the writer wait for more than a
// line's worth of work, and never holds more than one bounded line.
func (t *tail) readFrom(r io.Reader) {
	br := bufio.NewReaderSize(r, tailLineBytes)
	for {
		line, err := br.ReadSlice('\n')
		cut := errors.Is(err, bufio.ErrBufferFull)
		if len(line) > 0 {
			text := strings.ToValidUTF8(strings.TrimRight(string(line), "\r\n"), "\uFFFD")
			if cut {
				text = strings.TrimSuffix(text, "\uFFFD") + ellipsis
			}
			t.add(t.secrets.text(text))
		}
		for cut { // the rest of that line
			_, err = br.ReadSlice('\n')
			cut = errors.Is(err, bufio.ErrBufferFull)
		}
		if err != nil {
			return
		}
	}
}

func (t *tail) add(line string) {
	t.logger.Debug("server wrote to stderr", "line", line)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == tailLines {
		t.lines = slices.Delete(t.lines, 0, 1)
	}
	t.lines = append(t.lines, line)
}
