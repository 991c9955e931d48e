package store

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	. "github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

// want is what TakeAll must say of one charge, and of its bucket afterwards,
// whose leak is the charge's wherever the state was written.
type want struct {
	fits, poured bool
	before       float64
	after        State
}

func runTakeAll(t *testing.T, charges []Charge, states []State, now Instant, wants []want) {
	t.Helper()
	states = slices.Clone(states)
	decisions := make([]Decision, len(charges))
	before := slices.Clone(states)
	TakeAll(charges, states, now, decisions)
	for i, w := range wants {
		if w.poured || w.after.Level != before[i].Level {
			w.after.Leak = charges[i].Limit.Leak
		}
		got := want{decisions[i].Fits, decisions[i].Poured, decisions[i].Level, states[i]}
		if got != w || decisions[i].At != now {
			t.Errorf("charge %d of %d, cost %v to %q: got %+v at %d, want %+v at %d",
				i+1, len(charges), charges[i].Cost, charges[i].Key, got, decisions[i].At, w, now)
		}
	}
}

var tenSeconds = Limit{Capacity: 10, Leak: 1}

// enforced and shadow return charges to buckets of 10 at 1/s.
func enforced(key string, cost float64) Charge {
	return Charge{Zone: "zone", Key: key, Limit: tenSeconds, Cost: cost}
}

func shadow(key string, cost float64) Charge {
	c := enforced(key, cost)
	c.Shadow = true
	return c
}

func TestAllIsPouredOrNothing(t *testing.T) {
	states := []State{{Level: 4}, {Level: 9}}
	runTakeAll(t, []Charge{enforced("a", 1), enforced("b", 1)}, states, 0, []want{
		{true, true, 4, State{Level: 5, At: 0}},
		{true, true, 9, State{Level: 10, At: 0}},
	})
	runTakeAll(t, []Charge{enforced("a", 1), enforced("b", 2)}, states, 0, []want{
		{true, false, 4, State{Level: 4, At: 0}},
		{false, false, 9, State{Level: 9, At: 0}},
	})
	runTakeAll(t, []Charge{enforced("a", 1), enforced("b", 2)}, states, at(1), []want{
		{true, true, 3, State{Level: 4, At: at(1)}},
		{true, true, 8, State{Level: 10, At: at(1)}},
	})
}

func TestShadowNeverStandsInTheWay(t *testing.T) {
	states := []State{{Level: 4}, {Level: 9}}
	runTakeAll(t, []Charge{enforced("a", 1), shadow("b", 2)}, states, 0, []want{
		{true, true, 4, State{Level: 5, At: 0}},
		{false, false, 9, State{Level: 9, At: 0}},
	})
	runTakeAll(t, []Charge{enforced("a", 7), shadow("b", 1)}, states, 0, []want{
		{false, false, 4, State{Level: 4, At: 0}},
		{true, false, 9, State{Level: 9, At: 0}},
	})
}

func TestShadowIsPouredAllOrNone(t *testing.T) {
	states := []State{{Level: 4}, {Level: 9}, {Level: 2}}
	runTakeAll(t, []Charge{shadow("a", 1), shadow("b", 2), enforced("c", 3)}, states, 0, []want{
		{true, false, 4, State{Level: 4, At: 0}},
		{false, false, 9, State{Level: 9, At: 0}},
		{true, true, 2, State{Level: 5, At: 0}},
	})
	runTakeAll(t, []Charge{shadow("a", 1), shadow("b", 1), enforced("c", 3)}, states, 0, []want{
		{true, true, 4, State{Level: 5, At: 0}},
		{true, true, 9, State{Level: 10, At: 0}},
		{true, true, 2, State{Level: 5, At: 0}},
	})
}

