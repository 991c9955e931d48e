package stores

import (
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

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
