package engine

import (
	"errors"
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/override"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

var (
	ofZones = collector{collectZones, []*prometheus.Desc{
		desc("refused_keys", "Distinct keys that were refused or, in shadow, would have been: an estimate, since the process began.", "zone"),
		desc("level_ratio", "How full buckets were after each decision, as a fraction of their capacity.", "zone"),
	}}

	ofStores = collector{collectStores, []*prometheus.Desc{
		desc("breaker_open", "Whether the shared store is down and left alone (1) or is asked (0).", "store"),
		desc("buckets", "Buckets kept in memory, among them some that became empty lately.", "zone"),
		desc("evictions_total", "Buckets dropped before they were empty, because the memory store was full."),
		desc("snapshot_age_seconds", "How long ago the snapshot of the memory was up to date."),
		desc("snapshot_failures_total", "Times that the snapshot could not be written."),
	}}

	// Waiting collects what changes from moment to moment: waits, slots, bodies and switches.
	Waiting = collector{collectWaiting, []*prometheus.Desc{
		desc("waiting", "Requests that wait for their delay, or for a slot of in_flight, with share by the client's rank.", "zone", "rank"),
		desc("in_flight", "Requests that hold a slot of in_flight, and in shadow all that are in flight.", "zone"),
		desc("slot_mean_seconds", "For how long a slot of in_flight is held on average, with share.", "zone"),
		desc("kept_bytes", "What received bodies take, and responses that wait for their clients, in memory and in the file.", "store"),
		desc("shadow_by_hand", "Whether the zone is in shadow by a switch at run time (1) or not (0).", "zone"),
	}}
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("caddy_throttle_"+name, help, labels, nil)
}

// Collectors are all of them, with those that count.
var Collectors = append([]prometheus.Collector{ofZones, ofStores, Waiting}, telemetry.Collectors...)

// RegisterMetrics registers the collectors, which a registry may have already.
func RegisterMetrics(registry *prometheus.Registry) error {
	for _, collector := range Collectors {
		if err := registry.Register(collector); err != nil && !errors.As(err, new(prometheus.AlreadyRegisteredError)) {
			return err
		}
	}
	return nil
}

// A collector reads what runs whenever metrics are collected.
type collector struct {
	read  func(of []*prometheus.Desc, to metricsChannel)
	descs []*prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c collector) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(metrics chan<- prometheus.Metric) { c.read(c.descs, metrics) }

type metricsChannel chan<- prometheus.Metric

func (to metricsChannel) gauge(of *prometheus.Desc, value float64, labels ...string) {
	to <- prometheus.MustNewConstMetric(of, prometheus.GaugeValue, value, labels...)
}

func toGauge(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func (to metricsChannel) count(of *prometheus.Desc, n uint64) {
	to <- prometheus.MustNewConstMetric(of, prometheus.CounterValue, float64(n))
}

func collectStores(of []*prometheus.Desc, to metricsChannel) {
	// While a reload changes the shared store, there are two. The older one counts, because the
	// reload may fail.
	if apps := started(); len(apps) > 0 && apps[0].Shared != nil {
		to.gauge(of[0], toGauge(apps[0].Shared.Down()), apps[0].Shared.Name)
	}
	evictions, there := uint64(0), make(map[string]bool)
	stores.EachOf(func(l *ZoneState) { there[l.name] = true })
	stores.EachOf(func(m *stores.Memory) {
		for zone, n := range m.Buckets() {
			if there[zone] { // buckets outlive it until they are forgotten
				to.gauge(of[1], float64(n), zone)
			}
		}
		evictions = m.Evictions()
		if s, wanted := m.Snapshot(time.Now()); wanted {
			to.gauge(of[3], s.Age.Seconds())
			to.count(of[4], s.Failures)
		}
	})
	to.count(of[2], evictions)
}

// newest returns the zones, or the concurrency limits, that have started, those of one name in the
// newest config.
func newest[V any](of func(*Engine) map[string]V) map[string]V {
	all := make(map[string]V)
	for _, e := range started() {
		maps.Copy(all, of(e))
	}
	return all
}

func zonesOf(e *Engine) map[string]*Zone { return e.Zones }

func collectWaiting(of []*prometheus.Desc, to metricsChannel) {
	limits, set, now := newest(func(e *Engine) map[string]*inflight.Limit { return e.InFlight }), (*override.Set)(nil), time.Now()
	stores.EachOf(func(c *control) {
		set = c.Changes.Table.Load()
		if len(limits) > 0 {
			memory, file := c.Bodies.Held()
			to.gauge(of[3], float64(memory), "memory")
			to.gauge(of[3], float64(file), "file")
		}
	})
	for name, z := range newest(zonesOf) {
		to.gauge(of[4], toGauge(set.Shadow(name, now)), name)
		if z.Delay != nil && z.Shadow == nil {
			to.gauge(of[0], float64(z.State.Waiting.Taken()), name, "")
		}
	}
	for name, l := range limits {
		to.gauge(of[4], toGauge(set.Shadow(name, now)), name)
		load := l.State.Gate.Load()
		to.gauge(of[1], float64(load.Running), name)
		switch {
		case l.Shares():
			for rank, waiting := range load.Waiting {
				to.gauge(of[0], float64(waiting), name, fairqueue.Rank(rank).String())
			}
			to.gauge(of[2], load.Mean.Seconds(), name)
		case l.Wait > 0:
			to.gauge(of[0], float64(load.Queued), name, "")
		}
	}
}

func collectZones(of []*prometheus.Desc, to metricsChannel) {
	stores.EachOf(func(l *ZoneState) { to.gauge(of[0], float64(l.Refused.Estimate()), l.name) })
	for name, z := range newest(zonesOf) {
		levels := &z.State.Levels
		sum, count, upTo := float64(levels.Sum.Load())/1e6, uint64(0), make(map[float64]uint64, len(telemetry.Fractions))
		for i := range levels.Counts {
			count += levels.Counts[i].Load()
			if i < len(telemetry.Fractions) {
				upTo[telemetry.Fractions[i]] = count
			}
		}
		to <- prometheus.MustNewConstHistogram(of[1], count, sum, upTo, name)
	}
}
