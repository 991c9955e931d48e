package telemetry

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/decision"
)

// DecisionCounts are the requests of a zone by decision.
type DecisionCounts [decision.Decisions]float64

// Named returns the counts by the words for decisions.
func (c DecisionCounts) Named() map[string]float64 {
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

// CountsByZone reads the counters of all zones.
func CountsByZone() map[string]DecisionCounts {
	all := make(map[string]DecisionCounts)
	eachSeries(Requests, func(m *dto.Metric, label func(string) string) {
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
	eachSeries(StoreSeconds, func(m *dto.Metric, label func(string) string) {
		h := m.GetHistogram()
		all[label("store")] = callCounts{calls: float64(h.GetSampleCount()), seconds: h.GetSampleSum()}
	})
	eachSeries(StoreErrors, func(m *dto.Metric, label func(string) string) {
		counts := all[label("store")]
		counts.errors = m.GetCounter().GetValue()
		all[label("store")] = counts
	})
	return all
}

const (
	SampleEvery = 10 * time.Second
	samplesKept = 361 // an hour, and the one before it
)

// Rates samples the counters, so that requests need not be counted twice.
type Rates struct {
	mu      sync.Mutex
	samples []rateSample // oldest first
}

type rateSample struct {
	at     time.Time
	counts map[string]DecisionCounts
	calls  map[string]callCounts
}

// Run samples until stop is closed.
func (r *Rates) Run(stop <-chan struct{}) {
	ticker := time.NewTicker(SampleEvery)
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

func (r *Rates) take(now time.Time) {
	next := rateSample{now, CountsByZone(), callsByStore()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.samples) >= samplesKept {
		r.samples = append(r.samples[:0], r.samples[1:]...)
	}
	r.samples = append(r.samples, next)
}

// PerSecond returns the rates of a zone since the last sample but one, and those of the
// same span an hour ago, if that was sampled.
func (r *Rates) PerSecond(zone string, counts DecisionCounts, now time.Time) (current DecisionCounts, hourAgo *DecisionCounts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.samples)
	if n == 0 {
		return current, nil
	}
	current = between(&r.samples[max(0, n-2)], &rateSample{at: now, counts: map[string]DecisionCounts{zone: counts}}, zone)
	if n == samplesKept {
		before := between(&r.samples[0], &r.samples[2], zone)
		hourAgo = &before
	}
	return current, hourAgo
}

func between(from, to *rateSample, zone string) (rate DecisionCounts) {
	seconds := to.at.Sub(from.at).Seconds()
	if seconds <= 0 {
		return rate
	}
	for d := range rate {
		rate[d] = max(0, to.counts[zone][d]-from.counts[zone][d]) / seconds
	}
	return rate
}

// A rateAt is how many decisions of each kind a second a zone made up to a time.
type rateAt struct {
	At        time.Time
	PerSecond DecisionCounts
}

// Plot returns the rates of a zone over a span up to now, oldest first, or nil if the zone
// had no requests in it.
func (r *Rates) Plot(zone string, span time.Duration, now time.Time) (plot []rateAt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	busy := false
	for i := range r.samples {
		if i == 0 || now.Sub(r.samples[i].at) > span {
			continue
		}
		rate := between(&r.samples[i-1], &r.samples[i], zone)
		busy = busy || rate != DecisionCounts{}
		plot = append(plot, rateAt{r.samples[i].at, rate})
	}
	if !busy {
		return nil
	}
	return plot
}

// lastButOne returns the sample before the last one, or the only one.
func (r *Rates) lastButOne() (s rateSample, taken bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.samples)
	if n == 0 {
		return s, false
	}
	return r.samples[max(0, n-2)], true
}

// CallsPerSecond returns how many calls of a shared store were made a second and how
// many of those failed, since the last sample but one, and how long one took on average.
func (r *Rates) CallsPerSecond(store string, now time.Time) (calls, failed, took float64) {
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
