package engine

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/sharedstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// JudgedWith says together with which zones of its directives the zone is judged where it is in
// shadow: those that are enforced, and those in shadow by the same word. It is empty for a
// zone that is enforced for all keys.
func (z *Zone) JudgedWith(set *override.Set) string {
	own := z.Group(set)
	if own == 0 && z.Enforce == 100 {
		return ""
	}
	var names []string
	for _, h := range z.Handlers {
		for _, other := range h.Zones {
			name, group := other.Name, other.Group(set)
			if other == z.Zone || group != 0 && (group != own || group == rule.ShadowOwn) {
				continue
			}
			if other.Enforce < 100 {
				name = fmt.Sprintf("%s (%d%% of its keys)", name, other.Enforce)
			}
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return "as if enforced alone"
	}
	return "as if enforced together with " + strings.Join(names, ", ")
}

// Mode says whether the zone refuses, by the config and the switches at run time.
func (z *Zone) Mode(set *override.Set, now time.Time) string {
	switch {
	case z.Shadow != 0 || set.Shadow(z.Name, now):
		return "shadow"
	case z.Enforce < 100:
		return fmt.Sprintf("enforcing %d%%", z.Enforce)
	}
	return "enforcing"
}

// A Zone is a zone of one config as it runs: the rule that requests meet, with its
// counters and logs. What all configs of its name share is in the liveZone.
type Zone struct {
	*decision.Zone
	Counts *telemetry.Zone
	ZoneOptions
	Live *liveZone

	File           *overrideFile // nil if it has none
	Handlers       []*Handler    // that charge it
	warnedKey      bool
	warnedInsecure atomic.Bool
}

// ZoneOptions are what a zone needs beside its rule.
type ZoneOptions struct {
	Definition   string             // canonical text: zones of one name have the same
	Inventable   bool               // clients choose the values of the key
	Common       bool               // all clients share one bucket
	ReadsHeaders bool               // to find the key
	OverrideFile string             // empty if it has none
	Policy       sharedstore.Policy // the fallback, if the shared store does not answer
	LogLimit     *rate.Limiter      // of refusals in the access log; nil if there is none
}

// AddZone adds a zone, whose rule load returns. It joins the queues and slots that other
// configs share.
func (e *Engine) AddZone(name string, options ZoneOptions, load func(*Zone) (*rule.Rule, error)) (z *Zone, err error) {
	z = &Zone{ZoneOptions: options}
	if z.Live, err = JoinZone(name); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = stores.Leave(LiveZoneKey(name)) // which can tell nothing better
		}
	}()
	compiled, err := load(z)
	if err != nil {
		return nil, err
	}
	if options.OverrideFile != "" {
		if z.File, err = e.OverrideFiles.add(options.OverrideFile, compiled.Key.Overrides); err != nil {
			return nil, fmt.Errorf("zone %q: reading override_file: %w", name, err)
		}
	}
	z.Counts = telemetry.New(compiled, &z.Live.Figures, telemetry.Options{
		Logger: e.Warner.With(zap.String("zone", name)), Shared: e.Shared != nil, Denies: z.Policy == sharedstore.Deny,
		Listed: z.File != nil, Group: func() string { return z.JudgedWith(e.Overrides()) }, Wanted: e.subscribed, LogLimit: z.LogLimit, Events: e.events,
	})
	z.Zone = decision.NewZone(compiled, &z.Live.Enforced, &z.Live.Simulated, &z.Live.Meter, z.Counts)
	e.Zones[name] = z
	e.limitsLog = e.limitsLog || z.LogLimit != nil
	e.exemptsSome = e.exemptsSome || compiled.Exempt != nil
	if compiled.Everywhere {
		e.Blockers = append(e.Blockers, z.Zone)
	}
	return z, nil
}

// WarnOversize logs a warning if the capacity of an override is too small. It names the
// smallest.
func (z *Zone) WarnOversize() {
	if z.Bucketless() {
		return
	}
	least := slices.MinFunc(z.Key.Overrides.Load().Limits(), func(a, b leakybucket.Limit) int { return cmp.Compare(a.Capacity, b.Capacity) })
	if least.Oversize(z.Dearest) {
		z.Counts.Logger.Warn("the capacity of an override is less than some requests cost, so its clients can never make them",
			zap.Float64("capacity", least.Capacity), zap.Float64("cost", z.Dearest))
	}
}

// stripTold removes headers from a request by which only the upstream may name users.
func (h *Handler) stripTold(r *http.Request) {
	for _, name := range h.told {
		delete(r.Header, name)
	}
}

// addTold notes the headers in which the upstream names users to a zone.
func (h *Handler) addTold(z *Zone) {
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
