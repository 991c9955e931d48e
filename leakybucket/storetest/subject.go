package storetest

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// epoch is where the clock stands first in cases that hold it.
const epoch leakybucket.Instant = 1_700_000_000_000_000

// subject is the store that a case examines, with the case's way of speaking.
type subject struct {
	testing.TB
	store    leakybucket.Store
	setClock func(leakybucket.Instant)
	now      leakybucket.Instant // where the clock is held; 0 while it runs
	calls    atomic.Int64        // of the store, so that messages can name the step
}

// Errorf says at which step of its case the store went wrong.
func (s *subject) Errorf(format string, args ...any) {
	s.Helper()
	s.TB.Errorf(s.step()+format, args...)
}

// Fatalf is Errorf, and ends the case.
func (s *subject) Fatalf(format string, args ...any) {
	s.Helper()
	s.TB.Fatalf(s.step()+format, args...)
}

func (s *subject) step() string {
	if s.now == 0 {
		return fmt.Sprintf("call %d: ", s.calls.Load())
	}
	return fmt.Sprintf("call %d, %v after the first: ", s.calls.Load(), s.now.Sub(epoch))
}

// begin opens a store that runs on its own clock.
func begin(tb testing.TB, open Open, need Need) *subject {
	tb.Helper()
	store, setClock := open(tb, need)
	return &subject{TB: tb, store: store, setClock: setClock}
}

// beginHeld opens a store whose clock stands at the epoch.
func beginHeld(tb testing.TB, open Open, need Need) *subject {
	tb.Helper()
	s := begin(tb, open, need)
	s.at(0)
	return s
}

// has returns the store as one of the optional interfaces. Of a store that is none it ends the case.
func has[T any](s *subject) T {
	s.Helper()
	able, can := s.store.(T)
	if !can {
		s.Skipf("not examined: the store is no %v", reflect.TypeFor[T]())
	}
	return able
}

// at holds the store's clock at so long after the epoch.
func (s *subject) at(d time.Duration) {
	s.now = epoch.Add(d)
	s.setClock(s.now)
}

// take takes all charges together and compares what became of them.
func (s *subject) take(charges []leakybucket.Charge, wants ...want) {
	s.Helper()
	decisions := s.decide(charges)
	for i, w := range wants {
		if err := s.compare(charges[i], decisions[i], w); err != nil {
			s.Fatalf("charge %d of %d, %s: %v", i+1, len(charges), describe(charges[i]), err)
		}
	}
}

// pours takes one charge that must fit a bucket filled to level.
func (s *subject) pours(c leakybucket.Charge, level float64) {
	s.Helper()
	s.take([]leakybucket.Charge{c}, want{poured, level})
}

// refuses takes one charge that must not fit a bucket filled to level.
func (s *subject) refuses(c leakybucket.Charge, level float64) {
	s.Helper()
	s.take([]leakybucket.Charge{c}, want{refused, level})
}

// probes asks for one charge that must fit a bucket filled to level.
func (s *subject) probes(c leakybucket.Charge, level float64) {
	s.Helper()
	s.take(charges(probe(c)), want{held, level})
}

// charged is pours, and returns what settles the charge by diff.
func (s *subject) charged(c leakybucket.Charge, level, diff float64) leakybucket.Settlement {
	s.Helper()
	return s.decided(c, want{poured, level}, diff)
}

// decided takes one charge, and returns what settles it by diff.
func (s *subject) decided(c leakybucket.Charge, w want, diff float64) leakybucket.Settlement {
	s.Helper()
	d := s.decide(charges(c))[0]
	if err := s.compare(c, d, w); err != nil {
		s.Fatalf("charge to be settled, %s: %v", describe(c), err)
	}
	return leakybucket.Settlement{Charge: c, Was: d, Diff: diff}
}

// gone is a settlement by diff of a charge that was poured just now into a
// bucket that is gone since, as after an eviction.
func (s *subject) gone(c leakybucket.Charge, diff float64) leakybucket.Settlement {
	was := leakybucket.Decision{Fits: true, Poured: true, At: s.now}
	return leakybucket.Settlement{Charge: c, Was: was, Diff: diff}
}

// settle settles all in one call, and fails the case on an error.
func (s *subject) settle(all ...leakybucket.Settlement) {
	s.Helper()
	s.calls.Add(1)
	if err := s.store.Settle(context.Background(), all); err != nil {
		s.Fatalf("settling %d charges: %v", len(all), err)
	}
}

// level reads how full the bucket of c is, by a take that can never fit.
func (s *subject) level(c leakybucket.Charge) float64 {
	s.Helper()
	c.Cost = 2 * c.Limit.Capacity
	d := s.decide([]leakybucket.Charge{c})[0]
	if d.Fits || d.Poured || d.Began {
		s.Fatalf("take that can never fit, %s: got %v, want %v", describe(c), outcomeOf(d), refused)
	}
	return d.Level
}

// wantLevel compares how full the bucket of c is.
func (s *subject) wantLevel(c leakybucket.Charge, want float64) {
	s.Helper()
	if got := s.level(c); !near(c.Limit, got, want) {
		s.Fatalf("level of bucket of %s: got %v, want %v", describe(c), got, want)
	}
}

// decide takes charges, and fails the case on an error.
func (s *subject) decide(charges []leakybucket.Charge) []leakybucket.Decision {
	s.Helper()
	s.calls.Add(1)
	decisions := make([]leakybucket.Decision, len(charges))
	for i := range decisions {
		// A decision that a store does not write must show.
		decisions[i] = leakybucket.Decision{Step: 99, Fits: i%2 == 0, Poured: i%2 != 0, Level: math.NaN(), At: -1, BlockedUntil: -1, Began: true}
	}
	if err := s.store.Take(context.Background(), charges, decisions); err != nil {
		s.Fatalf("taking %d charges: %v", len(charges), err)
	}
	return decisions
}

