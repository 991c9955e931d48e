package telemetry

import (
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
)

func TestPlotsShowTheLastTenMinutes(t *testing.T) {
	var r Rates
	for i := range 100 {
		r.samples = append(r.samples, rateSample{at: time.Unix(int64(10*i), 0), counts: map[string]DecisionCounts{"pages": {decision.Admitted: 50 * float64(i)}}})
	}
	plot := r.Plot("pages", 10*time.Minute, r.samples[99].at)
	if len(plot) != 61 || plot[0].At != r.samples[39].at || plot[60].PerSecond[decision.Admitted] != 5 {
		t.Errorf("got %d points, %+v ... %+v, want 61 of 5/s", len(plot), plot[0], plot[len(plot)-1])
	}
	if plot := r.Plot("other", 10*time.Minute, r.samples[99].at); plot != nil {
		t.Errorf("got %v for a zone without requests, want nothing", plot)
	}
}
