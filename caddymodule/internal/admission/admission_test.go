package admission

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// String returns the name of the constant in lower case.
func (w Why) String() string {
	return [...]string{"admitted", "queue full", "timed out", "too long", "exiting", "waived", "left"}[w]
}

// A visit is a request in a test: admitted, served for some time, released.
type visit struct {
	entries []Entry
	since   time.Time
	leave   context.CancelFunc
	grant   *Grant
	result  Result
	after   time.Duration // that Admit took
	ended   bool
}

// come sends a request that is served for so long, and returns when it waits for
// something or is over.
func come(gate *Gate, service time.Duration, entries ...Entry) *visit {
	ctx, leave := context.WithCancel(context.Background())
	v := &visit{entries: entries, since: time.Now(), leave: leave}
	go func() {
		v.grant, v.result = gate.Admit(ctx, v.since, entries, nil)
		v.after = time.Since(v.since)
		if v.grant != nil {
			time.Sleep(service)
			v.grant.Release()
		}
		v.ended = true
	}()
	synctest.Wait()
	return v
}

// several are n requests in one instant.
func several(n int, gate *Gate, service time.Duration, entry Entry) (visits []*visit) {
	for range n {
		visits = append(visits, come(gate, service, entry))
	}
	return visits
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// vacant reports whether one of n slots of a key is free.
func vacant(z *Zone, key string, n int) bool {
	return z.Ask(&Entry{Zone: z, Key: key, InFlight: n}) == Admitted
}

// wantWaits checks for how many seconds requests waited; a refusal is -1.
func wantWaits(t *testing.T, visits []*visit, want ...float64) {
	t.Helper()
	var got []float64
	for _, v := range visits {
		if v.result.Why != Admitted {
			got = append(got, -1)
			continue
		}
		got = append(got, v.after.Seconds())
	}
	if !slices.Equal(got, want) {
		t.Errorf("got waits of %v seconds, want %v", got, want)
	}
}

// wantWhy checks how admissions ended.
func wantWhy(t *testing.T, visits []*visit, want ...Why) {
	t.Helper()
	var got []Why
	for _, v := range visits {
		got = append(got, v.result.Why)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// wantEmpty checks that zones keep nothing.
func wantEmpty(t *testing.T, zones ...*Zone) {
	t.Helper()
	for _, z := range zones {
		if waiting, served := z.Counts(); waiting != 0 || served != 0 || len(z.keys) != 0 {
			t.Errorf("zone %q: got %d waiting, %d served, %d keys, want none", z.Name, waiting, served, len(z.keys))
		}
	}
}

func TestAFreeSlotIsTakenAtOnce(t *testing.T) {
	zone, gate := new(Zone), new(Gate)
	entry := Entry{Zone: zone, Key: "k", InFlight: 2}
	first, _ := gate.Admit(t.Context(), time.Time{}, []Entry{entry}, nil)
	second, _ := gate.Admit(t.Context(), time.Time{}, []Entry{entry}, nil)
	third, result := gate.Admit(t.Context(), time.Time{}, []Entry{entry}, nil)
	if first == nil || second == nil || third != nil || result != (Result{Why: TooLong}) {
		t.Errorf("got %v, %v, %v with %+v, want two slots and then none", first, second, third, result)
	}
	entry.Key = "another"
	if other, _ := gate.Admit(t.Context(), time.Time{}, []Entry{entry}, nil); other == nil {
		t.Error("another key finds no slot, want one of its own")
	} else {
		other.Release()
	}
	if _, served := zone.Counts(); served != 2 {
		t.Errorf("got %d served, want 2", served)
	}
	third.Release() // there is none
	for range 3 {
		first.Release()
	}
	if _, served := zone.Counts(); served != 1 {
		t.Errorf("got %d served after one of two was released three times, want 1", served)
	}
	second.Release()
	wantEmpty(t, zone)
}

func TestVacantLooksAndTakesNothing(t *testing.T) {
	zone, gate := new(Zone), new(Gate)
	for range 3 {
		if !vacant(zone, "k", 1) {
			t.Error("got no slot, want a vacant one")
		}
	}
	wantEmpty(t, zone)
	p, _ := gate.Admit(t.Context(), time.Time{}, []Entry{{Zone: zone, Key: "k", InFlight: 1}}, nil)
	if vacant(zone, "k", 1) || !vacant(zone, "k", 2) || !vacant(zone, "another", 1) {
		t.Error("want one slot of one key taken")
	}
	p.Release()
	wantEmpty(t, zone)
}

func TestTheSurplusQueuesForASlotInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone := new(Zone)
		visits := several(10, new(Gate), time.Second, Entry{Zone: zone, Key: "k", InFlight: 2, MaxWait: 10 * time.Second, MaxWaiting: 100})
		if waiting, served := zone.Counts(); waiting != 8 || served != 2 {
			t.Errorf("got %d waiting, %d served, want 8 and 2", waiting, served)
		}
		if vacant(zone, "k", 3) {
			t.Error("got a vacant slot ahead of those who queue, want none")
		}
		pass(time.Minute)
		wantWaits(t, visits, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4)
		if last := visits[9]; last.result.Waited != 4*time.Second || last.entries[0].Waited != 4*time.Second {
			t.Errorf("got %+v and %v, want 4s waited", last.result, last.entries[0].Waited)
		}
		wantEmpty(t, zone)
	})
}

func TestARequestThatWaitsTooLongForASlotIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone := new(Zone)
		visits := several(5, new(Gate), 1900*time.Millisecond, Entry{Zone: zone, Key: "k", InFlight: 1, MaxWait: 2 * time.Second, MaxWaiting: 3})
		pass(time.Minute)
		wantWhy(t, visits, Admitted, Admitted, TimedOut, TimedOut, QueueFull)
		wantWaits(t, visits, 0, 1.9, -1, -1, -1)
		if got := visits[2]; got.after != 2*time.Second || got.result.Waited != got.after {
			t.Errorf("got a refusal after %v, %+v, want 2s", got.after, got.result)
		}
		wantEmpty(t, zone)
	})
}

func TestWithoutMaxWaitARequestGetsAFreeSlotOrARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone, gate := new(Zone), new(Gate)
		patient := Entry{Zone: zone, Key: "k", InFlight: 1, MaxWait: time.Hour, MaxWaiting: 10}
		hasty := Entry{Zone: zone, Key: "k", InFlight: 3}
		visits := []*visit{
			come(gate, time.Second, patient), come(gate, time.Second, patient),
			come(gate, time.Second, hasty), // others queue
		}
		pass(90 * time.Second)
		visits = append(visits, come(gate, time.Second, hasty))
		pass(time.Minute)
		wantWhy(t, visits, Admitted, Admitted, TooLong, Admitted)
		wantEmpty(t, zone)
	})
}

func TestAFullQueueIsTheZonesAndRefusesOnlyThoseThatMustWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone, gate := new(Zone), new(Gate)
		delayed := func(key string, delay time.Duration) *visit {
			return come(gate, 0, Entry{Zone: zone, Key: key, Delay: delay, InFlight: 1, MaxWait: time.Hour, MaxWaiting: 2})
		}
		visits := []*visit{
			delayed("a", 0), delayed("a", time.Second), delayed("a", 2*time.Second),
			delayed("a", 3*time.Second), delayed("b", time.Second), delayed("b", 0),
		}
		pass(time.Minute)
		wantWhy(t, visits, Admitted, Admitted, Admitted, QueueFull, QueueFull, Admitted)
		wantWaits(t, visits, 0, 1, 2, -1, -1, 0)
		wantEmpty(t, zone)
	})
}

