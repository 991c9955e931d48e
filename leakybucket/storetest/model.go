package storetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// model plays random takes and settlements on the store and on a map at once.
// Every decision must be the one of leakybucket.TakeAll, after what was settled
// by Settlement.Apply.
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
				m.Fatalf("step %d of seed %d differs from leakybucket.TakeAll and Settlement.Apply", step, seed)
			}
		}
	}
}

type modeller struct {
	*subject
	rng     *rand.Rand
	elapsed time.Duration // of the clock, since the epoch
	buckets map[string]*modelled
	open    []leakybucket.Settlement // of what was charged, not yet settled
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

// step takes or settles a few charges, and reports whether store and model
// agree.
func (m *modeller) step() bool {
	if m.rng.IntN(3) == 0 {
		return m.settleSome()
	}
	var all []leakybucket.Charge
	for range 1 + m.rng.IntN(4) {
		if more := append(all, m.charge(all)); !m.undecided(more) {
			all = more
		}
	}
	decisions, agree := m.play(all)
	for i, d := range decisions {
		m.open = append(m.open, leakybucket.Settlement{Charge: all[i], Was: d})
	}
	return agree
}

// play takes all charges, and reports whether store and model agree.
func (m *modeller) play(all []leakybucket.Charge) (decisions []leakybucket.Decision, agree bool) {
	states := make([]leakybucket.State, len(all))
	for i, c := range all {
		states[i] = m.bucket(c).State
	}
	wants := make([]leakybucket.Decision, len(all))
	leakybucket.TakeAll(all, states, m.now, wants)
	for i, c := range all {
		if wants[i].Poured || states[i] != m.bucket(c).State {
			m.write(c, states[i])
		}
	}
	decisions, agree = m.decide(all), true
	for i, d := range decisions {
		if err := m.compare(all[i], d, want{outcomeOf(wants[i]), wants[i].Level}); err != nil {
			m.Errorf("charge %d of %d, %s, %v after the start: %v", i+1, len(all), describe(all[i]), m.elapsed, err)
			agree = false
		}
	}
	return decisions, agree
}

func (m *modeller) write(c leakybucket.Charge, state leakybucket.State) {
	m.buckets[bucketOf(c)] = &modelled{state, c.Limit, c.Forget(state), m.now}
}

// settleSome settles a few charges in one call, and asks how full their buckets
// are then.
func (m *modeller) settleSome() bool {
	var all []leakybucket.Settlement
	for range min(len(m.open), 1+m.rng.IntN(3)) {
		i := m.rng.IntN(len(m.open))
		settled := m.open[i]
		m.open = slices.Delete(m.open, i, i+1)
		if m.forgotten(settled.Charge) {
			continue
		}
		settled.Diff = m.diff(settled.Charge)
		if _, kept := m.buckets[bucketOf(settled.Charge)]; kept || settled.Diff > 0 {
			m.write(settled.Charge, settled.Apply(m.bucket(settled.Charge).State, m.now))
		}
		all = append(all, settled)
	}
	m.settle(all...)
	m.open = m.open[max(0, len(m.open)-50):] // what is left over stays as it was charged
	agree := true
	for _, settled := range all {
		c := settled.Charge
		c.Probe, c.Cost = true, 2*c.Limit.Capacity // never fits
		if !m.forgotten(c) {
			_, alike := m.play(charges(c))
			agree = agree && alike
		}
	}
	return agree
}

func (m *modeller) diff(c leakybucket.Charge) float64 {
	switch m.rng.IntN(8) {
	case 0:
		return -c.Cost
	case 1:
		return -2 * c.Cost
	case 2:
		return 5 * c.Limit.Capacity
	}
	return c.Limit.Capacity * (m.rng.Float64() - 0.5)
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
	c.Shadow, c.Probe = m.rng.IntN(4) == 0, m.rng.IntN(6) == 0
	b := m.bucket(c)
	if b.forgettable() {
		c.Limit = b.limit
	}
	c.Debt = c.Limit.Capacity * []float64{0, 0.5, 1, 3}[m.rng.IntN(4)]
	for _, other := range beside {
		if bucketOf(other) == bucketOf(c) {
			c.Limit, c.Debt = other.Limit, other.Debt // a bucket has one limit at a time
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

// forgotten reports whether it can be told that a store has forgotten the
// bucket, if it has.
func (m *modeller) forgotten(c leakybucket.Charge) bool {
	b := m.bucket(c)
	return b.forgettable() && (c.Limit.Level(b.State, m.now) > 0 || b.At > m.now)
}

// undecided reports whether a store may answer the last charge either way.
func (m *modeller) undecided(all []leakybucket.Charge) bool {
	c := all[len(all)-1]
	if m.forgotten(c) {
		return true
	}
	level := c.Limit.Level(m.bucket(c).State, m.now)
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
