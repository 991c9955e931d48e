package leakybucket

import (
	"math"
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
