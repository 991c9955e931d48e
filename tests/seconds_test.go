package tests

import (
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"
)

// TestASlowPageDrainsItsBucketBySeconds: the log must charge every request for
// the time that PHP took.
func TestASlowPageDrainsItsBucketBySeconds(t *testing.T) {
	t.Parallel()
	const capacity, reserved = 2.0, 0.1
	php := phpSite(t)
	eachProtocol(t, func(t *testing.T, protocol string) {
		port, log := freePort(t), newChargeLog(t)
		startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	%s
	throttle {
		zone workers {
			limit %v 1/d
			cost %v
			settle seconds
		}
	}
	%s
}`, port, log.directive, capacity, reserved, php.directives)})
		slow := newVisitor(t, protocol)
		url := fmt.Sprintf("http://127.0.0.1:%d/slow.php?for=", port)

		var worked, waited []float64
		for range 10 {
			began := time.Now()
			a := slow.get(t, url+"400")
			if a.status == 429 {
				break
			}
			waited = append(waited, time.Since(began).Seconds())
			worked = append(worked, workedIn(t, a))
		}
		if len(worked) > 5 {
			t.Errorf("got %d pages of 0.4 s and more, want at most 5 in a capacity of %v", len(worked), capacity)
		}
		if a := newVisitor(t, protocol).get(t, url+"0"); a.status != 200 {
			t.Errorf("another visitor: got %d, want 200", a.status)
		}

		lines := log.wait(t, len(worked)+2)
		level := 0.0
		for i := range worked {
			c := lines[i].Throttle
			if !near(c.Level, level+reserved) {
				t.Errorf("page %d: got level %v, want the %v settled before and the %v reserved", i+1, c.Level, level, reserved)
			}
			if c.Settled == nil || *c.Settled < worked[i] || *c.Settled > waited[i] {
				t.Fatalf("page %d: got settled %v, want it from the %v that PHP took to the %v that the visitor waited", i+1, c.Settled, worked[i], waited[i])
			}
			level += *c.Settled
		}
		if refused := lines[len(worked)].Throttle; refused.Decision != "refused" || level+reserved < capacity {
			t.Errorf("got %s at level %v, want a refusal of what does not fit", refused.Decision, level)
		}
	})
}

var workedFor = regexp.MustCompile(`worked: ([0-9.]+)`)

// workedIn returns how long a page kept its worker busy, as it says itself.
func workedIn(t *testing.T, a answer) float64 {
	t.Helper()
	found := workedFor.FindStringSubmatch(a.body)
	if a.status != 200 || found == nil {
		t.Fatalf("got %d %q, want a page that says how long it took", a.status, a.body)
	}
	seconds, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return seconds
}

// TestTwentyClientsOfOneKeyUseNoMoreThanTheLeak: they ask as fast as they can for
// pages that cost their reservation. Nothing is forgiven.
func TestTwentyClientsOfOneKeyUseNoMoreThanTheLeak(t *testing.T) {
	t.Parallel()
	const clients, leak, page = 20, 1.0, 100 * time.Millisecond
	length, capacity := 10*time.Second, 0.5
	if long() {
		length, capacity = time.Minute, 3
	}
	php := phpSite(t)
	port := freePort(t)
	startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone workers {
			key text everybody
			limit %v %v/s
			cost %v
			settle seconds debt 1000
		}
	}
	%s
}`, port, capacity, leak, page.Seconds(), php.directives)})
	url := fmt.Sprintf("http://127.0.0.1:%d/slow.php?for=%d", port, page.Milliseconds())

	var mu sync.Mutex
	worked, pages, refusals := 0.0, 0, 0
	var all sync.WaitGroup
	began := time.Now()
	for n := range clients {
		v := newVisitor(t, protocols[n%2])
		all.Go(func() {
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for ; time.Since(began) < length; <-tick.C {
				a, err := v.try("GET", url)
				found := workedFor.FindStringSubmatch(a.body)
				mu.Lock()
				switch {
				case a.status == 429:
					refusals++
				case err != nil || a.status != 200 || found == nil:
					t.Errorf("got %d %q, %v, want the page or a refusal", a.status, a.body, err)
				default:
					seconds, _ := strconv.ParseFloat(found[1], 64)
					worked += seconds
					pages++
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	took := time.Since(began).Seconds()
	use := worked / (leak * took)
	t.Logf("%d pages and %d refusals in %.1f s: %.2f worker-seconds, %.3f of the leak", pages, refusals, took, worked, use)
	// A page costs no less than its reservation, and only those that were under way at the end
	// may cost more than the bucket had room for.
	if most := (capacity+leak*took)/page.Seconds() + 1; float64(pages) > most {
		t.Errorf("got %d pages, want at most %.0f", pages, most)
	}
	if pages == 0 || refusals == 0 {
		t.Errorf("got %d pages and %d refusals, want some of both", pages, refusals)
	}
	// Clients are charged for the time they waited, which on a busy machine is
	// longer than PHP worked.
	if long() && (use < 0.25 || use > 1.1) {
		t.Errorf("got %.3f of the leak used, want from 0.25 to 1.1", use)
	}
}
