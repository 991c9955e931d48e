package sharedstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// What a remote store may do besides, see [NewBackend].
type (
	checker interface {
		Check(ctx context.Context) (warnings []string, err error)
	}
	starter interface{ Start() }
	closer  interface{ Close() }
)

// A Backend owns a remote store and everything that must outlive a config: the breaker and
// this node's own buckets. There must be one per process and remote store. All methods are
// safe for concurrent use.
type Backend struct {
	name     string
	remote   leakybucket.Store
	local    *memstore.Store
	blocks   *blocks
	breaker  *gobreaker.TwoStepCircuitBreaker[any]
	notifier notifier

	connection
	outage

	// The life cycle.
	ending   context.Context // with close
	settling sync.RWMutex    // held by settlements in flight, and by close
	start    func()          // once
	close    func()          // once
	checking atomic.Pointer[context.CancelFunc]
	onCall   func(took time.Duration) // nil if nobody counts calls
}

// A connection is the first one to the store.
type connection struct {
	first   chan struct{}   // closed when requests wait no longer
	also    <-chan struct{} // what they wait for besides the store; nil if nothing
	waiting atomic.Int64    // requests
}

// An Outage of the store lasts while the breaker is not closed.
type Outage struct {
	Since time.Time
	Why   error // the last reason
}

// An outage is what a backend knows of the last one.
type outage struct {
	lasts   atomic.Pointer[Outage] // nil while there is none
	failed  atomic.Pointer[error]  // why the last call did
	failing atomic.Int64           // when that was, in Unix nanoseconds
	budget  atomic.Int64           // the timeout of the last call that was wanted: a time.Duration
}

const (
	// firstWait is how long requests wait for the first connection at most, and mostWaiting
	// how many do.
	firstWait   = 2 * time.Second
	mostWaiting = 1000

	// The breaker opens when so many calls of the last seconds have failed, and a fifth of
	// them all: a dead third of a cluster is a dead store. A store that hangs under load is
	// noticed sooner, by so many failures in a row.
	window    = 5 * time.Second
	leastFail = 3
	inARow    = 20

	// While it is open, the store is tried every second. If it answers, so many trials in a
	// row close the breaker.
	leftAlone = time.Second
	trialGap  = 200 * time.Millisecond
	trials    = 3

	// A trial asks for so many buckets, each in a call of its own, so that it reaches every
	// part of a cluster.
	probes = 10
)

// NewBackend returns the backend of a remote store. name is for the log and
// metrics. local takes the charges of zones with the policy [Local] during an
// outage. It may have other uses, and stays open.
//
// A call of the remote store must end when its context does; [Interruptible] sees to that for
// any store. It connects by itself, at its first call. If it is a [store.Resetter] or a
// [store.Lister], it is used as such, and so are these methods, if it has them:
//
//	Start()                                                       begins work in the background
//	Check(ctx context.Context) (warnings []string, err error)     tells of settings that break limits
//	Close()                                                       closes connections; may return an error, which is dropped
//
// Nothing is called before the first [Backend.Attach] or request.
func NewBackend(name string, remote leakybucket.Store, local *memstore.Store) *Backend {
	b := &Backend{name: name, remote: remote, local: local, connection: connection{first: make(chan struct{})}}
	b.blocks = &blocks{local: local, reported: memstore.New(memstore.Options{MaxBuckets: mostBlocks, Clock: local.Now})}
	b.notifier.news, b.notifier.reasons = make(chan func(Observer), mostNews), make(map[string]time.Time)
	var end context.CancelFunc
	b.ending, end = context.WithCancel(context.Background())
	b.budget.Store(int64(DefaultTimeout))
	b.breaker = gobreaker.NewTwoStepCircuitBreaker[any](gobreaker.Settings{
		Interval: window, BucketPeriod: window / 10,
		Timeout: leftAlone - time.Millisecond, MaxRequests: trials,
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= inARow || c.TotalFailures >= leastFail && 4*c.TotalFailures >= c.TotalSuccesses
		},
		IsSuccessful:  func(err error) bool { return err == nil || errors.Is(err, store.ErrBadBucket) },
		IsExcluded:    func(err error) bool { return errors.Is(err, errCallersDeadline) },
		OnStateChange: func(_ string, _, to gobreaker.State) { b.changed(to) },
	})
	b.start = sync.OnceFunc(func() {
		go b.notifier.run(b.ending)
		if s, can := capability[starter](remote); can {
			s.Start()
		}
		go b.connect()
	})
	b.close = sync.OnceFunc(func() {
		end()
		b.settling.Lock()
		defer b.settling.Unlock()
		if c, can := capability[closer](remote); can {
			c.Close()
		} else if c, can := capability[io.Closer](remote); can {
			_ = c.Close() // which nobody is left to be told of
		}
	})
	return b
}

