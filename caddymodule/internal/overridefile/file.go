package overridefile

import (
	"cmp"
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

	// System is where the file is. If nil, the operating system.
	System System

	// Patience is how long Load and Look wait for the file system. If 0, 10 seconds.
	Patience time.Duration

	looking sync.Mutex    // held by Load and Look
	seen    fs.FileInfo   // at the last look; nil if the file was not there
	read    fs.FileInfo   // when it was last read; nil if that did not work
	problem error         // with the file, when the file system answered last
	pending <-chan answer // of a look for which Look did not wait any longer

	mu     sync.Mutex // never held while the file system is asked
	status Status
}

// A System reads files. Its methods may never return, as for a file of a network mount
// whose server is gone.
type System interface {
	Stat(name string) (fs.FileInfo, error)

	// Read returns all of a file, and its state after that.
	Read(name string) ([]byte, fs.FileInfo, error)
}

// A Status says what is in use of a file.
type Status struct {
	Overrides int       // in use
	Read      time.Time // when they were read
	Problem   error     // why the file, as it is now, is not in use
}

// Status returns what is in use. It does not wait for a look that hangs.
func (f *File) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// becomes sets the status, and reports whether that is news.
func (f *File) becomes(s Status) (news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	news = !s.Read.Equal(f.status.Read) || text(s.Problem) != text(f.status.Problem)
	f.status = s
	return news
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// loadTries is how often Load reads a file that changes meanwhile.
const loadTries = 20

// Load reads the file at once. It fails if the file system does not answer.
func (f *File) Load() error {
	f.looking.Lock()
	defer f.looking.Unlock()
	stop := make(chan struct{})
	defer close(stop)
	s := f.Status()
	for range loadTries {
		select {
		case a := <-f.ask(stop, true):
			s = f.take(a, s)
		case <-time.After(f.patience()):
			s.Problem = f.silent()
		}
		if !errors.Is(s.Problem, errChanges) {
			break
		}
	}
	f.becomes(s)
	return s.Problem
}

// Look reads the file if it differs from what was read last, and has not changed since
// the last look. So a write in place that goes on is not read half done. It reports
// whether the file was read, or the problem with it is another one than before. One
// such problem is a file system that does not answer: the next look then waits for the
// same answer. Look returns at once when stop is closed.
func (f *File) Look(stop <-chan struct{}) (news bool, s Status) {
	f.looking.Lock()
	defer f.looking.Unlock()
	if f.pending == nil {
		f.pending = f.ask(stop, false)
	}
	before := f.problem
	s = f.Status()
	select {
	case a := <-f.pending:
		f.pending = nil
		if s = f.take(a, s); errors.Is(s.Problem, errChanges) {
			f.problem, s.Problem = before, before // a later look reads it
		}
	case <-time.After(f.patience()):
		s.Problem = f.silent()
	case <-stop:
		return false, s
	}
	return f.becomes(s), s
}

func (f *File) patience() time.Duration { return cmp.Or(f.Patience, 10*time.Second) }

func (f *File) silent() error {
	return fmt.Errorf("the file system of %s does not answer: want its mount repaired, or a file on a disk of this machine", f.Path)
}

// An answer is what the file system has said of a file.
type answer struct {
	found fs.FileInfo // nil if the file is not there
	err   error       // of looking or reading

	// If the file was not read, its text is nil.
	text  []byte
	after fs.FileInfo // after reading
}

// ask looks at the file in a goroutine of its own, as nothing ends a call that hangs.
// It reads the file if it is told to, or if that was not read and has settled.
func (f *File) ask(stop <-chan struct{}, read bool) <-chan answer {
	answers := make(chan answer, 1)
	path, system, before, last := f.Path, f.System, f.seen, f.read
	if system == nil {
		system = disk{}
	}
	go func() {
		if !acquire(path, stop) {
			return
		}
		defer release(path)
		var a answer
		a.found, a.err = system.Stat(path)
		if a.err == nil && (read || same(a.found, before) && !same(a.found, last)) {
			if a.text, a.after, a.err = system.Read(path); a.text == nil {
				a.text = []byte{}
			}
		}
		answers <- a
	}()
	return answers
}

// asked are the paths that a goroutine asks for. There is one for each path, so that a
// mount that hangs costs one thread, however often configs are loaded.
var asked struct {
	mu    sync.Mutex
	paths map[string]chan struct{} // closed when the goroutine is done
}

// acquire waits until no other goroutine asks for a path. It reports false if stop is
// closed before.
func acquire(path string, stop <-chan struct{}) bool {
	for {
		asked.mu.Lock()
		other := asked.paths[path]
		if other == nil {
			if asked.paths == nil {
				asked.paths = make(map[string]chan struct{})
			}
			asked.paths[path] = make(chan struct{})
			asked.mu.Unlock()
			return true
		}
		asked.mu.Unlock()
		select {
		case <-other:
		case <-stop:
			return false
		}
	}
}

func release(path string) {
	asked.mu.Lock()
	defer asked.mu.Unlock()
	close(asked.paths[path])
	delete(asked.paths, path)
}

// errChanges says that the file has changed while it was read.
var errChanges = errors.New("the file changes")

// take uses an answer, and returns the status after it. If the file could be read, it is
// not read again before it changes.
func (f *File) take(a answer, s Status) Status {
	switch {
	case a.found == nil:
		f.seen, f.read, f.problem = nil, nil, a.err
	case a.text == nil:
		f.seen = a.found
	case a.err != nil:
		f.seen, f.read, f.problem = a.found, nil, a.err
	case !same(a.found, a.after):
		f.seen, f.read, f.problem = a.after, nil, errChanges
	default:
		f.seen, f.read = a.found, a.found
		var lines []Line
		if lines, f.problem = Parse(f.Path, a.text); f.problem == nil {
			f.problem = f.Use(lines)
		}
		if f.problem == nil {
			s.Overrides, s.Read = len(lines), time.Now()
		}
	}
	s.Problem = f.problem
	return s
}

// same reports whether a file has not changed, as far as can be told without reading.
func same(a, b fs.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// disk is the System of the operating system.
type disk struct{}

// Stat follows symbolic links, so that a link to another file is a change.
func (disk) Stat(name string) (fs.FileInfo, error) {
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

// Read reads the file whole. It does not wait for writers of a pipe that has taken the
// place of the file.
func (disk) Read(name string) ([]byte, fs.FileInfo, error) {
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
