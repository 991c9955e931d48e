// Package snapshot keeps a file that one process writes as a whole, again and again, and
// reads when it begins. After a crash the file is the last one that was complete. Begin
// with [Open].
package snapshot

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
)

// ErrTaken is returned by [Open] if another process has the file.
var ErrTaken = errors.New("another process uses the file")

// A File is a file that this process alone reads and writes, as long as others ask by
// [Open], too. It is not safe for concurrent use.
type File struct {
	path string
	lock *flock.Flock
}

// Open takes a file, which need not exist, and makes its folder. A lock on a second
// file says that it is taken, and ends with the process.
func Open(path string) (*File, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	lock := flock.New(path+".lock", flock.SetPermissions(0o600))
	switch locked, err := lock.TryLock(); {
	case err != nil:
		return nil, err
	case !locked:
		return nil, ErrTaken
	}
	return &File{path, lock}, nil
}

// Read returns the content. If there is no file, the error is [fs.ErrNotExist].
func (f *File) Read() ([]byte, error) { return os.ReadFile(f.path) }

// Write replaces the file by what write writes, for its owner alone to read. After an
// error, the file is what it was.
func (f *File) Write(write func(io.Writer) error) (err error) {
	fresh := f.path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // a process that was killed has left it
	}
	file, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(fresh)
		}
	}()
	err = write(file)
	if err == nil {
		err = file.Sync()
	}
	if closing := file.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(fresh, f.path)
	}
	return err
}

// SetAside renames the file, so that it can be looked at and is not in the way. It
// returns the new name.
func (f *File) SetAside() (name string, err error) {
	name = f.path + ".bad"
	if err := os.Rename(f.path, name); err != nil {
		return "", fmt.Errorf("setting it aside: %w", err)
	}
	return name, nil
}

// Close lets other processes have the file.
func (f *File) Close() error { return f.lock.Close() }
