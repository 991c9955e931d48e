package leakybucket

import (
	"context"
	"fmt"
	"time"
)

// RetryAfter returns how long it takes until the charge fits if nobody else pours: until
// enough has leaked, and a block is over. It is zero if the charge fits, if it can never fit
// (see [Limit.Oversize]), and if nothing is known of its bucket.
func (c *Charge) RetryAfter(d *Decision) time.Duration {
	limit := c.Limit.WithCeiling(c.Ceiling)
	if d.Fits || d.Undecided || limit.Oversize(c.Cost) {
		return 0
	}
	return max(limit.TimeToFit(d.Level, c.Cost), d.BlockedUntil.Sub(d.At))
}

// reserve returns the charge of a caller who waits for cost to fit, for as long as ctx lasts.
// It may overflow the bucket by what leaks in that time. Take it, and call await.
//
// It is an error if ctx has ended, or if the cost can never fit.
func (l Limit) reserve(ctx context.Context, cost float64) (Charge, error) {
	if err := ctx.Err(); err != nil {
		return Charge{}, err
	}
	if l.Oversize(cost) {
		return Charge{}, fmt.Errorf("waiting for a cost of %v: it can never fit the capacity of %v", cost, l.Capacity)
	}
	longest := longestDrain
	if deadline, ok := ctx.Deadline(); ok {
		longest = min(longest, time.Until(deadline))
	}
	c := Charge{Limit: l, Cost: cost, Undelayed: l.Capacity - cost}
	c.Limit.Capacity = min(largest, l.Capacity+l.Leak*max(0, longest.Seconds()))
	return c, nil
}

// await waits until a charge made by reserve has its turn, by the decision of a
// store. If ctx ends before, it calls settle with what cancels the charge, and returns the error
// of ctx. If the charge did not fit, its error wraps [context.DeadlineExceeded].
func (c *Charge) await(ctx context.Context, d *Decision, settle func([]Settlement)) error {
	switch {
	case d.Undecided && d.Fits:
		return nil
	case d.Undecided:
		return errUndecided
	case !d.Poured:
		wait := Limit{Capacity: c.Undelayed + c.Cost, Leak: c.Limit.Leak}.TimeToFit(d.Level, c.Cost)
		return fmt.Errorf("waiting for a cost of %v: it would take %v: %w", c.Cost, wait, context.DeadlineExceeded)
	}
	delay := c.Delay(d)
	if delay == 0 {
		return nil
	}
	select {
	case <-time.After(delay):
		return nil
	case <-ctx.Done():
	}
	settle([]Settlement{{Charge: *c, Was: *d, Cancel: true}})
	return ctx.Err()
}
