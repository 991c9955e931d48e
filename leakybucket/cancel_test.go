package leakybucket

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

// cancelled returns the state after a charge was cancelled that a bucket of 10
// at 1/s took so many seconds after the clock's zero.
func cancelled(s State, cost float64, was Decision, now float64) State {
	return (&Settlement{Charge: enforced("a", cost), Was: was, Cancel: true, Diff: 7}).Apply(s, at(now))
}

func TestACancelledChargeGivesAllBackIfNothingWasPouredSince(t *testing.T) {
	for _, test := range []struct {
		what         string
		before, cost float64
		after        float64 // seconds, until it is cancelled
		want         float64
	}{
		{"at once", 3, 5, 0, 3},
		{"after some has leaked", 3, 5, 2, 1}, // as if it had never been; settled, it would be 3
		{"after more has leaked than was there", 3, 5, 4, 0},
		{"after all has leaked", 3, 5, 60, 0},
		{"from an empty bucket", 0, 5, 0, 0},
		{"from an empty bucket, later", 0, 5, 1, 0},
		{"of a cost of nothing", 3, 0, 1, 2},
		{"a cost that is rounded", 0.1, 0.2, 0, 0.1},
	} {
		s, d := tenSeconds.Take(State{Level: test.before, At: at(100)}, test.cost, at(100))
		s = cancelled(s, test.cost, d, 100+test.after)
		if got := tenSeconds.Level(s, at(100+test.after)); got != test.want || s.At < at(100) {
			t.Errorf("%s: got %v at %d, want %v", test.what, got, s.At, test.want)
		}
	}
}

func TestThePlaceOfACallerThatLeavesStaysEmptyIfOthersCameSince(t *testing.T) {
	first, was := tenSeconds.Take(State{Level: 3, At: at(100)}, 5, at(100))
	for what, since := range map[string]State{
		"another came":                  firstOf(tenSeconds.Take(first, 1, at(101))),
		"another came at once":          firstOf(tenSeconds.Take(first, 1, at(100))),
		"another came and paid nothing": firstOf(tenSeconds.Take(first, 0, at(101))),
		"somebody filled it":            filled(tenSeconds, first, at(101)),
		"somebody settled upwards":      tenSeconds.Settle(first, 1, 10, at(99), at(101)),
		"somebody settled downwards":    tenSeconds.Settle(first, -1, 10, at(101), at(101)),
		"it is gone":                    {},
		"it is another":                 {Level: 2, At: at(105)},
	} {
		if got := cancelled(since, 5, was, 110); got != since {
			t.Errorf("%s: got %+v, want %+v as it was", what, got, since)
		}
	}
}

// Refusals and probes change nothing, so they do not stand in the way.
func TestAChargeThatPoursNothingIsNoReasonToKeepAPlace(t *testing.T) {
	s, was := tenSeconds.Take(State{Level: 3, At: at(100)}, 5, at(100))
	s, _ = tenSeconds.Take(s, 9, at(101))
	probe := enforced("a", 1)
	probe.Probe = true
	var d Decision
	probe.Take(&s, at(101), &d)
	s = (&Settlement{Charge: probe, Was: d}).Apply(s, at(101)) // by nothing
	if got := tenSeconds.Level(cancelled(s, 5, was, 102), at(102)); got != 1 {
		t.Errorf("cancelled after a refusal, a probe and a settlement by nothing: got level %v, want 1", got)
	}
}

func TestChargesOfOneInstantComeBackInReverseOrder(t *testing.T) {
	costs := []float64{1, 2.5, 0.1, 0.2, 3}
	s, decisions := State{Level: 2, At: at(90)}, make([]Decision, len(costs))
	before := []State{}
	for i, cost := range costs {
		before = append(before, s)
		s, decisions[i] = tenSeconds.Take(s, cost, at(91))
	}
	for i := len(costs) - 1; i >= 0; i-- {
		s = cancelled(s, costs[i], decisions[i], 91)
		if got, want := tenSeconds.Level(s, at(91)), tenSeconds.Level(before[i], at(91)); got != want {
			t.Errorf("charges %d and later cancelled: got level %v, want %v", i, got, want)
		}
	}
	// In their own order only the last one comes back.
	s = State{}
	for i, cost := range costs {
		s, decisions[i] = tenSeconds.Take(s, cost, at(91))
	}
	want := s.Level
	for i, cost := range costs[:len(costs)-1] {
		if s = cancelled(s, cost, decisions[i], 91); s.Level != want {
			t.Errorf("charge %d cancelled before those behind it: got level %v, want %v", i, s.Level, want)
		}
	}
}

func TestAChargeThatWasNotPouredIsNotCancelled(t *testing.T) {
	s := State{Level: 5, At: at(100)}
	for what, was := range map[string]Decision{
		"a probe":      {Fits: true, Level: 5, At: at(100)},
		"a refusal":    {Level: 5, At: at(100)},
		"nothing":      {},
		"a probe of 5": {Fits: true, At: at(100)}, // as if it had filled the bucket
	} {
		if got := cancelled(s, 5, was, 101); got != s {
			t.Errorf("%s: got %+v, want %+v as it was", what, got, s)
		}
	}
}

func TestACancellationNeitherLiftsNorLowersABlock(t *testing.T) {
	c := blocking(ladder(time.Minute, time.Hour))
	s, d, refused := State{BlockedUntil: at(50), Step: 0}, Decision{}, Decision{}
	c.Cost = 8
	c.Take(&s, at(100), &d)
	c.Cost = 5
	c.Take(&s, at(100), &refused)
	if !d.Poured || !refused.Began {
		t.Fatalf("got %+v and %+v, want a pour and the beginning of a block", d, refused)
	}
	got := cancelled(s, 8, d, 100)
	if want := (State{At: at(100), Leak: 1, BlockedUntil: at(3700), Step: 1}); got != want {
		t.Errorf("cancelled: got %+v, want %+v", got, want)
	}
}

// A cancelled charge is as if it had never been: whatever came before, the
// level afterwards is the one that nobody has charged.
func TestACancelledChargeLeavesNoTrace(t *testing.T) {
	seed := testseed.Of(t)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 100_000 {
		l := randomLimit(rng)
		s := State{Level: l.Capacity * rng.Float64(), At: at(1e6)}
		taken := s.At + randomElapsed(rng, l)
		left := taken + randomElapsed(rng, l)
		c, after, d := Charge{Limit: l, Cost: randomCost(rng, l, l.Level(s, taken))}, s, Decision{}
		if c.Take(&after, taken, &d); !d.Poured {
			continue
		}
		after = (&Settlement{Charge: c, Was: d, Cancel: true}).Apply(after, left)
		got, want := l.Level(after, left), l.Level(s, left)
		if tolerated := 1e-9*(1+l.Capacity) + 1e-12*l.Leak*seconds(left-s.At); !(got-want <= tolerated && want-got <= tolerated) {
			t.Fatalf("%s, cost %v cancelled after %v: got level %v, want %v", describe(l), c.Cost, left.Sub(taken), got, want)
		}
	}
}
