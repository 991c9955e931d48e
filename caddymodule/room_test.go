package caddymodule

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestTheSurplusQueuesForASlotInOrder(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitZone(t, "in_flight 2\nmax_wait 10s", time.Second)
		visits := s.visits(10, office, "/")
		pass(time.Minute)
		wantWaits(t, visits, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4)
		wantCounts(t, "waits", map[string]float64{"admitted": 2, "delayed": 8})
		if got := visits[9].passage.decisive(); got.decision != delayed || got.delay != 4*time.Second {
			t.Errorf("got %v by %v, want delayed by 4s", got.decision, got.delay)
		}
		emptyRooms(t, "waits")
	})
}

func TestWhoWaitsTooLongForASlotIsRefused(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitZone(t, "in_flight 1\nmax_wait 2s\nmax_waiting 3", 1900*time.Millisecond)
		visits := s.visits(5, office, "/")
		wantWaits(t, visits[4:], -1) // no room to wait
		pass(time.Minute)
		wantWaits(t, visits, 0, 1.9, -1, -1, -1)
		if got := visits[2].Header().Get("Retry-After"); got != "1" || visits[2].waited != 2*time.Second {
			t.Errorf("got Retry-After %q after %v, want 1 after 2s", got, visits[2].waited)
		}
		wantCounts(t, "waits", map[string]float64{"admitted": 1, "delayed": 1, "refused in_flight": 2, "refused waiting": 1})
		emptyRooms(t, "waits")
	})
}

func TestWhoLeavesTheRowForASlotHoldsNobodyUp(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitZone(t, "in_flight 1\nmax_wait 10s", time.Second)
		visits := s.visits(4, office, "/")
		pass(500 * time.Millisecond)
		visits[1].leave()
		visits[2].leave()
		pass(0)
		wantGone(t, visits[1])
		wantGone(t, visits[2])
		pass(time.Minute)
		wantWaits(t, []*visit{visits[0], visits[3]}, 0, 1)
		emptyRooms(t, "waits")
	})
}

// Of what happens at once a select takes either.
func TestWhoLeavesWhenASlotComesFreeIsNotServed(t *testing.T) {
	for range 30 {
		inSettleBubble(t, func(t *testing.T) {
			s := newWaitZone(t, "in_flight 1\nmax_wait 10s", 0)
			leave := make(chan context.CancelFunc, 1)
			s.serve = func(_ http.ResponseWriter, r *http.Request) error {
				if r.URL.Path == "/first" {
					<-time.After(time.Second)
					(<-leave)() // before the slot is free
				}
				return nil
			}
			s.visit(office, "/first")
			next := s.visit(office, "/next")
			leave <- next.leave
			pass(time.Minute)
			wantGone(t, next)
			emptyRooms(t, "waits")
		})
	}
}

func TestAReloadSharesSlotsAndItsOwnNumberHolds(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		before := newWaitZone(t, "in_flight 3\nmax_wait 1h", 10*time.Second)
		old := before.visits(4, office, "/")
		after := newWaitZone(t, "in_flight 1", 10*time.Second)
		wantWaits(t, old, -2, -2, -2, -2)
		wantWaits(t, after.visits(1, office, "/"), -1)
		pass(9 * time.Second)
		wantWaits(t, after.visits(1, office, "/"), -1)
		pass(time.Second) // the three have ended, and the fourth is served
		wantWaits(t, after.visits(1, office, "/"), -1)
		pass(10 * time.Second)
		wantWaits(t, old, 0, 0, 0, 10)
		last := after.visits(2, office, "/")
		pass(time.Minute)
		wantWaits(t, last, 0, -1)
		emptyRooms(t, "waits")
	})
}

func TestShadowSlotsCountAndHoldNobodyUp(t *testing.T) {
	inSettleBubble(t, func(t *testing.T) {
		s := newWaitSite(t, `throttle {
			zone waits {
				in_flight 2
				shadow
			}
			zone filled {
				capacity 100
				leak 1/d
				in_flight 2
				shadow
			}
			zone queues {
				in_flight 2
				max_wait 1m
				shadow
			}
		}`, time.Second)
		visits := s.visits(5, office, "/")
		wantWaits(t, visits, -2, -2, -2, -2, -2)
		if got := s.fullness("filled", office, 100, 1./86400, true); got != 2 {
			t.Errorf("got level %v, want 2", got)
		}
		pass(time.Minute)
		wantWaits(t, visits, 0, 0, 0, 0, 0)
		wantCounts(t, "waits", map[string]float64{"admitted": 2, "shadow_refused in_flight": 3})
		wantCounts(t, "filled", map[string]float64{"admitted": 2, "shadow_refused in_flight": 3})
		wantCounts(t, "queues", map[string]float64{"admitted": 2, "shadow_delayed": 3})
		emptyRooms(t, "waits", "filled", "queues")
	})
}

func TestARowGoesByTheTurnAndThenByWhoCameFirst(t *testing.T) {
	m := new(room)
	first, second, early := m.queue("k", 10), m.queue("k", 10), m.queue("k", 5)
	ready := func(w *waiter) bool {
		select {
		case <-w.ready:
			return true
		default:
			return false
		}
	}
	if !ready(first) || !ready(early) || ready(second) {
		t.Errorf("got ready %v, %v, %v, want all but the second", ready(first), ready(early), ready(second))
	}
	m.unqueue("k", early)
	if ready(second) {
		t.Error("the second is ready before the first has gone")
	}
	m.unqueue("k", first)
	if !ready(second) {
		t.Error("the second is not ready when the first has gone")
	}
	m.unqueue("k", second)
	if len(m.rows) != 0 {
		t.Errorf("got %v, want no row", m.rows)
	}
}

func TestARaceForSlotsLosesNone(t *testing.T) {
	const n, keys = 3, 4
	m := new(room)
	var served [keys]atomic.Int32
	var goroutines sync.WaitGroup
	for g := range 64 {
		goroutines.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 0))
			for range 500 {
				k := random.IntN(keys)
				key := fmt.Sprint(k)
				w := &waiter{n: n, ready: make(chan struct{})}
				taken := m.takeOrQueue(key, n, w)
				if !taken && random.IntN(2) == 0 {
					<-w.ready
					taken = true
				} else if !taken {
					taken = !m.giveUp(key, w) // at once, or when it was just handed over
				}
				if !taken {
					continue
				}
				if got := served[k].Add(1); got > n {
					t.Errorf("got %d served at once, want at most %d", got, n)
				}
				served[k].Add(-1)
				m.release(key)
			}
		})
	}
	goroutines.Wait()
	if waiting, taken := m.counts(); waiting != 0 || taken != 0 || len(m.slots) != 0 {
		t.Errorf("got %d waiting, %d served, %v, want none", waiting, taken, m.slots)
	}
}

func TestARaceInARowLeavesNobodyBehind(t *testing.T) {
	m := new(room)
	var goroutines sync.WaitGroup
	for g := range 64 {
		goroutines.Go(func() {
			random := rand.New(rand.NewPCG(uint64(g), 0))
			for range 500 {
				key := fmt.Sprint(random.IntN(4))
				if !m.enter(50) {
					continue
				}
				w := m.queue(key, 0)
				if random.IntN(3) > 0 {
					<-w.ready
				}
				m.unqueue(key, w)
				m.leave()
			}
		})
	}
	goroutines.Wait()
	if waiting, _ := m.counts(); waiting != 0 || len(m.rows) != 0 {
		t.Errorf("got %d waiting, %v, want none", waiting, m.rows)
	}
}
