package telemetry_test

import (
	"crypto/tls"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/engine"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/limit"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/telemetry"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// series returns the labels of all series of a zone, whether they have counted
// or not.
func series(t testing.TB, collector prometheus.Collector, zone string) (all []string) {
	t.Helper()
	for _, sample := range servertest.Samples(t, collector) {
		if sample.Labels["zone"] == zone {
			all = append(all, strings.TrimSpace(sample.Labels["decision"]+" "+sample.Labels["reason"]))
		}
	}
	slices.Sort(all)
	return all
}

// What a zone usually decides, also what a switch at run time leads to, has a series before it counts, so that rates
// have a first value. The rest has none, for on a host with 2,000 sites it was 60 % of the metrics.
func TestSeriesOfWhatAZoneUsuallyDecidesExistFromTheBeginning(t *testing.T) {
	refuses := func(reasons ...string) (all []string) {
		for _, why := range append(reasons, "capacity") {
			all = append(all, "refused "+why, "shadow_refused "+why)
		}
		return append(all, "admitted")
	}
	for options, want := range map[string][]string{
		"": refuses(), "shadow": refuses(),
		"delay": append(refuses("waiting"), "delayed", "shadow_delayed"),
		"block": refuses("blocked"),
		"key header X-Api-Key missing refuse unlisted refuse\noverride a deny": refuses("missing_key", "unlisted_key"),
	} {
		servertest.InBubble(t, func(t *testing.T) {
			servertest.NewWaitZone(t, "limit 6 1/s\n"+options, 0)
			slices.Sort(want)
			check.Slices(t, series(t, telemetry.Requests, "waits"), want, "%q", options)
		})
	}
}

func TestSeriesGoWithTheirName(t *testing.T) {
	telemetry.Unsettled.WithLabelValues("gone")
	telemetry.Unsettled.WithLabelValues("stays")
	telemetry.DeleteSeries("gone")
	check.Equal(t, len(series(t, telemetry.Unsettled, "gone")), 0, "series")
	check.Equal(t, len(series(t, telemetry.Unsettled, "stays")), 1, "series")
}

// A zone makes every decision for every reason, while the store is slow or fails, clients leave
// and upstreams panic. Whatever meets, a zone counts a request once at most, and nothing of it is
// left behind.
func TestEveryReasonOfEveryZoneCanBeCounted(t *testing.T) {
	const all = 60
	seen := make(map[string]float64)
	for seed := range uint64(150) {
		servertest.InBubble(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			s := servertest.NewWaitSite(t, "throttle {\n"+randomZone(random, "one")+randomZone(random, "two")+"}\nthrottle {\n"+randomZone(random, "three")+"}", time.Second)
			s.Store.Failing = func(take int) bool { return take%29 == int(seed%29) }
			serve := s.Serve
			s.Serve = func(w http.ResponseWriter, r *http.Request) error {
				w.Header().Set("X-Cost", r.Header.Get("X-Cost"))
				err := serve(w, r)
				if r.URL.Path == "/aborts" {
					panic(http.ErrAbortHandler)
				}
				return err
			}
			var visits []*servertest.Visit
			for i := range all {
				s.Store.Mu.Lock()
				s.Store.Slow = time.Duration(random.IntN(2)*random.IntN(40)) * time.Millisecond
				s.Store.Slowly = []time.Duration{time.Duration(random.IntN(2)*random.IntN(2000)) * time.Millisecond}
				s.Store.Mu.Unlock()
				visits = append(visits, s.Come(randomRequest(random)))
				if random.IntN(5) == 0 {
					visits[random.IntN(len(visits))].Leave()
				}
				if i == 55 {
					s.Exit()
				}
				servertest.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
			}
			servertest.Sleep(time.Hour)
			for i, v := range visits {
				if !v.Ended || v.Panicked != nil && v.Panicked != http.ErrAbortHandler {
					t.Errorf("seed %d, request %d: got it over: %v, with the panic %v", seed, i, v.Ended, v.Panicked)
				}
			}
			for _, zone := range []string{"one", "two", "three"} {
				sum := 0.0
				for what, n := range servertest.Counted(t, telemetry.Requests, zone) {
					seen[what] += n
					sum += n
				}
				check.That(t, sum <= all, "seed %d: got zone %s to count %v of %d requests", seed, zone, sum, all)
			}
			servertest.WantEmpty(t, "one", "two", "three")
		})
	}
	for r := limit.Capacity; r < limit.NoStore; r++ { // which memory never is
		for _, d := range []limit.Decision{limit.Refused, limit.ShadowRefused} {
			if what := fmt.Sprint(d, " ", r); seen[what] == 0 && (d == limit.Refused || r != limit.EarlyData && r != limit.QueueFull) {
				t.Errorf("got no request %s in %v", what, slices.Sorted(maps.Keys(seen)))
			}
		}
	}
	check.That(t, seen["delayed"] != 0 && seen["shadow_delayed"] != 0, "got %v, want some delayed", seen)
}

