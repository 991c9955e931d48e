package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

func TestSlotsAreThoseOfTheCluster(t *testing.T) {
	server := servertest.StartRedis(t, "--cluster-enabled", "yes")
	for _, key := range []string{
		"123456789", "", "a", "zone/192.0.2.7", "{a}b", "x{a}b", "{}a", "{a", "a}", "{{a}}", "{a}{b}", "}{a}", "x{}{a}", "é\xff", strings.Repeat("x", 1000),
	} {
		if key == "" {
			continue // redis-cli leaves it out
		}
		if got, want := fmt.Sprint(slotOf(key)), server.Do("cluster", "keyslot", key); got != want {
			t.Errorf("slot of %.40q: got %s, want %s", key, got, want)
		}
	}
}

// TestChargesThatALaterSlotRefusesAreGivenBack needs a cluster, because
// everything else is atomic. In the end each bucket holds only what was admitted.
func TestChargesThatALaterSlotRefusesAreGivenBack(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	s := open(t, c.URL(), Options{})
	const callers, rounds, capacity = 8, 20, 20
	roomy := func(key string) leakybucket.Charge { return charge(key, frozen, 1) }
	scarce := charge("scarce", leakybucket.Limit{Capacity: capacity, Leak: 1e-6}, 1)
	shadow := func(c leakybucket.Charge) leakybucket.Charge {
		c.Key, c.Shadow = "shadow "+c.Key, true
		return c
	}
	for _, test := range []struct {
		name             string
		charges          []leakybucket.Charge
		enforced, shadow int // how often they are poured
	}{
		{"enforced", []leakybucket.Charge{shadow(roomy("a")), roomy("a"), scarce, roomy("b"), roomy("c")}, capacity, capacity},
		{"shadow", []leakybucket.Charge{roomy("d"), shadow(roomy("d")), shadow(scarce), shadow(roomy("e")), roomy("e")}, callers * rounds, capacity},
	} {
		t.Run(test.name, func(t *testing.T) {
			var poured [2]atomic.Int64 // enforced, shadow
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					decisions := make([]leakybucket.Decision, len(test.charges))
					for range rounds {
						if err := s.Take(context.Background(), test.charges, decisions); err != nil {
							t.Error(err)
							return
						}
						enforced, all := store.Fit(test.charges, decisions)
						for i, d := range decisions {
							if want := enforced && (all || !test.charges[i].Shadow); d.Poured != want {
								t.Errorf("take: got %+v, want poured %v of charge %d", decisions, want, i)
							}
						}
						if enforced {
							poured[0].Add(1)
						}
						if all {
							poured[1].Add(1)
						}
					}
				})
			}
			wg.Wait()
			if enforced, shadow := poured[0].Load(), poured[1].Load(); enforced != int64(test.enforced) || shadow != int64(test.shadow) {
				t.Errorf("poured: got %d enforced and %d shadow, want %d and %d", enforced, shadow, test.enforced, test.shadow)
			}
			for _, c := range test.charges {
				want := test.enforced
				if c.Shadow {
					want = test.shadow
				}
				// Units that leaked while a charge was there are not given back, though it
				// leaked but once for all of them.
				if got := levelOf(t, s, c); math.Abs(got-float64(want)) > leaked {
					t.Errorf("level of %s: got %v, want %d", c.Key, got, want)
				}
			}
		})
	}
}

// keyIn returns a key of the zone whose slot passes a test.
func keyIn(s *Store, passes func(slot uint16) bool) string {
	for i := 0; ; i++ {
		c := charge(fmt.Sprint("key", i), frozen, 1)
		if passes(s.slotOfCharge(&c)) {
			return c.Key
		}
	}
}

func TestChargesAreGivenBackWhenALaterSlotFails(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	s := open(t, c.URL(), Options{})
	early := charge(keyIn(s, func(slot uint16) bool { return slot < 5000 }), frozen, 3)
	middle := charge(keyIn(s, func(slot uint16) bool { return 5000 < slot && slot < 15000 }), frozen, 3)
	bad := charge(keyIn(s, func(slot uint16) bool { return slot > 16000 }), frozen, 3)
	for _, node := range c.Nodes {
		_, _ = node.Try("lpush", s.name(bad.Zone, bad.Key, false), "x") // all but one say MOVED
	}
	for range 3 {
		decisions := []leakybucket.Decision{{Poured: true}, {Poured: true}, {Poured: true}} // of a former take
		err := s.Take(context.Background(), []leakybucket.Charge{bad, middle, early}, decisions)
		if !errors.Is(err, store.ErrBadBucket) {
			t.Fatalf("take with a key that is no bucket: got %v, want ErrBadBucket", err)
		}
		for _, ch := range []leakybucket.Charge{early, middle} {
			if got := levelOf(t, s, ch); got > 1e-6 {
				t.Errorf("level of %s after the take failed: got %v, want 0", ch.Key, got)
			}
		}
	}
}

