package sharedstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

// A split store has four shards: that of the sum of a key's bytes.
type split struct {
	remote
	dead  atomic.Int64 // the shard that hangs; -1 if none does
	calls atomic.Int64 // that hung
	moved atomic.Int64 // added to the numbers of all shards
}

const shardsOfSplit = 4

func (s *split) Shard(c *leakybucket.Charge) int {
	sum := 0
	for _, b := range []byte(c.Zone + c.Key) {
		sum += int(b)
	}
	return sum%shardsOfSplit + int(s.moved.Load())
}

// Take asks all shards at once, and pours nothing if one fails.
func (s *split) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	dead := func(c leakybucket.Charge) bool { return int64(s.Shard(&c)) == s.dead.Load() }
	if !slices.ContainsFunc(charges, dead) {
		return s.remote.Take(ctx, charges, decisions)
	}
	s.calls.Add(1)
	<-ctx.Done()
	return fmt.Errorf("taking: %w", &leakybucket.ShardError{Shards: []int{int(s.dead.Load())}, Err: ctx.Err()})
}

func (s *split) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	if shard := s.Shard(&settlements[0].Charge); int64(shard) == s.dead.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.remote.Settle(ctx, settlements)
}

func (s *split) Reset(ctx context.Context, zone, key string, shadow bool) error {
	if int64(s.Shard(&leakybucket.Charge{Zone: zone, Key: key})) == s.dead.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.remote.Reset(ctx, zone, key, shadow)
}

// startSplit returns a node of a split store that is well.
func startSplit(t *testing.T, o Options) (*node, *split) {
	t.Helper()
	s := &split{remote: remote{Store: memstore.New(memstore.Options{})}}
	s.dead.Store(-1)
	n := &node{T: t, remote: &s.remote, local: memstore.New(memstore.Options{}), witness: new(witness)}
	n.backend = NewBackend("test", s, n.local)
	n.Store = n.backend.With(o)
	n.backend.Attach(n.witness)
	t.Cleanup(func() {
		_ = n.backend.Destruct()
		<-time.After(time.Second)
		synctest.Wait()
	})
	return n, s
}

// in is an hourly charge to a bucket of a shard of a split store.
func in(shard int, capacity float64) leakybucket.Charge {
	c := hourly(capacity, 1)
	for i := 0; ; i++ {
		c.Key = fmt.Sprint("in", shard, i)
		if (&split{}).Shard(&c) == shard {
			return c
		}
	}
}

// One request in four is for a bucket of the shard that is dead.
func TestADeadShardIsLeftAlone(t *testing.T) {
	for _, test := range []struct{ perSecond, lasts int }{{1, 1200}, {400, 12}, {5000, 4}} {
		synctest.Test(t, func(t *testing.T) {
			n, s := startSplit(t, Options{})
			requests := func(count int) (ofDead, waited, fellBack int64) {
				var crowd sync.WaitGroup
				var of, slow, elsewhere atomic.Int64
				for i := range count {
					c := hourly(1e6, 1)
					c.Key = fmt.Sprint(i)
					crowd.Go(func() {
						began, dead := time.Now(), int64(s.Shard(&c)) == 1
						d := make([]leakybucket.Decision, 1)
						if err := n.Take(n.Context(), []leakybucket.Charge{c}, d); err != nil {
							t.Error(err)
						}
						if dead {
							of.Add(1)
						}
						if time.Since(began) >= n.timeout {
							slow.Add(1)
						}
						if !dead && FellBack(&d[0]) {
							elsewhere.Add(1)
						}
					})
					<-time.After(time.Second / time.Duration(test.perSecond))
				}
				crowd.Wait()
				return of.Load(), slow.Load(), elsewhere.Load()
			}
			requests(min(1000, 10*test.perSecond)) // all is well
			s.dead.Store(1)
			ofDead, waited, fellBack := requests(test.perSecond * test.lasts)
			t.Logf("%d requests a second: of %d for the dead shard %d waited the whole timeout; %d of the others fell back", test.perSecond, ofDead, waited, fellBack)
			// Those that come within the first timeout wait: one in four of them.
			most := int64(20 + test.perSecond/20/shardsOfSplit)
			if waited > most || fellBack > 0 {
				t.Errorf("%d requests a second: got %d that waited and %d of other shards that fell back, want at most %d and none", test.perSecond, waited, fellBack, most)
			}
			if shards, down := n.backend.Shards(); shards != shardsOfSplit || down != 1 {
				t.Errorf("got %d of %d shards down, want 1 of %d", down, shards, shardsOfSplit)
			}
		})
	}
}

