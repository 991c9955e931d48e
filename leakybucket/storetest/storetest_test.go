package storetest

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestReferencePasses(t *testing.T) { Run(t, openReference(bugs{})) }

// A store may round otherwise than the pure functions do.
func TestStoreThatRoundsOtherwisePasses(t *testing.T) {
	nudge := func(l *leakybucket.Limit) { l.Leak = math.Nextafter(l.Leak, math.Inf(1)) }
	open := openReference(bugs{
		take:   mistake(func(c *leakybucket.Charge) { nudge(&c.Limit) }),
		settle: misread(func(of *leakybucket.Settlement) { nudge(&of.Charge.Limit) }),
	})
	for _, c := range []string{"model", "block until empty", "ladder climbs"} {
		complaints := watch(t, c, open)
		check.That(t, len(complaints) == 0, "case %q: got %q, want no complaint about another last digit", c, complaints)
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

// A suite that passes everything proves nothing: every mutant must be caught by
// the case that is there for it.
func TestMutantsAreCaught(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name+" is caught by "+m.caughtBy, func(t *testing.T) {
			var complaints []string
			for try := 0; try < 5 && len(complaints) == 0; try++ { // what a race does is chance
				complaints = watch(t, m.caughtBy, openReference(m.bugs))
			}
			if len(complaints) == 0 {
				t.Errorf("case %q: got no complaint about a store that %s", m.caughtBy, m.name)
			} else {
				t.Log(complaints[0])
			}
		})
	}
}

// Each promise has a mutant that breaks it.
func TestEachPromiseIsExamined(t *testing.T) {
	promises := make(map[Promise]bool)
	for _, c := range cases {
		promises[c.promise] = promises[c.promise] || slices.ContainsFunc(mutants, func(m mutant) bool { return m.caughtBy == c.name })
	}
	for promise, examined := range promises {
		check.That(t, examined, "%s: got no mutant that its cases must catch, want one", promise)
	}
}

// watch runs a case and returns its complaints.
func watch(t *testing.T, name string, open Open) []string {
	i := slices.IndexFunc(cases, func(c testCase) bool { return c.name == name })
	check.Assume(t, i >= 0, "case %q: got none of that name", name)
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

// A store that does not keep a promise is held to all the rest.
func TestAStoreIsHeldToWhatItPromises(t *testing.T) {
	if testing.Short() {
		t.Skip("the whole suite once more is not for -short")
	}
	open := openReference(bugs{rename: func(n *name) { n.key = n.key[:min(len(n.key), 10_000)] }})
	Run(t, open, Names)
	check.That(t, len(watch(t, "keys are bytes", open)) != 0, "got no complaint about a store that cuts long keys, want one")
}
