package detached

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A call is the context of a detached call: that of the client, but for its end. It is
// canceled when the client has left and nobody can want the answer: because it is a
// stream, or the client's patience is over, or the process ends. It has the method
// AfterFunc, so that contexts made of it need no goroutine.
type call struct {
	client  context.Context
	writer  *writer // of the answer
	exiting <-chan struct{}

	mu      sync.Mutex
	err     error         // not nil once it is canceled
	done    chan struct{} // nil until somebody wants it
	ends    []*func()     // what AfterFunc is to call
	unwatch func() bool   // nil until somebody wants to know whether the call is over
	left    bool          // the client
	stream  bool          // there is no end to wait for
	timer   *time.Timer   // until the patience is over, once the client has left
}

// Client returns the context of the client of a request, which ends when that leaves, also
// if the request is a part of a detached call.
func Client(ctx context.Context) context.Context {
	if d, ok := ctx.Value(writerKey{}).(*writer); ok {
		return d.call.client
	}
	return ctx
}

// Deadline implements context.Context.
func (*call) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// writerKey is the key of the writer of the call that a context belongs to.
type writerKey struct{}

// Value implements context.Context.
func (c *call) Value(key any) any {
	if key == (writerKey{}) {
		return c.writer
	}
	return c.client.Value(key)
}

// Err implements context.Context.
func (c *call) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watch()
	return c.err
}

// Done implements context.Context.
func (c *call) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watch()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.err != nil {
			close(c.done)
		}
	}
	return c.done
}

// AfterFunc calls f in a goroutine of its own when the context is done. See
// [context.AfterFunc].
func (c *call) AfterFunc(f func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watch()
	if c.err != nil {
		go f()
		return func() bool { return false }
	}
	c.ends = append(c.ends, &f)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		i := slices.Index(c.ends, &f)
		if i < 0 {
			return false
		}
		c.ends = slices.Delete(c.ends, i, i+1)
		return true
	}
}

// watch begins to watch the client. The caller holds the lock.
func (c *call) watch() {
	if c.unwatch == nil && c.err == nil {
		c.unwatch = context.AfterFunc(c.client, c.leave)
	}
}

// leave notes that the client has left.
func (c *call) leave() {
	if c.depart() {
		c.waitForExit()
	}
}

// depart limits how long the call goes on, now that nobody will get the rest of its
// answer. It reports whether that is news, and the call is not over yet.
func (c *call) depart() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left {
		return false
	}
	c.left = true
	if c.stream {
		c.cancel()
	}
	if c.err == nil {
		c.timer = time.AfterFunc(Patience, c.end)
	}
	return c.err == nil
}

// waitForExit ends the call if the process ends before it does.
func (c *call) waitForExit() {
	select {
	case <-c.exiting:
		c.end()
	case <-c.Done():
	}
}

// streams notes that the answer has no end.
func (c *call) streams() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watch()
	c.stream = true
	if c.left {
		c.cancel()
	}
}

// cut notes that nothing can be sent to the client any more. Over HTTP/3, it may still
// be there.
func (c *call) cut() {
	if c.depart() {
		go c.waitForExit()
	}
}

// end cancels the call.
func (c *call) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel()
	if c.unwatch != nil {
		c.unwatch()
	}
	if c.timer != nil {
		c.timer.Stop()
	}
}

// cancel cancels the call. The caller holds the lock.
func (c *call) cancel() {
	if c.err != nil {
		return
	}
	c.err = context.Canceled
	if c.done != nil {
		close(c.done)
	}
	for _, f := range c.ends {
		go (*f)()
	}
	c.ends = nil
}
