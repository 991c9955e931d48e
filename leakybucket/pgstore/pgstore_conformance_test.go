package pgstore

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

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