// try is decide for goroutines, which must not end the case.
func (s *subject) try(charges []leakybucket.Charge, decisions []leakybucket.Decision) bool {
	if s.Failed() {
		return false // once is enough
	}
	s.calls.Add(1)
	if err := s.store.Take(context.Background(), charges, decisions); err != nil {
		s.Errorf("taking %d charges: %v", len(charges), err)
		return false
	}
	return true
}

// trySettle is settle for goroutines, which must not end the case.
func (s *subject) trySettle(all ...leakybucket.Settlement) bool {
	if s.Failed() {
		return false // once is enough
	}
	if err := s.store.Settle(context.Background(), all); err != nil {
		s.Errorf("settling %d charges: %v", len(all), err)
		return false
	}
	return true
}

func limit(capacity, leak float64) leakybucket.Limit {
	return leakybucket.Limit{Capacity: capacity, Leak: leak}
}

func charge(key string, l leakybucket.Limit, cost float64) leakybucket.Charge {
	return leakybucket.Charge{Zone: "zone", Key: key, Limit: l, Cost: cost}
}

func shadow(c leakybucket.Charge) leakybucket.Charge {
	c.Shadow = true
	return c
}

func probe(c leakybucket.Charge) leakybucket.Charge {
	c.Probe = true
	return c
}

func inDebt(c leakybucket.Charge, debt float64) leakybucket.Charge {
	c.Debt = debt
	return c
}

func blocking(c leakybucket.Charge, steps ...time.Duration) leakybucket.Charge {
	c.Block = &leakybucket.Ladder{Steps: steps}
	return c
}

func below(c leakybucket.Charge, ceiling float64) leakybucket.Charge {
	c.Ceiling = ceiling
	return c
}

func charges(c ...leakybucket.Charge) []leakybucket.Charge { return c }

// describe keeps a hostile key from filling the screen.
func describe(c leakybucket.Charge) string {
	zone := c.Zone
	if c.Shadow {
		zone = "~" + zone
	}
	cost := "cost"
	if c.Probe {
		cost = "probe of cost"
	}
	text := fmt.Sprintf("%s %v to %s/%.40q of capacity %v, leak %v/s, debt %v",
		cost, c.Cost, zone, c.Key, c.Limit.Capacity, c.Limit.Leak, c.Debt)
	if c.Ceiling != 0 {
		text += fmt.Sprintf(", ceiling %v", c.Ceiling)
	}
	if c.Block != nil {
		text += fmt.Sprintf(", block %v", c.Block.Steps)
	}
	return text
}

// outcome is what may become of a charge.
type outcome struct {
	what  string
	until leakybucket.Instant // the end of the block that runs; 0 if none does
}

var (
	poured  = outcome{what: "poured"}
	held    = outcome{what: "held back"} // it fits, but a charge beside it does not, or it is a probe
	refused = outcome{what: "refused"}
	absurd  = outcome{what: "poured without fitting"}
)

// begins is refused, and a block begins that ends so long after the epoch.
func begins(until time.Duration) outcome {
	return outcome{"refused, and a block began", epoch.Add(until)}
}

// blocked is refused, while a block runs that ends so long after the epoch.
func blocked(until time.Duration) outcome {
	return outcome{"refused while a block runs", epoch.Add(until)}
}

func (o outcome) String() string {
	if o.until == 0 {
		return o.what
	}
	return fmt.Sprintf("%s, until %d", o.what, o.until)
}

func outcomeOf(d leakybucket.Decision) outcome {
	o := refused
	switch {
	case d.Fits && d.Poured:
		o = poured
	case d.Poured:
		o = absurd
	case d.Fits:
		o = held
	case d.Began:
		o = begins(0)
	case d.BlockedUntil != 0:
		o = blocked(0)
	}
	if d.Began && o.what != begins(0).what {
		o.what += ", and a block began"
	}
	o.until = d.BlockedUntil
	return o
}

// want is what a case expects of a charge: its outcome, and how full its bucket
// was before it.
type want struct {
	outcome outcome
	level   float64
}

func (s *subject) compare(c leakybucket.Charge, d leakybucket.Decision, w want) error {
	got := outcomeOf(d)
	if got.what != w.outcome.what || !nearEnd(c, got.until, w.outcome.until) || !near(c.Limit, d.Level, w.level) {
		return fmt.Errorf("got %v at level %v, want %v at level %v", got, d.Level, w.outcome, w.level)
	}
	if s.now != 0 && d.At != s.now {
		return fmt.Errorf("got a decision at %d, want it at %d, where the clock is held", d.At, s.now)
	}
	return nil
}

// nearEnd reports whether two stores may differ so much about the end of a
// block. Without steps, it follows from a level that they may differ about.
func nearEnd(c leakybucket.Charge, a, b leakybucket.Instant) bool {
	if a == 0 || b == 0 {
		return a == b
	}
	most := leakybucket.Instant(1)
	if c.Block != nil && len(c.Block.Steps) == 0 {
		most = 2
	}
	return max(a-b, b-a) <= most
}

// near reports whether two stores may differ so much about a level. It is
// written so that a NaN is near nothing.
func near(l leakybucket.Limit, a, b float64) bool { return math.Abs(a-b) <= tolerance(l) }

func tolerance(l leakybucket.Limit) float64 { return 1e-9*(1+l.Capacity) + l.Leak*1e-6 }
