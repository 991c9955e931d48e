package storetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// model plays random takes and settlements on the store and on a map at once.
// Every decision must be the one of store.TakeAll, after what was settled
// by Settlement.Apply.
func model(tb testing.TB, open Open) {
	seeds, steps := check.OrShort(20, 2), check.OrShort(1000, 500)
	for seed := range seeds {
		m := &modeller{
			subject: beginHeld(tb, open, Need{}),
			rng:     rand.New(rand.NewPCG(uint64(seed), 0)),
			buckets: make(map[string]*modelled),
		}
		for step := range steps {
			m.moveClock()
			if !m.step() {
				m.Fatalf("step %d of seed %d differs from store.TakeAll and Settlement.Apply", step, seed)
			}
		}
	}
}

type modeller struct {
	*subject
	rng     *rand.Rand
	elapsed time.Duration // of the clock, since the epoch
	buckets map[string]*modelled
	open    []charged // not yet settled
}

// charged is what became of a charge by the store and by the model, which may
// differ by a rounding.
type charged struct {
	leakybucket.Charge
	store, model leakybucket.Decision
}

type modelled struct {
	leakybucket.State
	block  *leakybucket.Ladder // of the last write
	forget leakybucket.Instant // noted at the last write, as a store does
	latest leakybucket.Instant // of the clock, since the last write
	stale  bool                // a store may have forgotten its last block
}

// The limits of a key are some of modelLimits, at a scale of its own.
var (
	modelLimits = []leakybucket.Limit{limit(10, 1), limit(10, 0.1), limit(4, 2), limit(30, 7), limit(12, 5), limit(25, 1e-2)}
	modelScales = []float64{1, 1, 1. / 3, 1e-6, 1e9}

	// A key has the one of its number as a rule.
	modelLadders = []*leakybucket.Ladder{
		nil,
		{},
		{Steps: []time.Duration{2 * time.Second}},
		{Steps: []time.Duration{300 * time.Millisecond, 3 * time.Second, 45 * time.Second}},
		{Steps: []time.Duration{1_234_567 * time.Microsecond, 20 * time.Second}},
	}
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
	decided, agree := m.play(all)
	m.open = append(m.open, decided...)
	return agree
}

// play takes all charges, and reports whether store and model agree.
func (m *modeller) play(all []leakybucket.Charge) (decided []charged, agree bool) {
	states := make([]leakybucket.State, len(all))
	for i, c := range all {
		states[i] = m.bucket(c).State
	}
	wants := make([]leakybucket.Decision, len(all))
	store.TakeAll(all, states, m.now, wants)
	for i, c := range all {
		if wants[i].Poured || states[i] != m.bucket(c).State {
			m.write(c, states[i])
		}
	}
	agree = true
	for i, d := range m.decide(all) {
		decided = append(decided, charged{all[i], d, wants[i]})
		if err := m.compare(all[i], d, want{outcomeOf(wants[i]), wants[i].Level}); err != nil {
			m.Errorf("charge %d of %d, %s, %v after the start: %v", i+1, len(all), describe(all[i]), m.elapsed, err)
			agree = false
		}
		if d.Step != wants[i].Step {
			m.Errorf("charge %d of %d, %s, %v after the start: got step %d, want %d", i+1, len(all), describe(all[i]), m.elapsed, d.Step, wants[i].Step)
			agree = false
		}
	}
	return decided, agree
}

func (m *modeller) write(c leakybucket.Charge, state leakybucket.State) {
	old := m.bucket(c)
	stale := state.BlockedUntil == old.BlockedUntil && (old.stale || old.forgettable())
	m.buckets[bucketOf(c)] = &modelled{state, c.Block, store.Expiry(&c, &state), m.now, stale}
}

