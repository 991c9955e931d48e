package tests

import (
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"
)

// greed describes how one client asks, and how many pages it gets.
type greed struct {
	name, maxWait string
	pages, served int
}

const (
	mostWorkers = 3 // of PHP's 4
	slowPage    = 300 * time.Millisecond
)

// TestOneClientHoldsNoMoreWorkersThanItMay: PHP has four workers. While one
// client asks for slow pages as fast as it can, another one is served at once.
func TestOneClientHoldsNoMoreWorkersThanItMay(t *testing.T) {
	t.Parallel()
	for _, c := range []greed{
		{"the surplus is refused", "", 12, mostWorkers},
		{"the surplus queues", "wait 20s", 12, 12},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "throttle-site-") // not t.TempDir, whose names are too long for a socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			php, fpm := startPHP(t, dir)
			t.Cleanup(func() {
				if err := fpm.stop(); err != nil {
					t.Errorf("stopping php-fpm: %v", err)
				}
			})
			port := freePort(t)
			caddy := startCaddy(t, config{sites: fmt.Sprintf("http://:%d {\n in_flight workers %d client_ip {\n %s\n }\n %s\n}", port, mostWorkers, c.maxWait, php)})
			url := fmt.Sprintf("http://127.0.0.1:%d/slow.php?for=", port)
			newVisitor(t, "h1").get(t, url+"0")

			greedy, other := newVisitor(t, "h2"), newVisitor(t, "h1")
			other.get(t, url+"0")
			for range stalls {
				if err = c.visit(t, caddy, greedy, other, url); err == nil {
					return
				}
				t.Logf("once more, after: %v", err)
			}
			t.Error(err)
		})
	}
}

// visit lets the greedy client ask for all pages at once. The other client asks
// when the greedy one holds all slots of its key.
func (c *greed) visit(t *testing.T, caddy *caddy, greedy, other *visitor, url string) error {
	answers := make(chan answer, c.pages)
	began := time.Now()
	for range c.pages {
		greedy.ask(url+fmt.Sprint(slowPage.Milliseconds()), answers)
	}
	eventually(t, "the greedy client to hold what it may", func() bool { return caddy.served(t, "workers") == mostWorkers })
	asked := time.Now()
	if a := other.get(t, url+"0"); a.status != 200 {
		t.Fatalf("the other client: got %d, want 200", a.status)
	}
	took, served := time.Since(asked), 0
	for range c.pages {
		switch a := <-answers; {
		case a.status == 200:
			served++
		case a.status != 429 || a.header.Get("Retry-After") != "1":
			t.Errorf("got %d and Retry-After %q, want 200, or 429 and 1", a.status, a.header.Get("Retry-After"))
		}
	}
	if all, least := time.Since(began), time.Duration(served/mostWorkers)*slowPage; all < least {
		t.Errorf("got %d pages after %v, want at least %v with %d at once", served, all, least, mostWorkers)
	}
	if served != c.served {
		return fmt.Errorf("got %d pages served to the greedy client, want %d", served, c.served)
	}
	if most := slowPage / 3; long() && took > most {
		return fmt.Errorf("got the other client served after %v, want at most %v", took, most)
	}
	t.Logf("the other client was served after %v", took)
	return nil
}

// TestTheSurplusOfOneKeyQueuesForSlotsInOrder. Requests that would wait longer
// than wait are refused, and one client gets no more than half of the places.
func TestTheSurplusOfOneKeyQueuesForSlotsInOrder(t *testing.T) {
	t.Parallel()
	const queued = 20
	leave := make(chan struct{})
	upstream := startUpstream(t, func(http.ResponseWriter, *http.Request) { <-leave })
	port := freePort(t)
	c := startCaddy(t, config{sites: fmt.Sprintf(`
http://:%d {
	in_flight /patient patient 1 {
		wait 1m
		queue %d
	}
	in_flight /hasty hasty 1 {
		wait 300ms
	}
	reverse_proxy %s
}`, port, 2*queued, upstream.address)})
	base := fmt.Sprintf("http://127.0.0.1:%d", port)
	v := newVisitor(t, "h2")
	answers := make(chan answer, queued+2)
	v.ask(base+"/patient?id=0", answers)
	eventually(t, "the first to be served", func() bool { return c.served(t, "patient") == 1 })
	for n := range queued {
		v.ask(fmt.Sprintf("%s/patient?id=%d", base, n+1), answers)
		eventually(t, "one more to wait", func() bool { return c.waiting(t, "patient") == n+1 })
	}
	if a := v.get(t, base+"/patient"); a.status != 429 || c.metric(t, "caddy_throttle_requests_total", `zone="patient"`, `reason="queue_full"`) != 1 {
		t.Errorf("one more than may wait: got %d, want 429 for the reason queue_full", a.status)
	}

	v.ask(base+"/hasty?id=hasty", answers)
	eventually(t, "the first to be served", func() bool { return c.served(t, "hasty") == 1 })
	began := time.Now()
	a := v.get(t, base+"/hasty")
	if took := time.Since(began); a.status != 429 || a.header.Get("Retry-After") != "1" || took < 300*time.Millisecond {
		t.Errorf("too long a wait: got %d, Retry-After %q after %v, want 429, 1, 300ms", a.status, a.header.Get("Retry-After"), took)
	}

	close(leave)
	for range queued + 2 {
		if a := <-answers; a.status != 200 {
			t.Errorf("got %d, want 200", a.status)
		}
	}
	next := 0
	for _, s := range upstream.sightings() {
		if s.id == "hasty" {
			continue
		}
		if s.id != fmt.Sprint(next) {
			t.Errorf("got %s at the upstream, want %d", s.id, next)
		}
		next++
	}
	if next != queued+1 {
		t.Errorf("got %d at the upstream, want %d", next, queued+1)
	}
}

// TestPHPKeepsItsSlotWhileItWorksForAClientThatLeft: a client that hangs up at
// once must not occupy one worker after the other.
func TestPHPKeepsItsSlotWhileItWorksForAClientThatLeft(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	c := startCaddy(t, config{sites: fmt.Sprintf("http://:%d {\n in_flight workers 1 client_ip\n %s\n}", port, phpSite(t).directives)})
	const page = time.Second
	url := fmt.Sprintf("http://127.0.0.1:%d/slow.php?for=%d", port, page.Milliseconds())
	v := newVisitor(t, "h2")
	var held time.Duration
	for range stalls {
		began, answers := time.Now(), make(chan answer, 1)
		leave := v.ask(url, answers)
		eventually(t, "the slot to be held", func() bool { return c.served(t, "workers") == 1 })
		time.Sleep(page / 4) // on a machine that is too busy for that, PHP has not been asked yet
		leave()
		<-answers
		eventually(t, "the slot to be free", func() bool { return c.served(t, "workers") == 0 })
		if held = time.Since(began); held >= page {
			return
		}
	}
	t.Errorf("got the slot back after %v, want it held for the %v that PHP worked", held, page)
}
