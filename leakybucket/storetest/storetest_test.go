package storetest

import (
	"math"
	"slices"
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
	Run(t, openReference(bugs{
		take: func(s *reference, t taking) error {
			s.forgetNow()
			return s.takeOnce(t)
		},
		settle: func(s *reference, all settling) error {
			s.forgetNow()
			return s.settleEach(all)
		},
	}))
}

func (s *reference) forgetNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(s.clock())
}
