package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/lint"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/settlement"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore"
)

// App holds the global options of all throttle handlers.
type App struct {
	config.App

	engine *engine.Engine
	global map[string]*engine.Zone // by the definitions in the global options
	known  []string                // all zones of the servers; nil before the servers were checked
}

// Engine returns what runs of the config.
func (a *App) Engine() *engine.Engine { return a.engine }

// CaddyModule returns the Caddy module information.
func (App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "throttle",
		New: func() caddy.Module { return new(App) },
	}
}

// Provision loads the store and compiles the global zones. It dials nothing.
func (a *App) Provision(ctx caddy.Context) (err error) {
	if err = engine.RegisterMetrics(ctx.GetMetricsRegistry()); err != nil {
		return err
	}
	if a.engine, err = engine.New(ctx); err != nil {
		return err
	}
	a.global = make(map[string]*engine.Zone)
	if a.engine.Plans, err = config.ParsePlans(a.Plan); err != nil {
		return err
	}
	for _, provision := range []func(caddy.Context) error{a.provisionKey, a.provisionStore, a.provisionExempt} {
		if err := provision(ctx); err != nil {
			return err
		}
	}
	for _, definition := range a.Zone {
		z, err := a.provisionZone(ctx, definition)
		if err != nil {
			return err
		}
		if a.global[z.Name] != nil {
			return fmt.Errorf("zone %q is defined twice in the global options", z.Name)
		}
		a.global[z.Name] = z
	}
	return nil
}

// provisionExempt loads what no zone ever charges.
func (a *App) provisionExempt(ctx caddy.Context) error {
	if err := config.CheckExempt(a.Exempt); err != nil {
		return fmt.Errorf("exempt: %w", err)
	}
	for _, doubt := range config.Doubts(a.Exempt, true) {
		a.engine.Warner.Warn(doubt, zap.String("place", "exempt in the global options"))
	}
	matchers, err := config.LoadMatchers(ctx, a, "Exempt", a.Exempt)
	if err != nil {
		return err
	}
	static, err := config.LoadStatic(ctx, a.ExemptStaticFiles)
	a.engine.ExemptAlways(matchers, static)
	return err
}

// leastKey is how many bytes signing_key must have. Who can guess it may pass as any account
// and change any limit.
const leastKey = 32

// provisionKey fills in the signing key.
func (a *App) provisionKey(caddy.Context) error {
	if a.SigningKey == "" {
		return nil
	}
	filled, err := stores.FillIn(a.SigningKey)
	if err != nil {
		return fmt.Errorf("signing_key: %w", err)
	}
	key := strings.TrimSpace(filled[0])
	if len(key) < leastKey {
		return fmt.Errorf("invalid signing_key of %d bytes: want at least %d, such as of openssl rand -hex 32", len(key), leastKey)
	}
	a.engine.Signing.Fixed = key
	return nil
}

// provisionStore loads the store, and the fallback of a shared one.
func (a *App) provisionStore(ctx caddy.Context) error {
	if err := a.Check(); err != nil {
		return err
	}
	a.OnStoreError = cmp.Or(a.OnStoreError, sharedstore.Local.String())
	a.StoreTimeout = cmp.Or(a.StoreTimeout, caddy.Duration(sharedstore.DefaultTimeout))
	a.Nodes = cmp.Or(a.Nodes, 1)
	if a.StoreRaw == nil {
		a.StoreRaw = caddyconfig.JSONModuleObject(new(Memory), "module", "memory", nil)
	}
	module, err := ctx.LoadModule(a, "StoreRaw")
	if err != nil {
		return fmt.Errorf("loading store: %w", err)
	}
	switch m := module.(type) {
	case *Memory:
		a.engine.UseMemory(m.use)
	case interface{ SharedStore() *stores.SharedStore }:
		policy, _ := sharedstore.ParsePolicy(a.OnStoreError) // which has been checked
		err = a.engine.UseShared(m.SharedStore(), sharedstore.Options{Timeout: time.Duration(a.StoreTimeout), Nodes: a.Nodes}, policy)
		if _, has := m.SharedStore().Board(); has && err == nil {
			a.engine.Signing.Join(ctx)
		}
	case interface{ Store() leakybucket.Store }: // which is used until the last request has ended, perhaps after Cleanup
		a.engine.Store = m.Store()
	default:
		return fmt.Errorf("loading store: %T is no store", module)
	}
	if a.engine.Shared == nil && a.Nodes > 1 {
		a.engine.Warner.Warn("nodes has no meaning with a store that is not shared: every Caddy has buckets of its own")
	}
	return err
}

