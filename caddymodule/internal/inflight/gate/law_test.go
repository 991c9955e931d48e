package gate

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

// A swarmed request is one of a swarm.
type swarmed struct {
	Slot
	at, service time.Duration
	leaves      time.Duration // after its arrival, if it waits; 0: never
}

// A schedule is what will happen, in order.
type schedule []occasion

type occasion struct {
	at time.Duration
	do func(now time.Duration)
}

func (s *schedule) then(at time.Duration, do func(now time.Duration)) {
	i, _ := slices.BinarySearchFunc(*s, at, func(o occasion, at time.Duration) int { return cmp.Or(cmp.Compare(o.at, at), -1) })
	*s = slices.Insert(*s, i, occasion{at, do})
}

func (s *schedule) run() {
	for len(*s) > 0 {
		next := (*s)[0]
		*s = (*s)[1:]
		next.do(next.at)
	}
}

// byTurns returns what becomes of requests with share, by the law alone: a schedule, and calls
// of the queue.
func byTurns(l Limits, all []swarmed) []Result {
	var plan schedule
	queue, fates := &fairqueue.Queue{All: new(fairqueue.Common)}, make([]Result, len(all))
	queue.SetLimits(l)
	waits := make([]bool, len(all))
	end := func(i int, why Why, now time.Duration) {
		fates[i].Why, fates[i].Waited, waits[i] = why, now-all[i].at, false
	}
	var serve func(i int, r *fairqueue.Request, now time.Duration)
	serve = func(i int, r *fairqueue.Request, now time.Duration) {
		end(i, Admitted, now)
		plan.then(now+all[i].service, func(done time.Duration) {
			queue.Release(r, done-now)
			for next := queue.Next(); next != nil; next = queue.Next() {
				serve(next.Owner.(int), next, done)
			}
		})
	}
	for i, s := range all {
		plan.then(s.at, func(now time.Duration) {
			r := &fairqueue.Request{Claim: s.Claim, Owner: i}
			becomes, displaced := queue.Arrive(r)
			if displaced != nil {
				end(displaced.Owner.(int), QueueFull, now)
			}
			switch becomes {
			case fairqueue.Served:
				serve(i, r, now)
			case fairqueue.Waiting:
				waits[i] = true
				leave := func(after time.Duration, why Why) {
					plan.then(now+after, func(now time.Duration) {
						if waits[i] {
							queue.Leave(r)
							end(i, why, now)
						}
					})
				}
				if leave(l.Wait, TooLong); s.leaves > 0 {
					leave(s.leaves, Left)
				}
			case fairqueue.TooLong:
				fates[i].Why = TooLong
			default:
				fates[i].Why = QueueFull
			}
		})
	}
	plan.run()
	return fates
}

// byArrival returns what becomes of requests without share: the law of places written down as
// plainly as it can be, with one list that is searched for everything.
func byArrival(l Limits, all []swarmed) []Result {
	var plan schedule
	fates, running := make([]Result, len(all)), make(map[string]int)
	var waiting []int // in the order of arrival
	count := func(is func(r *swarmed) bool) (n int) {
		for _, i := range waiting {
			if is(&all[i]) {
				n++
			}
		}
		return n
	}
	held := func(i int) int { return count(func(r *swarmed) bool { return r.From == all[i].From }) }
	end := func(i int, why Why, now time.Duration) {
		if n := slices.Index(waiting, i); n >= 0 {
			waiting = slices.Delete(waiting, n, n+1)
			fates[i].Why, fates[i].Waited = why, now-all[i].at
		}
	}
	var serve func(i int, now time.Duration)
	serve = func(i int, now time.Duration) {
		end(i, Admitted, now)
		key := all[i].Key
		running[key]++
		plan.then(now+all[i].service, func(now time.Duration) {
			running[key]--
			if n := slices.IndexFunc(waiting, func(i int) bool { return all[i].Key == key }); n >= 0 {
				serve(waiting[n], now)
			}
		})
	}
	for i, s := range all {
		plan.then(s.at, func(now time.Duration) {
			if running[s.Key] < l.Slots {
				serve(i, now)
				return
			}
			if l.Wait > 0 && held(i) >= l.Queue-len(waiting) {
				last := -1
				for _, j := range waiting {
					if n := held(j); n >= held(i)+2 && (last < 0 || n >= held(last)) {
						last = j
					}
				}
				if fates[i].Why = QueueFull; last >= 0 {
					end(last, QueueFull, now)
					fates[i].Why = Admitted
				}
			}
			if l.Wait == 0 {
				fates[i].Why = Busy
			}
			if fates[i].Why == Admitted {
				waiting = append(waiting, i)
				plan.then(now+l.Wait, func(now time.Duration) { end(i, TooLong, now) })
				if s.leaves > 0 {
					plan.then(now+s.leaves, func(now time.Duration) { end(i, Left, now) })
				}
			}
		})
	}
	plan.run()
	return fates
}

