package admission

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/inflight/fairqueue"
	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/virtual"
)

// A workshop is an upstream with workers and a queue of its own.
type workshop struct {
	world   *virtual.World
	free    int
	backlog []chan struct{}
	longest int
}

// work serves a request, or fails it at once if too many queue.
func (u *workshop) work(lasts time.Duration) (failed bool) {
	switch {
	case u.free > 0:
		u.free--
	case len(u.backlog) >= u.longest:
		return true
	default:
		turn := make(chan struct{})
		u.backlog = append(u.backlog, turn)
		u.world.Wait(turn)
	}
	u.world.Sleep(lasts)
	if len(u.backlog) > 0 {
		next := u.backlog[0]
		u.backlog = u.backlog[1:]
		u.world.Close(next)
	} else {
		u.free++
	}
	return false
}

// refusals returns which share of requests a zone refuses, or would in shadow, while
// as many come as are in load times what the workers can serve. In shadow clients leave
// after so long, unless that is zero. The proxy then takes the call back, and does not see
// that the upstream works on.
func refusals(load float64, shadow bool, patience time.Duration, seed uint64) float64 {
	const workers, mean, lasts = 5, .5, 600.
	random := rand.New(rand.NewPCG(seed, 14))
	world := virtual.New()
	upstream := &workshop{world: world, free: workers, longest: 511}
	zone, gate := &Zone{Name: "z", Clock: world}, new(Gate)
	refused, all := 0, 0
	tell := func(r Result) {
		all++
		if r.Why.Refused() {
			refused++
		}
	}
	began, at := world.Now(), 0.
	for n := 0; at < lasts; n++ {
		at += random.ExpFloat64() * mean / (load * workers)
		const sigma = .8
		service := time.Duration(mean * math.Exp(sigma*random.NormFloat64()-sigma*sigma/2) * float64(time.Second))
		world.Advance(began.Add(time.Duration(at * float64(time.Second))))
		entry := shared(zone, workers, fairqueue.First, fmt.Sprint(n))
		entry.MaxWait, entry.MaxWaiting = 5*time.Second, 200
		world.Go(func() {
			if shadow {
				s := Simulate(world.Now(), []Entry{entry}, tell)
				s.Begin()
				if patience > 0 {
					left := world.AfterFunc(patience, func() {
						s.Saw(ClientLeft)
						s.Release()
					})
					defer left.Stop()
				}
				if upstream.work(service) {
					s.Saw(Failed)
				}
				s.Release()
				return
			}
			p, result := gate.Admit(context.Background(), world.Now(), []Entry{entry}, nil)
			tell(result)
			if p != nil {
				upstream.work(service)
				p.Release()
			}
		})
	}
	world.Finish()
	if waiting, served := zone.Counts(); waiting+served > 0 || len(zone.keys) > 0 {
		panic(fmt.Sprintf("got %d waiting, %d served and %d keys left behind", waiting, served, len(zone.keys)))
	}
	return 100 * float64(refused) / float64(all)
}

// By the seconds that requests really take, which contain the upstream's own queue,
// shadow would refuse 40 % where enforcement refuses nobody.
func TestShadowRefusesAsManyAsEnforcementWithinThreePoints(t *testing.T) {
	const seeds = 3
	mean := func(load float64, shadow bool, patience time.Duration) (mean float64) {
		for seed := range uint64(seeds) {
			mean += refusals(load, shadow, patience, seed) / seeds
		}
		return mean
	}
	for _, load := range []float64{.7, .9, 1.1, 1.5, 2, 5} {
		truth := mean(load, false, 0)
		for _, patience := range []time.Duration{0, 30 * time.Second, 10 * time.Second} {
			shadow := mean(load, true, patience)
			t.Logf("load %v, clients leave after %v: enforcement refuses %.1f %%, shadow %.1f %%", load, patience, truth, shadow)
			if math.Abs(truth-shadow) > 3 {
				t.Errorf("load %v, clients leave after %v: got %.1f %% refused in shadow, want %.1f %%", load, patience, shadow, truth)
			}
		}
	}
}

func TestTheUpstreamWorksOnForABoundedNumberOfClientsThatHaveLeft(t *testing.T) {
	world := virtual.New()
	zone := &Zone{Name: "z", Clock: world}
	world.Go(func() {
		for n := range 2 * mostUnseen {
			s := Simulate(world.Now(), []Entry{shared(zone, 1, fairqueue.First, fmt.Sprint(n))}, func(Result) {})
			s.Begin()
			s.Saw(ClientLeft)
			s.Release()
		}
		if got := zone.keys["all"].pace.unseen; got != mostUnseen {
			t.Errorf("got %d requests that the upstream works on unseen, want %d", got, mostUnseen)
		}
	})
	world.Finish()
	if _, served := zone.Counts(); served > 0 || len(zone.keys) > 0 {
		t.Errorf("got %d served and %d keys left behind, want none", served, len(zone.keys))
	}
	if took := world.Now().Sub(time.Time{}); took < mostUnseen*time.Second || took > 2*mostUnseen*time.Second {
		t.Errorf("got them all worked on after %v, want a second for each", took)
	}
}
