package admission

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// nest sends a request through handlers, each within the one before.
func nest(gate *Gate, service time.Duration, handlers ...[]Entry) Result {
	for _, entries := range handlers {
		p, result := gate.Admit(context.Background(), time.Now(), entries, nil)
		defer p.Release()
		if p == nil {
			return result
		}
		time.Sleep(time.Millisecond)
	}
	time.Sleep(service)
	return Result{}
}

// wantAllServed waits for n requests of less than a second each, which must be admitted. It
// returns when all of them have left.
func wantAllServed(t *testing.T, seed uint64, n int, results <-chan Result) {
	t.Helper()
	began := time.Now()
	for range n {
		if why := (<-results).Why; why != Admitted {
			t.Errorf("seed %d: got %v, want it admitted", seed, why)
		}
	}
	if took, most := time.Since(began), time.Duration(n)*time.Second; took > most {
		t.Errorf("seed %d: got all served after %v, want at most %v, which one after the other takes", seed, took, most)
	}
	synctest.Wait()
}

// A handler within another one holds its own slots beside those of the handler around.
func TestAnOuterSlotIsHeldWhileTheRequestWaitsForAnInnerOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, gate := &Zone{Name: "a"}, &Zone{Name: "b"}, new(Gate)
		inner := Entry{Zone: a, Key: "k", InFlight: 1, MaxWait: 3 * time.Second, MaxWaiting: 1}
		outer := Entry{Zone: b, Key: "k", InFlight: 1}
		others, _ := gate.Admit(t.Context(), time.Now(), []Entry{inner}, nil)
		first, _ := gate.Admit(t.Context(), time.Now(), []Entry{outer}, nil)
		time.AfterFunc(time.Second, func() {
			if vacant(b, "k", 1) {
				t.Error("got the outer slot vacant while waiting for the inner one, want it held")
			}
			others.Release()
		})
		entries := []Entry{inner}
		second, result := gate.Admit(t.Context(), time.Now(), entries, nil)
		if second == nil || entries[0].Waited != time.Second || result.Waited != time.Second {
			t.Errorf("got %+v, %v, want it admitted after a second of waiting", result, entries[0].Waited)
		}
		second.Release()
		first.Release()
		wantEmpty(t, a, b)
	})
}

// Each holds the other's slot until it has waited for as long as it may.
func TestHandlersThatTakeSlotsInOppositeOrdersWaitForEachOtherNoLongerThanTheyMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, gate, results := &Zone{Name: "a"}, &Zone{Name: "b"}, new(Gate), make(chan Result, 2)
		entry := func(z *Zone, longest time.Duration) []Entry {
			return []Entry{{Zone: z, Key: "k", InFlight: 1, MaxWait: longest, MaxWaiting: 5}}
		}
		began := time.Now()
		go func() { results <- nest(gate, time.Second, entry(a, 0), entry(b, 2*time.Second)) }()
		go func() { results <- nest(gate, time.Second, entry(b, 0), entry(a, 5*time.Second)) }()
		if got := <-results; got.Why != TimedOut || time.Since(began).Round(10*time.Millisecond) != 2*time.Second {
			t.Errorf("got %v after %v, want one refused after two seconds", got.Why, time.Since(began))
		}
		if got := <-results; got.Why != Admitted {
			t.Errorf("got %v, want the other served then", got.Why)
		}
		synctest.Wait()
		wantEmpty(t, a, b)
	})
}

// Requests pass the handlers of a site in one order.
func TestNoNestOfHandlersWaitsInVain(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 4))
		synctest.Test(t, func(t *testing.T) {
			const n = 40
			var zones []*Zone
			for i := range 4 {
				zones = append(zones, &Zone{Name: fmt.Sprint(i)})
			}
			gate, results := new(Gate), make(chan Result, n)
			for range n {
				var handlers [][]Entry
				for i, z := range inOneOrder(random, len(zones)) {
					if i == 0 || random.IntN(2) == 0 {
						handlers = append(handlers, nil)
					}
					last := len(handlers) - 1
					handlers[last] = append(handlers[last], Entry{
						Zone: zones[z], Key: fmt.Sprint(random.IntN(2)), InFlight: 1 + z%2,
						MaxWait: 24 * time.Hour, MaxWaiting: n,
					})
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

// inOneOrder returns some of the numbers below n, those of handlers around others first.
func inOneOrder(random *rand.Rand, n int) []int {
	some := random.Perm(n)[:1+random.IntN(n)]
	slices.Sort(some)
	return some
}
