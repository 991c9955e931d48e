package telemetry

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
)

// A Tally is how many requests there were, or are a second, by their decisions or reasons.
type Tally map[string]float64

// OfAll returns the tally with all decisions, also those of which there were none.
func (t Tally) OfAll() Tally {
	all := make(Tally)
	for d := limit.Admitted; d < limit.Decisions; d++ {
		all[d.String()] = t[d.String()]
	}
	return all
}

// CountsByZone reads the counters of all zones that have counted, and how many requests each has
// refused by the words for reasons. Asking for a counter by name would create it.
func CountsByZone() (all, refused map[string]Tally) {
	series := make(chan prometheus.Metric, 16)
	go func() {
		defer close(series)
		Requests.Collect(series)
	}()
	all, refused = make(map[string]Tally), make(map[string]Tally)
	for metric := range series {
		m := new(dto.Metric)
		_ = metric.Write(m) // which fails for invalid metrics only
		n := m.GetCounter().GetValue()
		if n == 0 {
			continue // as most are on a host with many sites
		}
		labels := make(map[string]string)
		for _, label := range m.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		decided, zone := labels["decision"], labels["zone"]
		if all[zone] == nil {
			all[zone], refused[zone] = make(Tally), make(Tally)
		}
		all[zone][decided] += n
		if decided == limit.Refused.String() {
			refused[zone][labels["reason"]] += n
		}
	}
	return all, refused
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
	counts map[string]Tally
}

// Sample samples the counters. Call it every [SampleEvery].
func (r *Rates) Sample(now time.Time) {
	counts, _ := CountsByZone()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.samples) >= samplesKept {
		r.samples = slices.Delete(r.samples, 0, 1)
	}
	r.samples = append(r.samples, rateSample{now, counts})
}

// PerSecond returns the rates of a zone since the last sample but one.
func (r *Rates) PerSecond(zone string, counts Tally, now time.Time) Tally {
	r.mu.Lock()
	defer r.mu.Unlock()
	from := rateSample{at: now}
	if n := len(r.samples); n > 0 {
		from = r.samples[max(0, n-2)]
	}
	return between(from.counts[zone], counts, now.Sub(from.at))
}

// between returns the rates between two counts, which are 0 if no time has passed.
func between(from, to Tally, span time.Duration) Tally {
	rate := make(Tally)
	for decision, n := range to {
		if rate[decision] = 0; span > 0 {
			rate[decision] = max(0, n-from[decision]) / span.Seconds()
		}
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
	for i := 1; i < len(r.samples); i++ {
		from, to := &r.samples[i-1], &r.samples[i]
		rate := between(from.counts[zone], to.counts[zone], to.at.Sub(from.at))
		points = append(points, Rate{
			At: to.at, Refused: rate["refused"], Shadow: rate["shadow_refused"],
			Admitted: rate["admitted"] + rate["delayed"] + rate["shadow_delayed"],
		})
	}
	if !slices.ContainsFunc(points, func(point Rate) bool { return point != Rate{At: point.At} }) {
		return nil
	}
	return points
}
