package bench

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/pgstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// sharedCallers is how many callers ask a shared store at once.
const sharedCallers = 64

// A sharedLimiter takes one unit from the bucket of a key in a database.
type sharedLimiter struct {
	name string
	take func(ctx context.Context, key string) error
}

// upserts is one statement for each request, which leaks, pours and answers. It
// does less than a limiter must: it never refuses.
func upserts(t *testing.T, server *servertest.Postgres, connections int, kind string) sharedLimiter {
	t.Helper()
	table := fmt.Sprint("upserts_", connections, kind)
	server.Exec(t, "CREATE "+kind+" TABLE "+table+
		" (key text PRIMARY KEY, level float8 NOT NULL, at timestamptz NOT NULL) WITH (fillfactor = 50)")
	config := check.Must(pgxpool.ParseConfig(server.URL()))(t)
	config.MaxConns = int32(connections)
	pool := check.Must(pgxpool.NewWithConfig(context.Background(), config))(t)
	t.Cleanup(pool.Close)
	sql := "INSERT INTO " + table + ` AS bucket VALUES ($1, 1, clock_timestamp())
		ON CONFLICT (key) DO UPDATE SET at = clock_timestamp(),
			level = greatest(0, bucket.level - 2 * extract(epoch FROM clock_timestamp() - bucket.at)) + 1
		RETURNING level`
	return sharedLimiter{fmt.Sprintf("%d upserts %s", connections, kind), func(ctx context.Context, key string) error {
		var level float64
		return pool.QueryRow(ctx, sql, key).Scan(&level)
	}}
}

func openPgstore(t *testing.T, server *servertest.Postgres, logged bool) sharedLimiter {
	t.Helper()
	s := check.Must(pgstore.Open(server.URL(), pgstore.Options{Table: fmt.Sprint("logged_", logged), Logged: logged}))(t)
	t.Cleanup(s.Close)
	l := leakybucket.Limit{Capacity: 1e9, Leak: 2}
	return sharedLimiter{fmt.Sprintf("pgstore logged=%v, which waits for no disk", logged), func(ctx context.Context, key string) error {
		var d [1]leakybucket.Decision
		return s.Take(ctx, []leakybucket.Charge{{Zone: "zone", Key: key, Limit: l, Cost: 1}}, d[:])
	}}
}

// A figure is the result of one turn of a limiter.
type figure struct {
	rate     float64       // decisions a second
	p50, p99 time.Duration // of how long a decision took
}

// better returns the best of two turns in each respect, because other work on the machine can
// only make a turn worse.
func (f figure) better(other figure) figure {
	if f.rate == 0 {
		return other
	}
	return figure{max(f.rate, other.rate), min(f.p50, other.p50), min(f.p99, other.p99)}
}

// turn runs all callers for some time, with the deadlines that a Caddy has.
func (l sharedLimiter) turn(t *testing.T, keys int, d time.Duration) figure {
	t.Helper()
	var took [sharedCallers][]time.Duration
	var done sync.WaitGroup
	began := time.Now()
	for caller := range took {
		done.Go(func() {
			for i := caller * 7919; time.Since(began) < d; i += 104_729 {
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				asked := time.Now()
				err := l.take(ctx, ipv4(uint32(i%keys)).String())
				took[caller] = append(took[caller], time.Since(asked))
				cancel()
				if err != nil {
					t.Errorf("%s: %v", l.name, err)
					return
				}
			}
		})
	}
	done.Wait()
	elapsed := time.Since(began).Seconds()
	all := slices.Concat(took[:]...)
	slices.Sort(all)
	check.Assume(t, len(all) != 0, "%s: got no answer", l.name)
	return figure{float64(len(all)) / elapsed, all[len(all)/2], all[len(all)*99/100]}
}

// TestPostgresSharesStatements compares pgstore with one upsert for each request.
// Both wait for the disk. They take turns, and the best of each counts. The test asserts only
// what a busy machine does not change.
func TestPostgresSharesStatements(t *testing.T) {
	skipShort(t)
	// Make it like a server that has run for long: it has files for its log, and
	// its first checkpoint is over.
	server := servertest.StartPostgres(t, "wal_init_zero=off", "min_wal_size=1GB", "max_wal_size=4GB", "checkpoint_timeout=1h")
	limiters := []sharedLimiter{
		openPgstore(t, server, true), upserts(t, server, 64, ""), upserts(t, server, 8, ""),
		openPgstore(t, server, false), upserts(t, server, 64, "UNLOGGED"),
	}
	rounds := 3
	if os.Getenv("TEST_LONG") == "1" {
		rounds = 10
	}
	for _, c := range []struct {
		keys  int
		floor float64 // of the rate, in rates of 64 connections that upsert
	}{
		// With many keys both sides wait for the same two processors, all the more if the disk
		// syncs fast.
		{1, 3},
		{10_000, 0.5},
	} {
		best := make([]figure, len(limiters))
		for round := range rounds + 1 {
			for i, l := range limiters {
				if f := l.turn(t, c.keys, 500*time.Millisecond); round > 0 { // the first one meets the keys
					best[i] = best[i].better(f)
				}
			}
		}
		for i, l := range limiters {
			t.Logf("| %d keys | %s | %.0f a second | p99 %.1f ms | %.1f of the first upserts |",
				c.keys, l.name, best[i].rate, best[i].p99.Seconds()*1000, best[i].rate/best[1].rate)
		}
		if got := best[0].rate / best[1].rate; got < c.floor {
			t.Errorf("%d keys: got %.1f of the rate of one upsert for each request, want at least %v", c.keys, got, c.floor)
		}
		if got := best[0].p99; got > time.Second {
			t.Errorf("%d keys: got a 99th percentile of %v, want at most a second", c.keys, got)
		}
	}
}
