// Package leakybucket limits how fast something may be used.
//
// A bucket holds a level, in units of cost. Every use pours its cost in, and the
// bucket leaks at a constant rate until it is empty. A use that would make it
// overflow does not fit and is not poured. A full bucket therefore admits as
// much as has leaked, an empty one a burst of its whole capacity.
//
// To limit clients, each by a key, use a [Limiter]:
//
//	limiter, err := leakybucket.NewLimiter(memstore.New(memstore.Options{}),
//		leakybucket.Limit{Capacity: 10, Leak: 2}, leakybucket.LimiterOptions{})
//	...
//	if !limiter.Allow(client) {
//		// refuse the client
//	}
//
// Its buckets are in a [Store]: in memory, or in one that several processes share. Package
// httplimit puts it in front of an http.Handler. [Bucket] is a single bucket. All are safe for
// concurrent use. The arithmetic is pure: the methods of [Limit] are functions of a state, a
// cost and an instant, and know no clock, lock or log.
//
// In every window of length t, while the limit is unchanged, the cost poured is
// at most
//
//	capacity*(1+1e-9) + leak*(t + 1µs) + what was given back in it
//
// Package store has helpers for writing a [Store].
package leakybucket

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// The ranges within which float64 arithmetic keeps the promises made here:
// a level is exact to 1e-9 of the capacity, and no product overflows.
const (
	smallest = 1e-9
	largest  = 1e12
	inRange  = "a number from 0.000000001 to 1000000000000" // as it may be written

	// tolerance is the rounding that a sum of many costs may pick up and still
	// be an exact fill. It is also the smallest cost, in capacities, that still
	// moves a level.
	tolerance = 1e-9

	longestDrain = 20 * 365 * 24 * time.Hour

	// mostAhead is how far ahead the clock of another process that writes the same buckets may be. A
	// bucket that drains sooner must not drain anew each time that it is seen by both.
	mostAhead Instant = 1e6
)

// A Limit says how much a bucket holds and how fast it drains. Capacity is the
// burst, Leak the sustained rate.
type Limit struct {
	Capacity float64 // units of cost, from 1e-9 to 1e12
	Leak     float64 // units of cost a second, from 1e-9 to 1e12
}

// An Instant is a moment on the clock of a bucket, in microseconds. The
// arithmetic uses differences only. Stores count from 1970.
type Instant int64

// Add returns the instant d later, to a whole microsecond and never after it.
func (t Instant) Add(d time.Duration) Instant {
	us := d.Microseconds()
	if d < time.Duration(us)*time.Microsecond {
		us--
	}
	return t + Instant(us)
}

// Sub returns the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t-u) * time.Microsecond }

// State is all that is kept of a bucket. The zero State is an empty bucket. Of
// the limit it keeps the leak only, so a changed limit keeps the level.
type State struct {
	Level float64 // how full the bucket was at At, in units of cost
	At    Instant

	// Leak is how fast the bucket drains until it is written again, in units of
	// cost a second: the leak of the charge that wrote it. Zero, as of a bucket that
	// was never written, means the leak of the charge.
	Leak float64

	BlockedUntil Instant // the end of its last block; 0 if there was none
	Step         uint8   // which step of the ladder that block was, from 0
}

// Validate reports why the limit cannot be used: a number out of range, or a
// bucket that would take more than 20 years to drain.
func (l Limit) Validate() error {
	if !(smallest <= l.Capacity && l.Capacity <= largest) {
		return fmt.Errorf("invalid capacity %v: want %s", l.Capacity, inRange)
	}
	if !(smallest <= l.Leak && l.Leak <= largest) {
		return fmt.Errorf("invalid leak of %v a second: want %s", l.Leak, inRange)
	}
	if l.Capacity/l.Leak > longestDrain.Seconds() {
		return errors.New("invalid limit: a full bucket must drain within 20 years")
	}
	return nil
}

