package sharedstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// Without that, an outage would end with an empty bucket for everybody.
func TestChargesOfAnOutageAreToldAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		c := hourly(10, 1)
		c.Limit.Leak, c.Debt = 1.0/60, 0
		other := c
		other.Key = "other"
		n.wantAdmitted(4, c, 4)
		n.remote.down.Store(true)
		n.wantAdmitted(9, c, 6)
		n.wantAdmitted(2, other, 2)
		<-time.After(3*time.Minute + 100*time.Millisecond)
		n.wantAdmitted(4, c, 3)
		n.remote.down.Store(false)
		for n.backend.Down() { // for less than reconcileEvery
			<-time.After(10 * time.Millisecond)
		}
		// The store has seen 4, of which 1 is left. The next charge is poured there,
		// and the store is told of 9 more.
		n.wantAdmitted(1, c, 1)
		synctest.Wait()
		n.wantAdmitted(3, c, 0)
		<-time.After(time.Minute + 3*time.Second) // what a trial may have poured is told last
		n.wantAdmitted(2, c, 1)
		n.wantAdmitted(11, other, 10) // whose 2 have leaked
	})
}

// Seventeen requests left a level of 45 before: what was repaid after one outage
// was repaid again after the next.
func TestSeventeenRequestsAgainstAFlappingStoreAreSeventeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		c, admitted := hourly(100, 1), 0
		for i := range 17 {
			n.remote.down.Store(i%4 != 0)
			admitted += n.admits(1, c)
			<-time.After(2 * time.Second)
			synctest.Wait()
		}
		n.recover()
		n.admits(1, probe(c))
		synctest.Wait()
		if got := n.remote.level(t, c); admitted != 17 || !near(got, 17) {
			t.Errorf("got %d admitted and a level of %v, want 17 and 17", admitted, got)
		}
		for range 5 {
			n.admits(1, probe(c))
			synctest.Wait()
		}
		if got := n.remote.level(t, c); !near(got, 17) {
			t.Errorf("asked again: got a level of %v, want 17 still", got)
		}
	})
}

func TestCallsThatAreExecutedLateAreNotPouredTwice(t *testing.T) {
	for _, late := range []time.Duration{60 * time.Millisecond, 900 * time.Millisecond} {
		for _, executes := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				n := startNode(t, Options{})
				n.remote.executes.Store(executes)
				c := hourly(100, 1)
				n.wantAdmitted(1, c, 1)
				for range 8 {
					n.remote.slow.Store(int64(late)) // and the timeout is 50 ms
					n.wantAdmitted(1, c, 1)
					n.remote.slow.Store(int64(time.Millisecond))
					n.wantAdmitted(1, c, 1) // before the call above is executed
					<-time.After(300 * time.Millisecond)
				}
				n.recover()
				n.admits(1, probe(c))
				synctest.Wait()
				<-time.After(time.Second)
				if got := n.remote.level(t, c); !near(got, 17) {
					t.Errorf("calls that are executed after %v: %v: got a level of %v, want 17", late, executes, got)
				}
			})
		}
	}
}

func TestChargesThatTheStoreDidNotHearAreToldAgain(t *testing.T) {
	for _, executes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, Options{})
			n.remote.executes.Store(executes)
			c := hourly(100, 1)
			n.remote.down.Store(true)
			n.wantAdmitted(9, c, 9)
			n.remote.down.Store(false)
			n.remote.lazy.Store(int64(60 * time.Millisecond)) // for the settlement that tells
			<-time.After(patience)
			n.wantAdmitted(1, c, 1)
			<-time.After(100 * time.Millisecond)
			if got := n.remote.settles.Load(); got != 1 {
				t.Errorf("got the store told %d times, want once", got)
			}
			n.remote.lazy.Store(0)
			n.wantAdmitted(1, c, 1)
			<-time.After(3 * patience)
			n.admits(1, probe(c))
			synctest.Wait()
			if got := n.remote.level(t, c); !near(got, 11) {
				t.Errorf("a settlement that is executed late: %v: got a level of %v, want 11", executes, got)
			}
		})
	}
}

