// Package caddymodule adds rate limiting to Caddy: the handler `throttle` protects
// upstreams with leaky buckets. It holds Caddy's modules and their registration.
//
// Their JSON, with its manual, is in internal/config, and what the Caddyfile says for it in
// internal/caddyfile. A request's way through the code is [Handler.ServeHTTP].
package caddymodule

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admission"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/blocklist"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/clock"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func init() {
	caddy.RegisterModule(App{})
}

// App holds the global options of all throttle handlers.
type App struct {
	config.App
	engine *engine
}

// An engine is what runs of a config: its zones, the store that they ask, and what they
// share with the configs before and after it.
type engine struct {
	ctx         caddy.Context
	subscribers *caddyevents.App
	subscribed  func() subscriptions // which do not change
	events      *background[event]
	logger      *zap.Logger
	warner      *zap.Logger // a logger that keeps warnings
	warnings    *keptWarnings
	warned      *onceWarnings

	store    leakybucket.Store
	shared   *SharedStore   // behind the store, if that is outside of this process
	observer *storeObserver // of that
	fallback *Memory        // of that; nil otherwise
	memory   *Memory        // the store itself or the fallback, if either is in memory

	exempt     decision.Matchers
	static     []*staticfile.Matcher // nil exempts no static files
	plans      map[string]leakybucket.Limit
	global     map[string]*runningZone // by the definitions in the global options
	zones      map[string]*runningZone
	everywhere []*runningZone // whose blocks hold in all handlers
	afterStart []func()       // when the handlers of all servers are provisioned
	limitsLog  bool           // a zone limits the lines of refusals

	drops        bool           // a listener drops clients that are out
	exemptsSome  bool           // by the global options, or in a zone
	configNumber *atomic.Uint64 // see [lastConfig]

	checked bool // checkServers has run

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

// A StoreModule is a module in the namespace throttle.stores that keeps buckets in
// this process. It needs no fallback.
type StoreModule interface {
	// Store returns the store. It must remain usable until the last request that
	// uses it has ended, which may be after the module's Cleanup.
	Store() leakybucket.Store
}

// A SharedStoreModule is a module in the namespace throttle.stores that keeps
// buckets outside of this process.
type SharedStoreModule interface {
	// SharedStore returns the store, which comes from [ConnectStore].
	SharedStore() *SharedStore
}

// CaddyModule returns the Caddy module information.
func (App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "throttle",
		New: func() caddy.Module { return new(App) },
	}
}

// Provision loads the store and compiles the global zones. It dials nothing.
func (a *App) Provision(ctx caddy.Context) (err error) {
	a.engine = &engine{ctx: ctx, logger: ctx.Logger()}
	a.engine.warnings = new(keptWarnings)
	a.engine.warner = a.engine.warnings.logger(a.engine.logger)
	a.engine.global = make(map[string]*runningZone)
	a.engine.zones = make(map[string]*runningZone)
	if err := registerMetrics(ctx.GetMetricsRegistry()); err != nil {
		return err
	}
	a.engine.warned, a.engine.configNumber = new(onceWarnings), new(atomic.Uint64)
	a.engine.events = &background[event]{pass: a.engine.emit, most: mostEvents}
	a.engine.gate = &admission.Gate{Exiting: exiting, Waived: a.engine.waived}
	if a.engine.subscribers, err = watchExit(ctx); err != nil {
		return err
	}
	a.engine.subscribed = sync.OnceValue(a.engine.subscriptions)
	if a.engine.blocks, err = join(blocksKey, func() (*sharedBlocks, error) { return &sharedBlocks{blocklist.New(nil)}, nil }); err != nil {
		return err
	}
	if a.engine.control, err = joinControl(); err != nil {
		return err
	}
	a.engine.overrides = &a.engine.control.overrides
	if a.engine.plans, err = config.ParsePlans(a.Plan); err != nil {
		return err
	}
	if err := a.provisionStore(ctx); err != nil {
		return err
	}
	if err = config.CheckMatcherSets(a.Exempt); err != nil {
		return fmt.Errorf("exempt: %w", err)
	}
	for _, set := range a.Exempt {
		if err = config.CheckExempt(set); err != nil {
			return err
		}
		if doubt := config.Doubtful(set, true); doubt != "" {
			a.engine.warner.Warn(doubt, zap.String("place", "exempt in the global options"))
		}
	}
	if a.engine.exempt, err = config.LoadMatchers(ctx, a, "Exempt", a.Exempt); err != nil {
		return err
	}
	a.engine.exemptsSome = a.engine.exempt != nil
	if a.engine.static, err = config.LoadStatic(ctx, a.ExemptStaticFiles); err != nil {
		return err
	}
	for _, definition := range a.Zone {
		z, err := a.provisionZone(ctx, definition)
		if err != nil {
			return err
		}
		if a.engine.global[z.Name] != nil {
			return fmt.Errorf("zone %q is defined twice in the global options", z.Name)
		}
		a.engine.global[z.Name] = z
	}
	return nil
}

