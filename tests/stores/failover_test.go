package stores

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

func TestASentinelFailoverIsNoOutageOfTheSite(t *testing.T) {
	t.Parallel()
	w := servertest.StartRedisSentinel(t)
	forced := true
	// A Sentinel with such short times fails over more often than asked.
	happened := func() int { return strings.Count(w.Sentinel.Log(), "+switch-master") }
	testFailovers(t, w.URL(), w.Settled, happened, func() {
		w.Failover(forced)
		forced = !forced
	})
}

func TestAForcedClusterFailoverIsNoOutageOfTheSite(t *testing.T) {
	t.Parallel()
	c := servertest.StartRedisCluster(t)
	happened := 0
	testFailovers(t, c.URL(), c.Settled, func() int { return happened }, func() {
		c.Failover()
		happened++
	})
}

// testFailovers makes another server the master, once or 20 times, under load.
// Each failover may forget the bucket once.
func testFailovers(t *testing.T, url string, settled func(), happened func() int, failover func()) {
	t.Helper()
	failovers := 1
	if system.Long() {
		failovers = 20
	}
	const capacity, leak = 5, 10 // of outageSite
	port := servertest.FreePort(t)
	c := system.StartCaddy(t, system.Config{Throttle: "store redis " + url, Sites: outageSite(port)})
	system.Eventually(t, "a store that answers", func() bool {
		return system.NewVisitor(t, "h1").Get(t, fmt.Sprintf("http://127.0.0.1:%d/deny", port)).Status == 200
	})
	l := startLoad(t, port)
	for n := range failovers {
		settled()
		l.since(t, time.Since(l.began), "deny", 429)
		from := time.Since(l.began)
		failover()
		promoted := time.Since(l.began)
		back := max(l.since(t, promoted, "deny", 200), l.since(t, promoted, "allow", 429))
		t.Logf("failover %d took %v; limits held again %v after it, with %d outages so far", n+1, promoted-from, back, outagesOf(c, t))
		if most := 3 * time.Second; system.Long() && back > most {
			t.Errorf("failover %d: got limits that hold again after %v, want at most %v", n+1, back, most)
		}
	}
	shots := l.stop()
	wantPolicies(t, shots)
	t.Logf("%d failovers", happened())
	for _, route := range []string{"local", "deny"} {
		var pours []pour
		for _, s := range during(shots, 0, time.Hour, route) {
			if s.answer.Status == 200 {
				pours = append(pours, pour{s.at, s.at + s.took})
			}
		}
		t.Logf("%s:", route)
		if route == "local" { // in whose buckets this Caddy decides alone
			wantBound(t, pours, float64(capacity*(2+happened())), 2*leak)
		} else {
			wantBound(t, pours, float64(capacity*(1+happened())), leak)
		}
	}
}
