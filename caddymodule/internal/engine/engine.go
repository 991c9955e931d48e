// Package engine is what runs of a config: its zones, the way of a request through them, and
// what all configs of the process share. Begin with [Handler.ServeHTTP], which decides,
// waits, serves and settles.
package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/form"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore"
)

// An Engine is what runs of a config: its zones, the store that they ask, and what they
// share with the configs before and after it.
type Engine struct {
	// What each request needs lies side by side.
	Store    Store
	table    *override.Table     // of Control
	Shared   *stores.SharedStore // behind the store, if that is outside of this process
	Exempt   limit.Matchers      // from all zones
	blocking struct{ all, everywhere blockers }
	watchers []Watcher
	Proxies  onceWarnings

	Ctx     caddy.Context
	Memory  *stores.MemoryUse // the store itself, or the fallback of a shared one
	Control *control
	Key     *signer.Ring // that the config has of its own; nil stands for the one in storage
	defined
	reports
	lifetime
	servers map[*caddyhttp.Server]*server // as far as they are known
}

// A defined config is what its JSON says, as far as it is loaded.
type defined struct {
	app         *config.App                  // the global options
	Static      []*staticfile.Matcher        // nil exempts no static files
	Plans       map[string]leakybucket.Limit // named limits for overrides
	bodies      body.Bounds
	Zones       map[string]*Zone
	InFlight    map[string]*inflight.Limit
	names       config.Names
	exemptsSome bool       // by the global options, or in a zone
	form        *form.Plan // what zones want of bodies; see [Engine.joinForm]
	number      uint64     // of the config
}

// Reports go to people, and to the programs that subscribe.
type reports struct {
	subscribers *caddyevents.App
	events      telemetry.Background
	Logger      *zap.Logger
	Warner      *zap.Logger // a logger that keeps warnings
	Warnings    *telemetry.KeptWarnings
}

// A lifetime is what happens when an engine starts and ends.
type lifetime struct {
	OnStart    []func(context.Context) error // see caddymodule.Guest.OnStart
	signs      bool                          // something needs a key, which is read then
	StopBeside func()                        // ends what runs beside requests, such as the keys' renewal; nil before Start
	Exiting    <-chan struct{}               // closed when the process is about to end; then nobody waits
}

// Of returns what runs of the config that a module is provisioned for, which may be
// within the app.
func Of(ctx caddy.Context) (*Engine, error) {
	type app interface{ Engine() *Engine }
	for _, within := range ctx.Modules() {
		if a, ok := within.(app); ok {
			return a.Engine(), nil
		}
	}
	module, err := ctx.App("throttle")
	if err != nil {
		return nil, err
	}
	return module.(app).Engine(), nil
}

// New joins what outlives the config. The engine that it returns must be cleaned up,
// also after an error.
func New(ctx caddy.Context, app *config.App) (e *Engine, err error) {
	e = &Engine{
		Ctx: ctx, Control: joinControl(),
		defined:  defined{app: app, names: make(config.Names), Zones: make(map[string]*Zone), InFlight: make(map[string]*inflight.Limit), number: configs.Add(1)},
		reports:  reports{Logger: ctx.Logger(), events: telemetry.NewBackground()},
		lifetime: lifetime{Exiting: exiting.Done()},
		servers:  make(map[*caddyhttp.Server]*server),
	}
	request, inAll, _ := app.Buffer.Bytes() // which is checked when the store is loaded
	e.bodies = body.Bounds{Request: request, Files: inAll}
	e.Warner, e.Warnings = telemetry.KeepWarnings(e.Logger)
	e.table, e.Proxies.warner = &e.Control.Changes.Table, e.Warner
	events, err := ctx.App("events")
	if err == nil {
		e.subscribers = events.(*caddyevents.App)
	}
	return e, err
}

