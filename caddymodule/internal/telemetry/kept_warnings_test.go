package telemetry

import (
	"fmt"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
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
	if len(got) != mostWarnings {
		t.Fatalf("got %d warnings, want %d", len(got), mostWarnings)
	}
	if w := got[7]; w.Text != "7" || w.At.IsZero() || fmt.Sprint(w.Details) != "map[number:7 zone:z]" {
		t.Errorf("got %v, want the eighth with its number and zone", w)
	}
	if n := logs.Len(); n != 2+2*mostWarnings {
		t.Errorf("got %d lines in the log, want all", n)
	}
	for logger, kept = KeepWarnings(zap.New(core)); logs.Len() < 1000; {
		logger.Warn("a matcher of the zone fails")
	}
	if logger.Warn("other"); len(kept.List()) != mostAlike+1 {
		t.Errorf("got %d warnings, want %d of one text and one of another", len(kept.List()), mostAlike)
	}
}