func TestAChargeOfAnOutageIsSettledAfterItWhereItWasTold(t *testing.T) {
	for _, diff := range []float64{-3, 20} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, Options{})
			c := hourly(100, 4)
			n.remote.down.Store(true)
			n.wantAdmitted(3, c, 3)
			charged, was := n.take(c)
			n.recover()
			n.admits(1, probe(c))
			synctest.Wait()
			if err := n.settle(charged, was, diff); err != nil {
				t.Fatal(err)
			}
			n.admits(1, probe(c))
			synctest.Wait()
			if got, want := n.remote.level(t, c), 16+diff; !near(got, want) {
				t.Errorf("settled by %v: got a level of %v, want %v", diff, got, want)
			}
		})
	}
}

func TestSettlementsOfAnOutageAreToldAfterIt(t *testing.T) {
	for _, diff := range []float64{-3, 20} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, Options{})
			c := hourly(100, 4)
			charged, was := n.take(c)
			n.remote.down.Store(true)
			n.wantAdmitted(failuresToOpen, hourly(100, 0), failuresToOpen)
			_ = n.settle(charged, was, diff)
			if got, want := n.backend.localLevel(&c), 4+diff; !near(got, want) {
				t.Errorf("settled by %v: got a level of %v here, want %v", diff, got, want)
			}
			n.recover()
			n.admits(1, probe(c))
			synctest.Wait()
			if got, want := n.remote.level(t, c), 4+diff; !near(got, want) {
				t.Errorf("settled by %v: got a level of %v, want %v", diff, got, want)
			}
			n.wantUnsettled(nil)
		})
	}
}

// Another node may be the next to ask for that bucket.
func TestASettlementAfterAnOutageIsToldWithoutAnotherRequest(t *testing.T) {
	for _, nodes := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, Options{Nodes: nodes})
			n.remote.down.Store(true)
			charged, was := n.take(hourly(100, 4))
			n.recover()
			<-time.After(time.Minute)
			_ = n.settle(charged, was, 3)
			<-time.After(2 * reconcileEvery)
			if got := n.remote.level(t, hourly(100, 4)); !near(got, 7) {
				t.Errorf("%d nodes: got a level of %v, want 7", nodes, got)
			}
		})
	}
}

// However much a request has cost, its bucket holds the capacity and the debt at most.
func TestASettlementOfAnOutageFillsNoBucketAboveItsDebt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		charged, was := n.take(hourly(10, 1))
		n.remote.down.Store(true)
		n.wantAdmitted(failuresToOpen, hourly(100, 0), failuresToOpen)
		_ = n.settle(charged, was, 1e6)
		n.recover() // and it is told
		n.remote.down.Store(true)
		if _, d := n.take(hourly(10, 1)); !near(d.Level, 20) {
			t.Errorf("the next outage begins with a level of %v, want 20", d.Level)
		}
	})
}

// A share of the level is less than what is given back of the whole.
func TestARefundOfAnOutageIsToldWhole(t *testing.T) {
	for _, told := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, Options{Nodes: 4})
			c := hourly(100, 8)
			n.remote.down.Store(true)
			n.wantAdmitted(failuresToOpen, hourly(100, 0), failuresToOpen)
			charged, was := n.take(c)
			if told {
				n.recover()
				n.admits(1, probe(c)) // shows a level with what was told
				n.remote.down.Store(true)
			}
			if err := n.settle(charged, was, -7); err != nil {
				t.Fatal(err)
			}
			n.recover()
			n.admits(1, probe(c))
			synctest.Wait()
			if got := n.remote.level(t, c); !near(got, 1) {
				t.Errorf("told before it was settled: %v: got a level of %v, want 1", told, got)
			}
			n.wantUnsettled(nil)
		})
	}
}

