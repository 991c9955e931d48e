package caddymodule

import (
	"cmp"
	"fmt"
	"path/filepath"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
)

// Memory keeps the buckets in the memory of this process.
type Memory struct {
	config.Memory
	use *stores.MemoryUse
}

// CaddyModule returns the Caddy module information.
func (Memory) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "throttle.stores.memory", New: func() caddy.Module { return new(Memory) }}
}

// Provision joins the process's memory of buckets, or creates it.
func (m *Memory) Provision(ctx caddy.Context) error {
	if err := m.Check(); err != nil {
		return err
	}
	m.MaxBuckets = cmp.Or(m.MaxBuckets, stores.DefaultMaxBuckets)
	m.Snapshot = cmp.Or(m.Snapshot, filepath.Join(caddy.AppDataDir(), "throttle", "buckets.snapshot"))
	m.SnapshotInterval = cmp.Or(m.SnapshotInterval, caddy.Duration(stores.DefaultSnapshotInterval))
	filled, err := stores.FillIn(m.Snapshot)
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	m.use = &stores.MemoryUse{MaxBuckets: m.MaxBuckets, Every: time.Duration(m.SnapshotInterval), Logger: ctx.Logger(), Memory: stores.JoinMemory(m.MaxBuckets)}
	if m.Snapshot = filled[0]; m.Snapshot != "off" {
		m.use.Snapshot = m.Snapshot
	}
	return nil
}

// Cleanup releases the memory.
func (m *Memory) Cleanup() error {
	if m.use == nil {
		return nil
	}
	return stores.Leave(stores.MemoryKey)
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
	places := make(map[string][]string)
	err := option.Read(d, "store memory", option.Fields{
		"max_buckets": &m.MaxBuckets, "snapshot": &m.Snapshot, "snapshot_interval": &m.SnapshotInterval,
	}, places)
	return cmp.Or(err, option.At(places, option.Place(d), m.Check()))
}

// Interface guards
var (
	_ caddy.Provisioner     = (*Memory)(nil)
	_ caddy.CleanerUpper    = (*Memory)(nil)
	_ caddyfile.Unmarshaler = (*Memory)(nil)
)
