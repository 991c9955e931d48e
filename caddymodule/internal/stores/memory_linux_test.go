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

// A save hangs as long as the disk does, which a pipe without a reader stands for. Metrics, status and a
// reload wait for no save.
func TestADiskThatHangsKeepsNobodyWaiting(t *testing.T) {
	file := filepath.Join(t.TempDir(), "buckets")
	m, _ := started(t, file)
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
	disk, err := os.Open(file + ".new")
	check.OK(t, err)
	<-saved
	check.OK(t, disk.Close())
}
