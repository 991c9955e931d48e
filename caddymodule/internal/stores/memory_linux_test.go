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
	m.end(time.Nanosecond) // nor does the end of the process
	wantLogged(t, logs, "error: the disk hangs, so the last snapshot is not waited for: a restart begins with an older one")
	disk, err := os.Open(file + ".new")
	check.OK(t, err)
	<-saved
	check.OK(t, disk.Close())
}

// A reload to a file on a disk that hangs waits for it, and metrics and status do not.
func TestAFileOnADiskThatHangsKeepsTheReloadWaitingOnly(t *testing.T) {
	file := filepath.Join(t.TempDir(), "buckets")
	m, _ := started(t, "")
	check.OK(t, syscall.Mkfifo(file+".lock", 0o600))
	next, used := *m.last, make(chan struct{})
	next.Snapshot = file
	go func() { m.Use(&next, 1000); close(used) }()
	for m.writing.TryLock() { // until it has begun
		m.writing.Unlock()
		runtime.Gosched()
	}
	for range 1000 { // it soon hangs
		m.shed()
		_, wanted := m.Snapshot(time.Now())
		check.That(t, !wanted, "got a snapshot wanted before there is a file")
		runtime.Gosched()
	}
	disk, err := os.OpenFile(file+".lock", os.O_WRONLY, 0)
	check.OK(t, err)
	<-used
	_, wanted := m.Snapshot(time.Now())
	check.That(t, wanted, "got no snapshot wanted")
	check.OK(t, disk.Close())
}
