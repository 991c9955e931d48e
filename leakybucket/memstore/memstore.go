// Package memstore keeps buckets in the memory of one process: exact under
// concurrency, bounded, and gone when the process ends, unless a snapshot is written
// before and read by the next one.
package memstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/internal/door"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

const (
	defaultMaxBuckets = 500_000

	// A shard of this many buckets is small enough that growing one is short
	// work.
	bucketsPerShard = 4096
	mostShards      = 1024

	// Of 500,000 buckets, 10,000 blocked ones share their ends with one in seven others.
	endsPerShard = 1024
)

// Options of a Store. The zero value is ready for use.
type Options struct {
	// MaxBuckets bounds how many buckets are kept. If zero, 500,000 are. A full
	// store first forgets buckets that are empty, then drops live ones, those
	// that would be empty soonest first.
	MaxBuckets int

	// Clock returns the time. If nil, it is the process's. Set it to simulate traffic
	// in virtual time. It must be fast, and must not call the store.
	Clock func() leakybucket.Instant
}

// A Store keeps buckets in memory. It is a [leakybucket.Store] that ignores
// contexts, since it never waits. It fails only for keys over 32 KiB.
//
// A new bucket goes through the zones that have buckets in its shard: 3 µs with 800
// zones, 20 µs with 8,000. Put what there are thousands of, such as customers, into
// the key.
//
// Its clock is the process's monotonic one. No bucket is written at an instant before that
// of its last write.
type Store struct {
	hasher hasher
	shards []shard
	shift  uint // of a hash, to get the shard

	base  time.Time
	epoch leakybucket.Instant        // what base was, counted from 1970
	clock func() leakybucket.Instant // nil means the process's

	_    [64]byte // what follows is written often, what stands before is not
	room room
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
		clock:  o.Clock,
		base:   now,
		epoch:  leakybucket.Instant(now.UnixMicro()),
		room:   room{soonest: make([]atomic.Int64, 1<<power)},
	}
	s.room.blocks.hasher = s.hasher
	s.room.blocks.ends = sync.OnceValue(func() []atomic.Int64 { return make([]atomic.Int64, endsPerShard<<power) })
	s.room.most.Store(int64(o.MaxBuckets))
	for i := range s.shards {
		s.room.soonest[i].Store(int64(never))
		s.shards[i].room, s.shards[i].number = &s.room, i
	}
	return s
}

// Take implements [leakybucket.Store].
func (s *Store) Take(_ context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	// Most charges and their buckets are plain: only the level counts. takeOne takes one of these,
	// takeFew some together, and zone.Take one of a Limiter. All others go through
	// leakybucket.Charge.Take in takeIn, or store.TakeAll in tryMany.
	for i := range charges {
		if tooLong(charges[i].Zone, charges[i].Key) {
			return errTooLong(&charges[i])
		}
	}
	if len(charges) > 1 {
		s.takeMany(charges, decisions)
	} else if len(charges) == 1 {
		s.takeOne(&charges[0], &decisions[0])
	}
	return nil
}

func tooLong(zone, key string) bool { return len(zone)+len(key) > longestName }

func errTooLong(c *leakybucket.Charge) error {
	return fmt.Errorf("zone %.40q: key of %d bytes is too long for the memory store: want at most %d with the zone: %w", c.Zone, len(c.Key), longestName, store.ErrBadBucket)
}

// takeOne takes one charge.
func (s *Store) takeOne(c *leakybucket.Charge, d *leakybucket.Decision) {
	hash := s.hasher.charge(c)
	sh := &s.shards[hash>>s.shift]
	now := s.lockOne(sh)
	at, kept := sh.find(hash, c.Zone, c.Key, c.Shadow)
	if !kept || !plain(c) || !sh.slots[at].plain(c.Limit.Leak, now) {
		s.takeIn(sh, hash, at, kept, c, d, now)
		return
	}
	found, fits := sh.takePlain(at, c.Limit.WithCeiling(c.Ceiling), c.Cost, now)
	sh.mu.Unlock() // without defer, which would take 2 % of a decision
	*d = leakybucket.Decision{Level: found, At: now, Fits: fits, Poured: fits}
}

