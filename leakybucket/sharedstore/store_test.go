package sharedstore

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// visit is what a request asks of the store that reads a body and settles.
func (n *node) visit(c leakybucket.Charge, diff float64) (fellBack bool) {
	asked := c
	asked.Probe = true
	n.take(asked)
	c, d := n.take(c)
	_ = n.settle(c, d, diff)
	return FellBack(&d)
}

func TestEachCallOfARequestHasABudgetOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Timeout: 50 * time.Millisecond})
		n.remote.slow.Store(int64(30 * time.Millisecond))
		c := hourly(100, 1)
		for i := range 5 {
			if n.visit(c, 1) {
				t.Errorf("request %d: got it decided without the store, want it asked", i+1)
			}
		}
		<-time.After(time.Second)
		if got := n.remote.level(t, c); !near(got, 10) {
			t.Errorf("5 requests of 1 that are settled to 2: got a level of %v, want 10", got)
		}
		n.wantUnsettled(nil)
		n.wantHeard()
	})
}

func TestRequestsAtTheSameTimeDoNotTakeAHealthySlowStoreForDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Timeout: 50 * time.Millisecond})
		n.remote.slow.Store(int64(30 * time.Millisecond))
		var working sync.WaitGroup
		for range 20 {
			for range 4 {
				working.Go(func() {
					if n.visit(hourly(1000, 1), 1) {
						t.Error("got a request decided without the store, want it asked")
					}
				})
			}
			<-time.After(17 * time.Millisecond)
		}
		working.Wait()
		<-time.After(time.Second)
		n.wantUnsettled(nil)
		n.wantHeard()
	})
}

func TestRunningOutOfTheCallersDeadlineIsNoFailureOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Timeout: 50 * time.Millisecond})
		n.remote.slow.Store(int64(30 * time.Millisecond))
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			start := time.Now()
			var d [1]leakybucket.Decision
			if err := n.Take(ctx, []leakybucket.Charge{hourly(100, 1)}, d[:]); err != nil || !FellBack(&d[0]) || !d[0].Fits {
				t.Errorf("got %+v and error %v, want it decided without the store", d[0], err)
			}
			if got := time.Since(start); got != 20*time.Millisecond {
				t.Errorf("got it decided after %v, want after 20ms", got)
			}
			cancel()
		}
		n.wantHeard()
		if _, d := n.take(hourly(100, 1)); FellBack(&d) {
			t.Error("a caller without a deadline: got it decided without the store, want it asked")
		}
	})
}

func TestAClientThatLeavesBreaksNoCallOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		n.remote.slow.Store(int64(30 * time.Millisecond))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var d [1]leakybucket.Decision
		if err := n.Take(ctx, []leakybucket.Charge{hourly(100, 1)}, d[:]); err != nil || FellBack(&d[0]) {
			t.Errorf("got %+v and error %v, want the store asked", d[0], err)
		}
		if err := n.Settle(ctx, []leakybucket.Settlement{{Charge: hourly(100, 1), Was: d[0], Diff: 5}}); err != nil {
			t.Error(err)
		}
		<-time.After(time.Second)
		if got := n.remote.level(t, hourly(100, 1)); !near(got, 6) {
			t.Errorf("got a level of %v, want 6", got)
		}
	})
}

func TestARequestWaitsNoLongerThanItsCallsMay(t *testing.T) {
	for _, test := range []struct{ slow, want time.Duration }{
		{10 * time.Millisecond, 30 * time.Millisecond},
		{24 * time.Millisecond, 58 * time.Millisecond}, // settling goes on without it
		{40 * time.Millisecond, 90 * time.Millisecond},
		{90 * time.Millisecond, 100 * time.Millisecond}, // both takes, and settled here
	} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, Options{Timeout: 50 * time.Millisecond})
			n.remote.slow.Store(int64(test.slow))
			start := time.Now()
			n.visit(hourly(100, 1), 1)
			if got := time.Since(start); got != test.want {
				t.Errorf("a store that takes %v: got the request done after %v, want after %v", test.slow, got, test.want)
			}
			<-time.After(time.Second)
		})
	}
}

func TestSettlingGoesOnWhenTheCallerHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Timeout: 50 * time.Millisecond})
		c, d := n.take(hourly(100, 1))
		n.remote.slow.Store(int64(45 * time.Millisecond))
		settlements := []leakybucket.Settlement{{Charge: c, Was: d, Diff: 5}}
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		if err := n.Settle(ctx, settlements); err != nil {
			t.Error(err)
		}
		if got, want := time.Since(start), 10*time.Millisecond; got != want {
			t.Errorf("got the caller wait %v, want %v", got, want)
		}
		clear(settlements) // the caller may use them for other requests
		_ = n.backend.Destruct()
		synctest.Wait()
		if n.remote.closed.Load() != 0 {
			t.Error("while it settles: got the store closed, want it open")
		}
		<-time.After(35 * time.Millisecond)
		synctest.Wait()
		if got := n.remote.level(t, c); !near(got, 6) || n.remote.closed.Load() != 1 {
			t.Errorf("got a level of %v and the store closed %d times, want 6 and once", got, n.remote.closed.Load())
		}
	})
}

func TestErrorsOfSettlingAreToldWhenTheCallerHasGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		c, d := n.take(hourly(100, 4))
		n.remote.hung.Store(true)
		if err := n.settle(c, d, -3); err != nil {
			t.Errorf("got error %v, want none before the call has ended", err)
		}
		n.wantHeard()
		<-time.After(time.Second)
		n.wantHeard("settling : no answer within the timeout: context deadline exceeded")
		n.wantUnsettled(map[string]int{"z": 1})
	})
}

