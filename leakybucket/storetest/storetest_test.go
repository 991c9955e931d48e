package storetest

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func TestReferencePasses(t *testing.T) { Run(t, openReference(bugs{})) }

// A store without the optional capabilities passes what asks for them.
func TestPlainStorePasses(t *testing.T) {
	open := func(tb testing.TB, need Need) (leakybucket.Store, func(leakybucket.Instant)) {
		store, setClock := openReference(bugs{})(tb, Need{})
		return struct{ leakybucket.Store }{store}, setClock
	}
	for _, m := range slices.Concat(forgettingMutants, blockForgettingMutants, resetMutants) {
		if complaints := watch(t, m.caughtBy, open); len(complaints) > 0 {
			t.Errorf("case %q: got %q, want no complaint about a store that counts nothing", m.caughtBy, complaints)
		}
	}
}

func BenchmarkReference(b *testing.B) { Benchmark(b, openReference(bugs{})) }

// A store may round otherwise than the pure functions do.
func TestStoreThatRoundsOtherwisePasses(t *testing.T) {
	nudge := func(l *leakybucket.Limit) { l.Leak = math.Nextafter(l.Leak, math.Inf(1)) }
	open := openReference(bugs{
		take:   mistake(func(c *leakybucket.Charge) { nudge(&c.Limit) }),
		settle: misread(func(of *leakybucket.Settlement) { nudge(&of.Charge.Limit) }),
	})
	for _, c := range []string{"model", "block until empty", "ladder climbs"} {
		if complaints := watch(t, c, open); len(complaints) > 0 {
			t.Errorf("case %q: got %q, want no complaint about another last digit", c, complaints)
		}
	}
}

// A store may forget a bucket in the very instant it may be forgotten, or later.
func TestStoreThatForgetsAtOncePasses(t *testing.T) {
	if testing.Short() {
		t.Skip("the whole suite once more is not for -short")
	}
	Run(t, openReference(bugs{
		take: func(s *reference, t taking) error {
			s.forgetNow()
			return s.takeOnce(t)
		},
		settle: func(s *reference, all settling) error {
			s.forgetNow()
			return s.settleEach(all)
		},
	}), Eviction) // which would take long
}

func (s *reference) forgetNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(s.clock())
}

var mutants = slices.Concat(amountMutants, leakMutants, clockMutants, togetherMutants, probeMutants, settleMutants,
	blockMutants, blockTogetherMutants, ceilingMutants, cancelMutants, resetMutants, listMutants, registryMutants, forgettingMutants, blockForgettingMutants, raceMutants)

// A suite that passes everything proves nothing: every mutant must be caught by
// the case that is there for it.
func TestMutantsAreCaught(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name+" is caught by "+m.caughtBy, func(t *testing.T) {
			if complaints := watch(t, m.caughtBy, openReference(m.bugs)); len(complaints) == 0 {
				t.Errorf("case %q: got no complaint about a store that %s", m.caughtBy, m.name)
			} else {
				t.Log(complaints[0])
			}
		})
	}
}

// Every case is there for something.
func TestEveryCaseCatchesSomething(t *testing.T) {
	for _, c := range cases {
		if !slices.ContainsFunc(mutants, func(m mutant) bool { return m.caughtBy == c.name }) {
			t.Errorf("case %q: got no mutant that it must catch, want one", c.name)
		}
	}
}

// watch runs a case and returns its complaints.
func watch(t *testing.T, name string, open Open) []string {
	i := slices.IndexFunc(cases, func(c testCase) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("case %q: got none of that name", name)
	}
	w := &watcher{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		cases[i].run(w, open)
	}()
	<-done
	return w.complaints
}

// watcher is a testing.TB that may fail and lets its test pass. It has what the
// cases use; the rest is its test's.
type watcher struct {
	testing.TB
	mu         sync.Mutex
	complaints []string
}

func (w *watcher) Errorf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.complaints = append(w.complaints, fmt.Sprintf(format, args...))
}

func (w *watcher) Fatalf(format string, args ...any) {
	w.Errorf(format, args...)
	runtime.Goexit()
}

func (w *watcher) Failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.complaints) > 0
}

func (*watcher) Helper()    {}
func (*watcher) Log(...any) {}

// Some stores cannot promise that a take of several buckets is one atomic step, a
// Redis Cluster among them. They are held to all the rest.
func TestAStoreIsHeldToWhatItPromises(t *testing.T) {
	if testing.Short() {
		t.Skip("the whole suite once more is not for -short")
	}
	open := openReference(bugs{take: bucketByBucket})
	Run(t, open, Atomicity)
	for _, c := range cases {
		if c.promise == Atomicity && len(watch(t, c.name, open)) > 0 {
			return
		}
	}
	t.Errorf("cases of %q: got no complaint about a store that pours one by one, want one", Atomicity)
}

// bucketByBucket asks for all charges at once, and if they fit pours into one
// bucket after the other. If one of them no longer fits by then, it gives back
// what it has poured.
func bucketByBucket(s *reference, t taking) error {
	fit := true
	s.locked(func() {
		now := s.clock()
		s.judge(t, s.read(t.charges, now), now)
		for _, d := range t.decisions {
			fit = fit && d.Fits
		}
	})
	if !fit {
		return s.takeOnce(t)
	}
	var poured []leakybucket.Settlement
	for i := range t.charges {
		elsewhere()
		var one taking
		var at []int
		for j, c := range t.charges {
			if s.name(c) != s.name(t.charges[i]) {
				continue
			}
			if j < i {
				one.charges, at = nil, nil // it was poured with the first
				break
			}
			one.charges, at = append(one.charges, c), append(at, j)
		}
		one.decisions = make([]leakybucket.Decision, len(at))
		if len(at) > 0 {
			s.takeOnce(one)
		}
		for k, j := range at {
			t.decisions[j] = one.decisions[k]
			fit = fit && one.decisions[k].Fits
			if one.decisions[k].Poured {
				poured = append(poured, leakybucket.Settlement{Charge: t.charges[j], Was: one.decisions[k], Diff: -t.charges[j].Cost})
			}
		}
	}
	if !fit {
		s.settleEach(settling{t.ctx, poured})
		for i := range t.decisions {
			t.decisions[i].Poured = false
		}
	}
	return nil
}
