package telemetry

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
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
	check.Equal(t, counted, mostPeople)
}

func TestPlotsShowTheLastMinutes(t *testing.T) {
	var r Rates
	for i := range samplesKept {
		r.samples = append(r.samples, rateSample{at: time.Unix(int64(10*i), 0), counts: map[string]Tally{"pages": {"admitted": 50 * float64(i)}}})
	}
	if got := r.Plot("pages"); len(got) != 60 || got[0].At != r.samples[1].at || got[59].Admitted != 5 {
		t.Errorf("got %d points, %+v ... %+v, want 60 of 5/s", len(got), got[0], got[len(got)-1])
	}
	check.Slices(t, r.Plot("other"), nil, "of a zone without requests")
}

func TestTheFirstWarningsOfAConfigAreKeptWithTheirDetails(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	logger, kept := KeepWarnings(zap.New(core))
	if got := kept.List(); got == nil || len(got) > 0 {
		t.Errorf("before: got %v, want an empty list", got)
	}
	of := logger.With(zap.String("zone", "z"))
	of.Info("something else")
	of.Error("something else")
	for i := range 2 * mostWarnings {
		of.Warn(fmt.Sprint(i), zap.Int("number", i))
	}
	got := kept.List()
	check.Need(t, len(got), mostWarnings, "warnings")
	w := got[7]
	check.That(t, w.Text == "7" && !w.At.IsZero() && fmt.Sprint(w.Details) == "map[number:7 zone:z]", "got %v, want the eighth with its number and zone", w)
	check.Equal(t, logs.Len(), 2+2*mostWarnings, "lines in the log, want all")
	for logger, kept = KeepWarnings(zap.New(core)); logs.Len() < 1000; {
		logger.Warn("a matcher of the zone fails")
	}
	logger.Warn("other")
	check.That(t, len(kept.List()) == mostAlike+1, "got %d warnings, want %d of one text and one of another", len(kept.List()), mostAlike)
}