// ValidateDebt reports why the limit cannot be used with a debt, in units of
// cost: a number out of range, or a bucket in debt that would take more than 20
// years to drain.
func (l Limit) ValidateDebt(debt float64) error {
	if !(0 <= debt && debt <= largest) {
		return fmt.Errorf("invalid debt %v: want a number from 0 to 1000000000000", debt)
	}
	if (l.Capacity+debt)/l.Leak > longestDrain.Seconds() {
		return fmt.Errorf("invalid debt %v: a full bucket in debt must drain within 20 years", debt)
	}
	return nil
}

// ValidateCost reports why a constant cost makes no sense under the limit. It
// must be 0, or large enough to move the level and small enough to fit.
func (l Limit) ValidateCost(cost float64) error {
	switch {
	case cost == 0:
		return nil
	case cost > l.Capacity:
		return fmt.Errorf("invalid cost %v: it can never fit the capacity of %v", cost, l.Capacity)
	case !(cost >= l.smallestCost()):
		return fmt.Errorf("invalid cost %v: want 0, or a number from %v to %v", cost, l.smallestCost(), l.Capacity)
	}
	return nil
}

// ClampCost brings a computed cost into the range of the arithmetic. A cost too small
// to move the level counts as 0, one above 1e12 as 1e12. A negative cost and a
// NaN count as 1.
func (l Limit) ClampCost(computed float64) float64 {
	switch {
	case !(computed >= 0):
		return 1
	case computed < l.smallestCost():
		return 0
	}
	return min(computed, largest)
}

// smallestCost divides, since the product of 1e12 and 1e-9 is above 1000.
func (l Limit) smallestCost() float64 { return l.Capacity / 1e9 }

// Level returns how full the bucket is at now, by the leak of the state:
//
//	max(0, level - leak * max(0, now-at))
//
// Time never runs backwards in a bucket. After a clock was set back, nothing
// leaks until it has caught up.
func (l Limit) Level(s State, now Instant) float64 { return s.level(now, l.Leak) }

// level is Limit.Level. A State is copied slowly, and a pointer is not.
func (s *State) level(now Instant, leak float64) float64 {
	if s.Leak > 0 {
		leak = s.Leak
	}
	if now <= s.At {
		return s.Level
	}
	return max(0, s.Level-leak*seconds(now-s.At))
}

// Take pours cost if it fits, and returns the new state. A cost that exactly
// fills the bucket fits. A cost of 0 fits while the bucket is not full. A
// negative cost or a NaN does not fit.
//
// If the cost does not fit the state stays as it was, with two exceptions. A
// bucket written with another leak is brought up to date and drains by this
// limit's leak from now on. A state further ahead of now than a full bucket takes
// to empty, and than a second, was written before the clock was set far back, and becomes one of now:
// otherwise a full bucket would stay full until the clock has caught up.
//
// Take ignores blocks. See [Charge.Take].
func (l Limit) Take(s State, cost float64, now Instant) (State, Decision) {
	c, d := Charge{Limit: l, Cost: cost}, Decision{}
	c.Take(&s, now, &d)
	return s, d
}

// Fill pours cost without asking, up to the capacity. It returns the new state, how full the
// bucket is now, and whether the pour reached the capacity. A level already above the
// capacity stays. A negative cost takes out, down to 0. A NaN pours nothing. A
// state far ahead of now becomes one of now, as in Take.
func (l Limit) Fill(s State, cost float64, now Instant) (filled State, level float64, full bool) {
	l.redate(&s, 0, now)
	before := l.Level(s, now)
	switch {
	case cost != cost:
		return s, before, false
	case cost < 0:
		level = max(0, before+cost)
	default:
		level = max(before, min(before+cost, l.Capacity))
	}
	l.write(&s, level, now)
	return s, level, before+cost >= l.Capacity
}

// Settle corrects a charge made at charged by diff, once its true cost is known.
// A positive diff is poured up to capacity+debt, so a request admitted for too
// little pays for it within bounds. A level already above that stays.
//
// Of a negative diff as much is given back as has not leaked since the charge,
// because later charges have used the rest:
//
//	max(0, -diff - leak * (now-charged))
//
// A diff of 0 or NaN changes nothing.
func (l Limit) Settle(s State, diff, debt float64, charged, now Instant) State {
	l.redate(&s, debt, now)
	level := l.Level(s, now)
	switch {
	case diff > 0:
		level = max(level, min(level+diff, l.Capacity+debt))
	case diff < 0:
		level = max(0, level-max(0, -diff-l.Leak*seconds(max(0, now-charged))))
	default:
		return s
	}
	l.write(&s, level, now)
	return s
}

