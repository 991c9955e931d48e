package admission

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
)

// shared returns an entry in a zone whose clients take turns.
func shared(zone *Zone, slots int, rank fairqueue.Rank, key string) Entry {
	return Entry{
		Zone: zone, Key: "all", InFlight: slots, MaxWait: 24 * time.Hour, MaxWaiting: 1000,
		Turn: &Turn{Request: fairqueue.Request{Rank: rank, Keys: [2]string{key}}},
	}
}

func TestHigherRanksGetTheirSlotsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone, gate := &Zone{Name: "z"}, new(Gate)
		var visits []*visit
		for i, rank := range []fairqueue.Rank{fairqueue.First, fairqueue.First, fairqueue.Crawler, fairqueue.Returned, fairqueue.Member} {
			visits = append(visits, come(gate, time.Second, shared(zone, 1, rank, fmt.Sprint(i))))
		}
		pass(time.Minute)
		wantWaits(t, visits, 0, 4, 3, 2, 1)
		wantEmpty(t, zone)
	})
}

func TestATurnKnowsHowManyWereAheadAndForHowLongItHeldItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone, gate := &Zone{Name: "z"}, new(Gate)
		var turns []*Turn
		for i := range 3 {
			e := shared(zone, 1, fairqueue.First, fmt.Sprint(i))
			turns = append(turns, e.Turn)
			come(gate, 500*time.Millisecond, e)
		}
		pass(time.Minute)
		for i, turn := range turns {
			held, over := turn.Held()
			if want := max(0, i-1); turn.Ahead != want || held != 500*time.Millisecond || !over {
				t.Errorf("request %d: got %d ahead and %v, want %d and 500ms", i+1, turn.Ahead, held, want)
			}
		}
		if turns[0].Predicted != 0 || turns[1].Predicted != time.Second || turns[2].Predicted != 2*time.Second {
			t.Errorf("got predictions of %v, %v, %v, want 0s, 1s, 2s", turns[0].Predicted, turns[1].Predicted, turns[2].Predicted)
		}
		wantEmpty(t, zone)
	})
}

func TestARequestThatComesTooEarlyForTwoZonesWaitsForBothAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := new(Gate)
		a, b := shared(&Zone{Name: "a"}, 1, fairqueue.First, "x"), shared(&Zone{Name: "b"}, 1, fairqueue.First, "x")
		a.Early, b.Early = 3*time.Second, 4*time.Second
		early := come(gate, 0, a, b)
		pass(time.Minute)
		wantWaits(t, []*visit{early}, 4)
	})
}

func TestARequestThatIsDisplacedIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone, gate := &Zone{Name: "z"}, new(Gate)
		entry := func(rank fairqueue.Rank, key string) Entry {
			e := shared(zone, 1, rank, key)
			e.MaxWaiting = 1
			return e
		}
		visits := []*visit{
			come(gate, time.Second, entry(fairqueue.First, "a")), come(gate, time.Second, entry(fairqueue.First, "b")),
			come(gate, time.Second, entry(fairqueue.Returned, "c")), come(gate, time.Second, entry(fairqueue.Member, "d")),
		}
		if visits[1].result.Why != QueueFull || visits[2].result.Why != QueueFull {
			t.Errorf("got %v and %v, want both displaced at once", visits[1].result.Why, visits[2].result.Why)
		}
		pass(time.Minute)
		wantWaits(t, []*visit{visits[0], visits[3]}, 0, 1)
		wantEmpty(t, zone)
	})
}

func TestRowsOfSeveralKeysHaveMaxWaitingTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone, gate := &Zone{Name: "z"}, new(Gate)
		var visits []*visit
		for i := range 6 {
			e := shared(zone, 1, fairqueue.First, fmt.Sprint("client", i))
			e.Key, e.MaxWaiting = fmt.Sprint("site", i%2), 3
			visits = append(visits, come(gate, time.Second, e))
		}
		if why := visits[5].result.Why; why != QueueFull {
			t.Errorf("got the last one %v, want the rows full", why)
		}
		pass(time.Minute)
		wantWaits(t, visits[:5], 0, 0, 1, 1, 2)
		wantEmpty(t, zone)
	})
}

func TestLimitsThatChangeHoldForThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone, gate := &Zone{Name: "z"}, new(Gate)
		var visits []*visit
		for i := range 6 {
			visits = append(visits, come(gate, 10*time.Second, shared(zone, 1, fairqueue.First, fmt.Sprint(i))))
		}
		pass(time.Second)
		zone.SetLimits(3, 24*time.Hour, 1000)
		pass(time.Second)
		zone.SetLimits(1, 24*time.Hour, 1000) // three hold slots, and two of them drain
		pass(time.Hour)
		wantWaits(t, visits, 0, 1, 1, 11, 21, 31)
		wantEmpty(t, zone)
	})
}

func TestSlotsWithoutTurnsCountWhenAConfigBringsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone, gate := &Zone{Name: "z"}, new(Gate)
		plain := Entry{Zone: zone, Key: "all", InFlight: 2, MaxWait: time.Hour, MaxWaiting: 10}
		visits := []*visit{come(gate, 2*time.Second, plain), come(gate, 2*time.Second, plain), come(gate, 2*time.Second, plain)}
		visits = append(visits, come(gate, time.Second, shared(zone, 2, fairqueue.First, "a")))
		pass(time.Minute)
		wantWaits(t, visits, 0, 0, 2, 2)
		wantEmpty(t, zone)
	})
}

func TestNoNestOfHandlersWithTurnsWaitsInVain(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 14))
		synctest.Test(t, func(t *testing.T) {
			const n = 40
			var zones []*Zone
			for i := range 4 {
				zones = append(zones, &Zone{Name: fmt.Sprint(i)})
			}
			fair := random.Perm(4)[:1+random.IntN(4)]
			isFair := make(map[int]bool)
			for _, i := range fair {
				isFair[i] = true
			}
			gate, results := new(Gate), make(chan Result, n)
			for range n {
				rank, key := fairqueue.Rank(random.IntN(4)), fmt.Sprint(random.IntN(3))
				var handlers [][]Entry
				for i, z := range inOneOrder(random, len(zones)) {
					if i == 0 || random.IntN(2) == 0 {
						handlers = append(handlers, nil)
					}
					e := shared(zones[z], 1+z, rank, key)
					if !isFair[z] {
						e.Turn, e.Key = nil, fmt.Sprint(random.IntN(2))
					}
					last := len(handlers) - 1
					handlers[last] = append(handlers[last], e)
				}
				service := time.Duration(random.IntN(1000)) * time.Millisecond
				go func() { results <- nest(gate, service, handlers...) }()
				time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
			}
			wantAllServed(t, seed, n, results)
			wantEmpty(t, zones...)
		})
	}
}

func TestARequestThatLeavesWhileItWaitsForAnInnerSlotLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner, outer, gate := &Zone{Name: "a"}, &Zone{Name: "b"}, new(Gate)
		come(gate, time.Hour, shared(inner, 1, fairqueue.First, "busy"))
		ctx, leave := context.WithCancel(t.Context())
		around, _ := gate.Admit(ctx, time.Now(), []Entry{shared(outer, 1, fairqueue.First, "nested")}, nil)
		time.AfterFunc(time.Second, leave)
		p, result := gate.Admit(ctx, time.Now(), []Entry{shared(inner, 1, fairqueue.First, "nested")}, nil)
		if p != nil || result.Why != Left {
			t.Errorf("got %v, want that it has left", result.Why)
		}
		around.Release()
		after := come(gate, time.Second, shared(outer, 1, fairqueue.First, "other"))
		pass(2 * time.Hour)
		wantWaits(t, []*visit{after}, 0)
		wantEmpty(t, inner, outer)
	})
}

// A client hangs up at the instant at which its turn comes. Its slot counts for nobody.
func TestASlotThatNobodyWasServedInDoesNotCountInTheMean(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone, gate := &Zone{Name: "z"}, new(Gate)
		busy, _ := gate.Admit(t.Context(), time.Now(), []Entry{shared(zone, 1, fairqueue.First, "a")}, nil)
		time.Sleep(time.Second)
		ctx, leave := context.WithCancel(t.Context())
		gate.Waived = func([]string) (<-chan struct{}, func()) { // when it waits
			busy.Release()
			leave()
			return nil, func() {}
		}
		p, result := gate.Admit(ctx, time.Now(), []Entry{shared(zone, 1, fairqueue.First, "b")}, nil)
		if mean := zone.Load().Mean; p != nil || result.Why != Left || mean != time.Second {
			t.Errorf("got %v, and a mean of %v after one of a second, want it left and the same mean", result.Why, mean)
		}
		wantEmpty(t, zone)
	})
}

