package tests

import (
	"fmt"
	"testing"
	"time"
)

// TestAStoreThatIsDownKeepsNoConfigFromLoading: caddy validate and Caddy's start
// do not wait for it.
func TestAStoreThatIsDownKeepsNoConfigFromLoading(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *storeServer) {
		port := freePort(t)
		site := config{throttle: s.directive(), sites: outageSite(port)}
		url := fmt.Sprintf("http://127.0.0.1:%d/", port)
		for _, how := range []string{"hangs", "is dead"} {
			end := s.run
			if how == "hangs" {
				end = s.freeze()
			} else {
				s.kill()
			}
			file := writeFile(t, "Caddyfile", site.caddyfile("127.0.0.1:1"))
			began := time.Now()
			if out, err := caddyCommand(t, "validate", "--config", file, "--adapter", "caddyfile").CombinedOutput(); err != nil {
				t.Errorf("validating while the store %s: %v\n%s", how, err, out)
			}
			c := startCaddy(t, site)
			v := newVisitor(t, "h1")
			for route, want := range map[string]int{"local": 200, "allow": 200, "deny": 503} {
				if a := v.get(t, url+route); a.status != want {
					t.Errorf("%s while the store %s: got %d, want %d", route, how, a.status, want)
				}
			}
			t.Logf("validated, started and asked within %v while the store %s", time.Since(began), how)
			if most := startTime; time.Since(began) > most {
				t.Errorf("while the store %s: got answers after %v, want at most %v", how, time.Since(began), most)
			}
			end()
			eventually(t, "the store to be used once it is there", func() bool { return v.get(t, url+"deny").status == 200 })
			if err := c.shutDown(); err != nil {
				t.Error(err)
			}
		}

		c := startCaddy(t, site) // a store that is up is used from the first request on
		if a := newVisitor(t, "h1").get(t, url+"deny"); a.status != 200 && c.metric(t, "caddy_throttle_store_errors_total") == 0 && c.outages(t) == 0 {
			t.Errorf("the first request after the start, while the store is up: got %d, want 200", a.status)
		}
	})
}
