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
	Overrides int       // in use
	Read      time.Time // when they were read
	Problem   error     // why the file, as it is now, is not in use
}

// Status returns what is in use. It may be called by any goroutine.
func (f *File) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// becomes sets the status, and reports whether that is news.
func (f *File) becomes(s Status) (news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	news = !s.Read.Equal(f.status.Read) || fmt.Sprint(s.Problem) != fmt.Sprint(f.status.Problem)
	f.status = s
	return news
}

// loadTries is how often Load reads a file that changes meanwhile.
const loadTries = 20

// Load reads the file at once.
func (f *File) Load() error {
	s := f.Status()
	for range loadTries {
		f.look(&s, true)
		if !errors.Is(s.Problem, errChanges) {
			break
		}
	}
	f.becomes(s)
	return s.Problem
}

// Look reads the file if it differs from what was read last, and has not changed since
// the last look. So a write in place that goes on is not read half done. It reports
// whether the file was read, or the problem with it is another one than before.
func (f *File) Look() (news bool, s Status) {
	s = f.Status()
	before := s.Problem
	if f.look(&s, false); errors.Is(s.Problem, errChanges) {
		s.Problem = before // a later look reads it
	}
	return f.becomes(s), s
}

// errChanges says that the file has changed while it was read.
var errChanges = errors.New("the file changes")

// look finds out whether the file has changed, reads it if it is told to or if a change
// has settled, and changes the status. A file that could be read is not read again before
// it changes.
func (f *File) look(s *Status, read bool) {
	found, err := stat(f.Path)
	if err != nil {
		f.seen, f.read, s.Problem = nil, nil, err
		return
	}
	read = read || same(found, f.seen) && !same(found, f.read)
	if f.seen = found; !read {
		return
	}
	f.read = nil
	text, after, err := contents(f.Path, found)
	switch {
	case err != nil:
		s.Problem = err
		return
	case !same(found, after):
		f.seen, s.Problem = after, errChanges
		return
	}
	f.read = found
	lines, err := Parse(f.Path, text)
	if err == nil {
		err = f.Use(lines)
	}
	if s.Problem = err; err == nil {
		s.Overrides, s.Read = len(lines), time.Now()
	}
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
