//go:build !linux

package worker

import (
	"os"
	"syscall"
)

func selfProgram() (string, error) { return os.Executable() }

// becomeSubreaper has no equivalent outside Linux: there, a process that leaves
// the server's process group is out of reach.
func becomeSubreaper() error { return nil }

func serverAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func children() []int { return nil }
