// Package leakybucket limits how fast something may be used.
//
// A bucket holds a level, in units of cost. Every use pours its cost in, and
// the bucket leaks at a constant rate until it is empty. What would make it
// overflow does not fit and is not poured. A full bucket therefore admits as
// much as has leaked, an empty one a burst of its whole capacity.
//
// The arithmetic is pure: [Limit.Level], [Limit.Take] and [Limit.Fill] are
// functions of a state, a cost and an instant, and know no clock, lock or log.
// [Bucket] is one bucket ready for use by many goroutines; a [Store] keeps
// many, and asks several at once.
//
// What is admitted is bounded. In every window of length t, while the limit is
// unchanged, the cost poured is at most
//
//	capacity*(1+1e-9) + leak*(t + 1µs)
package leakybucket

import "time"

// An Instant is a moment on the clock that a bucket lives by, in microseconds.
// Only differences matter to the arithmetic; the stores count from 1970.
type Instant int64

// Add returns the instant d later, rounded down to a microsecond.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d.Microseconds()) }

// Sub returns the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t-u) * time.Microsecond }

// State is all that is kept of a bucket. The zero State is an empty bucket. Of
// the limit only the leak is part of it, so that a changed limit keeps the level.
type State struct {
	Level float64 // how full it was at At, in units of cost
	At    Instant

	// Leak is the leak of the charge that wrote the state, in units of cost a
	// second. The bucket drains by it until it is written again. If zero, as in
	// states that were kept without one, the bucket drains by the limit it is
	// read with.
	Leak float64

	BlockedUntil Instant // the end of its last block; 0 if there was none
	Step         uint8   // which of the ladder's that block was, from 0
}

// A Decision says what became of one charge.
type Decision struct {
	Fits   bool    // the bucket would not overflow, and is not blocked
	Poured bool    // the cost was poured: it fits, and so does all that was asked with it
	Level  float64 // how full the bucket was before this charge (a probe: before all), in units of cost
	At     Instant // when that was so

	BlockedUntil Instant // the end of the block that runs; 0 if none does
	Step         uint8   // which of the ladder's that block is, from 0
	Began        bool    // the charge began that block

	// Undecided says that the store could not be asked. Fits is then what a
	// fallback policy says, and nothing was poured.
	Undecided bool

	// Origin is the store's own note of where the charge was taken. Callers hand
	// it back in [Settlement].Was and read nothing into it.
	Origin uint64
}

// A Filling says what became of a [Limit.Fill].
type Filling struct {
	Level float64 // how full the bucket is now, in units of cost
	Full  bool    // the pour reached the capacity; true only at that instant
}

// Level returns how full the bucket is at now, by the leak of the state:
//
//	max(0, level - leak * max(0, now-at))
//
// Time never runs backwards in a bucket: until a clock that was set back has
// caught up, nothing leaks.
func (l Limit) Level(s State, now Instant) float64 {
	if now <= s.At {
		return s.Level
	}
	return max(0, s.Level-l.leakOf(s)*seconds(now-s.At))
}

// leakOf returns the leak by which a bucket in this state drains until it is
// written again.
func (l Limit) leakOf(s State) float64 {
	if s.Leak > 0 {
		return s.Leak
	}
	return l.Leak
}

// Take pours cost if it fits and returns the new state. If it does not fit the
// state is unchanged, except that a bucket which was written with another leak
// a second ago or longer is brought up to date. An exact fill fits. A cost of 0 fits while the bucket is not
// full. A cost that is negative or NaN does not fit.
//
// A state further ahead of now than a full bucket takes to empty was written
// before the clock was set far back. It becomes one of now, whether the cost
// fits or not: nothing is ever poured into a full bucket that would date it
// anew.
//
// Blocks are no matter of Take's: see [Charge.Take].
func (l Limit) Take(s State, cost float64, now Instant) (State, Decision) {
	c, d := Charge{Limit: l, Cost: cost}, Decision{}
	c.Take(&s, now, &d)
	return s, d
}

// Fill pours cost without asking: up to the capacity, which it does not lower
// a level to that is above, and for a negative cost down to 0. A NaN pours
// nothing. A state far ahead of now is dated anew, as by Take.
func (l Limit) Fill(s State, cost float64, now Instant) (State, Filling) {
	l.redate(&s, 0, now)
	level := l.Level(s, now)
	if cost != cost {
		return s, Filling{Level: level}
	}
	filled := max(level, min(level+cost, l.Capacity))
	if cost < 0 {
		filled = max(0, level+cost)
	}
	l.write(&s, filled, now)
	return s, Filling{Level: filled, Full: level+cost >= l.Capacity}
}

// Settle corrects a charge, made at charged, once it is known what it should
// have been. A positive diff is poured up to capacity+debt, without lowering a
// level that is above: who was let in for less than it took pays for it, within
// bounds. Of a negative diff as much is given back as has not leaked since,
//
//	max(0, -diff - leak * (now-charged))
//
// since what has leaked made room for others long ago. A NaN changes nothing.
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

// Forget returns the instant after which a bucket in this state is empty, and
// may be forgotten without anybody being able to tell. [Charge.Forget] knows of
// blocks too.
func (l Limit) Forget(s State) Instant {
	return s.At + microseconds(s.Level/l.leakOf(s))
}

// fits is written so that a NaN does not fit.
func (l Limit) fits(level, cost float64) bool {
	if cost == 0 {
		return level < l.Capacity
	}
	return cost > 0 && level+cost <= l.Capacity*(1+tolerance)
}

// redate makes s one of now, if it is further ahead than a full bucket in debt
// takes to empty.
func (l Limit) redate(s *State, debt float64, now Instant) {
	if s.At > now && seconds(s.At-now) > (l.Capacity+debt)/l.Leak {
		s.At = now
	}
}

// write sets the level as of now. From then on the bucket drains by the leak of
// the limit.
func (l Limit) write(s *State, level float64, now Instant) {
	s.Level, s.At, s.Leak = level, max(s.At, now), l.Leak
}

// adopt brings a bucket up to date that was written with another leak, so that
// it drains by the limit's from now on. It does so a second after the last write
// at the earliest: nodes whose limits differ must not turn every refusal into a
// write.
func (l Limit) adopt(s *State, level float64, now Instant) (changed bool) {
	if level <= 0 || s.Leak == 0 || s.Leak == l.Leak || now-s.At < adoptAfter {
		return false
	}
	l.write(s, level, now)
	return true
}
