package gate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// Clients leave at any time, handlers panic, slots are released twice, configs change the limits
// and share comes and goes: no more are served than may be, and nothing is lost.
func TestARaceForSlotsLosesNone(t *testing.T) {
	var ended [Left + 1]atomic.Int32
	for seed := range uint64(20) {
		inBubble(t, func(t *testing.T, g *Gate) {
			const keys, slots = 2, 3
			var served [keys]atomic.Int32
			limits := func(random *rand.Rand) Limits {
				l := Limits{Slots: slots, Wait: time.Duration(random.IntN(4)) * time.Millisecond, Queue: 20, Share: seed%4 == 1}
				if seed%2 == 0 {
					l.Slots, l.Queue, l.Share = 1+random.IntN(slots), 2+random.IntN(20), random.IntN(3) > 0
				}
				if l.Share {
					l.Wait *= 1000 // the mean begins at a second
				}
				return l
			}
			visit := func(random *rand.Rand) {
				defer func() { _ = recover() }()
				ctx, leave := context.WithTimeout(t.Context(), time.Duration(1+random.IntN(8000))*time.Microsecond)
				defer leave()
				n := random.IntN(8)
				l, s := limits(random), turn(n%5, fairqueue.Rank(random.IntN(fairqueue.Ranks)), fmt.Sprint(n))
				key := random.IntN(keys)
				s.Key = fmt.Sprint(key)
				result := g.Enter(ctx, nil, l, &s)
				defer s.Release(random.IntN(2) == 0)
				if ended[result.Why].Add(1); result.Why != Admitted {
					return
				}
				got := int(served[key].Add(1))
				check.That(t, got <= slots, "got %d served at once, want at most %d", got, slots)
				over := sync.OnceFunc(func() { served[key].Add(-1) })
				defer over()
				switch random.IntN(4) {
				case 0:
					panic("handler")
				case 1:
					over()
					s.Release(true)
					time.Sleep(time.Millisecond)
				default:
					time.Sleep(time.Duration(random.IntN(1500)) * time.Microsecond)
				}
			}
			var all sync.WaitGroup
			for n := range uint64(40) {
				all.Go(func() {
					random := rand.New(rand.NewPCG(seed, n))
					for range 20 {
						visit(random)
					}
				})
			}
			random := rand.New(rand.NewPCG(seed, 100))
			for range 60 {
				time.Sleep(time.Millisecond)
				wantSums(t, g)
				g.SetLimits(limits(random))
				g.Load()
			}
			all.Wait()
		})
	}
	for _, why := range []Why{Admitted, Busy, TooLong, QueueFull, Left} {
		n := ended[why].Load()
		check.That(t, n >= 50, "got %v only %d times, want more to test", why, n)
	}
}
