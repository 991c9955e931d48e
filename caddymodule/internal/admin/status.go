package admin

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/sketch"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

// answerZones describes what runs.
func answerZones(e *engine.Engine) any {
	now := time.Now()
	counts, refusals := telemetry.CountsByZone()
	set, shared := e.Overrides(), e.Control.Changes.State()
	result := wire.Status{Zones: []wire.ZoneStatus{}, InFlight: []wire.InFlightStatus{}, Overrides: overridesOf(e, now), Changes: shared, Warnings: e.Warnings.List()}
	kept := storeStatus(e, &result.Store, now)
	if shared != nil {
		result.Store.Failing = result.Store.Failing || shared.Error != "" // it is asked every second
	}
	decided := func(name, mode string) wire.Decided {
		total := counts[name].OfAll()
		d := wire.Decided{Mode: mode, Total: total, Refusals: refusals[name], PerSecond: e.Control.Rates.PerSecond(name, total, now)}
		for _, o := range result.Overrides {
			if o.Kind == "shadow" && (o.Zone == "" || o.Zone == name) && (d.ShadowUntil == nil || o.Until.After(*d.ShadowUntil)) {
				d.ShadowUntil = &o.Until
			}
		}
		return d
	}
	for _, z := range allZones(e) {
		s := wire.ZoneStatus{
			Zone: z.Name, Decided: decided(z.Name, z.Mode(set, now)),
			Capacity: z.Limit.Capacity, Leak: z.Limit.Leak,
			Buckets: kept[z.Name], RefusedKeys: z.State.Refused.Estimate(),
			Facts: z.Counts.Facts(),
		}
		if z.Delay != nil {
			s.Waiting, s.WaitingMost = int(z.State.Waiting.Taken()), z.Delay.Queue
		}
		if l := set.Limit(z.Name, "", now); l != nil {
			s.Limit = l.Limit
		}
		result.Zones = append(result.Zones, s)
	}
	for _, name := range slices.Sorted(maps.Keys(e.InFlight)) {
		l := e.InFlight[name]
		mode := "enforcing"
		if l.InShadow(set) {
			mode = "shadow"
		}
		load := l.State.Gate.Load()
		result.InFlight = append(result.InFlight, wire.InFlightStatus{
			Name: name, Decided: decided(name, mode), Slots: l.Slots, Running: load.Running, Waiting: load.Queued, Queue: l.Queue,
		})
	}
	return result
}

// storeStatus describes the store, and returns how many buckets of each zone are in this
// process's memory.
func storeStatus(e *engine.Engine, s *wire.StoreStatus, now time.Time) (kept map[string]int) {
	s.Name = "memory"
	memory := e.Memory.Memory
	kept = memory.Buckets()
	s.Evictions, s.MaxBuckets = memory.Evictions(), e.Memory.MaxBuckets
	for _, n := range kept {
		s.Buckets += n
	}
	if state, wanted := memory.Snapshot(now); wanted {
		s.SnapshotFailing, s.SnapshotAge = state.Failing, state.Age.Seconds()
	}
	if e.Shared != nil {
		s.Name, s.Failing, s.Down = e.Shared.Name, e.Shared.Failing(), e.Shared.Down()
		if o := e.Shared.Outage(); o != nil {
			s.Since, s.Why = &o.Since, o.Why.Error()
		}
	}
	return kept
}

// answerRates returns what is plotted.
func answerRates(e *engine.Engine) any {
	result := wire.Rates{Zones: make(map[string][]telemetry.Rate)}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(e.Zones)), slices.Collect(maps.Keys(e.InFlight))) {
		if plot := e.Control.Rates.Plot(name); plot != nil {
			result.Zones[name] = plot
		}
	}
	return result
}

var groupings = map[string]sketch.Grouping{"": sketch.ByKey, "ip": sketch.ByAddress, "/24": sketch.By24, "/16": sketch.By16}

// mostTop is how many are the busiest, and how many are refused most.
const mostTop = 10

// answerTop says who made most requests.
func answerTop(_ context.Context, e *engine.Engine, _ *input, of *wire.TopQuery) (any, error) {
	by, known := groupings[of.By]
	if !known {
		return nil, badRequest("invalid by %q: want ip, /24, /16, or nothing for the keys of the zones", of.By)
	}
	zones, err := zonesNamed(e, of.Zone)
	if err != nil {
		return nil, err
	}
	result, set, now := wire.Top{Zones: []wire.TopZone{}, Shared: e.Shared != nil}, e.Overrides(), time.Now()
	for _, z := range zones {
		s := z.State.Recent.Top(by, mostTop)
		keyOf := func(k sketch.Sender) wire.TopKey {
			if by == sketch.ByKey {
				return wire.TopKey{Sender: k, Network: shownNetwork(z, k.Name)}
			}
			return wire.TopKey{Sender: k}
		}
		result.Zones = append(result.Zones, wire.TopZone{
			Zone: z.Name, Mode: z.Mode(set, now), Requests: s.Admitted + s.Refused, Refused: s.Refused, Seconds: now.Sub(s.Since).Seconds(),
			Busiest: converted(s.Busiest, keyOf), Denied: converted(s.MostRefused, keyOf),
		})
	}
	return result, nil
}
