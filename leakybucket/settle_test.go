package leakybucket

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestSettle(t *testing.T) {
	const sec = Instant(1e6)
	limit := Limit{Capacity: 10, Leak: 1}
	for _, test := range []struct {
		about        string
		state        State
		diff, debt   float64
		charged, now Instant
		want         float64
	}{
		{"more is poured", State{Level: 4}, 3, 10, 0, 1 * sec, 6},
		{"above the capacity", State{Level: 9}, 5, 10, 0, 0, 14},
		{"up to the debt", State{Level: 9}, 50, 10, 0, 0, 20},
		{"without debt, up to the capacity", State{Level: 9}, 50, 0, 0, 0, 10},
		{"a level above is not lowered", State{Level: 25}, 5, 10, 0, 0, 25},
		{"into a bucket that is gone", State{}, 3, 10, 0, 5 * sec, 3},
		{"nothing has leaked: all is given back", State{Level: 8}, -5, 10, 0, 0, 3},
		{"what has leaked is not given back", State{Level: 8}, -5, 10, 0, 2 * sec, 3},
		{"all has leaked", State{Level: 8}, -5, 10, 0, 6 * sec, 2},
		{"never below empty", State{Level: 2}, -5, 10, 0, 0, 0},
		{"a charge of the future", State{Level: 8}, -5, 10, 9 * sec, 0, 3},
		{"nothing", State{Level: 8}, 0, 10, 0, 1 * sec, 7},
		{"no number", State{Level: 8}, math.NaN(), 10, 0, 1 * sec, 7},
	} {
		got := limit.Level(limit.Settle(test.state, test.diff, test.debt, test.charged, test.now), test.now)
		if math.Abs(got-test.want) > 1e-9 {
			t.Errorf("%s: got %v, want %v", test.about, got, test.want)
		}
	}
}

func TestASettlementGivesBackNoMoreThanWasPoured(t *testing.T) {
	limit := Limit{Capacity: 10, Leak: 1}
	for _, test := range []struct {
		poured bool
		want   float64
	}{{true, 5}, {false, 8}} {
		s := Settlement{Charge: Charge{Limit: limit, Cost: 3, Debt: 10}, Was: Decision{Fits: true, Poured: test.poured}, Diff: -7}
		if got := s.Apply(State{Level: 8}, 0).Level; got != test.want {
			t.Errorf("poured %v: got %v, want %v", test.poured, got, test.want)
		}
	}
}

// The bound of the package's comment, with reservations that are corrected:
// what is reserved in a window is at most what the bucket holds, leaks in it,
// and was given back in it.
func TestReservationsKeepTheBoundWhateverIsSettled(t *testing.T) {
	type event struct {
		at             Instant
		reserved, back float64
	}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		limit := Limit{Capacity: 1 + 20*r.Float64(), Leak: 0.1 + 10*r.Float64()}
		debt := limit.Capacity * float64(r.IntN(3))
		var state State
		var now Instant
		var open []Settlement
		var events []event
		for range 300 {
			now += Instant(r.Int64N(300_000))
			if r.IntN(2) == 0 || len(open) == 0 {
				cost := limit.Capacity * r.Float64() * r.Float64()
				var d Decision
				if state, d = limit.Take(state, cost, now); d.Poured {
					events = append(events, event{at: now, reserved: cost})
					open = append(open, Settlement{Charge: Charge{Limit: limit, Cost: cost, Debt: debt}, Was: d})
				}
				continue
			}
			i := r.IntN(len(open))
			s := open[i]
			open = append(open[:i], open[i+1:]...)
			s.Diff = (3*r.Float64() - 1) * s.Charge.Cost
			before := limit.Level(state, now)
			state = s.Apply(state, now)
			events = append(events, event{at: now, back: max(0, before-limit.Level(state, now))})
			if state.Level < 0 || state.Level > max(before, limit.Capacity+debt)*(1+1e-9) {
				t.Fatalf("seed %d: level %v is out of range", seed, state.Level)
			}
		}
		for i := range events {
			reserved, back := 0.0, 0.0
			for _, e := range events[i:] {
				reserved += e.reserved
				back += e.back
				allowed := limit.Capacity*(1+1e-9) + limit.Leak*(seconds(e.at-events[i].at)+1e-6) + back
				if reserved > allowed+1e-9 {
					t.Fatalf("seed %d: %v was reserved from %d to %d, and %v is allowed", seed, reserved, events[i].at, e.at, allowed)
				}
			}
		}
	}
}
