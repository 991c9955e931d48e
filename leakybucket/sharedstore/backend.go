package sharedstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// A Remote is a store outside of this process. It connects by itself, at its
// first call at the latest. A call ends soon after its context does, and then no
// longer uses its arguments. The Origin of its decisions is overwritten.
type Remote interface {
	leakybucket.Store
	leakybucket.Resetter

	// Start connects before the first call. It returns at once.
	Start()

	// Close ends all connections. Later calls return an error.
	Close()
}

// A Checker is a [Remote] that can check the settings of its servers.
type Checker interface {
	// Check returns warnings about settings that break limits, as far as the
	// servers report them. It is an error if the servers do not answer.
	Check(ctx context.Context) (warnings []string, err error)
}

// A Reporter is a [Remote] that does work which no call waits for, such as deleting
// expired buckets.
type Reporter interface {
	// SetOnError sets the function that is called with the errors of this work. It
	// may be called by several goroutines at once and does not block.
	SetOnError(func(error))
}

// ErrDown is returned by calls that are not made because the store is down.
var ErrDown = errors.New("the store is down")

// A Backend owns a remote store and everything that must outlive a config: the
// breaker, this node's copies of the shared buckets, and the ledger of charges
// that the store does not know of. There must be one per process and remote
// store, in a pool.
//
// It closes the remote store after the pool has destructed it and its last user
// has released it. All methods are safe for concurrent use.
type Backend struct {
	name     string
	remote   Remote
	sharded  leakybucket.Sharded // the remote store, or nil
	local    *memstore.Store
	base     time.Time // what the instants in Origin count from
	breakers breakers
	teller   teller
	ledger   ledger // what this node has admitted and the store does not know of
	releases releases

	reconciling sync.Once             // begins it
	noted       atomic.Pointer[Store] // of the config that has noted something last
	ending      context.Context       // with close

	budget  atomic.Int64 // a time.Duration: the timeout of the call that failed last
	revived func()       // ends revive; guarded by the breakers

	users   atomic.Int64 // and destructed
	start   func()       // once
	close   func()       // once
	onClose func()
	onCall  func(took time.Duration) // nil if nobody counts calls
}

// destructed is a bit of Backend.users, which no number of users reaches.
const destructed = 1 << 62

// NewBackend returns the backend of a remote store. name is for the log and
// metrics. local takes the charges of zones with the policy [Local] during an
// outage. It may have other uses, and stays open.
//
// Nothing is called before the first [Backend.Attach].
func NewBackend(name string, remote Remote, local *memstore.Store) *Backend {
	b := &Backend{name: name, remote: remote, local: local, base: time.Now()}
	var end context.CancelFunc
	b.ending, end = context.WithCancel(context.Background())
	b.ledger.entries = make(map[bucket]*entry)
	b.budget.Store(int64(DefaultTimeout))
	b.breakers.changed = b.changed
	b.teller.news = make(chan func(Observer), mostNews)
	b.teller.start = sync.OnceFunc(func() { go b.teller.run(b.ending) })
	b.sharded, _ = remote.(leakybucket.Sharded)
	if reporter, ok := remote.(Reporter); ok {
		reporter.SetOnError(b.teller.stray)
	}
	b.start = sync.OnceFunc(func() {
		remote.Start()
		if checker, ok := remote.(Checker); ok {
			go b.check(b.ending, checker)
		}
	})
	b.close = sync.OnceFunc(func() {
		end()
		remote.Close()
		if b.onClose != nil {
			b.onClose()
		}
	})
	return b
}

// OnClose sets a function to be called once when the remote store is closed. It
// must be called before the backend is used.
func (b *Backend) OnClose(f func()) { b.onClose = f }

// OnCall sets a function to be called after each call that a request has made of the
// remote store, with how long the call took. It must be called before the backend is used.
func (b *Backend) OnCall(f func(took time.Duration)) { b.onCall = f }

// Attach makes o the observer, until it is detached or another one is attached.
// The first Attach lets the remote store connect.
func (b *Backend) Attach(o Observer) {
	b.teller.attach(o)
	b.start()
}

