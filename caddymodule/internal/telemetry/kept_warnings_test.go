package telemetry

import (
	"fmt"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

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
	if w := got[7]; w.Text != "7" || w.At.IsZero() || fmt.Sprint(w.Details) != "map[number:7 zone:z]" {
		t.Errorf("got %v, want the eighth with its number and zone", w)
	}
	check.Equal(t, logs.Len(), 2+2*mostWarnings, "lines in the log, want all")
	for logger, kept = KeepWarnings(zap.New(core)); logs.Len() < 1000; {
		logger.Warn("a matcher of the zone fails")
	}
	if logger.Warn("other"); len(kept.List()) != mostAlike+1 {
		t.Errorf("got %d warnings, want %d of one text and one of another", len(kept.List()), mostAlike)
	}
}