// OpenZone is for [leakybucket.Limiter], which takes one charge at a time, and no long keys.
func (s *Store) OpenZone(asked any, name string) door.Zone {
	if asked != any(s) {
		return nil
	}
	return &zone{s, name, maphash.String(s.hasher.zone, name)}
}

type zone struct {
	store *Store
	name  string
	hash  uint64
}

// Take implements door.Zone. A bucket that is not kept, or not plain, is a charge's as any.
func (z *zone) Take(key string, capacity, leak, cost float64) (level float64, at int64, fits bool) {
	s, limit := z.store, leakybucket.Limit{Capacity: capacity, Leak: leak}
	hash := z.hash ^ maphash.String(s.hasher.key, key)
	sh := &s.shards[hash>>s.shift]
	now := s.lockOne(sh)
	in, kept := sh.find(hash, z.name, key, false)
	if !kept || !sh.slots[in].plain(leak, now) {
		var d leakybucket.Decision
		s.takeIn(sh, hash, in, kept, &leakybucket.Charge{Zone: z.name, Key: key, Limit: limit, Cost: cost}, &d, now)
		return d.Level, int64(d.At), d.Fits
	}
	level, fits = sh.takePlain(in, limit, cost, now)
	sh.mu.Unlock()
	return level, int64(now), fits
}

// lockOne locks a shard to decide there, and returns the time. The clock is read without the lock,
// which is then held for some nanoseconds only.
func (s *Store) lockOne(sh *shard) leakybucket.Instant {
	now := s.now()
	sh.mu.Lock()
	if sh.decided > now {
		now = s.now() // another take had the lock first
	}
	sh.decided = now
	return now
}

// plain reports whether a charge begins no block, and pours if it fits.
func plain(c *leakybucket.Charge) bool { return c.Block == nil && !c.Probe }

// takeIn takes a charge in its shard, which is locked, and unlocks it.
func (s *Store) takeIn(sh *shard, hash uint64, at int, kept bool, c *leakybucket.Charge, d *leakybucket.Decision, now leakybucket.Instant) {
	s.updateIn(sh, hash, at, kept, c, now, 0, func(state leakybucket.State, _ bool, now leakybucket.Instant) (leakybucket.State, bool) {
		write := c.Take(&state, now, d)
		return state, write
	})
}

// create adds a bucket, unless it may be forgotten already. It returns false if
// there is no place for it. Places that were reserved are used or released.
func (s *Store) create(sh *shard, hash uint64, c *leakybucket.Charge, state *leakybucket.State, now leakybucket.Instant, reserved int) bool {
	need, forget := 1, store.Expiry(c, state)
	if forget <= now {
		need = 0
	}
	if need > reserved && !s.room.reserve(need-reserved) {
		return false
	}
	s.room.release(reserved - need)
	if need > 0 {
		sh.insert(hash, c, state, now, forget)
	}
	return true
}

// nextShard returns the lowest of the shards of hashes above another one, or len(s.shards) if there
// is none.
func (s *Store) nextShard(hashes []uint64, above int) (next int) {
	next = len(s.shards)
	for _, hash := range hashes {
		if i := int(hash >> s.shift); above < i && i < next {
			next = i
		}
	}
	return next
}

// lock locks the shards of several charges, lowest first, so that no two takes can wait for each
// other, and returns the time.
func (s *Store) lock(hashes []uint64) leakybucket.Instant {
	for i := s.nextShard(hashes, -1); i < len(s.shards); i = s.nextShard(hashes, i) {
		s.shards[i].mu.Lock()
	}
	return s.now()
}

