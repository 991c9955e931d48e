package servertest

import (
	"strings"
	"testing"
)

type Sample struct {
	Labels map[string]string
	Value  float64
}

// Metric returns the samples of a metric of ours.
func (s *Site) Metric(t testing.TB, name string) (samples []Sample) {
	t.Helper()
	families, err := s.Ctx.GetMetricsRegistry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := make(map[string]string)
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			samples = append(samples, Sample{labels, metric.GetCounter().GetValue() + metric.GetGauge().GetValue()})
		}
	}
	return samples
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
