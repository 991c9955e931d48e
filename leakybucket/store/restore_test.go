package store

import (
	"math"
	"testing"
	"time"

	. "github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func TestASavedStateIsRestoredWithinTheLimit(t *testing.T) {
	const second, now = Instant(1e6), Instant(1000e6)
	ladder := &Ladder{Steps: []time.Duration{time.Minute, time.Hour}}
	limit := Limit{Capacity: 10, Leak: 1}
	for _, test := range []struct {
		name  string
		of    Charge
		saved State
		want  State
	}{
		{"a level says when it was written, and leaks since", Charge{Limit: limit}, State{Level: 8, At: now - 3*second, Leak: 1}, State{Level: 8, At: now - 3*second, Leak: 1}},
		{"it leaks as it was written", Charge{Limit: limit}, State{Level: 8, At: now - 3*second, Leak: 2}, State{Level: 2, At: now, Leak: 1}},
		{"it leaks as the limit says if it does not say", Charge{Limit: limit}, State{Level: 8, At: now - 3*second}, State{Level: 5, At: now, Leak: 1}},
		{"an empty bucket is none", Charge{Limit: limit}, State{Level: 8, At: now - 9*second, Leak: 1}, State{}},
		{"a level above the capacity is lowered", Charge{Limit: limit}, State{Level: 80, At: now, Leak: 1}, State{Level: 10, At: now, Leak: 1}},
		{"a level in debt stays", Charge{Limit: limit, Debt: 5}, State{Level: 80, At: now, Leak: 1}, State{Level: 15, At: now, Leak: 1}},
		{"a state ahead of the clock has not leaked", Charge{Limit: limit}, State{Level: 8, At: now + 99*second, Leak: 1}, State{Level: 8, At: now, Leak: 1}},
		{"a block that runs goes on", Charge{Limit: limit, Block: ladder}, State{Level: 1, At: now - 5*second, Leak: 1, BlockedUntil: now + 600*second, Step: 1}, State{At: now, Leak: 1, BlockedUntil: now + 600*second, Step: 1}},
		{"a block of a shorter ladder is shortened", Charge{Limit: limit, Block: &Ladder{Steps: []time.Duration{time.Minute}}}, State{BlockedUntil: now + 600*second, Step: 7}, State{At: now, Leak: 1, BlockedUntil: now + 60*second}},
		{"a block without a ladder lasts no longer than a full bucket", Charge{Limit: limit, Block: &Ladder{}}, State{BlockedUntil: now + 600*second}, State{At: now, Leak: 1, BlockedUntil: now + 10*second}},
		{"a block that is over keeps its step", Charge{Limit: limit, Block: ladder}, State{BlockedUntil: now - second, Step: 1}, State{At: now, Leak: 1, BlockedUntil: now - second, Step: 1}},
		{"a zone that blocks nobody keeps no block", Charge{Limit: limit}, State{Level: 8, At: now, Leak: 1, BlockedUntil: now + second}, State{Level: 8, At: now, Leak: 1}},
		{"a level that is no number is none", Charge{Limit: limit, Block: ladder}, State{Level: math.NaN(), At: now, BlockedUntil: now + second}, State{}},
		{"a level without an end is none", Charge{Limit: limit}, State{Level: math.Inf(1), At: now}, State{}},
		{"a negative level is none", Charge{Limit: limit}, State{Level: -1, At: now}, State{}},
		{"a leak that is no number is none", Charge{Limit: limit}, State{Level: 1, Leak: math.NaN(), At: now}, State{}},
		{"an instant before 1970 is none", Charge{Limit: limit}, State{Level: 1, At: math.MinInt64}, State{}},
		{"the end of all time is cut", Charge{Limit: limit, Block: ladder}, State{Level: 1, At: math.MaxInt64, Leak: 1, BlockedUntil: math.MaxInt64}, State{Level: 1, At: now, Leak: 1, BlockedUntil: now + 60*second}},
	} {
		if got := Restore(&test.of, test.saved, now); got != test.want {
			t.Errorf("%s: got %+v, want %+v", test.name, got, test.want)
		}
	}
}
