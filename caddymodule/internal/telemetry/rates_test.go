package telemetry

import (
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
)

// TestPlotsOfADayEndWithTheLastSample, once, also where that is one of the day.
func TestPlotsOfADayEndWithTheLastSample(t *testing.T) {
	var r Rates
	for i := range 3 {
		r.day = append(r.day, rateSample{at: time.Unix(int64(900*i), 0), counts: map[string]DecisionCounts{"pages": {limit.Admitted: 900 * float64(i)}}})
	}
	for _, r.samples = range [][]rateSample{r.day, append(r.day[:3:3], rateSample{at: time.Unix(1810, 0), counts: map[string]DecisionCounts{"pages": {limit.Admitted: 1810}}})} {
		_, day := r.Plot("pages")
		if len(day) != len(r.samples)-1 || day[len(day)-1].Admitted != 1 {
			t.Errorf("got %v, want %d points of 1/s", day, len(r.samples)-1)
		}
	}
}

func TestPlotsShowAnHourByMinutes(t *testing.T) {
	var r Rates
	for i := range 100 {
		r.samples = append(r.samples, rateSample{at: time.Unix(int64(10*i), 0), counts: map[string]DecisionCounts{"pages": {limit.Admitted: 50 * float64(i)}}})
	}
	hour, _ := r.Plot("pages")
	if len(hour) != 17 || hour[0].At != r.samples[3].at || hour[16].Admitted != 5 {
		t.Errorf("got %d points, %+v ... %+v, want 17 of 5/s", len(hour), hour[0], hour[len(hour)-1])
	}
	if hour, day := r.Plot("other"); hour != nil || day != nil {
		t.Errorf("got %v and %v for a zone without requests, want nothing", hour, day)
	}
}
