package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/redisstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// TestRedisStoreBesideRedisRate compares redisstore with redis_rate, on one
// server and in the same seconds. Both share the processors with the server, so
// on a busy machine the difference looks smaller.
func TestRedisStoreBesideRedisRate(t *testing.T) {
	skipShort(t)
	for _, test := range []struct {
		keys  int
		least float64 // times as many a second, on a machine that does other things
	}{{1, 2}, {10_000, 1.3}} {
		t.Run(fmt.Sprintf("keys=%d", test.keys), func(t *testing.T) {
			server := servertest.StartRedis(t)
			ours, theirs := openRedisStore(t, server.Addr), openRedisRate(t, server.Addr)
			var o, r figure
			for range 10 {
				o = o.better(ours.turn(t, test.keys, 250*time.Millisecond))
				r = r.better(theirs.turn(t, test.keys, 250*time.Millisecond))
			}
			ratio, tail := o.rate/r.rate, o.p99.Seconds()/r.p99.Seconds()
			t.Logf("redisstore %.0f/s p50 %v p99 %v; redis_rate %.0f/s p50 %v p99 %v; %.2f times as many, p99 %.2f of its",
				o.rate, o.p50, o.p99, r.rate, r.p50, r.p99, ratio, tail)
			check.That(t, ratio >= test.least && tail <= 0.8, "got %.2f times as many a second and a p99 of %.2f of redis_rate's, want at least %v and at most 0.8", ratio, tail, test.least)
		})
	}
}

func openRedisStore(t testing.TB, addr string) sharedLimiter {
	s := check.Must(redisstore.Open("redis://"+addr, redisstore.Options{}))(t)
	t.Cleanup(s.Close)
	limit := leakybucket.Limit{Capacity: 1e6, Leak: 100}
	return sharedLimiter{"redisstore", func(ctx context.Context, key string) error {
		charge := [1]leakybucket.Charge{{Zone: "site", Key: key, Limit: limit, Cost: 1, Debt: 1e6}}
		var decision [1]leakybucket.Decision
		err := s.Take(ctx, charge[:], decision[:])
		if err == nil && !decision[0].Poured {
			err = fmt.Errorf("got %+v, want it poured", decision[0])
		}
		return err
	}}
}

func openRedisRate(t testing.TB, addr string) sharedLimiter {
	client := redis.NewClient(&redis.Options{Addr: addr, PoolSize: sharedCallers})
	t.Cleanup(func() { _ = client.Close() })
	limiter := redis_rate.NewLimiter(client)
	limit := redis_rate.Limit{Rate: 100, Burst: 1e6, Period: time.Second}
	return sharedLimiter{"redis_rate", func(ctx context.Context, key string) error {
		result, err := limiter.Allow(ctx, key, limit)
		if err == nil && result.Allowed != 1 {
			err = fmt.Errorf("got %+v, want it allowed", result)
		}
		return err
	}}
}
