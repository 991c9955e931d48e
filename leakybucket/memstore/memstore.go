// Package memstore keeps buckets in the memory of one process: exact under
// concurrency, bounded, and gone when the process ends.
package memstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

const (
	defaultMaxBuckets = 500_000

	// A shard of this many buckets is large enough that chance fills all
	// shards alike, and small enough that growing one is short work.
	bucketsPerShard = 4096
	mostShards      = 1024
)

// Options of a Store. The zero value is ready for use.
type Options struct {
	// MaxBuckets bounds how many buckets are kept; 500,000 by default. The
	// bound is divided evenly among the shards, of which there is one for
	// every 4,096 buckets or so. A full shard drops one that would be empty
	// soon.
	MaxBuckets int
}

// A Store keeps buckets in memory. It is a [leakybucket.Store] that needs no
// context, since it never waits, and fails only for keys over 32 KiB.
//
// Its clock is the process's monotonic one, read while the bucket is locked,
// so that decisions on a bucket are made in the order of their instants.
type Store struct {
	hasher hasher
	shards []shard
	shift  uint // of a hash, to get the shard

	base  time.Time
	epoch leakybucket.Instant        // what base was, counted from 1970
	clock func() leakybucket.Instant // nil but in tests
}

// New returns an empty store.
func New(o Options) *Store {
	if o.MaxBuckets <= 0 {
		o.MaxBuckets = defaultMaxBuckets
	}
	power := uint(bits.Len(uint((o.MaxBuckets - 1) / bucketsPerShard)))
	power = min(power, uint(bits.Len(mostShards)-1))
	now := time.Now()
	s := &Store{
		hasher: hasher{zone: maphash.MakeSeed(), key: maphash.MakeSeed()},
		shards: make([]shard, 1<<power),
		shift:  64 - power,
		base:   now,
		epoch:  leakybucket.Instant(now.UnixMicro()),
	}
	for i := range s.shards {
		s.shards[i].hasher = s.hasher
	}
	s.SetMaxBuckets(o.MaxBuckets)
	return s
}

// SetMaxBuckets changes the bound and drops what is over it. The number of
// shards stays as it was made, and each keeps one bucket at least: a store whose
// bound is raised more than tenfold is exact still, and slower than a new one.
func (s *Store) SetMaxBuckets(n int) {
	for i := range s.shards {
		most := n / len(s.shards)
		if i < n%len(s.shards) {
			most++
		}
		for s.shards[i].resize(max(1, most), s.now) {
		}
	}
}

// Take implements [leakybucket.Store].
func (s *Store) Take(_ context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	for i := range charges {
		if err := checkName(&charges[i]); err != nil {
			return err
		}
	}
	if len(charges) == 1 {
		s.takeOne(&charges[0], &decisions[0])
	} else {
		s.takeMany(charges, decisions)
	}
	return nil
}

func checkName(c *leakybucket.Charge) error {
	if len(c.Zone)+len(c.Key) > longestName {
		return fmt.Errorf("zone %.40q: key of %d bytes is too long for the memory store", c.Zone, len(c.Key))
	}
	return nil
}

func (s *Store) takeOne(c *leakybucket.Charge, d *leakybucket.Decision) {
	hash := s.hasher.charge(c)
	sh := &s.shards[hash>>s.shift]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	at, kept := sh.find(hash, c)
	if !kept {
		var state leakybucket.State
		if c.Take(&state, now, d) {
			sh.insert(hash, c, state, now)
		}
		return
	}
	if state := sh.slot(at).packed.state(); c.Take(&state, now, d) {
		sh.write(at, c, state)
	}
}

// takeMany locks the shards of all charges, lowest first, so that no two takes
// can wait for each other.
func (s *Store) takeMany(charges []leakybucket.Charge, decisions []leakybucket.Decision) {
	var hashRoom [8]uint64
	var lockRoom [8]uint32
	var stateRoom [8]leakybucket.State
	hashes, locks, states := hashRoom[:0], lockRoom[:0], stateRoom[:0]
	for i := range charges {
		hash := s.hasher.charge(&charges[i])
		hashes = append(hashes, hash)
		locks = append(locks, uint32(hash>>s.shift))
	}
	slices.Sort(locks)
	locks = slices.Compact(locks)
	for _, i := range locks {
		s.shards[i].mu.Lock()
	}
	defer func() {
		for _, i := range locks {
			s.shards[i].mu.Unlock()
		}
	}()

	now := s.now()
	for i := range charges {
		var state leakybucket.State
		sh := &s.shards[hashes[i]>>s.shift]
		if at, kept := sh.find(hashes[i], &charges[i]); kept {
			state = sh.slot(at).packed.state()
		}
		states = append(states, state)
	}
	leakybucket.TakeAll(charges, states, now, decisions)
	for i := range charges {
		// Looked up again: making room for another charge may have dropped it.
		c, sh := &charges[i], &s.shards[hashes[i]>>s.shift]
		if at, kept := sh.find(hashes[i], c); !kept {
			if decisions[i].Poured || decisions[i].Began {
				sh.insert(hashes[i], c, states[i], now)
			}
		} else if decisions[i].Poured || sh.slot(at).packed != pack(states[i]) {
			sh.write(at, c, states[i])
		}
	}
}

