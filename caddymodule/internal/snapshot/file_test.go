package snapshot

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func open(t *testing.T, path string) *File {
	t.Helper()
	f, err := Open(path)
	check.OK(t, err, "opening %s", path)
	t.Cleanup(f.Close)
	return f
}

// write writes a text, and fails after that if broken is an error.
func write(f *File, text string, broken error) error {
	return f.Write(func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return errors.Join(err, broken)
	})
}

func mustHave(t *testing.T, f *File, want string) {
	t.Helper()
	got := ""
	err := f.Load(func(content []byte) error {
		got = string(content)
		return nil
	})
	check.That(t, err == nil && got == want, "got %q and error %v, want %q", got, err, want)
}

func TestAFileIsForItsOwnerAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "folder", "file")
	f := open(t, path)
	mustHave(t, f, "")
	mustHave(t, nil, "")
	(*File)(nil).Close()
	for _, text := range []string{"one", "two"} {
		check.OK(t, write(f, text, nil))
		mustHave(t, f, text)
	}
	for name, want := range map[string]fs.FileMode{path: 0o600, path + ".lock": 0o600, filepath.Dir(path): 0o700 | fs.ModeDir} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want && runtime.GOOS != "windows" {
			t.Errorf("%s: got %v and error %v, want mode %v", name, info.Mode(), err, want)
		}
	}
	files, _ := filepath.Glob(path + "*")
	check.That(t, len(files) == 2, "got the files %v, want the file and its lock", files)
	_, err := Open(path)
	check.That(t, err != nil, "opening it again: got no error, want that it is taken")
	f.Close()
	open(t, path)
	for _, other := range []string{filepath.Dir(path), os.DevNull} {
		_, err := Open(other)
		check.That(t, err != nil && !errors.Is(err, fs.ErrPermission), "%s: got error %v, want that it is no file", other, err)
	}
}

func TestAWriteThatFailsLeavesTheFileAsItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f, broken := open(t, path), errors.New("disk full")
	check.OK(t, write(f, "one", nil))
	check.Is(t, write(f, "half", broken), broken)
	_, err := os.Stat(path + ".new")
	check.Is(t, err, fs.ErrNotExist, "the half")
	mustHave(t, f, "one")
	// A process that was killed leaves part of a file.
	check.OK(t, os.WriteFile(path+".new", []byte("a large part"), 0o600))
	check.OK(t, write(f, "two", nil))
	mustHave(t, f, "two")
	// A file that is of no use is set aside.
	check.Is(t, f.Load(func([]byte) error { return broken }), broken)
	mustHave(t, f, "")
	got, err := os.ReadFile(path + ".bad")
	check.That(t, err == nil && string(got) == "two", "got %q and error %v, want the file", got, err)
}
