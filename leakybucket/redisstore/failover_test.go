package redisstore

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// long says that nothing else runs on the machine, so that times may be held to bounds. The
// servers are processes of their own, and as busy as the machine.
func long() bool { return os.Getenv("TEST_LONG") == "1" }

// failovers is how many a test makes.
func failovers() int {
	if long() {
		return 20
	}
	return 1
}

// A load takes from a few buckets as fast as possible, with a deadline of 50 ms
// for each take, and counts the charges poured.
type load struct {
	store  *Store
	limit  leakybucket.Limit
	began  time.Time
	poured [20]atomic.Int64
	takes  atomic.Int64 // answered

	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// startLoad begins a load, and waits until all buckets are full.
func startLoad(t *testing.T, s *Store) *load {
	t.Helper()
	b := &load{store: s, limit: leakybucket.Limit{Capacity: 50, Leak: 5}, began: time.Now()}
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel = cancel
	for range 4 {
		b.wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				b.once(i % len(b.poured))
			}
		})
	}
	servertest.Eventually(t, "all buckets are full", func() error {
		for key := range b.poured {
			if got := b.poured[key].Load(); got < int64(b.limit.Capacity) {
				return fmt.Errorf("got %d into k%d, want %v", got, key, b.limit.Capacity)
			}
		}
		return nil
	})
	return b
}

func (b *load) once(key int) {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	decisions := make([]leakybucket.Decision, 1)
	err := b.store.Take(ctx, []leakybucket.Charge{charge(fmt.Sprint("k", key), b.limit, 1)}, decisions)
	if err != nil {
		<-time.After(time.Millisecond) // no breaker stands before this store
		return
	}
	b.takes.Add(1)
	if decisions[0].Poured {
		b.poured[key].Add(1)
	}
}

// answered waits until all buckets answer, in a long test for 3 s at most. Then it waits until each caller has asked many times.
func (b *load) answered(t *testing.T) {
	t.Helper()
	promoted := time.Now()
	servertest.Eventually(t, "takes are answered again", func() error {
		for key := range b.poured {
			if _, err := take(b.store, charge(fmt.Sprint("k", key), b.limit, 1000)); err != nil {
				return err
			}
		}
		return nil
	})
	took := time.Since(promoted)
	t.Logf("answered %v after the promotion", took)
	if long() && took > 3*time.Second+heart.Lost(promoted) {
		t.Errorf("recovery: got it %v after the promotion, want it within 3 s", took)
	}
	enough := b.takes.Load() + 3000
	servertest.Eventually(t, "everybody has asked again and again", func() error {
		if got := b.takes.Load(); got < enough {
			return fmt.Errorf("got %d takes, want %d", got, enough)
		}
		return nil
	})
}

// stop ends the load, and checks the bound on what was admitted: one capacity more
// for each failover.
func (b *load) stop(t *testing.T, failovers int) {
	t.Helper()
	b.cancel()
	b.wg.Wait()
	elapsed := time.Since(b.began).Seconds()
	most := b.limit.Capacity*float64(1+failovers) + b.limit.Leak*elapsed
	worst := 0.0
	for key := range b.poured {
		got := float64(b.poured[key].Load())
		worst = math.Max(worst, got-b.limit.Capacity-b.limit.Leak*elapsed)
		check.That(t, got <= most+1e-6, "admitted by k%d in %.1f s with %d failovers: got %v, want at most %v", key, elapsed, failovers, got, most)
	}
	t.Logf("most over the bound without failovers: %.1f of %v", math.Max(0, worst), b.limit.Capacity)
}

func TestASentinelFailoverAdmitsAtMostOneCapacityMore(t *testing.T) {
	w := servertest.StartRedisSentinel(t)
	b := startLoad(t, open(t, w.URL(), Options{}))
	n := failovers()
	for i := range n {
		if i > 0 {
			w.Settled() // for which a Sentinel takes its time
		}
		w.Failover(i%2 == 0)
		b.answered(t)
	}
	b.stop(t, n)
}

