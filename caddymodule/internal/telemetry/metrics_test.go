package telemetry_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/stores"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestRequestsAreCountedByZoneDecisionAndReason(t *testing.T) {
	s := servertest.Run(t, servertest.Both)
	c := s.From(servertest.Someone)
	c.Get("/both")
	c.Get("/both")
	c.Get("/large")
	servertest.WantCounts(t, "small", map[string]float64{"admitted": 1, "refused capacity": 1})
	servertest.WantCounts(t, "large", map[string]float64{"admitted": 2}) // what fits while another refuses counts nothing
}

func TestBucketsAreCountedByZone(t *testing.T) {
	s := servertest.Start(t, servertest.Run(t, servertest.Both))
	s.From("203.0.113.1:1").Get("/both")
	s.From("203.0.113.2:1").Get("/large")
	got := make(map[string]float64)
	for _, sample := range s.Metric(t, "caddy_throttle_buckets") {
		got[sample.Labels["zone"]] = sample.Value
	}
	want := map[string]float64{"small": 1, "large": 2}
	check.That(t, maps.Equal(got, want), "got %v, want %v", got, want)
}

func TestCountsOfAZoneGoWithTheLastConfigThatHasIt(t *testing.T) {
	const zone = `http:// {
		throttle kept 5 1/s
		throttle GONE 5 1/s
		respond ok
	}`
	first := servertest.Run(t, strings.Replace(zone, "GONE", "gone", 1))
	first.From(servertest.Someone).Get("/")
	second := servertest.Start(t, servertest.Run(t, strings.Replace(zone, "throttle GONE 5 1/s", "", 1)))
	first.Stop()
	counts := second.Counts(t)
	check.Equal(t, counts["kept"]["admitted"], 1, "zone that is kept: admitted")
	got, kept := counts["gone"]
	check.That(t, !kept, "zone that is gone: got %v, want nothing", got)
	for _, sample := range second.Metric(t, "caddy_throttle_buckets") {
		check.That(t, sample.Labels["zone"] != "gone", "zone that is gone: got %v buckets, want no series", sample.Value)
	}
	third := servertest.Run(t, strings.Replace(zone, "GONE", "gone", 1))
	second.Stop()
	third.From(servertest.Someone).Get("/")
	check.Equal(t, third.Counts(t)["gone"]["admitted"], 1, "zone that is back: admitted")
}

func TestEvictionsAreCounted(t *testing.T) {
	s := servertest.Start(t, servertest.Run(t, `{
		throttle {
			store memory {
				max_buckets 1
			}
		}
	}
	http:// {
		throttle site 5 1/h
		respond ok
	}`))
	for _, addr := range []string{"203.0.113.1:1", "203.0.113.2:1", "203.0.113.3:1"} {
		s.From(addr).Get("/")
	}
	samples := s.Metric(t, "caddy_throttle_evictions_total")
	check.That(t, len(samples) == 1 && samples[0].Value == 2, "got %v, want 2", samples)
}

func TestARequestIsCountedOnceAsDecidedWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servertest.RunShared(t, "", "zone z {\nlimit 5 1/h\ncost body_items\n}\nzone beside {\nlimit 100 1/h\n}")
		servertest.TheShared.Down.Store(true)
		post := func(body string) int {
			r := httptest.NewRequest(http.MethodPost, "http://example.com/", strings.NewReader(body))
			r.RemoteAddr = servertest.Someone
			return s.Do(r).Code
		}
		for _, test := range []struct {
			body   string
			status int
			total  float64
		}{
			{"[1,2]", 200, 1},
			{"[1,2,3]", 200, 2},
			{"[1]", 429, 3}, // without its body
			{"", 429, 4},
		} {
			check.Equal(t, post(test.body), test.status, "%s", test.body)
			for _, zone := range []string{"z", "beside"} {
				check.Equal(t, servertest.Counted(t, telemetry.WithoutStore, zone)["without_store_total"], test.total, "%q: counted for zone %s", test.body, zone)
			}
		}
	})
}

// gauges returns all our gauges.
func gauges(t *testing.T, s *servertest.Site) map[string]float64 {
	t.Helper()
	values := make(map[string]float64)
	for _, name := range []string{"waiting", "buckets", "breaker_open"} {
		for _, sample := range s.Metric(t, "caddy_throttle_"+name) {
			values[fmt.Sprint(name, sample.Labels)] = sample.Value
		}
	}
	return values
}