// A handler within this one refuses the request: the upstream never saw it.
func TestARequestThatIsRefusedFurtherInDoesNotCountInTheMean(t *testing.T) {
	for _, names := range [][2]string{{"a", "b"}, {"b", "a"}} {
		synctest.Test(t, func(t *testing.T) {
			outer, inner, gate := &Zone{Name: names[0]}, &Zone{Name: names[1]}, new(Gate)
			come(gate, time.Hour, shared(inner, 1, fairqueue.First, "busy"))
			around, _ := gate.Admit(t.Context(), time.Now(), []Entry{shared(outer, 2, fairqueue.First, "a")}, nil)
			within := shared(inner, 1, fairqueue.First, "a")
			within.MaxWait = 4 * time.Second
			if p, result := gate.Admit(t.Context(), time.Now(), []Entry{within}, nil); p != nil || result.Why != TimedOut {
				t.Errorf("got %v, want it refused after 4 seconds", result.Why)
			}
			around.NotServed()
			around.Release()
			if mean := outer.Load().Mean; mean != time.Second {
				t.Errorf("got a mean of %v, want a second: none was served", mean)
			}
			first, second := come(gate, time.Second, shared(outer, 1, fairqueue.First, "other")), come(gate, time.Second, shared(outer, 1, fairqueue.First, "a"))
			pass(2 * time.Hour)
			wantWaits(t, []*visit{first, second}, 0, 1)
			wantEmpty(t, outer, inner)
		})
	}
}

// wantTotals checks that the totals of zones are the sums of their keys.
func wantTotals(t *testing.T, zones ...*Zone) {
	t.Helper()
	for _, z := range zones {
		z.mu.Lock()
		waiting, taken := 0, 0
		for _, k := range z.keys {
			taken += k.slots.Running()
			waiting += k.slots.Len()
		}
		if waiting != z.all.Waiting || taken != z.all.Running {
			t.Errorf("zone %s: got totals of %d waiting and %d taken, want %d and %d", z.Name, z.all.Waiting, z.all.Running, waiting, taken)
		}
		z.mu.Unlock()
	}
}

// Clients leave, rows overflow, configs change limits and the panic switch is thrown,
// while handlers within handlers take turns: no slot is lost.
func TestARaceForTurnsLosesNoSlot(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			zones := []*Zone{{Name: "a"}, {Name: "b"}, {Name: "c"}}
			var thrown atomic.Pointer[chan struct{}]
			throw := func() {
				next := make(chan struct{})
				if last := thrown.Swap(&next); last != nil {
					close(*last)
				}
			}
			throw()
			gate := &Gate{Waived: func([]string) (<-chan struct{}, func()) { return *thrown.Load(), func() {} }}
			var visit func(random *rand.Rand, depth int)
			visit = func(random *rand.Rand, depth int) {
				ctx, leave := context.WithTimeout(t.Context(), time.Duration(1+random.IntN(8000))*time.Microsecond)
				defer leave()
				entry := func() Entry {
					e := shared(zones[random.IntN(3)], 1+random.IntN(4), fairqueue.Rank(random.IntN(4)), fmt.Sprint(random.IntN(8)))
					e.Key, e.MaxWaiting = fmt.Sprint(random.IntN(2)), 2+random.IntN(20)
					if random.IntN(4) == 0 {
						e.Turn, e.MaxWait = nil, time.Duration(random.IntN(9))*time.Millisecond
					}
					return e
				}
				shadow := Simulate(time.Now(), []Entry{entry()}, func(Result) {})
				defer shadow.Release()
				entries := []Entry{entry()}
				if other := entry(); other.Zone != entries[0].Zone {
					entries = append(entries, other)
				}
				p, result := gate.Admit(ctx, time.Now(), entries, nil)
				defer p.Release()
				if result.Why.Refused() || result.Why == Left {
					return
				}
				shadow.Begin()
				time.Sleep(time.Duration(random.IntN(1500)) * time.Microsecond)
				if p != nil && depth < 2 && random.IntN(2) == 0 {
					visit(random, depth+1)
				}
			}
			var all sync.WaitGroup
			for g := range uint64(40) {
				all.Go(func() {
					random := rand.New(rand.NewPCG(seed, g))
					for range 20 {
						visit(random, 0)
					}
				})
			}
			random := rand.New(rand.NewPCG(seed, 100))
			for range 60 {
				time.Sleep(time.Millisecond)
				wantTotals(t, zones...)
				switch z := zones[random.IntN(3)]; random.IntN(2) {
				case 0:
					throw()
				case 1:
					z.SetLimits(1+random.IntN(5), 50*time.Millisecond, 3+random.IntN(20))
				}
			}
			all.Wait()
			time.Sleep(48 * time.Hour) // of virtual slots
			wantEmpty(t, zones...)
		})
	}
}

