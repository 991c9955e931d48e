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

	adoptAfter = Instant(1e6) // see Limit.adopt
)

// A Limit says how much a bucket holds and how fast it drains.
type Limit struct {
	Capacity float64 // units of cost, from 1e-9 to 1e12
	Leak     float64 // units of cost a second, from 1e-9 to 1e12
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

// ValidateCost reports why a constant cost makes no sense under the limit: it
// must be 0, or large enough to move the level, and it must be able to fit.
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

// Cost brings a computed cost into the range of the arithmetic. One too small
// to move the level counts as 0, one above 1e12 as 1e12, and what is no number
// or negative as 1.
func (l Limit) Cost(computed float64) float64 {
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

// Oversize reports whether the cost can never fit, however long one waits.
func (l Limit) Oversize(cost float64) bool { return !l.fits(0, cost) }

// Remaining returns how much still fits above level, in units of cost.
func (l Limit) Remaining(level float64) float64 { return max(0, l.Capacity-level) }

// TimeToEmpty returns how long a bucket takes to drain from level, if nobody
// pours: level/leak, rounded up to a microsecond.
func (l Limit) TimeToEmpty(level float64) time.Duration {
	return time.Duration(microseconds(level/l.Leak)) * time.Microsecond
}

// TimeToFit returns how long it takes until cost fits above level, if nobody
// pours: (level+cost-capacity)/leak, rounded up to a microsecond. What costs 0
// fits once the level is below the capacity. For an oversize cost the answer
// means nothing.
func (l Limit) TimeToFit(level, cost float64) time.Duration {
	if l.fits(level, cost) {
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
// until all but undelayed of what is before it has leaked,
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

// Below returns the limit with a capacity of no more than ceiling; 0 is none.
func (l Limit) Below(ceiling float64) Limit {
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
