package stores

import (
	"math"
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

	Memory *Memory

	// Restored sets the limit and the block of a bucket that was saved, or returns false to drop it.
	Restored func(*leakybucket.Charge, leakybucket.State) bool
}

// A Memory is the process's memory store. It saves buckets to a file, restores them when the first
// config starts, and sheds what is empty. A config that is only validated touches no file.
type Memory struct {
	*memstore.Store
	stop  chan struct{}
	timer *time.Timer // until the next save, by the newest config

	// patience is how long a reload and the end wait for a disk that hangs.
	patience time.Duration

	writing sync.Mutex     // held while the file is used, which may take as long as the disk hangs; locked before mu
	path    string         // of the file; empty if none is wanted
	file    *snapshot.File // nil if it cannot be had yet
	read    bool           // a file was; those that come later are older than the buckets
	saved   uint64         // Changes() when the file was last up to date

	mu       sync.Mutex
	last     *MemoryUse // the newest that has started; nil at first, and when all have left
	reported uint64     // evictions
	fresh    time.Time  // when the file was last up to date
	failing  bool       // the last attempt failed, which was logged
	failures uint64
}

// JoinMemory joins the process's memory, or creates it for maxBuckets. It is process-wide because a
// new config must find the levels that the last one left. The caller must leave it once.
func JoinMemory(maxBuckets int) *Memory {
	return Join(MemoryKey, func() *Memory {
		m := newMemory(maxBuckets)
		go m.run()
		return m
	})
}

func newMemory(maxBuckets int) *Memory {
	return &Memory{
		Store: memstore.New(memstore.Options{MaxBuckets: maxBuckets}),
		stop:  make(chan struct{}), timer: time.NewTimer(DefaultSnapshotInterval),
		patience: 4 * time.Second, // at the end Caddy's unit for systemd allows 5
		fresh:    time.Now(),
	}
}

// run saves buckets and frees memory, again and again until nobody uses the memory any more.
func (m *Memory) run() {
	shed := time.NewTicker(shedEvery)
	defer shed.Stop()
	for {
		select {
		case <-m.stop:
			return
		case <-m.timer.C:
			m.Save()
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
	if n := m.Evictions(); n > m.reported && m.last != nil {
		m.last.Logger.Warn("the memory store is full and drops buckets that are not empty: raise max_buckets, or group clients by a shorter prefix",
			zap.Uint64("dropped", n-m.reported))
		m.reported = n
	}
}

// Destruct ends the goroutine when no config uses the memory any more, and saves for the last time.
func (m *Memory) Destruct() error {
	close(m.stop)
	m.end()
	return nil
}

// end saves for the last time, and gives up the file.
func (m *Memory) end() {
	m.bounded(func() {
		m.Save()
		m.writing.Lock()
		defer m.writing.Unlock()
		m.file.Close()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.last = nil // the file may be another's by now
	})
}

// bounded does what may take as long as the disk hangs, which must keep neither a reload nor the process
// from ending: after a while, it goes on in the background.
func (m *Memory) bounded(do func()) {
	m.mu.Lock()
	config := m.last
	m.mu.Unlock()
	if config == nil {
		return // it never had a file, or has given it up
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(m.patience):
		config.Logger.Error("the disk hangs, so the snapshot is not waited for: a restart may begin with an older one",
			zap.String("file", config.Snapshot), zap.Duration("waited", m.patience))
	}
}

// unsaved is a number that Changes never reaches.
const unsaved = math.MaxUint64

// Use keeps at most so many buckets, and saves them as a config wants it that has started.
func (m *Memory) Use(config *MemoryUse, maxBuckets int) {
	m.mu.Lock()
	m.SetMaxBuckets(maxBuckets)
	last := m.last
	if m.last = config; last == nil || last.Every != config.Every { // else reloads would put the next save off
		m.timer.Reset(config.Every)
	}
	m.mu.Unlock()
	switch {
	case last == nil:
		m.Save() // which restores: no request may come before the buckets
	case last.Snapshot != config.Snapshot:
		m.bounded(m.Save)
	}
}

// Save writes the file of the newest config if a bucket has changed since it was written. It opens that
// before if it is another one, or could not be had yet, and restores the first one that it has.
func (m *Memory) Save() {
	m.writing.Lock()
	defer m.writing.Unlock()
	m.mu.Lock()
	config := m.last
	if config != nil {
		m.timer.Reset(config.Every) // with mu held: a reload sets it, too
		m.failing = m.failing && config.Snapshot == m.path
	}
	m.mu.Unlock()
	if config == nil {
		return // all have left meanwhile
	}
	if config.Snapshot != m.path {
		m.file.Close()
		m.file, m.path, m.saved = nil, config.Snapshot, unsaved
	}
	if m.path == "" {
		return
	}
	logger, changes, err := config.Logger.With(zap.String("file", m.path)), m.Changes(), error(nil)
	if m.file == nil {
		m.file, err = snapshot.Open(m.path)
	}
	if err == nil && !m.read {
		none := changes == 0
		m.restore(config, logger)
		if changes = m.Changes(); none {
			m.saved = changes // a config that fails to start changes nothing
		}
	}
	if err == nil && changes != m.saved {
		if err = m.file.Write(m.WriteSnapshot); err == nil {
			m.saved = changes
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err != nil && !m.failing:
		logger.Warn("the snapshot cannot be written; this is tried again every snapshot_interval", zap.Error(err))
	case err == nil && m.failing:
		logger.Info("the snapshot is written again")
	}
	if m.failing = err != nil; m.failing {
		m.failures++
	} else {
		m.fresh = time.Now()
	}
}

// restore restores the buckets of the file. writing is held.
func (m *Memory) restore(config *MemoryUse, logger *zap.Logger) {
	m.read = true
	err := m.file.Load(func(content []byte) error {
		found, err := m.ReadSnapshot(content, config.Restored)
		if err == nil {
			logger.Info("buckets were restored", zap.Int("buckets", found.Buckets),
				zap.Int("of_unknown_zones", found.Dropped), zap.Time("written", found.Written))
		}
		return err
	})
	if err != nil {
		logger.Warn("the snapshot cannot be used, so all buckets are empty", zap.Error(err))
	}
}

// SnapshotState is how a snapshot of the memory fares.
type SnapshotState struct {
	Age      time.Duration // since it was last up to date
	Failures uint64        // to keep it so, since the process began
	Failing  bool          // the last attempt failed
}

// Snapshot returns the state of the snapshot, unless none is wanted.
func (m *Memory) Snapshot(now time.Time) (state SnapshotState, wanted bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return SnapshotState{now.Sub(m.fresh), m.failures, m.failing}, m.last != nil && m.last.Snapshot != ""
}
