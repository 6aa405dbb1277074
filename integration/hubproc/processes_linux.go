package hubproc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Processes lists the running processes whose command line or environment has
// mark in it, this one apart, each as "pid command". Zombies count.
func Processes(mark string) []string {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var found []string
	for _, dir := range dirs {
		pid := filepath.Base(dir)
		if pid == strconv.Itoa(os.Getpid()) {
			continue
		}
		cmdline, _ := os.ReadFile(dir + "/cmdline") // gone processes are no error
		environ, _ := os.ReadFile(dir + "/environ")
		if bytes.Contains(cmdline, []byte(mark)) || bytes.Contains(environ, []byte(mark)) {
			found = append(found, pid+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return found
}

// Children lists the process ids of the direct children of pid.
func Children(pid int) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	var children []int
	for _, file := range stats {
		stat, _ := os.ReadFile(file)
		// pid (comm) state ppid …; comm may hold spaces and parentheses.
		rest := stat[bytes.LastIndexByte(stat, ')')+1:]
		fields := strings.Fields(string(rest))
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			child, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			children = append(children, child)
		}
	}
	return children
}

// FDs counts the open file descriptors of a process.
func FDs(pid int) (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(entries), err
}
