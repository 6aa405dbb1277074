package worker

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// A stdio server runs below a reaper, a second life of the worker's own program:
//
//	worker ── control pipe ──► reaper ── parent of ──► server ──► whatever it starts
//	   ▲────── report pipe ──────┘    (server: own process group, stdio straight to the worker)
//
// The reaper does what the worker cannot do when it is killed itself: the end of
// the control pipe, for whatever reason, is its order to kill. On Linux it
// is also the subreaper of everything below it, so a process that left the group
// (a browser started detached, a daemon) is found and killed too, and the
// server's parent-death signal is sound, because the thread that starts the
// server is the reaper's only one and lives as long as the reaper. Being a
// command-line flag and not a variable of the environment, it is not
// inherited, and a program that forgot [ReapMain] fails with "unknown flag"
// in place of running itself again and again.
const reapFlag = "--toolhub-reap"

// File descriptors of the reaper, by their place in exec.Cmd.ExtraFiles.
const (
	controlFD = 3
	reportFD  = 4
)

// orderTerminate is the one order on the control pipe: SIGTERM to the group.
const orderTerminate = 't'

// Words of the report, one line each: started (pid), failed (text) or, when
// nothing below the reaper is left, exited (code) or signalled (number).
const (
	reportStarted   = "started"
	reportFailed    = "failed"
	reportExited    = "exited"
	reportSignalled = "signalled"
)

// ReapMain turns the process into the reaper of one stdio server if the worker
// started it as that; it does not return then. Every program (and every test
// binary) that runs a worker calls it first thing in main (in TestMain).
func ReapMain() {
	if len(os.Args) < 3 || os.Args[1] != reapFlag {
		return
	}
	os.Exit(reap(os.Args[2:]))
}

func reap(argv []string) int {
	runtime.LockOSThread() // the server's parent-death signal follows this thread
	control, report := os.NewFile(controlFD, "control"), os.NewFile(reportFD, "report")
	syscall.CloseOnExec(controlFD)
	syscall.CloseOnExec(reportFD)
	// The worker alone decides when a server ends. Caught, and not ignored,
	// since an ignored signal would stay ignored in the server.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)

	if err := becomeSubreaper(); err != nil {
		fmt.Fprintf(report, "%s couldn't become subreaper: %v\n", reportFailed, err)
		return 1
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = serverAttr()
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(report, "%s %s\n", reportFailed, strings.ReplaceAll(err.Error(), "\n", " "))
		return 1
	}
	leader := cmd.Process.Pid
	fmt.Fprintf(report, "%s %d\n", reportStarted, leader)
	// Else the worker would never see the end of the server's output.
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		f.Close()
	}
	go obey(control, leader)

	status := waitFor(leader)
	killTree(leader)
	if status.Signaled() {
		fmt.Fprintf(report, "%s %d\n", reportSignalled, int(status.Signal()))
	} else {
		fmt.Fprintf(report, "%s %d\n", reportExited, status.ExitStatus())
	}
	return 0
}

// obey runs until the process ends: the reaper leaves when the server is gone.
func obey(control io.Reader, leader int) {
	var order [1]byte
	for {
		_, err := control.Read(order[:])
		switch {
		case err != nil:
			_ = syscall.Kill(-leader, syscall.SIGKILL)
			_ = syscall.Kill(leader, syscall.SIGKILL)
			return
		case order[0] == orderTerminate:
			_ = syscall.Kill(-leader, syscall.SIGTERM)
		}
	}
}

// waitFor reaps every child that ends, also adopted ones, until leader does.
func waitFor(leader int) syscall.WaitStatus {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if pid == leader || (err != nil && !errors.Is(err, syscall.EINTR)) {
			return status
		}
	}
}

// killTree kills the group of the dead leader and, as far as they can be found,
// all other descendants, and reaps them.
func killTree(leader int) {
	_ = syscall.Kill(-leader, syscall.SIGKILL)
	for {
		// Children of the killed become ours before wait reports their parent,
		// so looking again after each wait finds every generation.
		for _, pid := range children() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(-1, &status, 0, nil); err != nil && !errors.Is(err, syscall.EINTR) {
			return // ECHILD: none left
		}
	}
}

// report is what the worker reads from the reaper.
type report struct {
	word string
	rest string
}

func readReport(r *bufio.Reader) (report, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return report{}, err
	}
	word, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	return report{word, rest}, nil
}

// number is the rest as a number, 0 if it is none.
func (r report) number() int {
	n, _ := strconv.Atoi(r.rest)
	return n
}
