//go:build unix

package servertest

import "syscall"

func pause(pid int)  { _ = syscall.Kill(pid, syscall.SIGSTOP) }
func resume(pid int) { _ = syscall.Kill(pid, syscall.SIGCONT) }
func kill(pid int)   { _ = syscall.Kill(pid, syscall.SIGKILL) }

// asPostgres runs a child of root as the user postgres, because PostgreSQL
// refuses to run as root.
func asPostgres() *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{}
	if uid, gid, needed := postgresUser(); needed {
		attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return attributes
}
