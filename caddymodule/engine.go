package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/blocked"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/sharedstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// An engine is what runs of a config: its zones, the store that they ask, and what they
// share with the configs before and after it.
type engine struct {
	ctx         caddy.Context
	subscribers *caddyevents.App
	subscribed  func() telemetry.Subscriptions // which do not change
	events      *telemetry.Background[telemetry.Event]
	logger      *zap.Logger
	warner      *zap.Logger // a logger that keeps warnings
	warnings    *telemetry.KeptWarnings
	warned      *onceWarnings

	store    leakybucket.Store
	shared   *stores.SharedStore // behind the store, if that is outside of this process
	observer *storeObserver      // of that
	memory   *stores.MemoryUse   // the store itself or the fallback, if either is in memory
	policy   sharedstore.Policy  // what zones fall back to that have no policy of their own

	exempt     rule.Matchers
	static     []*staticfile.Matcher        // nil exempts no static files
	plans      map[string]leakybucket.Limit // named limits for overrides
	zones      map[string]*runningZone
	everywhere []*decision.Zone // whose blocks hold in all handlers
	afterStart []func()         // when the handlers of all servers are provisioned
	limitsLog  bool             // a zone limits the lines of refusals

	drops        bool           // a listener drops clients that are out
	exemptsSome  bool           // by the global options, or in a zone
	configNumber *atomic.Uint64 // see [lastConfig]

	blocks    *sharedBlocks
	control   *control
	overrides *override.Table // of control

	signing  signingKeys // of device cookies and passes, if a zone has either
	lastKeys *lastKeys
	crawlers configCrawlers
	gate     *admission.Gate
	clock    clock.Clock // what requests go by; nil but in a replay

	overrideFiles overrideFiles
}

// newEngine joins what outlives the config. The engine that it returns must be cleaned up,
// also after an error.
func newEngine(ctx caddy.Context) (e *engine, err error) {
	e = &engine{
		ctx: ctx, logger: ctx.Logger(), warnings: new(telemetry.KeptWarnings), warned: new(onceWarnings),
		zones: make(map[string]*runningZone), configNumber: new(atomic.Uint64),
	}
	e.warner = e.warnings.Logger(e.logger)
	if err := registerMetrics(ctx.GetMetricsRegistry()); err != nil {
		return e, err
	}
	e.events = &telemetry.Background[telemetry.Event]{Pass: e.emit, Most: telemetry.MostEvents}
	e.gate = &admission.Gate{Exiting: exiting, Waived: e.waived}
	if e.subscribers, err = watchExit(ctx); err != nil {
		return e, err
	}
	e.subscribed = sync.OnceValue(e.subscriptions)
	if e.blocks, err = stores.Join(blocksKey, func() (*sharedBlocks, error) { return &sharedBlocks{blocked.NewBuckets(nil)}, nil }); err != nil {
		return e, err
	}
	if e.control, err = joinControl(); err != nil {
		return e, err
	}
	e.overrides = &e.control.overrides
	return e, nil
}

// exemptAlways sets what no zone ever charges.
func (e *engine) exemptAlways(matchers rule.Matchers, static []*staticfile.Matcher) {
	e.exempt, e.static, e.exemptsSome = matchers, static, matchers != nil
}

// useMemory makes a store in memory the store.
func (e *engine) useMemory(m *stores.MemoryUse) { e.memory, e.store = m, m.Store() }

// useShared makes a shared store the store. policy is what zones without one fall back to.
func (e *engine) useShared(s *stores.SharedStore, options sharedstore.Options, policy sharedstore.Policy) (err error) {
	// The shared store is the one that lasts.
	if e.memory, err = stores.UseMemory(stores.MemoryOptions{MaxBuckets: stores.DefaultMaxBuckets, Every: stores.DefaultSnapshotInterval, Logger: e.logger}); err != nil {
		return fmt.Errorf("loading the fallback: %w", err)
	}
	options.Zone = e.zoneFallback
	e.shared, e.policy, e.store = s, policy, s.With(options)
	return nil
}

// zoneFallback returns the fallback of a zone.
func (e *engine) zoneFallback(name string) sharedstore.ZoneOptions {
	z := e.zones[name]
	if z == nil {
		return sharedstore.ZoneOptions{Policy: e.policy}
	}
	return sharedstore.ZoneOptions{Policy: z.policy, Dearest: z.Dearest}
}

