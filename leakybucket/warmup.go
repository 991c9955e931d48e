package leakybucket

import (
	"fmt"
	"math"
	"time"
)

// A WarmUp paces requests to something that is slow at first, an upstream with
// cold caches for example. Cold, it takes ColdFactor times as long for each
// request. Under full demand it reaches its rate within Period, and without any
// demand it is cold again after as long.
//
// The arithmetic is that of SmoothWarmingUp in Guava's RateLimiter. A request is
// let in as soon as those before it are paid for, and the next one waits for it.
type WarmUp struct {
	Rate   float64       // units of cost a second when warm, from 1e-9 to 1e12
	Period time.Duration // zero or less means that it is always warm

	// ColdFactor is at least 1. If zero, it is 3.
	ColdFactor float64
}

// A Pace is the state of a WarmUp. The zero Pace is cold. A Pace may be used with
// another WarmUp: what is half warm stays so, and debts stay debts.
type Pace struct {
	Warm float64 // from 0, cold, to 1
	Next Instant // when the next request may be let in
}

// Validate returns an error if the rate or the cold factor is out of range.
func (w WarmUp) Validate() error {
	if !(w.Rate >= smallest && w.Rate <= largest) {
		return fmt.Errorf("invalid rate %v: want %s", w.Rate, inRange)
	}
	if f := w.coldFactor(); !(f >= 1 && f <= largest) {
		return fmt.Errorf("invalid cold factor %v: want a number from 1 to %.0f", f, largest)
	}
	return nil
}

// Take lets a request in and returns how long it must wait. Its cost must not be
// negative. The caller that does not want to wait for so long drops the new Pace.
func (w WarmUp) Take(p Pace, cost float64, now Instant) (Pace, time.Duration) {
	if idle := now.Sub(p.Next); idle > 0 {
		if w.Period > 0 {
			p.Warm = max(0, p.Warm-float64(idle)/float64(w.Period))
		}
		p.Next = now
	}
	wait := p.Next.Sub(now)
	seconds := cost / w.Rate
	if threshold, width := w.stored(); width > 0 {
		stored := (1 - p.Warm) * (threshold + width)
		left := stored - min(cost, stored)
		above, aboveLeft := max(0, stored-threshold), max(0, left-threshold)
		seconds += (w.coldFactor() - 1) / w.Rate / width * (above*above - aboveLeft*aboveLeft) / 2
		p.Warm = 1 - left/(threshold+width)
	}
	p.Next = min(p.Next+microseconds(seconds), now+microseconds(math.Inf(1))) // no wait that overflows
	return p, wait
}

func (w WarmUp) coldFactor() float64 {
	if w.ColdFactor == 0 {
		return 3
	}
	return w.ColdFactor
}

// stored returns how many units of cost lie between cold and warm, in two parts.
// While the upper part is used up, the interval between requests falls in a straight
// line from the cold one to that of the full rate. The lower part goes at the full
// rate: what has been idle for a moment is not slowed down.
func (w WarmUp) stored() (threshold, width float64) {
	units := w.Rate * max(0, w.Period.Seconds())
	return units / 2, 2 * units / (1 + w.coldFactor())
}
