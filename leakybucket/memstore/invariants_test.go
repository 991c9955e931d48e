package memstore

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

// mustBeSound goes through a whole store and fails the test at the first thing
// that must not be. Nothing else may use the store meanwhile.
func mustBeSound(t *testing.T, s *Store) {
	t.Helper()
	if used, most := s.room.used.Load(), s.room.most.Load(); used != int64(buckets(s)) || used > most {
		t.Fatalf("got %d buckets counted, want %d, and %d at most", used, buckets(s), most)
	}
	for i := range s.shards {
		sh := &s.shards[i]
		for _, check := range checks {
			if err := check(sh); err != nil {
				t.Fatalf("shard %d of %d, with %d buckets in %d slots: %v",
					i, len(s.shards), sh.count, len(sh.slots), err)
			}
		}
		for at := range sh.used() {
			c := sh.charge(at)
			hash := s.hasher.charge(c)
			if hash>>s.shift != uint64(i) || sh.slots[at].hash != uint32(hash) || sh.tags[at] != tagOf(hash) {
				t.Fatalf("bucket %q/%.40q: got it in shard %d, slot %+v with tag %x, want them by its hash %x", c.Zone, c.Key, i, sh.slots[at], sh.tags[at], hash)
			}
			until, ends := int64(sh.slots[at].stateOf().BlockedUntil), &s.room.blocks
			if known := min(ends.last.Load(), ends.end(c.Zone, c.Key).Load(), ends.end("", c.Key).Load()); known < until {
				t.Fatalf("bucket %q/%.40q: got an end of blocks at %d, want none before %d", c.Zone, c.Key, known, until)
			}
		}
	}
}

// used goes through the slots that keep a bucket.
func (sh *shard) used() func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for at, tag := range sh.tags {
			if tag != 0 && !yield(at) {
				return
			}
		}
	}
}

// charge returns one that names the bucket of a slot.
func (sh *shard) charge(at int) *leakybucket.Charge {
	s := &sh.slots[at]
	zone, key := sh.spelled(s)
	return &leakybucket.Charge{Zone: zone, Key: string(key), Shadow: s.zone&shadowBit != 0}
}

// checkTable: every bucket is found where it is, and some slots are free.
func checkTable(sh *shard) error {
	if n := len(sh.tags); n != len(sh.slots) || 8*sh.count > 7*n {
		return fmt.Errorf("got %d tags and %d slots for %d buckets, want as many, at most seven eighths in use", n, len(sh.slots), sh.count)
	}
	count := 0
	for want := range sh.used() {
		count++
		for at := sh.home(sh.slots[want].hash); at != want; at = sh.after(at) {
			if sh.tags[at] == 0 {
				return fmt.Errorf("slot %d: got a gap at %d between it and its home, want none", want, at)
			}
		}
		if level := sh.slots[want].level; !(level >= 0) {
			return fmt.Errorf("slot %d: got level %v, want 0 or more", want, level)
		}
		if s := sh.slots[want].stateOf(); s.BlockedUntil == 0 && s.Step != 0 {
			return fmt.Errorf("slot %d: got step %d of no block, want 0", want, s.Step)
		}
	}
	if count != sh.count {
		return fmt.Errorf("got %d slots in use and %d buckets", count, sh.count)
	}
	for at, tag := range sh.tags {
		if tag == 0 && sh.slots[at] != (slot{}) {
			return fmt.Errorf("slot %d: got %+v where it is free, want nothing", at, sh.slots[at])
		}
	}
	return nil
}

// checkBounds: no bucket may be forgotten before what is known of its group.
func checkBounds(sh *shard) error {
	if want := (len(sh.tags) + groupSlots - 1) / groupSlots; len(sh.soonest) != want {
		return fmt.Errorf("got %d bounds, want %d", len(sh.soonest), want)
	}
	for at := range sh.used() {
		if forget, bound := sh.slots[at].forget(), sh.soonest[at/groupSlots]; forget < bound {
			return fmt.Errorf("slot %d: got a bucket that may be forgotten at %d, want none before %d", at, forget, bound)
		}
	}
	for i, soonest := range sh.soonest {
		if first := sh.room.soonest[sh.number].Load(); int64(soonest) < first {
			return fmt.Errorf("group %d: got a bound of %d, want none before %d, the shard's", i, soonest, first)
		}
	}
	return nil
}

