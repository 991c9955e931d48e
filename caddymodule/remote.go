package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
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

// grumbleEvery is how often errors of single requests are logged.
const grumbleEvery = time.Minute

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
	if !errors.Is(err, leakybucket.ErrBucket) {
		r.breaker.failed(err)
	}
	return err
}

// grumble logs an error, unless one was not long ago.
func (r *Remote) grumble(what string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); len(r.apps) > 0 && now.Sub(r.grumbled) >= grumbleEvery {
		r.grumbled = now
		r.apps[len(r.apps)-1].logger.Error(what, zap.String("store", r.name), zap.Error(err))
	}
}

// review warns of servers that are set up so that limits cannot hold, once they
// answer.
func (r *Remote) review(ctx context.Context, reviewer Reviewer) {
	const again = 5 * time.Second
	for ctx.Err() == nil {
		within, done := context.WithTimeout(ctx, again)
		warnings, err := reviewer.Check(within)
		if err != nil {
			<-within.Done()
		}
		done()
		for _, warning := range warnings {
			caddy.Log().Named("throttle").Warn(warning, zap.String("store", r.name))
		}
		if err == nil {
			return
		}
	}
}

// probe asks as requests do, with a bucket that no zone can have and that is
// soon empty again: a store that answers may still be read-only, or full. The
// first answer may be late for a connection that must be made.
func (r *Remote) probe(ctx context.Context) error {
	err := r.tryOut(ctx)
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.vague && len(r.apps) > 0 {
		r.vague = false
		r.apps[len(r.apps)-1].logger.Error("why the store is down", zap.String("store", r.name), zap.Error(err))
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
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.apps) == 0 {
		return probeTimeout
	}
	return time.Duration(r.apps[len(r.apps)-1].StoreTimeout)
}

// changed says, once each, that the store is down and that it is up again.
func (r *Remote) changed(down bool, err error, after time.Duration) {
	event, up := "throttle_store_up", 1.0
	if down {
		event, up = "throttle_store_down", 0
		storeOutages.WithLabelValues(r.name).Inc()
	}
	storeUp.WithLabelValues(r.name).Set(up)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.vague = down && errors.Is(err, context.DeadlineExceeded)
	if len(r.apps) == 0 {
		return
	}
	app := r.apps[len(r.apps)-1]
	data := map[string]any{"store": r.name}
	if down {
		data["error"] = err.Error()
		app.logger.Error("the store is down; zones go by their on_store_error until it is up again", zap.String("store", r.name), zap.Error(err))
	} else {
		data["seconds"] = after.Seconds()
		app.logger.Info("the store is up again", zap.String("store", r.name), zap.Duration("down_for", after))
	}
	go app.emit(event, data) // what is subscribed may take its time
}

// follow makes an app the one that speaks for the store.
func (r *Remote) follow(a *App) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.apps = append(r.apps, a)
}

func (r *Remote) unfollow(a *App) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.apps = slices.DeleteFunc(r.apps, func(other *App) bool { return other == a })
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

// emit sends an event to those who have subscribed to it.
func (a *App) emit(name string, data map[string]any) {
	if events, err := a.ctx.App("events"); err == nil {
		events.(*caddyevents.App).Emit(a.ctx, name, data)
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
