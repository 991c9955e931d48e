package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A Remote is a store outside of this process, which may be slow, out of reach
// or gone. It never makes requests wait for what does not answer, and tells when
// that begins and ends. Store modules keep one in a UsagePool over reloads.
//
// It closes its store when the last config has let go of it and the last
// request that uses it has ended.
type Remote struct {
	name    string
	store   RemoteStore
	breaker breaker
	owed    owed

	close    func() // once
	mu       sync.Mutex
	users    int    // requests
	unused   bool   // by any config
	apps     []*App // that have started and not stopped, oldest first
	grumbled time.Time
	vague    bool // all that is known of this outage is that there was no answer in time
}

// A RemoteStore is what a Remote needs of a store. It connects by itself.
type RemoteStore interface {
	leakybucket.Store
	leakybucket.Resetter

	// Close ends all connections. Who asks afterwards gets an error.
	Close()
}

// A Reviewer is a remote store that can tell what is wrong with its servers.
type Reviewer interface {
	// Check returns in words what keeps limits from holding, as far as the
	// servers tell, or an error if they do not answer.
	Check(ctx context.Context) (warnings []string, err error)
}

// errDown is what everybody gets who asks while the breaker is open.
var errDown = errors.New("the store is down")

// NewRemote returns a remote store that log lines and metrics call by a name.
func NewRemote(name string, store RemoteStore) *Remote {
	r := &Remote{name: name, store: store}
	r.breaker.probe, r.breaker.changed = r.probe, r.changed
	ending, end := context.WithCancel(context.Background())
	if reviewer, ok := store.(Reviewer); ok {
		go r.review(ending, reviewer)
	}
	r.close = sync.OnceFunc(func() {
		end()
		r.breaker.close()
		r.store.Close()
		countRemote(r.name, -1)
	})
	countRemote(name, 1)
	return r
}

// Take implements leakybucket.Store. While the store is known to be down it
// returns an error at once.
func (r *Remote) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	return r.ask(ctx, "asking the store", func() error { return r.store.Take(ctx, charges, decisions) })
}

// Settle implements leakybucket.Store.
func (r *Remote) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	return r.ask(ctx, "settling in the store; what was reserved stays", func() error { return r.store.Settle(ctx, settlements) })
}

// Reset implements leakybucket.Resetter.
func (r *Remote) Reset(ctx context.Context, zone, key string, shadow bool) error {
	return r.ask(ctx, "resetting a bucket", func() error { return r.store.Reset(ctx, zone, key, shadow) })
}

func (r *Remote) ask(ctx context.Context, what string, call func() error) error {
	if r.breaker.isOpen() {
		return errDown
	}
	err := call()
	if err == nil {
		r.breaker.succeeded()
		return nil
	}
	storeErrors.WithLabelValues(r.name).Inc()
	if ctx.Err() != nil {
		err = fmt.Errorf("no answer within store_timeout: %w", err)
	}
	r.grumble(what, err)
	if !errors.Is(err, leakybucket.ErrBadBucket) {
		r.breaker.failed(err)
	}
	return err
}

// probe asks as requests do, with a bucket that no zone can have and that is
// soon empty again: a store that answers may still be read-only, or full. The
// first answer may be late for a connection that must be made.
func (r *Remote) probe(ctx context.Context) error {
	err := r.tryOut(ctx)
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	app := r.speaker()
	r.mu.Lock()
	why := r.vague && app != nil
	r.vague = r.vague && !why
	r.mu.Unlock()
	if why {
		app.logger.Error("why the store is down", zap.String("store", r.name), zap.Error(err))
	}
	return err
}

func (r *Remote) tryOut(ctx context.Context) error {
	charge := leakybucket.Charge{Zone: "@probe", Limit: leakybucket.Limit{Capacity: 1e6, Leak: 1e6}, Cost: 1}
	var decision [1]leakybucket.Decision
	var took time.Duration
	for range 2 {
		start := time.Now()
		if err := r.store.Take(ctx, []leakybucket.Charge{charge}, decision[:]); err != nil {
			return err
		}
		if took = time.Since(start); took <= r.timeout() {
			return nil
		}
	}
	return fmt.Errorf("got an answer after %v, which is later than store_timeout", took)
}

// timeout returns for how long requests wait for the store.
func (r *Remote) timeout() time.Duration {
	if app := r.speaker(); app != nil {
		return time.Duration(app.StoreTimeout)
	}
	return probeTimeout
}

// enter counts a request that may use the store.
func (r *Remote) enter() {
	if r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.users++
	}
}

// leave counts one less.
func (r *Remote) leave() {
	if r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.users--
		r.closeIfUnused()
	}
}

// Destruct implements caddy.Destructor.
func (r *Remote) Destruct() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unused = true
	r.closeIfUnused()
	return nil
}

// closeIfUnused must be called with the lock held.
func (r *Remote) closeIfUnused() {
	if r.unused && r.users == 0 {
		go r.close() // who leaves need not wait for it
	}
}

// remotes counts the remote stores of each name, so that what is counted of them
// goes with the last. There are two of one name while a reload changes its URL.
var remotes struct {
	mu     sync.Mutex
	byName map[string]int
}

func countRemote(name string, more int) {
	remotes.mu.Lock()
	defer remotes.mu.Unlock()
	if remotes.byName == nil {
		remotes.byName = make(map[string]int)
	}
	switch remotes.byName[name] += more; remotes.byName[name] {
	case 0:
		storeUp.DeleteLabelValues(name)
		storeErrors.DeleteLabelValues(name)
		storeOutages.DeleteLabelValues(name)
	case 1:
		storeUp.WithLabelValues(name).Set(1)
		storeErrors.WithLabelValues(name)
		storeOutages.WithLabelValues(name)
	}
}

// Interface guards
var (
	_ leakybucket.Store    = (*Remote)(nil)
	_ leakybucket.Resetter = (*Remote)(nil)
	_ caddy.Destructor     = (*Remote)(nil)
)