// zoneOf returns the zone for a handler's definition. A definition that is nothing
// but a name means the zone of that name in the global options.
func (a *App) zoneOf(ctx caddy.Context, definition *config.Zone) (*engine.Zone, error) {
	if definition == nil || !definition.Reference() {
		return a.provisionZone(ctx, definition)
	}
	if z := a.global[definition.Name]; z != nil {
		return z, nil
	}
	return nil, config.ErrUnknownZone(definition.Name, slices.Sorted(maps.Keys(a.global)))
}

// provisionZone makes a definition ready for requests. Definitions of one name are
// one zone and must be equal.
func (a *App) provisionZone(ctx caddy.Context, definition *config.Zone) (*engine.Zone, error) {
	if definition == nil {
		return nil, errors.New("a zone is null: want an object with a name")
	}
	compiled, err := definition.Compile(a.engine.Plans)
	if err != nil {
		return nil, err
	}
	text := definition.Definition()
	if z := a.engine.Zones[definition.Name]; z != nil {
		if z.Definition != text {
			return nil, fmt.Errorf("zone %q is defined twice, and differently: a name is one budget, so give one of them another name: %s and %s", z.Name, z.Definition, text)
		}
		return z, nil
	}
	full := definition.WithDefaults() // keeps the matchers, which Caddy drops when it has loaded them
	sources := full.Key.Sources
	options := engine.ZoneOptions{
		Definition:   text,
		ClientChosen: config.ClientChosen(sources) && full.Key.Unlisted == "",
		Common:       definition.Limit != "" && len(definition.Match) == 0 && !compiled.Key.HasAddress() && !config.ClientChosen(sources),
		ReadsHeaders: config.ReadsHeaders(sources),
		OverrideFile: definition.OverrideFile,
		Paths:        config.Paths(definition.Match),
		NamedKey:     config.NamesHeader(sources),
		MissingGiven: definition.Key != nil && definition.Key.Missing != "",
	}
	options.Policy, _ = sharedstore.ParsePolicy(cmp.Or(definition.OnStoreError, a.OnStoreError)) // both have been checked
	options.LogLimit, _ = config.ParseLogRefused(full.Refusal.Log)                               // which has been checked
	z, err := a.engine.AddZone(definition.Name, options, func(z *engine.Zone) (*rule.Rule, error) {
		return compiled, definition.Load(ctx, compiled, config.Given{
			Shadow: a.Shadow, Static: a.engine.Static, Keys: func() *signer.Ring { return a.engine.Signing.Join(ctx) },
			Passes: z.State.Passes, PassesFull: func() { z.Counts.WarnPassesFull() }, Insecure: z.WarnInsecure,
		})
	})
	if err != nil {
		return nil, err
	}
	warnOf(z, &full)
	return z, nil
}

// appOf returns the app for a module of a server. The first of them checks the config of all
// servers.
func appOf(ctx caddy.Context) (*App, error) {
	module, err := ctx.App("throttle")
	if err != nil {
		return nil, err
	}
	a := module.(*App)
	if a.known == nil {
		a.engine.ReadServers(ctx)
		a.known, err = lint.CheckServers(ctx, a.Zone, a.engine.Warner)
	}
	return a, err
}

// Start lets the store connect, applies max_buckets and restores buckets.
func (a *App) Start() error {
	if a.known == nil { // no handler and no matcher was provisioned in the HTTP app
		for _, definition := range a.Zone {
			if len(a.global[definition.Name].Directives) == 0 {
				lint.WarnUnused(a.engine.Warner, definition.Name)
			}
		}
	}
	a.engine.Start()
	return nil
}

