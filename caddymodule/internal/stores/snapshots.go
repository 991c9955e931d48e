package stores

import (
	"errors"
	"io/fs"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/snapshot"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// snapshots saves the process's memory of buckets to a file, and restores it when the
// first config starts. A config that is only validated touches no file.
type snapshots struct {
	store *memstore.Store

	mu       sync.Mutex
	path     string         // as the last config to start says; empty means none
	file     *snapshot.File // nil if there is none, or it cannot be had
	interval time.Duration
	logger   *zap.Logger // nil before a config has started
	saved    uint64      // store.Changes() when the file was last up to date
	stale    bool        // the file must be written, whatever has changed
	failing  bool        // the last write failed, which was logged
	fresh    time.Time   // when the file was last up to date
	failures uint64

	timer *time.Timer // until the next save
}

func newSnapshots(store *memstore.Store) *snapshots {
	return &snapshots{store: store, interval: DefaultSnapshotInterval, timer: time.NewTimer(DefaultSnapshotInterval)}
}

// use applies the options of a config that runs. The first one reads its file: later
// ones find buckets that are newer than any file.
func (s *snapshots) use(config *MemoryUse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.logger == nil
	s.logger, s.interval = config.Logger, config.Every
	s.timer.Reset(s.interval)
	path := config.Snapshot
	if path == s.path && (s.file != nil || path == "") {
		return
	}
	s.close()
	s.fresh = time.Now()
	if s.path = path; path == "" {
		return
	}
	file, err := snapshot.Open(path)
	if err != nil {
		s.logger.Warn("no snapshot of the buckets is kept, so a restart empties them all",
			zap.String("file", path), zap.Error(err))
		return
	}
	s.file, s.stale, s.failing = file, true, false
	if first {
		s.restore(config.limits)
	}
}

// restore reads the file. It must be called with the lock held.
func (s *snapshots) restore(limits func(*leakybucket.Charge, leakybucket.State) bool) {
	var found memstore.Restored
	saved, err := s.file.Read()
	if err == nil {
		found, err = s.store.ReadSnapshot(saved, limits)
	}
	logger := s.logger.With(zap.String("file", s.path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		aside, failed := s.file.SetAside()
		logger.Warn("the snapshot cannot be used, so all buckets are empty",
			zap.Error(errors.Join(err, failed)), zap.String("renamed_to", aside))
		return
	}
	s.saved, s.stale = s.store.Changes(), false // a config that fails to start changes nothing
	logger.Info("buckets were restored", zap.Int("buckets", found.Buckets),
		zap.Int("of_unknown_zones", found.Dropped), zap.Time("written", found.Written))
}

// save writes the file if a bucket has changed since it was written.
func (s *snapshots) save() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer.Reset(s.interval)
	changes := s.store.Changes()
	switch {
	case s.file == nil:
		if s.path != "" {
			s.failures++
		}
		return
	case changes == s.saved && !s.stale:
		s.fresh = time.Now()
		return
	}
	switch err := s.file.Write(s.store.WriteSnapshot); {
	case err != nil:
		if !s.failing {
			s.logger.Warn("the snapshot cannot be written; this is tried again every snapshot_interval",
				zap.String("file", s.path), zap.Error(err))
		}
		s.failing = true
		s.failures++
		return
	case s.failing:
		s.logger.Info("the snapshot is written again", zap.String("file", s.path))
	}
	s.saved, s.stale, s.failing, s.fresh = changes, false, false, time.Now()
}

// SnapshotState is how a snapshot of the memory fares.
type SnapshotState struct {
	Age      time.Duration // since it was last up to date
	Failures uint64        // to keep it so, since the process began
	Failing  bool          // the last attempt failed
}

// Snapshot returns the state of the snapshot, unless none is wanted.
func (m *Memory) Snapshot(now time.Time) (state SnapshotState, wanted bool) {
	s := m.snapshots
	s.mu.Lock()
	defer s.mu.Unlock()
	return SnapshotState{now.Sub(s.fresh), s.failures, s.failing || s.file == nil}, s.path != ""
}

// end saves for the last time.
func (s *snapshots) end() {
	s.save()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close()
}

// close gives the file up. It must be called with the lock held.
func (s *snapshots) close() {
	if s.file != nil {
		_ = s.file.Close() // nothing was written to the lock
		s.file = nil
	}
}
