package pgstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// Sixteen clients take a few of fifty buckets at a time, in any order, through several
// stores. Nobody is in a deadlock, and the table stays small.
func TestManyClientsOfFewBucketsMeetNoDeadlock(t *testing.T) {
	const clients, keys = 16, 50
	enough := func(takes int64, _ time.Duration) bool { return takes >= 4000 }
	if long() {
		enough = func(_ int64, took time.Duration) bool { return took >= time.Minute }
	}
	server, table := sharedServer(t), unique("few")
	var stores []*Store
	for range 9 {
		stores = append(stores, openForgetful(t, patient(server.URL()), Options{Table: table, OnError: failOn(t)}, time.Second))
	}
	var takes atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for client := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(client), 22))
			decisions := make([]leakybucket.Decision, 5)
			for !enough(takes.Load(), time.Since(began)) && !t.Failed() {
				all := make([]leakybucket.Charge, 2+rng.IntN(4))
				for i := range all {
					all[i] = charge(fmt.Sprint("k", rng.IntN(keys)), 1)
					all[i].Limit = leakybucket.Limit{Capacity: 1e9, Leak: 1}
					if all[i].Key < "k2" {
						all[i].Limit.Leak = 1e6 // soon forgotten
					}
				}
				err := stores[rng.IntN(len(stores))].Take(context.Background(), all, decisions[:len(all)])
				check.That(t, err == nil, "taking %d charges: %v", len(all), err)
				takes.Add(1)
			}
		})
	}
	wg.Wait()
	perSecond := float64(takes.Load()) / time.Since(began).Seconds()
	for _, s := range stores {
		s.Close() // then PostgreSQL counts at once
	}
	check.That(t, !strings.Contains(server.Log(), "deadlock detected"), "PostgreSQL has met a deadlock, want none that needs to be begun again")
	hot := wantHot(t, server, table)
	t.Logf("%.0f takes of 2 to 5 buckets a second, %.1f %% of the updates HOT", perSecond, hot)
	if long() && perSecond < 1000 {
		t.Errorf("takes a second: got %.0f, want at least 1000", perSecond)
	}
}

// wantHot fails the test if few of the updates of a table touched nothing but the row's own
// page, in a long test less than half, and returns the percentage. It is about 95 %, less on a
// busy machine, where pages are pruned later, and none if an index holds a column that is
// updated.
// PostgreSQL counts with some delay.
func wantHot(t *testing.T, server *servertest.Postgres, table string) float64 {
	t.Helper()
	of := func(column string) float64 {
		return server.Float(t, "SELECT "+column+"::float8 FROM pg_stat_user_tables WHERE relname = '"+table+"'")
	}
	eventually(t, "PostgreSQL has counted the updates", func() bool { return of("n_tup_upd") > 1000 })
	hot := 100 * of("n_tup_hot_upd") / of("n_tup_upd")
	least := 5.0
	if long() {
		least = 50
	}
	check.That(t, hot >= least, "HOT updates: got %.1f %%, want at least %v", hot, least)
	return hot
}
