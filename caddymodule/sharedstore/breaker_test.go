package sharedstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A brokenStore is what a breaker probes. It answers while it is up.
type brokenStore struct {
	breaker
	up      atomic.Bool
	mu      sync.Mutex
	probes  []time.Time
	changes []string
}

func newBrokenStore() *brokenStore {
	s := new(brokenStore)
	s.probe = func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.probes = append(s.probes, time.Now())
		if s.up.Load() {
			return nil
		}
		return errors.New("connection refused")
	}
	s.changed = func(down bool, err error, after time.Duration) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if down {
			s.changes = append(s.changes, "down: "+err.Error())
		} else {
			s.changes = append(s.changes, "up after "+after.String())
		}
	}
	return s
}

func (s *brokenStore) fail(times int) {
	for range times {
		s.failed(s.generation(), errors.New("connection refused"))
	}
}

func (s *brokenStore) log() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.probes)
}

func (s *brokenStore) said() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.changes)
}

func TestABreakerOpensAfterFailuresInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBrokenStore()
		defer s.stop()
		for range 10 {
			s.fail(failuresToOpen - 1)
			s.succeeded()
		}
		if s.isOpen() {
			t.Error("after failures between successes: got it open, want it closed")
		}
		s.fail(failuresToOpen)
		if !s.isOpen() {
			t.Errorf("after %d failures in a row: got it closed, want it open", failuresToOpen)
		}
	})
}

func TestABreakerClosesWhenItsOwnProbeSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, start := newBrokenStore(), time.Now()
		defer s.stop()
		s.fail(20)
		<-time.After(time.Second - time.Millisecond)
		s.up.Store(true)
		<-time.After(2 * time.Millisecond)
		synctest.Wait()
		if s.isOpen() {
			t.Error("after a probe that succeeded: got it open, want it closed")
		}
		for i, at := range s.log() {
			if got, want := at.Sub(start), time.Duration(i+1)*probeEvery; got != want {
				t.Errorf("probe %d: got it after %v, want after %v", i+1, got, want)
			}
		}
		if want := []string{"down: connection refused", "up after 1s"}; !slices.Equal(s.said(), want) {
			t.Errorf("got changes %q, want %q", s.said(), want)
		}
		<-time.After(time.Minute)
		if n := len(s.log()); n != 10 {
			t.Errorf("a minute after it closed: got %d probes, want no more than 10", n)
		}
	})
}

// It answers probes and fails requests.
func TestAStoreThatFailsAgainAndAgainIsLeftAloneForLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBrokenStore()
		defer s.stop()
		s.up.Store(true)
		var holds []time.Duration
		for range 8 {
			s.fail(failuresToOpen)
			opened := time.Now()
			for s.isOpen() {
				<-time.After(time.Millisecond)
				synctest.Wait()
			}
			holds = append(holds, time.Since(opened))
		}
		want := []time.Duration{100, 200, 400, 800, 1000, 1000, 1000, 1000}
		for i := range want {
			want[i] *= time.Millisecond
		}
		if !slices.Equal(holds, want) {
			t.Errorf("got it open for %v, want %v", holds, want)
		}
		<-time.After(calm + time.Second)
		s.fail(failuresToOpen)
		<-time.After(probeEvery + time.Millisecond)
		synctest.Wait()
		if s.isOpen() {
			t.Error("after a calm: got it left alone for longer than at first")
		}
	})
}

func TestABreakerThatIsStoppedProbesNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBrokenStore()
		s.fail(failuresToOpen)
		s.stop()
		synctest.Wait()
		<-time.After(time.Minute)
		s.fail(failuresToOpen)
		if len(s.log()) > 0 || len(s.said()) != 1 {
			t.Errorf("got %d probes and changes %q, want none and one", len(s.log()), s.said())
		}
	})
}

// Probes that saw an outage can be trusted when they see its end.
func TestTheEndOfEachOutageIsNoticedAsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBrokenStore()
		defer s.stop()
		for range 20 {
			s.up.Store(false)
			s.fail(failuresToOpen)
			<-time.After(3 * time.Second)
			s.up.Store(true)
			<-time.After(2 * probeEvery)
			synctest.Wait()
			if s.isOpen() {
				t.Fatalf("%v after the end of an outage of 3s: got it open, want it closed", 2*probeEvery)
			}
			<-time.After(4 * time.Second)
		}
	})
}

// With a timeout above probeEvery, calls of the outage fail after its end.
func TestCallsFromBeforeTheBreakerClosedDoNotOpenItAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newBrokenStore()
		defer s.stop()
		before := s.generation()
		s.fail(failuresToOpen)
		s.up.Store(true)
		<-time.After(2 * probeEvery)
		synctest.Wait()
		for range 2 * failuresToOpen {
			s.failed(before, errors.New("no answer"))
		}
		if s.isOpen() {
			t.Error("after failures of calls that began in the outage: got it open, want it closed")
		}
	})
}
