package caddymodule

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/sharedstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A runningZone is a zone of one config as it runs: the rule that requests meet, with its
// counters and logs. What all configs of its name share is in the liveZone.
type runningZone struct {
	*decision.Zone
	counts *telemetry.Zone
	zoneOptions
	live *liveZone

	file           *overrideFile // nil if it has none
	handlers       []*throttler  // that charge it
	warnedKey      bool
	warnedInsecure atomic.Bool
}

// zoneOptions are what a zone needs beside its rule.
type zoneOptions struct {
	definition   string             // canonical text: zones of one name have the same
	inventable   bool               // clients choose the values of the key
	common       bool               // all clients share one bucket
	readsHeaders bool               // to find the key
	overrideFile string             // empty if it has none
	policy       sharedstore.Policy // the fallback, if the shared store does not answer
	logLimit     *rate.Limiter      // of refusals in the access log; nil if there is none
}

// addZone adds a zone, whose rule load returns. It joins the queues and slots that other
// configs share.
func (e *engine) addZone(name string, options zoneOptions, load func(*runningZone) (*rule.Rule, error)) (z *runningZone, err error) {
	z = &runningZone{zoneOptions: options}
	if z.live, err = joinZone(name); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = stores.Leave(liveZoneKey(name)) // which can tell nothing better
		}
	}()
	compiled, err := load(z)
	if err != nil {
		return nil, err
	}
	if options.overrideFile != "" {
		if z.file, err = e.overrideFiles.add(options.overrideFile, compiled.Key.Overrides); err != nil {
			return nil, fmt.Errorf("zone %q: reading override_file: %w", name, err)
		}
	}
	z.counts = telemetry.New(compiled, &z.live.Figures, telemetry.Options{
		Logger: e.warner.With(zap.String("zone", name)), Shared: e.shared != nil, Denies: z.policy == sharedstore.Deny,
		Listed: z.file != nil, Group: func() string { return z.group(e.overrides.Load()) }, Wanted: e.subscribed, LogLimit: z.logLimit, Events: e.events,
	})
	z.Zone = decision.NewZone(compiled, &z.live.enforced, &z.live.simulated, &z.live.meter, z.counts)
	e.zones[name] = z
	e.limitsLog = e.limitsLog || z.logLimit != nil
	e.exemptsSome = e.exemptsSome || compiled.Exempt != nil
	if compiled.Everywhere {
		e.everywhere = append(e.everywhere, z.Zone)
	}
	return z, nil
}

// warnOversize logs a warning if the capacity of an override is too small. It names the
// smallest.
func (z *runningZone) warnOversize() {
	if z.Bucketless() {
		return
	}
	least := slices.MinFunc(z.Key.Overrides.Load().Limits(), func(a, b leakybucket.Limit) int { return cmp.Compare(a.Capacity, b.Capacity) })
	if least.Oversize(z.Dearest) {
		z.counts.Logger.Warn("the capacity of an override is less than some requests cost, so its clients can never make them",
			zap.Float64("capacity", least.Capacity), zap.Float64("cost", z.Dearest))
	}
}

// stripTold removes headers from a request by which only the upstream may name users.
func (h *throttler) stripTold(r *http.Request) {
	for _, name := range h.told {
		delete(r.Header, name)
	}
}

// addTold notes the headers in which the upstream names users to a zone.
func (h *throttler) addTold(z *runningZone) {
	pass := z.Pass()
	if pass == nil {
		return
	}
	for _, told := range pass.Told {
		if !slices.Contains(h.told, told.Header) {
			h.told = append(h.told, told.Header)
		}
	}
}
