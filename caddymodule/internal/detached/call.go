package detached

import (
	"context"
	"sync"
	"time"
)

// A call is the context of a detached call: that of the client, but for its end. It is
// canceled when the client has left and nobody can want the answer: because it is a
// stream, or the client's patience is over, or the process ends.
type call struct {
	context.Context
	cancel  context.CancelFunc
	unwatch func() bool
	client  context.Context
	writer  *writer // of the answer
	exiting <-chan struct{}

	mu     sync.Mutex
	left   bool // the client
	stream bool // there is no end to wait for
}

// begin begins a call, for which the client is watched.
func (c *call) begin() {
	c.Context, c.cancel = context.WithCancel(context.WithoutCancel(c.client))
	c.unwatch = context.AfterFunc(c.client, c.leave)
}

// Client returns the context of the client of a request, which ends when that leaves, also
// if the request is a part of a detached call.
func Client(ctx context.Context) context.Context {
	if d, ok := ctx.Value(writerKey{}).(*writer); ok {
		return d.call.client
	}
	return ctx
}

// writerKey is the key of the writer of the call that a context belongs to.
type writerKey struct{}

// Value implements context.Context.
func (c *call) Value(key any) any {
	if key == (writerKey{}) {
		return c.writer
	}
	return c.Context.Value(key)
}

// leave notes that the client has left, or can be sent nothing any more. Over HTTP/3, it
// may still be there then.
func (c *call) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.stream:
		c.cancel()
	case !c.left:
		go c.linger()
	}
	c.left = true
}

// linger ends the call without a client when its time is over, or the process ends.
func (c *call) linger() {
	select {
	case <-time.After(Patience):
	case <-c.exiting:
	case <-c.Done():
	}
	c.cancel()
}

// streams notes that the answer has no end.
func (c *call) streams() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream = true; c.left {
		c.cancel()
	}
}

// end ends the call.
func (c *call) end() {
	c.unwatch()
	c.cancel()
}
