package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/redisstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// callers is how many requests a Caddy may have in flight at once.
const callers = 64

// A remote limiter allows a request by its key, or returns an error.
type remote func(ctx context.Context, key string) error

// TestRedisStoreBesideRedisRate compares redisstore with redis_rate, on one
// server and in the same seconds. Both share the processors with the server, so
// on a busy machine the difference looks smaller.
func TestRedisStoreBesideRedisRate(t *testing.T) {
	skipShort(t)
	for _, test := range []struct {
		keys        int
		least, busy float64 // times as many a second: with TEST_LONG=1, and on a machine that does other things
	}{{1, 3, 2}, {10_000, 1.8, 1.3}} {
		t.Run(fmt.Sprintf("keys=%d", test.keys), func(t *testing.T) {
			server := servertest.StartRedis(t)
			ours, theirs := openRedisStore(t, server.Addr), openRedisRate(t, server.Addr)
			var o, r run
			for range 10 {
				o = o.better(measure(t, ours, test.keys, 250*time.Millisecond))
				r = r.better(measure(t, theirs, test.keys, 250*time.Millisecond))
			}
			t.Logf("ceiling: %s", ceiling(t, server, test.keys))
			ratio, tail := o.perSecond/r.perSecond, o.p99.Seconds()/r.p99.Seconds()
			t.Logf("redisstore %.0f/s p50 %v p99 %v; redis_rate %.0f/s p50 %v p99 %v; %.2f times as many, p99 %.2f of its",
				o.perSecond, o.p50, o.p99, r.perSecond, r.p50, r.p99, ratio, tail)
			least, most := test.busy, 0.8
			if os.Getenv("TEST_LONG") == "1" {
				least, most = test.least, 0.5
			}
			if ratio < least || tail > most {
				t.Errorf("got %.2f times as many a second and a p99 of %.2f of redis_rate's, want at least %v and at most %v", ratio, tail, least, most)
			}
		})
	}
}

func openRedisStore(t testing.TB, addr string) remote {
	s, err := redisstore.Open("redis://"+addr, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	limit := leakybucket.Limit{Capacity: 1e6, Leak: 100}
	return func(ctx context.Context, key string) error {
		charge := [1]leakybucket.Charge{{Zone: "site", Key: key, Limit: limit, Cost: 1, Debt: 1e6}}
		var decision [1]leakybucket.Decision
		err := s.Take(ctx, charge[:], decision[:])
		if err == nil && !decision[0].Poured {
			err = fmt.Errorf("got %+v, want it poured", decision[0])
		}
		return err
	}
}

func openRedisRate(t testing.TB, addr string) remote {
	client := redis.NewClient(&redis.Options{Addr: addr, PoolSize: callers})
	t.Cleanup(func() { _ = client.Close() })
	limiter := redis_rate.NewLimiter(client)
	limit := redis_rate.Limit{Rate: 100, Burst: 1e6, Period: time.Second}
	return func(ctx context.Context, key string) error {
		result, err := limiter.Allow(ctx, key, limit)
		if err == nil && result.Allowed != 1 {
			err = fmt.Errorf("got %+v, want it allowed", result)
		}
		return err
	}
}

// A run is the result of callers that never pause.
type run struct {
	perSecond float64
	p50, p99  time.Duration
}

// measure runs all callers for a while, with the deadlines that a Caddy has.
func measure(t *testing.T, ask remote, keys int, d time.Duration) run {
	t.Helper()
	names := make([]string, keys)
	for i := range names {
		names[i] = ipv4(uint32(i)).String()
	}
	var taken [callers][]time.Duration
	var wg sync.WaitGroup
	began := time.Now()
	for caller := range callers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(caller), 1))
			for time.Since(began) < d {
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				asked := time.Now()
				err := ask(ctx, names[rng.IntN(keys)])
				taken[caller] = append(taken[caller], time.Since(asked))
				cancel()
				if err != nil {
					t.Errorf("asking: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(began)
	all := slices.Concat(taken[:]...)
	slices.Sort(all)
	if len(all) == 0 {
		t.FailNow()
	}
	return run{float64(len(all)) / elapsed.Seconds(), all[len(all)/2], all[len(all)*99/100]}
}

// ceiling runs take.lua with one request per call by redis-benchmark, which keeps
// 64 calls in flight on each connection and ignores the replies.
func ceiling(t *testing.T, server *servertest.Redis, keys int) string {
	t.Helper()
	text := ""
	for _, name := range []string{"bucket.lua", "take.lua"} {
		part, err := os.ReadFile("../leakybucket/redisstore/" + name)
		if err != nil {
			t.Fatal(err)
		}
		text += string(part) + "\n"
	}
	digest := server.Do("script", "load", text)
	out, err := exec.Command("redis-benchmark", "-p", strconv.Itoa(server.Port), "-P", "64", "-c", "4", "-n", "100000", "-r", strconv.Itoa(keys), "-q",
		"evalsha", digest, "1", "throttle:site/__rand_int__", "1", "", ".l 1e+06 100 1e+06 0", "1").CombinedOutput()
	if err != nil {
		return fmt.Sprintf("not measured: %v", err)
	}
	lines := strings.FieldsFunc(string(out), func(r rune) bool { return r == '\r' || r == '\n' })
	_, rate, _ := strings.Cut(lines[len(lines)-1], ": ")
	return rate
}

// better returns the best of two runs in each respect, because other work on the
// machine can only make a run worse.
func (r run) better(other run) run {
	if r.perSecond == 0 {
		return other
	}
	return run{max(r.perSecond, other.perSecond), min(r.p50, other.p50), min(r.p99, other.p99)}
}
