package caddymodule

import (
	"errors"

	"github.com/caddyserver/caddy/v2"
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
		Help: "Charges left as reserved, because the response did not tell what the request cost.",
	}, []string{"zone"})

	buckets = storeCollector{
		buckets: prometheus.NewDesc("caddy_throttle_buckets",
			"Buckets kept in memory.", []string{"zone"}, nil),
		evictions: prometheus.NewDesc("caddy_throttle_evictions_total",
			"Buckets dropped before they were empty, because the memory store was full.", nil, nil),
	}
)

func registerMetrics(registry *prometheus.Registry) error {
	for _, collector := range []prometheus.Collector{requests, unsettled, buckets} {
		var already prometheus.AlreadyRegisteredError
		if err := registry.Register(collector); err != nil && !errors.As(err, &already) {
			return err
		}
	}
	return nil
}

// running has an entry for each zone that a config uses, so that the counts of
// a zone go when the last config that has it does.
var running = caddy.NewUsagePool()

// A runningZone is the name of one.
type runningZone string

// Destruct forgets what was counted.
func (z runningZone) Destruct() error {
	requests.DeletePartialMatch(prometheus.Labels{"zone": string(z)})
	unsettled.DeletePartialMatch(prometheus.Labels{"zone": string(z)})
	return nil
}

// counters are a zone's, looked up before requests come.
type counters [decisions][reasons]prometheus.Counter

func countersOf(zone string) (c counters) {
	for d := range decisions {
		for r := range reasons {
			// Only a refusal has a reason; a series that can never count is noise.
			if (d == admitted) == (r == none) {
				c[d][r] = requests.WithLabelValues(zone, d.String(), r.String())
			}
		}
	}
	return c
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