// Stop undoes Start. Requests of the config may still be in flight.
func (a *App) Stop() error {
	a.engine.End()
	return nil
}

// Cleanup logs refusals that were counted but not logged yet, and releases
// everything that outlives the config.
func (a *App) Cleanup() error { return a.engine.CleanUp() }

// patientClient is about how long most clients wait for an answer.
const patientClient = 30 * time.Second

// warnOf logs warnings about settings that probably do not work as meant.
func warnOf(z *engine.Zone, definition *config.Zone) {
	for _, source := range definition.Key.Sources {
		name := source.Header()
		switch {
		case strings.ContainsAny(name, "_."):
			z.Counts.Logger.Warn("Caddy drops headers with _ or . in their names unless they are listed in expected_underscore_headers or expected_dot_headers of the server: this key may always be missing",
				zap.String("header", name))
		case engine.NamesClient(name):
			z.WarnedKey = true // a zone keyed by client_ip would limit the proxy
			z.Counts.Logger.Warn("clients can send this header, too, and choose their key by it: use client_ip, and name the proxy in trusted_proxies and its header in client_ip_headers",
				zap.String("header", name))
		}
	}
	if slices.ContainsFunc(definition.Cost, func(c config.Cost) bool { return config.SentByClient(c.Value) }) {
		z.Counts.Logger.Warn("clients choose what their requests cost, since they send the value: compute the cost from something else")
	}
	if z.Settle != nil && z.Settle.Source == settlement.Status && !slices.ContainsFunc(z.Settle.Ranges, func(r settlement.StatusRange) bool { return r.First < 300 || r.Last > 399 }) {
		z.Counts.Logger.Warn("settle status charges redirects only, by which most applications answer a log-in that succeeded: name the status of one that failed")
	}
	if z.Block != nil && z.Settle != nil && !z.Settle.After {
		z.Counts.Logger.Warn("zone blocks clients for what their requests reserve, before the response says what they cost: add after to settle")
	}
	if wait := z.LongestWait(); wait > patientClient && z.Share == nil { // share has a warning of its own
		warning := "requests may wait longer than most clients do: give delay a wait, or the limit a smaller capacity or a faster leak"
		if z.MaxWait > 0 {
			warning = "requests may wait longer than most clients do: set a shorter wait"
		}
		z.Counts.Logger.Warn(warning, zap.Float64("longest_wait_seconds", wait.Seconds()))
	}
	if z.Share != nil {
		warnShare(z, definition)
		if z.Ranks.Pass != nil && z.Shadow != 0 {
			z.Counts.Logger.Info("a zone in shadow sends no passes, so how many clients would have returned is unknown: those who would be refused count as if all came for the first time")
		}
	}
	if z.SlotsOnly() && len(z.Match) == 0 && z.Share == nil && z.MaxWait == 0 && !z.Key.HasAddress() && !config.ClientChosen(definition.Key.Sources) {
		z.Counts.Logger.Warn("all clients share the slots of the zone, and a request that finds none is refused at once: add wait to in_flight, or client_ip to its key")
	}
	z.WarnOversize()
	for _, doubt := range slices.Concat(config.Doubts(definition.Match, false), config.Doubts(definition.Exempt, true)) {
		z.Counts.Logger.Warn(doubt)
	}
}

// warnShare logs warnings about a zone with share.
func warnShare(z *engine.Zone, definition *config.Zone) {
	if z.MaxWait > config.LongestShareWait {
		z.Counts.Logger.Warn("requests may wait for their turn longer than people do, who then come again while the upstream works for nobody: set its wait to 8s or less",
			zap.Float64("wait_seconds", z.MaxWait.Seconds()))
	}
	if config.ClientChosen(definition.InFlight.Share) {
		z.Counts.Logger.Warn("clients take turns by values that they choose, so a client can get a new turn with every request: want share client_ip")
	}
}

// Interface guards
var (
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.App          = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
