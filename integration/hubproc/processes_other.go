//go:build !linux

package hubproc

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// Processes lists the running processes whose command line has mark in it, this
// one apart, each as "pid command".
func Processes(mark string) []string {
	var found []string
	for line := range strings.Lines(ps("pid=,command=")) {
		line = strings.TrimSpace(line)
		if strings.Contains(line, mark) && !strings.HasPrefix(line, strconv.Itoa(os.Getpid())+" ") {
			found = append(found, line)
		}
	}
	return found
}

// Children lists the process ids of the direct children of pid.
func Children(pid int) []int {
	var children []int
	for line := range strings.Lines(ps("pid=,ppid=")) {
		var child, parent int
		if n, _ := fmt.Sscan(line, &child, &parent); n == 2 && parent == pid {
			children = append(children, child)
		}
	}
	return children
}

// FDs counts the open file descriptors of a process.
func FDs(pid int) (int, error) {
	out, err := exec.Command("lsof", "-p", strconv.Itoa(pid)).Output()
	return strings.Count(string(out), "\n"), err
}

func ps(columns string) string {
	out, _ := exec.Command("ps", "-axww", "-o", columns).Output()
	return string(out)
}
