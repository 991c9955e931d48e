package system

import (
	"os/exec"
	"syscall"
)

// endWithTests makes a server end when the tests are killed, as by a time-out.
func endWithTests(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
}
