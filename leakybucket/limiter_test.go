package leakybucket_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	bucketstore "github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

func newLimiter(t *testing.T, store leakybucket.Store, capacity, leak float64, o leakybucket.LimiterOptions) *leakybucket.Limiter {
	t.Helper()
	l := check.Must(leakybucket.NewLimiter(store, leakybucket.Limit{Capacity: capacity, Leak: leak}, o))(t)
	return l
}

// anyStore is a store without the short way.
type anyStore struct{ leakybucket.Store }

// TestTheShortWayIsNoOther: over a store in memory, a limiter does as over any other, to the last
// digit, whatever is taken, settled, waited for, left and changed.
func TestTheShortWayIsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seed := testseed.Of(t)
		rng := rand.New(rand.NewPCG(seed, 0))
		fast := newLimiter(t, memstore.New(memstore.Options{}), 10, 1, leakybucket.LimiterOptions{})
		general := newLimiter(t, anyStore{memstore.New(memstore.Options{})}, 10, 1, leakybucket.LimiterOptions{Zone: "z"})
		for step := range 3000 {
			key, cost := fmt.Sprint(rng.IntN(3)), math.Round(40*rng.Float64())/4
			switch rng.IntN(6) {
			case 0:
				time.Sleep(time.Duration(rng.IntN(5000)) * time.Millisecond) // virtual
			case 1:
				longest := time.Duration(rng.IntN(10_000)) * time.Millisecond
				wait := func(wait func(context.Context) error) (got time.Duration, err error) {
					began := time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), longest)
					defer cancel()
					err = wait(ctx)
					return time.Since(began), err
				}
				var one, other time.Duration
				var oneErr, otherErr error
				var both sync.WaitGroup
				both.Go(func() {
					one, oneErr = wait(func(ctx context.Context) error { return fast.Wait(ctx, key, cost) })
				})
				both.Go(func() {
					other, otherErr = wait(func(ctx context.Context) error { return general.Wait(ctx, key, cost) })
				})
				both.Wait()
				check.Assume(t, one == other && fmt.Sprint(oneErr) == fmt.Sprint(otherErr), "seed %d, step %d: waiting for %v: got %v, %v and %v, %v", seed, step, cost, one, oneErr, other, otherErr)
			case 2:
				limit := leakybucket.Limit{Capacity: 5 + float64(rng.IntN(10)), Leak: 1 + float64(rng.IntN(3))}
				check.Assume(t, fast.SetLimit(limit) == nil && general.SetLimit(limit) == nil && fast.Limit() == general.Limit(), "seed %d, step %d: %v was refused", seed, step, limit)
			default:
				one, other := must(fast.Take(t.Context(), key, cost)), must(general.Take(t.Context(), key, cost))
				check.Assume(t, one == other, "seed %d, step %d: taking %v: got %+v and %+v", seed, step, cost, one, other)
				if rng.IntN(2) == 0 {
					actual := max(0, cost+math.Round(20*rng.NormFloat64())/4)
					check.OK(t, errors.Join(fast.Settle(t.Context(), key, one, actual), general.Settle(t.Context(), key, other, actual)))
				}
			}
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestWaitingAdmitsNoMoreThanTheLimit: callers wait, leave and take at random; those who
// were served never exceed the bound, and those who wait are served in their order.
func TestWaitingAdmitsNoMoreThanTheLimit(t *testing.T) {
	for trial := range 20 {
		synctest.Test(t, func(t *testing.T) {
			seed := testseed.Of(t) + uint64(trial)
			rng := rand.New(rand.NewPCG(seed, 0))
			limit := leakybucket.Limit{Capacity: 1 + float64(rng.IntN(10)), Leak: 0.5 + 3*rng.Float64()}
			l := newLimiter(t, memstore.New(memstore.Options{}), limit.Capacity, limit.Leak, leakybucket.LimiterOptions{})
			type served struct {
				at   time.Time
				cost float64
			}
			var mu sync.Mutex
			var all []served
			serve := func(cost float64) {
				mu.Lock()
				defer mu.Unlock()
				all = append(all, served{time.Now(), cost})
			}
			var callers sync.WaitGroup
			for range 200 {
				time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
				cost := limit.Capacity * rng.Float64()
				if rng.IntN(3) == 0 {
					if must(l.Take(t.Context(), "k", cost)).Fits {
						serve(cost)
					}
					continue
				}
				ctx, leave := context.WithCancel(t.Context())
				if rng.IntN(2) == 0 {
					time.AfterFunc(time.Duration(rng.IntN(20_000))*time.Millisecond, leave)
				}
				callers.Go(func() {
					defer leave()
					if l.Wait(ctx, "k", cost) == nil {
						serve(cost)
					}
				})
				synctest.Wait()
			}
			callers.Wait()
			for i, first := range all {
				sum := 0.0
				for _, s := range all[i:] {
					sum += s.cost
					window := s.at.Sub(first.at) + 10*time.Microsecond // each wait is rounded
					most := limit.Capacity*(1+1e-6) + limit.Leak*window.Seconds()
					check.Assume(t, sum <= most, "seed %d: got %v served within %v, want at most %v", seed, sum, window, most)
				}
			}
			check.That(t, len(all) >= 50, "seed %d: got only %d of 200 served", seed, len(all))
		})
	}
}

