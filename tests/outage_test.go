package tests

import (
	"fmt"
	"testing"
	"time"
)

// TestAStoreThatDiesOrHangsIsNoOutageOfTheSite, by SIGKILL and by SIGSTOP, under
// 500 requests a second.
func TestAStoreThatDiesOrHangsIsNoOutageOfTheSite(t *testing.T) {
	t.Parallel()
	cycles, down := 2, 1200*time.Millisecond
	if long() {
		cycles, down = 20, 3*time.Second
	}
	eachStore(t, func(t *testing.T, s *storeServer) {
		port := freePort(t)
		c := startCaddy(t, config{throttle: s.directive(), sites: outageSite(port)})
		c.waitForStore(t, s)
		goroutines := c.goroutines(t)
		for how, begin := range map[string]func() (end func()){
			"killed": func() func() {
				s.kill()
				return s.run
			},
			"stopped": s.freeze,
		} {
			before := c.outages(t)
			l := startLoad(t, port)
			var outages []outage
			for range cycles {
				so := c.outages(t)
				outages = append(outages, l.outageUntil(t, down, begin, func() {
					eventually(t, "an outage that is noticed", func() bool { return c.outages(t) > so })
				}))
			}
			shots := l.stop()
			wantPolicies(t, shots)
			for n, o := range outages {
				name := fmt.Sprintf("%s, outage %d", how, n+1)
				o.wantWithout(t, name, shots)
				if most := time.Second; long() && o.back > most {
					t.Errorf("%s: got limits that hold again after %v, want at most %v", name, o.back, most)
				}
			}
			// On a busy machine, a store may seem down that is not.
			if got := c.outages(t) - before; long() && got > cycles {
				t.Errorf("%s: got %d outages, want %d", how, got, cycles)
			}
		}
		eventually(t, "the goroutines and connections of before", func() bool {
			return c.goroutines(t) <= goroutines+5 && s.connections() <= mostConnections
		})
		c.wantOutagesSaidOnce(t)
	})
}

// waitForStore waits until Caddy has reached its store and limits hold.
func (c *caddy) waitForStore(t *testing.T, s *storeServer) {
	t.Helper()
	eventually(t, "a store that answers", func() bool {
		return s.connections() > 0 && c.metric(t, "caddy_throttle_breaker_open", `store="`+s.name+`"`) == 0
	})
}

// outages returns how many outages of its store Caddy has counted.
func (c *caddy) outages(t *testing.T) int {
	t.Helper()
	return int(c.metric(t, "caddy_throttle_store_outages_total"))
}

// wantOutagesSaidOnce checks that each outage has one log line when it begins and
// one when it ends.
func (c *caddy) wantOutagesSaidOnce(t *testing.T) {
	t.Helper()
	for _, text := range []string{`"the store is down`, `"the store is up again`} {
		eventually(t, "one log line for each outage that says "+text, func() bool { return len(c.logLines(text)) == c.outages(t) })
	}
}
