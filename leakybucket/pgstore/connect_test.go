package pgstore

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

// silentServer accepts connections and never answers. It counts them.
func silentServer(t *testing.T) (url string, accepted *atomic.Int64) {
	t.Helper()
	l := check.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	accepted = new(atomic.Int64)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			t.Cleanup(func() { conn.Close() })
		}
	}()
	return "postgres://somebody@" + l.Addr().String() + "/db", accepted
}

func TestNewConnectsToNothing(t *testing.T) {
	for name, begin := range map[string]func(*Store){
		"the first call": func(s *Store) {
			ctx, cancel := context.WithTimeout(context.Background(), budget)
			defer cancel()
			_, _ = take(ctx, s, charge("k", 1))
		},
		"Start": func(s *Store) { s.Start() },
	} {
		url, accepted := silentServer(t)
		var begun atomic.Bool
		s := openStopped(t, url, Options{OnError: func(err error) {
			check.That(t, begun.Load(), "%s: got %v before", name, err)
		}})
		pause(context.Background(), 100*time.Millisecond)
		check.Equal(t, accepted.Load(), 0, "connections before %s", name)
		begun.Store(true)
		begin(s)
		eventually(t, "a connection after "+name, func() bool { return accepted.Load() > 0 })
	}
}

func TestStartPreparesTheTableAndDoesNothingTwiceOrAfterClose(t *testing.T) {
	server := sharedServer(t)
	goroutines := runtime.NumGoroutine()
	table := unique("started")
	exists := func() bool { return server.Float(t, "SELECT count(to_regclass('"+table+"'))::float8") == 1 }
	s := openStopped(t, patient(server.URL()), Options{Table: table, OnError: failOn(t)})
	check.That(t, !exists(), "the table exists before Start")
	s.Start()
	s.Start()
	eventually(t, "the table exists", exists)
	s.Close()
	s.Start()
	s.Close()
	_, err := take(context.Background(), s, charge("k", 1))
	check.That(t, err != nil, "take from a closed store: got no error")
	eventually(t, "goroutines are back", func() bool { return runtime.NumGoroutine() <= goroutines })
}

// TestAGivenPool: the store uses it, gives statements no names in it, whatever its mode, and
// leaves it open.
func TestAGivenPool(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), patient(sharedServer(t).URL()))
	check.OK(t, err)
	defer pool.Close()
	if s, err := New(pool, Options{User: "somebody"}); err == nil || s != nil {
		t.Errorf("a user beside a pool: got %v, %v, want nil and an error", s, err)
	}
	s, err := New(pool, Options{Table: unique("given"), OnError: failOn(t)})
	check.OK(t, err)
	s.Start()
	mustTake(t, s, charge("k", 1))
	if _, _, err := s.List(t.Context(), store.Filter{Zone: "zone"}, ""); err != nil {
		t.Error(err)
	}
	check.NoError(t, s.Reset(t.Context(), "zone", "k", false))
	text := store.Text{Name: "n", Number: 7, End: leakybucket.Instant(time.Now().Add(time.Hour).UnixMicro()), Text: "t"}
	before, last, err := s.PutTexts(t.Context(), []store.Text{text})
	check.That(t, err == nil && before == 0 && last != 0, "texts put: got %v, %v, %v, want 0, a mark, and no error", before, last, err)
	got, err := s.Texts(t.Context(), 0)
	check.That(t, err == nil && got.Last == last && got.Count == 1 && slices.Equal(got.Texts, []store.Text{text}), "texts: got %v, %v, want %v of mark %d", got, err, text, last)
	s.Close()
	for _, conn := range pool.AcquireAllIdle(t.Context()) {
		var names []string
		err := conn.QueryRow(t.Context(), "SELECT array_agg(statement) FROM pg_prepared_statements", pgx.QueryExecModeExec).Scan(&names)
		check.That(t, err == nil && len(names) == 0, "prepared statements: got %q, %v, want none", names, err)
		conn.Release()
	}
	check.NoError(t, pool.Ping(t.Context()), "the pool after the store was closed")
}

