package storetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// model plays random takes on the store and on a map at once. Every decision
// must be the one of leakybucket.TakeAll.
func model(tb testing.TB, open Open) {
	seeds, steps := 20, 1000
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		m := &modeller{
			subject: beginHeld(tb, open, Need{}),
			rng:     rand.New(rand.NewPCG(uint64(seed), 0)),
			buckets: make(map[string]*modelled),
		}
		for step := range steps {
			m.moveClock()
			if !m.step() {
				m.Fatalf("step %d of seed %d differs from leakybucket.TakeAll", step, seed)
			}
		}
	}
}

type modeller struct {
	*subject
	rng     *rand.Rand
	elapsed time.Duration // of the clock, since the epoch
	buckets map[string]*modelled
}

type modelled struct {
	leakybucket.State
	limit  leakybucket.Limit   // of the last write
	forget leakybucket.Instant // noted at the last write, as a store does
	latest leakybucket.Instant // of the clock, since the last write
}

// The limits of a key are some of modelLimits, at a scale of its own.
var (
	modelLimits = []leakybucket.Limit{limit(10, 1), limit(10, 0.1), limit(4, 2), limit(30, 7), limit(12, 5), limit(25, 1e-2)}
	modelScales = []float64{1, 1, 1. / 3, 1e-6, 1e9}
)

// moveClock goes forward as a rule, and sometimes back, or far either way.
func (m *modeller) moveClock() {
	move := time.Duration(0)
	switch m.rng.IntN(20) {
	case 0:
		move = -time.Duration(m.rng.Int64N(int64(time.Second)))
	case 1:
		move = -time.Duration(m.rng.Int64N(int64(time.Minute)))
	case 2, 3:
		move = time.Duration(m.rng.Int64N(int64(time.Minute)))
	case 4, 5, 6, 7, 8, 9, 10, 11:
		move = time.Duration(m.rng.Int64N(int64(time.Second)))
	}
	m.elapsed += move.Truncate(time.Microsecond)
	m.at(m.elapsed)
	for _, b := range m.buckets {
		b.latest = max(b.latest, m.now)
	}
}

// step takes a few charges, and reports whether store and model agree.
func (m *modeller) step() bool {
	var all []leakybucket.Charge
	for range 1 + m.rng.IntN(4) {
		if more := append(all, m.charge(all)); !m.undecided(more) {
			all = more
		}
	}
	states := make([]leakybucket.State, len(all))
	for i, c := range all {
		states[i] = m.bucket(c).State
	}
	wants := make([]leakybucket.Decision, len(all))
	leakybucket.TakeAll(all, states, m.now, wants)
	for i, c := range all {
		if wants[i].Poured || states[i] != m.bucket(c).State {
			m.buckets[bucketOf(c)] = &modelled{states[i], c.Limit, c.Limit.Forget(states[i]), m.now}
		}
	}
	agree := true
	for i, d := range m.decide(all) {
		if err := m.compare(all[i].Limit, d, want{outcomeOf(wants[i]), wants[i].Level}); err != nil {
			m.Errorf("charge %d of %d, %s, %v after the start: %v", i+1, len(all), describe(all[i]), m.elapsed, err)
			agree = false
		}
	}
	return agree
}

// bucket returns the bucket of a charge, an empty one if there is none.
func (m *modeller) bucket(c leakybucket.Charge) *modelled {
	if b, kept := m.buckets[bucketOf(c)]; kept {
		return b
	}
	return &modelled{limit: c.Limit}
}

func (m *modeller) charge(beside []leakybucket.Charge) leakybucket.Charge {
	key := m.rng.IntN(len(modelScales))
	l := modelLimits[m.rng.IntN(len(modelLimits))]
	c := charge(fmt.Sprint("k", key), limit(l.Capacity*modelScales[key], l.Leak*modelScales[key]), 0)
	c.Shadow = m.rng.IntN(4) == 0
	b := m.bucket(c)
	if b.forgettable() {
		c.Limit = b.limit
	}
	for _, other := range beside {
		if bucketOf(other) == bucketOf(c) {
			c.Limit = other.Limit // a bucket has one limit at a time
		}
	}
	switch m.rng.IntN(10) {
	case 0: // costs nothing
	case 1:
		c.Cost = c.Limit.Capacity
	case 2:
		c.Cost = c.Limit.Capacity * 1.5
	case 3:
		c.Cost = c.Limit.Remaining(c.Limit.Level(b.State, m.now)) / 2
	default:
		c.Cost = c.Limit.Capacity * m.rng.Float64() / 4
	}
	return c
}

// forgettable reports whether a store may have forgotten the bucket, which was
// empty once by the limit of its last write. By a slower leak or an earlier
// clock that can be told.
func (b *modelled) forgettable() bool { return b.forget <= b.latest }

// undecided reports whether a store may answer the last charge either way.
func (m *modeller) undecided(all []leakybucket.Charge) bool {
	c := all[len(all)-1]
	b := m.bucket(c)
	level := c.Limit.Level(b.State, m.now)
	if b.forgettable() && (level > 0 || b.At > m.now) {
		return true
	}
	sum := 0.0
	for _, other := range all {
		if bucketOf(other) == bucketOf(c) {
			sum += other.Cost
		}
	}
	edge := c.Limit.Capacity * (1 + 1e-9)
	if sum == 0 {
		edge = c.Limit.Capacity
	}
	return math.Abs(level+sum-edge) <= tolerance(c.Limit)
}
