package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

func init() {
	caddy.RegisterModule(App{})
}

// App is what all throttle handlers of a config share: the store of the
// buckets, the zones that are defined once for several sites, and what holds
// for all of them.
type App struct {
	// Where the buckets are kept. Default: `memory`, that of this process.
	StoreRaw json.RawMessage `json:"store,omitempty" caddy:"namespace=throttle.stores inline_key=module"`

	// How long a request waits for a store that is shared, at most. Default: 50ms.
	StoreTimeout caddy.Duration `json:"store_timeout,omitempty"`

	// What to do when a store that is shared does not answer: `local` goes on
	// with buckets in this process, `allow` lets requests pass, `deny` refuses
	// them with a status of 503. Zones may say otherwise. Default: `local`.
	OnStoreError string `json:"on_store_error,omitempty"`

	// How many Caddys share the store. When it does not answer, each goes on with
	// its share of every limit. Default: 1.
	Nodes int `json:"nodes,omitempty"`

	// Requests that no zone ever charges. Default: none.
	Exempt caddyhttp.RawMatcherSets `json:"exempt,omitempty" caddy:"namespace=http.matchers"`

	// Limits by name, for overrides: a capacity and a leak, such as `100 10/s`.
	Plan map[string]string `json:"plan,omitempty"`

	// Zones that handlers refer to by name.
	Zone []*Zone `json:"zone,omitempty"`

	// Make every zone decide, count and log only, and never refuse.
	Shadow bool `json:"shadow,omitempty"`

	ctx    caddy.Context // to emit events
	logger *zap.Logger
	store  leakybucket.Store
	remote *Remote         // that store, if it is shared
	local  *memstore.Store // then: what to fall back on
	exempt caddyhttp.MatcherSets
	plans  map[string]leakybucket.Limit
	global map[string]*Zone
	shared map[string]*sharedZone

	blocks     *blockTable
	everywhere []*Zone  // whose blocks hold in all handlers
	matched    []string // zones that matchers ask about

	exiting <-chan struct{} // closed when nobody may wait any longer

	said *said
}

// A StoreModule is a module in the namespace throttle.stores. If it has the
// methods of a caddy.App besides, Caddy starts and stops it as one.
type StoreModule interface {
	// Store returns the store: a [Remote] if it is outside of this process. It
	// must remain usable until the last request that uses it has ended, which
	// may be after the module's Cleanup.
	Store() leakybucket.Store
}

// A sharedZone is what all places where a zone of one name appears have in
// common.
type sharedZone struct {
	app        *App
	zone       *Zone // the first of them
	running    *runningZone
	definition string
	handlers   int
	inventable bool                // has been warned of
	refusals   [decisions]refusals // of those that refuse
	unsettled  prometheus.Counter
	without    prometheus.Counter
}

// CaddyModule returns the Caddy module information.
func (App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "throttle",
		New: func() caddy.Module { return new(App) },
	}
}

// Provision loads the store and the zones. It dials nothing.
func (a *App) Provision(ctx caddy.Context) (err error) {
	a.ctx, a.logger = ctx, ctx.Logger()
	a.said = new(said)
	a.global = make(map[string]*Zone)
	a.shared = make(map[string]*sharedZone)
	if err := registerMetrics(ctx.GetMetricsRegistry()); err != nil {
		return err
	}
	a.exiting = exiting
	if err := watchExit(ctx); err != nil {
		return err
	}
	blocks, _, err := blockTables.LoadOrNew("blocks", func() (caddy.Destructor, error) { return new(blockTable), nil })
	if err != nil {
		return err
	}
	a.blocks = blocks.(*blockTable)
	if a.StoreRaw == nil {
		a.StoreRaw = caddyconfig.JSONModuleObject(new(Memory), "module", "memory", nil)
	}
	module, err := ctx.LoadModule(a, "StoreRaw")
	if err != nil {
		return fmt.Errorf("loading store: %w", err)
	}
	a.store = module.(StoreModule).Store()
	if err := a.provisionOutage(ctx); err != nil {
		return err
	}
	if a.exempt, err = loadMatchers(ctx, a, "Exempt", a.Exempt); err != nil {
		return err
	}
	if a.plans, err = parsePlans(a.Plan); err != nil {
		return err
	}
	for _, z := range a.Zone {
		if err := a.provisionZone(ctx, z); err != nil {
			return err
		}
		if a.global[z.Name] != nil {
			return fmt.Errorf("zone %q is defined twice in the global options", z.Name)
		}
		a.global[z.Name] = z
	}
	return nil
}

