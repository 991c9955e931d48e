package leakybucket

import (
	"testing"
	"time"
)

// A bucket of 10 at 1/s takes 10 s to drain, so a state up to 10 s ahead may be
// one that another goroutine or node has just written.
var tenSeconds = Limit{Capacity: 10, Leak: 1}

// Until the clock has caught up nothing leaks, and then nothing leaks twice.
func TestAClockALittleBackLeaksNothing(t *testing.T) {
	s := State{Level: 4, At: at(100)}
	s = runTakes(t, tenSeconds, s, []takeStep{
		{90, 0, 4, true},
		{90, 1, 4, true},
		{95, 1, 5, true},
		{95, 5, 6, false},
		{100, 0, 6, true},
		{101, 0, 5, true},
	})
	runFills(t, tenSeconds, State{Level: 4, At: at(100)}, []fillStep{
		{90, 1, 5, false},
		{95, 1, 6, false},
		{101, 0, 5, false},
	})
	if want := at(101); s.At != want {
		t.Errorf("state: got it dated %d, want %d", s.At, want)
	}
}

// Waiting for the clock to catch up could take a year.
func TestAClockFarBackCountsFromWhereItIs(t *testing.T) {
	for _, ahead := range []float64{10.000001, 3600, 366 * 86400} {
		s := State{Level: 4, At: at(100 + ahead)}
		runTakes(t, tenSeconds, s, []takeStep{
			{100, 1, 4, true},
			{102, 1, 3, true},
			{106, 10, 0, true},
		})
		runFills(t, tenSeconds, s, []fillStep{
			{100, 1, 5, false},
			{102, 1, 4, false},
		})
	}
}

// In a full bucket there is no next pour to date it anew. If a refusal did not,
// everybody would be locked out until the clock has caught up.
func TestAClockFarBackDoesNotKeepAFullBucketFull(t *testing.T) {
	for _, ahead := range []time.Duration{10*time.Second + time.Microsecond, time.Hour, 366 * 24 * time.Hour} {
		s, d := tenSeconds.Take(State{Level: 10, At: at(100).Add(ahead)}, 1, at(100))
		if d.Fits || d.Level != 10 {
			t.Errorf("%v back: got fits %v at level %v, want refused at 10", ahead, d.Fits, d.Level)
		}
		if want := (State{Level: 10, At: at(100)}); s != want {
			t.Errorf("%v back: got state %v, want %v", ahead, s, want)
		}
		runTakes(t, tenSeconds, s, []takeStep{
			{104, 5, 6, false},
			{110, 10, 0, true},
		})
	}
}
