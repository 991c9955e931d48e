package stores

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A save hangs as long as the disk does, which a pipe without a reader stands for. Metrics, status, a
// reload and the end wait for no save.
func TestADiskThatHangsKeepsNobodyWaiting(t *testing.T) {
	file := filepath.Join(t.TempDir(), "buckets")
	m, logs := started(t, file)
	pour(t, m, "a")
	check.OK(t, syscall.Mkfifo(file+".new", 0o600))
	saved := make(chan struct{})
	go func() { m.Save(); close(saved) }()
	for m.writing.TryLock() { // until the save has begun
		m.writing.Unlock()
		runtime.Gosched()
	}
	again := *m.last
	m.Use(&again, 1000)
	m.shed()
	_, wanted := m.Snapshot(time.Now())
	select {
	case <-saved:
		t.Error("got the snapshot saved, want it waiting for the disk")
	default:
	}
	check.That(t, wanted, "got no snapshot wanted")
	m.patience = time.Nanosecond
	m.end() // nor does the end of the process
	wantLogged(t, logs, "error: the disk hangs, so the snapshot is not waited for: a restart may begin with an older one")
	disk, err := os.Open(file + ".new")
	check.OK(t, err)
	<-saved
	check.OK(t, disk.Close())
}

// The first snapshot may hang while it is read.
func TestASnapshotIsAsOldAsTheProcessAtMost(t *testing.T) {
	state, _ := newMemory(1).Snapshot(time.Now())
	check.That(t, state.Age < time.Hour, "got a snapshot that is %v old", state.Age)
}

// A reload from or to a file on a disk that hangs does not wait for it, and has the file later.
func TestAReloadToAnotherFileWaitsForNoDiskThatHangs(t *testing.T) {
	for _, hangs := range []string{"old.lock", "new.lock"} {
		dir := t.TempDir()
		m, logs := started(t, "")
		pour(t, m, "a")
		m.patience = time.Nanosecond
		check.OK(t, syscall.Mkfifo(filepath.Join(dir, hangs), 0o600))
		for _, name := range []string{"old", "new"} {
			next := *m.last
			next.Snapshot = filepath.Join(dir, name)
			m.Use(&next, 1000)
		}
		_, wanted := m.Snapshot(time.Now())
		check.That(t, wanted, "%s hangs: got no snapshot wanted", hangs)
		check.That(t, logs.FilterMessageSnippet("the disk hangs").Len() > 0, "%s hangs: got no error logged", hangs)
		disk, err := os.OpenFile(filepath.Join(dir, hangs), os.O_RDWR, 0)
		check.OK(t, err)
		for _, err := os.Stat(filepath.Join(dir, "new")); err != nil; _, err = os.Stat(filepath.Join(dir, "new")) {
			m.Save()
			runtime.Gosched()
		}
		check.OK(t, disk.Close())
	}
}
