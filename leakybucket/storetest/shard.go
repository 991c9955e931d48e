package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// mostShards is how many shards a store may have.
const mostShards = 1000

// sharded begins a case of a store that has shards, if it has.
func sharded(tb testing.TB, open Open) (*subject, leakybucket.Sharded) {
	s := begin(tb, open, Need{})
	store, ok := s.store.(leakybucket.Sharded)
	if !ok {
		s.Log("not examined: the store is no leakybucket.Sharded")
		return s, nil
	}
	s.pours(charge("first", limit(10, 1), 1), 0) // a store may learn of its shards when it connects
	return s, store
}

// oneShard: the shard of a bucket is the same whatever is asked of it, whoever asks.
func oneShard(tb testing.TB, open Open) {
	s, store := sharded(tb, open)
	if store == nil {
		return
	}
	for i := range 100 {
		c := charge(fmt.Sprint("k", i), limit(10, 1), 1)
		if i%2 == 1 {
			c = shadow(c)
		}
		want := store.Shard(&c)
		others := charges(charge(c.Key, limit(1e6, 3), 8), probe(c), inDebt(c, 5), blocking(c, time.Minute), below(c, 4), c)
		for j := range others {
			if others[j].Shadow = c.Shadow; c.Shadow != 0 && j%2 == 1 {
				others[j].Shadow++ // of another group
			}
		}
		got := make([]int, len(others))
		var wg sync.WaitGroup
		for j := range others {
			wg.Go(func() { got[j] = store.Shard(&others[j]) })
		}
		wg.Wait()
		for j := range others {
			if got[j] != want {
				s.Fatalf("shard of %s: got %d, want %d as of %s", describe(others[j]), got[j], want, describe(c))
			}
		}
	}
}

// fewShards: their number does not grow with the buckets.
func fewShards(tb testing.TB, open Open) {
	s, store := sharded(tb, open)
	if store == nil {
		return
	}
	const names = 20 * mostShards
	seen := make(map[int]bool)
	for i := range names {
		c := charge(fmt.Sprint("192.0.2.", i), limit(10, 1), 1)
		seen[store.Shard(&c)] = true
	}
	if len(seen) > mostShards {
		s.Fatalf("shards of %d buckets: got %d, want at most %d", names, len(seen), mostShards)
	}
}