// AddZone makes a definition ready for requests. Definitions of one name are one zone and must
// be equal; those of the global options come first. In a handler, one that is nothing but a name
// means the global one. The zone joins what other configs with its name share. Its matchers are
// loaded within the module whose context it is.
func (e *Engine) AddZone(ctx caddy.Context, definition *limit.Zone, global bool) (z *Zone, err error) {
	switch {
	case definition == nil:
		return nil, errors.New("a zone is null: want an object with a name")
	case !global && definition.Reference():
		return e.Zones[definition.Name], e.names.CheckMeant("zone", definition.Name)
	}
	if err = definition.Compile(e.Plans); err != nil {
		return nil, err
	}
	name, text := definition.Name, definition.Definition()
	if err = e.names.Add(name, config.Definition{Kind: "zone", Text: text, Global: global}); err != nil || e.Zones[name] != nil {
		return e.Zones[name], err
	}
	z = &Zone{Zone: definition, Definition: text, State: JoinState(name)}
	z.policy, _ = sharedstore.ParsePolicy(cmp.Or(z.OnStoreError, e.app.OnStoreError)) // both have been checked, and none means local
	defer func() {
		if err != nil {
			_ = stores.Leave(StateKey(name)) // which can tell nothing better
		}
	}()
	warnings := z.Warnings()
	if err = z.Load(ctx, limit.Given{
		Shadow: e.app.Shadow, Static: e.Static, Keys: e.signingKey,
		Insecure: sync.OnceFunc(func() {
			z.Counts.Logger.Warn("a login succeeded over plain HTTP, where devices cannot be trusted: serve the site over HTTPS, or list the proxy that does in trusted_proxies and let it send X-Forwarded-Proto")
		}),
	}); err != nil {
		return nil, err
	}
	e.joinForm(z.Zone)
	z.Counts = telemetry.New(z.Zone, z.State.Figures, telemetry.Options{
		Logger: e.Warner.With(zap.String("zone", name)), Requests: z.requests, Shared: e.Shared != nil,
		Wanted: e.subscribers.ShouldEmit, Emit: e.emit, Events: e.events,
	})
	z.Places, z.Reporter = &z.State.Waiting, z.Counts
	e.Zones[name] = z
	e.exemptsSome = e.exemptsSome || e.Exempt != nil || z.Exempt != nil
	if z.Block != nil {
		e.blocking.all.add(z.Zone)
	}
	if z.BlocksEverywhere() {
		e.blocking.everywhere.add(z.Zone)
	}
	z.warn(warnings)
	return z, nil
}

// joinForm has what a zone wants of bodies read together with what others want, as far as one
// reading can.
func (e *Engine) joinForm(z *limit.Zone) {
	if e.form == nil || z.ReadBy(e.form) != nil {
		e.form = new(form.Plan)
		_ = z.ReadBy(e.form) // as when it was compiled
	}
}

// AddInFlight makes a concurrency limit ready for requests. Definitions of one name are one limit
// and must be equal; a name alone means the global one, as with zones. It joins the slots and the queue
// that other configs share. Its matchers are loaded within the module whose context it is.
func (e *Engine) AddInFlight(ctx caddy.Context, definition *config.InFlight, global bool) (*inflight.Limit, error) {
	switch {
	case definition == nil:
		return nil, errors.New("an in_flight is null: want an object with a name")
	case !global && definition.Reference():
		return e.InFlight[definition.Name], e.names.CheckMeant("in_flight", definition.Name)
	}
	name, text := definition.Name, definition.Definition()
	err := e.names.Add(name, config.Definition{Kind: "in_flight", Text: text, Global: global})
	if err != nil || e.InFlight[name] != nil {
		return e.InFlight[name], err
	}
	l, err := inflight.New(ctx, definition, inflight.Options{
		Env: e, AllShadow: e.app.Shadow, Static: e.Static, Keys: e.signingKey,
		Bodies: e.Control.Bodies, Bounds: e.app.Buffer, Refusals: &e.Control.Refusals, Exiting: exiting,
		Logger: e.Warner.With(zap.String("in_flight", name)),
	})
	if err != nil {
		return nil, err
	}
	e.InFlight[name] = l
	return l, nil
}

