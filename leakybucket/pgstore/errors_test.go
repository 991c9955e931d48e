package pgstore

import (
	"context"
	"fmt"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

const secret = "s3cret/with:signs@and%more"

// role makes a role that may connect, with the secret as its password.
func role(t *testing.T, server *servertest.Postgres) string {
	t.Helper()
	name := unique("role")
	server.Exec(t, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", name, secret))
	return name
}

// wantError fails the test if an error is none, says none of what it must, or
// shows a password.
func wantError(t *testing.T, err error, says ...string) {
	t.Helper()
	check.Assume(t, err != nil, "got no error, want one that says %q", says)
	for _, text := range []string{err.Error(), fmt.Sprintf("%+v", err), fmt.Sprintf("%#v", err)} {
		for _, password := range []string{secret, "s3cret", servertest.PostgresPassword} {
			check.That(t, !strings.Contains(text, password), "error %q shows a password", text)
		}
	}
	for _, want := range says {
		check.That(t, strings.Contains(err.Error(), want), "got error %q, want it to say %q", err, want)
	}
}

func TestAWrongPasswordIsSaidAndNotShown(t *testing.T) {
	server := sharedServer(t)
	name := role(t, server)
	s := openStore(t, patient(server.URLOf(name, secret+"x", "postgres")), Options{})
	wantError(t, takeError(s), "28P01", name, "password of role")
	wantError(t, ping(s), "28P01")
}

func TestCredentialsMayStandBesideTheURL(t *testing.T) {
	server := sharedServer(t)
	name := role(t, server)
	table := unique("granted")
	mustTake(t, openStore(t, patient(server.URL()), Options{Table: table}), charge("k", 1))
	server.Exec(t, fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %s", table, name))
	// A role that may not create tables can use an existing one.
	s := openStore(t, fmt.Sprintf("postgres://127.0.0.1:%d/postgres", server.Port), Options{User: name, Password: secret, Table: table, OnError: failOn(t)})
	check.That(t, levelOf(t, s, "k") != 0, "level through a role of its own: got 0, want what the other has poured")
	check.NoError(t, ping(s), "ping")
}

func TestAMissingPrivilegeIsNamed(t *testing.T) {
	server := sharedServer(t)
	for _, granted := range []string{"", "SELECT", "SELECT, INSERT, UPDATE", "SELECT, UPDATE, DELETE"} {
		name, table := role(t, server), unique("denied")
		mustTake(t, openStore(t, patient(server.URL()), Options{Table: table}), charge("k", 1))
		if granted != "" {
			server.Exec(t, fmt.Sprintf("GRANT %s ON %s TO %s", granted, table, name))
		}
		s := openStore(t, patient(server.URLOf(name, secret, "postgres")), Options{Table: table})
		grant := fmt.Sprintf(`GRANT SELECT, INSERT, UPDATE, DELETE ON "%s" TO "%s"`, table, name)
		wantError(t, ping(s), "42501", grant)
		if !strings.Contains(granted, "INSERT") {
			_, err := take(context.Background(), s, charge("new", 1))
			wantError(t, err, "42501", grant)
		}
		// The advice helps.
		server.Exec(t, grant)
		mustTake(t, s, charge("new", 1))
		_, err := openStore(t, patient(server.URL()), Options{Table: table}).Texts(t.Context(), -1)
		check.OK(t, err)
		_, err = s.Texts(t.Context(), -1)
		wantError(t, err, "42501", fmt.Sprintf(`ON "%s_changes" TO "%s"`, table, name))
	}
}

func TestARoleThatMayNotCreateTheTableIsToldWhatToRun(t *testing.T) {
	server := sharedServer(t)
	name, table := role(t, server), unique("unmade")
	s := openStore(t, patient(server.URLOf(name, secret, "postgres")), Options{Table: table})
	err := takeError(s)
	wantError(t, err, "42501", "preparing table", "CREATE UNLOGGED TABLE IF NOT EXISTS", "GRANT SELECT, INSERT, UPDATE, DELETE")
	_, statements, _ := strings.Cut(err.Error(), "to run, once: ")
	server.Exec(t, strings.Split(statements, "; ")...)
	mustTake(t, s, charge("k", 1))

	schema := unique("nowhere")
	s = openStore(t, patient(server.URL()), Options{Table: schema + ".buckets"})
	wantError(t, takeError(s), "3F000", "CREATE UNLOGGED TABLE")
	server.Exec(t, "CREATE SCHEMA "+schema)
	mustTake(t, s, charge("k", 1))
}

func TestAServerThatIsReadOnlyIsSaid(t *testing.T) {
	server := servertest.StartPostgres(t)
	mustTake(t, openStore(t, patient(server.URL()), Options{}), charge("k", 1))
	server.Exec(t, "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
	// The role's default does not hinder a transaction that asks to write.
	s := openStore(t, patient(server.URL()), Options{OnError: failOn(t)})
	mustTake(t, s, charge("k", 1))
	check.NoError(t, s.Reset(t.Context(), "zone", "k", false), "Reset")
	_, _, err := s.PutTexts(t.Context(), []store.Text{{Name: "n", Number: 1, End: math.MaxInt64}})
	check.NoError(t, err, "PutTexts")
	s.forgetPart(t.Context(), 0)
	conn := check.Must(s.pool.Acquire(t.Context()))(t)
	own := &transaction{s, conn.Conn().PgConn(), conn.Conn().TypeMap()}
	check.NoError(t, own.makeRows(t.Context(), &batch{rows: []row{{name: "zone/raced"}}}), "makeRows")
	err = own.alone(t.Context(), func(p *pipeline) { p.add("SELECT 1/0") }, nil)
	check.That(t, err != nil && own.conn.TxStatus() == 'I', "after %v: got the status %c, want a connection that the pool keeps", err, own.conn.TxStatus())
	conn.Release()
	server.Standby(t)
	proxy := servertest.StartProxy(t, fmt.Sprintf("127.0.0.1:%d", server.Port), nil)
	s = openStore(t, patient(server.URLThrough(proxy)), Options{Logged: true})
	wantError(t, takeError(s), "server is in standby mode")
	// The address of a load balancer leads to the new primary after a failover, and leaves connections to a standby open.
	proxy.Lead(fmt.Sprintf("127.0.0.1:%d", sharedServer(t).Port))
	mustTake(t, s, charge("k", 1))
}

func TestAnythingButPostgreSQLIsAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check.OK(t, err)
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\nwhat is this? "))
			time.AfterFunc(100*time.Millisecond, func() { conn.Close() })
		}
	}()
	s := openStore(t, "postgres://somebody:s3cret@"+l.Addr().String()+"/db", Options{})
	began := time.Now()
	wantError(t, takeError(s), "connecting to PostgreSQL", l.Addr().String())
	took := time.Since(began)
	check.That(t, took <= 5*time.Second+heart.Lost(began), "take from what is no PostgreSQL: got an answer after %v", took)
}

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	const good = "postgres://somebody:s3cret@127.0.0.1/db"
	for _, test := range []struct {
		url     string
		options Options
		says    string
	}{
		{"", Options{}, "want postgres://"},
		{"127.0.0.1:5432", Options{}, "want postgres://"},
		{"user=x password=s3cret host=y", Options{}, "want postgres://"},
		{"postgres://somebody:s3cret/x@127.0.0.1/db", Options{}, "percent-encoded"},
		{"postgres://somebody:s3cret%zz@127.0.0.1/db", Options{}, "percent-encoded"},
		{good + "?sslmode=s3cret", Options{}, "invalid setting"},
		{good, Options{Table: "Robert'); DROP TABLE"}, "invalid table"},
		{good, Options{Table: "a.b.c"}, "invalid table"},
		{good, Options{Prefix: "a:b"}, "invalid prefix"},
	} {
		s, err := Open(test.url, test.options)
		if err == nil {
			s.Close()
		}
		wantError(t, err, test.says)
	}
}