func TestAReasonIsToldThoughAnotherWasJustTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		c, d := n.take(hourly(100, 4))
		n.remote.deaf.Store(true)
		if err := n.settle(c, d, -3); err == nil {
			t.Error("got no error, want the store's")
		}
		n.remote.none = c.Key
		for range 20 {
			n.take(hourly(100, 4))
		}
		n.wantHeard("settling : connection reset", "asking th: reading a list: not a bucket")
	})
}

func TestSettlementsThatFailAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		n.remote.deaf.Store(true)
		for range 2 {
			c, d := n.take(hourly(100, 10))
			if err := n.settle(c, d, -10); err == nil {
				t.Error("got no error, want the store's")
			}
		}
		n.wantUnsettled(map[string]int{"z": 2})
		if got := n.remote.level(t, hourly(100, 1)); !near(got, 20) {
			t.Errorf("got a level of %v, want the 20 that were reserved", got)
		}
	})
}

func TestChargesAreSettledInTheStoreThatTookThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		c := hourly(100, 10)
		there, wasThere := n.take(c)
		n.remote.down.Store(true)
		var here []leakybucket.Settlement
		for range 5 {
			charge, was := n.take(c)
			here = append(here, leakybucket.Settlement{Charge: charge, Was: was, Diff: -10})
		}
		if err := n.Settle(t.Context(), here); err != nil || n.remote.settles.Load() != 0 {
			t.Errorf("charges taken here: got error %v and %d settlements there, want none", err, n.remote.settles.Load())
		}
		n.recover()
		if err := n.settle(there, wasThere, -10); err != nil {
			t.Fatal(err)
		}
		if got := n.remote.settles.Load(); got != 1 {
			t.Errorf("got %d settlements in the remote store, want 1", got)
		}
		if got := n.remote.level(t, c); !near(got, 0) {
			t.Errorf("there: got a level of %v, want 0", got)
		}
		if got := n.backend.localLevel(&c); !near(got, 0) {
			t.Errorf("here: got a level of %v, want 0", got)
		}
		n.wantUnsettled(nil)
	})
}

func TestAStoreThatHangsCostsNobodyMoreThanItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Timeout: 20 * time.Millisecond})
		n.remote.hung.Store(true)
		for i := range 10 {
			start := time.Now()
			n.wantAdmitted(1, hourly(100, 1), 1)
			want := 20 * time.Millisecond
			if i >= failuresToOpen {
				want = 0 // it is known by now
			}
			if took := time.Since(start); took != want {
				t.Errorf("request %d: got it decided after %v, want after %v", i+1, took, want)
			}
		}
		n.recover()
		before := n.remote.takes.Load()
		n.wantAdmitted(1, hourly(100, 1), 1)
		if got := n.remote.takes.Load() - before; got != 1 {
			t.Errorf("after its recovery: got it asked %d times by a request, want once", got)
		}
	})
}

// Requests would try it again and again otherwise, and each would wait.
func TestAStoreThatAnswersTooLateIsDownUntilItAnswersInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		n.remote.slow.Store(int64(60 * time.Millisecond))
		late, tried := 0, 0
		for start := time.Now(); time.Since(start) < 30*time.Second; {
			before := time.Now()
			n.take(hourly(10000, 1))
			switch took := time.Since(before); {
			case took >= DefaultTimeout:
				late++
			case took > 0:
				tried++
			}
			<-time.After(10 * time.Millisecond)
		}
		if late != failuresToOpen || tried > 40 {
			t.Errorf("in 30s of answers after 60ms: got %d requests that waited and %d that waited a fifth, want %d and one a second", late, tried, failuresToOpen)
		}
		n.remote.slow.Store(int64(10 * time.Millisecond))
		<-time.After(2 * longestHold)
		synctest.Wait()
		if _, d := n.take(hourly(10000, 1)); FellBack(&d) {
			t.Error("two seconds after it answers in time again: got it left alone, want it asked")
		}
	})
}

// Something else has the name of one bucket. The store is well for all others,
// however often that one is asked for.
func TestAnErrorAboutOneBucketIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Zone: policies(Deny)})
		n.remote.none = "none"
		c := hourly(100, 1)
		c.Key = "none"
		n.wantAdmitted(20, c, 0)
		n.wantAdmitted(20, hourly(100, 1), 20)
		n.wantHeard("asking th: reading a list: " + leakybucket.ErrBadBucket.Error())
		if n.witness.errors != 20 {
			t.Errorf("got %d errors counted, want 20", n.witness.errors)
		}
	})
}

func TestBucketsOfZonesThatAllowAreNotRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Zone: policies(Allow)})
		charged, was := n.take(hourly(10, 1))
		if FellBack(&was) {
			t.Errorf("got %+v, want a decision of the remote store", was)
		}
		if got := n.backend.localLevel(&charged); got != 0 {
			t.Errorf("a zone that allows: got a level of %v remembered, want none", got)
		}
	})
}

func TestUndecidedChargesAreSettledNowhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Zone: policies(Allow)})
		n.remote.down.Store(true)
		c, was := n.take(hourly(10, 1))
		if err := n.settle(c, was, 5); err != nil {
			t.Error(err)
		}
		if n.remote.settles.Load() != 0 || n.backend.localLevel(&c) != 0 {
			t.Error("got it settled, want it left alone")
		}
	})
}

func TestAStoreThatAnswersLeavesChargesAsTheyAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Nodes: 3})
		charges := []leakybucket.Charge{hourly(30, 20), hourly(30, 1)}
		charges[1].Key = "other"
		want := slices.Clone(charges)
		n.ask(charges...)
		if charges[0] != want[0] || charges[1] != want[1] {
			t.Errorf("a store that answers: got charges %+v, want them as they were", charges)
		}
	})
}
