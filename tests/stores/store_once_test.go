package stores

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/caddy-throttle/caddy-throttle/tests/internal/system"
)

// TestRepliesThatAreLostAreChargedAtMostOnce: answered calls are charged,
// unanswered ones may be, and none twice.
func TestRepliesThatAreLostAreChargedAtMostOnce(t *testing.T) {
	t.Parallel()
	want, most := check.OrShort(500, 150), 3*system.StartTime
	if system.Long() {
		want, most = 10_000, 10*time.Minute
	}
	eachStore(t, func(t *testing.T, s *storeServer) {
		var losing atomic.Bool
		proxy := servertest.StartProxy(t, s.address, func([]byte) bool { return losing.Load() && rand.IntN(10) == 0 })
		port := servertest.FreePort(t)
		// The breaker would keep most requests from a store like this.
		c := system.StartCaddy(t, system.Config{Throttle: s.through(proxy.Addr) + "\nstore_timeout 1s\non_store_error deny", Sites: fmt.Sprintf(`
http://:%d {
	throttle {
		zone once {
			key text everybody
			limit 100000000 0.2/s
		}
	}
	respond ok
}`, port)})
		url := fmt.Sprintf("http://127.0.0.1:%d/", port)
		start := time.Now()
		system.NewVisitor(t, "h1").Get(t, url)
		losing.Store(true)
		var sent, admitted atomic.Int64
		var enough atomic.Bool
		var crowd sync.WaitGroup
		v := system.NewVisitor(t, "h2")
		for range 400 {
			crowd.Go(func() {
				for !enough.Load() {
					a, err := v.Try("GET", url)
					sent.Add(1)
					switch {
					case err == nil && a.Status == 200:
						admitted.Add(1)
					case err == nil && a.Status == 503:
						time.Sleep(100 * time.Millisecond) // the breaker is open
					default:
						t.Errorf("got %d, %v, want 200 or 503", a.Status, err)
						return
					}
				}
			})
		}
		failed := 0.0
		for began := time.Now(); failed < float64(want) && time.Since(began) < most; time.Sleep(100 * time.Millisecond) {
			failed = c.Metric(t, "caddy_throttle_store_errors_total")
		}
		enough.Store(true)
		crowd.Wait()
		losing.Store(false)
		// Each failed request may have been charged.
		failed = c.Metric(t, "caddy_throttle_store_errors_total")
		level, answered := s.level("once"), float64(admitted.Load())
		t.Logf("%d requests, %v admitted, %v whose reply was lost, of which %v were charged", sent.Load(), answered, failed, level-answered-1)
		check.That(t, failed >= 100, "got %v replies lost, want some", failed)
		least := answered - 0.2*time.Since(start).Seconds()
		check.That(t, level >= least && level <= answered+failed+1, "got a level of %v, want %v to %v", level, least, answered+failed+1)
	})
}
