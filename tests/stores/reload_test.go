package stores

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

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

// TestReloadUnderLoadLosesNoBucketAndDropsNoRequest: each reload that lost its
// buckets would admit one capacity more.
func TestReloadUnderLoadLosesNoBucketAndDropsNoRequest(t *testing.T) {
	t.Parallel()
	const capacity, leak, reloads, perProtocol = 30, 20, 6, 3
	for _, start := range []func(*testing.T) system.Site{system.PHPSite, system.RackSite} {
		s := start(t)
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			port := servertest.FreePort(t)
			generation := func(n int) system.Config {
				return system.Config{Sites: fmt.Sprintf(`
http://:%d {
	header Generation %d
	throttle {
		zone load {
			key text everybody
			limit %d %d/s
		}
	}
	%s
}`, port, n, capacity, leak, s.Directives)}
			}
			c := system.StartCaddy(t, generation(0))
			url := fmt.Sprintf("http://127.0.0.1:%d/slow", port)

			seen := &traffic{statuses: make(map[int]int)}
			ctx, stop := context.WithCancel(t.Context())
			began := time.Now()
			var load sync.WaitGroup
			for _, protocol := range system.Protocols {
				v := system.NewVisitor(t, protocol)
				for range perProtocol {
					load.Go(func() { askSteadily(v, ctx, url, seen) })
				}
			}

			probe := system.NewVisitor(t, "h1")
			for n := 1; n <= reloads; n++ {
				c.Reload(generation(n))
				system.Eventually(t, fmt.Sprintf("an answer of generation %d", n), func() bool {
					return generationOf(t, probe, url, seen) >= n
				})
				// This is enough to fill a bucket that was lost.
				enough := seen.answers() + 3*capacity
				system.Eventually(t, "steady traffic", func() bool { return seen.answers() >= enough })
			}
			stop()
			load.Wait()
			took := time.Since(began)

			if len(seen.errors) > 0 {
				t.Errorf("got %d requests that failed, the first with %v, want none", len(seen.errors), seen.errors[0])
			}
			if most := reloads * (2*perProtocol + 1); seen.lost > most {
				t.Errorf("got %d connections lost, want at most %d: one a visitor and reload", seen.lost, most)
			}
			admitted, refused := seen.statuses[200], seen.statuses[429]
			if len(seen.statuses) != 2 || admitted == 0 || refused == 0 {
				t.Errorf("got %v by status, want 200 and 429 only, some of each", seen.statuses)
			}
			if bound := capacity + leak*took.Seconds() + 1e-3; float64(admitted) > bound {
				t.Errorf("got %d admitted in %v over %d reloads, want at most %v", admitted, took, reloads, bound)
			}
			if got := c.Decisions(t, "load", "admitted"); got != admitted {
				t.Errorf("got %d admitted by the metric, want the %d that were seen", got, admitted)
			}
			if got := c.Decisions(t, "load", "refused"); got != refused {
				t.Errorf("got %d refused by the metric, want the %d that were seen", got, refused)
			}
		})
	}
}

// askSteadily asks about 200 times a second until the context ends.
func askSteadily(v *system.Visitor, ctx context.Context, url string, seen *traffic) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			seen.note(v.Try("GET", url))
		}
	}
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
	if err != nil {
		t.Fatalf("got Generation %q, want a number", a.Header.Get("Generation"))
	}
	return n
}

// TestReloadKeepsTheLevelAndAFailedOneChangesNothing fails once in the adapter
// and once after throttle has been provisioned.
func TestReloadKeepsTheLevelAndAFailedOneChangesNothing(t *testing.T) {
	t.Parallel()
	port := servertest.FreePort(t)
	setup := func(capacity int, more string) system.Config {
		return system.Config{Sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone kept {
			limit %d 1/d
		}
	}
	respond ok
}
%s`, port, capacity, more)}
	}
	c := system.StartCaddy(t, setup(5, ""))
	v := system.NewVisitor(t, "h1")
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	if got := v.CountAdmitted(t, 3, url); got != 3 {
		t.Fatalf("got %d of 3 admitted, want all", got)
	}

	for name, broken := range map[string]system.Config{
		"unknown option":                       {Sites: fmt.Sprintf("http://:%d {\n throttle {\n zone kept {\n limit 100 1/d\n nonsense\n }\n }\n }", port)},
		"a sibling that cannot be provisioned": setup(100, fmt.Sprintf("https://localhost:%d {\n tls /nonexistent.crt /nonexistent.key\n }", servertest.FreePort(t))),
		"a sibling that cannot be started":     setup(100, "http://:1 {\n bind 192.0.2.1\n }"),
	} {
		if status, message := c.Load(broken.Caddyfile(c.Admin)); status == 200 {
			t.Errorf("got %d %s for %s, want an error", status, message, name)
		}
	}
	if got := v.CountAdmitted(t, 10, url); got != 2 {
		t.Errorf("got %d more admitted after failed reloads, want the 2 that were left", got)
	}

	c.Reload(setup(8, ""))
	if got := v.CountAdmitted(t, 10, url); got != 3 {
		t.Errorf("got %d more admitted after the capacity went from 5 to 8, want 3", got)
	}
}
