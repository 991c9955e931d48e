package caddymodule

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	clientpass "github.com/caddy-throttle/caddy-throttle/caddymodule/internal/pass"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/sharedstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// A runningZone is a zone of one config as it runs: the rule that requests meet, with its
// counters and logs. What all configs of its name share is in the liveZone.
type runningZone struct {
	*decision.Zone
	*zoneCounts
	zoneOptions
	live *liveZone

	file           *overrideFile // nil if it has none
	handlers       []*throttler  // that charge it
	warnedKey      bool
	warnedStatic   atomic.Bool
	warnedFailure  atomic.Int64 // when, in seconds since 1970
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
			_ = leave(liveZoneKey(name)) // which can tell nothing better
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
	z.zoneCounts = newZoneCounts(compiled, &z.live.liveCounts, countOptions{
		logger: e.warner.With(zap.String("zone", name)), shared: e.shared != nil, denies: z.policy == sharedstore.Deny,
		listed: z.file != nil, group: func() string { return z.group(e.overrides.Load()) }, wanted: e.subscribed, events: e.events,
	})
	z.Zone = decision.NewZone(compiled, &z.live.enforced, &z.live.simulated, &z.live.meter, z)
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
		z.logger.Warn("the capacity of an override is less than some requests cost, so its clients can never make them",
			zap.Float64("capacity", least.Capacity), zap.Float64("cost", z.Dearest))
	}
}

// Failed implements decision.Reporter. It warns at most once a minute.
func (z *runningZone) Failed(option string, err error, enforced bool) {
	if last, now := z.warnedFailure.Load(), time.Now().Unix(); now-last >= 60 && z.warnedFailure.CompareAndSwap(last, now) {
		warning := "a matcher of the zone fails, so requests would if it were enforced"
		if enforced {
			warning = "a matcher of the zone fails, and requests with it"
		}
		z.logger.Warn(warning, zap.String("matcher", option), zap.Error(err))
	}
}

// Logs implements decision.Reporter, as refusal log has it.
func (z *runningZone) Logs(now time.Time) bool {
	if z.logLimit == nil || z.logLimit.AllowN(now, 1) {
		return true
	}
	z.live.unlogged.Add(1)
	return false
}

// Unlogged implements decision.Reporter.
func (z *runningZone) Unlogged() uint32 {
	if z.logLimit == nil || z.live.unlogged.Load() == 0 {
		return 0
	}
	return z.live.unlogged.Swap(0)
}

// ServedStatic implements decision.Reporter. It warns once.
func (z *runningZone) ServedStatic(r *http.Request) {
	if !z.warnedStatic.Swap(true) {
		asked := r
		if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok {
			asked = &original // later handlers may have rewritten it
		}
		z.logger.Warn("the upstream answered a request that exempt static_files took for a file; it is charged afterwards: serve files before the upstream is asked",
			zap.String("uri", asked.RequestURI))
	}
}

// passOf returns what issues the passes of a zone, or nil if the zone sends none.
func passOf(rule *rule.Rule) *clientpass.Zone {
	if rule.Ranks == nil {
		return nil
	}
	return rule.Ranks.Pass
}

// stripTold removes headers from a request by which only the upstream may name users.
func (h *throttler) stripTold(r *http.Request) {
	for _, name := range h.told {
		delete(r.Header, name)
	}
}

// addTold notes the headers in which the upstream names users to a zone.
func (h *throttler) addTold(z *runningZone) {
	pass := passOf(z.Rule)
	if pass == nil {
		return
	}
	for _, told := range pass.Told {
		if !slices.Contains(h.told, told.Header) {
			h.told = append(h.told, told.Header)
		}
	}
}
