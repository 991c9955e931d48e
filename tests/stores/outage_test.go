package stores

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// TestAStoreThatDiesOrHangsIsNoOutageOfTheSite, by SIGKILL and by SIGSTOP, under
// 500 requests a second.
func TestAStoreThatDiesOrHangsIsNoOutageOfTheSite(t *testing.T) {
	t.Parallel()
	cycles, down := check.OrShort(2, 1), 1200*time.Millisecond
	if system.Long() {
		cycles, down = 20, 3*time.Second
	}
	eachStore(t, func(t *testing.T, s *storeServer) {
		port := servertest.FreePort(t)
		c := system.StartCaddy(t, system.Config{Throttle: s.directive(), Sites: outageSite(port)})
		waitForStore(c, t, s)
		goroutines := c.Goroutines(t)
		for how, begin := range map[string]func() (end func()){
			"killed": func() func() {
				s.kill()
				return s.run
			},
			"stopped": s.freeze,
		} {
			before := outagesOf(c, t)
			l := startLoad(t, port)
			var outages []outage
			for range cycles {
				so := outagesOf(c, t)
				outages = append(outages, l.outageUntil(t, down, begin, func() {
					system.Eventually(t, "an outage that is noticed", func() bool { return outagesOf(c, t) > so })
				}))
			}
			shots := l.stop()
			wantPolicies(t, shots)
			for n, o := range outages {
				name := fmt.Sprintf("%s, outage %d", how, n+1)
				o.wantWithout(t, name, shots)
				if most := time.Second; system.Long() && o.back > most {
					t.Errorf("%s: got limits that hold again after %v, want at most %v", name, o.back, most)
				}
			}
			// On a busy machine, a store may seem down that is not.
			if got := outagesOf(c, t) - before; system.Long() && got > cycles {
				t.Errorf("%s: got %d outages, want %d", how, got, cycles)
			}
		}
		system.Eventually(t, "the goroutines and connections of before", func() bool {
			return c.Goroutines(t) <= goroutines+5 && s.connections() <= mostConnections
		})
		wantOutagesSaidOnce(c, t)
	})
}

// waitForStore waits until Caddy has reached its store and limits hold.
func waitForStore(c *system.Caddy, t *testing.T, s *storeServer) {
	t.Helper()
	system.Eventually(t, "a store that answers", func() bool {
		return s.connections() > 0 && c.Metric(t, "caddy_throttle_breaker_open", `store="`+s.name+`"`) == 0
	})
}

// outagesOf returns how many outages of its store Caddy has counted.
func outagesOf(c *system.Caddy, t *testing.T) int {
	t.Helper()
	return int(c.Metric(t, "caddy_throttle_store_outages_total"))
}

// wantOutagesSaidOnce checks that each outage has one log line when it begins and
// one when it ends.
func wantOutagesSaidOnce(c *system.Caddy, t *testing.T) {
	t.Helper()
	for _, text := range []string{`"the store is down`, `"the store is up again`} {
		system.Eventually(t, "one log line for each outage that says "+text, func() bool { return len(c.LogLines(text)) == outagesOf(c, t) })
	}
}

// outage is when a store was taken down, when it was down for certain, when it was to
// come back, and how long after its return limits held again.
type outage struct{ from, down, to, back time.Duration }

// outageUntil takes the store down for a while, at least until noticed returns, and waits until
// limits hold again. The time that end needs to bring the store back is not measured.
func (l *load) outageUntil(t *testing.T, lasts time.Duration, begin func() (end func()), noticed func()) outage {
	t.Helper()
	l.since(t, time.Since(l.began), "allow", 429)
	o := outage{from: time.Since(l.began)}
	end := begin()
	o.down = time.Since(l.began)
	time.Sleep(lasts)
	noticed()
	o.to = time.Since(l.began)
	end()
	up := time.Since(l.began)
	o.back = max(l.since(t, up, "allow", 429), l.since(t, up, "deny", 429))
	return o
}

// opening is longer than the breaker takes to open, even on a busy machine.
const opening = 300 * time.Millisecond

// wantWithout checks that all routes do without the store while it is down.
func (o outage) wantWithout(t *testing.T, name string, shots []shot) {
	t.Helper()
	for _, s := range during(shots, o.down+opening, o.to, "allow", "deny") {
		if want := map[string]int{"allow": 200, "deny": 503}[s.route]; s.at+s.took < o.to && s.answer.Status != want {
			t.Errorf("%s, %s after %v: got %d, want %d", name, s.route, s.at-o.from, s.answer.Status, want)
			return
		}
	}
}

// wantPolicies checks that every status is one that its route's policy allows.
func wantPolicies(t *testing.T, shots []shot) {
	t.Helper()
	allowed := map[string][]int{"local": {200, 429}, "allow": {200, 429}, "deny": {200, 429, 503}, "plain": {200}}
	wrong := 0
	for _, s := range shots {
		switch {
		case s.err != nil:
			t.Errorf("%s at %v: got %v, want an answer", s.route, s.at, s.err)
		case !slices.Contains(allowed[s.route], s.answer.Status):
			t.Errorf("%s at %v: got %d, want one of %v", s.route, s.at, s.answer.Status, allowed[s.route])
		case s.answer.Status == 503 && s.answer.Header.Get("Retry-After") == "":
			t.Errorf("%s at %v: got 503 without Retry-After", s.route, s.at)
		default:
			continue
		}
		if wrong++; wrong == 10 {
			t.Fatal("and more")
		}
	}
}
