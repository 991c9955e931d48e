package servertest

import (
	"os/exec"
	"syscall"
)

// EndWithTests makes a server get a signal when the tests are killed, as by a time-out.
func EndWithTests(cmd *exec.Cmd, signal syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = signal
}