// A node that hangs must not keep settlements from the others.
func TestSlotsAreSettledAtOnce(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	s := open(t, c.URL(), Options{})
	var hung *servertest.Redis
	for _, node := range c.Nodes {
		if strings.HasPrefix(node.Do("role"), "master") {
			hung = node
		}
	}
	var settlements []leakybucket.Settlement
	var elsewhere []leakybucket.Charge
	for i := range 30 {
		ch := charge(fmt.Sprint("k", i), frozen, 1)
		mustTake(t, s, ch)
		settlements = append(settlements, leakybucket.Settlement{Charge: ch, Diff: 4})
		if strings.HasPrefix(hung.Do("get", s.name(ch.Zone, ch.Key, false)), "MOVED") {
			elsewhere = append(elsewhere, ch)
		}
	}
	if n := len(elsewhere); n == 0 || n == len(settlements) {
		t.Fatalf("got %d of %d keys on other nodes, want some", n, len(settlements))
	}
	hung.Pause()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	err := s.Settle(ctx, settlements)
	cancel()
	hung.Resume()
	c.Settled() // meanwhile a replica may have been about to take over
	if err == nil {
		t.Error("settlement with a node that hangs: got no error")
	}
	for _, ch := range elsewhere {
		if got := levelOf(t, s, ch); math.Abs(got-5) > leaked {
			t.Errorf("level of %s on a node that answers: got %v, want 5", ch.Key, got)
		}
	}
}