// checkNames: no two buckets have one name, and each byte of names belongs to one
// bucket or is dead.
func checkNames(sh *shard) error {
	type span struct{ from, to int }
	var spans []span
	live := 0
	for at := range sh.used() {
		s := &sh.slots[at]
		if length := int(s.key); !s.inside() {
			spans = append(spans, span{s.offset(), s.offset() + length})
			live += length
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return a.from + a.to - b.from - b.to })
	end := 0
	for _, s := range spans {
		if s.from < end || s.to > len(sh.names) {
			return fmt.Errorf("got a name in bytes %d to %d of %d, want it behind %d", s.from, s.to, len(sh.names), end)
		}
		end = s.to
	}
	if live+sh.dead != len(sh.names) {
		return fmt.Errorf("got %d bytes of names, %d live and %d dead", len(sh.names), live, sh.dead)
	}
	names := make(map[leakybucket.Charge]bool, sh.count)
	for at := range sh.used() {
		c := sh.charge(at)
		if names[*c] {
			return fmt.Errorf("bucket %s/%.40q: got it twice, want once", c.Zone, c.Key)
		}
		names[*c] = true
		if found, kept := sh.find(uint64(sh.tags[at])<<32|uint64(sh.slots[at].hash), c.Zone, c.Key, c.Shadow); !kept || found != at {
			return fmt.Errorf("bucket %s/%.40q: got it found %v in slot %d, want slot %d", c.Zone, c.Key, kept, found, at)
		}
	}
	return nil
}

// checkZones: the buckets of each zone are as many as are counted.
func checkZones(sh *shard) error {
	want := make(map[string]int)
	for at := range sh.used() {
		want[sh.charge(at).Zone]++
	}
	got := make(map[string]int)
	sh.addCounts(got)
	if !maps.Equal(got, want) {
		return fmt.Errorf("got zones counted as %v, want %v", got, want)
	}
	return nil
}

var checks = []func(*shard) error{checkTable, checkBounds, checkNames, checkZones}

// stateOf returns the state of a slot.
func (s slot) stateOf() (state leakybucket.State) {
	s.state(&state)
	return state
}

