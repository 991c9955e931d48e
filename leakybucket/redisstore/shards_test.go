package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// shardOfKey returns the shard of a key of the zone.
func shardOfKey(s *Store, key string) int {
	c := charge(key, frozen, 1)
	return s.Shard(&c)
}

// keeps reports whether a server keeps a key of the zone.
func keeps(s *Store, node *servertest.Redis, key string) bool {
	return !strings.HasPrefix(node.Do("get", s.name("zone", key, false)), "MOVED")
}

func TestEveryMasterOfAClusterIsAShard(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	s := open(t, Options{URL: c.URL()})
	mustTake(t, s, charge("first", frozen, 1)) // which connects
	seen := make(map[int]bool)
	for _, node := range c.Nodes {
		if !strings.HasPrefix(node.Do("role"), "master") {
			continue
		}
		its := make(map[int]bool)
		for i := range 100 {
			if key := fmt.Sprint("k", i); keeps(s, node, key) {
				its[shardOfKey(s, key)], seen[shardOfKey(s, key)] = true, true
			}
		}
		if len(its) != 1 {
			t.Errorf("shards of the buckets of %s: got %v, want one", node.Addr, its)
		}
	}
	if len(seen) != 3 {
		t.Errorf("shards of three masters: got %v, want three", seen)
	}
	before := make([]int, 100)
	for i := range before {
		before[i] = shardOfKey(s, fmt.Sprint("k", i))
	}
	c.Failover()
	c.Settled()
	if err := s.learnAgain(); err != nil {
		t.Fatal(err)
	}
	for i := range before {
		if got := shardOfKey(s, fmt.Sprint("k", i)); got != before[i] {
			t.Fatalf("shard of k%d after a failover: got %d, want %d as before", i, got, before[i])
		}
	}
}

func (s *Store) learnAgain() error {
	client, err := s.connection.get()
	if err != nil {
		return err
	}
	return s.connection.shards.learn(client)
}

func TestASlotThatHasMovedIsOfItsNewShard(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	s := open(t, Options{URL: c.URL()})
	tagged := open(t, Options{URL: c.URL(), Prefix: "{x}:"})
	for _, store := range []*Store{s, tagged} {
		mustTake(t, store, charge("first", frozen, 1))
	}
	_, to, _, _ := owners(t, c, "{x}")
	move(t, c, 0)
	there := ""
	for i := 0; there == ""; i++ {
		if key := fmt.Sprint("k", i); keeps(s, to, key) {
			there = key
		}
	}
	err := servertest.Within(4*shardsEvery, func() error {
		if got, want := shardOfKey(tagged, "any"), shardOfKey(s, there); got != want {
			return fmt.Errorf("got shard %d, want %d, that of the master it has moved to", got, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAFailedCallNamesItsShard(t *testing.T) {
	c := servertest.StartRedisCluster(t)
	s := open(t, Options{URL: c.URL()})
	mustTake(t, s, charge("first", frozen, 1))
	var dead *servertest.Redis
	for _, node := range c.Nodes {
		if strings.HasPrefix(node.Do("role"), "master") {
			dead = node
		}
	}
	var theirs, others []leakybucket.Charge
	for i := range 100 {
		if ch := charge(fmt.Sprint("k", i), frozen, 1); keeps(s, dead, ch.Key) {
			theirs = append(theirs, ch)
		} else {
			others = append(others, ch)
		}
	}
	dead.Pause()
	defer dead.Resume()
	for what, call := range map[string]func(context.Context) error{
		"take": func(ctx context.Context) error {
			both := []leakybucket.Charge{others[0], theirs[0], others[1]}
			return s.Take(ctx, both, make([]leakybucket.Decision, len(both)))
		},
		"settlement": func(ctx context.Context) error {
			return s.Settle(ctx, []leakybucket.Settlement{{Charge: others[2], Diff: 1}, {Charge: theirs[1], Diff: 1}})
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		err := call(ctx)
		cancel()
		var failed *leakybucket.ShardError
		if !errors.As(err, &failed) || !slices.Equal(failed.Shards, []int{s.Shard(&theirs[0])}) {
			t.Errorf("%s of a master that hangs: got error %v of %+v, want one of shard %d", what, err, failed, s.Shard(&theirs[0]))
		}
	}
}

func TestAnAnswerThatIsNoListOfSlotsIsGarbage(t *testing.T) {
	server := servertest.StartRedis(t)
	s := open(t, Options{URL: "redis://" + server.Addr})
	mustTake(t, s, charge("first", frozen, 1))
	if err := s.learnAgain(); err == nil || s.connection.shards.of(7) != 0 {
		t.Errorf("of a server without a cluster: got error %v and shard %d, want an error and 0", err, s.connection.shards.of(7))
	}
}
