package stores

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// outageRoutes are zones of one key with a capacity of 5 and a leak of 10/s, one
// for each policy, and a route without throttle to compare them with.
var outageRoutes = []string{"local", "allow", "deny", "plain"}

func outageSite(port int) string {
	site := fmt.Sprintf("http://:%d {\n", port)
	for _, policy := range outageRoutes[:3] {
		site += fmt.Sprintf(`
	throttle /%s {
		zone %[1]s {
			key text everybody
			limit 5 10/s
			on_store_error %[1]s
		}
	}`, policy)
	}
	return site + "\n\trespond ok\n}"
}

// shot is one request of a load, and the answer to it.
type shot struct {
	route    string
	at, took time.Duration // at is when it was sent, since the load began
	answer   system.Answer
	err      error
}

// load sends 500 requests a second to the outage site, in turn to each route,
// whether or not the earlier ones have been answered.
type load struct {
	began time.Time
	stop  func() []shot

	mu    sync.Mutex
	shots []shot
}

func startLoad(t *testing.T, port int) *load {
	t.Helper()
	l := &load{began: time.Now()}
	v := system.NewVisitor(t, "h1")
	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	working.Go(func() {
		const interval = 2 * time.Millisecond
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for n := 0; ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for ; time.Duration(n)*interval < time.Since(l.began); n++ {
				route := outageRoutes[n%len(outageRoutes)]
				working.Go(func() { l.fire(v, port, route) })
			}
		}
	})
	l.stop = sync.OnceValue(func() []shot {
		cancel()
		working.Wait()
		v.CloseIdleConnections()
		return l.shots
	})
	t.Cleanup(func() { l.stop() })
	return l
}

func (l *load) fire(v *system.Visitor, port int, route string) {
	s := shot{route: route, at: time.Since(l.began)}
	s.answer, s.err = v.Try("GET", fmt.Sprintf("http://127.0.0.1:%d/%s", port, route))
	s.took = time.Since(l.began) - s.at
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shots = append(l.shots, s)
}

// since waits until a request that was sent to a route after an instant gets a
// status. It returns how long after the instant that request was sent.
func (l *load) since(t *testing.T, at time.Duration, route string, status int) time.Duration {
	t.Helper()
	var found time.Duration
	system.Eventually(t, fmt.Sprintf("an answer of %d from %s", status, route), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for i := len(l.shots) - 1; i >= 0; i-- {
			if s := &l.shots[i]; s.at >= at && s.route == route && s.answer.Status == status {
				found = s.at - at
			} else if s.at < at-time.Second {
				break
			}
		}
		return found > 0
	})
	return found
}

// during returns the shots at some routes that were sent between two instants.
func during(shots []shot, from, to time.Duration, routes ...string) (found []shot) {
	for _, s := range shots {
		if from <= s.at && s.at < to && slices.Contains(routes, s.route) {
			found = append(found, s)
		}
	}
	return found
}