// zoneOf returns the zone for a handler's definition. A definition that is nothing
// but a name means the zone of that name in the global options.
func (a *App) zoneOf(ctx caddy.Context, definition *config.Zone) (*runningZone, error) {
	if definition == nil || !definition.Reference() {
		return a.provisionZone(ctx, definition)
	}
	if z := a.engine.global[definition.Name]; z != nil {
		return z, nil
	}
	return nil, config.ErrUnknownZone(definition.Name, slices.Sorted(maps.Keys(a.engine.global)))
}

// provisionZone makes a definition ready for requests. Definitions of one name are
// one zone and must be equal.
func (a *App) provisionZone(ctx caddy.Context, definition *config.Zone) (*runningZone, error) {
	if definition == nil {
		return nil, errors.New("a zone is null: want an object with a name")
	}
	if err := config.CheckZoneName(definition.Name); err != nil {
		return nil, err
	}
	rule, err := definition.Compile(a.engine.plans)
	if err != nil {
		return nil, err
	}
	text, err := definition.Definition()
	if err != nil {
		return nil, fmt.Errorf("zone %q: %w", definition.Name, err)
	}
	if z := a.engine.zones[definition.Name]; z != nil {
		if z.definition != text {
			return nil, fmt.Errorf("zone %q is defined twice, and differently: a name is one budget, so give one of them another name: %s and %s", z.Name, z.definition, text)
		}
		return z, nil
	}
	doubts := definition.Doubts() // of matchers, which Caddy drops when it has loaded them
	if err := definition.Load(ctx, rule); err != nil {
		return nil, err
	}
	if definition.OverrideFile != "" {
		if err := a.engine.overrideFiles.add(definition.OverrideFile, rule); err != nil {
			return nil, fmt.Errorf("zone %q: reading override_file: %w", definition.Name, err)
		}
	}
	rule.Static = append(rule.Static, a.engine.static...)
	if rule.Trust != nil {
		if rule.Trust.Keys, err = a.engine.signingKeys(ctx); err != nil {
			return nil, err
		}
	}
	pass := passOf(rule)
	if pass != nil {
		if pass.Keys, err = a.engine.signingKeys(ctx); err != nil {
			return nil, err
		}
	}
	z, err := newRunningZone(a, definition, rule, text)
	if err != nil {
		return nil, err
	}
	if rule.Trust != nil {
		rule.Trust.Insecure = z.warnInsecure
	}
	if pass != nil {
		pass.Insecure = z.warnInsecure
		pass.Memory, pass.Full = z.live.passes, z.warnPassesFull
	}
	a.engine.zones[z.Name] = z
	a.engine.exemptsSome = a.engine.exemptsSome || rule.Exempt != nil
	if z.everywhere = definition.Block != nil && definition.Block.Everywhere; z.everywhere {
		a.engine.everywhere = append(a.engine.everywhere, z)
	}
	z.warn(definition)
	for _, doubt := range doubts {
		z.logger.Warn(doubt)
	}
	return z, nil
}

// Start lets the store connect, applies max_buckets and restores buckets. It logs
// which zones are one budget for several handlers.
func (a *App) Start() error {
	if a.engine.memory != nil {
		a.engine.memory.start(a.engine.savedLimits())
	}
	if a.engine.shared != nil {
		a.engine.observer = &storeObserver{a.engine}
		a.engine.shared.start(a.engine.observer)
	}
	a.engine.signing.start(a.engine.lastKeys, a.engine.logger)
	a.engine.crawlers.start(a.engine.logger)
	if !a.engine.checked { // no handler and no matcher was provisioned in the HTTP app
		for _, definition := range a.Zone {
			if len(a.engine.global[definition.Name].handlers) == 0 {
				a.warnUnused(definition.Name)
			}
		}
	}
	for name, z := range a.engine.zones {
		z.live.start(z)
		if len(z.handlers) > 1 {
			a.engine.logger.Info("several handlers share the budget of the zone; put host into its key to give each site its own",
				zap.String("zone", name), zap.Int("handlers", len(z.handlers)))
		}
	}
	for _, hook := range a.engine.afterStart {
		hook()
	}
	a.engine.forgetDropped()
	a.engine.overrideFiles.start(a.engine)
	a.engine.control.start(a.engine)
	return nil
}

