package storetest

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
)

var mutants = slices.Concat(amountMutants, leakMutants, clockMutants, togetherMutants, probeMutants, settleMutants,
	blockMutants, blockTogetherMutants, ceilingMutants, cancelMutants, resetMutants, forgettingMutants, blockForgettingMutants, raceMutants)

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
