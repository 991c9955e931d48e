package redisstore

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// TestClusterPrefix: all buckets share a slot, whatever clients write in their keys.
func TestClusterPrefix(t *testing.T) {
	server := servertest.StartRedis(t, "--cluster-enabled", "yes")
	for prefix, valid := range map[string]bool{
		"": true, "{shop}:": true, "a}b{shop}": true, "{{}": true,
		"shop:": false, "{}": false, "{}{shop}": false, "{shop": false,
	} {
		s, err := Open("redis+cluster://127.0.0.1:1", Options{Prefix: prefix})
		check.That(t, (err == nil) == valid, "prefix %q: got error %v, want one: %v", prefix, err, !valid)
		if err != nil {
			continue
		}
		slot := server.Do("cluster", "keyslot", s.name("zone", "a", false))
		for _, key := range []string{s.name("other", "{same}1", true), s.name("", "}{x}", false), s.registryKey(), s.prefix} {
			check.Equal(t, server.Do("cluster", "keyslot", key), slot, "prefix %q: the slot of %q", prefix, key)
		}
		s.Close()
	}
}

// owners returns the master of a slot and another master, with their IDs.
func owners(t *testing.T, c *servertest.RedisCluster, key string) (from, to *servertest.Redis, fromID, toID string) {
	t.Helper()
	for _, node := range c.Nodes {
		if !strings.HasPrefix(node.Do("role"), "master") {
			continue
		}
		id := node.Do("cluster", "myid")
		if strings.HasPrefix(node.Do("get", key), "MOVED") {
			to, toID = node, id
		} else {
			from, fromID = node, id
		}
	}
	return from, to, fromID, toID
}

// While a slot moves, calls of several keys are refused that are on two servers. What is answered is
// charged once, and nothing fails afterwards. The documented user may ask both servers.
func TestTakesAreChargedOnceWhileTheirSlotMoves(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	for _, node := range c.Nodes {
		for _, words := range []string{"ACL SETUSER throttle on", "ACL SETUSER throttle '~{"} {
			check.Need(t, node.Do(documented(t, words)...), "OK", "from the server")
		}
	}
	s := open(t, c.URL(), Options{Prefix: "{shop}:", Username: "throttle", Password: "a-long-password"})
	const keys, callers = 40, 16
	var poured [keys]atomic.Int64
	take := func(i int) error {
		all := []leakybucket.Charge{charge(fmt.Sprint(i), frozen, 1), charge(fmt.Sprint((i+1)%keys), frozen, 1)}[:1+i%2]
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		err := s.Take(ctx, all, make([]leakybucket.Decision, len(all)))
		if err == nil {
			for j := range all {
				poured[(i+j)%keys].Add(1)
			}
		}
		return err
	}
	for i := range keys {
		check.OK(t, take(i))
	}
	var refused atomic.Int64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for w := range callers {
		wg.Go(func() {
			for i := w; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := take(i % keys); err != nil {
					refused.Add(1)
					check.That(t, strings.Contains(err.Error(), "TRYAGAIN"), "while a slot moves: got %v, want TRYAGAIN", err)
				}
			}
		})
	}
	move(t, c, keys)
	close(stop)
	wg.Wait()
	t.Logf("%d takes refused", refused.Load())
	for i := range keys {
		check.NoError(t, take(i), "after the move")
	}
	for i := range keys {
		want := float64(poured[i].Load())
		got := levelOf(t, s, charge(fmt.Sprint(i), frozen, 1))
		check.That(t, math.Abs(got-want) <= leaked, "level of bucket %d: got %v, want %v", i, got, want)
	}
}

// move moves the slot of {shop} from one master to another, key by key.
func move(t *testing.T, c *servertest.RedisCluster, keys int) {
	t.Helper()
	from, to, fromID, toID := owners(t, c, "{shop}")
	slot := from.Do("cluster", "keyslot", "{shop}")
	to.Do("cluster", "setslot", slot, "importing", fromID)
	from.Do("cluster", "setslot", slot, "migrating", toID)
	for i := range keys {
		from.Do("migrate", "127.0.0.1", fmt.Sprint(to.Port), fmt.Sprintf("{shop}:zone/%d", i), "0", "5000")
	}
	to.Do("cluster", "setslot", slot, "node", toID)
	from.Do("cluster", "setslot", slot, "node", toID)
}