// Detach undoes Attach. The observer that was attached before is in use again. A
// call of o may still be in progress.
func (b *Backend) Detach(o Observer) { b.teller.detach(o) }

// Hold keeps the remote store open until Release. Requests call it, because they
// may outlive their config.
func (b *Backend) Hold() { b.users.Add(1) }

// Release undoes Hold.
func (b *Backend) Release() {
	if b.users.Add(-1) == destructed {
		go b.close() // the caller need not wait for it
	}
}

// Destruct closes the remote store once its last user has released it. It
// never fails.
func (b *Backend) Destruct() error {
	if b.users.Or(destructed) == 0 {
		go b.close()
	}
	return nil
}

// A call is one call of the remote store, with a budget of its own.
type call struct {
	permit
	ctx       context.Context
	cancel    context.CancelFunc
	began     time.Time
	timeout   time.Duration
	shortened bool // to the caller's own deadline
	trial     bool // of a shard that is down
}

// leastTrial is how long a trial may take at least. An answer after the timeout is a
// failure, but to connect, or to learn that a password is wrong, takes longer.
const leastTrial = 500 * time.Millisecond

// begin returns a call of some shards that ends after the timeout, or at the caller's
// deadline if that is sooner, and reports whether it may be made. Canceling the caller's
// context does not end it. Nothing of the caller's ends a trial.
func (b *Backend) begin(ctx context.Context, timeout time.Duration, shards ...int) (c call, admitted bool) {
	c = call{timeout: timeout, began: time.Now()}
	if c.permit, admitted = b.breakers.admit(c.began, shards...); !admitted {
		return c, false
	}
	for p := &c.permit; p != nil; p = p.beside {
		c.trial = c.trial || p.trial
	}
	deadline := c.began.Add(timeout)
	if c.trial {
		deadline = c.began.Add(max(timeout, leastTrial))
	} else if own, ok := ctx.Deadline(); ok && own.Before(deadline) {
		deadline, c.shortened = own, true
	}
	c.ctx, c.cancel = context.WithDeadline(context.WithoutCancel(ctx), deadline)
	return c, true
}

// end records how a call ended. An error is no failure of the store if it is
// about one bucket, or if the call ran out of a shortened budget.
func (b *Backend) end(c call, what string, err error) error {
	late := err != nil && c.ctx.Err() != nil
	c.cancel()
	if b.onCall != nil {
		b.onCall(time.Since(c.began))
	}
	switch {
	case late && c.shortened:
		return err
	case late:
		err = fmt.Errorf("no answer within the timeout: %w", err)
	}
	if err != nil {
		b.teller.failed(what, err, c.trial)
	}
	b.count(&c, err)
	return err
}

// count makes the breakers know how a call ended.
func (b *Backend) count(c *call, err error) {
	now := time.Now()
	if errors.Is(err, leakybucket.ErrBadBucket) || errors.Is(err, leakybucket.ErrMoving) {
		err = nil
	}
	slow := err == nil && c.trial && now.Sub(c.began) > c.timeout
	if slow {
		err = fmt.Errorf("got an answer after %v, later than the timeout", now.Sub(c.began))
	}
	switch {
	case err != nil && !c.trial:
		b.budget.Store(int64(c.timeout))
	case err != nil && !errors.Is(err, context.DeadlineExceeded):
		// The first calls to fail may have met a connection that was just closed.
		b.teller.explained(err)
	}
	for p := &c.permit; p != nil; p = p.beside {
		if slow && !p.trial || !failed(err, p.shard) {
			b.breakers.report(p, nil, now)
		} else {
			b.breakers.report(p, err, now)
		}
	}
}

// failed reports whether a shard failed a call that ended with err.
func failed(err error, shard int) bool {
	if err == nil {
		return false
	}
	var some *leakybucket.ShardError
	return !errors.As(err, &some) || slices.Contains(some.Shards, shard)
}

// changed tells the observer that an outage begins or ends.
func (b *Backend) changed(down bool, err error, after time.Duration) {
	if !down {
		b.revived()
		b.teller.tell(func(o Observer) { o.Up(after) })
		return
	}
	b.teller.down(err)
	var ctx context.Context
	ctx, b.revived = context.WithCancel(b.ending)
	go b.revive(ctx)
}

