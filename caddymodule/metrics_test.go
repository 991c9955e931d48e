package caddymodule

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

type sample struct {
	labels map[string]string
	value  float64
}

// metric returns the samples of a metric of ours.
func (s *site) metric(t testing.TB, name string) (samples []sample) {
	t.Helper()
	families, err := s.ctx.GetMetricsRegistry().Gather()
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
			samples = append(samples, sample{labels, metric.GetCounter().GetValue() + metric.GetGauge().GetValue()})
		}
	}
	return samples
}

// counts returns what caddy_throttle_requests_total says, by zone and then by
// decision and reason.
func (s *site) counts(t testing.TB) map[string]map[string]float64 {
	t.Helper()
	counts := make(map[string]map[string]float64)
	for _, sample := range s.metric(t, "caddy_throttle_requests_total") {
		zone := sample.labels["zone"]
		if counts[zone] == nil {
			counts[zone] = make(map[string]float64)
		}
		counts[zone][strings.TrimSpace(sample.labels["decision"]+" "+sample.labels["reason"])] = sample.value
	}
	return counts
}

func TestRequestsAreCountedByZoneDecisionAndReason(t *testing.T) {
	s := run(t, both)
	c := s.from(someone)
	c.get("/both")
	c.get("/both")
	c.get("/large")
	counts := s.counts(t)
	for zone, want := range map[string]map[string]float64{
		"small": {"admitted": 1, "refused capacity": 1},
		"large": {"admitted": 2}, // what fits while another refuses counts nothing
	} {
		got := make(map[string]float64)
		for what, n := range counts[zone] {
			if n != 0 {
				got[what] = n
			}
		}
		if len(counts[zone]) != 4 {
			t.Errorf("zone %s: got %v, want admitted, and refused for capacity, oversize and early_data, which is all it can decide", zone, counts[zone])
		}
		if !maps.Equal(got, want) {
			t.Errorf("zone %s: got %v, want %v", zone, got, want)
		}
	}
}

func TestEveryReasonIsCountedUnderItsName(t *testing.T) {
	s := run(t, "http:// {"+strings.ReplaceAll(everyReason, "SHADOW", "")+"}")
	c := s.from(someone).with("X-Cost", "2")
	for _, path := range []string{"/capacity", "/capacity", "/banned", "/oversize", "/missing_key"} {
		c.get(path)
	}
	counts := s.counts(t)
	for zone, reason := range map[string]string{"full": "capacity", "banned": "banned", "oversize": "oversize", "keyless": "missing_key"} {
		if got := counts[zone]["refused "+reason]; got != 1 {
			t.Errorf("zone %s, %s: got %v, want 1", zone, reason, got)
		}
	}
}

func TestBucketsAreCountedByZone(t *testing.T) {
	s := run(t, both)
	s.from("203.0.113.1:1").get("/both")
	s.from("203.0.113.2:1").get("/large")
	got := make(map[string]float64)
	for _, sample := range s.metric(t, "caddy_throttle_buckets") {
		got[sample.labels["zone"]] = sample.value
	}
	if want := map[string]float64{"small": 1, "large": 2}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestNothingThatClientsSendBecomesALabel(t *testing.T) {
	s := run(t, "http:// {"+strings.ReplaceAll(everyReason, "SHADOW", "")+`
		throttle {
			zone keyed {
				key client_ip host method route header X-Api-Key {path}
				route search /search*
				plain_keys
				capacity 1
				leak 1/h
			}
		}
	}`)
	for _, path := range []string{"/sent", "/sent", "/capacity", "/banned", "/oversize", "/missing_key", "/search/sent"} {
		s.from("[2001:db8::5e7]:1").with("X-Api-Key", "sent").with("X-Cost", "5e7").send("SENT", "http://sent.example.com"+path+"?sent")
	}
	allowed := map[string][]string{
		"zone":     {"full", "banned", "oversize", "keyless", "keyed"},
		"decision": {"admitted", "refused", "shadow_refused"},
		"reason":   {"", "capacity", "banned", "oversize", "missing_key", "unlisted_key", "early_data"},
	}
	for _, name := range []string{"caddy_throttle_requests_total", "caddy_throttle_buckets", "caddy_throttle_evictions_total"} {
		samples := s.metric(t, name)
		if len(samples) == 0 {
			t.Errorf("%s: got no sample", name)
		}
		for _, sample := range samples {
			for label, value := range sample.labels {
				if !slices.Contains(allowed[label], value) {
					t.Errorf("%s: got the label %s=%q", name, label, value)
				}
			}
		}
	}
}

func TestCountsOfAZoneGoWithTheLastConfigThatHasIt(t *testing.T) {
	const zone = `http:// {
		throttle kept 5 1/s
		throttle GONE 5 1/s
		respond ok
	}`
	first := run(t, strings.Replace(zone, "GONE", "gone", 1))
	first.from(someone).get("/")
	second := run(t, strings.Replace(zone, "throttle GONE 5 1/s", "", 1))
	first.stop()
	counts := second.counts(t)
	if got := counts["kept"]["admitted"]; got != 1 {
		t.Errorf("zone that is kept: got %v admitted, want 1", got)
	}
	if got, kept := counts["gone"]; kept {
		t.Errorf("zone that is gone: got %v, want nothing", got)
	}
}

func TestEvictionsAreCounted(t *testing.T) {
	s := run(t, `{
		throttle {
			store memory {
				max_buckets 1
			}
		}
	}
	http:// {
		throttle site 5 1/h
		respond ok
	}`)
	for _, addr := range []string{"203.0.113.1:1", "203.0.113.2:1", "203.0.113.3:1"} {
		s.from(addr).get("/")
	}
	samples := s.metric(t, "caddy_throttle_evictions_total")
	if len(samples) != 1 || samples[0].value != 2 {
		t.Errorf("got %v, want 2", samples)
	}
}
