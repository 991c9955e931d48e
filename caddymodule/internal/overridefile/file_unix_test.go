//go:build unix

package overridefile

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// Opening a FIFO waits for a writer, for ever.
func TestAFIFOIsNotOpened(t *testing.T) {
	w := watch(t, "a deny\n")
	found, _ := os.Stat(w.Path)
	if err := os.Remove(w.Path); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(w.Path, 0o600); err != nil {
		t.Fatal(err)
	}
	w.looks("a", "is no regular file")
	if err := w.Load(); err == nil || !strings.Contains(err.Error(), "is no regular file") {
		t.Errorf("got %v, want that it is no regular file", err)
	}
	// It may take the place of the file between a look and the reading.
	if text, after, err := contents(w.Path, found); err != nil || text != nil || same(found, after) {
		t.Errorf("got %q, %v, want another file, and nothing read of it", text, err)
	}
}