func TestReleasesOfAnOutageLeaveRoomForCharges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{Nodes: 2})
		n.remote.down.Store(true)
		n.wantAdmitted(failuresToOpen, hourly(100, 0), failuresToOpen)
		later := 0
		for i := range 300_000 {
			if errors.Is(n.Reset(t.Context(), "z", fmt.Sprint(i), false), ErrLater) {
				later++
			}
		}
		if later < 100_000 || later == 300_000 {
			t.Errorf("got %d releases kept, want many and not all", later)
		}
		n.wantAdmitted(3, hourly(100, 1), 3)
		n.recover()
		n.admits(1, probe(hourly(100, 1)))
		synctest.Wait()
		if got := n.remote.level(t, hourly(100, 1)); !near(got, 3) {
			t.Errorf("got a level of %v, want 3", got)
		}
	})
}

// Buckets that may be blocked are kept for longer than what they have to tell.
func TestWatchedBucketsLeaveRoomForCharges(t *testing.T) {
	for _, kind := range []string{"empty again", "in a second outage", "probes"} {
		synctest.Test(t, func(t *testing.T) {
			n := startNode(t, Options{Nodes: 4})
			n.remote.down.Store(true)
			n.wantAdmitted(failuresToOpen, hourly(100, 0), failuresToOpen)
			for i := range mostEntries + 1000 {
				c := banned()
				c.Key, c.Probe = fmt.Sprint(i), kind == "probes"
				n.take(c)
			}
			<-time.After(6 * time.Second)
			if kind == "in a second outage" {
				n.recover()
				n.remote.down.Store(true)
			}
			n.wantAdmitted(failuresToOpen, hourly(100, 0), failuresToOpen)
			n.wantAdmitted(3, hourly(100, 1), 3)
			n.recover()
			n.admits(1, probe(hourly(100, 1)))
			synctest.Wait()
			if got := n.remote.level(t, hourly(100, 1)); !near(got, 3) {
				t.Errorf("%s: got a level of %v, want 3", kind, got)
			}
		})
	}
}

func TestACancelledChargeOfAnOutageIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		c := hourly(100, 4)
		n.remote.down.Store(true)
		n.wantAdmitted(3, c, 3)
		charged, was := n.take(c)
		if err := n.Settle(t.Context(), []leakybucket.Settlement{{Charge: charged, Was: was, Cancel: true}}); err != nil {
			t.Fatal(err)
		}
		n.recover()
		n.admits(1, probe(c))
		synctest.Wait()
		if got := n.remote.level(t, c); !near(got, 12) {
			t.Errorf("got a level of %v, want 12", got)
		}
	})
}

func TestAResetBucketIsToldNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		c := hourly(10, 1)
		n.remote.down.Store(true)
		n.wantAdmitted(11, c, 10)
		if err := n.Reset(t.Context(), c.Zone, c.Key, false); err == nil {
			t.Error("got a bucket reset in a store that is down, want an error")
		}
		n.wantAdmitted(1, c, 1) // in this node's own
		n.recover()
		n.wantAdmitted(1, c, 1)
		synctest.Wait()
		if got := n.remote.level(t, c); !near(got, 2) {
			t.Errorf("got a level of %v, want 2", got)
		}
	})
}

// newEntry returns the entry of a bucket that hardly leaks and of which the store
// showed a level, on one of some nodes.
func newEntry(now time.Time, level, nodes float64) *entry {
	const leak = 0.001
	return &entry{at: now, limit: leakybucket.Limit{Leak: leak}, share: leak / nodes, seen: level}
}

func shown(at leakybucket.Instant, level float64) *leakybucket.Decision {
	return &leakybucket.Decision{At: at, Level: level}
}

func TestAnswersInAnotherOrderHideNoDoubtfulCall(t *testing.T) {
	now := time.Now()
	e := newEntry(now, 0, 1)
	e.admit(1, true) // and is not executed
	now = now.Add(3 * patience)
	e.advance(now)
	e.observe(shown(6, 1), 1, now, now) // after the one that comes next
	e.observe(shown(5, 0), 1, now, now)
	now = now.Add(3 * patience)
	e.advance(now)
	if got := e.observe(shown(7, 2), 0, now, now); !near(got, 1) {
		t.Errorf("got %v to tell, want 1", got)
	}
}

