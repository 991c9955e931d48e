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
	patience  = 4 * time.Second // with the disk: at the end Caddy's unit for systemd allows 5
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

	writing sync.Mutex // held while the file is used, which may take as long as the disk hangs; locked before mu

	mu       sync.Mutex
	last     *MemoryUse     // the newest that has started; nil at first
	reported uint64         // evictions
	file     *snapshot.File // nil if last wants none, or it cannot be had
	saved    uint64         // Changes() when the file was last up to date
	fresh    time.Time      // and when that was
	failing  bool           // the last write failed, which was logged
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
		fresh: time.Now(),
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
	m.end(patience)
	return nil
}

// end saves for the last time, and gives up the file.
func (m *Memory) end(wait time.Duration) {
	m.bounded(wait, func() {
		m.Save()
		m.writing.Lock()
		defer m.writing.Unlock()
		m.file.Close()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.last, m.file = nil, nil // the file may be another's by now
	})
}

// bounded does what may take as long as the disk hangs, which must keep neither a reload nor the process
// from ending: after so long, it goes on in the background.
func (m *Memory) bounded(wait time.Duration, do func()) {
	logger, done := zap.NewNop(), make(chan struct{})
	m.mu.Lock()
	if m.last != nil {
		logger = m.last.Logger.With(zap.String("file", m.last.Snapshot))
	}
	m.mu.Unlock()
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(wait):
		logger.Error("the disk hangs, so the snapshot is not waited for: a restart may begin with an older one", zap.Duration("waited", wait))
	}
}

// unsaved is a number that Changes never reaches.
const unsaved = math.MaxUint64

// Use keeps at most so many buckets, and saves them as a config wants it that has started. The first
// one reads its file: later ones find buckets that are newer than any file.
func (m *Memory) Use(config *MemoryUse, maxBuckets int) { m.use(config, maxBuckets, patience) }

func (m *Memory) use(config *MemoryUse, maxBuckets int, wait time.Duration) {
	m.mu.Lock()
	m.SetMaxBuckets(maxBuckets)
	last := m.last
	same := last != nil && last.Snapshot == config.Snapshot && m.file != nil
	if m.last = config; !same || last.Every != config.Every { // else reloads would put the next save off
		m.timer.Reset(config.Every)
	}
	m.mu.Unlock()
	switch {
	case last == nil:
		m.reopen(true) // no request may come before the buckets
	case !same:
		m.bounded(wait, func() { m.reopen(false) })
	}
}

// reopen changes to the file that the newest config wants by now.
func (m *Memory) reopen(restores bool) {
	m.writing.Lock()
	defer m.writing.Unlock()
	m.mu.Lock()
	config, former := m.last, m.file
	m.mu.Unlock()
	if config == nil {
		return // all have left meanwhile
	}
	former.Close()
	file, saved := m.open(config, restores)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.file, m.fresh, m.saved, m.failing = file, time.Now(), saved, false
}

// open opens the file of a config, which may take as long as a disk hangs, and restores what it has. It
// returns nil if there is none, and Changes() if the file is up to date. writing is held.
func (m *Memory) open(config *MemoryUse, restores bool) (file *snapshot.File, saved uint64) {
	saved = unsaved
	if config.Snapshot == "" {
		return nil, saved
	}
	logger := config.Logger.With(zap.String("file", config.Snapshot))
	file, err := snapshot.Open(config.Snapshot)
	if err != nil {
		logger.Warn("no snapshot of the buckets is kept, so a restart empties them all", zap.Error(err))
		return nil, saved
	}
	if !restores {
		return file, saved
	}
	err = file.Load(func(content []byte) error {
		found, err := m.ReadSnapshot(content, config.Restored)
		if err == nil {
			saved = m.Changes() // a config that fails to start changes nothing
			logger.Info("buckets were restored", zap.Int("buckets", found.Buckets),
				zap.Int("of_unknown_zones", found.Dropped), zap.Time("written", found.Written))
		}
		return err
	})
	if err != nil {
		logger.Warn("the snapshot cannot be used, so all buckets are empty", zap.Error(err))
	}
	return file, saved
}

// Save writes the file if a bucket has changed since it was written.
func (m *Memory) Save() {
	m.writing.Lock()
	defer m.writing.Unlock()
	m.mu.Lock()
	config, file, saved := m.last, m.file, m.saved
	wanted := config != nil && config.Snapshot != ""
	if wanted {
		m.timer.Reset(config.Every) // with mu held: a reload sets it, too
	}
	m.mu.Unlock()
	if !wanted {
		return
	}
	changes, err := m.Changes(), error(nil)
	if file != nil && changes != saved {
		err = file.Write(m.WriteSnapshot)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	logger := config.Logger.With(zap.String("file", config.Snapshot))
	switch {
	case file == nil:
		m.failures++
	case err != nil:
		if !m.failing {
			logger.Warn("the snapshot cannot be written; this is tried again every snapshot_interval", zap.Error(err))
		}
		m.failing = true
		m.failures++
	default:
		if m.failing {
			logger.Info("the snapshot is written again")
		}
		m.saved, m.fresh, m.failing = changes, time.Now(), false
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
	return SnapshotState{now.Sub(m.fresh), m.failures, m.failing || m.file == nil}, m.last != nil && m.last.Snapshot != ""
}
