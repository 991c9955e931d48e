package engine

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/changes"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

const controlKey = "control"

// A control is how the admin API reaches what runs, what it has changed there, and what else
// all configs share. It outlives them: a reload must not lift a ban, nor forget a support code.
type control struct {
	Changes  *changes.Copy
	Refusals supportcode.Ring // the last ones
	Rates    telemetry.Rates
	Bodies   *body.Store   // received ones, and responses that wait for their clients
	key      signer.Ring   // in Caddy's storage: a reload keeps it although storage fails meanwhile
	stopped  chan struct{} // closed when no config uses it any more

	mu      sync.Mutex
	engines []*Engine // of configs that have started and not stopped, oldest first
}

func joinControl() *control {
	return stores.Join(controlKey, func() *control {
		dir, logf := filepath.Join(caddy.AppDataDir(), "throttle"), func(err error) { caddy.Log().Named("throttle").Error(err.Error()) }
		c := &control{Changes: changes.New(), Bodies: body.NewStore(dir, logf), stopped: make(chan struct{})}
		go c.Changes.Run(c.stopped)
		go c.sample()
		return c
	})
}

// sample samples what is counted, and lets what counts a sample of requests begin again.
func (c *control) sample() {
	ticker := time.NewTicker(telemetry.SampleEvery)
	defer ticker.Stop()
	for now, n := time.Now(), 0; ; n++ {
		c.Rates.Sample(now)
		if n%int(sketch.Span/telemetry.SampleEvery) == 0 {
			stores.EachOf(func(z *ZoneState) { z.Recent.Turn(now) })
		}
		if e := newest.Load(); e != nil {
			e.Proxies.Requests.Store(0)
		}
		select {
		case <-c.stopped:
			return
		case now = <-ticker.C:
		}
	}
}

// newest is the last of the engines in the control, or nil. Listeners read it, too, for which a
// lock at each connection and packet would cost too much.
var newest atomic.Pointer[Engine]

func (c *control) Start(e *Engine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follow(append(c.engines, e))
}

func (c *control) Stop(e *Engine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follow(slices.DeleteFunc(c.engines, func(other *Engine) bool { return other == e }))
}

// follow lets what is shared go by the newest of the configs that run. mu is held.
func (c *control) follow(engines []*Engine) {
	c.engines = engines
	if len(engines) == 0 {
		newest.Store(nil)
		c.Changes.Use(nil, "", zap.NewNop(), nil)
		return
	}
	e := engines[len(engines)-1]
	if newest.Load() != e { // it has started, or a newer one has failed to
		c.Bodies.SetBounds(e.bodies)
		for _, l := range e.InFlight {
			l.Started()
		}
		var registry store.Registry
		var read func()
		if e.Shared != nil {
			registry, _ = e.Shared.Registry()
			read = e.Shared.ChangesRead
		}
		c.Changes.Use(registry, filepath.Join(caddy.AppDataDir(), "throttle", "changes.json"), e.Logger, read)
		newest.Store(e)
	}
	// A config that starts may still fail to: a smaller bound must not drop buckets before that.
	e.Memory.Memory.Use(e.Memory, slices.MaxFunc(engines, func(a, b *Engine) int { return a.Memory.MaxBuckets - b.Memory.MaxBuckets }).Memory.MaxBuckets)
}

// RunningEngine returns the engine of the config that runs, or nil. Its stores stay open
// until the caller has called the function that is returned.
func RunningEngine() (e *Engine, release func()) {
	for {
		e = newest.Load()
		if e == nil || e.Shared == nil {
			return e, func() {}
		}
		if e.Shared.Hold(); newest.Load() == e {
			return e, e.Shared.Release
		}
		e.Shared.Release() // a reload may have closed it before
	}
}

// Destruct ends the goroutines, and gives up the file.
func (c *control) Destruct() error {
	close(c.stopped)
	c.Changes.Close()
	return nil
}

// patience is how long a config waits for its key when it starts. A storage that takes longer must
// not keep sites from being served.
const patience = time.Second

// signingKey returns the key of device cookies and passes.
func (e *Engine) signingKey() *signer.Ring {
	e.signs = true
	return cmp.Or(e.Key, &e.Control.key)
}

// readKey reads the key, and keeps it up to date until ctx is done.
func (e *Engine) readKey(ctx context.Context) {
	if !e.signs || e.Key != nil {
		return
	}
	waiting, tried := context.WithTimeout(ctx, patience)
	go e.Control.key.Run(ctx, e.Ctx.Storage(), tried, func(err error) {
		e.Logger.Error("reading the signing keys; it is tried again every minute, and meanwhile no device cookie or pass may be issued", zap.Error(err))
	})
	<-waiting.Done()
}
