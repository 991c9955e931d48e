package telemetry

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
)

// DecisionCounts are the requests of a zone by decision.
type DecisionCounts [limit.Decisions]float64

// Named returns the counts by the words for decisions.
func (c DecisionCounts) Named() map[string]float64 {
	named := make(map[string]float64)
	for d := limit.Admitted; d < limit.Decisions; d++ {
		named[d.String()] = c[d]
	}
	return named
}

// eachSeries calls yield with all series of a collector. Asking it for one by name would
// create that.
func eachSeries(of prometheus.Collector, yield func(m *dto.Metric, labels map[string]string)) {
	series := make(chan prometheus.Metric, 16)
	go func() {
		defer close(series)
		of.Collect(series)
	}()
	for metric := range series {
		m, labels := new(dto.Metric), make(map[string]string)
		_ = metric.Write(m) // which fails for invalid metrics only
		for _, label := range m.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		yield(m, labels)
	}
}

// CountsByZone reads the counters of all zones, and how many requests each has refused by
// the words for reasons.
func CountsByZone() (all map[string]DecisionCounts, refused map[string]map[string]float64) {
	all, refused = make(map[string]DecisionCounts), make(map[string]map[string]float64)
	eachSeries(Requests, func(m *dto.Metric, labels map[string]string) {
		n, decided, zone := m.GetCounter().GetValue(), labels["decision"], labels["zone"]
		counts := all[zone]
		for d := range counts {
			if limit.Decision(d).String() == decided {
				counts[d] += n
			}
		}
		all[zone] = counts
		if n > 0 && decided == limit.Refused.String() {
			if refused[zone] == nil {
				refused[zone] = make(map[string]float64)
			}
			refused[zone][labels["reason"]] += n
		}
	})
	return all, refused
}

// callCounts are the calls of a shared store.
type callCounts struct{ calls, seconds, errors float64 }

// callsByStore reads the counters of all shared stores.
func callsByStore() map[string]callCounts {
	all := make(map[string]callCounts)
	eachSeries(StoreSeconds, func(m *dto.Metric, labels map[string]string) {
		h := m.GetHistogram()
		all[labels["store"]] = callCounts{calls: float64(h.GetSampleCount()), seconds: h.GetSampleSum()}
	})
	eachSeries(StoreErrors, func(m *dto.Metric, labels map[string]string) {
		counts := all[labels["store"]]
		counts.errors = m.GetCounter().GetValue()
		all[labels["store"]] = counts
	})
	return all
}

const (
	// SampleEvery is the time between two samples of the counters.
	SampleEvery = 10 * time.Second
	samplesKept = 61 // ten minutes
)

// Rates are samples of the counters, so that requests need not be counted twice.
type Rates struct {
	mu      sync.Mutex
	samples []rateSample // oldest first
}

type rateSample struct {
	at     time.Time
	counts map[string]DecisionCounts
	calls  map[string]callCounts
}

// Sample samples the counters. Call it every [SampleEvery].
func (r *Rates) Sample(now time.Time) {
	counts, _ := CountsByZone()
	next := rateSample{now, counts, callsByStore()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.samples) >= samplesKept {
		r.samples = slices.Delete(r.samples, 0, 1)
	}
	r.samples = append(r.samples, next)
}

// last returns the last sample but one, the zero one if there is none.
func (r *Rates) last() (s rateSample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.samples); n > 0 {
		s = r.samples[max(0, n-2)]
	}
	return s
}

// PerSecond returns the rates of a zone since the last sample but one.
func (r *Rates) PerSecond(zone string, counts DecisionCounts, now time.Time) (rate DecisionCounts) {
	if from := r.last(); !from.at.IsZero() {
		rate = between(from.counts[zone], counts, now.Sub(from.at))
	}
	return rate
}

func between(from, to DecisionCounts, span time.Duration) (rate DecisionCounts) {
	if span <= 0 {
		return rate
	}
	for d := range rate {
		rate[d] = max(0, to[d]-from[d]) / span.Seconds()
	}
	return rate
}

// A Rate is what a zone did on average between two samples, in requests a second.
type Rate struct {
	At       time.Time `json:"at"` // of the later one
	Admitted float64   `json:"admitted"`
	Refused  float64   `json:"refused"`
	Shadow   float64   `json:"shadow"` // refused by shadow
}

// Plot returns the rates of a zone over the last ten minutes, oldest first. It is nil if the zone had
// no requests in them.
func (r *Rates) Plot(zone string) (points []Rate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	busy := false
	for i := 1; i < len(r.samples); i++ {
		from, to := &r.samples[i-1], &r.samples[i]
		rate := between(from.counts[zone], to.counts[zone], to.at.Sub(from.at))
		busy = busy || rate != DecisionCounts{}
		points = append(points, Rate{
			At: to.at, Refused: rate[limit.Refused], Shadow: rate[limit.ShadowRefused],
			Admitted: rate[limit.Admitted] + rate[limit.Delayed] + rate[limit.ShadowDelayed],
		})
	}
	if !busy {
		return nil
	}
	return points
}

// CallsPerSecond returns how many calls of a shared store were made a second and how
// many of those failed, since the last sample but one, and how long one took on average.
func (r *Rates) CallsPerSecond(store string, now time.Time) (calls, failed, took float64) {
	from, to := r.last(), callsByStore()[store]
	if from.at.IsZero() || !now.After(from.at) {
		return 0, 0, 0
	}
	before, seconds := from.calls[store], now.Sub(from.at).Seconds()
	made := max(0, to.calls-before.calls)
	if made > 0 {
		took = max(0, to.seconds-before.seconds) / made
	}
	return made / seconds, max(0, to.errors-before.errors) / seconds, took
}
