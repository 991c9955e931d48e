package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
)

// Collectors are process-wide, so that counts survive reloads. Every config has a new
// registry and registers them again. Labels are names from the config, never values that
// clients send.
var Collectors []prometheus.Collector

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

// DeleteSeries deletes the series of a zone or an in_flight.
func DeleteSeries(name string) {
	for _, c := range Collectors {
		c.(interface{ DeletePartialMatch(prometheus.Labels) int }).DeletePartialMatch(prometheus.Labels{"zone": name})
	}
}

// What is counted and timed of all zones and in_flights. The help texts say what each is.
var (
	Requests = NewCounters("requests_total",
		"Requests by zone or in_flight, decision and reason, and with share by the client's rank.", "zone", "decision", "reason", "rank")

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

	// Levels of debts alone are above 1. A level that stands for many requests is observed as often.
	Levels = NewHistograms("level_ratio",
		"How full buckets were after each decision, as a fraction of their capacity.", []float64{.1, .2, .3, .4, .5, .6, .7, .8, .9, 1}, "zone")

	StoreSeconds = NewHistograms("store_seconds",
		"How long calls of the shared store took, failed ones too, in seconds.", []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1}, "store")

	StoreErrors = NewCounters("store_errors_total",
		"Calls of the shared store that failed or took too long.", "store")

	StoreOutages = NewCounters("store_outages_total",
		"Outages of the shared store.", "store")

	EventsDropped = NewCounters("events_dropped_total",
		"Events about keys that were dropped, because subscribers are too slow.").WithLabelValues()
)

// counters are the counters of one zone, nil for what countersOf does not make.
type counters [limit.Decisions][limit.Reasons]prometheus.Counter

// countersOf makes the series of what the zone usually decides, so that their rates have a first value.
// The others, made by their first count, would be most of the metrics of a host with many sites.
func countersOf(z *limit.Zone) (c counters) {
	makes := func(possible bool, why limit.Reason, decisions ...limit.Decision) {
		for i := 0; possible && i < len(decisions); i++ {
			c[decisions[i]][why] = Requests.WithLabelValues(z.Name, decisions[i].String(), why.String(), "")
		}
	}
	makes(true, limit.None, limit.Admitted)
	makes(z.Delay != nil, limit.None, limit.Delayed, limit.ShadowDelayed)
	makes(z.Delay != nil, limit.QueueFull, limit.Refused, limit.ShadowRefused)
	makes(true, limit.Capacity, limit.Refused, limit.ShadowRefused)
	makes(z.Block != nil, limit.Blocked, limit.Refused, limit.ShadowRefused)
	makes(z.Key.Missing == limit.Refuse, limit.MissingKey, limit.Refused, limit.ShadowRefused)
	makes(z.Key.Unlisted == limit.Refuse, limit.UnlistedKey, limit.Refused, limit.ShadowRefused)
	return c
}

// CountStore makes the series of the shared stores of a name, so that they exist before the
// first call. They stay, since there are few names.
func CountStore(name string) {
	StoreErrors.WithLabelValues(name)
	StoreOutages.WithLabelValues(name)
	StoreSeconds.WithLabelValues(name)
}
