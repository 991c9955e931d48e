package leakybucket

import (
	"math"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

const tooSlow = "invalid limit: a full bucket must drain within 20 years"

func TestValidateAcceptsLimitsInRange(t *testing.T) {
	const years20 = 20 * 365 * 86400
	for _, test := range []struct {
		limit Limit
		want  string
	}{
		{Limit{1, 1}, ""},
		{Limit{1e-9, 1e-9}, ""},
		{Limit{1e-9, 1e12}, ""},
		{Limit{1e12, 1e12}, ""},
		{Limit{years20, 1}, ""},
		{Limit{}, "invalid capacity 0: want a number from 0.000000001 to 1000000000000"},
		{Limit{9e-10, 1}, "invalid capacity 9e-10: want a number from 0.000000001 to 1000000000000"},
		{Limit{1.1e12, 1e12}, "invalid capacity 1.1e+12: want a number from 0.000000001 to 1000000000000"},
		{Limit{-1, 1}, "invalid capacity -1: want a number from 0.000000001 to 1000000000000"},
		{Limit{nan, 1}, "invalid capacity NaN: want a number from 0.000000001 to 1000000000000"},
		{Limit{inf, 1}, "invalid capacity +Inf: want a number from 0.000000001 to 1000000000000"},
		{Limit{1, 0}, "invalid leak of 0 a second: want a number from 0.000000001 to 1000000000000"},
		{Limit{1, 9e-10}, "invalid leak of 9e-10 a second: want a number from 0.000000001 to 1000000000000"},
		{Limit{1, 1.1e12}, "invalid leak of 1.1e+12 a second: want a number from 0.000000001 to 1000000000000"},
		{Limit{1, -1}, "invalid leak of -1 a second: want a number from 0.000000001 to 1000000000000"},
		{Limit{1, nan}, "invalid leak of NaN a second: want a number from 0.000000001 to 1000000000000"},
		{Limit{1, inf}, "invalid leak of +Inf a second: want a number from 0.000000001 to 1000000000000"},
		{Limit{years20 + 1, 1}, tooSlow},
		{Limit{1, 1e-9}, tooSlow},
		{Limit{1e12, 1e-9}, tooSlow},
	} {
		check.Error(t, test.limit.Validate(), test.want, "%s", describe(test.limit))
	}
}

func TestAConstantCostIsZeroOrMovesTheLevelAndFits(t *testing.T) {
	for _, test := range []struct {
		capacity, cost float64
		want           string
	}{
		{10, 0, ""},
		{10, 1e-8, ""},
		{10, 1, ""},
		{10, 10, ""},
		{10, 10.01, "invalid cost 10.01: it can never fit the capacity of 10"},
		{10, inf, "invalid cost +Inf: it can never fit the capacity of 10"},
		{10, 9e-9, "invalid cost 9e-09: want 0, or a number from 1e-08 to 10"},
		{10, -1, "invalid cost -1: want 0, or a number from 1e-08 to 10"},
		{10, nan, "invalid cost NaN: want 0, or a number from 1e-08 to 10"},
		{1e12, 1000, ""},
		{1e12, 999, "invalid cost 999: want 0, or a number from 1000 to 1e+12"},
		{0.5, 1, "invalid cost 1: it can never fit the capacity of 0.5"},
	} {
		l := Limit{Capacity: test.capacity, Leak: 1e6}
		check.Error(t, l.ValidateCost(test.cost), test.want, "%s", describe(l))
	}
}

func TestAComputedCostIsBroughtIntoRange(t *testing.T) {
	for _, test := range []struct{ capacity, computed, want float64 }{
		{10, 2.5, 2.5},
		{10, 0, 0},
		{10, math.Copysign(0, -1), 0},
		{10, 1e-8, 1e-8},
		{10, 9e-9, 0}, // too small to move the level
		{1e12, 999, 0},
		{10, 1000, 1000}, // oversize, but a number
		{10, 1e12, 1e12},
		{10, 1e13, 1e12},
		{10, inf, 1e12},
		{10, -1e-9, 1},
		{10, -1, 1},
		{10, -inf, 1},
		{10, nan, 1},
	} {
		got := (Limit{Capacity: test.capacity, Leak: 1}).ClampCost(test.computed)
		check.That(t, got == test.want && !math.Signbit(got), "cost computed as %v to capacity %v: got %v, want %v", test.computed, test.capacity, got, test.want)
	}
}

func TestWhatALevelMeans(t *testing.T) {
	const us = time.Microsecond
	for _, test := range []struct {
		level, cost, remaining float64
		empty, fit             time.Duration // rounded up
	}{
		{0, 3, 3, 0, 0},
		{2, 1, 1, 1_333_334 * us, 0},
		{3, 1.5, 0, 2 * time.Second, time.Second},
		{3, 3, 0, 2 * time.Second, 2 * time.Second},
		{2.5, 2, 0.5, 1_666_667 * us, time.Second},
		{2.25, 1.85, 0.75, 1_500_000 * us, 733_334 * us}, // 1.1 / 1.5 s
		{6, 1.5, 0, 4 * time.Second, 3 * time.Second},
		{2.5, 0, 0.5, 1_666_667 * us, 0},
		{3, 0, 0, 2 * time.Second, 2 * us}, // past the rounding at the brim
		{4.5, 0, 0, 3 * time.Second, time.Second + 2*us},
		{1e-9, 1, 3 - 1e-9, us, 0},
	} {
		if remaining, empty, fit := reference.Remaining(test.level), reference.TimeToEmpty(test.level), reference.TimeToFit(test.level, test.cost); remaining != test.remaining || empty != test.empty || fit != test.fit {
			t.Errorf("cost %v at level %v: got %v left, %v until empty and %v until it fits, want %+v", test.cost, test.level, remaining, empty, fit, test)
		}
	}
	for cost, want := range map[float64]bool{
		0: false, 1: false, 10: false, 10 + 1e-9: false, 10 + 1e-7: true, 11: true, 1e12: true, inf: true, -1: true, nan: true,
	} {
		check.Equal(t, tenSeconds.Oversize(cost), want, "cost %v to capacity 10: oversize", cost)
	}
}

// A level that a former limit allowed may need longer than any clock can tell.
func TestWaitsBeyondAllTellingStayPositive(t *testing.T) {
	for _, l := range []Limit{{0.5, 1e-9}, {1, 1e-8}, {1, 0}, {nan, nan}} {
		for _, level := range []float64{1e3, 1e12, inf, nan} {
			for _, wait := range []time.Duration{l.TimeToEmpty(level), l.TimeToFit(level, 0), l.TimeToFit(level, 0.5)} {
				if wait < 20*365*24*time.Hour {
					t.Errorf("%s, level %v: got a wait of %v, want 20 years or more", describe(l), level, wait)
				}
			}
			if s := (State{Level: level, At: at(1e9)}); l.EmptyAt(s) < s.At.Add(longestDrain) {
				t.Errorf("%s, level %v: got it forgotten at %d, want 20 years later than %d", describe(l), level, l.EmptyAt(s), s.At)
			}
		}
	}
}
