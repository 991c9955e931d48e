package caddymodule

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/rule"
)

// The collectors are process-wide, so that counts survive reloads. Every config has a
// new registry and registers them again. Labels are names from the config, never
// values that clients send.
var (
	requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "requests_total",
		Help: "Requests by zone, decision and reason, and in zones with share by the client's rank.",
	}, []string{"zone", "decision", "reason", "rank"})

	passes = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "passes_total",
		Help: "Passes of clients in zones with share, by what happened to them.",
	}, []string{"zone", "event"})

	unsettled = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "unsettled_total",
		Help: "Charges left as reserved, because the response did not say what the request cost, or the store did not answer.",
	}, []string{"zone"})

	blocksBegun = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "blocks_total",
		Help: "Blocks that began with an overflow, by zone and decision.",
	}, []string{"zone", "decision"})

	withoutStore = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "without_store_total",
		Help: "Charges decided by the fallback, because the shared store did not answer.",
	}, []string{"zone"})

	refusedPeople = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "refused_people_total",
		Help: "People whom a zone in shadow would have refused, by reports of their browsers. Each address counts once an hour.",
	}, []string{"zone"})

	keysRefused = collector{collectKeys, []*prometheus.Desc{prometheus.NewDesc("caddy_throttle_refused_keys",
		"Distinct keys that were refused or, in shadow, would have been: an estimate, since the process began.", []string{"zone"}, nil)}}

	delays = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "delay_seconds",
		Help:    "Delays of delayed requests, in seconds.",
		Buckets: []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, []string{"zone"})

	levels = collector{collectLevels, []*prometheus.Desc{prometheus.NewDesc("caddy_throttle_level_ratio",
		"How full buckets were after each decision, as a fraction of their capacity.", []string{"zone"}, nil)}}

	breakerOpen = collector{collectBreakers, []*prometheus.Desc{prometheus.NewDesc("caddy_throttle_breaker_open",
		"Whether the shared store is down and left alone (1) or is asked (0).", []string{"store"}, nil)}}

	storeSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "store_seconds",
		Help:    "How long calls of the shared store took, failed ones too, in seconds.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1},
	}, []string{"store"})

	storeErrors = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "store_errors_total",
		Help: "Calls of the shared store that failed or took too long.",
	}, []string{"store"})

	storeOutages = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "store_outages_total",
		Help: "Outages of the shared store.",
	}, []string{"store"})

	eventsDropped = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "events_dropped_total",
		Help: "Events about keys that were dropped, because subscribers are too slow.",
	})

	dropped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "caddy", Subsystem: "throttle", Name: "dropped_connections_total",
		Help: "TCP connections and QUIC packets of clients that are out, which were dropped before they cost a handshake.",
	}, []string{"transport"})

	staleFiles = collector{collectFiles, []*prometheus.Desc{prometheus.NewDesc("caddy_throttle_override_file_stale",
		"Whether the override_file cannot be used as it is now (1), so that what was read before holds, or is in force (0).", []string{"zone"}, nil)}}

	buckets = collector{collectBuckets, []*prometheus.Desc{
		prometheus.NewDesc("caddy_throttle_buckets",
			"Buckets kept in memory.", []string{"zone"}, nil),
		prometheus.NewDesc("caddy_throttle_evictions_total",
			"Buckets dropped before they were empty, because the memory store was full.", nil, nil),
	}}

	slots = collector{collectSlots, []*prometheus.Desc{
		prometheus.NewDesc("caddy_throttle_waiting",
			"Requests that wait for their delay or for a slot, in zones with share by the client's rank.", []string{"zone", "rank"}, nil),
		prometheus.NewDesc("caddy_throttle_in_flight",
			"Requests that hold a slot of in_flight.", []string{"zone"}, nil),
		prometheus.NewDesc("caddy_throttle_slot_mean_seconds",
			"For how long a slot is held on average, in zones with share.", []string{"zone"}, nil),
	}}
)

