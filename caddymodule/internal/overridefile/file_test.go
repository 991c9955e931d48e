package overridefile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A watched file is one in a folder of its own, with the lines that are in use.
type watched struct {
	*testing.T
	File
	inUse []Line
	uses  int
}

func watch(t *testing.T, text string) *watched {
	t.Helper()
	w := &watched{T: t}
	w.Path = filepath.Join(t.TempDir(), "customers")
	w.Use = func(lines []Line) error {
		if len(lines) > 0 && lines[0].Limit == "unknown" {
			return errors.New("unknown plan, at customers:1")
		}
		w.inUse = lines
		w.uses++
		return nil
	}
	w.writes(text)
	if err := w.Load(); err != nil {
		t.Fatal(err)
	}
	return w
}

// writes writes in place.
func (w *watched) writes(text string) {
	w.Helper()
	if err := os.WriteFile(w.Path, []byte(text), 0o600); err != nil {
		w.Fatal(err)
	}
}

// looks looks at the file as often as a change needs, and checks what is in use: the key
// of the first line. A problem is one with this text in it.
func (w *watched) looks(inUse, problem string) {
	w.Helper()
	w.Look()
	_, s := w.Look()
	got := ""
	if len(w.inUse) > 0 {
		got = w.inUse[0].Parts[0]
	}
	if got != inUse || s.Overrides != len(w.inUse) {
		w.Errorf("got %d overrides of %q, want those of %q", s.Overrides, got, inUse)
	}
	if (s.Problem == "") != (problem == "") || !strings.Contains(s.Problem, problem) {
		w.Errorf("got the problem %q, want %q", s.Problem, problem)
	}
}

func TestAFileIsReadAgainWhenItChanges(t *testing.T) {
	w := watch(t, "a deny\n")
	w.looks("a", "")
	if w.uses != 1 {
		t.Errorf("got %d uses of a file that stays, want 1", w.uses)
	}
	w.writes("b deny\nc deny\n")
	w.looks("b", "")

	other := w.Path + ".new"
	if err := os.WriteFile(other, []byte("d deny\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, w.Path); err != nil {
		t.Fatal(err)
	}
	w.looks("d", "")
	if w.uses != 3 {
		t.Errorf("got %d uses, want one for each change", w.uses)
	}
}

// A config that is loaded must not fail because somebody writes at that moment.
func TestAFileIsLoadedWhileSomebodyWrites(t *testing.T) {
	w := watch(t, "a deny\n")
	file, err := os.OpenFile(w.Path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var writer sync.WaitGroup
	stop := make(chan struct{})
	writer.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if _, err := file.WriteString("# more\n"); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for range 300 {
		if err := w.Load(); err != nil {
			t.Errorf("got %v, want what is there", err)
			break
		}
	}
	close(stop)
	writer.Wait()
}

// A config map of Kubernetes is a folder of links through ..data, which is replaced.
func TestAFileBehindAReplacedLinkIsReadAgain(t *testing.T) {
	w := watch(t, "a deny\n")
	folder := filepath.Dir(w.Path)
	version := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(folder, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name, "customers"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		temporary := filepath.Join(folder, "..data_tmp")
		if err := os.Symlink(name, temporary); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(temporary, filepath.Join(folder, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	version("..1", "b deny\n")
	if err := os.Remove(w.Path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..data/customers", w.Path); err != nil {
		t.Fatal(err)
	}
	w.looks("b", "")
	version("..2", "c deny\n")
	w.looks("c", "")
	if err := os.RemoveAll(filepath.Join(folder, "..1")); err != nil {
		t.Fatal(err)
	}
	w.looks("c", "")
}

// While somebody writes, each look finds another file.
func TestAFileThatIsBeingWrittenIsNotReadHalfDone(t *testing.T) {
	w := watch(t, "a deny\n")
	w.writes("")
	text := ""
	for range 5 {
		if news, s := w.Look(); news || s.Problem != "" || w.inUse[0].Parts[0] != "a" {
			t.Fatalf("got %v, %v with %q written, want the old set", s, w.inUse, text)
		}
		text += "b deny\n"[:min(7, 3+len(text))]
		w.writes(text)
	}
	w.writes("b deny\nc deny\n")
	w.looks("b", "")
}

func TestAFileThatIsWrongKeepsTheOldSet(t *testing.T) {
	w := watch(t, "a deny\n")
	for _, test := range []struct{ text, problem string }{
		{"b deny\nc\n", "too few words: want " + Syntax + ", at " + w.Path + ":2"},
		{"b unknown\n", "unknown plan, at customers:1"},
		{"", "the file is empty"},
		{"b den\xff\n", "no UTF-8"},
		{"b " + strings.Repeat(" ", LargestFile), "has more than 32 MiB"},
	} {
		w.writes(test.text)
		w.looks("a", test.problem)
		if news, _ := w.Look(); news {
			t.Errorf("%s: got news of the same problem, want none", test.problem)
		}
	}
	w.writes("c deny\n")
	w.looks("c", "")
}

func TestAFileThatIsGoneKeepsTheOldSet(t *testing.T) {
	w := watch(t, "a deny\n")
	moved := w.Path + ".moved"
	if err := os.Rename(w.Path, moved); err != nil {
		t.Fatal(err)
	}
	w.looks("a", "no such file or directory: want a file with overrides, or with a comment alone")
	if err := os.Mkdir(w.Path, 0o700); err != nil {
		t.Fatal(err)
	}
	w.looks("a", "is a directory: want a file")
	if err := os.Remove(w.Path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("customers", w.Path); err != nil {
		t.Fatal(err)
	}
	w.looks("a", "too many levels of symbolic links")
	if err := os.Rename(moved, w.Path); err != nil {
		t.Fatal(err)
	}
	w.looks("a", "")
}

func TestAFileWithoutTheRightToReadItKeepsTheOldSetUntilItHas(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may read every file; the system tests have this as another user")
	}
	w := watch(t, "a deny\n")
	w.writes("b deny\n")
	if err := os.Chmod(w.Path, 0); err != nil {
		t.Fatal(err)
	}
	w.looks("a", "permission denied")
	if err := os.Chmod(w.Path, 0o600); err != nil {
		t.Fatal(err)
	}
	w.looks("b", "") // though neither its size nor its time has changed
}
