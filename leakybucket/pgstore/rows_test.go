package pgstore

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func TestRowsThatNoStoreHasWrittenLockNobodyOut(t *testing.T) {
	server := sharedServer(t)
	table := unique("poisoned")
	s := openStore(t, patient(server.URL()), Options{Table: table})
	for i, values := range []string{
		"'NaN', 1, 0, 0", "'Infinity', 1, 0, 0", "-5, 1, 0, 0", "1e300, 1, 0, 0",
		"900, 9223372036854775807, 0, 0", "900, -9223372036854775808, 0, 0",
		"0, 1, 9223372036854775807, 0", "0, 1, 1152921504606846976, 0", "0, 1, 1, -1", "0, 1, 1, 32767",
	} {
		c := charge(fmt.Sprint("k", i), 500)
		c.Block = &leakybucket.Ladder{Steps: []time.Duration{time.Hour}}
		mustTake(t, s, c) // which makes the table
		c.Key = fmt.Sprint("p", i)
		server.Exec(t, fmt.Sprintf("INSERT INTO %s VALUES (convert_to(':zone/%s', 'UTF8'), %s, %d, 1)", table, c.Key, values, math.MaxInt64))
		some, _, err := s.List(t.Context(), store.Filter{Zone: c.Zone, Prefix: c.Key, Scan: 9}, "")
		check.That(t, err == nil && len(some) == 1 && some[0].State == leakybucket.State{}, "list of a bucket of %s: got %+v, %v, want it empty", values, some, err)
		d := mustTake(t, s, c)
		check.That(t, d.Poured && d.Level >= 0, "take from a bucket of %s: got %+v, want it poured", values, d)
	}
}

func TestForgetsWhatMayBeForgottenAndNothingElse(t *testing.T) {
	server := sharedServer(t)
	table := unique("forget")
	s := openForgetful(t, patient(server.URL()), Options{Table: table, OnError: failOn(t)}, 20*time.Millisecond)
	const drained, kept = 1500, 30
	var wg sync.WaitGroup
	for i := range drained {
		wg.Go(func() {
			c := charge(fmt.Sprint("drained", i), 1)
			c.Limit.Leak = 1e5
			mustTake(t, s, c)
		})
	}
	wg.Wait()
	for i := range kept {
		mustTake(t, s, charge(fmt.Sprint("kept", i), 1))
	}
	rows := func() float64 { return server.Float(t, "SELECT count(*)::float8 FROM "+table) }
	eventually(t, "only the live buckets are left", func() bool { return rows() <= kept })
	check.Equal(t, rows(), kept, "buckets left")
}

// writes returns what changes with each write to the first row of a table. A lock
// is no write.
func writes(t *testing.T, s *Store) (version string) {
	t.Helper()
	check.OK(t, s.pool.QueryRow(t.Context(), "SELECT coalesce(min(ctid::text || ' ' || xmin::text), 'no row') FROM "+s.table).Scan(&version))
	return version
}