func TestAnswersFromBeforeATellHideNoDoubtfulCall(t *testing.T) {
	now := time.Now()
	e := newEntry(now, 0, 1)
	e.admit(5, false)
	e.admit(1, true) // and is not executed
	untold := e.observe(shown(1, 0), 0, now, now)
	if untold != 5 {
		t.Fatalf("got %v to tell, want 5", untold)
	}
	e.tell(untold)
	if got := e.observe(shown(2, 0), 2, now, now); got != 0 {
		t.Errorf("while 5 are told: got %v to tell, want none", got)
	}
	e.told(true, true, now, time.Second)
	e.observe(shown(3, 2), 2, now.Add(-time.Millisecond), now) // was executed before
	now = now.Add(3 * patience)
	e.advance(now)
	if got := e.observe(shown(4, 9), 0, now, now); !near(got, 1) {
		t.Errorf("got %v to tell, want 1", got)
	}
}

// A call that the store executed before it was told, and that answers after it, shows a
// level without what was told. The next outage begins at what was admitted all the same.
func TestAnAnswerFromBeforeATellHidesNothingOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		var hold atomic.Bool
		gate, answered := make(chan struct{}), make(chan struct{})
		n.remote.poured = func(*leakybucket.Charge) {
			if hold.CompareAndSwap(true, false) {
				<-gate
			}
		}
		c := hourly(1000, 1)
		n.wantAdmitted(1, c, 1)
		n.remote.down.Store(true)
		n.wantAdmitted(20, c, 20)
		n.remote.down.Store(false)
		<-time.After(reconcileEvery - DefaultTimeout/2) // pings have brought it back
		hold.Store(true)
		go func() {
			n.wantAdmitted(1, c, 1)
			close(answered)
		}()
		<-time.After(3 * DefaultTimeout / 4) // within which the reconciler tells of the outage
		synctest.Wait()
		close(gate)
		<-answered
		n.remote.down.Store(true)
		if _, d := n.take(c); !near(d.Level, 22) {
			t.Errorf("the next outage begins with a level of %v, want 22", d.Level)
		}
		n.recover()
		if got := n.remote.level(t, c); !near(got, 23) {
			t.Errorf("the store after both: got a level of %v, want 23", got)
		}
	})
}

// As the local bucket does: what the store holds first, then this node's own.
func TestOwnChargesLeakByTheNodesShare(t *testing.T) {
	now := time.Now()
	e := newEntry(now, 1, 4)
	e.admit(3, false)
	for _, step := range []struct {
		after     time.Duration
		seen, own float64
	}{
		{500 * time.Second, 0.5, 3},
		{500 * time.Second, 0, 3},
		{4000 * time.Second, 0, 2},
		{9000 * time.Second, 0, 0},
	} {
		now = now.Add(step.after)
		e.advance(now)
		if diff := e.seen - step.seen + e.own - step.own; diff > 1e-9 || diff < -1e-9 {
			t.Errorf("%v later: got %v seen and %v own, want %v and %v", step.after, e.seen, e.own, step.seen, step.own)
		}
	}
	e.own = -3
	e.advance(now.Add(1000 * time.Second))
	if e.own != -2 {
		t.Errorf("of 3 to give back, after 1 has leaked: got %v, want -2", e.own)
	}
}

// The property that the package comment states: whatever the store does, and
// whenever, in the end its bucket has what was admitted.
func TestAFlappingStoreHasWhatWasAdmittedInTheEnd(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	for _, nodes := range []int{1, 3} {
		for seed := range seeds {
			t.Run(fmt.Sprintf("nodes=%d/seed=%d", nodes, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { flap(t, seed, nodes) })
			})
		}
	}
}

// An account is what a bucket would hold that is asked for everything.
type account struct {
	mu    sync.Mutex
	leak  float64
	level float64
	at    time.Time
	total float64
}

