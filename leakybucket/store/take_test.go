package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	. "github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/testseed"
)

// A shelf keeps buckets as a store does.
type shelf map[string]State

func bucketOf(c Charge) string {
	if c.Shadow {
		return "~" + c.Key
	}
	return c.Key
}

func (s shelf) take(charges []Charge, now Instant) []Decision {
	states, decisions := make([]State, len(charges)), make([]Decision, len(charges))
	for i, c := range charges {
		states[i] = s[bucketOf(c)]
	}
	TakeAll(charges, states, now, decisions)
	for i, c := range charges {
		s[bucketOf(c)] = states[i]
	}
	return decisions
}

// A plainBucket counts in whole units and seconds. It leaks one unit a second.
type plainBucket struct{ level, at, until int }

type plainShelf map[string]*plainBucket

const plainBlock = 7 // seconds

// take says in as few words as possible what TakeAll does.
func (s plainShelf) take(charges []Charge, now int) []Decision {
	sums := make(map[string]int)
	for _, c := range charges {
		name := bucketOf(c)
		if s[name] == nil {
			s[name] = &plainBucket{}
		}
		b := s[name]
		b.level, b.at = max(0, b.level-(now-b.at)), now
		sums[name] += max(0, int(c.Cost))
	}
	decisions := make([]Decision, len(charges))
	enforcedFit, allFit := true, true
	for i, c := range charges {
		b, sum, d := s[bucketOf(c)], sums[bucketOf(c)], &decisions[i]
		capacity := int(c.Limit.Capacity)
		room := capacity
		if c.Ceiling > 0 {
			room = min(room, int(c.Ceiling))
		}
		isBlocked := c.Block != nil && b.until > now
		d.Fits = !isBlocked && c.Cost >= 0 && b.level+max(sum, 1) <= room
		if !d.Fits && !isBlocked && c.Block != nil && c.Cost >= 0 && sum <= capacity {
			b.until, d.Began, isBlocked = now+plainBlock, true, true
		}
		if isBlocked {
			d.BlockedUntil = at(float64(b.until))
		}
		d.At, d.Level = at(float64(now)), float64(b.level)
		if !d.Fits {
			allFit = false
			enforcedFit = enforcedFit && c.Shadow
		}
	}
	for i, c := range charges {
		if b := s[bucketOf(c)]; !c.Probe && (c.Shadow && allFit || !c.Shadow && enforcedFit) {
			decisions[i].Poured, decisions[i].Level = true, float64(b.level)
			b.level += int(c.Cost)
		}
	}
	return decisions
}

// randomCharges returns some charges to few buckets, in whole units. All to one bucket
// have one limit and one block.
func randomCharges(rng *rand.Rand) []Charge {
	all := make([]Charge, 1+rng.IntN(5))
	for i := range all {
		kind := rng.IntN(4)
		c := &all[i]
		*c = Charge{
			Key:    string(rune('a' + kind)),
			Limit:  Limit{Capacity: []float64{3, 5, 8, 12}[kind], Leak: 1},
			Cost:   []float64{0, 1, 1, 1, 1, 2, 2, 3, 13, -1}[rng.IntN(10)],
			Probe:  rng.IntN(8) == 0,
			Shadow: rng.IntN(2) == 0,
		}
		if kind%2 == 0 {
			c.Block = ladder(plainBlock * time.Second)
		}
		if rng.IntN(6) == 0 {
			c.Ceiling = float64(1 + rng.IntN(4))
		}
	}
	return all
}

func TestTakeAllIsThePlainModel(t *testing.T) {
	seed := testseed.Of(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	var poured, shadowPoured, shadowHeld, blocks int
	for run := range 500 {
		kept, plain := shelf{}, plainShelf{}
		for step, now := 0, 1000; step < 100; step++ {
			now += max(0, rng.IntN(6)-3)
			charges := randomCharges(rng)
			got, want := kept.take(charges, at(float64(now))), plain.take(charges, now)
			check.Assume(t, slices.Equal(got, want), "seed %d, run %d, step %d, %+v: got %+v, want %+v", seed, run, step, charges, got, want)
			for _, c := range charges {
				s, b := kept[bucketOf(c)], plain[bucketOf(c)]
				if level := c.Limit.Level(s, at(float64(now))); level != float64(b.level) || s.BlockedUntil != at(float64(b.until)) {
					t.Fatalf("seed %d, run %d, step %d, %+v: bucket %s is left as %+v, want %+v", seed, run, step, charges, bucketOf(c), s, b)
				}
			}
			enforcedFit, allFit := Fit(charges, got)
			for i, c := range charges {
				switch {
				case got[i].Poured && c.Shadow:
					shadowPoured++
				case got[i].Poured:
					poured++
				case c.Shadow && enforcedFit && !allFit && got[i].Fits && !c.Probe:
					shadowHeld++
				}
				if got[i].Began {
					blocks++
				}
			}
		}
	}
	t.Logf("seed %d: %d enforced and %d shadow charges poured, %d shadow charges held back by shadow, %d blocks", seed, poured, shadowPoured, shadowHeld, blocks)
	check.That(t, min(poured, shadowPoured, shadowHeld, blocks) >= 1000, "got too few of one kind to tell")
}

// What is wholly in shadow decides as if it were enforced.
func TestAllInShadowIsAllEnforced(t *testing.T) {
	seed := testseed.Of(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	for run := range 100 {
		enforced, shadowed := shelf{}, shelf{}
		for step, now := 0, Instant(0); step < 100; step++ {
			now += Instant(rng.IntN(1_500_000))
			charges := randomCharges(rng)
			for i := range charges {
				charges[i].Shadow = false
				charges[i].Cost *= 1.1
			}
			want := enforced.take(charges, now)
			for i := range charges {
				charges[i].Shadow = true
			}
			got := shadowed.take(charges, now)
			check.Assume(t, slices.Equal(got, want), "seed %d, run %d, step %d, %+v: got %+v in shadow, want %+v", seed, run, step, charges, got, want)
		}
	}
}

// TakeAll is Charge.Take where one charge stands alone.
func TestTakeAllOfOneChargeIsItsTake(t *testing.T) {
	for _, l := range []*Ladder{nil, ladder(), ladder(time.Second, time.Minute)} {
		for _, cost := range []float64{0, 1, 5, 10, 11, -1, nan, inf} {
			for _, level := range []float64{0, 5, 10, 20} {
				for _, until := range []float64{0, 999.5, 1000, 1000.5, 1001, 1050, 2000} {
					for _, then := range []float64{990, 1000, 1005, 2000} {
						c := blocking(l)
						c.Cost, c.Ceiling, c.Probe = cost, level/2, until == 1050
						s := State{Level: level, At: at(then), BlockedUntil: at(until)}
						var d, dd [1]Decision
						states := []State{s}
						c.Take(&s, at(1000), &d[0])
						TakeAll([]Charge{c}, states, at(1000), dd[:])
						if d != dd || states[0] != s {
							t.Errorf("%s: got %+v and %+v together, want %+v and %+v as alone", fmt.Sprint(c), dd, states[0], d, s)
						}
					}
				}
			}
		}
	}
}
