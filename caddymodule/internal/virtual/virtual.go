// Package virtual runs requests in virtual time: a day of traffic passes in seconds, and
// each run gives the same result. Begin with [World].
package virtual

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
)

// A World is a time in which processes run. One of them runs at any moment, and time
// passes only while all of them wait. It is a [clock.Clock] for what runs in it, and is
// used by one goroutine.
type World struct {
	now     time.Time
	events  []*event // to come, in order
	seq     uint64
	waiting map[<-chan struct{}]*process
	ready   []*process // that may go on now
	current *process
}

// New returns a world whose time is at the beginning of all times.
func New() *World { return &World{waiting: make(map[<-chan struct{}]*process)} }

// Now returns the time.
func (w *World) Now() time.Time { return w.now }

// A process runs a function.
type process struct {
	resume func() (struct{}, bool)
	wait   func(struct{}) bool
}

// Go runs f in a process of its own. It returns when f has ended or waits.
func (w *World) Go(f func()) {
	p := new(process)
	p.resume, _ = iter.Pull(func(yield func(struct{}) bool) {
		p.wait = yield
		f()
	})
	w.resume(p)
	w.settle()
}

// resume lets a process go on until it waits or ends.
func (w *World) resume(p *process) {
	w.current = p
	p.resume()
	w.current = nil
}

// settle lets all processes go on that may.
func (w *World) settle() {
	for len(w.ready) > 0 {
		p := w.ready[0]
		w.ready = w.ready[:copy(w.ready, w.ready[1:])]
		w.resume(p)
	}
}

// Advance lets the time pass until then, and everything happen that is due.
func (w *World) Advance(then time.Time) {
	for len(w.events) > 0 && !w.events[0].at.After(then) {
		w.step()
	}
	if then.After(w.now) {
		w.now = then
	}
}

// Finish lets the time pass until nothing is left to happen.
func (w *World) Finish() {
	for len(w.events) > 0 {
		w.step()
	}
}

func (w *World) step() {
	e := w.events[0]
	w.events = w.events[1:]
	if e.at.After(w.now) {
		w.now = e.at
	}
	e.call()
	w.settle()
}

// Sleep lets the running process wait. Zero is no wait.
func (w *World) Sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	p := w.current
	w.AfterFunc(d, func() { w.ready = append(w.ready, p) })
	p.wait(struct{}{})
}

// Wait implements [clock.Clock] for a process.
func (w *World) Wait(done <-chan struct{}) {
	select {
	case <-done:
		return
	default:
	}
	p := w.current
	w.waiting[done] = p
	p.wait(struct{}{})
}

// Close implements [clock.Clock]: it lets the process go on that waits for done.
func (w *World) Close(done chan struct{}) {
	close(done)
	if p := w.waiting[done]; p != nil {
		delete(w.waiting, done)
		w.ready = append(w.ready, p)
	}
}

// AfterFunc implements [clock.Clock]. Calls that are due at once are made in the order
// in which they were asked for, and by no process.
func (w *World) AfterFunc(d time.Duration, f func()) clock.Timer {
	w.seq++
	e := &event{w: w, at: w.now.Add(max(d, 0)), seq: w.seq, call: f}
	i, _ := slices.BinarySearchFunc(w.events, e, (*event).compare)
	w.events = slices.Insert(w.events, i, e)
	return e
}

// An event is a call that is to come.
type event struct {
	w    *World
	at   time.Time
	seq  uint64
	call func()
}

// compare orders events.
func (e *event) compare(other *event) int {
	return cmp.Or(e.at.Compare(other.at), cmp.Compare(e.seq, other.seq))
}

// Stop implements [clock.Timer].
func (e *event) Stop() bool {
	i, comes := slices.BinarySearchFunc(e.w.events, e, (*event).compare)
	if comes {
		e.w.events = slices.Delete(e.w.events, i, i+1)
	}
	return comes
}

// Interface guards
var _ clock.Clock = (*World)(nil)
