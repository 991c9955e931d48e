package stores

import (
	"errors"
	"io/fs"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/snapshot"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// The defaults of a memory store.
const (
	DefaultMaxBuckets       = 500_000
	DefaultSnapshotInterval = 30 * time.Second

	shedEvery = time.Minute
)

// A MemoryUse is what a config wants of the process's memory.
type MemoryUse struct {
	MaxBuckets int
	Snapshot   string        // its file; empty if there is none
	Every      time.Duration // how often that is written
	Logger     *zap.Logger

	Memory *Memory // once it has joined

	// limits sets the limit of a bucket that is restored.
	limits func(*leakybucket.Charge, leakybucket.State) bool
}

// Join joins the process's memory of buckets, or creates it. The caller must release it once.
func (u *MemoryUse) Join() { u.Memory = joinMemory(u.MaxBuckets) }

// Start applies the options of a config that starts. limits sets the limit of a bucket
// that is restored.
func (u *MemoryUse) Start(limits func(*leakybucket.Charge, leakybucket.State) bool) {
	u.limits = limits
	u.Memory.follow(func(configs []*MemoryUse) []*MemoryUse { return append(configs, u) })
}

// Stop withdraws the options of a config that stops or has failed to start.
func (u *MemoryUse) Stop() {
	u.Memory.follow(func(configs []*MemoryUse) []*MemoryUse {
		return slices.DeleteFunc(configs, func(other *MemoryUse) bool { return other == u })
	})
}

// Release gives the memory up.
func (u *MemoryUse) Release() error { return Leave(MemoryKey) }

// A Memory is the process's memory store, with a goroutine that saves it and sheds what is empty.
type Memory struct {
	*memstore.Store
	snapshots *snapshots
	stop      chan struct{}

	mu       sync.Mutex
	configs  []*MemoryUse // that have started and not stopped, oldest first
	reported uint64       // evictions
}

// joinMemory joins the process's memory, or creates it for maxBuckets. It is
// process-wide because a new config must find the levels that the last one left.
func joinMemory(maxBuckets int) *Memory {
	return Join(MemoryKey, func() *Memory {
		m := &Memory{
			Store: memstore.New(memstore.Options{MaxBuckets: maxBuckets}),
			stop:  make(chan struct{}),
		}
		m.snapshots = newSnapshots(m.Store)
		go m.run()
		return m
	})
}

// run saves buckets and frees memory, again and again until nobody uses the memory any more.
func (m *Memory) run() {
	shed := time.NewTicker(shedEvery)
	defer shed.Stop()
	for {
		select {
		case <-m.stop:
			return
		case <-m.snapshots.timer.C:
			m.snapshots.save()
		case <-shed.C:
			m.shed()
		}
	}
}

// shed frees memory after a peak of traffic, and logs a warning when the store has dropped
// buckets that are not empty.
func (m *Memory) shed() {
	m.Shed()
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.Evictions(); n > m.reported && len(m.configs) > 0 {
		m.configs[len(m.configs)-1].Logger.Warn("the memory store is full and drops buckets that are not empty: raise max_buckets, or group clients by a shorter prefix",
			zap.Uint64("dropped", n-m.reported))
		m.reported = n
	}
}

// follow changes the list of running configs, and applies the largest bound of them, and
// the snapshot of the last one. During a reload two configs run, and the new
// one may still fail to start: a smaller bound must not drop buckets before that.
func (m *Memory) follow(change func([]*MemoryUse) []*MemoryUse) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.configs = change(m.configs)
	most := 0
	for _, config := range m.configs {
		most = max(most, config.MaxBuckets)
	}
	if most > 0 {
		m.SetMaxBuckets(most)
		m.snapshots.use(m.configs[len(m.configs)-1])
	}
}

// Destruct ends the goroutine when no config uses the memory any more.
func (m *Memory) Destruct() error {
	close(m.stop)
	m.snapshots.end()
	return nil
}

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