// TestAReloadThatFailsMovesNoGauge: once it has failed, all are those of the config that runs, perhaps of
// another store of the same name.
func TestAReloadThatFailsMovesNoGauge(t *testing.T) {
	const config = "{\nthrottle {\nstore otherwise %d\n}\n}\nhttp:// {\nthrottle {\nzone site {\n%s\n}\n}\nrespond ok\n}"
	const breaker = "breaker_openmap[store:otherwise]"
	for down := range theRemotes {
		synctest.Test(t, func(t *testing.T) {
			for i := range theRemotes {
				theRemotes[i] = &servertest.SharedStore{Store: memstore.New(memstore.Options{})}
			}
			s := servertest.Start(t, servertest.Run(t, fmt.Sprintf(config, 0, "limit 5 1/h")))
			s.Engine().Shared.Await(t.Context())
			theRemotes[down].Down.Store(true)
			s.From(servertest.Someone).Statuses(5, "/")
			want := gauges(t, s)
			open := want[breaker] == 1
			check.Assume(t, open == (down == 0), "store %d is down: got %v", down, want)
			for _, store := range []int{0, 1} {
				next := servertest.Run(t, fmt.Sprintf(config, store, "limit 9 1/s\ndelay"))
				check.OK(t, next.Module().Start())
				time.Sleep(time.Second)
				_ = next.Module().Stop()
				next.Stop()
				got := gauges(t, s)
				check.That(t, maps.Equal(got, want), "store %d is down, after %d was tried: got %v, want %v", down, store, got, want)
			}
			time.Sleep(time.Second) // for what no request waits for
		})
	}
}

// theRemotes are the stores of the module `otherwise`, by its option.
var theRemotes [2]*servertest.SharedStore

// otherStore is a module with several stores of one name.
type otherStore struct {
	Which string `json:"which,omitempty"`

	store *stores.SharedStore
}

func init() { caddy.RegisterModule(new(otherStore)) }

func (*otherStore) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "throttle.stores.otherwise", New: func() caddy.Module { return new(otherStore) }}
}

func (s *otherStore) Provision(caddy.Context) (err error) {
	s.store, err = stores.ConnectStore("otherwise", []string{s.Which}, func(func(error)) (leakybucket.Store, error) {
		return theRemotes[s.Which[0]-'0'], nil
	})
	return err
}

func (s *otherStore) Cleanup() error { return s.store.Leave() }

func (s *otherStore) SharedStore() *stores.SharedStore { return s.store }

func (s *otherStore) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	d.Args(&s.Which)
	return nil
}

// The names are as Prometheus wants them: promtool check metrics asks the same.
func TestTheNamesOfMetricsFollowPrometheus(t *testing.T) {
	s := servertest.Run(t, `http:// {
		throttle {
			zone pages {
				limit 5 5/s
				delay
				block 1s
				settle header X-Cost
			}
			zone tried {
				limit 2 1/s
				shadow server_timing
			}
		}
		respond ok
	}`)
	servertest.Start(t, s)
	s.From(servertest.Someone).Answers("/", http.StatusOK)
	registry := prometheus.NewRegistry()
	registry.MustRegister(engine.Collectors...)
	families := check.Must(registry.Gather())(t)
	problems := check.Must(promlint.NewWithMetricFamilies(families).Lint())(t)
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
}

func TestAShadowByHandIsMeasured(t *testing.T) {
	s := servertest.Run(t, servertest.ThreeZones)
	want := func(n float64) {
		t.Helper()
		for _, sample := range s.Metric(t, "caddy_throttle_shadow_by_hand") {
			if sample.Labels["zone"] == "pages" {
				check.Equal(t, sample.Value, n)
				return
			}
		}
		t.Error("got no sample of the zone")
	}
	s.Admin(http.MethodGet, "/throttle/zones", "", nil) // the app has started
	want(0)
	s.Admin(http.MethodPost, "/throttle/shadow", `{}`, nil)
	want(1)
	s.Admin(http.MethodPost, "/throttle/unshadow", `{}`, nil)
	want(0)
}