func parsePlans(plans map[string]string) (map[string]leakybucket.Limit, error) {
	limits := make(map[string]leakybucket.Limit)
	for name, text := range plans {
		switch {
		case !zoneName.MatchString(name):
			return nil, fmt.Errorf("invalid plan name %q: want letters, digits, _, . and -", name)
		case name == "unlimited" || name == "deny":
			return nil, fmt.Errorf("invalid plan name %q: the word has a meaning of its own in overrides", name)
		}
		limit, err := leakybucket.ParseLimit(text)
		if err != nil {
			return nil, fmt.Errorf("plan %q: %w", name, err)
		}
		limits[name] = limit
	}
	return limits, nil
}

// provisionZone makes a definition ready for requests, and sees to it that all
// definitions of a name agree.
func (a *App) provisionZone(ctx caddy.Context, z *Zone) error {
	if z == nil {
		return errors.New("a zone is null: want an object with a name")
	}
	if err := z.compile(a.plans); err != nil {
		return err
	}
	definition, err := z.definition()
	if err != nil {
		return fmt.Errorf("zone %q: %w", z.Name, err)
	}
	z.shadow = z.Shadow || a.Shadow
	shared := a.shared[z.Name]
	first := shared == nil
	if first {
		shared = &sharedZone{app: a, zone: z, definition: definition}
		if shared.running, err = joinZone(z.Name); err != nil {
			return err
		}
		if a.remote != nil {
			shared.without = withoutStore.WithLabelValues(z.Name)
		}
		if z.mayCount(delayed, none) {
			shared.running.waits.Store(true)
		}
		if z.mayCount(refused, inFlight) {
			shared.running.slots.Store(true)
		}
		if z.Settle != nil {
			shared.unsettled = unsettled.WithLabelValues(z.Name)
		}
		for _, d := range []decision{shadowRefused, refused} {
			shared.refusals[d].init(a.logger, z, d)
		}
		a.shared[z.Name] = shared
	} else if shared.definition != definition {
		return fmt.Errorf("zone %q is defined twice, and differently: %s and %s: a name is one budget, so give one of them another name", z.Name, shared.definition, definition)
	}
	z.shared = shared
	if err := z.provision(ctx); err != nil {
		return err
	}
	if !first {
		return nil
	}
	if z.Block != nil && z.Block.Everywhere {
		a.everywhere = append(a.everywhere, z)
	}
	z.warn(a.logger)
	return nil
}

// globalZone returns the zone that a name stands for.
func (a *App) globalZone(name string) (*Zone, error) {
	if z := a.global[name]; z != nil {
		return z, nil
	}
	return nil, fmt.Errorf("unknown zone %q: no zone of that name is defined in the global options; define it there, or give it a capacity and a leak here", name)
}

// Start checks what only shows when all sites are known, and says which zones
// are one budget in many places.
func (a *App) Start() error {
	for _, name := range a.matched {
		if name != "" && a.shared[name] == nil {
			return fmt.Errorf("throttle_blocked asks about zone %q, which is not defined: want a zone of this config, or no name for any of them", name)
		}
	}
	if a.remote != nil {
		a.remote.follow(a)
	}
	for name, zone := range a.shared {
		if zone.handlers > 1 {
			a.logger.Info("zone is one budget for several handlers; put host into its key to have one for each site",
				zap.String("zone", name), zap.Int("handlers", zone.handlers))
		}
	}
	return nil
}

// Stop lets another config speak for the store. Requests may be under way yet.
func (a *App) Stop() error {
	if a.remote != nil {
		a.remote.unfollow(a)
	}
	return nil
}

// Cleanup logs what has been counted and not been said, and lets go of the
// zones.
func (a *App) Cleanup() error {
	var errs []error
	for name, zone := range a.shared {
		zone.refusals[shadowRefused].report()
		zone.refusals[refused].report()
		_, err := running.Delete(name)
		errs = append(errs, err)
	}
	if a.blocks != nil {
		_, err := blockTables.Delete("blocks")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Interface guards
var (
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.App          = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
