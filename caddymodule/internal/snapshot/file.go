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

// A File is a file that this process alone reads and writes, as long as others ask by
// [Open], too. It is not safe for concurrent use.
type File struct {
	path string
	lock *flock.Flock
}

// Open takes a file, which need not exist, and makes its folder. A lock on a second
// file says that it is taken, and ends with the process.
func Open(path string) (*File, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // Load and Write would rename it
		return nil, errors.New("it is a folder or a device: want a file")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	lock := flock.New(path+".lock", flock.SetPermissions(0o600))
	switch locked, err := lock.TryLock(); {
	case err != nil:
		return nil, err
	case !locked:
		return nil, errors.New("another process uses the file")
	}
	return &File{path, lock}, nil
}

// Load has the content used, unless there is no file. A file that cannot be used is renamed, so
// that it can be looked at and is not in the way. A nil File has no content.
func (f *File) Load(use func(content []byte) error) error {
	if f == nil {
		return nil
	}
	content, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = use(content)
	}
	if err != nil {
		aside := f.path + ".bad"
		err = errors.Join(fmt.Errorf("%w; it is renamed to %s", err, aside), os.Rename(f.path, aside))
	}
	return err
}

// Write replaces the file by what write writes, for its owner alone to read. After an
// error, the file is what it was.
func (f *File) Write(write func(io.Writer) error) error {
	fresh := f.path + ".new" // which a process that was killed may have left
	file, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err = errors.Join(write(file), file.Sync(), file.Close()); err == nil {
		err = os.Rename(fresh, f.path)
	}
	_ = os.Remove(fresh) // unless it is the file now
	return err
}

// Close lets other processes have the file. A nil File needs none.
func (f *File) Close() {
	if f != nil {
		_ = f.lock.Close() // nothing was written to the lock
	}
}
