package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
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
