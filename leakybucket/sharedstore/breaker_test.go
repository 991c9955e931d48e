package sharedstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// set opens or closes the breaker of a store without shards, without any trials.
func (b *breakers) set(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := b.permit(0).breaker
	of.open, of.trying, of.due = down, false, time.Now().Add(time.Hour)
	b.open.Store(0)
	if down {
		b.open.Store(1)
	}
}

var errRefused = errors.New("connection refused")

// Each letter is a call, one second after the one before: s succeeds, f fails.
func TestABreakerOpensWhenHalfOfTheCallsInItsWindowFailed(t *testing.T) {
	for _, test := range []struct {
		calls  string
		opened int // after so many calls; 0 if never
	}{
		{"fff", 3},
		{"sfff", 4},
		{"fsfsfsfs", 5},
		{"ssff" + "ssff" + "ssff", 8},
		{"ssf" + "ssf" + "ssf" + "ssf" + "ssf", 0},
		{strings.Repeat("s", 100) + "ffffff", 106}, // 11 calls are in the window
		{"ff" + strings.Repeat("s", 11) + "ff", 0},
	} {
		b, now, opened := breakers{changed: func(bool, error, time.Duration) {}}, time.Now(), 0
		for i, call := range test.calls {
			p, admitted := b.admit(now, 0)
			if !admitted {
				break
			}
			var err error
			if call == 'f' {
				err = errRefused
			}
			if b.report(&p, err, now); b.isOpen() {
				opened = i + 1
				break
			}
			now = now.Add(time.Second)
		}
		if opened != test.opened {
			t.Errorf("%s: got it open after call %d, want after %d", test.calls, opened, test.opened)
		}
	}
}

// opened returns a breaker that has just opened, and what it said.
func opened(now time.Time) (*breakers, *[]string) {
	said := new([]string)
	b := &breakers{changed: func(down bool, err error, after time.Duration) {
		if down {
			*said = append(*said, fmt.Sprint("down: ", err))
		} else {
			*said = append(*said, fmt.Sprint("up after ", after.Round(time.Second)))
		}
	}}
	b.fail(now)
	return b, said
}

func (b *breakers) fail(now time.Time) {
	for range failuresToOpen {
		p, _ := b.admit(now, 0)
		b.report(&p, errRefused, now)
	}
}

// nextTrial returns the first trial that is admitted from now on, and when it is.
func (b *breakers) nextTrial(now time.Time) (permit, time.Time) {
	for {
		if p, admitted := b.admit(now, 0); admitted {
			return p, now
		}
		now = now.Add(time.Millisecond)
	}
}

func TestTrialsAreOneAtATimeAndRarerWhileTheyFail(t *testing.T) {
	now := time.Now()
	b, said := opened(now)
	for i, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
		p, at := b.nextTrial(now)
		want *= time.Millisecond
		if got := at.Sub(now); !p.trial || got < want*7/8 || got > want*9/8+time.Millisecond {
			t.Errorf("trial %d: got it after %v, want after about %v", i+1, got, want)
		}
		if _, admitted := b.admit(at.Add(time.Minute), 0); admitted {
			t.Errorf("trial %d: got another one admitted beside it, want none", i+1)
		}
		b.report(&p, errRefused, at)
		now = at
	}
	if got := fmt.Sprint(*said); got != "[down: connection refused]" {
		t.Errorf("got %s said, want only that it is down", got)
	}
}

func TestTrialsThatSucceedInARowCloseIt(t *testing.T) {
	began := time.Now()
	b, said := opened(began)
	now := began
	for i, outcome := range []error{nil, nil, errRefused, nil, nil, nil} {
		p, at := b.nextTrial(now)
		if i != 0 && i != 3 && at != now {
			t.Errorf("trial %d, after one that succeeded: got it %v later, want at once", i+1, at.Sub(now))
		}
		b.report(&p, outcome, at)
		if got, want := b.isOpen(), i < 5; got != want {
			t.Errorf("after trial %d: got open %v, want %v", i+1, got, want)
		}
		now = at
	}
	if got := fmt.Sprint(*said); got != "[down: connection refused up after 0s]" {
		t.Errorf("got %s said, want down and up", got)
	}
	if b.isFailing(now) {
		t.Error("after it closed: got it failing, want it well")
	}
}

