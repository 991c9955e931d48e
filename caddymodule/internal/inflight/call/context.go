package call

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// Patience is how long a call may go on after its client has left.
const Patience = 5 * time.Minute

// A call is the context of a call: that of the client, but for its end. It is canceled when the
// client has left and nobody can want the response: because it is a stream, or the client's
// patience is over, or the process ends. The client is watched from when somebody first asks for
// that.
type call struct {
	client  context.Context
	writer  *writer // of the response
	exiting <-chan struct{}

	watched atomic.Bool     // once own is set
	own     context.Context // without the client's end; nil before somebody asks
	cancel  context.CancelFunc
	unwatch func() bool

	mu     sync.Mutex
	left   bool // the client has
	stream bool // there is no end to wait for
	over   bool // the upstream is done
	alone  bool // the call lasts without a client
}

// Client returns the context of the client of a request, which ends when that leaves, also if the
// request is within a call.
func Client(ctx context.Context) context.Context {
	if w := find(ctx); w != nil {
		return w.call.client
	}
	return ctx
}

// writerKey is the key of the writer of the call that a context belongs to.
type writerKey struct{}

// find returns the writer of the call that a context belongs to, or nil.
func find(ctx context.Context) *writer {
	w, _ := ctx.Value(writerKey{}).(*writer)
	return w
}

// idleTimeoutsKey is that of caddyhttp.IdleTimeoutsFromContext.
const idleTimeoutsKey caddy.CtxKey = "idle_timeouts"

// Value implements context.Context.
func (c *call) Value(key any) any {
	switch key {
	case writerKey{}:
		return c.writer
	case idleTimeoutsKey:
		// Caddy's timeouts within the call would change the server's writer while we write to it.
		// Without that, they wrap ours.
		reader, _ := caddyhttp.IdleTimeoutsFromContext(c.client)
		return caddyhttp.ContextWithIdleTimeouts(context.Background(), reader, nil).Value(key)
	}
	if c.watched.Load() {
		return c.own.Value(key)
	}
	return c.client.Value(key)
}

// Deadline implements context.Context.
func (c *call) Deadline() (at time.Time, set bool) { return at, false }

// Done implements context.Context.
func (c *call) Done() <-chan struct{} { return c.watch().Done() }

// Err implements context.Context.
func (c *call) Err() error { return c.watch().Err() }

// watch returns the call's own context, and has the client watched.
func (c *call) watch() context.Context {
	if !c.watched.Load() {
		c.note(func() {
			if c.own == nil {
				c.own, c.cancel = context.WithCancel(context.WithoutCancel(c.client))
				c.unwatch = context.AfterFunc(c.client, c.leave)
				c.watched.Store(true)
			}
		})
	}
	return c.own
}

// note notes what has happened, and ends the call if nobody can want the response any more.
func (c *call) note(what func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	what()
	switch {
	case c.own == nil:
	case c.over || c.left && c.stream:
		c.unwatch()
		c.cancel()
	case c.left && !c.alone:
		c.alone = true
		go c.linger()
	}
}

// leave notes that the client has left, or can be sent nothing any more. Over HTTP/3, it
// may still be there then.
func (c *call) leave() { c.note(func() { c.left = true }) }

// streams notes that the response has no end.
func (c *call) streams() { c.note(func() { c.stream = true }) }

// end ends the call.
func (c *call) end() { c.note(func() { c.over = true }) }

// linger ends the call without a client when its time is over, or the process ends.
func (c *call) linger() {
	select {
	case <-time.After(Patience):
	case <-c.exiting:
	case <-c.own.Done():
	}
	c.cancel()
}