func TestATakeThatPoursNothingWritesARowForAnotherLeakOrABlockOnly(t *testing.T) {
	server := sharedServer(t)
	const epoch = leakybucket.Instant(1_700_000_000_000_000)
	free := charge("k", 0)
	free.Limit = leakybucket.Limit{Capacity: 10, Leak: 0.1}
	free.Block = &leakybucket.Ladder{Steps: []time.Duration{time.Hour}}
	probe := free
	probe.Probe, probe.Cost = true, 1
	slower, beside, dear := free, charge("beside", 0), free
	slower.Limit.Leak = 0.01
	dear.Cost, dear.Block = 9, nil
	dearer, over := dear, dear
	dearer.Limit.Leak, over.Cost = 0.01, 11
	for _, test := range []struct {
		about   string
		filled  float64 // the level before
		charges []leakybucket.Charge
		poured  bool
		writes  bool
	}{
		{"no bucket", 0, []leakybucket.Charge{free}, true, false},
		{"a refusal of no bucket", 0, []leakybucket.Charge{over}, false, false},
		{"no bucket, with another", 0, []leakybucket.Charge{free, beside}, true, false},
		{"a bucket", 5, []leakybucket.Charge{free}, true, false},
		{"a bucket, twice", 5, []leakybucket.Charge{free, free}, true, false},
		{"a probe", 5, []leakybucket.Charge{probe}, false, false},
		{"a probe with another", 5, []leakybucket.Charge{probe, beside}, false, false},
		{"a refusal", 5, []leakybucket.Charge{dear}, false, false},
		{"a refusal by another leak", 5, []leakybucket.Charge{dearer}, false, true},
		{"another leak", 5, []leakybucket.Charge{slower}, true, true},
		{"another leak, with another", 5, []leakybucket.Charge{slower, beside}, true, true},
		{"a block begins", 10.3, []leakybucket.Charge{free}, false, true},
		{"a block begins, with another", 10.3, []leakybucket.Charge{free, beside}, false, true},
	} {
		s := openStopped(t, patient(server.URL()), Options{Table: unique("free")})
		s.hold(epoch)
		mustTake(t, s, free) // creates the table
		if test.filled > 0 {
			fill := free
			fill.Cost, fill.Debt = 1, 10
			was := mustTake(t, s, fill)
			check.OK(t, s.Settle(context.Background(), []leakybucket.Settlement{{Charge: fill, Was: was, Diff: test.filled - 1}}))
		}
		before := writes(t, s)
		for i := range 3 {
			s.hold(epoch.Add(time.Duration(i) * 100 * time.Millisecond))
			decisions := make([]leakybucket.Decision, len(test.charges))
			check.OK(t, s.Take(context.Background(), test.charges, decisions))
			level := max(0, test.filled-0.01*float64(i))
			if d := decisions[0]; d.Poured != test.poured || !near(d.Level, level) && !test.writes {
				t.Errorf("%s: got %+v, want poured %v at level %v", test.about, d, test.poured, level)
			}
		}
		check.Equal(t, writes(t, s) != before, test.writes, "%s: a write", test.about)
	}
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

func TestASettlementOfNothingWritesNoRow(t *testing.T) {
	s := openStopped(t, patient(sharedServer(t).URL()), Options{Table: unique("unsettled")})
	c := charge("k", 1)
	was := mustTake(t, s, c)
	before := writes(t, s)
	check.OK(t, s.Settle(context.Background(), []leakybucket.Settlement{{Charge: c, Was: was}}))
	check.Equal(t, writes(t, s), before, "a settlement of 0 has written the row")
}

func TestWorksThroughPgBouncerInTransactionMode(t *testing.T) {
	server := sharedServer(t)
	// Fewer sessions than connections, so that they change hands all the time.
	url := server.Bouncer(t, 2)
	if testing.Short() {
		shareABucket(t, url)
		return
	}
	storetest.Run(t, func(tb testing.TB, _ storetest.Need) (leakybucket.Store, func(leakybucket.Instant)) {
		s := openStore(tb, patient(url), Options{Table: unique("bounced"), OnError: failOn(tb)})
		return s, s.hold
	})
}

// Settings of a transaction must not stay in the session, which another client
// gets next.
func TestLeavesNoSettingBehindInPgBouncer(t *testing.T) {
	url := sharedServer(t).Bouncer(t, 1)
	s := openStore(t, patient(url), Options{Table: unique("clean"), Logged: true})
	mustTake(t, s, charge("k", 1))
	conn := check.Must(pgx.Connect(context.Background(), url+"?default_query_exec_mode=exec"))(t)
	defer conn.Close(context.Background())
	for setting, want := range map[string]string{"idle_in_transaction_session_timeout": "0", "synchronous_commit": "on"} {
		var got string
		err := conn.QueryRow(context.Background(), "SHOW "+setting).Scan(&got)
		check.That(t, err == nil && got == want, "%s in the session of the next client: got %q and error %v, want %q", setting, got, err, want)
	}
}

// The clock of the store's process does not matter: nothing it sends depends on it.
func TestTheTimeIsTheServers(t *testing.T) {
	server := sharedServer(t)
	s := openStore(t, server.URL(), Options{Table: unique("clock")})
	check.Equal(t, s.now(), nil, "what a store says of the time")
	d := mustTake(t, s, charge("k", 1))
	now := server.Float(t, "SELECT extract(epoch FROM clock_timestamp())::float8")
	got := float64(d.At) / 1e6
	check.That(t, got <= now && got >= now-10, "instant of a decision: got %v, want the server's, just before %v", got, now)
}
