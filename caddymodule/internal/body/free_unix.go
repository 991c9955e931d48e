//go:build linux || darwin || freebsd

package body

import "syscall"

// Free returns how many bytes the disk has free for processes without privileges.
func (f *diskFile) Free() (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Fstatfs(int(f.Fd()), &fs); err != nil {
		return 0, err
	}
	return int64(fs.Bavail) * int64(fs.Bsize), nil
}