func TestOfSeveralZonesTheLongestDelayIsWaitedIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		short, long, none := &Zone{Name: "a"}, &Zone{Name: "b"}, &Zone{Name: "c"}
		v := come(new(Gate), 0,
			Entry{Zone: none, Key: "k", InFlight: 1},
			Entry{Zone: long, Key: "k", Delay: 3 * time.Second, MaxWaiting: 1},
			Entry{Zone: short, Key: "k", Delay: time.Second, MaxWaiting: 0},
		)
		for zone, want := range map[*Zone]int{short: 0, long: 1, none: 0} {
			if waiting, served := zone.Counts(); waiting != want || served != 0 {
				t.Errorf("zone %s: got %d waiting, %d served, want %d and 0", zone.Name, waiting, served, want)
			}
		}
		pass(time.Minute)
		wantWaits(t, []*visit{v}, 3)
		var got []time.Duration
		for _, e := range v.entries {
			got = append(got, e.Waited)
		}
		if want := []time.Duration{0, 3 * time.Second, 0}; !slices.Equal(got, want) || v.entries[0].Zone != none {
			t.Errorf("got waits of %v, want %v, in the caller's order", got, want)
		}
		wantEmpty(t, short, long, none)
	})
}

// wantInOrder checks in which order n requests say that they were admitted. One
// that has woken up may be held up by the machine before it can say so.
func wantInOrder(t *testing.T, order chan int, n int) {
	t.Helper()
	overtaken, last := 0, -1
	for range n {
		i := <-order
		if i < last {
			overtaken++
		}
		last = max(last, i)
	}
	if overtaken > n/20 {
		t.Errorf("got %d of %d requests overtaken by later ones", overtaken, n)
	}
}

// Whatever a request waits for, those behind it find themselves behind it again.
func TestNobodyIsOvertakenBetweenTheDelayAndTheSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		delayed, first, second := &Zone{Name: "z"}, &Zone{Name: "a"}, &Zone{Name: "b"}
		gate := new(Gate)
		order := make(chan int, n)
		for i := range n {
			go func() {
				p, result := gate.Admit(context.Background(), time.Now(), []Entry{
					{Zone: delayed, Key: "k", Delay: time.Second + time.Duration(i)*time.Microsecond, MaxWaiting: n},
					{Zone: first, Key: "k", InFlight: 7, MaxWait: time.Hour, MaxWaiting: n},
					{Zone: second, Key: "k", InFlight: 1, MaxWait: time.Hour, MaxWaiting: n},
				}, nil)
				if result.Why != Admitted {
					t.Errorf("got %v, want it admitted", result.Why)
				}
				order <- i
				p.Release()
			}()
			synctest.Wait()
		}
		pass(time.Minute)
		wantInOrder(t, order, n)
		wantEmpty(t, delayed, first, second)
	})
}

func TestKeysDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone, gate := new(Zone), new(Gate)
		var visits []*visit
		for _, key := range []string{"a", "a", "b", "b", "c"} {
			visits = append(visits, come(gate, time.Second, Entry{Zone: zone, Key: key, InFlight: 1, MaxWait: time.Minute, MaxWaiting: 10}))
		}
		pass(time.Minute)
		wantWaits(t, visits, 0, 1, 0, 1, 0)
		wantEmpty(t, zone)
	})
}

func TestAClientThatLeavesHoldsNobodyUpAndSaysHowLongItWaited(t *testing.T) {
	for _, entry := range []Entry{
		{Key: "k", InFlight: 1, MaxWait: time.Minute, MaxWaiting: 10},
		{Key: "k", InFlight: 1, Delay: time.Second, MaxWait: time.Minute, MaxWaiting: 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			zone := new(Zone)
			entry.Zone = zone
			gate, visits := new(Gate), []*visit(nil)
			for i := range 4 {
				delayed := entry
				if delayed.Delay > 0 { // delays that end at one instant end in any order
					delayed.Delay += time.Duration(i) * time.Microsecond
				}
				visits = append(visits, come(gate, time.Second, delayed))
			}
			pass(500 * time.Millisecond)
			visits[1].leave()
			visits[2].leave()
			pass(0)
			wantWhy(t, visits[1:3], Left, Left)
			for _, v := range visits[1:3] {
				if v.result.Waited != 500*time.Millisecond || v.entries[0].Waited != v.result.Waited || v.grant != nil {
					t.Errorf("got %+v, %v, want half a second waited and no grant", v.result, v.entries[0].Waited)
				}
			}
			pass(time.Minute)
			wantWaits(t, []*visit{visits[0], visits[3]}, entry.Delay.Seconds(), entry.Delay.Seconds()+1)
			wantEmpty(t, zone)
		})
	}
}

