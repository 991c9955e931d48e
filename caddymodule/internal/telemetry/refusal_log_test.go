package telemetry

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A told is a line that a zone has logged.
type told struct {
	at       time.Duration // since the test began
	message  string
	requests int64
	keys     uint64
}

// newRefusalLog returns a log that writes to a core of zap.
func newRefusalLog(name string, core zapcore.Core) *RefusalLog {
	return &RefusalLog{Logger: zap.New(core).With(zap.String("zone", name)), Begins: begins, Refused: goesOn}
}

// refusalLogOf returns a log, and a function that returns its lines so far.
func refusalLogOf() (*RefusalLog, func() []told) {
	start := time.Now()
	core, logs := observer.New(zap.InfoLevel)
	return newRefusalLog("login", core), func() (lines []told) {
		for _, entry := range logs.All() {
			line := told{at: entry.Time.Sub(start), message: entry.Message}
			fields := entry.ContextMap()
			line.requests, _ = fields["requests"].(int64)
			line.keys, _ = fields["distinct_keys"].(uint64)
			if fields["zone"] != "login" {
				panic(fmt.Sprintf("a line without the zone: %v", fields))
			}
			lines = append(lines, line)
		}
		return lines
	}
}

const begins, goesOn = "zone begins to refuse requests", "zone refused requests"

// until sleeps until a time after the start.
func until(start time.Time, at time.Duration) {
	time.Sleep(time.Until(start.Add(at)))
	synctest.Wait()
}

func TestAZoneSaysOnceThatItBeginsToRefuseAndThenOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		l, lines := refusalLogOf()
		for range 100 {
			l.Note("a")
		}
		until(start, 30*time.Second)
		l.Note("b")
		until(start, 90*time.Second)
		l.Note("c")
		until(start, 10*time.Minute) // calm since the third minute
		l.Note("d")
		until(start, 20*time.Minute)
		want := []told{
			{0, begins, 0, 0},
			{time.Minute, goesOn, 101, 2},
			{2 * time.Minute, goesOn, 1, 1},
			{10 * time.Minute, begins, 0, 0},
			{11 * time.Minute, goesOn, 1, 1},
		}
		check.Slices(t, lines(), want)
	})
}

func TestRefusalsAtTheSameTimeAreAllCounted(t *testing.T) {
	const callers, each, names = 8, 3000, 50
	l, lines := refusalLogOf()
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := range each {
				if l.Note(fmt.Sprint(i % names)); i%500 == caller {
					l.tick()
				}
			}
		})
	}
	all.Wait()
	l.Flush()
	var requests int64
	for _, line := range lines() {
		requests += line.requests
		check.That(t, line.keys <= names+5, "got %d distinct keys in a summary, want about %d", line.keys, names)
	}
	check.Equal(t, requests, callers*each, "requests in all summaries")
}

func TestCountedRefusalsAreLoggedWhenTheConfigGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		l, lines := refusalLogOf()
		l.Note("a")
		l.Note("b")
		until(start, 10*time.Second)
		l.Flush()
		l.Flush()
		// A request in flight may still be refused.
		until(start, 20*time.Second)
		l.Note("c")
		until(start, time.Hour)
		want := []told{
			{0, begins, 0, 0},
			{10 * time.Second, goesOn, 2, 2},
			{80 * time.Second, goesOn, 1, 1},
		}
		check.Slices(t, lines(), want)
	})
}

func TestLinesSayInWhichUnitTheirTimesAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		l := newRefusalLog("login", core)
		l.Note("a")
		l.Blocked("zone blocks a key", zap.Float64("for_seconds", 90))
		<-time.After(10 * time.Second)
		l.Flush()
		lines := logs.All()
		check.Need(t, len(lines), 3, "lines")
		check.Equal(t, lines[1].ContextMap()["for_seconds"], 90.0, "for_seconds of a block")
		check.Equal(t, lines[2].ContextMap()["within_seconds"], 10.0, "within_seconds of a summary")
	})
}
