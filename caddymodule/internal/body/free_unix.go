//go:build linux || darwin || freebsd

package body

import (
	"os"
	"syscall"
)

// freeOn returns how many bytes the disk of a file has free for processes without privileges.
func freeOn(f *os.File) (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Fstatfs(int(f.Fd()), &fs); err != nil {
		return 0, err
	}
	return int64(fs.Bavail) * int64(fs.Bsize), nil
}