// A site's bucket is in each of these takes, and its shard is well.
func TestAShardThatIsWellIsNotBlamedForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := startSplit(t, Options{})
		site, dead, well := in(0, 100), in(1, 100), in(2, 100)
		s.dead.Store(1)
		for range 10 {
			if _, d := n.ask(site, dead); !FellBack(&d[0]) || !FellBack(&d[1]) || !d[0].Poured || !d[1].Poured {
				t.Errorf("with a dead shard: got %+v, want all of it poured here", d)
			}
		}
		if got := s.calls.Load(); got != failuresToOpen {
			t.Errorf("got %d calls of the dead shard, want %d", got, failuresToOpen)
		}
		for _, c := range []leakybucket.Charge{site, well} {
			if _, d := n.take(c); FellBack(&d) {
				t.Errorf("%s, beside a dead shard: got it decided here, want it asked", c.Key)
			}
		}
		<-time.After(2 * reconcileEvery)
		synctest.Wait()
		if got := s.level(t, site); !near(got, 11) {
			t.Errorf("the site's bucket, after it was told: got a level of %v, want 11", got)
		}
		if got := s.level(t, dead); got != 0 {
			t.Errorf("the bucket of the dead shard: got a level of %v, want 0", got)
		}
		s.dead.Store(-1)
		<-time.After(longestHold + 3*patience)
		synctest.Wait()
		if got := s.level(t, dead); !near(got, 10) {
			t.Errorf("the bucket of the shard that was dead: got a level of %v, want 10", got)
		}
		if n.backend.Down() || n.backend.Failing() {
			t.Error("after it: got it down or failing, want it up")
		}
	})
}

func TestSettlementsBesideADeadShardAreMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := startSplit(t, Options{})
		well, dead := in(0, 100), in(1, 100)
		charges, decisions := n.ask(well, dead)
		s.dead.Store(1)
		began := time.Now()
		err := n.Settle(t.Context(), []leakybucket.Settlement{
			{Charge: charges[0], Was: decisions[0], Diff: 4}, {Charge: charges[1], Was: decisions[1], Diff: 4},
		})
		if err != nil || time.Since(began) != n.timeout/5 {
			t.Errorf("settling: got error %v after %v, want none after a fifth of the timeout", err, time.Since(began))
		}
		if got := s.level(t, well); !near(got, 5) {
			t.Errorf("beside a dead shard: got a level of %v, want 5", got)
		}
		s.dead.Store(-1)
		<-time.After(longestHold + 4*patience)
		synctest.Wait()
		if got := s.level(t, dead); !near(got, 5) {
			t.Errorf("after the outage: got a level of %v, want 5", got)
		}
		if got := s.level(t, well); !near(got, 5) {
			t.Errorf("the other one after the outage: got a level of %v, want 5 still", got)
		}
	})
}

func TestReleasesBesideADeadShardAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := startSplit(t, Options{})
		well, dead := in(0, 100), in(1, 100)
		n.ask(well, dead)
		s.dead.Store(1)
		n.admits(failuresToOpen, dead)
		if err := n.Reset(t.Context(), dead.Zone, dead.Key, false); !errors.Is(err, ErrLater) {
			t.Errorf("a release in a dead shard: got %v, want it told later", err)
		}
		if err := n.Reset(t.Context(), well.Zone, well.Key, false); err != nil || s.level(t, well) != 0 {
			t.Errorf("a release beside it: got %v and a level of %v, want it done", err, s.level(t, well))
		}
		s.dead.Store(-1)
		<-time.After(longestHold + 4*patience)
		synctest.Wait()
		if got := s.level(t, dead); got != 0 {
			t.Errorf("after the outage: got a level of %v, want 0", got)
		}
	})
}

// A bucket of a shard that was never called is asked for by pings, too.
func TestADeadShardIsToldOfOnceAndComesBackWithoutRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := startSplit(t, Options{})
		n.ask(in(0, 100), in(1, 100), in(2, 100))
		for shard := range 2 {
			s.dead.Store(int64(shard))
			n.admits(failuresToOpen, in(shard, 100))
		}
		if _, down := n.backend.Shards(); down != 2 {
			t.Errorf("got %d shards down, want 2", down)
		}
		<-time.After(5 * longestHold) // shard 0 answers, and 1 does not
		if _, down := n.backend.Shards(); down != 1 || !n.backend.Down() {
			t.Errorf("after one came back: got %d shards down, want 1", down)
		}
		s.dead.Store(-1)
		<-time.After(5 * longestHold)
		synctest.Wait()
		said := slices.DeleteFunc(n.witness.heard(), func(line string) bool { return strings.HasPrefix(line, "asking") })
		if len(said) != 2 || !strings.HasPrefix(said[0], "down: ") || !strings.HasPrefix(said[1], "up after ") {
			t.Errorf("got %q heard, want one outage", said)
		}
	})
}