func TestAClientThatLeavesInOneZoneGivesTheSlotsOfTheOthersBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &Zone{Name: "a"}, &Zone{Name: "b"}
		gate := new(Gate)
		come(gate, time.Hour, Entry{Zone: b, Key: "k", InFlight: 1})
		v := come(gate, 0,
			Entry{Zone: b, Key: "k", InFlight: 1, MaxWait: time.Minute, MaxWaiting: 1},
			Entry{Zone: a, Key: "k", InFlight: 1})
		if vacant(a, "k", 1) {
			t.Error("got a vacant slot in a, want it taken before that of b")
		}
		pass(time.Second)
		v.leave()
		pass(0)
		if v.result.Why != Left || v.result.Index != 0 || v.entries[0].Waited != time.Second {
			t.Errorf("got %+v, want it gone from the zone of the first entry after a second", v.result)
		}
		wantEmpty(t, a)
		pass(time.Hour)
		wantEmpty(t, b)
	})
}

// Of what happens in one instant a select takes either.
func TestAClientThatLeavesWhenItsSlotComesFreeIsNotServed(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			zone, gate := new(Zone), new(Gate)
			entry := Entry{Zone: zone, Key: "k", InFlight: 1, MaxWait: time.Minute, MaxWaiting: 10}
			first, _ := gate.Admit(t.Context(), time.Now(), []Entry{entry}, nil)
			next := come(gate, time.Hour, entry)
			next.leave()
			first.Release()
			pass(0)
			wantWhy(t, []*visit{next}, Left)
			wantEmpty(t, zone)
		})
	}
}

func TestAtTheEndOfTheProcessNobodyWaits(t *testing.T) {
	for _, entry := range []Entry{
		{InFlight: 1, MaxWait: time.Minute, MaxWaiting: 10},
		{Delay: time.Minute, MaxWaiting: 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			exiting := make(chan struct{})
			zone, gate := new(Zone), &Gate{Exiting: exiting}
			first := come(gate, 10*time.Second, Entry{Zone: zone, Key: "k", InFlight: 1})
			entry.Zone, entry.Key = zone, "k"
			visits := several(3, gate, 0, entry)
			close(exiting)
			pass(0)
			visits = append(visits, come(gate, 0, entry))
			wantWhy(t, visits, Exiting, Exiting, Exiting, Exiting)
			other := come(gate, 0, Entry{Zone: zone, Key: "other", InFlight: 1}) // need not wait
			pass(time.Minute)
			wantWaits(t, []*visit{first, other}, 0, 0)
			wantEmpty(t, zone)
		})
	}
}

func TestLimitsComeWithEachRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone := new(Zone)
		before, after := new(Gate), new(Gate)
		old := Entry{Zone: zone, Key: "k", InFlight: 3, MaxWait: time.Hour, MaxWaiting: 10}
		now := Entry{Zone: zone, Key: "k", InFlight: 1}
		visits := several(4, before, 10*time.Second, old)
		visits = append(visits, come(after, 10*time.Second, now))
		pass(9 * time.Second)
		visits = append(visits, come(after, 10*time.Second, now))
		pass(time.Second) // the three have ended, and the fourth is served
		visits = append(visits, come(after, 10*time.Second, now))
		pass(10 * time.Second)
		visits = append(visits, several(2, after, 10*time.Second, now)...)
		pass(time.Minute)
		wantWaits(t, visits, 0, 0, 0, 10, -1, -1, -1, 0, -1)
		wantEmpty(t, zone)
	})
}

