package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	caddyrl "github.com/mholt/caddy-ratelimit"
	sethvargo "github.com/sethvargo/go-limiter/memorystore"
	throttled "github.com/throttled/throttled/v2"
	throttledmem "github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	ululemem "github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// A limit admits a burst, and then one more in each interval.
type limit struct {
	burst int
	every time.Duration
}

var (
	// No benchmark can exhaust the first two. With the second, a bucket that was
	// asked once is kept for five seconds, so filling a store with a million
	// buckets drops none.
	bottomless = limit{1e9, time.Second / 2}
	roomy      = limit{1e8, 5 * time.Second}

	closed  = limit{1, 24 * time.Hour}
	lasting = limit{100, time.Hour}
)

// A limiter opens stores that keep a bucket for each of many keys, all with one
// limit.
type limiter struct {
	name string
	open func(limit) store
}

type store struct {
	taker func() take // each goroutine needs one of its own
	close func()
}

// A take asks the bucket of a key for one unit, and reports whether it was
// allowed.
type take func(key string) bool

func nothing() {}

var limiters = []limiter{
	{"Limiter", openMemstore},
	{"Store.Take", openStore}, // as throttle calls it
	{"sethvargo", openSethvargo},
	{"xtime", openXTime},
	{"throttled", openThrottled},
	{"ulule", openUlule},
	{"caddy-ratelimit", openCaddyRateLimit},
}

func openMemstore(l limit) store {
	// Twice as many as needed, because some shards fill sooner by chance.
	buckets, err := leakybucket.NewLimiter(memstore.New(memstore.Options{MaxBuckets: 2 * manyKeys}),
		leakybucket.Limit{Capacity: float64(l.burst), Leak: 1 / l.every.Seconds()}, leakybucket.LimiterOptions{})
	if err != nil {
		panic(err)
	}
	return store{func() take {
		return func(key string) bool { return buckets.Allow(key) }
	}, nothing}
}

// ownLimiters is how many of the limiters are ours.
const ownLimiters = 2

func openStore(l limit) store {
	buckets := memstore.New(memstore.Options{MaxBuckets: 2 * manyKeys})
	of := leakybucket.Limit{Capacity: float64(l.burst), Leak: 1 / l.every.Seconds()}
	return store{func() take {
		charges, decisions := []leakybucket.Charge{{Zone: "site", Limit: of, Cost: 1, Debt: of.Capacity}}, make([]leakybucket.Decision, 1)
		return func(key string) bool {
			charges[0].Key = key
			return buckets.Take(context.Background(), charges, decisions) == nil && decisions[0].Poured
		}
	}, nothing}
}

func openSethvargo(l limit) store {
	buckets, err := sethvargo.New(&sethvargo.Config{Tokens: uint64(l.burst), Interval: time.Duration(l.burst) * l.every})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	return store{func() take {
		return func(key string) bool {
			_, _, _, ok, err := buckets.Take(ctx, key)
			return err == nil && ok
		}
	}, func() { _ = buckets.Close(ctx) }}
}

// openXTime opens a map of golang.org/x/time/rate limiters, as most people would
// write it. It forgets nothing.
func openXTime(l limit) store {
	var mu sync.Mutex
	buckets := make(map[string]*rate.Limiter)
	return store{func() take {
		return func(key string) bool {
			mu.Lock()
			bucket := buckets[key]
			if bucket == nil {
				bucket = rate.NewLimiter(rate.Every(l.every), l.burst)
				buckets[key] = bucket
			}
			mu.Unlock()
			return bucket.Allow()
		}
	}, nothing}
}

// openThrottled opens throttled's store without a bound. It forgets nothing and
// is the faster of throttled's two.
func openThrottled(l limit) store {
	kept, err := throttledmem.NewCtx(0)
	if err != nil {
		panic(err)
	}
	quota := throttled.RateQuota{MaxRate: throttled.PerDuration(1, l.every), MaxBurst: l.burst - 1}
	buckets, err := throttled.NewGCRARateLimiterCtx(kept, quota)
	if err != nil {
		panic(err)
	}
	// By default it fails after ten attempts to swap a value that others swap,
	// too.
	buckets.SetMaxCASAttemptsLimit(math.MaxInt)
	ctx := context.Background()
	return store{func() take {
		return func(key string) bool {
			limited, _, err := buckets.RateLimitCtx(ctx, key, 1)
			return err == nil && !limited
		}
	}, nothing}
}

// openUlule opens a fixed window, which is all that it has.
func openUlule(l limit) store {
	window := ulule.Rate{Period: time.Duration(l.burst) * l.every, Limit: int64(l.burst)}
	buckets := ulule.New(ululemem.NewStore(), window)
	ctx := context.Background()
	return store{func() take {
		return func(key string) bool {
			state, err := buckets.Get(ctx, key)
			return err == nil && !state.Reached
		}
	}, nothing}
}

// startOnce starts a Caddy without sites, whose log is thrown away.
var startOnce = sync.OnceFunc(func() {
	must(caddy.Load([]byte(`{"admin":{"disabled":true,"config":{"persist":false}},"logging":{"logs":{"default":{"writer":{"output":"discard"}}}}}`), false))
})

// zones counts those of caddy-ratelimit, which keeps a zone's limiters by its name for as
// long as the process lives.
var zones atomic.Int64

// openCaddyRateLimit opens the whole handler of caddy-ratelimit, which has no library
// inside. Of a refusal it measures the error, but not what Caddy makes of it. It keeps the
// instants of as many events as a limit allows, so limits are of ten.
func openCaddyRateLimit(l limit) store {
	events, window := 10, time.Nanosecond // so that nobody exceeds it
	switch l {
	case closed:
		events, window = 1, l.every
	case lasting:
		window = l.every
	}
	startOnce()
	ctx, cancel := caddy.NewContext(caddy.ActiveContext())
	handler := new(caddyrl.Handler)
	name := fmt.Sprint("zone ", zones.Add(1))
	config := fmt.Sprintf(`{"sweep_interval":"24h","rate_limits":{%q:{"key":"{http.request.header.X-Key}","max_events":%d,"window":%d}}}`, name, events, window)
	must(json.Unmarshal([]byte(config), handler))
	must(handler.Provision(ctx))
	return store{func() take {
		served := false
		next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
			served = true
			return nil
		})
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		replacer := caddyhttp.NewTestReplacer(r)
		r = r.WithContext(context.WithValue(r.Context(), caddy.ReplacerCtxKey, replacer))
		value := make([]string, 1)
		r.Header["X-Key"] = value
		return func(key string) bool {
			value[0], served = key, false
			return handler.ServeHTTP(w, r, next) == nil && served
		}
	}, func() {
		must(handler.Cleanup())
		cancel()
	}}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
