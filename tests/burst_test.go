package tests

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestBurstPassesUntilItOverflowsAndAgainAfterRetryAfter waits exactly as long as
// Retry-After says.
func TestBurstPassesUntilItOverflowsAndAgainAfterRetryAfter(t *testing.T) {
	t.Parallel()
	const capacity, leak = 4, 2 // per second
	for _, start := range []func(*testing.T) site{phpSite, rackSite} {
		s := start(t)
		port := freePort(t)
		startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone empty {
			match {
				path /empty/*
			}
			limit %d %d/s
		}
		zone fit {
			match {
				path /fit/*
			}
			limit %d %d/s
			refusal retry_after fit
		}
	}
	%s
}`, port, capacity, leak, capacity, leak, s.directives)})

		for _, zone := range []string{"empty", "fit"} {
			for _, protocol := range protocols {
				t.Run(s.name+"/"+zone+"/"+protocol, func(t *testing.T) {
					t.Parallel()
					v := newVisitor(t, protocol)
					url := fmt.Sprintf("http://127.0.0.1:%d/%s/page", port, zone)

					b := v.pourUntilRefused(t, url)
					if bound := capacity + leak*b.took.Seconds(); b.admitted < capacity || float64(b.admitted) > bound {
						t.Errorf("got %d admitted in %v, want %d to %v", b.admitted, b.took, capacity, bound)
					}
					if !strings.Contains(b.last.body, s.executed) {
						t.Errorf("got %q, want a page that says %q", b.last.body, s.executed)
					}
					checkRefusal(t, b.refused)

					wait := b.refused.retryAfter(t)
					// Time to empty is at most capacity/leak; time to fit cost/leak.
					longest := map[string]time.Duration{"empty": 2 * time.Second, "fit": time.Second}[zone]
					if wait > longest {
						t.Errorf("got Retry-After %v, want at most %v", wait, longest)
					}
					time.Sleep(wait)

					if a := v.get(t, url); a.status != 200 {
						t.Fatalf("got %d after waiting the Retry-After of %v, want 200", a.status, wait)
					}
					if zone == "empty" {
						again := v.pourUntilRefused(t, url)
						if got := 1 + again.admitted; got < capacity {
							t.Errorf("got %d admitted after waiting until empty, want the whole capacity of %d", got, capacity)
						}
					}
				})
			}
		}
	}
}

// checkRefusal holds for every page that throttle itself writes.
func checkRefusal(t *testing.T, a answer) {
	t.Helper()
	if a.status != 429 {
		t.Errorf("got status %d, want 429", a.status)
	}
	a.retryAfter(t)
	if got := a.header.Get("Cache-Control"); got != "no-store" {
		t.Errorf("got Cache-Control %q, want no-store", got)
	}
	if got := a.header.Get("Content-Type"); !strings.HasPrefix(got, "text/html") {
		t.Errorf("got Content-Type %q, want text/html", got)
	}
	if !strings.Contains(strings.ToLower(a.body), "<html") || !strings.Contains(a.body, "second") {
		t.Errorf("got the page %q, want HTML that says how many seconds to wait", a.body)
	}
}

// TestHundredConcurrentRequestsOnOneConnectionAdmitTheCapacity is the attack
// that h2 makes easy: all requests arrive before the first is answered.
func TestHundredConcurrentRequestsOnOneConnectionAdmitTheCapacity(t *testing.T) {
	t.Parallel()
	const capacity, requests = 10, 100
	plain, secure := freePort(t), freePort(t)
	startCaddy(t, config{
		throttle: "zone burst {\n limit 10 1/d\n }",
		sites: fmt.Sprintf(`
http://:%d, https://localhost:%d {
	tls internal
	throttle /page burst
	%s
}`, plain, secure, rackSite(t).directives),
	})

	for _, base := range []string{
		fmt.Sprintf("http://127.0.0.1:%d", plain),
		fmt.Sprintf("https://localhost:%d", secure),
	} {
		t.Run(base[:strings.Index(base, ":")], func(t *testing.T) {
			v := newVisitor(t, "h2")
			eventually(t, "a certificate and a connection for all requests", func() bool {
				_, err := v.try("GET", base+"/other")
				return err == nil
			})
			dials := v.dials.Load()

			var mu sync.Mutex
			statuses := make(map[int]int)
			var wg sync.WaitGroup
			for range requests {
				wg.Go(func() {
					a, err := v.try("GET", base+"/page")
					if err != nil {
						t.Errorf("asking for the page: %v", err)
					}
					mu.Lock()
					defer mu.Unlock()
					statuses[a.status]++
				})
			}
			wg.Wait()

			if statuses[200] != capacity || statuses[429] != requests-capacity {
				t.Errorf("got %v by status, want %d of 200 and %d of 429", statuses, capacity, requests-capacity)
			}
			if got := v.dials.Load() - dials; got != 0 {
				t.Errorf("got %d more connections, want all requests on one", got)
			}
		})
	}
}