// Settle implements [leakybucket.Store].
func (s *Store) Settle(_ context.Context, settlements []leakybucket.Settlement) error {
	for i := range settlements {
		if err := checkName(&settlements[i].Charge); err != nil {
			return err
		}
	}
	for i := range settlements {
		s.settle(&settlements[i])
	}
	return nil
}

func (s *Store) settle(settlement *leakybucket.Settlement) {
	c := &settlement.Charge
	hash := s.hasher.charge(c)
	sh := &s.shards[hash>>s.shift]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	if at, kept := sh.find(hash, c); kept {
		sh.write(at, c, settlement.Apply(sh.slot(at).packed.state(), now))
	} else if settlement.Diff > 0 && !settlement.Cancel {
		sh.insert(hash, c, settlement.Apply(leakybucket.State{}, now), now)
	}
}

// Put replaces the state of the bucket of c, exactly as given: nothing is brought
// up to date. It is for keeping what was last seen of buckets in another store.
// The instants of s are on this store's clock, see [Store.Now].
//
// A state that may be forgotten already is not kept, nor one that is invalid or
// whose key is too long.
func (s *Store) Put(c *leakybucket.Charge, state leakybucket.State) {
	if checkName(c) != nil || !(state.Level >= 0) || !(state.Leak >= 0) {
		return
	}
	hash := s.hasher.charge(c)
	sh := &s.shards[hash>>s.shift]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := s.now()
	switch at, kept := sh.find(hash, c); {
	case !kept:
		sh.insert(hash, c, state, now)
	case c.Forget(state) <= now:
		sh.remove(at)
	default:
		sh.write(at, c, state)
	}
}

// Now returns the instant on the store's clock.
func (s *Store) Now() leakybucket.Instant { return s.now() }

// Reset implements [leakybucket.Resetter].
func (s *Store) Reset(_ context.Context, zone, key string, shadow bool) error {
	c := &leakybucket.Charge{Zone: zone, Key: key, Shadow: shadow}
	hash := s.hasher.charge(c)
	sh := &s.shards[hash>>s.shift]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if at, kept := sh.find(hash, c); kept {
		sh.remove(at)
	}
	return nil
}

// Shed forgets all buckets that may be forgotten, a little at a time. Every new
// bucket makes the store look for old ones, so memory stays bounded without it;
// calling it now and then gives memory back when traffic has ended.
func (s *Store) Shed() {
	for i := range s.shards {
		for next, more := 0, true; more; {
			next, more = s.shards[i].shed(next, s.now)
		}
	}
}

// Buckets implements [leakybucket.Counter].
func (s *Store) Buckets() map[string]int {
	total := make(map[string]int)
	for i := range s.shards {
		s.shards[i].addCounts(total)
	}
	return total
}

// Evictions implements [leakybucket.Evicter].
func (s *Store) Evictions() uint64 {
	total := uint64(0)
	for i := range s.shards {
		total += s.shards[i].countEvictions()
	}
	return total
}

func (s *Store) now() leakybucket.Instant {
	if s.clock != nil {
		return s.clock()
	}
	return s.epoch + leakybucket.Instant(time.Since(s.base).Microseconds())
}

// A hasher hashes what names a bucket. It is seeded, so that nobody outside can
// choose keys that meet in one shard. The upper bits of a hash choose the
// shard, the lower ones the place in the shard's index.
type hasher struct{ zone, key maphash.Seed }

func (h hasher) charge(c *leakybucket.Charge) uint64 {
	return combine(maphash.String(h.zone, c.Zone), maphash.String(h.key, c.Key), c.Shadow)
}

func (h hasher) name(zone, key []byte, shadow bool) uint64 {
	return combine(maphash.Bytes(h.zone, zone), maphash.Bytes(h.key, key), shadow)
}

func combine(zone, key uint64, shadow bool) uint64 {
	if shadow {
		zone = ^zone
	}
	return zone ^ key
}

// Interface guards
var (
	_ leakybucket.Store    = (*Store)(nil)
	_ leakybucket.Counter  = (*Store)(nil)
	_ leakybucket.Evicter  = (*Store)(nil)
	_ leakybucket.Resetter = (*Store)(nil)
)
