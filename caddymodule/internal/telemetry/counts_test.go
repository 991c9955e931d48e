package telemetry

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
)

func TestThePeopleTableIsBounded(t *testing.T) {
	table, now := NewFigures(), time.Now()
	address := func(i int) netip.Addr {
		return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	for i := range mostPeople + 1000 {
		table.mark(address(i), now)
	}
	counted := 0
	for i := range mostPeople + 1000 {
		if table.report(address(i), now) {
			counted++
		}
	}
	if counted != mostPeople || table.marked.Len() > mostPeople || table.counted.Len() > mostPeople {
		t.Errorf("got %d counted, %d and %d kept, want at most %d", counted, table.marked.Len(), table.counted.Len(), mostPeople)
	}
}

func TestLevelsAboveTheCapacityAreCounted(t *testing.T) {
	var h levelHistogram
	for _, fraction := range []float64{0, .1, .11, 1, 1.5} {
		h.observe(fraction, 1)
	}
	got := []uint64{h.Counts[0].Load(), h.Counts[1].Load(), h.Counts[9].Load(), h.Counts[10].Load()}
	if want := []uint64{2, 1, 1, 1}; !slices.Equal(got, want) {
		t.Errorf("got %v up to 0.1, 0.2, 1 and above, want %v", got, want)
	}
}

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
