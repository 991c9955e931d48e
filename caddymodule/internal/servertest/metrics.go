package servertest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
)

type Sample struct {
	Name      string // of the metric
	Labels    map[string]string
	Value     float64        // of a counter or a gauge
	Histogram *dto.Histogram // nil for others
}

// Samples returns what a collector has.
func Samples(t testing.TB, of prometheus.Collector) []Sample {
	registry := prometheus.NewRegistry()
	registry.MustRegister(of)
	return gather(t, registry)
}

func gather(t testing.TB, from prometheus.Gatherer) (samples []Sample) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := make(map[string]string)
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			samples = append(samples, Sample{family.GetName(), labels, metric.GetCounter().GetValue() + metric.GetGauge().GetValue(), metric.GetHistogram()})
		}
	}
	return samples
}

// Metric returns the samples of a metric of ours, or those of all if it has no name.
func (s *Site) Metric(t testing.TB, name string) []Sample {
	t.Helper()
	return slices.DeleteFunc(gather(t, s.Ctx.GetMetricsRegistry()), func(of Sample) bool { return name != "" && of.Name != name })
}

// StoreMetric returns the value of a metric of the store test_shared. Stores of other tests
// have other names.
func (s *Site) StoreMetric(t testing.TB, name string) float64 {
	t.Helper()
	for _, sample := range s.Metric(t, name) {
		if sample.Labels["store"] == "test_shared" {
			return sample.Value
		}
	}
	t.Fatalf("%s: got no series of the store test_shared, want one", name)
	return 0
}

// Counts returns the values of caddy_throttle_requests_total by zone, then by
// decision and reason.
func (s *Site) Counts(t testing.TB) map[string]map[string]float64 {
	t.Helper()
	counts := make(map[string]map[string]float64)
	for _, sample := range s.Metric(t, "caddy_throttle_requests_total") {
		zone := sample.Labels["zone"]
		if counts[zone] == nil {
			counts[zone] = make(map[string]float64)
		}
		counts[zone][strings.TrimSpace(sample.Labels["decision"]+" "+sample.Labels["reason"])] = sample.Value
	}
	return counts
}

// Counted returns the values of one of our metrics for a zone by its other
// labels, without zeros.
func Counted(t testing.TB, collector prometheus.Collector, zone string) map[string]float64 {
	t.Helper()
	counts := make(map[string]float64)
	for _, sample := range Samples(t, collector) {
		if sample.Labels["zone"] != zone || sample.Value == 0 {
			continue
		}
		var labels []string
		for _, label := range slices.Sorted(maps.Keys(sample.Labels)) {
			if value := sample.Labels[label]; label != "zone" && value != "" {
				labels = append(labels, value)
			}
		}
		name := strings.TrimSpace(strings.Join(labels, " "))
		counts[cmp.Or(name, strings.TrimPrefix(sample.Name, "caddy_throttle_"))] = sample.Value
	}
	return counts
}

// WantCounts checks how often a zone made each decision, as "decision reason".
func WantCounts(t testing.TB, zone string, want map[string]float64) {
	t.Helper()
	if got := Counted(t, telemetry.Requests, zone); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("zone %s: got %v, want %v", zone, got, want)
	}
}