// revive tries the shards that are down and that no request tries.
func (b *Backend) revive(ctx context.Context) {
	ticker := time.NewTicker(firstHold)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			for _, shard := range b.breakers.neglected(now) {
				go b.ping(shard)
			}
		}
	}
}

// ping takes from a bucket that no zone can have and that is soon empty again. A
// ping of the server would not do: one that answers it may be read-only, or full.
func (b *Backend) ping(shard int) {
	charge := leakybucket.Charge{Zone: "@probe", Limit: leakybucket.Limit{Capacity: 1e6, Leak: 1e6}, Cost: 1}
	for i := 0; b.shardOf(&charge) != shard; i++ {
		if i == mostProbes {
			b.breakers.forget(shard, time.Now())
			return
		}
		charge.Key = strconv.Itoa(i)
	}
	c, admitted := b.begin(context.Background(), time.Duration(b.budget.Load()), shard)
	if !admitted {
		return
	}
	defer c.cancel()
	b.count(&c, b.remote.Take(c.ctx, []leakybucket.Charge{charge}, make([]leakybucket.Decision, 1)))
}

// mostProbes is how many keys are tried for one in a shard before the shard counts as
// gone. It finds a single slot of a Redis Cluster nearly always.
const mostProbes = 100_000

// shardOf returns the shard of a charge's bucket.
func (b *Backend) shardOf(c *leakybucket.Charge) int {
	if b.sharded == nil {
		return 0
	}
	return b.sharded.Shard(c)
}

// shardsOf appends the shards of charges, each once.
func (b *Backend) shardsOf(shards []int, charges []leakybucket.Charge) []int {
	if b.sharded == nil {
		return append(shards, 0)
	}
	for i := range charges {
		if shard := b.sharded.Shard(&charges[i]); !slices.Contains(shards, shard) {
			shards = append(shards, shard)
		}
	}
	return shards
}

// byShard divides what belongs to charges by their shards.
func byShard[T any](b *Backend, all []T, charge func(*T) *leakybucket.Charge) iter.Seq2[int, []T] {
	if b.sharded == nil {
		return func(yield func(int, []T) bool) { yield(0, all) }
	}
	parts := make(map[int][]T)
	for i := range all {
		shard := b.sharded.Shard(charge(&all[i]))
		parts[shard] = append(parts[shard], all[i])
	}
	return maps.All(parts)
}

// check tells the observer the servers' warnings, once they answer.
func (b *Backend) check(ctx context.Context, checker Checker) {
	const again = 5 * time.Second
	for ctx.Err() == nil {
		within, done := context.WithTimeout(ctx, again)
		warnings, err := checker.Check(within)
		if err != nil {
			<-within.Done()
		}
		done()
		for _, text := range warnings {
			b.teller.tell(func(o Observer) { o.Warned(text) })
		}
		if err == nil {
			return
		}
	}
}

// Down reports whether the store, or a shard of it, is known to be down, so that it is
// left alone.
func (b *Backend) Down() bool { return b.breakers.isOpen() }

// goHeld calls f in a goroutine, which holds the remote store open.
func (b *Backend) goHeld(f func()) {
	b.Hold()
	go func() {
		defer b.Release()
		f()
	}()
}

// DownFor reports whether the shard of a bucket is known to be down.
func (b *Backend) DownFor(c *leakybucket.Charge) bool {
	return b.Down() && b.breakers.isOpenFor(b.shardOf(c))
}

// Registry returns the remote store as a registry, if it is one.
func (b *Backend) Registry() (r leakybucket.Registry, is bool) {
	r, is = b.remote.(leakybucket.Registry)
	return r, is
}

// Shards returns how many shards were called since the process began, and how many of
// those are down. A store without shards is one.
func (b *Backend) Shards() (shards, down int) { return b.breakers.count() }

// Failing reports whether calls fail: a shard is down, or a call failed lately.
func (b *Backend) Failing() bool { return b.breakers.isFailing(time.Now()) }
