package detached

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A call is the context of a detached call: that of the client, but for its end. It is
// canceled when the client has left and nobody can want the answer: because it is a
// stream, or the client's patience is over, or the process ends.
type call struct {
	client  context.Context
	writer  *writer // of the answer
	exiting <-chan struct{}
	watch   atomic.Pointer[watch] // nil until somebody wants to know whether the call is over

	// Guarded by mu, as is who sets watch:
	mu     sync.Mutex
	over   bool
	left   bool // the client
	stream bool // there is no end to wait for
	room   watch
}

// A watch is a context that ends with a call, and looks whether the client leaves.
type watch struct {
	context.Context
	cancel  context.CancelFunc
	unwatch func() bool
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
	if w := c.watch.Load(); w != nil {
		if value := w.Value(key); value != nil {
			return value // the contexts made of this one look for what they end with
		}
	}
	return c.client.Value(key)
}

// Err implements context.Context.
func (c *call) Err() error { return c.watched().Err() }

// Done implements context.Context.
func (c *call) Done() <-chan struct{} { return c.watched().Done() }

// watched begins to watch the client, unless somebody has.
func (c *call) watched() *watch {
	if w := c.watch.Load(); w != nil {
		return w
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.watch.Load(); w != nil {
		return w
	}
	w := &c.room
	w.Context, w.cancel = context.WithCancel(context.Background())
	if c.over {
		w.cancel()
	} else {
		w.unwatch = context.AfterFunc(c.client, c.leave)
	}
	c.watch.Store(w)
	return w
}

// leave notes that the client has left, or can be sent nothing any more. Over HTTP/3, it
// may still be there then.
func (c *call) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left || c.over {
		return
	}
	c.left = true
	if c.stream {
		c.cancel()
	} else {
		go c.linger()
	}
}

// linger ends the call without a client when its time is over, or the process ends.
func (c *call) linger() {
	select {
	case <-time.After(Patience):
	case <-c.exiting:
	case <-c.Done():
	}
	c.end()
}

// streams notes that the answer has no end.
func (c *call) streams() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stream = true
	if c.left {
		c.cancel()
	}
}

// end cancels the call.
func (c *call) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel()
}

// cancel cancels the call. The caller holds the lock.
func (c *call) cancel() {
	if w := c.watch.Load(); w != nil && !c.over {
		w.unwatch()
		w.cancel()
	}
	c.over = true
}
