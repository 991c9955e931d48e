package telemetry

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
)

// Collectors are process-wide, so that counts survive reloads. Every config has a new
// registry and registers them again. Labels are names from the config, never values that
// clients send.
var Collectors = []prometheus.Collector{Requests}

// NewCounters returns counters of ours.
func NewCounters(name, help string, labels ...string) *prometheus.CounterVec {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "caddy", Subsystem: "throttle", Name: name, Help: help}, labels)
	Collectors = append(Collectors, vec)
	return vec
}

// NewHistograms returns histograms of ours.
func NewHistograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "caddy", Subsystem: "throttle", Name: name, Help: help, Buckets: buckets}, labels)
	Collectors = append(Collectors, vec)
	return vec
}

// gone are the zones that no config has any more, and whose series are still there.
var gone struct {
	sync.Mutex
	zones map[string]bool
}

// Forget has the next [DeleteForgotten] delete the series of a zone, unless Remember comes first.
func Forget(zone string) { setGone(zone, true) }

// Remember keeps the series of a zone that a config has.
func Remember(zone string) { setGone(zone, false) }

func setGone(zone string, is bool) {
	gone.Lock()
	defer gone.Unlock()
	if gone.zones == nil {
		gone.zones = make(map[string]bool)
	}
	gone.zones[zone] = is
}

// DeleteForgotten deletes the series of all zones that are gone at once: to find those of one zone
// takes as long.
func DeleteForgotten() {
	gone.Lock()
	defer gone.Unlock()
	for _, c := range Collectors {
		var old []prometheus.Labels
		eachSeries(c, func(_ *dto.Metric, labels map[string]string) {
			if gone.zones[labels["zone"]] {
				old = append(old, labels)
			}
		})
		for _, labels := range old {
			c.(interface{ Delete(prometheus.Labels) bool }).Delete(labels)
		}
	}
	gone.zones = nil
}

// open are the counts of configs that have not ended. What they admit goes to Requests when that is
// read: its counter lies apart from what else each request touches.
var open struct {
	sync.Mutex
	counts map[*Counts]struct{}
}

// begin has Requests count what the zone admits.
func (t *Counts) begin() {
	open.Lock()
	defer open.Unlock()
	if open.counts == nil {
		open.counts = make(map[*Counts]struct{})
	}
	open.counts[t] = struct{}{}
}

// Close gives Requests what the zone has admitted so far. Requests that come later call it again.
func (t *Counts) Close() {
	open.Lock()
	defer open.Unlock()
	t.closed.Store(true)
	t.handOver()
	delete(open.counts, t)
}

// handOver must be called with the lock of open.
func (t *Counts) handOver() {
	if n := t.admitted.Load(); n > t.handed {
		t.decided[limit.Admitted][limit.None].Add(float64(n - t.handed))
		t.handed = n
	}
}

// A requestCounters is the counters of requests.
type requestCounters struct{ *prometheus.CounterVec }

// Collect implements prometheus.Collector.
func (c requestCounters) Collect(metrics chan<- prometheus.Metric) {
	open.Lock()
	for t := range open.counts {
		t.handOver()
	}
	open.Unlock()
	c.CounterVec.Collect(metrics)
}

// Requests are the requests of all zones and in_flights. It must be read by Collect, which first adds
// what zones have admitted.
var Requests = requestCounters{prometheus.NewCounterVec(prometheus.CounterOpts{
	Namespace: "caddy", Subsystem: "throttle", Name: "requests_total",
	Help: "Requests by zone or in_flight, decision and reason, and with share by the client's rank.",
}, []string{"zone", "decision", "reason", "rank"})}

// What is counted and timed of all zones. The help texts say what each is.
var (
	Unsettled = NewCounters("unsettled_total",
		"Charges left as reserved, because the response did not say what the request cost, or the store did not answer.", "zone")

	BlocksBegun = NewCounters("blocks_total",
		"Blocks that began with an overflow, by zone and decision.", "zone", "decision")

	WithoutStore = NewCounters("without_store_total",
		"Charges decided by the fallback, because the shared store did not answer.", "zone")

	RefusedPeople = NewCounters("refused_people_total",
		"People whom a zone in shadow would have refused, by reports of their browsers. Each address counts once an hour.", "zone")

	Delays = NewHistograms("delay_seconds",
		"Delays of delayed requests, in seconds.", []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}, "zone")

	StoreSeconds = NewHistograms("store_seconds",
		"How long calls of the shared store took, failed ones too, in seconds.", []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1}, "store")

	StoreErrors = NewCounters("store_errors_total",
		"Calls of the shared store that failed or took too long.", "store")

	StoreOutages = NewCounters("store_outages_total",
		"Outages of the shared store.", "store")

	EventsDropped = NewCounters("events_dropped_total",
		"Events about keys that were dropped, because subscribers are too slow.").WithLabelValues()
)

// counters are the counters of one zone, looked up before requests come. All others are nil.
type counters [limit.Decisions][limit.Reasons]prometheus.Counter

func countersOf(t *Counts) (c counters) {
	for d := range limit.Decisions {
		for r := range limit.Reasons {
			if t.reasons[d].Has(r) {
				c[d][r] = t.requests(d, r)
			}
		}
	}
	return c
}

// requests looks a counter up.
func (t *Counts) requests(d limit.Decision, why limit.Reason) prometheus.Counter {
	return Requests.WithLabelValues(t.zone.Name, d.String(), why.String(), "")
}

// possible returns the reasons of each decision that the zone can make. It has series for
// these from the beginning.
func (t *Counts) possible() (reasons [limit.Decisions]limit.ReasonSet) {
	none, why := limit.ReasonSet(0).With(limit.None), t.zone.Refusals(false)
	if t.Denies {
		why = why.With(limit.NoStore)
	}
	reasons[limit.Admitted] = none
	if t.zone.Shadow == nil {
		reasons[limit.Refused] = why | t.zone.Refusals(true)
	}
	if t.zone.Shadow != nil || t.zone.Enforce < 100 {
		reasons[limit.ShadowRefused] = why
	}
	if t.zone.Delay != nil {
		if reasons[limit.Refused] != 0 {
			reasons[limit.Delayed] = none
		}
		if reasons[limit.ShadowRefused] != 0 {
			reasons[limit.ShadowDelayed] = none
		}
	}
	return reasons
}

// Fractions are the upper bounds of the buckets of caddy_throttle_level_ratio. Only
// debts are above 1.
var Fractions = [...]float64{.1, .2, .3, .4, .5, .6, .7, .8, .9, 1}

// A levelHistogram counts how full buckets were. The zero value is ready for use.
type levelHistogram struct {
	Sum    atomic.Uint64 // in millionths
	Counts [len(Fractions) + 1]atomic.Uint64
}

// observe counts a bucket, which stands for so many.
func (h *levelHistogram) observe(fraction float64, times int) {
	i := 0
	for i < len(Fractions) && fraction > Fractions[i] {
		i++
	}
	h.Counts[i].Add(uint64(times))
	h.Sum.Add(uint64(float64(times) * fraction * 1e6))
}

// NearFull returns how many were over nine tenths full.
func (h *levelHistogram) NearFull() uint64 {
	return h.Counts[len(Fractions)-1].Load() + h.Counts[len(Fractions)].Load()
}

// CountStore makes the series of the shared stores of a name, so that they exist before the
// first call. They stay, since there are few names.
func CountStore(name string) {
	StoreErrors.WithLabelValues(name)
	StoreOutages.WithLabelValues(name)
	StoreSeconds.WithLabelValues(name)
}