// Report passes on an error of the remote store for which no call waits, such as that expired
// buckets cannot be deleted.
func (b *Backend) Report(err error) {
	b.notifier.failed("looking after the store; requests go on", err)
}

// OnCall sets a function to be called after each call that a request has made of the
// remote store, with how long the call took. It must be called before the backend is used.
func (b *Backend) OnCall(f func(took time.Duration)) { b.onCall = f }

// AlsoAwait makes requests wait at the start until a channel is closed, too, such as for what
// was changed at run time. It must be called before the backend is used.
func (b *Backend) AlsoAwait(done <-chan struct{}) { b.also = done }

// Attach makes o the observer, until it is detached or another one is attached.
// The first Attach lets the remote store connect. Each has the servers checked, for o.
func (b *Backend) Attach(o Observer) {
	b.notifier.attach(o)
	b.start()
	if c, can := capability[checker](b.remote); can {
		ctx, end := context.WithCancel(b.ending)
		if former := b.checking.Swap(&end); former != nil {
			(*former)()
		}
		go b.check(ctx, c)
	}
}

// Detach undoes Attach. The observer that was attached before is in use again. A
// call of o may still be in progress.
func (b *Backend) Detach(o Observer) { b.notifier.detach(o) }

// Close ends the trials of the remote store and, once the settlements in flight have ended,
// closes it. Its stores should not be used any more: calls go by the policies of their zones.
func (b *Backend) Close() { b.close() }

// Ready reports whether requests need not wait: the store was reached, or not in time.
func (b *Backend) Ready() bool {
	select {
	case <-b.first:
		return true
	default:
		return false
	}
}

// Await returns when requests need not wait any longer. It returns at once if a thousand
// wait already. Requests that only shadow zones concern must not call it.
func (b *Backend) Await(ctx context.Context) {
	if b.Ready() {
		return
	}
	b.start()
	defer b.waiting.Add(-1)
	if b.waiting.Add(1) > mostWaiting {
		return
	}
	select {
	case <-b.first:
	case <-ctx.Done():
	}
}

// connect tries to reach the store for the first time, and lets requests go on.
func (b *Backend) connect() {
	ctx, cancel := context.WithTimeout(b.ending, firstWait)
	defer cancel()
	err := b.probe(ctx, firstWait)
	for err != nil && sleep(ctx, trialGap) {
		if again := b.probe(ctx, firstWait); again == nil || ctx.Err() == nil {
			err = again // otherwise the one before says more
		}
	}
	switch {
	case b.ending.Err() != nil:
	case err != nil:
		b.trip(fmt.Errorf("not reached within %v: %w", firstWait, err))
	case b.also != nil:
		select {
		case <-b.also:
		case <-ctx.Done():
		}
	}
	close(b.first)
}

// probe asks the store for buckets that no zone can have and that are soon empty again, and
// once more for those for which it did not answer within the budget: the store may be as busy
// as the breaker forgives it, but no part of it may be dead. A ping of the server would not do:
// one that answers it may be read-only, or full.
func (b *Backend) probe(ctx context.Context, budget time.Duration) error {
	var errs [probes]error
	var all sync.WaitGroup
	ask := func(i int) error {
		ctx, cancel := context.WithTimeout(ctx, budget)
		defer cancel()
		charge := leakybucket.Charge{Zone: "@probe", Key: strconv.Itoa(i), Limit: leakybucket.Limit{Capacity: 1e6, Leak: 1e6}, Cost: 1}
		err := b.remote.Take(ctx, []leakybucket.Charge{charge}, make([]leakybucket.Decision, 1))
		if errors.Is(err, store.ErrBadBucket) { // an answer, and the breaker takes it for one
			return nil
		}
		return err
	}
	for i := range errs {
		all.Go(func() {
			if errs[i] = ask(i); errs[i] != nil && ctx.Err() == nil {
				errs[i] = ask(i)
			}
		})
	}
	all.Wait()
	return cmp.Or(errs[:]...)
}

// trip opens the breaker.
func (b *Backend) trip(err error) {
	b.failed.Store(&err)
	for !b.Down() {
		done, refused := b.breaker.Allow()
		if refused != nil {
			return
		}
		done(err)
	}
}

// changed is called by the breaker, with its lock held.
func (b *Backend) changed(to gobreaker.State) {
	switch o := b.Outage(); {
	case to == gobreaker.StateOpen && o == nil:
		why := *b.failed.Load()
		begun := &Outage{time.Now(), why}
		b.lasts.Store(begun)
		b.notifier.isNew(why)
		b.notifier.notify(func(o Observer) { o.Down(why) })
		go b.revive(begun)
	case to == gobreaker.StateClosed:
		b.lasts.Store(nil)
		after := time.Since(o.Since)
		b.notifier.notify(func(o Observer) { o.Up(after) })
	}
}