// collectors are all of them.
var collectors = []prometheus.Collector{
	requests, passes, turnSeconds, slotSeconds, unsettled, blocksBegun, withoutStore, refusedPeople, keysRefused, levels, delays,
	breakerOpen, storeSeconds, storeErrors, storeOutages, eventsDropped, dropped, staleFiles, buckets, slots,
}

func registerMetrics(registry *prometheus.Registry) error {
	for _, collector := range collectors {
		var already prometheus.AlreadyRegisteredError
		if err := registry.Register(collector); err != nil && !errors.As(err, &already) {
			return err
		}
	}
	return nil
}

// counters are the counters of one zone, looked up before requests come.
type counters [decision.Decisions][rule.Reasons]prometheus.Counter

func countersOf(t *zoneCounts, rank string) (c counters) {
	for d := range decision.Decisions {
		for r := range rule.Reasons {
			if t.mayCount(d, r) && t.ranked(r) == (rank != "") {
				c[d][r] = requests.WithLabelValues(t.rule.Name, d.String(), r.String(), rank)
			}
		}
	}
	return c
}

// ranked reports whether a zone counts what it decides for this reason by rank: only
// requests that come as far as to a slot have one.
func (t *zoneCounts) ranked(why rule.Reason) bool {
	switch why {
	case rule.None, rule.Waiting, rule.Wait, rule.Timeout:
		return t.rule.Share != nil
	}
	return false
}

