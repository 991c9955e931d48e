package config

import (
	"cmp"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
)

// Memory is the JSON of the memory store: it keeps the buckets in the memory of this process. They survive reloads. A
// snapshot on disk lets them survive restarts, too.
type Memory struct {
	// How many buckets are kept at most. Default: 500000, at some 100 bytes each.
	// When they are all in use, the one that would be empty soonest is dropped, and its
	// key starts with an empty bucket. A reload changes the number; to raise it more than
	// tenfold, restart.
	MaxBuckets int `json:"max_buckets,omitempty"`

	// The file in which buckets survive a restart, or `off`. It is read when Caddy
	// starts, and holds the addresses and digests of keys. Default:
	// `throttle/buckets.snapshot` in Caddy's data folder. With `off`, a restart empties
	// all buckets and ends all blocks.
	Snapshot string `json:"snapshot,omitempty"`

	// How often the snapshot is written, if a bucket has changed. It is also written
	// when Caddy ends. Default: 30s; at most 24h. After a crash or a `kill -9`, what happened since
	// the last snapshot is forgotten.
	SnapshotInterval caddy.Duration `json:"snapshot_interval,omitempty"`
}

// MostBuckets is the most that max_buckets may be.
const MostBuckets = 100_000_000

const leastSnapshotInterval = 100 * time.Millisecond

// Check refuses what the options may not be. Zero means the default.
func (m *Memory) Check() error {
	interval := cmp.Or(time.Duration(m.SnapshotInterval), leastSnapshotInterval)
	return cmp.Or(option.Within("max_buckets", m.MaxBuckets, 0, MostBuckets), option.Within("snapshot_interval", interval, leastSnapshotInterval, option.Longest))
}
