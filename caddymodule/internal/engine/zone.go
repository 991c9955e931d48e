package engine

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore"
)

// A Zone is a zone of one config as it runs, with its
// counters and logs. What all configs of its name share is in [Zone.State].
type Zone struct {
	*limit.Zone
	Counts *telemetry.Counts
	State  *ZoneState

	Definition string // canonical text: zones of one name have the same
	policy     sharedstore.Policy

	Directives     [][]*limit.Zone  // the zones of each directive that charges it
	handled        []*atomic.Uint64 // requests of these
	warnedKey      bool             // of what clients choose in it
	warnedBurst    bool
	warnedInsecure atomic.Bool
}

// clientChosen reports whether clients choose the values of the key.
func (z *Zone) clientChosen() bool {
	return limit.ClientChosen(z.Key.Sources) && z.Key.Unlisted == ""
}

// warnOversize logs a warning if the capacity of an override is too small. It names the
// smallest.
func (z *Zone) warnOversize() {
	least := slices.MinFunc(z.Key.Overrides.Limits(), func(a, b leakybucket.Limit) int { return cmp.Compare(a.Capacity, b.Capacity) })
	if least.Oversize(z.MostCost) {
		z.Counts.Logger.Warn("the capacity of an override is less than some requests cost, so its clients can never make them",
			zap.Float64("capacity", least.Capacity), zap.Float64("cost", z.MostCost))
	}
}

// warnInsecure logs, once, that a log-in succeeded over plain HTTP.
func (z *Zone) warnInsecure() {
	if !z.warnedInsecure.Swap(true) {
		z.Counts.Logger.Warn("a log-in succeeded over plain HTTP, where devices cannot be trusted: serve the site over HTTPS, or list the proxy that does in trusted_proxies and let it send X-Forwarded-Proto")
	}
}

// requests returns how many requests the handlers had that have the zone.
func (z *Zone) requests() (n uint64) {
	for _, handled := range z.handled {
		n += handled.Load()
	}
	return n
}

// Mode says whether the zone refuses, by the config and the switches at run time.
func (z *Zone) Mode(set *override.Set, now time.Time) string {
	switch {
	case z.Shadow != nil || set.Shadow(z.Name, now):
		return "shadow"
	case z.Enforce < 100:
		return fmt.Sprintf("enforcing %d%%", z.Enforce)
	}
	return "enforcing"
}

// A ZoneState holds the figures of a zone name, and who waits there. All configs with that
// name share it, because requests of the last config are still served during a reload. Each
// config has a [Zone] of its own.
type ZoneState struct {
	*telemetry.Figures
	Waiting limit.Places
	name    string
}

func StateKey(name string) string { return "zone " + name }

// JoinState returns the state of a zone name, which is made when the first config wants it.
func JoinState(name string) *ZoneState {
	return stores.Join(StateKey(name), func() *ZoneState {
		return &ZoneState{name: name, Figures: telemetry.NewFigures(name)}
	})
}

// Destruct has the zone's series deleted.
func (l *ZoneState) Destruct() error {
	telemetry.Forget(l.name)
	return nil
}
