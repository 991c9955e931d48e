package telemetry

import (
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
)

func TestPlotsShowTheLastMinutes(t *testing.T) {
	var r Rates
	for i := range samplesKept {
		r.samples = append(r.samples, rateSample{at: time.Unix(int64(10*i), 0), counts: map[string]DecisionCounts{"pages": {limit.Admitted: 50 * float64(i)}}})
	}
	if got := r.Plot("pages"); len(got) != 60 || got[0].At != r.samples[1].at || got[59].Admitted != 5 {
		t.Errorf("got %d points, %+v ... %+v, want 60 of 5/s", len(got), got[0], got[len(got)-1])
	}
	if got := r.Plot("other"); got != nil {
		t.Errorf("got %v for a zone without requests, want nothing", got)
	}
}
