package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// blockWant is what TakeAll must say of one charge's block, and of its bucket
// afterwards, whose leak is the charge's wherever the state was written.
type blockWant struct {
	became became
	poured bool
	until  float64 // seconds
	after  State
}

func runTakeAllBlocks(t *testing.T, charges []Charge, states []State, wants []blockWant) {
	t.Helper()
	decisions := make([]Decision, len(charges))
	for i := range decisions {
		decisions[i] = Decision{Level: nan, BlockedUntil: -1, Began: true}
	}
	before := slices.Clone(states)
	TakeAll(charges, states, at(1000), decisions)
	for i, w := range wants {
		d := decisions[i]
		if w.poured || w.after != before[i] {
			w.after.Leak = charges[i].Limit.Leak
		}
		if got := (blockWant{becameOf(d), d.Poured, float64(d.BlockedUntil) / 1e6, states[i]}); got != w {
			t.Errorf("charge %d of %d, cost %v to %q: got %+v, want %+v", i+1, len(charges), charges[i].Cost, charges[i].Key, got, w)
		}
	}
}

// to returns a charge that is as c, to another bucket.
func to(c Charge, key string, cost float64) Charge {
	c.Key, c.Cost = key, cost
	return c
}

func TestEachOfManyBeginsItsOwnBlock(t *testing.T) {
	c := blocking(ladder(time.Minute))
	hour := blocking(ladder(time.Hour))
	full, fullBlocked := State{Level: 10, At: at(1000)}, State{Level: 10, At: at(1000), BlockedUntil: at(1060)}
	runTakeAllBlocks(t,
		[]Charge{to(c, "a", 1), to(hour, "b", 1), to(c, "c", 1), to(c, "d", 11), enforced("e", 1), to(c, "f", 1)},
		[]State{full, full, {}, full, full, fullBlocked},
		[]blockWant{
			{began, false, 1060, fullBlocked},
			{began, false, 4600, State{Level: 10, At: at(1000), BlockedUntil: at(4600)}},
			{fitted, false, 0, State{}}, // held back by the others
			{overflowed, false, 0, full},
			{overflowed, false, 0, full},
			{blocked, false, 1060, fullBlocked},
		})
}

func TestABlockedBucketHoldsBackWhatIsBesideIt(t *testing.T) {
	c := blocking(ladder(time.Minute))
	empty := State{BlockedUntil: at(1030)}
	runTakeAllBlocks(t, []Charge{to(c, "a", 1), to(c, "b", 1)}, []State{empty, {}}, []blockWant{
		{blocked, false, 1030, empty},
		{fitted, false, 0, State{}},
	})
	probe := to(c, "a", 1)
	probe.Probe = true
	runTakeAllBlocks(t, []Charge{to(c, "b", 1), probe}, []State{{}, empty}, []blockWant{
		{fitted, false, 0, State{}},
		{blocked, false, 1030, empty},
	})
}

func TestAShadowBlockHoldsBackNothingButItself(t *testing.T) {
	c := blocking(ladder(time.Minute))
	shadowed := to(c, "a", 1)
	shadowed.Shadow = true
	full, poured := State{Level: 10, At: at(1000)}, State{Level: 1, At: at(1000)}
	fullBlocked := State{Level: 10, At: at(1000), BlockedUntil: at(1060)}
	runTakeAllBlocks(t, []Charge{shadowed, to(c, "a", 1)}, []State{full, {}}, []blockWant{
		{began, false, 1060, fullBlocked},
		{fitted, true, 0, poured},
	})
	runTakeAllBlocks(t, []Charge{to(c, "a", 1), shadowed}, []State{{}, fullBlocked}, []blockWant{
		{fitted, true, 0, poured},
		{blocked, false, 1060, fullBlocked},
	})
	runTakeAllBlocks(t, []Charge{shadowed, to(c, "a", 1)}, []State{full, full}, []blockWant{
		{began, false, 1060, fullBlocked},
		{began, false, 1060, fullBlocked},
	})
}

func TestChargesToOneBucketBeginOneBlock(t *testing.T) {
	c := blocking(ladder(time.Minute, time.Hour))
	half := State{Level: 5, At: at(1000)}
	halfBlocked := State{Level: 5, At: at(1000), BlockedUntil: at(1060)}
	runTakeAllBlocks(t, []Charge{to(c, "a", 3), to(c, "b", 1), to(c, "a", 3)}, []State{half, {}, half}, []blockWant{
		{began, false, 1060, halfBlocked},
		{fitted, false, 0, State{}},
		{blocked, false, 1060, halfBlocked},
	})
	// Together they could never fit.
	runTakeAllBlocks(t, []Charge{to(c, "a", 6), to(c, "a", 6)}, []State{half, half}, []blockWant{
		{overflowed, false, 0, half},
		{overflowed, false, 0, half},
	})
	// One that is no amount begins none, and keeps no other from it.
	runTakeAllBlocks(t, []Charge{to(c, "a", -2), to(c, "a", 6), to(c, "a", -1)}, []State{half, half, half}, []blockWant{
		{overflowed, false, 0, half},
		{began, false, 1060, halfBlocked},
		{blocked, false, 1060, halfBlocked},
	})
	runTakeAllBlocks(t, []Charge{to(c, "a", nan), to(c, "a", 6)}, []State{half, half}, []blockWant{
		{overflowed, false, 0, half},
		{overflowed, false, 0, half}, // their sum is no amount either
	})
}

// Of two charges to a bucket one may fit beneath its ceiling and the other not.
func TestOneOfTwoChargesToABucketBeginsABlock(t *testing.T) {
	fits := blocking(ladder(time.Minute))
	overflows := fits
	overflows.Ceiling = 3
	half := State{Level: 5, At: at(1000)}
	halfBlocked := State{Level: 5, At: at(1000), BlockedUntil: at(1060)}
	runTakeAllBlocks(t, []Charge{fits, overflows}, []State{half, half}, []blockWant{
		{fitted, false, 0, half},
		{began, false, 1060, halfBlocked},
	})
	runTakeAllBlocks(t, []Charge{overflows, fits}, []State{half, half}, []blockWant{
		{began, false, 1060, halfBlocked},
		{blocked, false, 1060, halfBlocked},
	})
}

// As TestTakeAllOfOneIsTake says, for all that Limit.Take does not know.
func TestTakeAllOfOneChargeIsItsTake(t *testing.T) {
	for _, l := range []*Ladder{nil, ladder(), ladder(time.Second, time.Minute)} {
		for _, cost := range []float64{0, 1, 5, 10, 11, -1, nan, inf} {
			for _, level := range []float64{0, 5, 10, 20} {
				for _, until := range []float64{0, 999.5, 1000, 1000.5, 1001, 1050, 2000} {
					for _, then := range []float64{990, 1000, 1005, 2000} {
						c := blocking(l)
						c.Cost, c.Ceiling, c.Probe = cost, level/2, until == 1050
						s := State{Level: level, At: at(then), BlockedUntil: at(until)}
						var d, dd [1]Decision
						states := []State{s}
						c.Take(&s, at(1000), &d[0])
						TakeAll([]Charge{c}, states, at(1000), dd[:])
						if d != dd || states[0] != s {
							t.Errorf("%s: got %+v and %+v together, want %+v and %+v as alone", fmt.Sprint(c), dd, states[0], d, s)
						}
					}
				}
			}
		}
	}
}
