package admission

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// nest sends a request through handlers, each within the one before.
func nest(gate *Gate, service time.Duration, handlers ...[]Entry) Result {
	var outer *Grant
	for _, entries := range handlers {
		p, result := gate.Admit(context.Background(), time.Now(), entries, outer)
		defer p.Release()
		if p == nil {
			return result
		}
		outer = p
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

// Without one order, each holds the other's slot until it has waited for max_wait.
func TestHandlersThatTakeSlotsInOppositeOrdersDoNotHoldEachOtherUp(t *testing.T) {
	for _, keys := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			const n = 40
			a, b, gate := &Zone{Name: "a"}, &Zone{Name: "b"}, new(Gate)
			began, results := time.Now(), make(chan Result, n)
			for i := range n {
				first, second := a, b
				if i%2 == 1 {
					first, second = b, a
				}
				key := fmt.Sprint(i / 2 % keys)
				go func() {
					results <- nest(gate, 100*time.Millisecond,
						[]Entry{{Zone: first, Key: key, InFlight: 2, MaxWait: 10 * time.Second, MaxWaiting: n}},
						[]Entry{{Zone: second, Key: key, InFlight: 2, MaxWait: 10 * time.Second, MaxWaiting: n}})
				}()
				synctest.Wait()
			}
			for range n {
				if result := <-results; result.Why != Admitted {
					t.Errorf("%d keys: got %v, want all admitted", keys, result.Why)
				}
			}
			if took, most := time.Since(began), n/2*110*time.Millisecond/time.Duration(keys)+200*time.Millisecond; took > most {
				t.Errorf("%d keys: got all served after %v, want %v: two at a time", keys, took, most)
			}
			synctest.Wait()
			wantEmpty(t, a, b)
		})
	}
}

func TestAnOuterSlotThatComesLaterInTheOrderIsGivenUpWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, gate := &Zone{Name: "a"}, &Zone{Name: "b"}, new(Gate)
		inner := Entry{Zone: a, Key: "k", InFlight: 1, MaxWait: 3 * time.Second, MaxWaiting: 1}
		outer := Entry{Zone: b, Key: "k", InFlight: 1}
		others, _ := gate.Admit(t.Context(), time.Now(), []Entry{inner}, nil)
		first, _ := gate.Admit(t.Context(), time.Now(), []Entry{outer}, nil)

		type end struct {
			grant  *Grant
			result Result
		}
		ends, entries := make(chan end, 1), []Entry{inner}
		go func() {
			p, result := gate.Admit(context.Background(), time.Now(), entries, first)
			ends <- end{p, result}
		}()
		synctest.Wait()
		if !vacant(b, "k", 1) {
			t.Fatal("got the outer slot held while waiting for the inner one, want it free")
		}
		second := come(gate, 500*time.Millisecond, outer)
		queued := outer
		queued.MaxWait, queued.MaxWaiting = time.Hour, 5
		third := come(gate, time.Second, queued)
		time.Sleep(100 * time.Millisecond)
		others.Release()
		synctest.Wait()
		if vacant(a, "k", 1) {
			t.Error("got the inner slot free, want it held while waiting for the outer one again")
		}
		got := <-ends // ahead of the third
		if got.grant == nil || entries[0].Waited != 500*time.Millisecond || got.result.Waited != entries[0].Waited {
			t.Errorf("got %+v, %v, want it admitted after half a second of waiting", got, entries[0].Waited)
		}
		first.Release() // it holds nothing any more
		if vacant(a, "k", 1) || vacant(b, "k", 1) {
			t.Error("got a vacant slot, want the inner grant to hold both")
		}
		got.grant.Release()
		pass(time.Minute)
		wantWaits(t, []*visit{second, third}, 0, 0.5)
		wantEmpty(t, a, b)
	})
}

func TestMaxWaitHoldsForASlotThatIsTakenAgainToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, gate := &Zone{Name: "a"}, &Zone{Name: "b"}, new(Gate)
		inner := Entry{Zone: a, Key: "k", InFlight: 1, MaxWait: 3 * time.Second, MaxWaiting: 1}
		outer := Entry{Zone: b, Key: "k", InFlight: 1}
		come(gate, time.Second, inner)
		first, _ := gate.Admit(t.Context(), time.Now(), []Entry{outer}, nil)
		go func() {
			synctest.Wait()
			come(gate, time.Hour, outer)
		}()
		began := time.Now()
		p, result := gate.Admit(t.Context(), time.Now(), []Entry{inner}, first)
		if p != nil || result != (Result{Why: TimedOut, Waited: 3 * time.Second}) || time.Since(began) != 3*time.Second {
			t.Errorf("got %+v after %v, want it refused after 3s", result, time.Since(began))
		}
		first.Release()
		pass(2 * time.Hour)
		wantEmpty(t, a, b)
	})
}

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
				for i, z := range random.Perm(len(zones))[:1+random.IntN(4)] {
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
