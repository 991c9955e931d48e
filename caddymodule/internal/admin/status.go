package admin

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/board"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

// answerZones describes what runs.
func answerZones(_ context.Context, e *engine.Engine, _ *Input) (any, error) {
	now := time.Now()
	set, counts, refusals, state := e.Overrides(), telemetry.CountsByZone(), telemetry.RefusalsByZone(), e.Control.Changes.State()
	result := wire.Status{Zones: []wire.ZoneStatus{}, Overrides: overridesOf(e, now), Fleet: fleetOf(state, now), Warnings: converted(e.Warnings.List(), func(w telemetry.KeptWarning) wire.Warning { return wire.Warning(w) })}
	kept := storeStatus(e, &result.Store, now)
	result.Store.Failing = result.Store.Failing || state.Err != nil // it is asked every second
	zones, err := zonesNamed(e, "")
	if err != nil {
		return nil, err
	}
	for _, z := range zones {
		s := wire.ZoneStatus{
			Zone: z.Name, Mode: z.Mode(set, now), Group: z.JudgedWith(set), Total: counts[z.Name].Named(),
			Capacity: z.Limit.Capacity, Leak: z.Limit.Leak, Refusals: refusals[z.Name], NearFull: z.State.Levels.NearFull(),
			Buckets: kept[z.Name], RefusedKeys: z.State.Refused.Estimate(),
			Facts: wire.Facts(z.Counts.Evidence.Facts()),
		}
		current, hourAgo := e.Control.Rates.PerSecond(z.Name, counts[z.Name], now)
		if s.PerSecond = current.Named(); hourAgo != nil {
			s.HourAgo = hourAgo.Named()
		}
		s.Waiting, s.InFlight = z.State.Enforced.Counts()
		if f := z.File; f != nil {
			inForce := f.Status()
			s.OverrideFile = &wire.OverrideFile{File: f.Path, Overrides: inForce.Overrides, Read: inForce.Read}
			if inForce.Problem != nil {
				s.OverrideFile.Problem = inForce.Problem.Error()
			}
		}
		if z.LetsWait() {
			s.WaitingMost = z.MaxWaiting
		}
		if s.Slots = z.InFlight; s.Slots > 0 {
			s.InFlightMost = z.State.Enforced.MostServed()
		}
		s.Share = describeShare(z, now)
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
	return result, nil
}

// fleetOf describes who shares the board, or returns nil if nobody does.
func fleetOf(s board.State, now time.Time) *wire.Fleet {
	if !s.Shared {
		return nil
	}
	fleet := &wire.Fleet{Strangers: s.Strangers, Foreign: s.Foreign, ForeignNames: s.ForeignNames, Untold: s.Untold}
	if s.Err != nil {
		fleet.Error = s.Err.Error()
	}
	for i, n := range append([]board.Node{s.Self}, s.Nodes...) {
		node := wire.Node{ID: n.ID, Host: n.Host, PID: n.PID, Began: n.Began, Age: max(0, now.Sub(n.Heard).Seconds())}
		node.Current = i == 0 || n.Seen >= s.Self.Seen && s.Untold == 0
		if !slices.Equal(n.Zones, s.Self.Zones) {
			node.Zones = n.Zones
		}
		fleet.Nodes = append(fleet.Nodes, node)
	}
	return fleet
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
		s.Shards, s.ShardsDown = e.Shared.Shards()
		s.Calls, s.Failed, s.Took = e.Control.Rates.CallsPerSecond(s.Name, now)
		if o := e.Shared.Outage.Load(); o != nil && s.Down {
			s.Since, s.Why = &o.Since, o.Why
		}
	}
	return kept
}