func randomZone(random *rand.Rand, name string) string {
	options := []string{"zone " + name + " {"}
	maybe := func(option string) bool {
		chosen := random.IntN(3) == 0
		if chosen {
			options = append(options, option)
		}
		return chosen
	}
	options = append(options, "limit 5 2/s")
	if !maybe("cost {header.X-Cost}") {
		maybe("cost body_items\nread_body 64KiB else 0.5")
	}
	if !maybe("delay 1") && !maybe("delay 1 wait 1s") && !maybe("delay 1 queue 2") {
		maybe("settle header X-Cost after")
	}
	maybe("block 1s 5s")
	never := map[string]string{"two": " ipv6 63"}[name] // the same as zone one
	keyed := random.IntN(3) == 0
	if keyed {
		key := "key header X-Api-Key plain" + never
		if random.IntN(3) == 0 {
			key += " missing refuse"
		}
		if maybe("override known unlimited\noverride denied deny") && random.IntN(3) == 0 {
			key += " unlisted refuse"
		}
		options = append(options, key)
	} else {
		options = append(options, "key client_ip"+never)
		maybe("override 203.0.113.1 deny")
	}
	if !maybe("shadow") {
		maybe("enforce 50")
	}
	return strings.Join(append(options, "}\n"), "\n")
}

func randomRequest(random *rand.Rand) *http.Request {
	r := httptest.NewRequest([]string{"GET", "GET", "POST", "POST", "CONNECT"}[random.IntN(5)], "http://example.com/"+[]string{"", "", "", "aborts"}[random.IntN(4)], strings.NewReader("[1,2,3]"))
	r.Header.Set("Content-Type", "application/json")
	r.RemoteAddr = fmt.Sprintf("203.0.113.%d:1", 1+random.IntN(3))
	if random.IntN(3) > 0 {
		r.Header.Set("X-Cost", fmt.Sprint(random.IntN(9)))
	}
	if random.IntN(3) > 0 {
		r.Header.Set("X-Api-Key", []string{"a", "b", "known", "denied"}[random.IntN(4)])
	}
	r.TLS = &tls.ConnectionState{HandshakeComplete: random.IntN(20) > 0}
	return r
}

func TestWaitingRequestsAreInTheMetrics(t *testing.T) {
	servertest.InBubble(t, func(t *testing.T) {
		s := servertest.NewWaitZone(t, servertest.LikeNginx, time.Second)
		s.Visits(4, servertest.Office, "/")
		s.Visits(1, servertest.Visitor, "/")
		check.Equal(t, servertest.Counted(t, engine.Running{}, "waits")["waiting"], 3, "waiting")
		servertest.Sleep(time.Minute)
		got := servertest.Counted(t, engine.Running{}, "waits")
		check.That(t, len(got) == 0, "got %v when all have gone, want none", got)
	})
}
