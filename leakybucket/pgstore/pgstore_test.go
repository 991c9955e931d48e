package pgstore

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
	"github.com/jackc/pgx/v5/pgxpool"
)

var lasting = leakybucket.Limit{Capacity: 1000, Leak: 1e-6}

func charge(key string, cost float64) leakybucket.Charge {
	return leakybucket.Charge{Zone: "zone", Key: key, Limit: lasting, Cost: cost}
}

func take(ctx context.Context, s *Store, c leakybucket.Charge) (leakybucket.Decision, error) {
	var d [1]leakybucket.Decision
	err := s.Take(ctx, []leakybucket.Charge{c}, d[:])
	return d[0], err
}

// takeError is the error of a take.
func takeError(s *Store) error {
	_, err := take(context.Background(), s, charge("k", 1))
	return err
}

func mustTake(tb testing.TB, s *Store, c leakybucket.Charge) leakybucket.Decision {
	tb.Helper()
	d, err := take(context.Background(), s, c)
	check.OK(tb, err, "taking a charge")
	return d
}

// levelOf reads a level with a take that never fits.
func levelOf(tb testing.TB, s *Store, key string) float64 {
	tb.Helper()
	return mustTake(tb, s, charge(key, 2*lasting.Capacity)).Level
}

// heart is begun before any test counts goroutines.
var heart = servertest.StartPulse()

// eventually fails the test if it does not come true. It waits for long, because the
// machine may be busy.
func eventually(tb testing.TB, what string, so func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(time.Minute); !so(); {
		check.Assume(tb, !time.Now().After(deadline), "%s: not so after a minute", what)
		pause(context.Background(), 5*time.Millisecond)
	}
}

func TestThreeInstancesShareOneBucket(t *testing.T) { shareABucket(t, sharedServer(t).URL()) }

func shareABucket(t *testing.T, url string) {
	t.Helper()
	const instances, callers, takes = 3, 8, 40
	table := unique("shared")
	var stores [instances]*Store
	for i := range stores {
		stores[i] = openStore(t, patient(url), Options{Table: table, OnError: failOn(t)})
	}
	var poured atomic.Int64
	var wg sync.WaitGroup
	for i := range instances * callers {
		wg.Go(func() {
			for range takes {
				d, err := take(context.Background(), stores[i%instances], charge("one", 2))
				check.NoError(t, err, "taking a charge")
				if d.Poured {
					poured.Add(1)
				}
			}
		})
	}
	wg.Wait()
	check.Equal(t, poured.Load(), int64(lasting.Capacity/2), "poured by three instances into one bucket: charges of 2")
}

// The suite's windows are looked at through three instances in turn.
func TestTheContractHoldsAcrossInstances(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: the whole suite once more; run without -short")
	}
	storetest.Run(t, func(tb testing.TB, _ storetest.Need) (leakybucket.Store, func(leakybucket.Instant)) {
		table := unique("across")
		var several inTurn
		for range 3 {
			several.stores = append(several.stores, openStore(tb, patient(sharedServer(tb).URL()), Options{Table: table, OnError: failOn(tb)}))
		}
		return &several, func(at leakybucket.Instant) {
			for _, s := range several.stores {
				s.hold(at)
			}
		}
	})
}

// inTurn asks several instances in turn.
type inTurn struct {
	stores []*Store
	next   atomic.Int64
}

func (s *inTurn) store() *Store { return s.stores[int(s.next.Add(1))%len(s.stores)] }

func (s *inTurn) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	return s.store().Take(ctx, charges, decisions)
}

func (s *inTurn) Settle(ctx context.Context, settlements []leakybucket.Settlement) error {
	return s.store().Settle(ctx, settlements)
}

func (s *inTurn) Reset(ctx context.Context, zone, key string, shadow bool) error {
	return s.store().Reset(ctx, zone, key, shadow)
}