// revive tries the store until it answers. No request does, so none waits for it, but those may that
// were let in before the outage: if they end it, nothing may begin it again.
func (b *Backend) revive(o *Outage) {
	for told := 0; sleep(b.ending, trialGap) && b.Outage() == o; {
		done, refused := b.breaker.Allow()
		if refused != nil {
			continue
		}
		err := b.probe(b.ending, time.Duration(b.budget.Load()))
		// A timeout says little. Another reason than at first, such as a wrong password, is told.
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && told < mostReasons && !strings.Contains(o.Why.Error(), err.Error()) {
			next := &Outage{o.Since, err}
			if b.lasts.CompareAndSwap(o, next) {
				o, told = next, told+1
				b.notifier.notify(func(o Observer) { o.Failed("trying the store, which is down", err) })
			}
		}
		done(err)
	}
}

// sleep returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// A call is one call of the remote store, with a budget of its own.
type call struct {
	ctx       context.Context
	cancel    context.CancelFunc
	done      func(error) // tells the breaker
	began     time.Time
	timeout   time.Duration
	shortened bool // to the caller's own deadline, which is much sooner
}

// errCallersDeadline is wrapped by the error of a call that ran out of a budget shorter than
// the timeout, which is no failure of the store.
var errCallersDeadline = errors.New("the caller's deadline has passed")

// begin returns a call that ends after the timeout, or at the caller's deadline if that is
// sooner, and reports whether it may be made. A client that hangs up does not end it.
func (b *Backend) begin(ctx context.Context, timeout time.Duration) (c call, admitted bool) {
	b.budget.Store(int64(timeout))
	if !b.Ready() || b.Down() {
		return c, false
	}
	done, refused := b.breaker.Allow()
	if refused != nil {
		return c, false
	}
	c = call{done: done, began: time.Now(), timeout: timeout}
	deadline := c.began.Add(timeout)
	if own, has := ctx.Deadline(); has && own.Before(deadline) {
		// A caller that waits for about as long, such as a Limiter, tells as much of the store.
		deadline, c.shortened = own, own.Sub(c.began) < timeout/2
	}
	c.ctx, c.cancel = context.WithDeadline(context.WithoutCancel(ctx), deadline)
	return c, true
}

// end records how a call ended.
func (b *Backend) end(c call, what string, err error) error {
	late := err != nil && c.ctx.Err() != nil
	c.cancel()
	if b.onCall != nil {
		b.onCall(time.Since(c.began))
	}
	switch {
	case err == nil:
	case late && c.shortened:
		err = fmt.Errorf("%w: %w", errCallersDeadline, err)
	default:
		if late {
			err = fmt.Errorf("no answer within %v: %w", c.timeout, err)
		}
		why := err // which, unlike err, may be on the heap
		b.failed.Store(&why)
		if !errors.Is(err, store.ErrBadBucket) {
			b.failing.Store(time.Now().UnixNano())
		}
		b.notifier.count(func(o Observer) { o.Errors() })
	}
	c.done(err)
	if err != nil && !c.shortened && !b.Down() { // the outage is told with its reason
		b.notifier.failed(what, err)
	}
	return err
}

// lost counts charges that stay as they were reserved.
func (b *Backend) lost(settlements []leakybucket.Settlement) {
	for i := range settlements {
		b.notifier.count(func(o Observer) { o.Unsettled(settlements[i].Charge.Zone) })
	}
}

// Outage returns the outage that lasts, or nil.
func (b *Backend) Outage() *Outage { return b.lasts.Load() }

// Down reports whether the store is known to be down, so that it is left alone.
func (b *Backend) Down() bool { return b.Outage() != nil }

// Failing reports whether calls fail: the store is down, or a call failed lately.
func (b *Backend) Failing() bool {
	return b.Down() || time.Since(time.Unix(0, b.failing.Load())) < window
}

// check tells the observer the servers' warnings, once they answer.
func (b *Backend) check(ending context.Context, c checker) {
	const again = 5 * time.Second
	for {
		ctx, done := context.WithTimeout(ending, again)
		warnings, err := c.Check(ctx)
		done()
		for _, text := range warnings {
			b.notifier.notify(func(o Observer) { o.Warned(text) })
		}
		if err == nil || !sleep(ending, again) {
			return
		}
	}
}

// Registry returns the remote store as a registry, if it is one.
func (b *Backend) Registry() (store.Registry, bool) {
	return capability[store.Registry](b.remote)
}
