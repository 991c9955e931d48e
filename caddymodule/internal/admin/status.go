package admin

import (
	"cmp"
	"regexp"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

// answerZones describes what runs.
func answerZones(e *engine.Engine) any {
	now := time.Now()
	counts, refusals := telemetry.CountsByZone()
	set, shared := e.Overrides(), e.Control.Changes.State()
	result := wire.Status{Zones: []wire.ZoneStatus{}, Overrides: overridesOf(e, now), Warnings: e.Warnings.List()}
	kept := storeStatus(e, &result.Store, now)
	if shared.Shared {
		result.Changes = &shared
		result.Store.Failing = result.Store.Failing || shared.Error != "" // it is asked every second
	}
	for _, z := range allZones(e) {
		s := wire.ZoneStatus{
			Zone: z.Name, Mode: z.Mode(set, now), Group: z.JudgedWith(set), Total: counts[z.Name].Named(),
			Capacity: z.Limit.Capacity, Leak: z.Limit.Leak, Refusals: refusals[z.Name], NearFull: z.State.Levels.NearFull(),
			Buckets: kept[z.Name], RefusedKeys: z.State.Refused.Estimate(),
			Facts: z.Counts.Facts(),
		}
		current, hourAgo := e.Control.Rates.PerSecond(z.Name, counts[z.Name], now)
		if s.PerSecond = current.Named(); hourAgo != nil {
			s.HourAgo = hourAgo.Named()
		}
		if f := z.File; f != nil {
			inForce := f.Status()
			s.OverrideFile = &inForce
		}
		if z.Delay != nil {
			s.Waiting, s.WaitingMost = z.State.Waiting.Taken(), z.MaxWaiting
		}
		for _, o := range result.Overrides {
			if o.Kind == "shadow" && (o.Zone == "" || o.Zone == z.Name) && (s.ShadowUntil == nil || o.Until.After(*s.ShadowUntil)) {
				s.ShadowUntil = &o.Until
			}
		}
		if l := set.Limit(z.Name, "", now); l != nil {
			s.Limit = l.Text
		}
		result.Zones = append(result.Zones, s)
	}
	return result
}

// quoted are the words that errors quote.
var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// ForReaders returns an answer for users who may only look. A wrong line of an override
// file may hold plain keys.
func ForReaders(answer any) any {
	if s, is := answer.(wire.Status); is {
		for _, z := range s.Zones {
			if z.OverrideFile != nil {
				z.OverrideFile.Problem = quoted.ReplaceAllString(z.OverrideFile.Problem, `"…"`)
			}
		}
	}
	return answer
}

// storeStatus describes the store, and returns how many buckets of each zone are in this
// process's memory.
func storeStatus(e *engine.Engine, s *wire.StoreStatus, now time.Time) (kept map[string]int) {
	s.Name = "memory"
	if e.Memory != nil {
		kept = e.Memory.Memory.Buckets()
		s.Evictions, s.MaxBuckets = e.Memory.Memory.Evictions(), cmp.Or(e.Memory.MaxBuckets, stores.DefaultMaxBuckets)
		for _, n := range kept {
			s.Buckets += n
		}
		if state, wanted := e.Memory.Memory.Snapshot(now); wanted {
			s.SnapshotFailing, s.SnapshotAge = state.Failing, state.Age.Seconds()
		}
	}
	if e.Shared != nil {
		s.Name, s.Failing, s.Down = e.Shared.Name, e.Shared.Failing(), e.Shared.Down()
		s.Calls, s.Failed, s.Took = e.Control.Rates.CallsPerSecond(s.Name, now)
		if o := e.Shared.Outage.Load(); o != nil && s.Down {
			s.Since, s.Why = &o.Since, o.Why
		}
	}
	return kept
}

// answerRates returns what is plotted.
func answerRates(e *engine.Engine) any {
	result := wire.Rates{Hour: make(map[string][]telemetry.Rate), Day: make(map[string][]telemetry.Rate)}
	for name := range e.Zones {
		hour, day := e.Control.Rates.Plot(name)
		if hour != nil {
			result.Hour[name] = hour
		}
		if day != nil {
			result.Day[name] = day
		}
	}
	return result
}