func TestManyInstancesMakeTheTableAtOnce(t *testing.T) {
	server := sharedServer(t)
	for range 3 {
		table := unique("atonce")
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() {
				s, err := Open(patient(server.URL()), Options{Table: table, OnError: failOn(t)})
				if err != nil {
					t.Error(err)
					return
				}
				defer s.Close()
				s.Start()
				_, err = take(context.Background(), s, charge("k", 1))
				check.That(t, err == nil, "taking a charge: %v", err)
			})
		}
		wg.Wait()
	}
}

func TestADroppedTableIsMadeAgain(t *testing.T) {
	server := sharedServer(t)
	table := unique("dropped")
	s := openStore(t, patient(server.URL()), Options{Table: table})
	for about, call := range map[string]func() error{
		"Reset": func() error { return s.Reset(t.Context(), "zone", "k", false) },
		"List": func() error {
			_, _, err := s.List(t.Context(), store.Filter{Zone: "zone", Scan: 1}, "")
			return err
		},
		"Take": func() error {
			_, err := take(t.Context(), s, charge("k", 1))
			return err
		},
	} {
		mustTake(t, s, charge("k", 1))
		check.NoError(t, call(), "%s", about)
		server.Exec(t, "DROP TABLE "+table)
		check.NoError(t, call(), "%s after the table was dropped", about)
		got := levelOf(t, s, "k")
		check.That(t, got <= 1, "%s after the table was dropped: got a level of %v, want no more than it charges", about, got)
	}
}

func TestALoggedTableIsLoggedAndAnUnloggedOneIsNot(t *testing.T) {
	server := sharedServer(t)
	table := unique("logged")
	persistence := func() float64 {
		return server.Float(t, fmt.Sprintf("SELECT ascii(relpersistence::text)::float8 FROM pg_class WHERE relname = '%s'", table))
	}
	for _, test := range []struct {
		logged bool
		want   rune
	}{{false, 'u'}, {true, 'p'}, {false, 'p'}} {
		s := openStore(t, patient(server.URL()), Options{Table: table, Logged: test.logged})
		if test.logged {
			err := takeError(s)
			wantError(t, err, "is unlogged")
			_, statement, _ := strings.Cut(err.Error(), "to run, once: ")
			server.Exec(t, statement)
		}
		mustTake(t, s, charge("k", 1))
		check.Equal(t, rune(persistence()), test.want, "persistence of the table with logged %v", test.logged)
		s.Close()
	}
	s := openStore(t, patient(server.URL()), Options{Table: table})
	got := levelOf(t, s, "k")
	check.That(t, math.Abs(got-3) <= 1e-3, "level after the table became logged: got %v, want 3", got)
}

func TestPrefixesKeepSitesApart(t *testing.T) {
	table := unique("sites")
	a := openStore(t, patient(sharedServer(t).URL()), Options{Table: table, Prefix: "a"})
	b := openStore(t, patient(sharedServer(t).URL()), Options{Table: table, Prefix: "ab"})
	mustTake(t, a, charge("k", 5))
	check.Equal(t, levelOf(t, b, "k"), 0, "level of another site's bucket")
}

func TestLongNamesAreDigested(t *testing.T) {
	s := openStore(t, patient(sharedServer(t).URL()), Options{Table: unique("long")})
	seen := make(map[string]string)
	for _, key := range []string{strings.Repeat("é", 5000), strings.Repeat("é", 4999) + "e", "short"} {
		for _, shadow := range []bool{true, false} {
			name := s.name("zone", key, shadow)
			check.That(t, len(name) <= longestName, "name of a key of %d bytes: got %d bytes, want at most %d", len(key), len(name), longestName)
			other, taken := seen[name]
			check.That(t, !taken, "keys %.20q and %.20q: got one name %q", key, other, name)
			seen[name] = key
		}
	}
}