// Requests that take turns in two zones hold the slot of the first while they wait for
// that of the second. None is forgotten, whichever zone is full, and whatever ends a wait.
func TestRequestsOfTwoSharedZonesAreAllWoken(t *testing.T) {
	for _, names := range [][2]string{{"a", "b"}, {"b", "a"}} {
		synctest.Test(t, func(t *testing.T) {
			one, two, gate := &Zone{Name: names[0]}, &Zone{Name: names[1]}, new(Gate)
			both := func(slots int, key string) []Entry {
				return []Entry{shared(one, slots, fairqueue.First, key), shared(two, slots, fairqueue.First, key)}
			}
			visits := []*visit{
				come(gate, time.Second, shared(one, 1, fairqueue.First, "1")),
				come(gate, 2*time.Second, shared(two, 1, fairqueue.First, "2")),
				come(gate, time.Second, both(1, "3")...), // waits in either zone, for two seconds together
				come(gate, time.Second, both(1, "4")...),
				come(gate, time.Second, shared(one, 1, fairqueue.First, "5")),
				come(gate, time.Second, shared(two, 1, fairqueue.First, "6")),
			}
			pass(100 * time.Millisecond)
			one.SetLimits(6, 24*time.Hour, 1000)
			two.SetLimits(6, 24*time.Hour, 1000)
			visits = append(visits, come(gate, time.Second, both(6, "7")...))
			pass(time.Minute)
			wantWaits(t, visits, 0, 0, .1, .1, .1, .1, 0)
			wantEmpty(t, one)
			wantEmpty(t, two)
		})
	}
}

func TestADisplacedRequestOfTwoSharedZonesGivesTheOtherSlotBack(t *testing.T) {
	for _, names := range [][2]string{{"a", "b"}, {"b", "a"}} {
		synctest.Test(t, func(t *testing.T) {
			one, two, gate := &Zone{Name: names[0]}, &Zone{Name: names[1]}, new(Gate)
			entry := func(zone *Zone, rank fairqueue.Rank, key string) Entry {
				e := shared(zone, 1, rank, key)
				e.MaxWaiting = 1
				return e
			}
			first, second := one, two // as slots are taken
			if names[0] > names[1] {
				first, second = two, one
			}
			come(gate, 10*time.Second, entry(second, fairqueue.First, "1"))
			displaced := come(gate, time.Second, entry(one, fairqueue.First, "2"), entry(two, fairqueue.First, "2")) // has the slot of the first
			waits := come(gate, time.Second, entry(first, fairqueue.First, "3"))
			pass(500 * time.Millisecond)
			member := come(gate, time.Second, entry(second, fairqueue.Member, "4"))
			pass(time.Minute)
			if displaced.result.Why != QueueFull {
				t.Errorf("got %v, want it displaced", displaced.result.Why)
			}
			wantWaits(t, []*visit{waits, member}, .5, 9.5)
			wantEmpty(t, one)
			wantEmpty(t, two)
		})
	}
}

// The access log may be written while the simulation of the request goes on.
func TestASimulatedTurnMayBeReadWhileItArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, zone := &Zone{Name: "a"}, &Zone{Name: "b"}
		turn := shared(zone, 1, fairqueue.First, "k")
		s := Simulate(time.Now(), []Entry{{Zone: slow, Key: "k", Delay: time.Second, MaxWaiting: 1}, turn}, func(Result) {})
		s.Begin()
		s.Release()
		holder := come(new(Gate), time.Minute, shared(zone, 1, fairqueue.First, "other"))
		time.Sleep(time.Second)
		turn.Turn.Met() // at the same instant
		if pass(time.Second); turn.Turn.Met().Predicted != time.Second {
			t.Errorf("got %v, want it predicted to wait for the one that holds the slot", turn.Turn.Met().Predicted)
		}
		holder.leave()
		pass(time.Hour)
		wantEmpty(t, slow, zone)
	})
}
