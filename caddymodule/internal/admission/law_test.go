package admission

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/virtual"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

// A swarmed request is one of a swarm.
type swarmed struct {
	at, service time.Duration
	rank        fairqueue.Rank
	keys        [2]string
}

// swarm returns the requests of some minutes: people, robots that come once, and robots
// that share passes or addresses. More come than five workers can serve.
func swarm(random *rand.Rand, n int) (all []swarmed) {
	var at time.Duration
	upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) + 1 }
	for i := range n {
		at += upTo(100 * time.Millisecond)
		r := swarmed{at: at, service: upTo(1500 * time.Millisecond), rank: fairqueue.First}
		switch random.IntN(6) {
		case 0:
			r.rank, r.keys = fairqueue.Member, [2]string{fmt.Sprint("member", random.IntN(10))}
		case 1:
			r.rank, r.keys = fairqueue.Returned, [2]string{fmt.Sprint("address", random.IntN(40)), fmt.Sprint("pass", random.IntN(20))}
		case 2:
			r.rank, r.keys = fairqueue.Crawler, [2]string{fmt.Sprint("crawler", random.IntN(3))}
		case 3:
			r.keys[0] = fmt.Sprint("greedy", random.IntN(2))
		default:
			r.keys[0] = fmt.Sprint("fresh", i)
		}
		all = append(all, r)
	}
	return all
}

// A fate is what becomes of a request.
type fate struct {
	why       Why
	waited    time.Duration
	ahead     int
	predicted time.Duration
}

var swarmLimits = fairqueue.Limits{InFlight: 5, MaxWait: 2500 * time.Millisecond, MaxWaiting: 20}

// byTheLaw returns what becomes of requests by the law alone: a list of events, and
// calls of the queue.
func byTheLaw(all []swarmed) []fate {
	type occasion struct {
		at time.Duration
		do func(now time.Duration)
	}
	var occasions []occasion
	then := func(at time.Duration, do func(time.Duration)) {
		i, _ := slices.BinarySearchFunc(occasions, at, func(o occasion, at time.Duration) int { return cmp.Or(cmp.Compare(o.at, at), -1) })
		occasions = slices.Insert(occasions, i, occasion{at, do})
	}
	queue, fates := &fairqueue.Queue{Common: new(fairqueue.Common)}, make([]fate, len(all))
	queue.SetLimits(swarmLimits)
	var serve func(i int, r *fairqueue.Request, now time.Duration)
	serve = func(i int, r *fairqueue.Request, now time.Duration) {
		fates[i].why, fates[i].waited = Admitted, now-all[i].at
		then(now+all[i].service, func(end time.Duration) {
			queue.Release(r, end-now)
			for next := queue.Next(); next != nil; next = queue.Next() {
				serve(next.Owner.(int), next, end)
			}
		})
	}
	for i, s := range all {
		then(s.at, func(now time.Duration) {
			r := &fairqueue.Request{Rank: s.rank, Keys: s.keys, Owner: i}
			d := queue.Arrive(r)
			fates[i].ahead, fates[i].predicted = d.Ahead, d.Predicted
			if d.Displaced != nil {
				j := d.Displaced.Owner.(int)
				fates[j].why, fates[j].waited = QueueFull, now-all[j].at
			}
			switch d.Outcome {
			case fairqueue.Served:
				serve(i, r, now)
			case fairqueue.Waiting:
				then(now+swarmLimits.MaxWait, func(now time.Duration) {
					if queue.Leave(r) {
						fates[i].why, fates[i].waited = TimedOut, now-s.at
					}
				})
			case fairqueue.TooLong:
				fates[i].why = TooLong
			default:
				fates[i].why = QueueFull
			}
		})
	}
	for len(occasions) > 0 {
		o := occasions[0]
		occasions = occasions[1:]
		o.do(o.at)
	}
	return fates
}

// byAdmission returns what becomes of them in an enforced zone.
func byAdmission(t *testing.T, all []swarmed) []fate {
	world := virtual.New()
	zone, gate, fates := &Zone{Name: "z", Clock: world}, new(Gate), make([]fate, len(all))
	most := 0
	for i, s := range all {
		world.Advance(time.Time{}.Add(s.at))
		world.Go(func() {
			entries := []Entry{shared(zone, swarmLimits.InFlight, s.rank, "")}
			e := &entries[0]
			e.MaxWait, e.MaxWaiting, e.Turn.Keys = swarmLimits.MaxWait, swarmLimits.MaxWaiting, s.keys
			p, result := gate.Admit(context.Background(), world.Now(), entries, nil)
			fates[i] = fate{result.Why, result.Waited, e.Turn.Ahead, e.Turn.Predicted}
			if p == nil {
				return
			}
			waiting, served := zone.Counts()
			most = max(most, served)
			if k := zone.keys["all"]; k != nil && k.slots.Len() != waiting {
				t.Errorf("got %d in the rows and %d waiting, want as many", k.slots.Len(), waiting)
			}
			world.Sleep(s.service)
			p.Release()
		})
	}
	world.Finish()
	if most > swarmLimits.InFlight {
		t.Errorf("got %d slots held at once, want %d", most, swarmLimits.InFlight)
	}
	wantEmpty(t, zone)
	return fates
}

// The gate adds nothing to the law, and leaves nothing out.
func TestAdmissionDoesToASwarmWhatTheLawSays(t *testing.T) {
	seed := testseed.Of(t)
	t.Log("seed:", seed)
	seen := make(map[Why]int)
	for round := range uint64(10) {
		all := swarm(rand.New(rand.NewPCG(seed, round)), 2000)
		want, got := byTheLaw(all), byAdmission(t, all)
		for i := range want {
			seen[want[i].why]++
			if got[i] != want[i] {
				t.Fatalf("round %d, request %d of rank %v: got %+v, want %+v", round, i, all[i].rank, got[i], want[i])
			}
		}
	}
	for _, why := range []Why{Admitted, TimedOut, TooLong, QueueFull} {
		if seen[why] < 100 {
			t.Errorf("got %v only %d times, want more to test", why, seen[why])
		}
	}
}

// 100,000 addresses with a request each leave nothing behind, and never more keys than
// requests that wait or hold a slot.
func TestASwarmNeedsNoMoreStateThanRowsAndSlots(t *testing.T) {
	world := virtual.New()
	zone, gate := &Zone{Name: "z", Clock: world}, new(Gate)
	most := 0
	for i := range 100_000 {
		world.Advance(time.Time{}.Add(time.Duration(i) * time.Millisecond))
		world.Go(func() {
			entry := shared(zone, 5, fairqueue.First, fmt.Sprint(i))
			entry.MaxWait, entry.MaxWaiting = 5*time.Second, 200
			if p, _ := gate.Admit(context.Background(), world.Now(), []Entry{entry}, nil); p != nil {
				world.Sleep(200 * time.Millisecond)
				p.Release()
			}
		})
		waiting, served := zone.Counts()
		keys := 0
		for _, k := range zone.keys {
			keys += k.slots.Keys()
		}
		if most = max(most, keys); keys > waiting+served {
			t.Fatalf("got %d keys of %d requests, want no more", keys, waiting+served)
		}
	}
	world.Finish()
	if most < 10 || most > 205 {
		t.Errorf("got %d keys at most, want some and no more than rows and slots have places", most)
	}
	wantEmpty(t, zone)
}