func (a *account) pour(cost float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.advance()
	a.level = max(0, a.level+cost)
	a.total += max(0, cost)
}

func (a *account) advance() {
	now := time.Now()
	a.level = max(0, a.level-a.leak*now.Sub(a.at).Seconds())
	a.at = now
}

func flap(t *testing.T, seed uint64, nodes int) {
	random := rand.New(rand.NewPCG(seed, 5))
	n := startNode(t, Options{Nodes: nodes})
	c := leakybucket.Charge{Zone: "z", Key: "k", Limit: leakybucket.Limit{Capacity: 30, Leak: 2}, Debt: 1e6}
	truth := &account{leak: c.Limit.Leak, at: time.Now()}
	slowest := &account{leak: c.Limit.Leak / float64(nodes), at: time.Now()}
	var mu sync.Mutex
	numbers, here, there := 0.0, make(map[float64]bool), make(map[float64]float64) // by number: whether it was admitted, and what the store poured
	lost := 0.0                                                                    // what may not have been given back
	admitted := func(cost float64) {
		truth.pour(cost)
		slowest.pour(cost)
	}
	n.remote.poured = func(c *leakybucket.Charge) {
		mu.Lock()
		defer mu.Unlock()
		there[c.Undelayed] = c.Cost
	}
	settles, together := seed%2 == 1, seed%3 == 0
	var settling sync.WaitGroup
	request := func(cost float64, diff float64, busy time.Duration) {
		charge := c
		mu.Lock()
		numbers++
		number := numbers
		mu.Unlock()
		charge.Cost, charge.Undelayed = cost, number // which decides nothing
		charge, d := n.take(charge)
		if !d.Poured {
			return
		}
		admitted(charge.Cost)
		mu.Lock()
		here[number] = true
		mu.Unlock()
		if !settles {
			return
		}
		settling.Go(func() {
			time.Sleep(busy)
			if diff > 0 {
				admitted(diff)
				_ = n.settle(charge, d, diff)
				return
			}
			back := min(-diff, charge.Cost)
			mu.Lock()
			lost += back
			mu.Unlock()
			_ = n.settle(charge, d, diff)
			truth.pour(-max(0, back-charge.Limit.Leak*busy.Seconds()))
		})
	}
	var working sync.WaitGroup
	for range 25 { // phases
		n.remote.down.Store(false)
		n.remote.executes.Store(random.IntN(2) == 0)
		n.remote.slow.Store(int64(time.Millisecond))
		switch random.IntN(5) {
		case 0:
			n.remote.down.Store(true)
		case 1:
			n.remote.slow.Store(int64(random.IntN(800)) * int64(time.Millisecond))
		case 2:
			n.remote.slow.Store(int64(40+random.IntN(30)) * int64(time.Millisecond))
		}
		for range random.IntN(12) {
			for range 1 + random.IntN(3) {
				cost, diff, busy := float64(1+random.IntN(3)), float64(random.IntN(5)-2), time.Duration(random.IntN(400))*time.Millisecond
				if together {
					working.Go(func() { request(cost, diff, busy) })
				} else {
					request(cost, diff, busy)
				}
			}
			time.Sleep(time.Duration(random.IntN(250)) * time.Millisecond)
		}
	}
	working.Wait()
	settling.Wait()
	n.remote.slow.Store(0)
	n.recover()
	for range 3 {
		n.admits(1, probe(c))
		<-time.After(1100 * time.Millisecond)
		synctest.Wait()
	}
	truth.pour(0)
	slowest.pour(0)
	refused := 0.0 // here, and poured there all the same
	for number, cost := range there {
		if !here[number] {
			refused += cost
		}
	}
	got, low, high := n.remote.level(t, c), truth.level, min(slowest.level, truth.total)+refused+lost
	high += 0.05 * c.Limit.Leak // a trial goes on, and may pour into an empty bucket after its request was decided
	if together {
		low -= 6 // of answers that come in another order, what one or two of them poured
	}
	if got < low-1e-6 || got > high+1e-6 {
		t.Errorf("got a level of %v, want one from %v to %v", got, low, high)
	}
	if e, found := n.backend.ledger.get(bucketOf(&c), time.Now()); found {
		t.Errorf("got %+v in the ledger, want nothing", e)
	}
}