func TestAForcedClusterFailoverAdmitsAtMostOneCapacityMore(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	b := startLoad(t, open(t, c.URL(), Options{}))
	n := failovers()
	for range n {
		c.Failover()
		b.answered(t)
		c.Settled()
	}
	b.stop(t, n)
}

// A server that keeps nothing on disk forgets all buckets when it dies.
func TestAServerThatDiesAdmitsAtMostOneCapacityMore(t *testing.T) {
	server := servertest.StartRedis(t)
	b := startLoad(t, open(t, "redis://"+server.Addr, Options{}))
	cycles := min(failovers()+1, 20)
	for range cycles {
		server.Kill()
		_, err := take(b.store, charge("k0", b.limit, 1))
		check.That(t, err != nil, "got an answer of a server that is dead")
		server.Start()
		began := time.Now()
		b.answered(t)
		if back := time.Since(began); long() && back > time.Second+heart.Lost(began) {
			t.Errorf("enforcement after a restart: got it %v after, want it within a second", back)
		}
	}
	b.stop(t, cycles)
}

// An address that led to the master may lead to a replica later.
func TestADemotedServerIsLeftOnceItsAddressLeadsToAnother(t *testing.T) {
	old := servertest.StartRedis(t)
	next := servertest.StartRedis(t)
	proxy := servertest.StartProxy(t, old.Addr, nil)
	s := open(t, "redis://"+proxy.Addr, Options{})
	mustTake(t, s, charge("k", frozen, 1))
	old.Do("replicaof", "127.0.0.1", fmt.Sprint(next.Port))
	proxy.Lead(next.Addr)
	began := time.Now()
	servertest.Eventually(t, "the store has found the new master", func() error {
		_, err := take(s, charge("k", frozen, 1))
		return err
	})
	if took := time.Since(began); long() && took > 3*time.Second+heart.Lost(began) {
		t.Errorf("got to the new master after %v, want it within 3 s", took)
	}
}

// Before Redis 7, the errors of a script begin with where it stood.
func TestADemotedRedis6IsLeftToo(t *testing.T) {
	var connected atomic.Int64
	s := open(t, "redis://"+startFake(t, func(_, read string) string {
		if strings.Contains(read, "HELLO") {
			connected.Add(1)
			return hello
		}
		return "-ERR Error running script (call to f_1): @user_script:5: @user_script: 5: -READONLY You can't write against a read only replica.\r\n"
	}), Options{})
	servertest.Eventually(t, "another connection", func() error {
		_, err := take(s, charge("k", frozen, 1))
		if connected.Load() > 1 {
			return nil
		}
		check.That(t, strings.Contains(fmt.Sprint(err), "want the master's address"), "got %v, want an error that says what to do", err)
		return err
	})
}

func TestAServerMayBeDownWhenTheStoreIsMade(t *testing.T) {
	server := servertest.PrepareRedis(t)
	s := open(t, "redis://"+server.Addr, Options{})
	_, err := take(s, charge("k", frozen, 1))
	check.That(t, err != nil, "take with no server: got no error")
	server.Start()
	servertest.Eventually(t, "the server that came up answers", func() error {
		_, err := take(s, charge("k", frozen, 1))
		return err
	})
}

// Requests in flight may use a store while it closes, and after.
func TestAClosedStoreSaysSo(t *testing.T) {
	_, s := start(t, Options{})
	mustTake(t, s, charge("k", frozen, 1))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				if _, err := take(s, charge("k", frozen, 1)); err != nil {
					return
				}
			}
		})
	}
	for range 2 {
		s.Close()
	}
	wg.Wait()
	_, err := take(s, charge("k", frozen, 1))
	check.That(t, err != nil, "take of a closed store: got no error")
	check.That(t, ping(s) != nil, "ping of a closed store: got no error")
}
