package telemetry_test

import (
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// upTo returns how many samples are at most a bound.
func upTo(t testing.TB, h *dto.Histogram, bound float64) uint64 {
	t.Helper()
	for _, b := range h.GetBucket() {
		if b.GetUpperBound() == bound {
			return b.GetCumulativeCount()
		}
	}
	t.Errorf("got no bound %v in %v", bound, h)
	return 0
}

func TestLevelsAreFractionsOfTheCapacityAfterEachDecision(t *testing.T) {
	s := servertest.Start(t, servertest.Run(t, `http:// {
		throttle {
			zone quarters {
				limit 4 1/d
			}
			zone tenths {
				key header X-Api-Key plain
				limit 10 1/d
				shadow
				override free unlimited
			}
		}
		respond ok
	}`))
	s.From(servertest.Someone).Statuses(6, "/")
	s.From("203.0.113.9:1").With("X-Api-Key", "free").Get("/")
	got := make(map[string]*dto.Histogram)
	for _, sample := range s.Metric(t, "caddy_throttle_level_ratio") {
		got[sample.Labels["zone"]] = sample.Histogram
	}
	check.Slices(t, slices.Sorted(maps.Keys(got)), []string{"quarters", "tenths"}, "the zones")
	// Levels of 1 to 4 quarters, twice full, and a quarter of another client.
	for bound, want := range map[float64]uint64{.1: 0, .2: 0, .3: 2, .4: 2, .5: 3, .7: 3, .8: 4, .9: 4, 1: 7} {
		check.Equal(t, upTo(t, got["quarters"], bound), want, "up to %v", bound)
	}
	h := got["quarters"]
	check.That(t, h.GetSampleCount() == 7 && h.GetSampleSum() >= 4.7 && h.GetSampleSum() <= 4.751, "got %d levels with the sum %v, want 7 and 4.75", h.GetSampleCount(), h.GetSampleSum())
}

func TestDelaysAreCountedInSeconds(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitZone(t, "limit 5 1/s\ndelay", 0)
		s.Visits(3, servertest.Office, "/")
		servertest.Sleep(10 * time.Second)
		all := servertest.Samples(t, telemetry.Delays)
		got := all[slices.IndexFunc(all, func(of servertest.Sample) bool { return of.Labels["zone"] == "waits" })].Histogram
		check.That(t, got.GetSampleCount() == 2 && got.GetSampleSum() >= 2.9 && got.GetSampleSum() <= 3.1, "got %d delays of %v s, want 2 of 3 s", got.GetSampleCount(), got.GetSampleSum())
	})
}

func TestCallsOfTheSharedStoreAreTimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "", "zone z {\nlimit 100 1/h\n}")
		seconds := func() *dto.Histogram { return s.Metric(t, "caddy_throttle_store_seconds")[0].Histogram }
		before := seconds().GetSampleCount()
		s.From(servertest.Someone).Statuses(5, "/")
		check.Equal(t, seconds().GetSampleCount()-before, 5, "calls")
		servertest.TheShared.Down.Store(true)
		s.From(servertest.Someone).Get("/")
		check.Equal(t, seconds().GetSampleCount()-before, 6, "with one that failed: calls")
	})
}

// TestAFloodMakesNoSeries sends a million refusals with TEST_LONG, else 20,000. Each
// has another key and path.
// Nothing that clients send becomes a label.
func TestAFloodMakesNoSeries(t *testing.T) {
	n := 20_000
	if os.Getenv("TEST_LONG") == "1" {
		n = 1_000_000
	}
	s := servertest.Start(t, servertest.Run(t, `http:// {
		throttle {
			zone flooded {
				key client_ip host method route header X-Api-Key plain
				route even /*0 /*2 /*4 /*6 /*8
				limit 1 1/d
				cost {header.X-Cost}
				settle header X-Answer
			}
			zone beside {
				key "{path}"
				limit 1 1/d
				block 1h
				shadow
			}
		}
		respond ok
	}`))
	flood := func(from, to int) {
		for i := from; i < to; i++ {
			r := httptest.NewRequest(fmt.Sprint("METHOD-", i), fmt.Sprintf("http://host-%d.example.com/%d?%[1]d", i, i), nil)
			r.RemoteAddr = fmt.Sprintf("203.%d.%d.%d:1", i>>16&0xff, i>>8&0xff, i&0xff)
			r.Header.Set("X-Api-Key", fmt.Sprint("key-", i))
			r.Header.Set("X-Cost", "2")
			if got := s.Do(r).Code; got != 429 && got != 413 {
				t.Fatalf("got %d, want a refusal", got)
			}
		}
	}
	series := func() (all []string) {
		for _, sample := range s.Metric(t, "") {
			all = append(all, fmt.Sprint(sample.Name, sample.Labels, len(sample.Histogram.GetBucket())))
		}
		return all
	}
	flood(0, 10)
	want := series()
	flood(10, n)
	got := series()
	check.That(t, slices.Equal(got, want), "got %d series after %d refusals, want the %d of ten", len(got), n, len(want))
}
