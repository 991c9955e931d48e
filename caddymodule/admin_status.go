package caddymodule

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/admin/wire"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

// decisionCounts are the requests of a zone by decision.
type decisionCounts [decision.Decisions]float64

// named returns the counts by the words for decisions.
func (c decisionCounts) named() map[string]float64 {
	named := make(map[string]float64)
	for d := decision.Admitted; d < decision.Decisions; d++ {
		named[d.String()] = c[d]
	}
	return named
}

// eachSeries calls yield with all series of a collector. Asking it for one by name would
// create that.
func eachSeries(of prometheus.Collector, yield func(m *dto.Metric, label func(string) string)) {
	metrics := make(chan prometheus.Metric, 64)
	go func() {
		of.Collect(metrics)
		close(metrics)
	}()
	for metric := range metrics {
		var m dto.Metric
		if metric.Write(&m) != nil {
			continue
		}
		yield(&m, func(name string) string {
			for _, label := range m.GetLabel() {
				if label.GetName() == name {
					return label.GetValue()
				}
			}
			return ""
		})
	}
}

// countsByZone reads the counters of all zones.
func countsByZone() map[string]decisionCounts {
	all := make(map[string]decisionCounts)
	eachSeries(telemetry.Requests, func(m *dto.Metric, label func(string) string) {
		decided, zone := label("decision"), label("zone")
		for d := decision.Admitted; d < decision.Decisions; d++ {
			if d.String() == decided {
				counts := all[zone]
				counts[d] += m.GetCounter().GetValue()
				all[zone] = counts
			}
		}
	})
	return all
}

// callCounts are the calls of a shared store.
type callCounts struct{ calls, seconds, errors float64 }

// callsByStore reads the counters of all shared stores.
func callsByStore() map[string]callCounts {
	all := make(map[string]callCounts)
	eachSeries(telemetry.StoreSeconds, func(m *dto.Metric, label func(string) string) {
		h := m.GetHistogram()
		all[label("store")] = callCounts{calls: float64(h.GetSampleCount()), seconds: h.GetSampleSum()}
	})
	eachSeries(telemetry.StoreErrors, func(m *dto.Metric, label func(string) string) {
		counts := all[label("store")]
		counts.errors = m.GetCounter().GetValue()
		all[label("store")] = counts
	})
	return all
}

const (
	sampleEvery = 10 * time.Second
	samplesKept = 361 // an hour, and the one before it
)

// rates samples the counters, so that requests need not be counted twice.
type rates struct {
	mu      sync.Mutex
	samples []rateSample // oldest first
}

type rateSample struct {
	at     time.Time
	counts map[string]decisionCounts
	calls  map[string]callCounts
}

// run samples until stop is closed.
func (r *rates) run(stop <-chan struct{}) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	r.take(time.Now())
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			r.take(time.Now())
		}
	}
}

func (r *rates) take(now time.Time) {
	next := rateSample{now, countsByZone(), callsByStore()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.samples) >= samplesKept {
		r.samples = append(r.samples[:0], r.samples[1:]...)
	}
	r.samples = append(r.samples, next)
}

// perSecond returns the rates of a zone since the last sample but one, and those of the
// same span an hour ago, if that was sampled.
func (r *rates) perSecond(zone string, counts decisionCounts, now time.Time) (current decisionCounts, hourAgo *decisionCounts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.samples)
	if n == 0 {
		return current, nil
	}
	current = between(&r.samples[max(0, n-2)], &rateSample{at: now, counts: map[string]decisionCounts{zone: counts}}, zone)
	if n == samplesKept {
		before := between(&r.samples[0], &r.samples[2], zone)
		hourAgo = &before
	}
	return current, hourAgo
}

func between(from, to *rateSample, zone string) (rate decisionCounts) {
	seconds := to.at.Sub(from.at).Seconds()
	if seconds <= 0 {
		return rate
	}
	for d := range rate {
		rate[d] = max(0, to.counts[zone][d]-from.counts[zone][d]) / seconds
	}
	return rate
}

// lastButOne returns the sample before the last one, or the only one.
func (r *rates) lastButOne() (s rateSample, taken bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.samples)
	if n == 0 {
		return s, false
	}
	return r.samples[max(0, n-2)], true
}

