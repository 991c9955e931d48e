package engine

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

var (
	refusedKeys = desc("refused_keys", "Distinct keys that were refused or, in shadow, would have been: an estimate, since the process began.", "zone")

	breakerOpen      = desc("breaker_open", "Whether the shared store is down and left alone (1) or is asked (0).", "store")
	keptBuckets      = desc("buckets", "Buckets kept in memory, among them some that became empty lately.", "zone")
	evictions        = desc("evictions_total", "Buckets dropped before they were empty, because the memory store was full.")
	snapshotAge      = desc("snapshot_age_seconds", "How long ago the snapshot of the memory was up to date.")
	snapshotFailures = desc("snapshot_failures_total", "Times that the snapshot could not be written.")

	waitingRequests = desc("waiting", "Requests that wait for their delay, or for a slot of in_flight, with share by the client's rank.", "zone", "rank")
	slotsHeld       = desc("in_flight", "Requests that hold a slot of in_flight, and in shadow all that are in flight.", "zone")
	slotMean        = desc("slot_mean_seconds", "For how long a slot of in_flight is held on average, with share.", "zone")
	keptBytes       = desc("kept_bytes", "What received bodies take, and responses that wait for their clients, in memory and in the file.", "store")
	shadowByHand    = desc("shadow_by_hand", "Whether the zone is in shadow by a switch at run time (1) or not (0).", "zone")
)

// descs are all of these.
var descs []*prometheus.Desc

func desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("caddy_throttle_"+name, help, labels, nil)
	descs = append(descs, d)
	return d
}

// Collectors are that of what runs, and those that count.
var Collectors = append([]prometheus.Collector{Running{}}, telemetry.Collectors...)

// RegisterMetrics registers the collectors, which a registry may have already.
func RegisterMetrics(registry *prometheus.Registry) error {
	for _, collector := range Collectors {
		if err := registry.Register(collector); err != nil && !errors.As(err, new(prometheus.AlreadyRegisteredError)) {
			return err
		}
	}
	return nil
}

// Running reads what runs whenever metrics are collected.
type Running struct{}

// Describe implements prometheus.Collector.
func (Running) Describe(to chan<- *prometheus.Desc) {
	for _, d := range descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (Running) Collect(metrics chan<- prometheus.Metric) {
	if e := newest.Load(); e != nil {
		e.collectZones(metrics)
		e.collectStores(metrics)
		e.collectInFlight(metrics)
	}
}

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

func (e *Engine) collectStores(to metricsChannel) {
	if e.Shared != nil {
		to.gauge(breakerOpen, toGauge(e.Shared.Down()), e.Shared.Name)
	}
	memory := e.Memory.Memory
	for zone, n := range memory.Buckets() {
		if e.Zones[zone] != nil { // buckets outlive it until they are forgotten
			to.gauge(keptBuckets, float64(n), zone)
		}
	}
	to.count(evictions, memory.Evictions())
	if s, wanted := memory.Snapshot(time.Now()); wanted {
		to.gauge(snapshotAge, s.Age.Seconds())
		to.count(snapshotFailures, s.Failures)
	}
}

func (e *Engine) collectInFlight(to metricsChannel) {
	if len(e.InFlight) > 0 {
		memory, file := e.Control.Bodies.Held()
		to.gauge(keptBytes, float64(memory), "memory")
		to.gauge(keptBytes, float64(file), "file")
	}
	for name, l := range e.InFlight {
		to.gauge(shadowByHand, toGauge(e.Overrides().Shadow(name, time.Now())), name)
		load := l.State.Gate.Load()
		to.gauge(slotsHeld, float64(load.Running), name)
		switch {
		case l.Shares():
			for rank, n := range load.Waiting {
				to.gauge(waitingRequests, float64(n), name, fairqueue.Rank(rank).String())
			}
			to.gauge(slotMean, load.Mean.Seconds(), name)
		case l.Wait > 0:
			to.gauge(waitingRequests, float64(load.Queued), name, "")
		}
	}
}

func (e *Engine) collectZones(to metricsChannel) {
	for name, z := range e.Zones {
		to.gauge(refusedKeys, float64(z.State.Refused.Estimate()), name)
		to.gauge(shadowByHand, toGauge(e.Overrides().Shadow(name, time.Now())), name)
		if z.Delay != nil && z.Shadow == nil {
			to.gauge(waitingRequests, float64(z.State.Waiting.Taken()), name, "")
		}
	}
}