// unlock unlocks the shards. None of them decides at an earlier instant from then on.
func (s *Store) unlock(hashes []uint64, decided leakybucket.Instant) {
	for i := s.nextShard(hashes, -1); i < len(s.shards); i = s.nextShard(hashes, i) {
		s.shards[i].decided = decided
		s.shards[i].mu.Unlock()
	}
}

// fewCharges is how many charges are taken at most with what lies on the stack.
const fewCharges = 4

// takeMany takes several charges as one. With no room for new buckets it makes
// room, and then begins anew.
func (s *Store) takeMany(charges []leakybucket.Charge, decisions []leakybucket.Decision) {
	if len(charges) <= fewCharges && s.takeFew(charges, decisions) {
		return
	}
	t := scratches.Get().(*scratch)
	defer scratches.Put(t)
	t.hashes = s.hasher.charges(charges, t.hashes[:0])
	t.read = append(t.read[:0], make([]leakybucket.State, len(charges))...)
	for reserved, missing := 0, 0; ; reserved += missing {
		if missing = s.tryMany(charges, decisions, t, reserved); missing == 0 {
			break
		}
		s.makeRoom(missing)
	}
	s.trim()
}

// takeFew takes a few charges as one, if all their buckets are kept, differ, and are plain, as most
// are. Otherwise it returns false.
func (s *Store) takeFew(charges []leakybucket.Charge, decisions []leakybucket.Decision) (done bool) {
	var room [fewCharges]uint64
	var at [fewCharges]int
	hashes := s.hasher.charges(charges, room[:0])
	now := s.lock(hashes)
	defer s.unlock(hashes, now)
	for i := range charges {
		c, sh := &charges[i], &s.shards[hashes[i]>>s.shift]
		slot, kept := sh.find(hashes[i], c.Zone, c.Key, c.Shadow)
		if !kept || !plain(c) || !sh.slots[slot].plain(c.Limit.Leak, now) || slices.Contains(hashes[:i], hashes[i]) {
			return false
		}
		at[i] = slot
		found := sh.slots[slot].found(now)
		decisions[i] = leakybucket.Decision{Level: found, At: now, Fits: c.Limit.WithCeiling(c.Ceiling).Fits(found, c.Cost)}
	}
	if enforced, all := store.Fit(charges, decisions); enforced {
		for i := range charges {
			if c, d := &charges[i], &decisions[i]; all || !c.Shadow {
				s.shards[hashes[i]>>s.shift].pour(at[i], d.Level, c.Cost, now)
				d.Poured = true
			}
		}
	}
	for i := range hashes {
		if decisions[i].Level == 0 {
			s.shards[hashes[i]>>s.shift].forgetNext(now)
		}
	}
	return true
}

