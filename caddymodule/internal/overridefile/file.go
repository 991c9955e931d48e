package overridefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"
)

// A File is a file that is looked at again and again. It must not be copied.
type File struct {
	Path string

	// Use takes the lines of the file, all or none. It must say which line is wrong.
	Use func([]Line) error

	mu     sync.Mutex
	seen   fs.FileInfo // at the last look; nil if the file was not there
	read   fs.FileInfo // when it was last read; nil if that did not work
	status Status
}

// A Status says what is in use of a file.
type Status struct {
	Overrides int       // in use
	Read      time.Time // when they were read
	Problem   error     // why the file, as it is now, is not in use
}

// Status returns what is in use.
func (f *File) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// loadTries is how often Load reads a file that changes meanwhile.
const loadTries = 20

// Load reads the file at once.
func (f *File) Load() (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range loadTries {
		var info fs.FileInfo
		if info, err = stat(f.Path); err == nil {
			err = f.take(info)
		}
		if !errors.Is(err, errChanges) {
			break
		}
	}
	f.status.Problem = err
	return err
}

// Look reads the file if it differs from what was read last, and has not changed since
// the last look. So a write in place that goes on is not read half done. It reports
// whether the file was read, or the problem with it is another one than before.
func (f *File) Look() (news bool, s Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.status
	f.look()
	news = !f.status.Read.Equal(before.Read) || text(f.status.Problem) != text(before.Problem)
	return news, f.status
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (f *File) look() {
	info, err := stat(f.Path)
	if err != nil {
		f.seen, f.read, f.status.Problem = nil, nil, err
		return
	}
	settled := same(info, f.seen)
	f.seen = info
	if !settled || same(info, f.read) {
		return
	}
	if err := f.take(info); !errors.Is(err, errChanges) {
		f.status.Problem = err
	}
}

// errChanges says that the file has changed while it was read.
var errChanges = errors.New("the file changes")

// take reads the file and uses it. If the file can be read, it is not read again before
// it changes.
func (f *File) take(info fs.FileInfo) error {
	text, after, err := read(f.Path)
	if err != nil {
		f.read = nil
		return err
	}
	if !same(info, after) {
		f.read, f.seen = nil, after
		return errChanges
	}
	f.read, f.seen = info, info
	lines, err := Parse(f.Path, text)
	if err != nil {
		return err
	}
	if err := f.Use(lines); err != nil {
		return err
	}
	f.status.Overrides, f.status.Read = len(lines), time.Now()
	return nil
}

// same reports whether a file has not changed, as far as can be told without reading.
func same(a, b fs.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// stat follows symbolic links, so that a link to another file is a change.
func stat(name string) (fs.FileInfo, error) {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: want a file with overrides, or with a comment alone", err)
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, fmt.Errorf("%s is a directory: want a file", name)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file: want one, with overrides", name)
	}
	return info, nil
}

// read reads the file whole, and returns its state after that. It does not wait for
// writers of a pipe that has taken the place of the file.
func read(name string) ([]byte, fs.FileInfo, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file: want one, with overrides", name)
	}
	if err != nil {
		return nil, nil, err
	}
	text, err := io.ReadAll(io.LimitReader(file, LargestFile+1))
	if err != nil {
		return nil, nil, err
	}
	if len(text) > LargestFile {
		return nil, nil, fmt.Errorf("%s has more than %d MiB", name, LargestFile>>20)
	}
	info, err = file.Stat()
	return text, info, err
}
