package pgstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/servertest"
)

func TestATableThatLacksAColumnIsRefused(t *testing.T) {
	server := sharedServer(t)
	table := unique("short")
	s := openStore(t, patient(server.URL()), Options{Table: table})
	mustTake(t, s, charge("k", 5))
	server.Exec(t, "ALTER TABLE "+table+" DROP COLUMN leak")
	wantError(t, takeError(s), "has no column leak") // while it is in use
	wantError(t, ping(openStore(t, patient(server.URL()), Options{Table: table})), "has no column leak")
}

// The role's search path puts a function of its own before the server's.
func TestAServerOlderThan14IsRefused(t *testing.T) {
	server := sharedServer(t)
	schema := unique("old")
	server.Exec(t, "CREATE SCHEMA "+schema,
		"CREATE FUNCTION "+schema+".current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT '130014' $$")
	s := openStore(t, patient(server.URL())+"&search_path="+schema+",pg_catalog,public", Options{Table: unique("old")})
	wantError(t, takeError(s), "has version 13.14: want 14 or newer")
}

// A change of the table needs it for itself. While it waits for that, all others
// wait behind it, so it must not wait for long.
func TestALoggedTableDoesNotBlockOthersBehindALongTransaction(t *testing.T) {
	server := sharedServer(t)
	table := unique("dumped")
	other := openStore(t, patient(server.URL()), Options{Table: table})
	mustTake(t, other, charge("k", 1))
	dump, err := pgx.Connect(context.Background(), server.URL())
	check.OK(t, err)
	defer dump.Close(context.Background())
	check.Must(dump.Exec(context.Background(), "BEGIN; LOCK TABLE "+table+" IN ACCESS SHARE MODE"))(t)
	s := openStore(t, patient(server.URL()), Options{Table: table, Logged: true})
	wantError(t, takeError(s), "55P03", "a long transaction, such as a dump, is using it")
	for range 20 { // while the other tries again and again
		began := time.Now()
		_, _ = take(context.Background(), s, charge("k", 1))
		mustTake(t, other, charge("k", 1))
		if took := time.Since(began); long() && took > 2*schemaLockPatience+2*time.Second+heart.Lost(began) {
			t.Errorf("take by the other store: got an answer after %v", took)
		}
	}
	check.Must(dump.Exec(context.Background(), "COMMIT"))(t)
	eventually(t, "the table is logged", func() bool { return takeError(s) == nil })
}

func TestAProcessThatStopsWhileItMakesTheTableIsNotWaitedFor(t *testing.T) {
	server, table := sharedServer(t), unique("halted")
	reached, goOn := make(chan struct{}, 1), make(chan struct{})
	proxy := servertest.StartProxy(t, fmt.Sprintf("127.0.0.1:%d", server.Port), func(reply []byte) bool {
		if bytes.Contains(reply, []byte("pg_advisory_xact_lock")) {
			reached <- struct{}{}
			<-goOn
		}
		return false
	})
	s, ended := openStopped(t, server.URLThrough(proxy), Options{Table: table}), make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.prepare(context.Background())
	}()
	defer func() { close(goOn); <-ended }()
	<-reached
	mustTake(t, openStopped(t, patient(server.URL()), Options{Table: table}), charge("k", 1))
}

func TestErrorsKeepTheirCause(t *testing.T) {
	server := sharedServer(t)
	ended, end := context.WithCancelCause(context.Background())
	reason := errors.New("the client left")
	end(reason)
	_, err := take(ended, openStore(t, patient(server.URL()), Options{}), charge("k", 1))
	check.That(t, errors.Is(err, reason), "take within a context that has ended: got %v, want it to wrap %v", err, reason)
	// The role is named as its password is.
	name := unique("s3cretrole")
	server.Exec(t, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%[1]s'", name))
	s := openStore(t, patient(server.URLOf(name, "wrong", "postgres")), Options{})
	_, err = take(context.Background(), s, charge("k", 1))
	check.That(t, isCode(err, invalidPassword), "take with a wrong password: got %v, want one of code %s", err, invalidPassword)
	// No row and no key is a reason for an error, so one cannot fail a batch.
	table := unique("null")
	s = openStore(t, patient(server.URL()), Options{Table: table})
	mustTake(t, s, charge("k", 1))
	server.Exec(t, "ALTER TABLE "+table+" ALTER level DROP NOT NULL, ALTER at DROP NOT NULL, ALTER leak DROP NOT NULL",
		"UPDATE "+table+" SET level = NULL, at = NULL, leak = NULL")
	d := mustTake(t, s, charge("k", 1))
	check.That(t, d.Poured && d.Level == 0, "take from a row of NULLs: got %+v, want it poured into an empty bucket", d)
	mustTake(t, s, charge("\x00\xff/~:'\"\\"+strings.Repeat("é\x00", 4000), 1))
}

func TestATableOfAnotherShapeIsRefused(t *testing.T) {
	server := sharedServer(t)
	for shape, says := range map[string]string{
		"(name text, level text)":                           "has no column at",
		"(name bytea PRIMARY KEY) PARTITION BY HASH (name)": "want an ordinary table",
	} {
		table := unique("foreign")
		server.Exec(t, "CREATE TABLE "+table+" "+shape)
		wantError(t, takeError(openStore(t, patient(server.URL()), Options{Table: table})), says)
	}
}

func TestANewerTableIsUsed(t *testing.T) {
	server := sharedServer(t)
	table := unique("newer")
	mustTake(t, openStore(t, patient(server.URL()), Options{Table: table}), charge("k", 1))
	server.Exec(t, "ALTER TABLE "+table+" ADD COLUMN origin text NOT NULL DEFAULT ''")
	mustTake(t, openStore(t, patient(server.URL()), Options{Table: table}), charge("k", 1))
}