// TestLevels: the short form of a decision does as the long one.
func TestLevels(t *testing.T) {
	seed := testseed.Of(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range 100_000 {
		c := leakybucket.Charge{Limit: leakybucket.Limit{Capacity: math.Exp(20 * rng.NormFloat64()), Leak: math.Exp(20 * rng.NormFloat64())}}
		s := leakybucket.State{Level: c.Limit.Capacity * 1.2 * rng.Float64(), At: 1e15, Leak: c.Limit.Leak}
		now := s.At + leakybucket.Instant(1e6*min(1e12, rng.ExpFloat64()*s.Level/s.Leak))
		c.Cost = max(0, c.Limit.Capacity-c.Limit.Level(s, now)) * []float64{0, 0.5, 1, 1 + 1e-9, 2, math.NaN(), math.Inf(1), -1}[rng.IntN(8)]
		if rng.IntN(8) == 0 {
			c.Ceiling = c.Limit.Capacity * rng.Float64()
		}
		sh := shard{slots: []slot{{level: s.Level, at: s.At, leak: s.Leak}}, soonest: []leakybucket.Instant{-never}, room: new(room)}
		found, fits := sh.takePlain(0, c.Limit.WithCeiling(c.Ceiling), c.Cost, now)
		got, want := leakybucket.Decision{Level: found, At: now, Fits: fits, Poured: fits}, leakybucket.Decision{}
		c.Take(&s, now, &want)
		if got != want || sh.slots[0].stateOf() != s {
			t.Fatalf("seed %d, step %d, %+v: got %+v, %+v, want %+v, %+v", seed, i, c, got, sh.slots[0], want, s)
		}
	}
}

// A sequence does random things to a store, and knows from what the store held
// before what it must say and hold afterwards.
type sequence struct {
	t     *testing.T
	rng   *rand.Rand
	store *Store
	now   leakybucket.Instant
	most  int
	open  []leakybucket.Settlement // of some that were poured
}

const mostCharges = 10 // that are taken together

func TestRandomSequencesLeaveTheStoreSound(t *testing.T) {
	oneByOne(t)
	seed := testseed.Of(t)
	t.Logf("seed %d", seed)
	for _, test := range []struct{ most, steps, checkEvery int }{
		{1, 5000, 1}, {2, 5000, 1}, {7, 10_000, 1}, {64, 10_000, 1}, {300, 10_000, 5}, {5000, 60_000, 500},
	} {
		t.Run(fmt.Sprint("at most ", test.most), func(t *testing.T) {
			q := &sequence{
				t:     t,
				rng:   rand.New(rand.NewPCG(seed, uint64(test.most))),
				store: New(Options{MaxBuckets: test.most}),
				now:   1_700_000_000 * second,
				most:  test.most,
			}
			held(q.store, &q.now)
			for step := range test.steps {
				if step%test.checkEvery == 0 || step == test.steps-1 {
					q.checkedStep()
				} else {
					q.step()
				}
				check.Assume(t, !t.Failed(), "at step %d of %d", step, test.steps)
			}
			check.That(t, q.store.Evictions() != 0, "evictions: got none, want some")
		})
	}
}

// step does something, and returns the states in which it must leave those
// buckets that it has touched.
func (q *sequence) step() map[leakybucket.Charge]leakybucket.State {
	switch n := q.rng.IntN(1000); {
	case n < 500:
		return q.take(1)
	case n < 570:
		return q.settle()
	case n < 600:
		return q.reset()
	case n < 950:
		return q.take(2 + q.rng.IntN(mostCharges-1))
	case n < 985:
		q.now += leakybucket.Instant(q.rng.ExpFloat64() * float64(second))
	case n < 990:
		q.now -= leakybucket.Instant(q.rng.ExpFloat64() * 20 * float64(second))
	case n < 992:
		q.now += 100 * second // most of the buckets have drained by then
	case n < 994:
		q.store.Shed()
	default:
		q.store.SetMaxBuckets(1 + q.rng.IntN(2*q.most))
	}
	return nil
}

// checkedStep is a step after which the store must be sound, and must hold what
// it held before, but for what was written, forgotten and evicted.
func (q *sequence) checkedStep() {
	before, evictions := q.slots(), int(q.store.Evictions())
	touched := q.step()
	mustBeSound(q.t, q.store)
	after := q.slots()
	evictions = int(q.store.Evictions()) - evictions
	lost := 0
	for name, old := range before {
		slot, kept := after[name]
		state, wasTouched := touched[name]
		switch {
		case !kept && !wasTouched && old.forget > q.now:
			lost++
		case kept && !wasTouched && slot != old:
			q.t.Errorf("bucket %s/%.40q: got %+v, want %+v as it was", name.Zone, name.Key, slot, old)
		case kept && wasTouched && slot.state != state:
			q.t.Errorf("bucket %s/%.40q: got %+v, want %+v", name.Zone, name.Key, slot.state, state)
		}
	}
	for name, slot := range after {
		if _, known := before[name]; !known && slot.state != touched[name] {
			q.t.Errorf("new bucket %s/%.40q: got %+v, want %+v", name.Zone, name.Key, slot.state, touched[name])
		}
	}
	// A bucket that was touched may have been dropped, and more than once.
	if most := lost + min(len(touched), 1)*mostCharges; lost > evictions || evictions > most {
		q.t.Errorf("got %d live buckets gone and %d evictions, want from %d to %d", lost, evictions, lost, most)
	}
}

// A bucket is what a slot keeps, wherever it stands.
type bucket struct {
	state  leakybucket.State
	forget leakybucket.Instant
}

func (s *slot) bucket() bucket { return bucket{s.stateOf(), s.forget()} }

// slots returns all buckets by name.
func (q *sequence) slots() map[leakybucket.Charge]bucket {
	all := make(map[leakybucket.Charge]bucket)
	for i := range q.store.shards {
		sh := &q.store.shards[i]
		for at := range sh.used() {
			all[*sh.charge(at)] = sh.slots[at].bucket()
		}
	}
	return all
}

// slot returns what is kept of the bucket of c.
func (q *sequence) slot(c leakybucket.Charge) (bucket, bool) {
	hash := q.store.hasher.charge(&c)
	sh := &q.store.shards[hash>>q.store.shift]
	if at, kept := sh.find(hash, c.Zone, c.Key, c.Shadow); kept {
		return sh.slots[at].bucket(), true
	}
	return bucket{}, false
}

// take takes n charges at once, some of them to the same bucket.
func (q *sequence) take(n int) map[leakybucket.Charge]leakybucket.State {
	charges := make([]leakybucket.Charge, n)
	states := make([]leakybucket.State, n)
	for i := range charges {
		charges[i] = q.charge()
		for _, other := range charges[:i] {
			if name(other) == name(charges[i]) { // a bucket has one of each at a time
				charges[i].Limit, charges[i].Block = other.Limit, other.Block
			}
		}
		if i > 0 && q.rng.IntN(10) == 0 {
			charges[i] = charges[i-1]
			charges[i].Cost = q.cost(charges[i].Limit)
		}
		slot, _ := q.slot(charges[i])
		states[i] = slot.state
	}
	want := make([]leakybucket.Decision, n)
	store.TakeAll(charges, states, q.now, want)
	got := take(q.t, q.store, charges...)
	touched := make(map[leakybucket.Charge]leakybucket.State)
	for i, c := range charges {
		check.Equal(q.t, got[i], want[i], "cost %v to %s/%.40q", c.Cost, c.Zone, c.Key)
		touched[name(c)] = states[i]
	}
	last := charges[n-1]
	if slot, kept := q.slot(last); kept && (got[n-1].Poured || got[n-1].Began) && slot.forget != store.Expiry(&last, &states[n-1]) {
		q.t.Errorf("bucket %s/%.40q: got it forgotten at %d, want at %d, by %+v", last.Zone, last.Key, slot.forget, store.Expiry(&last, &states[n-1]), slot.state)
	}
	if i := q.rng.IntN(n); got[i].Poured {
		q.open = append(q.open[max(0, len(q.open)-20):], leakybucket.Settlement{Charge: charges[i], Was: got[i]})
	}
	return touched
}

// settle corrects or cancels one of the last charges.
func (q *sequence) settle() map[leakybucket.Charge]leakybucket.State {
	if len(q.open) == 0 {
		return nil
	}
	i := len(q.open) - 1 - q.rng.IntN(min(3, len(q.open)))
	s := q.open[i]
	q.open = append(q.open[:i:i], q.open[i+1:]...)
	s.Diff, s.Cancel = s.Charge.Cost*(3*q.rng.Float64()-1), q.rng.IntN(3) == 0
	state, kept := leakybucket.State{}, false
	if slot, is := q.slot(s.Charge); is {
		state, kept = slot.state, true
	}
	if kept || s.Diff > 0 && !s.Cancel {
		state = s.Apply(state, q.now)
	}
	check.NoError(q.t, q.store.Settle(context.Background(), []leakybucket.Settlement{s}), "settling %+v", s)
	return map[leakybucket.Charge]leakybucket.State{name(s.Charge): state}
}

// reset forgets a bucket that is there or not.
func (q *sequence) reset() map[leakybucket.Charge]leakybucket.State {
	c := q.charge()
	check.NoError(q.t, q.store.Reset(context.Background(), c.Zone, c.Key, c.Shadow), "resetting %s/%.40q", c.Zone, c.Key)
	if slot, kept := q.slot(c); kept {
		q.t.Errorf("bucket %s/%.40q after a reset: got %+v, want none", c.Zone, c.Key, slot)
	}
	return map[leakybucket.Charge]leakybucket.State{name(c): {}}
}

func name(c leakybucket.Charge) leakybucket.Charge {
	return leakybucket.Charge{Zone: c.Zone, Key: c.Key, Shadow: c.Shadow}
}

// charge returns one of about three times as many names as there is room for,
// a few of which are named half of the time, under one of several limits.
func (q *sequence) charge() leakybucket.Charge {
	i := q.rng.IntN(3*q.most + 3)
	if q.rng.IntN(2) == 0 {
		i = q.rng.IntN(q.most/8 + 1)
	}
	c := leakybucket.Charge{
		Zone:   []string{"", "a", "zone", strings.Repeat("z", 300)}[i%4],
		Key:    hostileKey(i),
		Shadow: i%5 == 0,
		Limit:  leakybucket.Limit{Capacity: 10, Leak: math.Pow(10, float64(q.rng.IntN(4))-2)},
	}
	c.Cost, c.Debt = q.cost(c.Limit), 5
	c.Probe = q.rng.IntN(10) == 0
	if q.rng.IntN(3) > 0 { // of a bucket the same, as a rule
		c.Block = ladders[(i+q.rng.IntN(11)/10)%len(ladders)]
	}
	if q.rng.IntN(4) == 0 {
		c.Ceiling = c.Limit.Capacity * q.rng.Float64() // so that empty buckets are blocked too
	}
	return c
}

var ladders = []*leakybucket.Ladder{
	nil,
	{},
	{Steps: []time.Duration{time.Second, 20 * time.Second}},
	{Steps: []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second, time.Minute}},
}

func (q *sequence) cost(l leakybucket.Limit) float64 {
	return []float64{0, 1e-3, 1, l.Capacity, 2 * l.Capacity, l.Capacity * q.rng.Float64()}[q.rng.IntN(6)]
}

// hostileKey returns keys that a client would think of, and that are alike.
func hostileKey(i int) string {
	number := fmt.Sprint(i / 12)
	switch i % 14 {
	case 0:
		return number
	case 1:
		return number + "\x00"
	case 2:
		return "\x00" + number
	case 3:
		return strings.Repeat("\x00", i/12%300)
	case 4:
		return "\xff\xfe" + number
	case 5:
		return "../" + number + "/%2F"
	case 6:
		return strings.Repeat("x", i/12%500)
	case 7:
		return strings.Repeat(number+" ", 20)
	case 8:
		return "é日本" + number
	case 9:
		return "@client_ip/" + number
	case 11:
		return fmt.Sprintf("@sha256:%064x", i)
	case 12:
		return fmt.Sprintf("@sha256:%064X", i<<4|10)
	case 10:
		return number + strings.Repeat("y", i%7*700) // more than fits a slot
	}
	return number + "\r\n{env.HOME}\x1b[2J"
}
