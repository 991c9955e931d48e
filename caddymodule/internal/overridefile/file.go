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

// A File is a file that is looked at again and again, by one goroutine. It must not be
// copied.
type File struct {
	Path string

	// Use takes the lines of the file, all or none. It must say which line is wrong.
	Use func([]Line) error

	seen fs.FileInfo // at the last look; nil if the file was not there
	read fs.FileInfo // when it was last read; nil if that did not work

	mu     sync.Mutex
	status Status
}

// A Status says what is in use of a file.
type Status struct {
	File      string    `json:"file"`
	Overrides int       `json:"overrides"`         // in use
	Read      time.Time `json:"read"`              // when they were read
	Problem   string    `json:"problem,omitempty"` // why the file, as it is now, is not in use
}

// Status returns what is in use. It may be called by any goroutine.
func (f *File) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// became notes how a reading ended, and reports whether that is news.
func (f *File) became(overrides int, err error) (news bool, s Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.status = Status{File: f.Path, Overrides: overrides, Read: time.Now()}
		return true, f.status
	}
	news = f.status.Problem != err.Error()
	f.status.File, f.status.Problem = f.Path, err.Error()
	return news, f.status
}

// loadTries is how often Load reads a file that changes meanwhile.
const loadTries = 20

// Load reads the file at once.
func (f *File) Load() error {
	n, err := f.look(true)
	for try := 1; try < loadTries && errors.Is(err, errUnsettled); try++ {
		n, err = f.look(true)
	}
	f.became(n, err)
	return err
}

// Look reads the file if it differs from what was read last, and has not changed since
// the last look. So a write in place that goes on is not read half done. It reports
// whether the file was read, or the problem with it is another one than before.
func (f *File) Look() (news bool, s Status) {
	n, err := f.look(false)
	if errors.Is(err, errUnsettled) { // a later look reads it
		return false, f.Status()
	}
	return f.became(n, err)
}

// errUnsettled says that the file changes, or that there is nothing new to read.
var errUnsettled = errors.New("the file changes")

// look finds out whether the file has changed, and reads it if it is told to or if a change
// has settled. A file that could be read is not read again before it changes.
func (f *File) look(read bool) (overrides int, err error) {
	found, err := stat(f.Path)
	if err != nil {
		f.seen, f.read = nil, nil
		return 0, err
	}
	read = read || same(found, f.seen) && !same(found, f.read)
	if f.seen = found; !read {
		return 0, errUnsettled
	}
	f.read = nil
	text, after, err := contents(f.Path, found)
	switch {
	case err != nil:
		return 0, err
	case !same(found, after):
		f.seen = after
		return 0, errUnsettled
	}
	f.read = found
	lines, err := Parse(f.Path, text)
	if err == nil {
		err = f.Use(lines)
	}
	return len(lines), err
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

// contents reads the file that was found whole, and returns its state after that. It does
// not wait for writers of a pipe that has taken the place of the file, and reads no other.
func contents(name string, found fs.FileInfo) ([]byte, fs.FileInfo, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err != nil || !same(found, info) {
		return nil, info, err
	}
	text, err := io.ReadAll(io.LimitReader(file, LargestFile+1))
	if err != nil {
		return nil, nil, err
	}
	if len(text) > LargestFile {
		return nil, nil, fmt.Errorf("%s has more than %d MiB", name, LargestFile>>20)
	}
	info, err := file.Stat()
	return text, info, err
}
