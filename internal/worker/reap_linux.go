package worker

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// selfProgram is the running program itself, even if its file was replaced since.
func selfProgram() (string, error) { return "/proc/self/exe", nil }

// prSetChildSubreaper is PR_SET_CHILD_SUBREAPER (prctl(2)).
const prSetChildSubreaper = 36

func becomeSubreaper() error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); errno != 0 {
		return errno
	}
	return nil
}

func serverAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// children lists the direct children of this process, zombies left out. It
// reads every stat file because the kernel offers the children file only with
// CONFIG_PROC_CHILDREN.
func children() []int {
	self := []byte(strconv.Itoa(os.Getpid()))
	paths, _ := filepath.Glob("/proc/[0-9]*/stat")
	var pids []int
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it ended meanwhile
		}
		// pid (comm) state ppid …, and comm may hold anything, brackets too.
		fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
		if len(fields) < 2 || !bytes.Equal(fields[1], self) || fields[0][0] == 'Z' {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