func TestClientsCannotChooseTheSlotOfTheirKey(t *testing.T) {
	slots := func(prefix string) map[uint16]bool {
		s, err := Open("redis+cluster://127.0.0.1:1", Options{Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		seen := make(map[uint16]bool)
		for i := range 100 {
			c := charge(fmt.Sprintf("{same}%d", i), leakybucket.Limit{Capacity: 1, Leak: 1}, 1)
			seen[s.slotOfCharge(&c)] = true
		}
		return seen
	}
	if got := len(slots("")); got < 90 {
		t.Errorf("a hundred keys with one tag: got them in %d slots, want about a hundred", got)
	}
	if got := len(slots("{site}:")); got != 1 {
		t.Errorf("with a tag in the prefix: got them in %d slots, want 1", got)
	}
}

// owners returns the master of a slot and another master, with their IDs.
func owners(t *testing.T, c *servertest.RedisCluster, key string) (from, to *servertest.Redis, fromID, toID string) {
	t.Helper()
	for _, node := range c.Nodes {
		if !strings.HasPrefix(node.Do("role"), "master") {
			continue
		}
		id := node.Do("cluster", "myid")
		if strings.HasPrefix(node.Do("get", key), "MOVED") {
			to, toID = node, id
		} else {
			from, fromID = node, id
		}
	}
	return from, to, fromID, toID
}

// While a slot moves, calls that share it are answered by two servers.
func TestTakesOfOneBucketGoOnWhileItsSlotMoves(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	s := open(t, c.URL(), Options{Prefix: "{x}:"})
	const keys, callers = 40, 16
	var poured [keys]atomic.Int64
	take := func(i int, single bool) error {
		all := []leakybucket.Charge{charge(fmt.Sprint(i), frozen, 1)}
		if !single {
			all = append(all, charge(fmt.Sprint((i+1)%keys), frozen, 1))
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		err := s.Take(ctx, all, make([]leakybucket.Decision, len(all)))
		if err == nil {
			for j := range all {
				poured[(i+j)%keys].Add(1)
			}
		}
		return err
	}
	for i := range keys {
		if err := take(i, true); err != nil {
			t.Fatal(err)
		}
	}
	var moved atomic.Bool
	var singles, failedSingles, pairs, failedPairs, failedAfter atomic.Int64
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for w := range callers {
		wg.Go(func() {
			for i := w; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				single, after := i%2 == 0, moved.Load()
				err := take(i%keys, single)
				if err != nil && !strings.Contains(err.Error(), "TRYAGAIN") {
					t.Errorf("while a slot moves: got %v, want TRYAGAIN", err)
				}
				switch {
				case single && err != nil:
					failedSingles.Add(1)
				case single:
					singles.Add(1)
				case err != nil && after:
					failedAfter.Add(1)
				case err != nil:
					failedPairs.Add(1)
				default:
					pairs.Add(1)
				}
			}
		})
	}
	move(t, c, keys)
	moved.Store(true)
	<-time.After(300 * time.Millisecond) // of takes after it
	close(stop)
	wg.Wait()
	t.Logf("takes of one bucket: %d, %d failed; of two: %d, %d failed; after the move %d failed", singles.Load(), failedSingles.Load(), pairs.Load(), failedPairs.Load(), failedAfter.Load())
	if failedSingles.Load() > 0 || failedAfter.Load() > 0 || singles.Load() == 0 {
		t.Error("want no take of one bucket to fail, and none of two once the slot has moved")
	}
	for i := range keys {
		want := float64(poured[i].Load())
		if got := levelOf(t, s, charge(fmt.Sprint(i), frozen, 1)); math.Abs(got-want) > leaked {
			t.Errorf("level of bucket %d: got %v, want %v", i, got, want)
		}
	}
}

// move moves the slot of {x} from one master to another, key by key.
func move(t *testing.T, c *servertest.RedisCluster, keys int) {
	t.Helper()
	slot := fmt.Sprint(slotOf("{x}"))
	from, to, fromID, toID := owners(t, c, "{x}")
	to.Do("cluster", "setslot", slot, "importing", fromID)
	from.Do("cluster", "setslot", slot, "migrating", toID)
	for i := range keys {
		from.Do("migrate", "127.0.0.1", fmt.Sprint(to.Port), fmt.Sprintf("{x}:zone/%d", i), "0", "5000")
	}
	to.Do("cluster", "setslot", slot, "node", toID)
	from.Do("cluster", "setslot", slot, "node", toID)
}

// A distant connection leads to a server one millisecond away.
type distant struct{ net.Conn }

func (d distant) Write(b []byte) (int, error) {
	<-time.After(time.Millisecond)
	return d.Conn.Write(b)
}

// openDistant returns a store of servers that are one millisecond away.
func openDistant(t *testing.T, url string) *Store {
	t.Helper()
	s := open(t, url, Options{})
	near := s.connection.option.DialCtxFn
	s.connection.option.DialCtxFn = func(ctx context.Context, address string, dialer *net.Dialer, config *tls.Config) (net.Conn, error) {
		conn, err := near(ctx, address, dialer, config)
		if err != nil {
			return nil, err
		}
		return distant{conn}, nil
	}
	return s
}

// siteAndClient returns a site's bucket, and a client's that is in a later slot.
func siteAndClient(s *Store, site, client leakybucket.Limit) (leakybucket.Charge, leakybucket.Charge) {
	first := charge(keyIn(s, func(slot uint16) bool { return slot < 5000 }), site, 1)
	return first, charge(keyIn(s, func(slot uint16) bool { return slot > 11000 }), client, 1)
}

// One client that exceeds its own limit must not close the site for others.
func TestRefusedTakesDoNotFillOtherBuckets(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	s := openDistant(t, c.URL())
	site, client := siteAndClient(s, leakybucket.Limit{Capacity: 500, Leak: 500}, leakybucket.Limit{Capacity: 1, Leak: 1e-6})
	client.Block = &leakybucket.Ladder{Steps: []time.Duration{time.Hour}}
	mustTake(t, s, client)
	const takes, span = 3000, 3 * time.Second
	ticker := time.NewTicker(span / takes)
	defer ticker.Stop()
	var wg sync.WaitGroup
	for range takes {
		<-ticker.C
		wg.Go(func() {
			var d [2]leakybucket.Decision
			if err := s.Take(context.Background(), []leakybucket.Charge{site, client}, d[:]); err != nil {
				t.Error(err)
			} else if d[0].Poured || d[1].Fits {
				t.Errorf("take with a full bucket: got %+v, want it refused", d)
			}
		})
	}
	wg.Wait()
	if got := levelOf(t, s, site); got >= 5 {
		t.Errorf("level of the site's bucket after %d refused takes: got %.1f, want less than 5", takes, got)
	}
}

// Two takes that both fit alone, and not together, are one admitted and one refused.
func TestOfTwoTakesThatBothFittedOneIsAdmitted(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	s, other := openDistant(t, c.URL()), openDistant(t, c.URL())
	block := &leakybucket.Ladder{Steps: []time.Duration{time.Hour}}
	raced := 0
	for round := range 100 {
		single := leakybucket.Limit{Capacity: 1, Leak: 1e-6}
		var all []leakybucket.Charge
		for i := range 4 {
			ch := charge(fmt.Sprintf("%d-%d", round, i), single, 1)
			ch.Block = block
			all = append(all, ch)
		}
		var decisions [2][4]leakybucket.Decision
		var wg sync.WaitGroup
		for i, s := range []*Store{s, other} {
			wg.Go(func() {
				if err := s.Take(context.Background(), all, decisions[i][:]); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		admitted, began := 0, false
		for _, ds := range decisions {
			poured := 0
			for _, d := range ds {
				began = began || d.Began
				if d.Poured {
					poured++
				}
			}
			if poured == len(ds) {
				admitted++
			} else if poured > 0 {
				t.Errorf("round %d: got %+v, want all or none poured", round, ds)
			}
		}
		if !began {
			raced++ // both were asked before either poured
		}
		if admitted != 1 {
			t.Errorf("round %d: got %d of two takes admitted, want 1", round, admitted)
		}
		for _, ch := range all {
			if got := levelOf(t, s, ch); got > 1 || got < 0.99 {
				t.Errorf("round %d: level of %s: got %v, want 1", round, ch.Key, got)
			}
		}
	}
	if raced < 10 {
		t.Errorf("got %d of 100 rounds in which both takes had fitted, want at least 10", raced)
	}
}