// Nodes cannot tell each other's charges from calls of their own that may have
// been executed, so what may be missing is no more than those.
func TestTwoNodesOfAFlappingStoreLoseNoMoreThanDoubtfulCalls(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 6))
			first := startNode(t, Options{Nodes: 2})
			second := join(t, &remote{Store: first.remote.Store}, Options{Nodes: 2})
			c := leakybucket.Charge{Zone: "z", Key: "k", Limit: leakybucket.Limit{Capacity: 40, Leak: 1}, Debt: 1e6}
			truth := &account{leak: c.Limit.Leak, at: time.Now()}
			slowest := &account{leak: c.Limit.Leak / 2, at: time.Now()}
			doubtful := 0.0
			for range 300 {
				n := []*node{first, second}[random.IntN(2)]
				if random.IntN(12) == 0 {
					n.remote.down.Store(!n.remote.down.Load())
				}
				charge := c
				charge.Cost = float64(1 + random.IntN(3))
				before := n.remote.takes.Load()
				charge, d := n.take(charge)
				if d.Poured {
					truth.pour(charge.Cost)
					slowest.pour(charge.Cost)
					if FellBack(&d) && n.remote.takes.Load() != before {
						doubtful += charge.Cost
					}
				}
				time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
			}
			first.recover()
			second.recover()
			for range 3 {
				first.admits(1, probe(c))
				synctest.Wait()
				second.admits(1, probe(c))
				synctest.Wait()
				<-time.After(2 * patience)
			}
			truth.pour(0)
			slowest.pour(0)
			got := first.remote.level(t, c)
			if low, high := truth.level-doubtful, min(slowest.level, truth.total); got < low-1e-6 || got > high+1e-6 {
				t.Errorf("seed %d: got a level of %v, want one from %v to %v", seed, got, low, high)
			}
		})
	}
}

// probe returns a charge that asks and changes nothing.
func probe(c leakybucket.Charge) leakybucket.Charge {
	c.Cost, c.Probe = -1, true
	return c
}

func TestALedgerKeepsNoMoreThanItMayAndNothingThatHasEnded(t *testing.T) {
	l, now := ledger{entries: make(map[bucket]*entry)}, time.Now()
	name := func(i int) bucket { return bucket{zone: "z", key: fmt.Sprint(i)} }
	put := func(i int, own float64) (room bool) {
		return l.update(name(i), now, func(e *entry, _ bool) {
			e.limit, e.share, e.own = leakybucket.Limit{Capacity: 1e3, Leak: 1}, 1, own
		})
	}
	for i := range mostEntries {
		if !put(i, 60) {
			t.Fatalf("got no room for entry %d", i)
		}
	}
	if put(mostEntries, 60) {
		t.Error("got room in a full ledger")
	}
	if !put(0, 120) {
		t.Error("got no room for a bucket that is known")
	}
	now = now.Add(time.Minute)
	if e, found := l.get(name(1), now); found {
		t.Errorf("got %+v after its end", e)
	}
	if e, found := l.get(name(0), now); !found || e.own != 60 {
		t.Errorf("got %+v, want half of the later value", e)
	}
	for i := range mostEntries {
		l.update(name(i), now, func(_ *entry, found bool) {
			if found != (i == 0) {
				t.Errorf("entry %d: found: %v", i, found)
			}
		})
	}
	if names := l.names(); len(names) != 1 || names[0] != name(0) {
		t.Errorf("got %v, want the one that has not ended", names)
	}
	if !put(mostEntries, 60) {
		t.Error("got no room in place of what has ended")
	}
	l.forget(name(mostEntries))
	l.forget(name(0))
	if !l.empty() {
		t.Errorf("got %d entries, want none", len(l.entries))
	}
}
