package storetest

import (
	"fmt"
	"math"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

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
