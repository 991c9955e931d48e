//go:build unix && !aix && !solaris

package snapshot

import (
	"errors"
	"os"
	"syscall"
)

// openLocked opens a file and locks it. The lock ends when the file is closed.
func openLocked(name string) (*os.File, error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrTaken
		}
		return nil, &os.PathError{Op: "flock", Path: name, Err: err}
	}
	return file, nil
}

// syncFolder makes a renaming last.
func syncFolder(name string) error {
	folder, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	return folder.Sync()
}