// A scratch is the reusable memory of takeMany, between its tries.
type scratch struct {
	hashes  []uint64
	read    []leakybucket.State // of the buckets as they were found
	states  []leakybucket.State // of the buckets as they are left
	slots   []int               // of kept buckets; -1 of others
	created []int               // the charges that create one
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// tryMany returns how many more places must be reserved before anything can be written.
//
// The states that t has read are those found the time before. One that was dropped
// since to make room is taken up again: a client that brings new keys with every
// request must not rid itself of its old ones.
func (s *Store) tryMany(charges []leakybucket.Charge, decisions []leakybucket.Decision, t *scratch, reserved int) (missing int) {
	hashes := t.hashes
	now := s.lock(hashes)
	defer s.unlock(hashes, now)
	t.states, t.slots, t.created = t.states[:0], t.slots[:0], t.created[:0]
	for i := range charges {
		sh := &s.shards[hashes[i]>>s.shift]
		at, kept := sh.find(hashes[i], charges[i].Zone, charges[i].Key, charges[i].Shadow)
		if kept {
			sh.slots[at].state(&t.read[i])
		} else {
			at = -1
		}
		t.slots, t.states = append(t.slots, at), append(t.states, t.read[i])
	}
	store.TakeAll(charges, t.states, now, decisions)

	for i, at := range t.slots {
		if at < 0 && t.states[i] != (leakybucket.State{}) && store.Expiry(&charges[i], &t.states[i]) > now && last(charges, hashes, i) {
			t.created = append(t.created, i)
		}
	}
	if need := len(t.created) - reserved; need > 0 && !s.room.reserve(need) {
		return need
	}
	s.room.release(reserved - len(t.created))
	for i, at := range t.slots {
		if at >= 0 && (decisions[i].Poured || t.states[i] != t.read[i]) {
			s.shards[hashes[i]>>s.shift].write(at, &charges[i], &t.states[i])
		}
	}
	for _, i := range t.created {
		s.shards[hashes[i]>>s.shift].insert(hashes[i], &charges[i], &t.states[i], now, store.Expiry(&charges[i], &t.states[i]))
	}
	return 0
}

// last reports whether no later charge names the bucket of the i-th. The last one
// holds its state.
func last(charges []leakybucket.Charge, hashes []uint64, i int) bool {
	for j := i + 1; j < len(charges); j++ {
		if hashes[j] == hashes[i] && store.SameBucket(&charges[i], &charges[j]) {
			return false
		}
	}
	return true
}

// Settle implements [leakybucket.Store].
func (s *Store) Settle(_ context.Context, settlements []leakybucket.Settlement) error {
	for i := range settlements {
		if c := &settlements[i].Charge; tooLong(c.Zone, c.Key) {
			return errTooLong(c)
		}
	}
	for i := range settlements {
		of := &settlements[i]
		s.update(&of.Charge, 0, func(state leakybucket.State, kept bool, now leakybucket.Instant) (leakybucket.State, bool) {
			return of.Apply(state, now), kept || of.Creates()
		})
	}
	return nil
}

// A change returns what becomes of the state of a bucket, and whether it is to be written.
type change func(state leakybucket.State, kept bool, now leakybucket.Instant) (changed leakybucket.State, write bool)

// update changes the state of a bucket, for which places may be reserved if it is new.
func (s *Store) update(c *leakybucket.Charge, reserved int, f change) {
	hash := s.hasher.charge(c)
	sh := &s.shards[hash>>s.shift]
	now := s.lockOne(sh)
	at, kept := sh.find(hash, c.Zone, c.Key, c.Shadow)
	s.updateIn(sh, hash, at, kept, c, now, reserved, f)
}

// updateIn changes the state of a bucket in its shard, which is locked, and unlocks it. The bucket is
// in a slot if it is kept. With no room for a new one it makes room, and then begins anew.
func (s *Store) updateIn(sh *shard, hash uint64, at int, kept bool, c *leakybucket.Charge, now leakybucket.Instant, reserved int, f change) {
	var state leakybucket.State
	if kept {
		sh.slots[at].state(&state)
	}
	state, write := f(state, kept, now)
	done := true
	if write && !kept {
		done = s.create(sh, hash, c, &state, now, reserved)
	} else {
		if write {
			sh.write(at, c, &state)
		}
		s.room.release(reserved)
	}
	sh.mu.Unlock()
	if !done {
		s.makeRoom(1)
		s.update(c, reserved+1, f)
		s.trim()
	}
}

// Put replaces the state of the bucket of c, exactly as given: nothing is brought
// up to date. It serves to remember what another store said of its buckets. The
// instants of state are on this store's clock, see [Store.Now].
//
// An invalid state is ignored, and so is a bucket whose key is too long.
func (s *Store) Put(c *leakybucket.Charge, state leakybucket.State) {
	if tooLong(c.Zone, c.Key) || !(0 <= state.Level && state.Level <= math.MaxFloat64) || !(0 <= state.Leak && state.Leak <= math.MaxFloat64) {
		return
	}
	s.update(c, 0, func(leakybucket.State, bool, leakybucket.Instant) (leakybucket.State, bool) { return state, true })
}

// State returns the state of the bucket of c as it was last written. Without a
// bucket it is the zero State.
func (s *Store) State(c *leakybucket.Charge) (state leakybucket.State) {
	s.ifKept(c, func(sh *shard, at int) { sh.slots[at].state(&state) })
	return state
}

// ifKept calls f with the slot of a bucket in its shard, which is locked.
func (s *Store) ifKept(c *leakybucket.Charge, f func(sh *shard, at int)) {
	hash := s.hasher.charge(c)
	sh := &s.shards[hash>>s.shift]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if at, kept := sh.find(hash, c.Zone, c.Key, c.Shadow); kept {
		f(sh, at)
	}
}

// AnyBlock reports, without a lock, whether any bucket may be blocked.
func (s *Store) AnyBlock() bool { return s.after(&s.room.blocks.last) }

// MayBlock reports, without a lock, whether a bucket of a zone, or of any zone if that is empty, may
// be blocked. It misses none, and takes few others for blocked.
func (s *Store) MayBlock(zone, key string) bool {
	return s.room.blocks.last.Load() != 0 && s.after(s.room.blocks.end(zone, key))
}

// after reports whether an instant is to come.
func (s *Store) after(at *atomic.Int64) bool {
	end := at.Load()
	return end != 0 && end > int64(s.now())
}

// Known returns what a probe of a charge's bucket finds, but begins no block. Nobody else need
// be asked, so current is true.
func (s *Store) Known(c *leakybucket.Charge) (d leakybucket.Decision, current bool) {
	state, probe := s.State(c), *c
	probe.Cost, probe.Probe = -1, true
	probe.Take(&state, s.now(), &d)
	return d, true
}

// Now returns the instant on the store's clock.
func (s *Store) Now() leakybucket.Instant { return s.now() }

// Reset implements [store.Resetter].
func (s *Store) Reset(_ context.Context, zone, key string, shadow bool) error {
	s.ifKept(&leakybucket.Charge{Zone: zone, Key: key, Shadow: shadow}, (*shard).remove)
	return nil
}

// Shed forgets all buckets that may be forgotten, a little at a time. Memory
// stays bounded without it, by Options.MaxBuckets: a full table looks for what
// was empty for a minute, and a store that is half full for all that is empty.
// Called now and then, it gives memory back after traffic has ended.
func (s *Store) Shed() {
	for i := range s.shards {
		for next, more := 0, true; more; {
			next, more = s.shards[i].shed(next, s.now)
		}
	}
}

// Buckets returns the number of buckets of each zone, shadow ones included. A bucket that is
// empty counts until it is forgotten.
func (s *Store) Buckets() map[string]int {
	total := make(map[string]int)
	for i := range s.shards {
		s.shards[i].addCounts(total)
	}
	return total
}

// Evictions returns how many buckets were dropped so far that were not yet empty.
func (s *Store) Evictions() uint64 { return s.room.evictions.Load() }

func (s *Store) now() leakybucket.Instant {
	if s.clock != nil {
		return s.clock()
	}
	return s.epoch + leakybucket.Instant(time.Since(s.base).Microseconds())
}

// A hasher hashes the name of a bucket. It is seeded, so that no client can choose
// keys that meet in one shard. The upper bits of a hash choose the shard, the lower
// half the place in its table, and bits between them are the tag.
type hasher struct{ zone, key maphash.Seed }

func (h hasher) charge(c *leakybucket.Charge) uint64 {
	zone := maphash.String(h.zone, c.Zone)
	if c.Shadow {
		zone = ^zone
	}
	return zone ^ maphash.String(h.key, c.Key)
}

// charges appends the hashes of several charges.
func (h hasher) charges(charges []leakybucket.Charge, hashes []uint64) []uint64 {
	for i := range charges {
		hashes = append(hashes, h.charge(&charges[i]))
	}
	return hashes
}

// Interface guards
var (
	_ leakybucket.Store = (*Store)(nil)
	_ store.Resetter    = (*Store)(nil)
	_ store.Lister      = (*Store)(nil)
)