// A store may answer trials and nothing else.
func TestABreakerThatOpensAgainAndAgainWaitsLonger(t *testing.T) {
	now := time.Now()
	b, _ := opened(now)
	again := func() (held time.Duration) {
		_, at := b.nextTrial(now)
		held, now = at.Sub(now), at
		p := permit{breaker: b.of[0], switched: b.of[0].switched, trial: true}
		for range successesToClose {
			b.report(&p, nil, now)
		}
		return held
	}
	for i, want := range []time.Duration{100, 200, 400, 800, 1000, 1000} {
		want *= time.Millisecond
		if got := again(); got < want*7/8 || got > want*9/8+time.Millisecond {
			t.Errorf("opening %d: got a trial after %v, want after about %v", i+1, got, want)
		}
		b.fail(now)
	}
	again()
	now = now.Add(window + time.Second)
	b.fail(now)
	if got := again(); got > firstHold*9/8+time.Millisecond {
		t.Errorf("long after it closed: got a trial after %v, want after about %v", got, firstHold)
	}
}

// With a long timeout, calls of an outage fail after its end.
func TestCallsFromBeforeTheBreakerSwitchedSayNothing(t *testing.T) {
	now := time.Now()
	b := breakers{changed: func(bool, error, time.Duration) {}}
	before, _ := b.admit(now, 0)
	b.fail(now)
	b.report(&before, nil, now)
	for range successesToClose {
		var p permit
		p, now = b.nextTrial(now)
		b.report(&p, nil, now)
	}
	for range 2 * failuresToOpen {
		b.report(&before, errRefused, now)
	}
	if b.isOpen() || b.isFailing(now) {
		t.Error("after failures of calls that began before the outage: got it failing, want it closed")
	}
}

// A haunted store has some calls that hang, or all its buckets are being moved.
type haunted struct {
	remote
	hangs func(*leakybucket.Charge) bool
	moves bool
}

func (h *haunted) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	if h.hangs(&charges[0]) {
		<-ctx.Done()
		return ctx.Err()
	}
	if h.moves {
		return fmt.Errorf("TRYAGAIN: %w", leakybucket.ErrMoving)
	}
	return h.remote.Take(ctx, charges, decisions)
}

// flood makes so many requests a second for a while, and returns how many waited for the
// whole timeout. Each has a key of its own.
func flood(t *testing.T, s *Store, perSecond int, lasts time.Duration) (requests, waited int) {
	var crowd sync.WaitGroup
	var slow atomic.Int64
	for began := time.Now(); time.Since(began) < lasts; requests++ {
		c := hourly(1e6, 1)
		c.Key = fmt.Sprint(requests)
		crowd.Go(func() {
			start := time.Now()
			if err := s.Take(t.Context(), []leakybucket.Charge{c}, make([]leakybucket.Decision, 1)); err != nil {
				t.Error(err)
			}
			if time.Since(start) >= s.timeout {
				slow.Add(1)
			}
		})
		<-time.After(time.Second / time.Duration(perSecond))
	}
	crowd.Wait()
	return requests, int(slow.Load())
}

func startHaunted(t *testing.T) (*haunted, *Store, *Backend) {
	h := &haunted{remote: remote{Store: memstore.New(memstore.Options{})}}
	h.hangs = func(*leakybucket.Charge) bool { return false }
	b := NewBackend("test", h, memstore.New(memstore.Options{}))
	b.Attach(new(witness))
	t.Cleanup(func() {
		_ = b.Destruct()
		<-time.After(time.Second)
		synctest.Wait()
	})
	return h, b.With(Options{}), b
}

// The store answers pings, and hangs on all else.
func TestAStoreThatOnlyAnswersPingsIsTriedByFewRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s, b := startHaunted(t)
		h.hangs = func(c *leakybucket.Charge) bool { return c.Zone != "@probe" }
		_, opening := flood(t, s, 2000, 200*time.Millisecond)
		if !b.Down() {
			t.Fatal("after 200ms: got it up, want it down")
		}
		requests, waited := flood(t, s, 2000, 3*time.Second)
		t.Logf("%d requests waited at the opening, then %d of %d", opening, waited, requests)
		if waited > 30 {
			t.Errorf("after the first opening: got %d of %d requests that waited for the whole timeout, want at most 30", waited, requests)
		}
	})
}