// The table of texts is locked, so that all who read it wait.
func TestATakeWaitsForNoTexts(t *testing.T) {
	url, o := patient(sharedServer(t).URL()), Options{Table: unique("beside")}
	s, other := openStore(t, url, o), openStore(t, url, o)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	check.Must(s.Texts(ctx, -1))(t)
	mustTake(t, s, charge("k", 1))
	tx := check.Must(other.pool.Begin(ctx))(t)
	defer func() { _ = tx.Rollback(ctx) }()
	check.Must(tx.Exec(ctx, "LOCK TABLE "+s.registry+" IN ACCESS EXCLUSIVE MODE"))(t)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	for range 2 * connections {
		readers.Go(func() { _, _ = s.Texts(ctx, -1) })
	}
	for s.pool.Stat().AcquiredConns() == 0 && ctx.Err() == nil {
		runtime.Gosched()
	}
	for range 10 {
		_, err := take(ctx, s, charge("k", 1))
		check.Assume(t, err == nil, "beside readers who wait: got error %v, want a decision", err)
	}
}

// ping takes from a bucket and resets it, so that PostgreSQL checks the privileges.
func ping(s *Store) error {
	c := charge("ping", 1)
	if err := s.Take(context.Background(), []leakybucket.Charge{c}, make([]leakybucket.Decision, 1)); err != nil {
		return err
	}
	return s.Reset(context.Background(), c.Zone, c.Key, false)
}

func TestStoreKeepsTheContract(t *testing.T) { storetest.Run(t, onePool(t)) }

// BenchmarkTake runs as BenchmarkTake/store=postgres/keys=1e4/order=uniform and
// the like.
func BenchmarkTake(b *testing.B) {
	b.Run("store=postgres", func(b *testing.B) { storetest.Benchmark(b, onePool(b)) })
}

// shared is the server of all tests that do it no harm.
var shared struct {
	once   sync.Once
	server *servertest.Postgres
	err    error
	stores atomic.Int64
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.server != nil {
		shared.server.Remove()
	}
	os.Exit(code)
}

func sharedServer(tb testing.TB) *servertest.Postgres {
	tb.Helper()
	bin := servertest.FindPostgres(tb)
	shared.once.Do(func() { shared.server, shared.err = servertest.NewPostgres(bin) })
	check.Assume(tb, shared.err == nil, "starting PostgreSQL: %v", shared.err)
	return shared.server
}

// unique returns a name that no other test has.
func unique(what string) string { return fmt.Sprint(what, shared.stores.Add(1)) }

// onePool returns an [storetest.Open] whose stores share connections. Each has a table of its own:
// what others have no use for by the server's clock may be alive by that of the case. It forgets
// in a hurry, so that a case would notice what is forgotten too early.
func onePool(tb testing.TB) storetest.Open {
	tb.Helper()
	pool := check.Must(pgxpool.New(context.Background(), patient(sharedServer(tb).URL())+"&pool_max_conns=16"))(tb)
	tb.Cleanup(pool.Close)
	return func(tb testing.TB, _ storetest.Need) (leakybucket.Store, func(leakybucket.Instant)) {
		s := check.Must(New(pool, Options{Table: unique("case"), OnError: failOn(tb)}))(tb)
		tb.Cleanup(s.Close)
		s.forgetEvery = 50 * time.Millisecond
		s.Start()
		return s, s.hold
	}
}

// openStore opens a store and starts it.
func openStore(tb testing.TB, url string, o Options) *Store {
	tb.Helper()
	return openForgetful(tb, url, o, time.Minute)
}

// openForgetful opens a store that searches the whole table for expired buckets in so long.
func openForgetful(tb testing.TB, url string, o Options, every time.Duration) *Store {
	tb.Helper()
	s := openStopped(tb, url, o)
	s.forgetEvery = every
	s.Start()
	return s
}

// openStopped opens a store that does nothing in the background.
func openStopped(tb testing.TB, url string, o Options) *Store {
	tb.Helper()
	s, err := Open(url, o)
	check.OK(tb, err, "opening a store")
	tb.Cleanup(s.Close)
	return s
}

// patient is for a machine that is so busy that connecting takes seconds.
func patient(url string) string { return url + "?connect_timeout=20" }

// hold holds the store's clock.
func (s *Store) hold(at leakybucket.Instant) {
	s.beside <- struct{}{}
	defer func() { <-s.beside }()
	s.held.Store(int64(at))
}

// failOn returns an OnError for tests in which nothing must fail.
func failOn(tb testing.TB) func(error) {
	return func(err error) { tb.Errorf("in the background: got %v, want no error", err) }
}
