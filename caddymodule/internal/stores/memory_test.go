package stores

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// started returns a memory that a config uses, and what it logs.
func started(t *testing.T, file string) (*Memory, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	m := newMemory(1000)
	limits := func(c *leakybucket.Charge, _ leakybucket.State) bool {
		c.Limit = leakybucket.Limit{Capacity: 10, Leak: 1. / 3600}
		return true
	}
	m.Use(&MemoryUse{Snapshot: file, Every: time.Hour, Logger: zap.New(core), Restored: limits}, 1000)
	t.Cleanup(func() {
		m.patience = time.Hour
		m.end()
	})
	return m, logs
}

// pour changes the store.
func pour(t *testing.T, m *Memory, key string) {
	t.Helper()
	c := leakybucket.Charge{Zone: "z", Key: key, Limit: leakybucket.Limit{Capacity: 10, Leak: 1. / 3600}, Cost: 1}
	check.OK(t, m.Take(t.Context(), []leakybucket.Charge{c}, make([]leakybucket.Decision, 1)))
}

func wantLogged(t *testing.T, logs *observer.ObservedLogs, want ...string) {
	t.Helper()
	var got []string
	for _, entry := range logs.TakeAll() {
		got = append(got, entry.Level.String()+": "+entry.Message)
	}
	check.That(t, fmt.Sprintf("%q", got) == fmt.Sprintf("%q", want), "got the log %q, want %q", got, want)
}

func TestADamagedSnapshotIsSetAsideWithAWarning(t *testing.T) {
	file := filepath.Join(t.TempDir(), "buckets")
	check.OK(t, os.WriteFile(file, []byte("throttle snapshot\n but damaged, and so of no use"), 0o600))
	s, logs := started(t, file)
	wantLogged(t, logs, "warn: the snapshot cannot be used, so all buckets are empty")
	_, err := os.Stat(file + ".bad")
	check.That(t, err == nil, "the file under its new name: got error %v, want none", err)
	pour(t, s, "a")
	s.end()
	s, logs = started(t, file)
	wantLogged(t, logs, "info: buckets were restored")
	check.Equal(t, s.Buckets()["z"], 1, "buckets, want the one that was saved")
}

func TestASecondProcessGoesWithoutASnapshot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "buckets")
	first, logs := started(t, file)
	pour(t, first, "a")
	first.Save()
	wantLogged(t, logs)
	second, logs := started(t, file)
	wantLogged(t, logs, "warn: the snapshot cannot be written; this is tried again every snapshot_interval")
	pour(t, second, "b")
	pour(t, second, "c")
	first.end()
	third, _ := started(t, file)
	check.Equal(t, third.Buckets()["z"], 1, "buckets, want the one of the first process")
	third.end()
	second.Save()
	wantLogged(t, logs, "info: buckets were restored", "info: the snapshot is written again")
	second.end()
	third, _ = started(t, file)
	check.Equal(t, third.Buckets()["z"], 3, "buckets, want those of the first process, too: the second has taken them over")
}

// A file that a reload wants, and that cannot be had either, is warned of, too.
func TestEachFileThatCannotBeHadIsWarnedOf(t *testing.T) {
	m, logs := started(t, t.TempDir())
	for range 2 {
		m.Save()
		wantLogged(t, logs, "warn: the snapshot cannot be written; this is tried again every snapshot_interval")
		next := *m.last
		next.Snapshot = t.TempDir()
		m.Use(&next, 1000)
	}
}

func TestASnapshotIsWrittenOnlyIfABucketHasChanged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "buckets")
	s, _ := started(t, file)
	pour(t, s, "a")
	s.Save()
	for _, changes := range []bool{false, true, false} {
		if changes {
			pour(t, s, "a")
		}
		check.OK(t, os.Remove(file))
		s.Save()
		_, err := os.Stat(file)
		check.That(t, (err == nil) == changes, "after a change, %v: got error %v of the file", changes, err)
		if !changes {
			check.OK(t, os.WriteFile(file, nil, 0o600))
		}
	}
}

// A folder that is gone refuses writes to root, too, as a read-only disk does.
func TestASnapshotThatCannotBeWrittenIsWarnedOfOnceAndAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "folder")
		m, logs := started(t, filepath.Join(dir, "buckets"))
		want := func(wanted SnapshotState, logged ...string) {
			t.Helper()
			m.Save()
			got, kept := m.Snapshot(time.Now())
			check.That(t, got == wanted && kept, "got %+v, want %+v", got, wanted)
			wantLogged(t, logs, logged...)
		}
		pour(t, m, "a")
		want(SnapshotState{})
		check.OK(t, os.RemoveAll(dir))
		pour(t, m, "b")
		time.Sleep(time.Minute)
		want(SnapshotState{Age: time.Minute, Failures: 1, Failing: true}, "warn: the snapshot cannot be written; this is tried again every snapshot_interval")
		time.Sleep(time.Minute)
		want(SnapshotState{Age: 2 * time.Minute, Failures: 2, Failing: true})
		check.OK(t, os.MkdirAll(dir, 0o700))
		want(SnapshotState{Failures: 2}, "info: the snapshot is written again")
		time.Sleep(time.Minute) // nothing has changed
		want(SnapshotState{Failures: 2})
	})
}

// A config that is reloaded more often than its snapshot_interval keeps its snapshot all the same.
func TestReloadsDoNotPutOffTheSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "buckets")
		m := newMemory(1000)
		go m.run()
		limits := func(c *leakybucket.Charge, _ leakybucket.State) bool { return false }
		for i := range 30 { // 10 minutes
			m.Use(&MemoryUse{Snapshot: file, Every: 30 * time.Second, Logger: zap.NewNop(), Restored: limits}, 1000)
			pour(t, m, fmt.Sprint(i))
			time.Sleep(20 * time.Second)
		}
		s, _ := m.Snapshot(time.Now())
		_, err := os.Stat(file)
		check.That(t, err == nil && s.Age <= time.Minute, "after ten minutes with a reload every 20 s: the snapshot is %v old (%v), want at most 30 s", s.Age, err)
		_ = m.Destruct()
		synctest.Wait()
	})
}

func TestASnapshotThatAReloadTurnsOnIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file, m := filepath.Join(t.TempDir(), "buckets"), newMemory(1000)
		go m.run()
		m.Use(&MemoryUse{Every: 30 * time.Second, Logger: zap.NewNop()}, 1000)
		time.Sleep(time.Minute)
		m.Use(&MemoryUse{Snapshot: file, Every: 30 * time.Second, Logger: zap.NewNop()}, 1000)
		pour(t, m, "a")
		time.Sleep(10 * time.Minute)
		s, _ := m.Snapshot(time.Now())
		check.That(t, s.Age <= time.Minute, "got a snapshot of %v ago, want it written every 30 s", s.Age)
		check.OK(t, m.Destruct())
		synctest.Wait()
	})
}

// A save whose turn comes when the last config has left writes no file that is another memory's by then.
func TestNothingIsSavedAfterTheLastConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "buckets")
	m, _ := started(t, file)
	pour(t, m, "a")
	_ = m.Destruct()
	before, _ := os.Stat(file)
	pour(t, m, "b") // a request that outlives its config
	m.Save()        // as run does, if its timer and stop came together
	after, _ := os.Stat(file)
	check.That(t, os.SameFile(before, after), "the file was written although its lock was given up")
}