// byGate returns what becomes of them at a gate.
func byGate(t *testing.T, l Limits, all []swarmed) []Result {
	fates := make([]Result, len(all))
	inBubble(t, func(t *testing.T, g *Gate) {
		began := time.Now()
		for i, s := range all {
			time.Sleep(time.Until(began.Add(s.at)))
			ctx, leave := context.WithCancel(t.Context())
			if s.leaves > 0 {
				time.AfterFunc(s.leaves, leave)
			}
			go func() {
				defer leave()
				slot := s.Slot
				if fates[i] = g.Enter(ctx, nil, l, &slot); fates[i].Why == Admitted {
					time.Sleep(s.service)
					slot.Release(true)
				}
			}()
			synctest.Wait()
			wantSums(t, g)
		}
	})
	return fates
}

// swarm returns n requests, of some clients more than of others, and so dense that everything
// occurs. Greedy keys are few, and others come once.
func swarm(random *rand.Rand, n, keys, clients int) (all []swarmed) {
	upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) + 1 }
	var at time.Duration
	for i := range n {
		at += upTo(100 * time.Millisecond)
		r := swarmed{at: at, service: upTo(1500 * time.Millisecond)}
		if r.Key = fmt.Sprint(random.IntN(keys)); random.IntN(6) == 0 {
			r.leaves = upTo(2 * time.Second)
		}
		r.From, r.Rank = from(random.IntN(1+random.IntN(clients))), fairqueue.Rank(random.IntN(fairqueue.Ranks))
		if r.Keys[0] = fmt.Sprint("greedy", random.IntN(5)); random.IntN(2) == 0 {
			r.Keys = [2]string{fmt.Sprint("fresh", i), fmt.Sprint("pass", random.IntN(60))}
		}
		all = append(all, r)
	}
	return all
}

// wantFates sends swarms through a gate, and compares what becomes of them with a law.
func wantFates(t *testing.T, rounds uint64, law func(Limits, []swarmed) []Result, next func(*rand.Rand) (Limits, []swarmed), whys ...Why) {
	t.Helper()
	seed, seen := testseed.Of(t), make(map[Why]int)
	t.Log("seed:", seed)
	for round := range rounds {
		l, all := next(rand.New(rand.NewPCG(seed, round)))
		got, want := byGate(t, l, all), law(l, all)
		for i := range want {
			if seen[want[i].Why]++; got[i] != want[i] {
				t.Fatalf("round %d, request %d: got %+v, want %+v", round, i, got[i], want[i])
			}
		}
	}
	for _, why := range whys {
		check.That(t, seen[why] >= 100, "got %v only %d times, want more to test", why, seen[why])
	}
}

// The gate adds nothing to the law of turns, and leaves nothing out.
func TestTheGateDoesToASwarmWhatTheLawSays(t *testing.T) {
	wantFates(t, 5, byTurns, func(random *rand.Rand) (Limits, []swarmed) {
		all := swarm(random, 2000, 1, 1)
		for i := range all {
			all[i].From = from(i)
		}
		return Limits{Slots: 5, Wait: 2500 * time.Millisecond, Queue: 20, Share: true}, all
	}, Admitted, TooLong, QueueFull, Left)
}

func TestPlacesAreGivenAsTheLawSays(t *testing.T) {
	wantFates(t, 60, byArrival, func(random *rand.Rand) (Limits, []swarmed) {
		l := Limits{Slots: 1 + random.IntN(3), Queue: random.IntN(40)}
		if random.IntN(10) > 0 {
			l.Wait = time.Duration(1 + random.Int64N(5e9))
		}
		return l, swarm(random, 300, 1+random.IntN(3), 1+random.IntN(20))
	}, Admitted, Busy, QueueFull, TooLong, Left)
}
