package swarm

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// A heldSite is a zone with share in front of an upstream that holds requests.
type heldSite struct {
	*system.Caddy
	upstream *heldUpstream
	url      string
	site     func(throttle string) system.Config
}

// startHeldSite starts a site with global options and zones.
func startHeldSite(t *testing.T, global, throttle string) *heldSite {
	t.Helper()
	port, u := servertest.FreePort(t), startHeldUpstream(t)
	s := &heldSite{upstream: u, url: fmt.Sprintf("http://127.0.0.1:%d/", port), site: func(throttle string) system.Config {
		return system.Config{Throttle: global, Sites: fmt.Sprintf("http://:%d {\n%s\nreverse_proxy %s\n}", port, throttle, u.Address)}
	}}
	s.Caddy = system.StartCaddy(t, s.site(throttle))
	return s
}

// slots is an in_flight in which requests may wait for long, which is more than a busy machine
// needs.
func slots(name string, n int) string {
	return system.Block(fmt.Sprintf("in_flight %s %d", name, n), "wait 10m\nshare") + "\n"
}

// queue lets so many clients wait for their turn.
func (s *heldSite) queue(t *testing.T, zone string, n int) chan system.Answer {
	t.Helper()
	answers := make(chan system.Answer, n)
	for i := range n {
		system.NewVisitor(t, "h1").Ask(s.url+"hold", answers)
		system.Eventually(t, "one more to wait", func() bool { return s.Waiting(t, zone) == i+1 })
	}
	return answers
}

// wantServed wants all that waited to be served once the upstream lets them go.
func (s *heldSite) wantServed(t *testing.T, answers chan system.Answer) {
	t.Helper()
	for range cap(answers) {
		system.Eventually(t, "an answer", func() bool {
			if len(answers) == 0 {
				s.upstream.release()
			}
			return len(answers) > 0
		})
		if a := <-answers; a.Status != http.StatusOK {
			t.Errorf("got %d for one that waited, want 200", a.Status)
		}
	}
}

func (s *heldSite) wantIdle(t *testing.T, zone string) {
	t.Helper()
	system.Eventually(t, "all slots to be free", func() bool { return s.Served(t, zone) == 0 && s.Waiting(t, zone) == 0 })
}

func TestAReloadNeverLosesThoseWhoWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		before, after string
		atOnce        int64 // how many of two that wait get their slots by the reload alone
	}{
		"raised":  {slots("php", 1), slots("php", 3), 2},
		"lowered": {slots("php", 2), slots("php", 1), 0},
		"removed": {slots("php", 1), "", 0},
		"renamed": {slots("php", 1), slots("fpm", 1), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startHeldSite(t, "", test.before)
			s.upstream.hold(t, s.url)
			held := int64(1)
			if name == "lowered" {
				s.upstream.hold(t, s.url)
				held++
			}
			answers := s.queue(t, "php", 2)
			s.Reload(s.site(test.after))
			system.Eventually(t, "those to be served for whom there are slots", func() bool { return s.upstream.holds.Load() == held+test.atOnce })
			if name == "removed" {
				if a := system.NewVisitor(t, "h1").Get(t, s.url+"other"); a.Status != http.StatusOK {
					t.Errorf("got %d without the zone, want 200", a.Status)
				}
			}
			s.wantServed(t, answers)
			s.upstream.release()
			s.wantIdle(t, "php")
		})
	}
}

// PHP never works on more requests than there are slots, and on none that holds no slot,
// whatever the clients do.
func TestSlotsAreTheWorkersThatPHPHasBusy(t *testing.T) {
	t.Parallel()
	root, socket := startSwarmPHP(t)
	port := servertest.FreePort(t)
	const slots = swarmWorkers - 1 // one is for the status
	c := system.StartCaddy(t, system.Config{Servers: "trusted_proxies static 127.0.0.0/8", Sites: fmt.Sprintf(`http://:%d {
		handle /fpm-status {
			reverse_proxy unix/%s {
				transport fastcgi {
					split /fpm-status
				}
			}
		}
		handle {
			in_flight php %d {
				wait 40s
				share
			}
			root * %s
			php_fastcgi unix/%[2]s
		}
	}`, port, socket, slots, root)})
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	watcher := system.NewVisitor(t, "h1")
	working := func() int {
		var status struct {
			Active int `json:"active processes"`
		}
		if err := json.Unmarshal([]byte(watcher.Get(t, url+"/fpm-status?json").Body), &status); err != nil {
			t.Fatal(err)
		}
		return status.Active - 1
	}
	answers := make(chan system.Answer, 24)
	for i := range cap(answers) {
		leave := system.NewVisitor(t, []string{"h1", "h2"}[i%2]).Ask(fmt.Sprintf("%s/page.php?ms=%d", url, 600+100*(i%3)), answers)
		if i%3 != 0 { // most hang up, at any time
			time.AfterFunc(time.Duration(i*40)*time.Millisecond, leave)
		}
	}
	agreed := 0
	for len(answers) < cap(answers) || c.Served(t, "php") > 0 {
		before, at, after := c.Served(t, "php"), working(), c.Served(t, "php")
		if at > slots {
			t.Fatalf("got %d workers busy, want %d at most", at, slots)
		}
		if before == after && before == at && at == slots {
			agreed++
		}
	}
	if agreed == 0 {
		t.Errorf("got no moment with all %d slots taken and as many workers busy", slots)
	}
	system.Eventually(t, "no worker to be busy", func() bool { return working() == 0 && c.Served(t, "php") == 0 })
}
