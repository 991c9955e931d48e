package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// frozen hardly leaks, so that a level is the sum of the costs poured.
var frozen = leakybucket.Limit{Capacity: 1e6, Leak: 0.002}

// leaked is more than frozen leaks while a test runs.
const leaked = 0.5

func charge(key string, l leakybucket.Limit, cost float64) leakybucket.Charge {
	return leakybucket.Charge{Zone: "zone", Key: key, Limit: l, Cost: cost, Debt: l.Capacity}
}

// heart is begun before any test counts goroutines.
var heart = servertest.StartPulse()

// patience is how long a call may take where the server is well and the machine
// busy.
const patience = time.Minute

// take takes one charge within a second.
func take(s *Store, c leakybucket.Charge) (leakybucket.Decision, error) {
	return takeWithin(s, c, time.Second)
}

// ping returns why nothing can be written.
func ping(s *Store) error {
	_, err := take(s, charge("ping", leakybucket.Limit{Capacity: 1e6, Leak: 1e6}, 1))
	return err
}

func takeWithin(s *Store, c leakybucket.Charge, d time.Duration) (leakybucket.Decision, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	decisions := make([]leakybucket.Decision, 1)
	err := s.Take(ctx, []leakybucket.Charge{c}, decisions)
	return decisions[0], err
}

// mustTake is take that must be answered.
func mustTake(tb testing.TB, s *Store, c leakybucket.Charge) leakybucket.Decision {
	tb.Helper()
	d := check.Must(takeWithin(s, c, patience))(tb)
	return d
}

func levelOf(tb testing.TB, s *Store, c leakybucket.Charge) float64 {
	tb.Helper()
	c.Probe = true
	return mustTake(tb, s, c).Level
}

// TestEachTakeIsChargedAtMostOnce loses a tenth of all replies. An answered
// take is charged once. Any other is charged at most once.
func TestEachTakeIsChargedAtMostOnce(t *testing.T) {
	asks, callers := check.OrShort(10_000, 2_000), 16
	server := servertest.StartRedis(t)
	var lossy atomic.Bool
	proxy := servertest.StartProxy(t, server.Addr, func([]byte) bool { return lossy.Load() && rand.IntN(10) == 0 })
	s := open(t, "redis://"+proxy.Addr, Options{Prefix: "p:"})
	mustTake(t, s, charge("warm", frozen, 1))
	lossy.Store(true)

	var answered, lost atomic.Int64
	var next atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for next.Add(1) <= int64(asks) {
				switch _, err := take(s, charge("k", frozen, 1)); {
				case err == nil:
					answered.Add(1)
				case !strings.Contains(err.Error(), "connecting"):
					lost.Add(1)
				}
			}
		})
	}
	wg.Wait()
	lossy.Store(false)
	servertest.Eventually(t, "the store answers", func() error {
		_, err := take(s, charge("warm", frozen, 1))
		return err
	})
	level := levelOf(t, s, charge("k", frozen, 1))
	least, most := float64(answered.Load())-leaked, float64(answered.Load()+lost.Load())
	check.That(t, level >= least && level <= most, "charged with %d answered and %d lost of %d: got %v, want from %v to %v", answered.Load(), lost.Load(), asks, level, least, most)
	check.That(t, lost.Load() >= int64(asks)/1000, "got %d asks without a reply, want the proxy to lose some", lost.Load())
	t.Logf("%d answered, %d lost, %v charged", answered.Load(), lost.Load(), level)
}

// TestFlushedScriptsAreChargedOnce flushes the scripts every 100 ms, or as often
// as redis-cli can.
func TestFlushedScriptsAreChargedOnce(t *testing.T) {
	server, s := start(t, Options{})
	flushes := check.OrShort(300, 10)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		defer cancel()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for range flushes {
			<-tick.C
			server.Do("script", "flush")
		}
	})
	var poured [8]float64
	for w := range poured {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := takeWithin(s, charge(fmt.Sprint("k", w), frozen, 1), patience); err != nil {
					t.Errorf("take: %v", err)
					return
				}
				poured[w]++
			}
		})
	}
	wg.Wait()
	for w, want := range poured {
		got := levelOf(t, s, charge(fmt.Sprint("k", w), frozen, 1))
		check.That(t, got <= want && got >= want-leaked && got != 0, "level of k%d after %d flushes: got %v, want %v, the sum of what was poured", w, flushes, got, want)
	}
}