// mayCount reports whether the zone can ever make this decision. If not, it has no
// series for it.
func (t *zoneCounts) mayCount(d decision.Decision, why rule.Reason) bool {
	if refusing := d == decision.Refused || d == decision.ShadowRefused; refusing != (why != rule.None) {
		return false
	}
	switch d {
	case decision.Withdrawn:
		return false
	case decision.Delayed, decision.Refused:
		if t.rule.Shadow != 0 {
			return false
		}
	case decision.ShadowDelayed, decision.ShadowRefused:
		if t.rule.Shadow == 0 && t.rule.Enforce == 100 {
			return false
		}
	}
	switch {
	case d == decision.Refused && why == rule.Waiting && t.rule.RequestBuffer > 0:
		return true // when the process ends
	case why == rule.Error:
		return false // so rare that its series begins with the first
	case why == rule.Wait, why == rule.Timeout:
		return t.rule.Share != nil
	case d == decision.Delayed, d == decision.ShadowDelayed, why == rule.Waiting:
		return t.rule.LetsWait()
	case why == rule.Capacity, why == rule.Oversize:
		return !t.rule.Bucketless()
	case why == rule.Blocked:
		return t.rule.Block != nil
	case why == rule.NoMemory:
		return t.rule.ReadsBodies()
	case why == rule.InFlight:
		return t.rule.InFlight > 0 && t.rule.Share == nil
	case why == rule.NoStore:
		return t.shared && t.denies
	case why == rule.Denied:
		return t.listed || !t.rule.Key.Overrides.Load().Plain()
	case why == rule.MissingKey:
		return t.rule.Key.Missing == rule.Refuse
	case why == rule.UnlistedKey:
		return t.rule.Key.Unlisted == rule.Refuse
	case why == rule.Banned:
		return false // before there is a ban
	case why == rule.EarlyData:
		return d == decision.Refused // shadow zones do not decide about it
	}
	return true
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

// eachOf calls f with all entries of a type that outlive configs.
func eachOf[T any](f func(T)) {
	process.Range(func(_, value any) bool {
		if one, ok := value.(T); ok {
			f(one)
		}
		return true
	})
}

func toGauge(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func collectBuckets(of []*prometheus.Desc, to metricsChannel) {
	evictions := uint64(0)
	eachOf(func(m *memory) {
		for zone, n := range m.Buckets() {
			to.gauge(of[0], float64(n), zone)
		}
		evictions = m.Evictions()
	})
	to <- prometheus.MustNewConstMetric(of[1], prometheus.CounterValue, float64(evictions))
}

// collectBreakers asks the shared stores. While a reload changes a store's URL there are
// two of one name. It reports the older one, because the reload may fail.
func collectBreakers(of []*prometheus.Desc, to metricsChannel) {
	first := make(map[string]*SharedStore)
	since := make(map[string]uint64)
	eachOf(func(s *SharedStore) {
		if began, runs := s.running(); runs && (first[s.name] == nil || began < since[s.name]) {
			first[s.name], since[s.name] = s, began
		}
	})
	for name, s := range first {
		to.gauge(of[0], toGauge(s.Down()), name)
	}
}

func collectSlots(of []*prometheus.Desc, to metricsChannel) {
	eachOf(func(l *liveZone) {
		waits, slots, _ := l.has()
		waiting, served := l.enforced.Counts()
		switch {
		case l.takesTurns():
			load := l.enforced.Load()
			for _, rank := range allRanks {
				to.gauge(of[0], float64(load.Waiting[rank]), l.name, rank.String())
			}
			to.gauge(of[2], load.Mean.Seconds(), l.name)
		case waits:
			to.gauge(of[0], float64(waiting), l.name, "")
		}
		if slots {
			to.gauge(of[1], float64(served), l.name)
		}
	})
}

func collectFiles(of []*prometheus.Desc, to metricsChannel) {
	eachOf(func(l *liveZone) {
		if f := l.overrideFile(); f != nil {
			to.gauge(of[0], toGauge(f.Status().Problem != nil), l.name)
		}
	})
}

func collectKeys(of []*prometheus.Desc, to metricsChannel) {
	eachOf(func(l *liveZone) { to.gauge(of[0], float64(l.refused.Estimate()), l.name) })
}

// fractions are the upper bounds of the buckets of caddy_throttle_level_ratio. Only
// debts are above 1.
var fractions = [...]float64{.1, .2, .3, .4, .5, .6, .7, .8, .9, 1}

// A levelHistogram counts how full buckets were. Observing is two
// atomic additions. The zero value is ready for use.
type levelHistogram struct {
	counts [len(fractions) + 1]atomic.Uint64
	sum    atomic.Uint64 // in millionths
}

func (h *levelHistogram) observe(fraction float64) {
	i := 0
	for i < len(fractions) && fraction > fractions[i] {
		i++
	}
	h.counts[i].Add(1)
	h.sum.Add(uint64(fraction * 1e6))
}

func collectLevels(of []*prometheus.Desc, to metricsChannel) {
	eachOf(func(l *liveZone) {
		if _, _, buckets := l.has(); !buckets {
			return
		}
		sum, count, upTo := float64(l.levels.sum.Load())/1e6, uint64(0), make(map[float64]uint64, len(fractions))
		for i := range l.levels.counts {
			count += l.levels.counts[i].Load()
			if i < len(fractions) {
				upTo[fractions[i]] = count
			}
		}
		to <- prometheus.MustNewConstHistogram(of[0], count, sum, upTo, l.name)
	})
}

// stores counts the shared stores of each name, so that their series end with the
// last one. While a reload changes a store's URL there are two of one name.
var stores struct {
	mu     sync.Mutex
	byName map[string]int
}

func countStore(name string, more int) {
	stores.mu.Lock()
	defer stores.mu.Unlock()
	if stores.byName == nil {
		stores.byName = make(map[string]int)
	}
	switch stores.byName[name] += more; stores.byName[name] {
	case 0:
		storeErrors.DeleteLabelValues(name)
		storeSeconds.DeleteLabelValues(name)
		storeOutages.DeleteLabelValues(name)
	case 1:
		storeErrors.WithLabelValues(name)
		storeSeconds.WithLabelValues(name)
		storeOutages.WithLabelValues(name)
	}
}
