package admission

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/caddymodule/internal/fairqueue"
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
// as many come as are in load times what the workers can serve.
func refusals(load float64, shadow bool, seed uint64) float64 {
	const workers, mean, lasts = 5, .5, 600.
	random := rand.New(rand.NewPCG(seed, 14))
	world := virtual.New()
	defer world.End()
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
				s := Simulate(world.Now(), entry, tell)
				s.Begin()
				if upstream.work(service) {
					s.Fail()
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
	for _, load := range []float64{.7, .9, 1.1, 1.5, 2, 5} {
		var truth, shadow float64
		const seeds = 1
		for seed := range uint64(seeds) {
			truth += refusals(load, false, seed) / seeds
			shadow += refusals(load, true, seed) / seeds
		}
		t.Logf("load %v: enforcement refuses %.1f %%, shadow %.1f %%", load, truth, shadow)
		if math.Abs(truth-shadow) > 3 {
			t.Errorf("load %v: got %.1f %% refused in shadow, want %.1f %%", load, shadow, truth)
		}
	}
}
