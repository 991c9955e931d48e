package caddymodule

import (
	"fmt"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

func init() {
	caddy.RegisterModule(Memory{})
}

// memories keeps the memory store over reloads: one config's requests must meet
// the levels that the last one's left. It holds state only. Limits come with
// every charge, and the bound is set when a config starts, so that a config
// that fails to load changes nothing.
var memories = caddy.NewUsagePool()

// Memory keeps the buckets in the memory of this process. They survive reloads,
// and are gone when it ends.
type Memory struct {
	// How many buckets are kept at most. When there are more, one that would be
	// empty soon is dropped. A reload changes the bound; to raise it more than
	// tenfold, restart. Default: 500000.
	MaxBuckets int `json:"max_buckets,omitempty"`

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

// Provision finds the process's memory, or makes it.
func (m *Memory) Provision(ctx caddy.Context) error {
	if m.MaxBuckets == 0 {
		m.MaxBuckets = defaultMaxBuckets
	}
	if m.MaxBuckets < 1 || m.MaxBuckets > mostBuckets {
		return fmt.Errorf("invalid max_buckets %d: want a number from 1 to %d", m.MaxBuckets, mostBuckets)
	}
	m.logger = ctx.Logger()
	found, _, err := memories.LoadOrNew("memory", func() (caddy.Destructor, error) {
		return newMemory(m), nil
	})
	if err != nil {
		return err
	}
	m.memory = found.(*memory)
	return nil
}

// Store returns the store.
func (m *Memory) Store() leakybucket.Store { return m.memory.Store }

// Start makes the config's bound count.
func (m *Memory) Start() error {
	m.memory.bound(m)
	return nil
}

// Stop takes the bound back, of a config that goes or that failed to start.
func (m *Memory) Stop() error {
	m.memory.unbound(m)
	return nil
}

// Cleanup lets go of the memory.
func (m *Memory) Cleanup() error {
	if m.memory == nil {
		return nil
	}
	_, err := memories.Delete("memory")
	return err
}

// UnmarshalCaddyfile sets up the store from Caddyfile tokens. Syntax:
//
//	memory {
//	    max_buckets <n>
//	}
func (m *Memory) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the store's name
	if d.NextArg() {
		return d.Errf("unexpected %q after store memory: want a block", d.Val())
	}
	seen := make(map[string]bool)
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		option := d.Val()
		if err := once(d, seen, option); err != nil {
			return err
		}
		var err error
		switch option {
		case "max_buckets":
			err = parseArg(d, &m.MaxBuckets, parseWhole(1, mostBuckets))
		default:
			err = unrecognized(d, "store memory", "max_buckets <n>")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// A memory is a store with someone to look after it.
type memory struct {
	*memstore.Store
	stop chan struct{}

	mu     sync.Mutex
	bounds []*Memory   // the configs that have started and not stopped, oldest first
	logger *zap.Logger // of the last of them
}

func newMemory(config *Memory) *memory {
	m := &memory{
		Store:  memstore.New(memstore.Options{MaxBuckets: config.MaxBuckets}),
		stop:   make(chan struct{}),
		logger: config.logger,
	}
	go m.lookAfter()
	return m
}

// lookAfter gives memory back when traffic has ended, and says when there is
// not enough of it.
func (m *memory) lookAfter() {
	ticker := time.NewTicker(shedEvery)
	defer ticker.Stop()
	said := uint64(0)
	for {
		select {
		case <-m.stop:
			return
		case <-ticker.C:
		}
		m.Shed()
		if n := m.Evictions(); n > said {
			m.mu.Lock()
			m.logger.Warn("the memory store is full and drops buckets before they are empty: raise max_buckets, or group clients by a shorter prefix",
				zap.Uint64("dropped", n-said))
			m.mu.Unlock()
			said = n
		}
	}
}

func (m *memory) bound(config *Memory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bounds = append(m.bounds, config)
	m.follow()
}

func (m *memory) unbound(config *Memory) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, c := range m.bounds {
		if c == config {
			m.bounds = append(m.bounds[:i], m.bounds[i+1:]...)
			break
		}
	}
	m.follow()
}

// follow does as the configs say that run, with the lock held. In a reload they
// are two, of which the larger bound holds: the new one may yet fail to start,
// and then no bucket must be lost.
func (m *memory) follow() {
	most := 0
	for _, config := range m.bounds {
		most, m.logger = max(most, config.MaxBuckets), config.logger
	}
	if most > 0 {
		m.SetMaxBuckets(most)
	}
}

// Destruct ends the goroutine when the last config lets go.
func (m *memory) Destruct() error {
	close(m.stop)
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner     = (*Memory)(nil)
	_ caddy.App             = (*Memory)(nil)
	_ caddy.CleanerUpper    = (*Memory)(nil)
	_ caddyfile.Unmarshaler = (*Memory)(nil)
	_ StoreModule           = (*Memory)(nil)
	_ caddy.Destructor      = (*memory)(nil)
)
