package servertest

import "syscall"

// Nothing of this is called on Windows: see skipOnWindows.

func pause(int)  {}
func resume(int) {}
func kill(int)   {}

func asPostgres() *syscall.SysProcAttr { return nil }