func TestMoreSlotsOfANewConfigGoToThoseWhoWaitFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone, gate := new(Zone), new(Gate)
		few := Entry{Zone: zone, Key: "k", InFlight: 1, MaxWait: 2 * time.Hour, MaxWaiting: 10}
		more := few
		more.InFlight = 2
		visits := []*visit{come(gate, time.Hour, few), come(gate, time.Minute, few), come(gate, 0, few)}
		pass(time.Second)
		visits = append(visits, come(gate, 0, more))
		pass(2 * time.Minute)
		wantWaits(t, visits, 0, 1, 61, 60)
		pass(2 * time.Hour)
		wantEmpty(t, zone)
	})
}

func TestAPassMayBeReleasedEarlyAndByAnyGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, gate := &Zone{Name: "a"}, &Zone{Name: "b"}, new(Gate)
		entries := []Entry{{Zone: a, Key: "k", InFlight: 1}, {Zone: b, Key: "k", InFlight: 1, MaxWait: time.Hour, MaxWaiting: 1}}
		p, _ := gate.Admit(t.Context(), time.Now(), entries, nil)
		next := come(gate, time.Second, entries[1])
		for range 10 {
			go p.Release()
		}
		pass(0)
		wantWaits(t, []*visit{next}, 0)
		if _, served := b.Counts(); served != 1 {
			t.Errorf("got %d served, want the next one", served)
		}
		pass(time.Minute)
		wantEmpty(t, a, b)
	})
}

func TestARefusalInOneZoneGivesTheSlotsOfTheOthersBack(t *testing.T) {
	gate := new(Gate)
	var zones []*Zone
	var entries []Entry
	for i := range 5 {
		zones = append(zones, &Zone{Name: fmt.Sprint(4 - i)})
		entries = append(entries, Entry{Zone: zones[i], Key: "k", InFlight: 1})
	}
	full, _ := gate.Admit(t.Context(), time.Now(), entries[1:2], nil)
	for range 3 {
		p, result := gate.Admit(t.Context(), time.Now(), entries, nil)
		if p != nil || result != (Result{Why: TooLong, Index: 1}) {
			t.Errorf("got %+v, want no slot in the second", result)
		}
	}
	full.Release()
	wantEmpty(t, zones...)
	p, _ := gate.Admit(t.Context(), time.Now(), entries, nil)
	for _, z := range zones {
		if vacant(z, "k", 1) {
			t.Errorf("zone %s: got a vacant slot, want it taken", z.Name)
		}
	}
	p.Release()
	wantEmpty(t, zones...)
}

// A body is buffered there. The delay that was waited for before counts for what follows.
func TestARequestIsMadeReadyBetweenItsDelayAndItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone, gate := &Zone{Name: "a"}, new(Gate)
		entries := []Entry{{Zone: zone, Key: "k", Delay: 2 * time.Second, InFlight: 1, MaxWaiting: 1}}
		for _, ends := range []Result{{Why: Admitted, Index: 0}, {Why: Left, Index: -1}, {Why: Exiting, Index: 0}} {
			began := time.Now()
			p, result := gate.Admit(t.Context(), began, entries, func() (Why, int) {
				if after := time.Since(began); after != 2*time.Second || !vacant(zone, "k", 1) {
					t.Errorf("got it made ready after %v, want after the delay and before it has a slot", after)
				}
				time.Sleep(3 * time.Second)
				return ends.Why, ends.Index
			})
			ends.Waited = 2 * time.Second
			if took := time.Since(began); result != ends || took != 5*time.Second || (p != nil) != (ends.Why == Admitted) || entries[0].Waited != ends.Waited {
				t.Errorf("got %+v after %v, want %+v after 5 s", result, took, ends)
			}
			p.Release()
			wantEmpty(t, zone)
		}
	})
}