// EmptyAt returns the instant at which a bucket in this state will have drained, if nobody
// pours.
func (l Limit) EmptyAt(s State) Instant {
	if s.Leak > 0 {
		l.Leak = s.Leak
	}
	return s.At + microseconds(s.Level/l.Leak)
}

// Fits reports whether cost fits above level: an exact fill does, and a cost of 0 does while
// the bucket is not full. A negative cost and a NaN do not.
func (l Limit) Fits(level, cost float64) bool {
	if cost == 0 {
		return level < l.Capacity
	}
	return cost > 0 && level+cost <= l.Capacity*(1+tolerance)
}

// redate makes s one of now, if it is further ahead than a full bucket in debt
// takes to empty, and than mostAhead.
func (l *Limit) redate(s *State, debt float64, now Instant) {
	if s.At > now && seconds(s.At-now) > max(seconds(mostAhead), (l.Capacity+debt)/l.Leak) {
		s.At = now
	}
}

// write sets the level as of now. From then on the bucket drains by the leak of
// the limit.
func (l *Limit) write(s *State, level float64, now Instant) {
	s.Level, s.At, s.Leak = level, max(s.At, now), l.Leak
}

// Oversize reports whether the cost can never fit, however long one waits.
func (l Limit) Oversize(cost float64) bool { return !l.Fits(0, cost) }

// Remaining returns how much still fits above level, in units of cost.
func (l Limit) Remaining(level float64) float64 { return max(0, l.Capacity-level) }

// TimeToEmpty returns how long a bucket takes to drain from level if nobody
// pours: level/leak, rounded up to a microsecond.
func (l Limit) TimeToEmpty(level float64) time.Duration {
	return time.Duration(microseconds(level/l.Leak)) * time.Microsecond
}

// TimeToFit returns how long it takes until cost fits above level if nobody
// pours: (level+cost-capacity)/leak, rounded up to a microsecond. A cost of 0
// fits once the level is below the capacity. Ask [Limit.Oversize] first: for a cost that can
// never fit the result says nothing.
func (l Limit) TimeToFit(level, cost float64) time.Duration {
	if l.Fits(level, cost) {
		return 0
	}
	wait := max(0, microseconds((level+cost-l.Capacity)/l.Leak))
	if cost == 0 {
		// At the capacity itself it does not fit yet: one step further.
		wait += 1 + microseconds(l.Capacity*tolerance/l.Leak)
	}
	return time.Duration(wait) * time.Microsecond
}

// Delay returns how long a charge waits that finds the bucket filled to level:
// until all but undelayed of that has leaked,
//
//	max(0, level-undelayed) / leak
//
// rounded up to a microsecond.
func (l Limit) Delay(level, undelayed float64) time.Duration {
	return time.Duration(microseconds(max(0, level-undelayed)/l.Leak)) * time.Microsecond
}

// Ceiling returns how high a charge of cost may fill the bucket so that it waits
// no longer than longest:
//
//	min(capacity, undelayed + leak*longest + cost)
func (l Limit) Ceiling(cost, undelayed float64, longest time.Duration) float64 {
	return min(l.Capacity, undelayed+l.Leak*longest.Seconds()+cost)
}

// WithCeiling returns the limit with a capacity of at most ceiling. Zero means no
// ceiling.
func (l Limit) WithCeiling(ceiling float64) Limit {
	if ceiling > 0 {
		l.Capacity = min(l.Capacity, ceiling)
	}
	return l
}

func seconds(t Instant) float64 { return float64(t) / 1e6 }

// microseconds rounds up, and saturates at a century, so that neither a limit
// that nobody validated nor a level that a former one allowed can wrap into the
// past. The sum of two is still a [time.Duration].
func microseconds(seconds float64) Instant {
	const most = 100 * 365 * 24 * 3600
	if seconds <= most {
		return Instant(math.Ceil(seconds * 1e6))
	}
	return most * 1e6
}