// Stop undoes Start. Requests of the config may still be in flight.
func (a *App) Stop() error {
	a.engine.events.close()
	a.engine.overrideFiles.end()
	a.engine.control.stop(a.engine)
	for _, z := range a.engine.zones {
		z.live.stop(z)
	}
	if a.engine.signing.stop != nil {
		a.engine.signing.stop()
	}
	a.engine.crawlers.end()
	if a.engine.shared != nil {
		a.engine.shared.stop(a.engine.observer)
	}
	if a.engine.memory != nil {
		a.engine.memory.stop()
	}
	return nil
}

// Cleanup logs refusals that were counted but not logged yet, and releases
// everything that outlives the config.
func (a *App) Cleanup() error {
	var errs []error
	var counts []*zoneCounts
	for _, z := range a.engine.zones {
		counts = append(counts, z.zoneCounts)
	}
	flushLogs(counts)
	for name := range a.engine.zones {
		errs = append(errs, leave(liveZoneKey(name)))
	}
	if a.engine.blocks != nil {
		errs = append(errs, leave(blocksKey))
	}
	if a.engine.control != nil {
		errs = append(errs, leave(controlKey))
	}
	if a.engine.lastKeys != nil {
		errs = append(errs, leave(signingKey))
	}
	if a.engine.crawlers.sharedCrawlers != nil {
		errs = append(errs, leave(crawlersKey))
	}
	errs = append(errs, a.engine.cleanupStore())
	return errors.Join(errs...)
}

// waived returns a channel that is closed when these zones, or all, are switched to
// shadow.
func (a *engine) waived(zones []string) (<-chan struct{}, func()) {
	return a.overrides.Shadowed(zones, time.Now())
}

// hold keeps the shared store open until release, because requests in flight may
// outlive the config.
func (a *engine) hold() {
	if a.shared != nil {
		a.shared.Hold()
	}
}

func (a *engine) release() {
	if a.shared != nil {
		a.shared.Release()
	}
}

// exempts reports whether the global options exempt a request from all zones.
func (a *engine) exempts(s *decision.Subject) (bool, error) {
	if a.exempt == nil {
		return false, nil
	}
	return s.Spares(a.exempt)
}

// refuseBlockedEverywhere refuses a request if its client is blocked by `block ... everywhere`.
func (a *engine) refuseBlockedEverywhere(p *decision.Plan) {
	if len(a.everywhere) == 0 || a.blocks.Empty() {
		return
	}
	for _, z := range a.everywhere {
		if p.Decided(z.Name) {
			continue
		}
		if c, block, runs := a.blockEverywhere(z, &p.Subject, &p.Buffers); runs {
			p.RefuseBlocked(z.Rule, &c, block)
		}
	}
}

// blockEverywhere returns the block of a client by a zone whose blocks hold everywhere, if
// one is known and runs, and a charge that names the bucket. Such a zone is keyed by the
// address alone and so trusts no devices.
func (a *engine) blockEverywhere(z *runningZone, s *decision.Subject, b *decision.Buffers) (c leakybucket.Charge, block blocklist.Block, runs bool) {
	c, _, can := z.BlockedBucket(s, b)
	if can {
		block, runs = a.blocks.Believe(s.Request.Context(), &c, a.store)
	}
	return c, block, runs
}

// knownBlock returns the block that makes asking a shared store unnecessary: the
// store reported it within the last second. While the bucket's shard is down, a reported
// block counts until it ends. There must be a shared store.
func (a *engine) knownBlock(c *leakybucket.Charge) (blocklist.Block, bool) {
	if c.Block == nil {
		return blocklist.Block{}, false
	}
	b, found, fresh := a.blocks.Find(c)
	return b, found && (fresh || a.shared.DownFor(c))
}

// Interface guards
var (
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.App          = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
