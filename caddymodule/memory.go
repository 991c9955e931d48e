package caddymodule

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/tokens"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

func init() {
	caddy.RegisterModule(Memory{})
}

// Memory keeps the buckets in the memory of this process. They survive reloads. A
// snapshot on disk lets them survive restarts, too.
type Memory struct {
	// How many buckets are kept at most. Default: 500000, at some 100 bytes each.
	// If more are in use, one that would be empty soon is dropped, and its key
	// starts with an empty bucket. A reload changes the bound. To raise it more
	// than tenfold, restart.
	MaxBuckets int `json:"max_buckets,omitempty"`

	// The file in which buckets outlive the process, or `off`. It is read when Caddy
	// starts, and holds the addresses and digests of keys. Default:
	// `throttle/buckets.snapshot` in Caddy's data folder. With `off`, a restart empties
	// all buckets and ends all blocks.
	Snapshot string `json:"snapshot,omitempty"`

	// How often the snapshot is written, if a bucket has changed. It is also written
	// when Caddy ends. Default: 30s. After a crash or a `kill -9`, what happened since
	// the last snapshot is forgotten.
	SnapshotInterval caddy.Duration `json:"snapshot_interval,omitempty"`

	// limits sets the limit of a bucket that is restored.
	limits func(*leakybucket.Charge, leakybucket.State) bool

	memory *memory
	logger *zap.Logger
}

const (
	defaultMaxBuckets = 500_000
	mostBuckets       = 100_000_000

	shedEvery = time.Minute
)

// CaddyModule returns the Caddy module information.
func (Memory) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "throttle.stores.memory",
		New: func() caddy.Module { return new(Memory) },
	}
}

// Provision joins the process's memory of buckets, or creates it.
func (m *Memory) Provision(ctx caddy.Context) error {
	if m.MaxBuckets == 0 {
		m.MaxBuckets = defaultMaxBuckets
	}
	if m.MaxBuckets < 1 || m.MaxBuckets > mostBuckets {
		return fmt.Errorf("invalid max_buckets %d: want a number from 1 to %d", m.MaxBuckets, mostBuckets)
	}
	if m.Snapshot == "" {
		m.Snapshot = defaultSnapshot()
	}
	if m.SnapshotInterval == 0 {
		m.SnapshotInterval = caddy.Duration(defaultSnapshotInterval)
	}
	if time.Duration(m.SnapshotInterval) < leastSnapshotInterval {
		return fmt.Errorf("invalid snapshot_interval %v: want a duration of at least %v", time.Duration(m.SnapshotInterval), leastSnapshotInterval)
	}
	filled, err := FillIn(m.Snapshot)
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	m.Snapshot = filled[0]
	m.logger = ctx.Logger()
	m.memory, err = joinMemory(m.MaxBuckets)
	return err
}

// Store returns the store.
func (m *Memory) Store() leakybucket.Store { return m.memory.Store }

// start applies the options of a config that starts. limits sets the limit of a bucket
// that is restored.
func (m *Memory) start(limits func(*leakybucket.Charge, leakybucket.State) bool) {
	m.limits = limits
	m.memory.startConfig(m)
}

// stop withdraws the options of a config that stops or has failed to start.
func (m *Memory) stop() { m.memory.stopConfig(m) }

// Cleanup releases the memory.
func (m *Memory) Cleanup() error {
	if m.memory == nil {
		return nil
	}
	return leave(memoryKey)
}

// UnmarshalCaddyfile sets up the store from Caddyfile tokens. Syntax:
//
//	memory {
//	    max_buckets <n>
//	    snapshot <file>|off
//	    snapshot_interval <duration>
//	}
func (m *Memory) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the store's name
	if d.NextArg() {
		return d.Errf("unexpected %q after store memory: want a block", d.Val())
	}
	seen := make(map[string]bool)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option := d.Val()
		if err := tokens.Once(d, seen, option); err != nil {
			return err
		}
		var err error
		switch option {
		case "max_buckets":
			err = tokens.ParseArg(d, &m.MaxBuckets, tokens.ParseWhole(1, mostBuckets))
		case "snapshot":
			err = tokens.ParseArg(d, &m.Snapshot, tokens.ParseWord)
		case "snapshot_interval":
			err = tokens.ParseArg(d, &m.SnapshotInterval, parseSnapshotInterval)
		default:
			err = tokens.UnknownOption(d, "store memory", []string{"max_buckets", "snapshot", "snapshot_interval"})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func parseSnapshotInterval(word string) (caddy.Duration, error) {
	interval, err := tokens.ParseDuration(word)
	if err == nil && time.Duration(interval) < leastSnapshotInterval {
		err = fmt.Errorf("invalid duration %q: want at least %v", word, leastSnapshotInterval)
	}
	return interval, err
}

// A memory is the process's memory store, with a goroutine that maintains it.
type memory struct {
	*memstore.Store
	snapshots *snapshots
	stop      chan struct{}

	mu      sync.Mutex
	configs []*Memory   // that have started and not stopped, oldest first
	logger  *zap.Logger // of the last of them
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

func (m *memory) startConfig(config *Memory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.configs = append(m.configs, config)
	m.follow()
}

func (m *memory) stopConfig(config *Memory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.configs = slices.DeleteFunc(m.configs, func(other *Memory) bool { return other == config })
	m.follow()
}

// follow applies the largest bound of all running configs, and the logger and snapshot of
// the last one. During a reload two configs run, and the new one may still fail to start:
// a smaller bound must not drop buckets before that. It must be called with the lock held.
func (m *memory) follow() {
	most := 0
	for _, config := range m.configs {
		most, m.logger = max(most, config.MaxBuckets), config.logger
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
var (
	_ caddy.Provisioner     = (*Memory)(nil)
	_ caddy.CleanerUpper    = (*Memory)(nil)
	_ caddyfile.Unmarshaler = (*Memory)(nil)
	_ StoreModule           = (*Memory)(nil)
	_ caddy.Destructor      = (*memory)(nil)
)