// settleSome settles a few charges in one call, and asks how full their buckets
// are then.
func (m *modeller) settleSome() bool {
	var all []leakybucket.Settlement
	for range min(len(m.open), 1+m.rng.IntN(3)) {
		i := m.rng.IntN(len(m.open))
		if m.rng.IntN(3) == 0 {
			i = len(m.open) - 1 // nothing may have been poured since
		}
		was := m.open[i]
		m.open = slices.Delete(m.open, i, i+1)
		if m.forgotten(was.Charge) || m.onEdge(was.Charge) {
			continue
		}
		settled := leakybucket.Settlement{Charge: was.Charge, Was: was.model, Diff: m.diff(was.Charge), Cancel: m.rng.IntN(3) == 0}
		if _, kept := m.buckets[bucketOf(settled.Charge)]; kept || settled.Creates() {
			m.write(settled.Charge, settled.Apply(m.bucket(settled.Charge).State, m.now))
		}
		settled.Was = was.store
		all = append(all, settled)
	}
	m.settle(all...)
	m.open = m.open[max(0, len(m.open)-50):] // what is left over stays as it was charged
	agree := true
	for _, settled := range all {
		c := settled.Charge
		c.Probe, c.Cost = true, 2*c.Limit.Capacity // never fits
		if !m.forgotten(c) && !m.onEdge(c) {
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
	return &modelled{}
}

func (m *modeller) charge(beside []leakybucket.Charge) leakybucket.Charge {
	key := m.rng.IntN(len(modelScales))
	l := modelLimits[m.rng.IntN(len(modelLimits))]
	c := charge(fmt.Sprint("k", key), limit(l.Capacity*modelScales[key], l.Leak*modelScales[key]), 0)
	c.Shadow = m.rng.IntN(3) == 0
	c.Probe = m.rng.IntN(6) == 0
	c.Block = modelLadders[key]
	if m.rng.IntN(6) == 0 {
		c.Block = modelLadders[m.rng.IntN(len(modelLadders))]
	}
	b := m.bucket(c)
	c.Debt = c.Limit.Capacity * []float64{0, 0.5, 1, 3}[m.rng.IntN(4)]
	for _, other := range beside {
		if bucketOf(other) == bucketOf(c) {
			c.Limit, c.Debt, c.Block = other.Limit, other.Debt, other.Block // a bucket has one of each at a time
		}
	}
	switch m.rng.IntN(10) {
	case 0: // costs nothing; a store need not write such a take, and later decisions may tell
		c.Probe = true
	case 1:
		c.Cost = c.Limit.Capacity
	case 2:
		c.Cost = c.Limit.Capacity * 1.5
	case 3:
		c.Cost = c.Limit.Remaining(c.Limit.Level(b.State, m.now)) / 2
	case 4, 5: // overflows, and is not oversize
		c.Cost = min(c.Limit.Capacity, c.Limit.Remaining(c.Limit.Level(b.State, m.now))+c.Limit.Capacity/10)
	default:
		c.Cost = c.Limit.Capacity * m.rng.Float64() / 4
	}
	if m.rng.IntN(4) == 0 {
		c.Ceiling = c.Limit.Ceiling(c.Cost, c.Limit.Capacity*m.rng.Float64(), time.Second)
	}
	return c
}

// forgettable reports whether a store may have forgotten the bucket, which was
// empty once since its last write. By an earlier clock that can be told.
func (b *modelled) forgettable() bool { return b.forget <= b.latest }

// forgotten reports whether it can be told that a store has forgotten the
// bucket, if it has.
func (m *modeller) forgotten(c leakybucket.Charge) bool {
	b := m.bucket(c)
	if b.forgettable() && (c.Limit.Level(b.State, m.now) > 0 || b.At > m.now) {
		return true
	}
	return (b.forgettable() || b.stale) && b.BlockedUntil != 0 && c.Block != nil && m.now < b.BlockedUntil+stepOf(c, b.State)
}

// stepOf returns how long the block of a bucket is by the charge's ladder, or 0
// if that is not given.
func stepOf(c leakybucket.Charge, s leakybucket.State) leakybucket.Instant {
	if len(c.Block.Steps) == 0 {
		return 0
	}
	return leakybucket.Instant(0).Add(c.Block.Steps[min(int(s.Step), len(c.Block.Steps)-1)])
}

// onEdge reports whether a rounding decides if a block runs, or is further
// ahead than it can be, or is long enough ago.
func (m *modeller) onEdge(c leakybucket.Charge) bool {
	b := m.bucket(c)
	if b.BlockedUntil == 0 || c.Block == nil {
		return false
	}
	edges := []leakybucket.Instant{0}
	if length := stepOf(c, b.State); length == 0 {
		edges = append(edges, leakybucket.Instant((c.Limit.Capacity+c.Debt)/c.Limit.Leak*1e6))
	} else if edges = append(edges, -length); b.block != c.Block {
		edges = append(edges, length) // a block that begins now is just as long as it can be
	}
	for _, edge := range edges {
		if off := b.BlockedUntil - m.now - edge; -5 <= off && off <= 5 {
			return true
		}
	}
	return false
}

// undecided reports whether a store may answer one of the charges either way,
// of which all but the last are decided if they stand alone.
func (m *modeller) undecided(all []leakybucket.Charge) bool {
	c := all[len(all)-1]
	if m.forgotten(c) || m.onEdge(c) {
		return true
	}
	level := c.Limit.Level(m.bucket(c).State, m.now)
	sum := 0.0
	for _, other := range all {
		if bucketOf(other) == bucketOf(c) {
			sum += other.Cost
		}
	}
	for _, other := range all {
		if bucketOf(other) != bucketOf(c) {
			continue
		}
		edge := c.Limit.WithCeiling(other.Ceiling).Capacity
		if sum > 0 {
			edge *= 1 + 1e-9
		}
		if math.Abs(level+sum-edge) <= tolerance(c.Limit) {
			return true
		}
	}
	return false
}