// A brokenStore fails, or does not answer.
type brokenStore struct{ silent bool }

var errBroken = errors.New("broken")

func (s brokenStore) Take(ctx context.Context, _ []leakybucket.Charge, _ []leakybucket.Decision) error {
	if !s.silent {
		return errBroken
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s brokenStore) Settle(ctx context.Context, _ []leakybucket.Settlement) error {
	return s.Take(ctx, nil, nil)
}

func TestALimiterDecidesWithoutItsStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			name   string
			store  leakybucket.Store
			o      leakybucket.LimiterOptions
			fits   bool
			err    error
			within time.Duration
		}{
			{"fails", brokenStore{}, leakybucket.LimiterOptions{}, true, errBroken, 0},
			{"fails, and is to refuse", brokenStore{}, leakybucket.LimiterOptions{FailClosed: true}, false, errBroken, 0},
			{"is silent", brokenStore{silent: true}, leakybucket.LimiterOptions{}, true, context.DeadlineExceeded, 50 * time.Millisecond},
			{"is silent for a second", brokenStore{silent: true}, leakybucket.LimiterOptions{Timeout: time.Second, FailClosed: true}, false, context.DeadlineExceeded, time.Second},
		} {
			l := newLimiter(t, test.store, 10, 1, test.o)
			began := time.Now()
			got, err := l.Take(t.Context(), "k", 1)
			if want := (leakybucket.Result{Fits: test.fits, Undecided: true}); got != want || !errors.Is(err, test.err) || time.Since(began) != test.within {
				t.Errorf("a store that %s: got %+v, %v after %v", test.name, got, err, time.Since(began))
			}
			check.Equal(t, l.Allow("k"), test.fits, "a store that %s: allowed", test.name)
			check.NoError(t, l.Settle(t.Context(), "k", got, 5), "a store that %s: settling what it was not asked", test.name)
			err = l.Wait(t.Context(), "k", 1)
			check.That(t, (err == nil) == test.fits, "a store that %s: waiting: got %v", test.name, err)
			check.That(t, l.Reset(t.Context(), "k") != nil, "a store that %s and cannot empty a bucket: got no error", test.name)
		}
	})
}

// An embedding store has all of one in memory, but a Take of its own.
type embedding struct{ *memstore.Store }

func (embedding) Take(context.Context, []leakybucket.Charge, []leakybucket.Decision) error {
	return errBroken
}

func TestTheShortWayPassesNoTakeOfAnother(t *testing.T) {
	l := newLimiter(t, embedding{memstore.New(memstore.Options{})}, 10, 1, leakybucket.LimiterOptions{})
	_, err := l.Take(t.Context(), "k", 1)
	check.Is(t, err, errBroken, "a take of a store around one in memory")
}

// TestACallerWhoLeaves: that is no failure of the store, so no policy for one lets the cost fit.
func TestACallerWhoLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, brokenStore{silent: true}, 10, 1, leakybucket.LimiterOptions{})
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, leave)
		got, err := l.Take(ctx, "k", 1)
		check.That(t, !got.Fits && err == context.Canceled, "got %+v, %v, want it refused with %v", got, err, context.Canceled)
		check.Equal(t, l.Wait(ctx, "k", 1), context.Canceled, "waiting")
		was := must(newLimiter(t, memstore.New(memstore.Options{}), 10, 1, leakybucket.LimiterOptions{}).Take(t.Context(), "k", 1))
		check.Is(t, l.Settle(ctx, "k", was, 5), context.DeadlineExceeded, "settling, which goes on for as long as the store may take")
	})
}

// A lateStore goes on when its caller has left, against the contract, and reads the charges then.
type lateStore struct {
	mu   sync.Mutex
	keys []string
}

func (s *lateStore) Take(ctx context.Context, charges []leakybucket.Charge, _ []leakybucket.Decision) error {
	go func() {
		time.Sleep(time.Second) // virtual
		s.mu.Lock()
		defer s.mu.Unlock()
		s.keys = append(s.keys, charges[0].Key)
	}()
	<-ctx.Done()
	return ctx.Err()
}

func (s *lateStore) Settle(context.Context, []leakybucket.Settlement) error { return nil }