// A cluster may merge shards while one is down.
func TestAShardThatIsGoneIsNotDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := startSplit(t, Options{})
		s.dead.Store(1)
		n.admits(failuresToOpen, in(1, 100))
		if !n.backend.Down() {
			t.Fatal("a dead shard: got it up")
		}
		s.moved.Store(100)
		<-time.After(longestHold + 3*patience)
		synctest.Wait()
		if _, down := n.backend.Shards(); n.backend.Down() || down != 0 {
			t.Errorf("after its buckets have moved: got %d shards down, want none", down)
		}
		if got := s.level(t, in(1, 100)); !near(got, failuresToOpen) {
			t.Errorf("where they have moved to: got a level of %v, want %d", got, failuresToOpen)
		}
	})
}

// While slots move, takes that need two of their servers fail, and nobody is dead.
func TestBucketsThatAreMovedAreNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, s, b := startHaunted(t)
		h.moves = true
		for range 10 {
			d := make([]leakybucket.Decision, 1)
			if err := s.Take(t.Context(), []leakybucket.Charge{hourly(100, 1)}, d); err != nil || !FellBack(&d[0]) {
				t.Errorf("got error %v and %+v, want it decided here", err, d)
			}
		}
		if b.Down() || b.Failing() {
			t.Error("got it down or failing, want it well")
		}
	})
}

func TestABlockThatBeganInADeadShardIsToldToIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, s := startSplit(t, Options{})
		well, dead := in(0, 100), in(1, 5)
		well.Block, dead.Block = &leakybucket.Ladder{Steps: []time.Duration{time.Hour}}, &leakybucket.Ladder{Steps: []time.Duration{time.Hour}}
		s.dead.Store(1)
		var last leakybucket.Decision
		for range 6 {
			_, d := n.ask(well, dead)
			last = d[1]
		}
		if !last.Began {
			t.Errorf("the sixth take of five: got %+v, want a block that begins", last)
		}
		s.dead.Store(-1)
		<-time.After(longestHold + 4*patience)
		synctest.Wait()
		for _, test := range []struct {
			charge  leakybucket.Charge
			blocked bool
		}{{dead, true}, {well, false}} {
			d := make([]leakybucket.Decision, 1)
			test.charge.Probe = true
			if err := s.remote.Take(t.Context(), []leakybucket.Charge{test.charge}, d); err != nil {
				t.Fatal(err)
			}
			if got := d[0].BlockedUntil != 0; got != test.blocked {
				t.Errorf("%s after the outage: got blocked %v, want %v", test.charge.Key, got, test.blocked)
			}
		}
	})
}

// Shards die and come back at random. In the end each bucket holds what was admitted,
// no more and no less.
func TestShardsThatFlapLoseNothingAndDoubleNothing(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			n, s := startSplit(t, Options{})
			var buckets []leakybucket.Charge
			for shard := range shardsOfSplit {
				buckets = append(buckets, in(shard, 1e4))
			}
			admitted, fellBack := make([]float64, len(buckets)), 0
			for range 2000 {
				if random.IntN(100) == 0 {
					s.dead.Store(int64(random.IntN(shardsOfSplit+1)) - 1)
				}
				some := random.Perm(len(buckets))[:1+random.IntN(3)]
				var charges []leakybucket.Charge
				for _, i := range some {
					charges = append(charges, buckets[i])
				}
				charges, decisions := n.ask(charges...)
				settlements := make([]leakybucket.Settlement, len(some))
				for j, i := range some {
					settlements[j] = leakybucket.Settlement{Charge: charges[j], Was: decisions[j]}
					if admitted[i]++; random.IntN(4) == 0 {
						settlements[j].Diff = 2
						admitted[i] += 2
					}
				}
				if FellBack(&decisions[0]) {
					fellBack++
				}
				_ = n.Settle(t.Context(), settlements) // an error says that it is told later
				time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
			}
			s.dead.Store(-1)
			<-time.After(longestHold + 10*patience)
			synctest.Wait()
			if fellBack < 20 || fellBack > 1900 {
				t.Errorf("seed %d: got %d of 2000 takes that fell back, want some of both", seed, fellBack)
			}
			for i, c := range buckets {
				if got := s.level(t, c); !near(got, admitted[i]) {
					t.Errorf("seed %d, bucket %d: got a level of %v, want %v", seed, i, got, admitted[i])
				}
			}
		})
	}
}
