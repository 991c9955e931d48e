package snapshot

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func open(t *testing.T, path string) *File {
	t.Helper()
	f, err := Open(path)
	if err != nil {
		t.Fatalf("opening %s: %v", path, err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func write(f *File, text string) error {
	return f.Write(func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
}

func mustWrite(t *testing.T, f *File, text string) {
	t.Helper()
	if err := write(f, text); err != nil {
		t.Fatalf("writing: %v", err)
	}
}

func content(f *File) (text string, err error) {
	b, err := f.Read()
	return string(b), err
}

func mustHave(t *testing.T, f *File, want string) {
	t.Helper()
	if got, err := content(f); err != nil || got != want {
		t.Errorf("got %q and error %v, want %q", got, err, want)
	}
}

func TestAFileIsForItsOwnerAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "folder", "file")
	f := open(t, path)
	if _, err := content(f); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before a write: got error %v, want that there is no file", err)
	}
	mustWrite(t, f, "one")
	mustWrite(t, f, "two")
	mustHave(t, f, "two")
	for name, want := range map[string]fs.FileMode{path: 0o600, path + ".lock": 0o600, filepath.Dir(path): 0o700 | fs.ModeDir} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: got %v and error %v, want mode %v", name, info.Mode(), err, want)
		}
	}
	if files, _ := filepath.Glob(path + "*"); len(files) != 2 {
		t.Errorf("got the files %v, want the file and its lock", files)
	}
}

func TestAWriteThatFailsLeavesTheFileAsItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f := open(t, path)
	mustWrite(t, f, "one")
	broken := errors.New("disk full")
	err := f.Write(func(w io.Writer) error {
		_, _ = io.WriteString(w, "half")
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("got error %v, want %v", err, broken)
	}
	mustHave(t, f, "one")
	// A process that was killed leaves half a file.
	if err := os.WriteFile(path+".new", []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, f, "two")
	mustHave(t, f, "two")
}

func TestAFileIsForOneProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f := open(t, path)
	if _, err := Open(path); !errors.Is(err, ErrTaken) {
		t.Errorf("opening it again: got error %v, want %v", err, ErrTaken)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, path)
}

func TestABadFileIsSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f := open(t, path)
	mustWrite(t, f, "bad")
	name, err := f.SetAside()
	if err != nil || name != path+".bad" {
		t.Errorf("got %s and error %v, want it as %s.bad", name, err, path)
	}
	if got, err := os.ReadFile(name); err != nil || string(got) != "bad" {
		t.Errorf("got %q and error %v, want the file", got, err)
	}
	if _, err := f.SetAside(); err == nil {
		t.Error("with no file: got no error, want one")
	}
}