// callsPerSecond returns how many calls of a shared store were made a second and how
// many of those failed, since the last sample but one, and how long one took on average.
func (r *rates) callsPerSecond(store string, now time.Time) (calls, failed, took float64) {
	from, taken := r.lastButOne()
	to := callsByStore()[store]
	seconds := now.Sub(from.at).Seconds()
	if !taken || seconds <= 0 {
		return 0, 0, 0
	}
	before := from.calls[store]
	made := max(0, to.calls-before.calls)
	if made > 0 {
		took = max(0, to.seconds-before.seconds) / made
	}
	return made / seconds, max(0, to.errors-before.errors) / seconds, took
}

// adminZones describes what runs.
func (a *engine) adminZones(context.Context, *adminInput) (any, error) {
	now := time.Now()
	set, overrides, counts := a.overrides.Load(), a.overrides.List(now), countsByZone()
	result := wire.Status{Zones: []wire.ZoneStatus{}, Overrides: overridesOf(overrides), Warnings: converted(a.warnings.List(), func(w telemetry.KeptWarning) wire.Warning { return wire.Warning(w) })}
	kept := a.storeStatus(&result.Store, now)
	zones, err := a.zonesNamed("")
	if err != nil {
		return nil, err
	}
	for _, z := range zones {
		s := wire.ZoneStatus{
			Zone: z.Name, Mode: z.mode(set, now), Group: z.group(set), Definition: json.RawMessage(z.definition), Total: counts[z.Name].named(),
			Buckets: kept[z.Name], RefusedKeys: z.live.Refused.Estimate(),
		}
		current, hourAgo := a.control.rates.perSecond(z.Name, counts[z.Name], now)
		if s.PerSecond = current.named(); hourAgo != nil {
			s.HourAgo = hourAgo.named()
		}
		s.Waiting, s.InFlight = z.live.enforced.Counts()
		if f := z.file; f != nil {
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
			s.InFlightMost = z.live.enforced.MostServed()
		}
		s.Share = z.describeShare(now)
		if set.Shadow(z.Name, now) {
			s.ShadowUntil = overrides.ShadowUntil(z.Name)
		}
		if l := set.Limit(z.Name, "", now); l != nil {
			s.Limit = l.Text
		}
		result.Zones = append(result.Zones, s)
	}
	return result, nil
}

// storeStatus describes the store, and returns how many buckets of each zone are in this
// process's memory.
func (a *engine) storeStatus(s *wire.StoreStatus, now time.Time) (kept map[string]int) {
	s.Name = "memory"
	if a.memory != nil {
		kept = a.memory.Memory.Buckets()
		s.Evictions, s.MaxBuckets = a.memory.Memory.Evictions(), cmp.Or(a.memory.MaxBuckets, stores.DefaultMaxBuckets)
		for _, n := range kept {
			s.Buckets += n
		}
	}
	if a.shared != nil {
		s.Name, s.Failing, s.Down = a.shared.Name, a.shared.Failing(), a.shared.Down()
		s.Shards, s.ShardsDown = a.shared.Shards()
		s.Calls, s.Failed, s.Took = a.control.rates.callsPerSecond(s.Name, now)
		if o := a.shared.Outage.Load(); o != nil && s.Down {
			s.Since, s.Why = &o.Since, o.Why
		}
	}
	return kept
}

// group says together with which zones of its directives the zone is judged where it is in
// shadow: those that are enforced, and those in shadow by the same word. It is empty for a
// zone that is enforced for all keys.
func (z *runningZone) group(set *override.Set) string {
	own := z.Group(set)
	if own == 0 && z.Enforce == 100 {
		return ""
	}
	var names []string
	for _, h := range z.handlers {
		for _, other := range h.zones {
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

// mode says whether the zone refuses, by the config and the switches at run time.
func (z *runningZone) mode(set *override.Set, now time.Time) string {
	switch {
	case z.Shadow != 0 || set.Shadow(z.Name, now):
		return "shadow"
	case z.Enforce < 100:
		return fmt.Sprintf("enforcing %d%%", z.Enforce)
	}
	return "enforcing"
}
