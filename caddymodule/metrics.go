package caddymodule

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// The collectors outlive configs, so that counts survive reloads; every config
// brings a new registry, in which they are registered again. Labels are names
// from the config, never what clients send.
var (
	requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "requests_total",
		Help: "Requests by what a zone decided about them, and why.",
	}, []string{"zone", "decision", "reason"})

	unsettled = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "unsettled_total",
		Help: "Charges left as reserved, because the response did not tell what the request cost, or the store did not answer.",
	}, []string{"zone"})

	blocksBegun = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "blocks_total",
		Help: "Blocks that overflows have begun, by what a zone decided about the request.",
	}, []string{"zone", "decision"})

	withoutStore = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "without_store_total",
		Help: "Charges decided by on_store_error, because the shared store did not answer.",
	}, []string{"zone"})

	storeUp = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "store_up",
		Help: "Whether the shared store answers (1) or is left alone (0).",
	}, []string{"store"})

	storeErrors = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "store_errors_total",
		Help: "Calls of the shared store that failed or took too long.",
	}, []string{"store"})

	storeOutages = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "store_outages_total",
		Help: "How often the shared store was found to be down.",
	}, []string{"store"})

	buckets = storeCollector{
		buckets: prometheus.NewDesc("caddy_throttle_buckets",
			"Buckets kept in memory.", []string{"zone"}, nil),
		evictions: prometheus.NewDesc("caddy_throttle_evictions_total",
			"Buckets dropped before they were empty, because the memory store was full.", nil, nil),
	}

	rooms = roomCollector{
		waiting: prometheus.NewDesc("caddy_throttle_waiting",
			"Requests that wait for their turn.", []string{"zone"}, nil),
		inFlight: prometheus.NewDesc("caddy_throttle_in_flight",
			"Requests that hold a slot of in_flight.", []string{"zone"}, nil),
	}
)

func registerMetrics(registry *prometheus.Registry) error {
	for _, collector := range []prometheus.Collector{
		requests, unsettled, blocksBegun, withoutStore, storeUp, storeErrors, storeOutages, buckets, rooms,
	} {
		var already prometheus.AlreadyRegisteredError
		if err := registry.Register(collector); err != nil && !errors.As(err, &already) {
			return err
		}
	}
	return nil
}

// counters are a zone's, looked up before requests come.
type counters [decisions][reasons]prometheus.Counter

func countersOf(z *Zone) (c counters) {
	for d := range decisions {
		for r := range reasons {
			if z.mayCount(d, r) {
				c[d][r] = requests.WithLabelValues(z.Name, d.String(), r.String())
			}
		}
	}
	return c
}

// mayCount reports whether the zone can ever decide so; a series that can never
// count is noise.
func (z *Zone) mayCount(d decision, r reason) bool {
	if refusing := d == refused || d == shadowRefused; refusing != (r != none) {
		return false
	}
	switch d {
	case delayed, refused:
		if z.shadow {
			return false
		}
	case shadowDelayed, shadowRefused:
		if !z.shadow && z.Enforce == 100 {
			return false
		}
	}
	switch {
	case d == delayed, d == shadowDelayed, r == waiting:
		return z.letsWait()
	case r == capacity, r == oversize:
		return !z.bucketless()
	case r == blocking:
		return z.Block != nil
	case r == inFlight:
		return z.InFlight > 0
	case r == noStore:
		return z.shared.app.remote != nil && z.policy() == onErrorDeny
	case r == banned:
		return len(z.Override) > 0
	case r == missingKey:
		return z.MissingKey == missingRefuse
	case r == unlistedKey:
		return z.UnlistedKey == missingRefuse
	case r == earlyData:
		return d == refused // shadows do not even decide about it
	}
	return true
}

// A storeCollector asks the stores when it is asked itself.
type storeCollector struct{ buckets, evictions *prometheus.Desc }

// Describe implements prometheus.Collector.
func (c storeCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- c.buckets
	descs <- c.evictions
}

// Collect implements prometheus.Collector.
func (c storeCollector) Collect(metrics chan<- prometheus.Metric) {
	total, evictions := make(map[string]int), uint64(0)
	memories.Range(func(_, value any) bool {
		if store, ok := value.(leakybucket.Counter); ok {
			for zone, n := range store.Buckets() {
				total[zone] += n
			}
		}
		if store, ok := value.(leakybucket.Evicter); ok {
			evictions += store.Evictions()
		}
		return true
	})
	for zone, n := range total {
		metrics <- prometheus.MustNewConstMetric(c.buckets, prometheus.GaugeValue, float64(n), zone)
	}
	metrics <- prometheus.MustNewConstMetric(c.evictions, prometheus.CounterValue, float64(evictions))
}

// A roomCollector looks into the rooms of the zones when it is asked.
type roomCollector struct{ waiting, inFlight *prometheus.Desc }

// Describe implements prometheus.Collector.
func (c roomCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- c.waiting
	descs <- c.inFlight
}

// Collect implements prometheus.Collector.
func (c roomCollector) Collect(metrics chan<- prometheus.Metric) {
	running.Range(func(_, value any) bool {
		zone := value.(*runningZone)
		waiting, served := zone.enforced.counts()
		if zone.waits.Load() {
			metrics <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(waiting), zone.name)
		}
		if zone.slots.Load() {
			metrics <- prometheus.MustNewConstMetric(c.inFlight, prometheus.GaugeValue, float64(served), zone.name)
		}
		return true
	})
}