// TestChargesOfOthers: even a store that keeps its arguments charges nobody else.
func TestChargesOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(lateStore)
		l := newLimiter(t, store, 10, 1, leakybucket.LimiterOptions{})
		l.Allow("alice")
		l.Allow("mallory")
		time.Sleep(2 * time.Second) // virtual
		store.mu.Lock()
		defer store.mu.Unlock()
		check.Equal(t, fmt.Sprint(store.keys), "[alice mallory]", "charged, want each once")
	})
}

func TestALimitPerCall(t *testing.T) {
	store := memstore.New(memstore.Options{})
	for _, l := range []*leakybucket.Limiter{
		newLimiter(t, store, 2, 0.001, leakybucket.LimiterOptions{Zone: "a"}),
		newLimiter(t, anyStore{store}, 2, 0.001, leakybucket.LimiterOptions{Zone: "b"}),
	} {
		pro := leakybucket.Limit{Capacity: 5, Leak: 0.001}
		for i := range 6 {
			got, err := l.TakeLimit(t.Context(), "k", 1, pro)
			check.That(t, err == nil && got.Fits == (i < 5) && math.Round(got.Remaining) == float64(max(0, 4-i)), "take %d: got %+v, %v", i, got, err)
		}
		check.That(t, !l.Allow("k") && l.Allow("other"), "a key that has used up a larger limit fits a smaller one, or another does not")
		got, err := l.TakeLimit(t.Context(), "new", 1, leakybucket.Limit{Capacity: 5})
		check.That(t, err != nil && !got.Fits, "an invalid limit: got %+v, %v", got, err)
	}
}

func TestALimiterRefusesWhatMakesNoSense(t *testing.T) {
	store := memstore.New(memstore.Options{})
	valid := leakybucket.Limit{Capacity: 10, Leak: 1}
	for _, test := range []struct {
		store leakybucket.Store
		limit leakybucket.Limit
		zone  string
	}{{nil, valid, "z"}, {store, leakybucket.Limit{}, "z"}, {store, valid, "a/b"}, {store, valid, "~a"}, {store, valid, "@a"}, {store, valid, "a b"}, {store, valid, "ä"}, {store, valid, strings.Repeat("z", 101)}} {
		l, err := leakybucket.NewLimiter(test.store, test.limit, leakybucket.LimiterOptions{Zone: test.zone})
		check.That(t, err != nil && l == nil, "%+v: got %v, %v, want nil and an error", test, l, err)
	}
	l := newLimiter(t, store, 10, 1, leakybucket.LimiterOptions{})
	err := l.SetLimit(leakybucket.Limit{Capacity: -1})
	check.That(t, err != nil && l.Limit().Capacity == 10, "a bad limit: got %v, %v, want it refused and the former one kept", err, l.Limit())
	for _, cost := range []float64{11, -1, math.NaN(), math.Inf(1)} {
		got := must(l.Take(t.Context(), "k", cost))
		check.That(t, !got.Fits && got.RetryAfter == 0, "a cost of %v: got %+v, want it refused for good", cost, got)
		check.That(t, l.Wait(t.Context(), "k", cost) != nil, "waiting for a cost of %v: got no error", cost)
	}
	must(l.Take(t.Context(), "k", 10))
	check.That(t, l.Reset(t.Context(), "k") == nil && must(l.Take(t.Context(), "k", 10)).Fits, "after a reset: got no room")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	check.Is(t, l.Wait(ended, "k", 1), context.Canceled, "waiting with a context that has ended")
}

// TestALongKey: a client that writes its own key cannot make the store keep all of it.
func TestALongKey(t *testing.T) {
	store := memstore.New(memstore.Options{})
	for _, l := range []*leakybucket.Limiter{
		newLimiter(t, store, 10, 1e-6, leakybucket.LimiterOptions{Zone: "z"}),
		newLimiter(t, anyStore{store}, 10, 1e-6, leakybucket.LimiterOptions{Zone: "any"}),
	} {
		for _, length := range []int{256, 257, 1 << 17} {
			key := strings.Repeat("x", length)
			r := must(l.Take(t.Context(), key, 1))
			check.OK(t, l.Settle(t.Context(), key, r, 4))
			check.OK(t, l.Wait(t.Context(), key, 5))
			r = must(l.Take(t.Context(), key, 9))
			check.That(t, math.Round(r.Level) == 9 && must(l.Take(t.Context(), key+"y", 1)).Level == 1, "%d bytes: got %+v, want 9 in a bucket of its own", length, r)
		}
	}
	for b, err := range bucketstore.ListAll(t.Context(), store, bucketstore.Filter{Zone: "z", Scan: 100}) {
		check.That(t, err == nil && len(b.Key) <= 256, "got a key of %d bytes, %v", len(b.Key), err)
	}
}