// Ten good seconds hide no outage, however many or few requests there are.
func TestAnOutageIsNoticedAtAnyRate(t *testing.T) {
	for _, test := range []struct{ perSecond, most int }{
		{1, 5},               // half of what the window holds
		{50, 15},             // ten of the last twenty, and those under way
		{5000, 5000/20 + 20}, // who came within the timeout
	} {
		synctest.Test(t, func(t *testing.T) {
			h, s, b := startHaunted(t)
			flood(t, s, test.perSecond, 10*time.Second)
			h.hangs = func(*leakybucket.Charge) bool { return true }
			requests, waited := flood(t, s, test.perSecond, 10*time.Second)
			t.Logf("%d a second: %d of %d requests waited", test.perSecond, waited, requests)
			if waited > test.most || !b.Down() {
				t.Errorf("%d requests a second: got %d that waited and down %v, want at most %d", test.perSecond, waited, b.Down(), test.most)
			}
		})
	}
}

// Failures need not be in a row: of two halves of a store one may be dead.
func TestAStoreThatFailsEverySecondCallIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s, b := startHaunted(t)
		calls := 0
		h.hangs = func(*leakybucket.Charge) bool {
			calls++
			return calls%2 == 0
		}
		waited := 0
		for range 200 {
			start := time.Now()
			_ = s.Take(t.Context(), []leakybucket.Charge{hourly(1e6, 1)}, make([]leakybucket.Decision, 1))
			if time.Since(start) >= s.timeout {
				waited++
			}
		}
		if waited > 2*failuresToOpen || !b.Down() {
			t.Errorf("got %d of 200 requests that waited and down %v, want at most %d and true", waited, b.Down(), 2*failuresToOpen)
		}
	})
}

func TestAStoreIsFailingFromItsFirstFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		n.take(hourly(100, 1))
		want := func(when string, failing, down bool) {
			t.Helper()
			if got := n.backend.Failing(); got != failing || n.backend.Down() != down {
				t.Errorf("%s: got failing %v and down %v, want %v and %v", when, got, n.backend.Down(), failing, down)
			}
		}
		want("a store that answers", false, false)
		n.remote.down.Store(true)
		n.take(hourly(100, 1))
		want("after one failure", true, false)
		n.admits(failuresToOpen, hourly(100, 1))
		want("after some", true, true)
		n.recover()
		want("after the outage", false, false)
	})
}

// The requests that try it do not wait for it, and yet it proves itself.
func TestAStoreThatIsSlowWithinItsTimeoutComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Timeout: 50 * time.Millisecond})
		n.remote.down.Store(true)
		n.admits(failuresToOpen, hourly(1e6, 1))
		n.remote.down.Store(false)
		n.remote.slow.Store(int64(40 * time.Millisecond))
		for start := time.Now(); n.backend.Down(); {
			before := time.Now()
			n.take(hourly(1e6, 1))
			// A trial may have ended the outage just before.
			if got := time.Since(before); n.backend.Down() && got != 0 && got != 10*time.Millisecond {
				t.Fatalf("while it is down: got a request that waits %v, want 10ms at most", got)
			}
			<-time.After(time.Millisecond)
			if time.Since(start) > time.Second {
				t.Fatal("after a second: got it down, want it up")
			}
		}
		if _, d := n.take(hourly(1e6, 1)); FellBack(&d) {
			t.Error("got a request decided without the store, want it asked")
		}
	})
}

// The store pours for requests that have fallen back meanwhile.
func TestTrialsThatNobodyWaitedForAreChargedOnce(t *testing.T) {
	for _, timeout := range []time.Duration{50 * time.Millisecond, 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, Options{Timeout: timeout})
			c := hourly(1e6, 1)
			n.remote.down.Store(true)
			n.admits(failuresToOpen, c)
			n.remote.down.Store(false)
			n.remote.slow.Store(int64(timeout * 4 / 5))
			requests := failuresToOpen
			for start := time.Now(); n.backend.Down() && time.Since(start) < time.Minute; requests++ {
				n.wantAdmitted(1, c, 1)
				<-time.After(time.Millisecond)
			}
			n.remote.slow.Store(0)
			n.recover()
			n.wantAdmitted(1, c, 1)
			n.recover()
			if got, want := n.remote.level(t, c), float64(requests+1); !near(got, want) {
				t.Errorf("timeout %v: got a level of %v, want %v", timeout, got, want)
			}
		})
	}
}

func TestTheEndOfAnOutageIsNoticedWithoutRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Zone: policies(Deny)})
		for range 5 {
			n.remote.down.Store(true)
			n.admits(failuresToOpen, hourly(100, 1))
			<-time.After(time.Minute)
			n.remote.down.Store(false)
			<-time.After(2 * longestHold)
			synctest.Wait()
			if n.backend.Down() {
				t.Fatalf("%v after the end of an outage: got it down, want it up", 2*longestHold)
			}
		}
	})
}