// TestAGivenPoolIsNotReset: when the store has lost a connection, those of others stay.
func TestAGivenPoolIsNotReset(t *testing.T) {
	config := check.Must(pgxpool.ParseConfig(patient(sharedServer(t).URL())))(t)
	config.MaxConns = 3
	config.ConnConfig.RuntimeParams["application_name"] = unique("shared")
	pool := check.Must(pgxpool.NewWithConfig(t.Context(), config))(t)
	defer pool.Close()
	s := check.Must(New(pool, Options{Table: unique("shared"), OnError: failOn(t)}))(t)
	defer s.Close()
	others := check.Must(pool.Acquire(t.Context()))(t)
	mustTake(t, s, charge("k", 1))
	if _, err := others.Exec(t.Context(), `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
		WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid()`); err != nil {
		t.Fatal(err)
	}
	mustTake(t, s, charge("k", 1))
	was := others.Conn()
	others.Release()
	kept := false
	for _, conn := range pool.AcquireAllIdle(t.Context()) {
		kept = kept || conn.Conn() == was
		conn.Release()
	}
	check.That(t, kept, "the connection of another user of the pool was closed, want it kept")
}

func TestNoCallOutlivesItsContext(t *testing.T) {
	frozen := servertest.StartPostgres(t)
	silent, _ := silentServer(t)
	connected := openStopped(t, frozen.URL(), Options{})
	eventually(t, "the store answers", func() bool { return ping(connected) == nil })
	thaw := frozen.Freeze()
	t.Cleanup(thaw)
	c := charge("k", 1)
	for name, s := range map[string]*Store{
		"a frozen server":                 connected,
		"a frozen server, not yet dialed": openStopped(t, frozen.URL(), Options{}),
		"a server that never answers":     openStopped(t, silent, Options{}),
	} {
		for what, call := range map[string]func(context.Context) error{
			"Take": func(ctx context.Context) error {
				_, err := take(ctx, s, c)
				return err
			},
			"Settle": func(ctx context.Context) error {
				return s.Settle(ctx, []leakybucket.Settlement{{Charge: c, Diff: 1}})
			},
			"Reset": func(ctx context.Context) error { return s.Reset(ctx, "zone", "k", false) },
		} {
			began := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), budget)
			err := call(ctx)
			cancel()
			took := time.Since(began)
			check.That(t, took <= budget+grace+heart.Lost(began), "%s of %s: got an answer after %v, want one within %v", what, name, took, budget)
			check.That(t, errors.Is(err, context.DeadlineExceeded), "%s of %s: got error %v, want one that wraps %v", what, name, err, context.DeadlineExceeded)
		}
	}
}

func TestARotatedCertificateAuthorityIsReadAgain(t *testing.T) {
	server := servertest.StartPostgres(t)
	first, second := servertest.NewAuthority(t, "first"), servertest.NewAuthority(t, "second")
	file := filepath.Join(t.TempDir(), "ca.pem")
	write := func(pem []byte) {
		t.Helper()
		check.OK(t, os.WriteFile(file, pem, 0o644))
	}
	hangUp := func() {
		t.Helper()
		server.Exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'throttle'")
	}
	write(first.PEM)
	serve := func(by *servertest.Authority) {
		t.Helper()
		certificate, key := by.Certify(t)
		server.ServeTLS(t, certificate, key)
	}
	serve(first)
	s := openStopped(t, patient(server.URL())+"&sslmode=verify-full&sslrootcert="+file, Options{})
	answers := func() bool { return takeError(s) == nil }
	eventually(t, "the server of the first authority is trusted", answers)

	serve(second) // the reload takes some time
	eventually(t, "the server of another authority is refused", func() bool {
		hangUp()
		_, err := take(context.Background(), s, charge("k", 1))
		var unknown x509.UnknownAuthorityError
		return errors.As(err, &unknown)
	})
	write(bytes.Join([][]byte{first.PEM, second.PEM}, nil))
	eventually(t, "the server of the second authority is trusted", answers)

	// Without the file nothing is trusted, which is an error until it is back.
	check.OK(t, os.Rename(file, file+".moved"))
	eventually(t, "the missing file is told", func() bool {
		hangUp()
		err := takeError(s)
		return err != nil && strings.Contains(err.Error(), "files that can be read")
	})
	check.OK(t, os.Rename(file+".moved", file))
	eventually(t, "the second authority is trusted again", answers)
}
