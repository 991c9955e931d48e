package caddymodule

import (
	"errors"
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore"
)

// App holds the global options of all throttle handlers.
type App struct {
	config.App

	engine  *engine.Engine
	foreign *stores.SharedStore // of a StoreModule; nil otherwise
}

// A StoreModule is a module throttle.stores.* of somebody else's. Its store has store_timeout
// and on_store_error like those of this project: see package sharedstore.
type StoreModule interface {
	// Store returns the store, after Provision. It is used until the last request of the
	// config has ended, perhaps after Cleanup. If it has a method Close, that is called then.
	Store() leakybucket.Store
}

// Engine returns what runs of the config.
func (a *App) Engine() *engine.Engine { return a.engine }

// CaddyModule returns the Caddy module information.
func (App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "throttle", New: func() caddy.Module { return new(App) }}
}

// Provision loads the store and compiles the global zones. It dials nothing.
func (a *App) Provision(ctx caddy.Context) (err error) {
	if a.engine, err = engine.New(ctx, &a.App); err != nil { // first, since Cleanup needs it
		return err
	}
	if err = engine.RegisterMetrics(ctx.GetMetricsRegistry()); err != nil {
		return err
	}
	if a.engine.Plans, err = config.ParsePlans(a.Plan); err != nil {
		return err
	}
	for _, provision := range []func(caddy.Context) error{a.provisionKey, a.provisionStore, a.provisionExempt} {
		if err := provision(ctx); err != nil {
			return err
		}
	}
	for _, definition := range a.Zone {
		if _, err := a.engine.AddZone(ctx, definition, true); err != nil {
			return err
		}
	}
	for _, definition := range a.InFlight {
		if _, err := a.engine.AddInFlight(ctx, definition, true); err != nil {
			return err
		}
	}
	return nil
}

// provisionExempt loads what no zone ever charges.
func (a *App) provisionExempt(ctx caddy.Context) (err error) {
	for _, warning := range option.Warnings(a.Exempt) {
		a.engine.Warner.Warn(warning, zap.String("place", "exempt in the global options"))
	}
	if a.engine.Exempt, err = option.LoadMatchers(ctx, a, "Exempt", a.Exempt); err != nil {
		return err
	}
	a.engine.Static, err = option.LoadStatic(ctx, a.ExemptStaticFiles)
	return err
}

// leastKey is how many bytes signing_key must have. Who can guess it may pass as any account.
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
	a.engine.Key = signer.Fixed(key)
	return nil
}

// provisionStore loads the store, and the fallback of a shared one.
func (a *App) provisionStore(ctx caddy.Context) error {
	if err := a.Check(); err != nil {
		return err
	}
	sharing := a.OnStoreError != "" || a.StoreTimeout != 0 || a.Nodes != 0
	if a.StoreRaw == nil {
		a.StoreRaw = caddyconfig.JSONModuleObject(new(Memory), "module", "memory", nil)
	}
	module, err := ctx.LoadModule(a, "StoreRaw")
	if err != nil {
		return fmt.Errorf("loading store: %w", err)
	}
	switch m := module.(type) {
	case *Memory:
		if sharing {
			a.engine.Warner.Warn("nodes, store_timeout and on_store_error change nothing, because each Caddy has limits of its own in memory: write store redis or store postgres to share them")
		}
		a.engine.UseMemory(m.use)
	case interface{ SharedStore() *stores.SharedStore }:
		a.engine.UseShared(m.SharedStore())
	case StoreModule:
		a.foreign, err = stores.ConnectStore(caddy.GetModuleName(module), []string{fmt.Sprintf("%p", a)}, func(func(error)) (leakybucket.Store, error) {
			return sharedstore.Interruptible(m.Store()), nil
		})
		if err != nil {
			return fmt.Errorf("loading store: %w", err)
		}
		a.engine.UseShared(a.foreign)
	default:
		return fmt.Errorf("loading store: %T is no store", module)
	}
	return nil
}

// Start lets the store connect, applies max_buckets and restores buckets. By now all servers
// are provisioned, so it warns of zones that nobody uses, which may be meant for later.
func (a *App) Start() error {
	for name, z := range a.engine.Zones {
		if len(z.Directives) == 0 {
			a.engine.Warner.Warn("zone limits nothing, because no site uses it outside of handle_errors: write throttle <zone> in a site", zap.String("zone", name))
		}
	}
	for name, l := range a.engine.InFlight {
		if l.Sites == 0 {
			a.engine.Warner.Warn("in_flight limits nothing, because no site uses it: write in_flight <name> in a site", zap.String("in_flight", name))
		}
	}
	return a.engine.Start()
}

// Stop undoes Start. Requests of the config may still be in flight.
func (a *App) Stop() error {
	a.engine.End()
	return nil
}

// Cleanup logs refusals that were counted but not logged yet, and releases
// everything that outlives the config.
func (a *App) Cleanup() error { return errors.Join(a.engine.CleanUp(), a.foreign.Leave()) }

// Interface guards
var (
	_ caddy.Provisioner  = (*App)(nil)
	_ caddy.App          = (*App)(nil)
	_ caddy.CleanerUpper = (*App)(nil)
)