// Start lets the store connect, applies max_buckets and restores buckets. What waits for the start comes first; its
// first error keeps the config from starting.
func (e *Engine) Start() error {
	ctx, stop := context.WithCancel(context.Background())
	for _, f := range e.OnStart {
		if err := f(ctx); err != nil {
			stop()
			return err
		}
	}
	e.StopBeside = stop
	go e.events.Run(ctx)
	if e.Shared != nil {
		telemetry.CountStore(e.Shared.Name)
		e.Shared.Attach(e)
	}
	e.readKey(ctx)
	e.Control.Start(e)
	return nil
}

// End undoes start. Requests of the config may still be in flight.
func (e *Engine) End() {
	e.StopBeside()
	e.Control.Stop(e)
	if e.Shared != nil {
		e.Shared.Detach(e)
	}
}

// CleanUp logs refusals that were counted but not logged yet, and releases everything that
// outlives the config.
func (e *Engine) CleanUp() error {
	var errs []error
	for name, z := range e.Zones {
		z.Counts.Flush()
		errs = append(errs, stores.Leave(StateKey(name)))
	}
	for _, l := range e.InFlight {
		l.Flush()
		errs = append(errs, l.Leave())
	}
	for name := range e.names {
		_, zone := stores.Process.References(StateKey(name))
		_, slots := stores.Process.References(inflight.StateKey(name))
		if !zone && !slots { // of other configs
			telemetry.DeleteSeries(name)
		}
	}
	return errors.Join(append(errs, stores.Leave(controlKey))...)
}

// Prepare implements limit.Env.
func (e *Engine) Prepare(s *limit.Subject) (exempt bool, everywhere []*limit.Zone, err error) {
	s.Overrides = e.Overrides()
	if e.Proxies.Requests.Load() < WatchedRequests {
		e.Proxies.look(s) // also if the proxy's own address is exempt
	}
	if len(e.watchers) > 0 {
		e.notifyForwards(s)
	}
	if e.Exempt != nil {
		exempt, err = s.MatchesEveryAddress(e.Exempt)
	}
	if !exempt && len(e.blocking.everywhere) > 0 && e.AnyBlock() {
		everywhere = e.mayBlock(e.blocking.everywhere, s)
	}
	return exempt, everywhere, err
}

// blockers are zones that block, or whose blocks hold in all handlers. Those that are alike find buckets of
// the same key for a request, since key, routes and override are the same.
type blockers []alike

type alike struct {
	definition string // of what they have in common
	zones      []*limit.Zone
}

// add adds a zone. What its key from a body is, or its client's device, it alone can tell.
func (b *blockers) add(z *limit.Zone) {
	common := z.Name
	if keyTells(z) {
		common = (&limit.Zone{Key: z.Key, Route: z.Route, Override: z.Override}).Definition()
	}
	i := slices.IndexFunc(*b, func(a alike) bool { return a.definition == common })
	if i < 0 {
		i, *b = len(*b), append(*b, alike{definition: common})
	}
	(*b)[i].zones = append((*b)[i].zones, z)
}

// keyTells reports whether the key that a zone finds for a request is that of the block.
func keyTells(z *limit.Zone) bool { return !z.Key.FromBody() && z.TrustDevices == nil }

// MayBlock returns the zones of which a block may hold for a request. A host may have thousands, so
// those that are alike are asked about as one, and one by one only for clients that one has blocked.
func (e *Engine) MayBlock(s *limit.Subject) []*limit.Zone { return e.mayBlock(e.blocking.all, s) }

func (e *Engine) mayBlock(all blockers, s *limit.Subject) (some []*limit.Zone) {
	for _, a := range all {
		if !keyTells(a.zones[0]) {
			some = append(some, a.zones...)
			continue
		}
		k, _, _ := a.zones[0].Find(s)
		if !e.Store.MayBlock("", k.Name) {
			continue
		}
		for _, z := range a.zones {
			if e.Store.MayBlock(z.Name, k.Name) {
				some = append(some, z)
			}
		}
	}
	return some
}

// Overrides are what was changed at run time: bans, limits and switches; nil if nothing was.
func (e *Engine) Overrides() *override.Set { return e.table.Load() }

// exiting ends when the process is about to end. Then waiting requests are
// refused, so that Caddy does not wait for them.
var exiting, exit = context.WithCancel(context.Background())