// start lets the store connect, applies max_buckets and restores buckets. It logs
// which zones are one budget for several handlers.
func (e *engine) start() {
	if e.memory != nil {
		e.memory.Start(e.savedLimits())
	}
	if e.shared != nil {
		e.observer = &storeObserver{e}
		e.shared.Start(e.observer)
	}
	e.signing.start(e.lastKeys, e.logger)
	e.crawlers.start(e.logger)
	for name, z := range e.zones {
		z.live.start(z)
		if len(z.handlers) > 1 {
			e.logger.Info("several handlers share the budget of the zone; put host into its key to give each site its own",
				zap.String("zone", name), zap.Int("handlers", len(z.handlers)))
		}
	}
	for _, hook := range e.afterStart {
		hook()
	}
	e.forgetDropped()
	e.overrideFiles.start(e)
	e.control.start(e)
}

// end undoes start. Requests of the config may still be in flight.
func (e *engine) end() {
	e.events.Close()
	e.overrideFiles.end()
	e.control.stop(e)
	for _, z := range e.zones {
		z.live.stop(z)
	}
	if e.signing.stop != nil {
		e.signing.stop()
	}
	e.crawlers.end()
	if e.shared != nil {
		e.shared.Stop(e.observer)
	}
	if e.memory != nil {
		e.memory.Stop()
	}
}

// cleanUp logs refusals that were counted but not logged yet, and releases everything that
// outlives the config.
func (e *engine) cleanUp() error {
	var errs []error
	var counts []*telemetry.Zone
	for _, z := range e.zones {
		counts = append(counts, z.counts)
	}
	telemetry.FlushLogs(counts)
	for name := range e.zones {
		errs = append(errs, stores.Leave(liveZoneKey(name)))
	}
	if e.blocks != nil {
		errs = append(errs, stores.Leave(blocksKey))
	}
	if e.control != nil {
		errs = append(errs, stores.Leave(controlKey))
	}
	if e.lastKeys != nil {
		errs = append(errs, stores.Leave(signingKey))
	}
	if e.crawlers.sharedCrawlers != nil {
		errs = append(errs, stores.Leave(crawlersKey))
	}
	if e.shared != nil && e.memory != nil {
		errs = append(errs, e.memory.Release()) // that of a store in memory is the module's
	}
	return errors.Join(errs...)
}

// waived returns a channel that is closed when these zones, or all, are switched to
// shadow.
func (e *engine) waived(zones []string) (<-chan struct{}, func()) {
	return e.overrides.Shadowed(zones, time.Now())
}

// hold keeps the shared store open until release, because requests in flight may
// outlive the config.
func (e *engine) hold() {
	if e.shared != nil {
		e.shared.Hold()
	}
}

func (e *engine) release() {
	if e.shared != nil {
		e.shared.Release()
	}
}

// exempts reports whether the global options exempt a request from all zones.
func (e *engine) exempts(s *rule.Subject) (bool, error) {
	if e.exempt == nil {
		return false, nil
	}
	return s.Spares(e.exempt)
}

// Exempts implements decision.Env.
func (e *engine) Exempts(s *rule.Subject) (bool, error) {
	e.watchProxies(s) // also if the proxy's own address is exempt
	if e.drops {
		e.noteProxy(s)
	}
	return e.exempts(s)
}

// Overrides implements decision.Env.
func (e *engine) Overrides() *override.Set { return e.overrides.Load() }

// Everywhere implements decision.Env.
func (e *engine) Everywhere() []*decision.Zone {
	if e.blocks.Empty() {
		return nil
	}
	return e.everywhere
}

// Believe implements decision.Env.
func (e *engine) Believe(ctx context.Context, c *leakybucket.Charge) (blocked.Block, bool) {
	return e.blocks.Believe(ctx, c, e.store)
}

// Take implements decision.Env. It notes the blocks that it sees.
func (e *engine) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	if err := e.store.Take(ctx, charges, decisions); err != nil {
		e.logger.Error("asking the store; the request passes", zap.Error(err))
		return err
	}
	for i := range charges {
		e.blocks.Note(&charges[i], &decisions[i])
	}
	return nil
}

// FellBack implements decision.Env.
func (e *engine) FellBack(d *leakybucket.Decision) bool {
	return e.shared != nil && sharedstore.FellBack(d)
}

// Look implements decision.Env.
func (e *engine) Look(r *http.Request, client netip.Prefix, most int64) (*body.Ahead, *body.Body) {
	return requestBuffers.Look(r, client, most)
}

// KnownBlock implements decision.Env. A shared store need not be asked about a block that
// it reported within the last second. While the bucket's shard is down, a reported block
// counts until it ends.
func (e *engine) KnownBlock(c *leakybucket.Charge) (blocked.Block, bool) {
	if c.Block == nil || e.shared == nil {
		return blocked.Block{}, false
	}
	b, found, fresh := e.blocks.Find(c)
	return b, found && (fresh || e.shared.DownFor(c))
}

// Interface guards
var _ decision.Env = (*engine)(nil)
