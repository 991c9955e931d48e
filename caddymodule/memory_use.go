package caddymodule

import (
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

const (
	defaultMaxBuckets       = 500_000
	defaultSnapshotInterval = 30 * time.Second

	shedEvery = time.Minute
)

// memoryOptions are what a config wants of the process's memory.
type memoryOptions struct {
	maxBuckets int
	snapshot   string        // its file; empty if there is none
	every      time.Duration // how often that is written
	logger     *zap.Logger
}

// A memoryUse is a config's use of the process's memory.
type memoryUse struct {
	memoryOptions
	memory *memory

	// limits sets the limit of a bucket that is restored.
	limits func(*leakybucket.Charge, leakybucket.State) bool
}

// useMemory joins the process's memory of buckets, or creates it. The caller must release
// it once.
func useMemory(options memoryOptions) (*memoryUse, error) {
	m, err := joinMemory(options.maxBuckets)
	if err != nil {
		return nil, err
	}
	return &memoryUse{memoryOptions: options, memory: m}, nil
}

// Store returns the store.
func (u *memoryUse) Store() leakybucket.Store { return u.memory.Store }

// start applies the options of a config that starts. limits sets the limit of a bucket
// that is restored.
func (u *memoryUse) start(limits func(*leakybucket.Charge, leakybucket.State) bool) {
	u.limits = limits
	u.memory.startConfig(u)
}

// stop withdraws the options of a config that stops or has failed to start.
func (u *memoryUse) stop() { u.memory.stopConfig(u) }

// release gives the memory up.
func (u *memoryUse) release() error { return leave(memoryKey) }

// A memory is the process's memory store, with a goroutine that maintains it.
type memory struct {
	*memstore.Store
	snapshots *snapshots
	stop      chan struct{}

	mu      sync.Mutex
	configs []*memoryUse // that have started and not stopped, oldest first
	logger  *zap.Logger  // of the last of them
}

// joinMemory joins the process's memory, or creates it for maxBuckets. It is
// process-wide because a new config must find the levels that the last one left.
func joinMemory(maxBuckets int) (*memory, error) {
	return join(memoryKey, func() (*memory, error) {
		m := &memory{
			Store: memstore.New(memstore.Options{MaxBuckets: maxBuckets}),
			stop:  make(chan struct{}),
		}
		m.snapshots = newSnapshots(m.Store)
		go m.maintain()
		go m.snapshots.run(m.stop)
		return m, nil
	})
}

// maintain frees memory after a peak of traffic, and logs a warning when the store
// drops buckets that are not empty.
func (m *memory) maintain() {
	ticker := time.NewTicker(shedEvery)
	defer ticker.Stop()
	reported := uint64(0)
	for {
		select {
		case <-m.stop:
			return
		case <-ticker.C:
		}
		m.Shed()
		if n := m.Evictions(); n > reported {
			if logger := m.currentLogger(); logger != nil {
				logger.Warn("the memory store is full and drops buckets that are not empty: raise max_buckets, or group clients by a shorter prefix",
					zap.Uint64("dropped", n-reported))
			}
			reported = n
		}
	}
}

func (m *memory) currentLogger() *zap.Logger {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.logger
}

func (m *memory) startConfig(config *memoryUse) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.configs = append(m.configs, config)
	m.follow()
}

func (m *memory) stopConfig(config *memoryUse) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.configs = slices.DeleteFunc(m.configs, func(other *memoryUse) bool { return other == config })
	m.follow()
}

// follow applies the largest bound of all running configs, and the logger and snapshot of
// the last one. During a reload two configs run, and the new one may still fail to start:
// a smaller bound must not drop buckets before that. It must be called with the lock held.
func (m *memory) follow() {
	most := 0
	for _, config := range m.configs {
		most, m.logger = max(most, config.maxBuckets), config.logger
	}
	if most > 0 {
		m.SetMaxBuckets(most)
		m.snapshots.use(m.configs[len(m.configs)-1])
	}
}

// Destruct ends the goroutines when no config uses the memory any more.
func (m *memory) Destruct() error {
	close(m.stop)
	m.snapshots.end()
	return nil
}

// Interface guards
var _ caddy.Destructor = (*memory)(nil)
