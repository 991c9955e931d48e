// Package inflight is in_flight: how many requests an upstream works on at once, with a queue in
// front of it. Begin with [Handler.ServeHTTP]. What it is made of stands in folders of its own, of
// which none knows Caddy's configs: gate has the slots and the queue, fairqueue the law by which
// clients take turns, pass the cookie by which clients are known who come back, and call the call
// of the next handler, which goes on when its client leaves. It knows nothing of throttle.
package inflight

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/body"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/config"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/expiring"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/gate"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/option"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/signer"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/staticfile"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/supportcode"
)

// Options are what a limit takes from outside of its definition.
type Options struct {
	Env       limit.Env
	AllShadow bool                  // the global options put all there
	Static    []*staticfile.Matcher // what they exempt
	Bounds    *config.Buffer        // of bodies
	Bodies    *body.Store
	Keys      func() *signer.Ring
	Refusals  *supportcode.Ring
	Exiting   context.Context // ends when the process is about to end: then nobody waits
	Logger    *zap.Logger
}

// A Limit is an in_flight of one config as it runs. What all configs of its name share is its
// State.
type Limit struct {
	config.InFlightRule
	Definition string // canonical text: those of one name have the same
	State      *State
	Sites      int // handlers that have it

	Options
	exempt limit.Matchers
	ranks  ranks
	limits gate.Limits
	counts *counts
}

// A State holds the slots and the queue of a name, and what is remembered of its clients. All
// configs with that name share it, because requests of the last config are still served during a
// reload.
type State struct {
	Gate    gate.Gate
	passes  *pass.Memory
	members *expiring.Table[memberPlace, string, string] // accounts of networks that have become members in the last hour
}

// StateKey returns the key of the state of a name in the pool.
func StateKey(name string) string { return "in_flight " + name }

// Destruct does nothing: the series are deleted with those of zones.
func (s *State) Destruct() error { return nil }

// New makes a definition ready for requests. The caller must call Leave on the limit when its config
// ends. Its matchers are loaded within the module whose context it is.
func New(ctx caddy.Context, definition *config.InFlight, o Options) (l *Limit, err error) {
	rule, err := definition.Compile(o.Bounds)
	if err != nil {
		return nil, err
	}
	state := stores.Join(StateKey(definition.Name), func() *State {
		members := expiring.NewShares[memberPlace](mostMembers, membersAnHour, func(network string) string { return network })
		return &State{passes: pass.NewMemory(), members: members}
	})
	l = &Limit{InFlightRule: *rule, Definition: definition.Definition(), State: state, Options: o}
	defer func() {
		if err != nil {
			_ = stores.Leave(StateKey(definition.Name)) // which can tell nothing better
		}
	}()
	l.Shadow = l.Shadow || o.AllShadow
	l.limits = gate.Limits{Slots: l.Slots, Wait: time.Duration(l.Wait), Queue: l.Queue, Share: l.Shares()}
	warnings := l.Warnings() // before Caddy clears the matchers that it loads
	if err = l.load(ctx, definition); err != nil {
		return nil, fmt.Errorf("in_flight %q: %w", l.Name, err)
	}
	l.counts = newCounts(l)
	for _, warning := range warnings {
		l.Logger.Warn(warning)
	}
	return l, nil
}

// load loads the matchers.
func (l *Limit) load(ctx caddy.Context, definition *config.InFlight) (err error) {
	if l.exempt, err = option.LoadMatchers(ctx, definition, "Exempt", definition.Exempt); err != nil {
		return err
	}
	static, err := option.LoadStatic(ctx, l.ExemptStaticFiles)
	if err != nil {
		return err
	}
	l.Static = append(static, l.Static...)
	if l.SendsPasses() {
		l.ranks.pass = &pass.Issuer{
			Name: l.Name, Keys: l.Keys(), Memory: l.State.passes,
			Insecure: sync.OnceFunc(func() {
				l.Logger.Warn("a login succeeded over plain HTTP, where no passes are sent, so nobody is a member: serve the site over HTTPS, or list the proxy that does in trusted_proxies and let it send X-Forwarded-Proto")
			}),
		}
	}
	return l.ranks.load(ctx, definition)
}

// Flush logs refusals that were counted but not logged yet.
func (l *Limit) Flush() {
	l.counts.refusals[limit.Refused].Flush()
	l.counts.refusals[limit.ShadowRefused].Flush()
}

// Leave ends the use of the limit by its config.
func (l *Limit) Leave() error { return stores.Leave(StateKey(l.Name)) }

// Started lets those who wait go by the limits of a config that has started.
func (l *Limit) Started() { l.State.Gate.SetLimits(l.limits) }

// InShadow reports whether the limit only counts, by the config or by a switch at run time.
func (l *Limit) InShadow(overrides *override.Set) bool {
	return l.Shadow || overrides != nil && overrides.Shadow(l.Name, time.Now())
}
