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

// A detached is the context of a call: that of the client, but for its end. It is canceled when the
// client has left and nobody can want the response: because it is a stream, or the client's
// patience is over, or the process ends. The client is watched from when somebody first asks for
// that.
type detached struct {
	client context.Context
	call   *Call

	own atomic.Pointer[own] // nil before somebody asks

	mu     sync.Mutex
	left   bool // the client has
	stream bool // there is no end to wait for
	over   bool // the upstream is done
	alone  bool // the call lasts without a client
}

// An own context is the client's without its end.
type own struct {
	context.Context
	cancel  context.CancelFunc
	unwatch func() bool
}

// callKey is the key of the call that a context belongs to.
type callKey struct{}

// find returns the call that a context belongs to, or nil.
func find(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// idleTimeoutsKey is that of caddyhttp.IdleTimeoutsFromContext.
const idleTimeoutsKey caddy.CtxKey = "idle_timeouts"

// Value implements context.Context.
func (d *detached) Value(key any) any {
	switch key {
	case callKey{}:
		return d.call
	case idleTimeoutsKey:
		// Caddy's timeouts within the call would change the server's writer while we write to it.
		// Without that, they wrap ours.
		reader, _ := caddyhttp.IdleTimeoutsFromContext(d.client)
		return caddyhttp.ContextWithIdleTimeouts(context.Background(), reader, nil).Value(key)
	}
	if own := d.own.Load(); own != nil {
		return own.Value(key)
	}
	return d.client.Value(key)
}

// Deadline implements context.Context.
func (d *detached) Deadline() (at time.Time, set bool) { return at, false }

// Done implements context.Context.
func (d *detached) Done() <-chan struct{} { return d.watch().Done() }

// Err implements context.Context.
func (d *detached) Err() error { return d.watch().Err() }

// watch returns the call's own context, and has the client watched.
func (d *detached) watch() *own {
	if d.own.Load() == nil {
		d.note(func() {
			if d.own.Load() == nil {
				o := new(own)
				o.Context, o.cancel = context.WithCancel(context.WithoutCancel(d.client))
				o.unwatch = context.AfterFunc(d.client, d.leave)
				d.own.Store(o)
			}
		})
	}
	return d.own.Load()
}

// note notes what has happened, and ends the call if nobody can want the response any more.
func (d *detached) note(what func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	what()
	own := d.own.Load()
	switch {
	case own == nil:
	case d.over || d.left && d.stream:
		own.unwatch()
		own.cancel()
	case d.left && !d.alone:
		d.alone = true
		go own.linger(d.call.part.caller.Exit())
	}
}

// leave notes that the client has left, or can be sent nothing any more. Over HTTP/3, it
// may still be there then.
func (d *detached) leave() { d.note(func() { d.left = true }) }

// streams notes that the response has no end.
func (d *detached) streams() { d.note(func() { d.stream = true }) }

// end ends the call.
func (d *detached) end() { d.note(func() { d.over = true }) }

// linger ends the call without a client when its time is over, or the process ends.
func (o *own) linger(exit <-chan struct{}) {
	select {
	case <-time.After(Patience):
	case <-exit:
	case <-o.Done():
	}
	o.cancel()
}

// Interface guards
var (
	_ context.Context = (*detached)(nil)
)
