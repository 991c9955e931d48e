package stores

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// traffic counts the answers to steady visitors.
type traffic struct {
	mu       sync.Mutex
	statuses map[int]int
	errors   []error

	// lost counts connections that ended before a byte of an answer. The metric
	// confirms that throttle has not seen these requests.
	lost int
}

func (tr *traffic) note(a system.Answer, err error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	switch {
	case system.ConnectionLost(err):
		tr.lost++
	case err != nil:
		tr.errors = append(tr.errors, err)
	default:
		tr.statuses[a.Status]++
	}
}

func (tr *traffic) answers() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	n := 0
	for _, count := range tr.statuses {
		n += count
	}
	return n
}

// generationOf returns which config answers, or -1 if none does.
func generationOf(t *testing.T, v *system.Visitor, url string, seen *traffic) int {
	t.Helper()
	a, err := v.Try("GET", url)
	seen.note(a, err)
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(a.Header.Get("Generation"))
	check.Assume(t, err == nil, "got Generation %q, want a number", a.Header.Get("Generation"))
	return n
}

// TestManyReloadsUnderLoadLeaveNothingBehind sends up to 1,000 requests a second. Each pours 1
// into a bucket that hardly leaks, so its level counts all that throttle has seen.
func TestManyReloadsUnderLoadLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	const workers, each = 10, 10 * time.Millisecond
	reloads := 20
	if system.Long() {
		reloads = 100
	}
	port := servertest.FreePort(t)
	generation := func(n int) system.Config {
		return system.Config{Sites: fmt.Sprintf(`
http://:%d {
	header Generation %d
	header >Level {http.throttle.level}
	throttle {
		zone steady {
			key text everybody
			limit 10000000 2000/d
		}
	}
	in_flight slots 100 client_ip {
		wait 10s
	}
	respond ok
}`, port, n)}
	}
	c := system.StartCaddy(t, generation(0))
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	probe := system.NewVisitor(t, "h1")
	for n := range 3 { // whatever begins with the first reloads
		c.Reload(generation(-n))
	}
	probe.CloseIdleConnections()
	goroutines, descriptors := c.Metric(t, "go_goroutines"), c.Metric(t, "process_open_fds")

	seen := &traffic{statuses: make(map[int]int)}
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	visitors := []*system.Visitor{probe}
	began := time.Now()
	for n := range workers {
		v := system.NewVisitor(t, system.Protocols[n%len(system.Protocols)])
		visitors = append(visitors, v)
		load.Go(func() {
			tick := time.NewTicker(each)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					seen.note(v.Try("GET", url))
				}
			}
		})
	}
	for n := 1; n <= reloads; n++ {
		c.Reload(generation(n))
		system.Eventually(t, fmt.Sprintf("an answer of generation %d", n), func() bool { return generationOf(t, probe, url, seen) >= n })
		enough := seen.answers() + 5*workers
		system.Eventually(t, "steady traffic", func() bool { return seen.answers() >= enough })
	}
	stop()
	load.Wait()
	took := time.Since(began)

	if len(seen.errors) > 0 {
		t.Errorf("got %d requests that failed, the first with %v, want none", len(seen.errors), seen.errors[0])
	}
	most := reloads * (workers + 1)
	check.That(t, seen.lost <= most, "got %d connections lost, want at most %d: one a visitor and reload", seen.lost, most)
	check.That(t, len(seen.statuses) == 1 && seen.statuses[200] != 0, "got %v by status, want 200 only", seen.statuses)
	if got := c.Decisions(t, "steady", "admitted"); got != seen.statuses[200] {
		t.Errorf("got %d admitted by the metric, want the %d that were seen", got, seen.statuses[200])
	}
	answered := float64(seen.statuses[200])
	level, leaked := levelOf(t, probe, url)-1, 2000*time.Since(began).Hours()/24
	check.That(t, level <= answered+0.001 && level >= answered-leaked-0.001, "got level %v after %v answers, want as much, less what has leaked: no reload may reset the bucket", level, answered)
	for _, v := range visitors {
		v.CloseIdleConnections()
	}
	t.Logf("%d reloads in %v, under %.0f requests a second; %d connections lost", reloads, took.Round(time.Second), answered/took.Seconds(), seen.lost)
	now, open := 0.0, 0.0
	defer func() {
		t.Logf("goroutines: %v before and %v after; descriptors: %v and %v", goroutines, now, descriptors, open)
	}()
	// A leak would be one for each reload at least.
	system.Eventually(t, "as many goroutines and descriptors as before", func() bool {
		now, open = c.Metric(t, "go_goroutines"), c.Metric(t, "process_open_fds")
		return now <= goroutines+float64(reloads)/2 && open <= descriptors+float64(reloads)/2
	})
}
