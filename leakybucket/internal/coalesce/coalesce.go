// Package coalesce lets concurrent calls share round trips to a server. Calls
// that arrive while a batch is in flight make up the next batch, which leaves
// when the first returns. No call waits for a timer, so a call that is alone is
// sent at once.
package coalesce

import (
	"container/list"
	"context"
	"errors"
	"runtime"
	"sync"
)

// ErrClosed is returned for calls that were not sent because of [Lanes.Close].
var ErrClosed = errors.New("closed")

// Options bound the batches of each lane.
type Options struct {
	// MaxWeight is the most that the calls of one batch may weigh together. A
	// single call may weigh more, and then is a batch of its own.
	MaxWeight int

	// MaxInFlight is how many batches of one lane may be in flight. Zero means
	// one.
	MaxInFlight int

	// SecondWeight is the weight of waiting calls at which a second batch leaves
	// beside one in flight. Below it, two smaller batches would only make both
	// slower. Further batches leave once they are full.
	SecondWeight int
}

// Lanes send calls in batches, one lane for each key. Calls of different lanes
// never share a batch. Lanes are safe for concurrent use.
type Lanes[K comparable, C any] struct {
	options Options
	send    func(key K, batch []C)

	mu      sync.Mutex
	lanes   map[K]*lane[C]
	closed  bool
	flights sync.WaitGroup
}

// A lane is kept only while it has calls.
type lane[C any] struct {
	waiting  list.List // of *call[C], in the order of arrival
	weight   int       // of those
	inFlight int       // batches
}

type call[C any] struct {
	content C
	weight  int
	ctx     context.Context
	place   *list.Element // in its lane; nil once it is sent or dropped
	done    chan struct{}
	err     error // once done is closed
}

// New returns lanes that send their batches with a function. Lanes call send from
// goroutines of their own, and callers return when it does. It must not keep the slice.
func New[K comparable, C any](o Options, send func(key K, batch []C)) *Lanes[K, C] {
	o.MaxInFlight = max(1, o.MaxInFlight)
	return &Lanes[K, C]{options: o, send: send, lanes: make(map[K]*lane[C])}
}

// Do sends a call in the lane of key and returns nil once its batch is done. Any
// result is in the call, which is usually a pointer.
//
// If ctx ends first, Do returns its error. A call not yet sent is then dropped.
// A call already sent may still be executed, and send may still write to it, so
// the caller must leave it alone.
func (l *Lanes[K, C]) Do(ctx context.Context, key K, content C, weight int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c := &call[C]{content: content, weight: weight, ctx: ctx, done: make(chan struct{})}
	ln := l.join(key, c)
	if ln == nil {
		return ErrClosed
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		l.drop(ln, c)
		return ctx.Err()
	}
}

// join lets a call wait in its lane, and begins to send if it is time to. It
// returns nil if the lanes are closed.
func (l *Lanes[K, C]) join(key K, c *call[C]) *lane[C] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	ln := l.lanes[key]
	if ln == nil {
		ln = new(lane[C])
		l.lanes[key] = ln
	}
	c.place = ln.waiting.PushBack(c)
	ln.weight += c.weight
	if l.leaves(ln) {
		ln.inFlight++
		l.flights.Go(func() { l.fly(key, ln) })
	}
	return ln
}

// leaves reports whether another batch leaves a lane now.
func (l *Lanes[K, C]) leaves(ln *lane[C]) bool {
	switch {
	case ln.inFlight == 0:
		return true
	case ln.inFlight >= l.options.MaxInFlight:
		return false
	case ln.inFlight == 1:
		return ln.weight >= l.options.SecondWeight
	}
	return ln.weight >= l.options.MaxWeight
}

// drop takes back a call that was not sent.
func (l *Lanes[K, C]) drop(ln *lane[C], c *call[C]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.place != nil {
		ln.remove(c)
	}
}

// remove removes a call that waits.
func (ln *lane[C]) remove(c *call[C]) {
	ln.waiting.Remove(c.place)
	c.place = nil
	ln.weight -= c.weight
}

// fly sends batches until no call waits.
func (l *Lanes[K, C]) fly(key K, ln *lane[C]) {
	var calls []*call[C]
	var batch []C
	for {
		if calls = l.next(key, ln, calls[:0]); len(calls) == 0 {
			return
		}
		for _, c := range calls {
			batch = append(batch, c.content)
		}
		l.send(key, batch)
		for _, c := range calls {
			close(c.done)
		}
		clear(calls)
		clear(batch)
		batch = batch[:0]
		l.gather(ln)
	}
}

// next moves the calls of the next batch out of the lane. If there are none, the
// flight is over. A call whose context has ended is dropped, even if its caller
// has yet to notice.
func (l *Lanes[K, C]) next(key K, ln *lane[C], calls []*call[C]) []*call[C] {
	l.mu.Lock()
	defer l.mu.Unlock()
	weight := 0
	for first := ln.waiting.Front(); first != nil; first = ln.waiting.Front() {
		c := first.Value.(*call[C])
		if c.ctx.Err() == nil {
			if weight += c.weight; weight > l.options.MaxWeight && len(calls) > 0 {
				return calls
			}
			calls = append(calls, c)
		}
		ln.remove(c)
	}
	if len(calls) == 0 {
		if ln.inFlight--; ln.inFlight == 0 {
			delete(l.lanes, key)
		}
	}
	return calls
}

// gather lets callers who were just answered join the next batch. It yields the
// processor for as long as that brings in more calls, and waits for none.
func (l *Lanes[K, C]) gather(ln *lane[C]) {
	for before := -1; ; {
		l.mu.Lock()
		now := ln.weight
		l.mu.Unlock()
		if now == before || now >= l.options.MaxWeight {
			return
		}
		before = now
		runtime.Gosched()
	}
}

// Close turns away waiting and later calls with [ErrClosed], and returns once
// all batches in flight are done.
func (l *Lanes[K, C]) Close() {
	l.mu.Lock()
	l.closed = true
	for _, ln := range l.lanes {
		for first := ln.waiting.Front(); first != nil; first = ln.waiting.Front() {
			c := first.Value.(*call[C])
			ln.remove(c)
			c.err = ErrClosed
			close(c.done)
		}
	}
	l.mu.Unlock()
	l.flights.Wait()
}