func TestChargesToOneBucketAreJudgedWithTheirSum(t *testing.T) {
	states := []State{{Level: 4}, {}, {Level: 4}}
	runTakeAll(t, []Charge{enforced("a", 2), enforced("b", 5), enforced("a", 4)}, states, 0, []want{
		{true, true, 4, State{Level: 6, At: 0}},
		{true, true, 0, State{Level: 5, At: 0}},
		{true, true, 6, State{Level: 10, At: 0}},
	})
	runTakeAll(t, []Charge{enforced("a", 3), enforced("b", 5), enforced("a", 4)}, states, 0, []want{
		{false, false, 4, State{Level: 4, At: 0}},
		{true, false, 0, State{Level: 0, At: 0}},
		{false, false, 4, State{Level: 4, At: 0}},
	})
	// A shadow bucket is another bucket, and so is one of another zone.
	elsewhere := enforced("a", 6)
	elsewhere.Zone = "elsewhere"
	runTakeAll(t, []Charge{enforced("a", 6), shadow("a", 6), elsewhere}, []State{{Level: 4}, {Level: 4}, {Level: 4}}, 0, []want{
		{true, true, 4, State{Level: 10, At: 0}},
		{true, true, 4, State{Level: 10, At: 0}},
		{true, true, 4, State{Level: 10, At: 0}},
	})
}

func TestTheLastChargeToABucketHoldsItsFinalState(t *testing.T) {
	probe := shadow("a", 1)
	probe.Probe = true
	runTakeAll(t, []Charge{shadow("a", 3), probe}, []State{{Level: 4}, {Level: 4}}, 0, []want{
		{true, true, 4, State{Level: 7, At: 0}},
		{true, false, 4, State{Level: 7, At: 0}},
	})
}

func TestACostThatIsNoAmountMakesNoRoomForAnother(t *testing.T) {
	for _, cost := range []float64{-4, -1e12, -inf, nan} {
		runTakeAll(t, []Charge{shadow("a", 8), shadow("a", cost), enforced("b", 1)}, []State{{Level: 4}, {Level: 4}, {}}, 0, []want{
			{false, false, 4, State{Level: 4, At: 0}},
			{false, false, 4, State{Level: 4, At: 0}},
			{true, true, 0, State{Level: 1, At: 0}},
		})
	}
}

// As in TestAClockFarBackDoesNotKeepAFullBucketFull, for what is refused and
// for what is held back by another.
func TestAClockFarBackKeepsNoneOfManyFull(t *testing.T) {
	ahead := at(1000)
	runTakeAll(t, []Charge{enforced("a", 1), enforced("b", 1), shadow("c", 1)}, []State{{Level: 10, At: ahead}, {Level: 2, At: ahead}, {Level: 10, At: ahead}}, 0, []want{
		{false, false, 10, State{Level: 10, At: 0}},
		{true, false, 2, State{Level: 2, At: 0}},
		{false, false, 10, State{Level: 10, At: 0}},
	})
}

// TakeAll is Take where one charge stands alone.
func TestTakeAllOfOneIsTake(t *testing.T) {
	seed := testseed.Of(t)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	costs := []float64{0, 1, 2.5, 10, 10.5, -1, nan, inf}
	for range 10_000 {
		c := enforced("a", costs[rng.IntN(len(costs))])
		c.Shadow = rng.IntN(2) == 0
		s := State{Level: 12 * rng.Float64(), At: at(30 * rng.Float64())}
		now := at(30 * rng.Float64())
		state, d := c.Limit.Take(s, c.Cost, now)
		runTakeAll(t, []Charge{c}, []State{s}, now, []want{{d.Fits, d.Poured, d.Level, state}})
	}
}

func TestChargesToOneBucketAreHeldAgainstTheirOwnCeilings(t *testing.T) {
	low, high := enforced("a", 2), enforced("a", 1)
	low.Ceiling, high.Ceiling = 4, 8
	runTakeAll(t, []Charge{low, high}, []State{{Level: 1}, {Level: 1}}, 0, []want{
		{true, true, 1, State{Level: 3}},
		{true, true, 3, State{Level: 4}},
	})
	runTakeAll(t, []Charge{low, high}, []State{{Level: 2}, {Level: 2}}, 0, []want{
		{false, false, 2, State{Level: 2}},
		{true, false, 2, State{Level: 2}},
	})
}

// A block that a clock set far back has left ends for good, also when another charge decides.
func TestManyChargesEndABlockFurtherAheadThanItsLength(t *testing.T) {
	c := blocking(ladder(time.Minute, 2*time.Minute))
	c.Cost = 20
	states := []State{{Level: 10, At: at(5000), BlockedUntil: at(5060), Step: 1}, {}}
	TakeAll([]Charge{c, enforced("b", 1)}, states, at(100), make([]Decision, 2))
	if want := (State{Level: 10, At: at(100)}); states[0] != want {
		t.Errorf("got %+v, want %+v", states[0], want)
	}
}
