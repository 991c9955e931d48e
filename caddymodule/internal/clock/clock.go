// Package clock lets queues, slots and settlements go by another time than the process's:
// a replay of a log runs through the same code in virtual time. Begin with [Clock].
package clock

import "time"

// A Clock is a time to go by. A nil Clock is that of the process; the functions of this
// package take it.
type Clock interface {
	// Now returns the time.
	Now() time.Time

	// AfterFunc calls f when d has passed, in another goroutine or at least not before
	// AfterFunc has returned.
	AfterFunc(d time.Duration, f func()) Timer

	// Wait returns when done is closed, which must be done by Close.
	Wait(done <-chan struct{})

	// Close closes done.
	Close(done chan struct{})
}

// A Timer is a call that is to come. Stop keeps it from being made, and returns false
// if it was made already.
type Timer interface{ Stop() bool }

// Now returns the time.
func Now(c Clock) time.Time {
	if c == nil {
		return time.Now()
	}
	return c.Now()
}

// Since returns how much time has passed since then.
func Since(c Clock, then time.Time) time.Duration {
	if c == nil {
		return time.Since(then)
	}
	return c.Now().Sub(then)
}

// AfterFunc calls f when d has passed.
func AfterFunc(c Clock, d time.Duration, f func()) Timer {
	if c == nil {
		return time.AfterFunc(d, f)
	}
	return c.AfterFunc(d, f)
}

// Close closes done, and lets the goroutine go on that waits for it.
func Close(c Clock, done chan struct{}) {
	if c == nil {
		close(done)
		return
	}
	c.Close(done)
}
