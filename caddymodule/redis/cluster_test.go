package redis

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/redisstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/sharedstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// timeout is long, since a busy machine may be slow as well.
const timeout = 400 * time.Millisecond

// One of three masters is gone, and no replica takes over, or one does. Half of the
// requests are for its buckets.
func TestADeadMasterOfAClusterHoldsUpNobodyElse(t *testing.T) {
	for _, test := range []struct {
		how      string
		fail     func(master, replica *servertest.Redis)
		survives bool
	}{
		{"killed with its replica", func(master, replica *servertest.Redis) { replica.Kill(); master.Kill() }, false},
		{"stopped with its replica", func(master, replica *servertest.Redis) { replica.Pause(); master.Pause() }, false},
		{"killed", func(master, _ *servertest.Redis) { master.Kill() }, true},
		{"stopped", func(master, _ *servertest.Redis) { master.Pause() }, true},
	} {
		t.Run(test.how, func(t *testing.T) {
			if testing.Short() && test.survives {
				t.Skip("SKIPPED: much the same as without a replica; run without -short")
			}
			t.Parallel()
			c := servertest.StartRedisCluster(t)
			for _, node := range c.Nodes {
				node.Do("config", "set", "cluster-require-full-coverage", "no")
			}
			store, err := redisstore.New(redisstore.Options{URL: c.URL()})
			if err != nil {
				t.Fatal(err)
			}
			backend := sharedstore.NewBackend("cluster", store, memstore.New(memstore.Options{}))
			t.Cleanup(func() { _ = backend.Destruct() })
			s := backend.With(sharedstore.Options{Timeout: timeout})

			master, replica := masterAndReplica(t, c)
			var theirs, others []leakybucket.Charge
			for i := 0; len(theirs) < 100 || len(others) < 100; i++ {
				charge := leakybucket.Charge{Zone: "z", Key: fmt.Sprint(i), Limit: leakybucket.Limit{Capacity: 1e6, Leak: 1}, Cost: 1}
				if strings.HasPrefix(master.Do("get", redisstore.DefaultPrefix+"{}z/"+charge.Key), "MOVED") {
					others = append(others, charge)
				} else {
					theirs = append(theirs, charge)
				}
			}
			flood(t, s, theirs, others, 100) // all is well
			if backend.Failing() {
				t.Fatal("before any failure: got it failing")
			}
			test.fail(master, replica)
			requests := 1200
			if testing.Short() {
				requests = 400
			}
			waited, fellBack := flood(t, s, theirs, others, requests)
			shards, down := backend.Shards()
			t.Logf("of %d requests for the dead master %d waited the whole timeout; of as many for the others %d fell back; %d of %d shards are down", requests, waited, fellBack, down, shards)
			if waited > 50 || fellBack > 0 {
				t.Errorf("got %d requests that waited and %d of other masters that fell back, want at most 50 and none", waited, fellBack)
			}
			if want := map[bool]int{true: 0, false: 1}[test.survives]; shards != 3 || down != want {
				t.Errorf("got %d of %d shards down, want %d of 3", down, shards, want)
			}
			// A take of both falls back as a whole.
			both := []leakybucket.Charge{theirs[0], others[0]}
			decisions := make([]leakybucket.Decision, 2)
			if err := s.Take(t.Context(), both, decisions); err != nil {
				t.Fatal(err)
			}
			for i := range decisions {
				if got := sharedstore.FellBack(&decisions[i]); got == test.survives {
					t.Errorf("a take of both, charge %d: got decided here %v, want %v", i, got, !test.survives)
				}
			}
		})
	}
}

// flood takes so many charges of each kind, fifty a second. It returns how many of
// those of the dead waited for the whole timeout, and how many of the others fell back.
func flood(t *testing.T, s *sharedstore.Store, dead, well []leakybucket.Charge, requests int) (waited, fellBack int64) {
	var crowd sync.WaitGroup
	var slow, elsewhere atomic.Int64
	take := func(c leakybucket.Charge, then func(took time.Duration, fellBack bool)) {
		crowd.Go(func() {
			began, d := time.Now(), make([]leakybucket.Decision, 1)
			if err := s.Take(t.Context(), []leakybucket.Charge{c}, d); err != nil {
				t.Error(err)
			}
			then(time.Since(began), sharedstore.FellBack(&d[0]))
		})
	}
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for i := range requests {
		take(dead[i%len(dead)], func(took time.Duration, _ bool) {
			if took >= timeout {
				slow.Add(1)
			}
		})
		take(well[i%len(well)], func(_ time.Duration, fellBack bool) {
			if fellBack {
				elsewhere.Add(1)
			}
		})
		<-ticker.C
	}
	crowd.Wait()
	return slow.Load(), elsewhere.Load()
}

// masterAndReplica returns a master of a cluster and its replica.
func masterAndReplica(t *testing.T, c *servertest.RedisCluster) (master, replica *servertest.Redis) {
	t.Helper()
	for _, node := range c.Nodes {
		if strings.HasPrefix(node.Do("role"), "master") {
			master = node
		}
	}
	for _, node := range c.Nodes {
		if strings.Contains(node.Do("role"), fmt.Sprint(master.Port)) && strings.HasPrefix(node.Do("role"), "slave") {
			replica = node
		}
	}
	if replica == nil {
		t.Fatalf("replica of %s: got none", master.Addr)
	}
	return master, replica
}
