package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/caddy-throttle/caddy-throttle/internal/servertest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// The table and the statements of schema 1, as its version had them.
const (
	createSchema1 = `CREATE UNLOGGED TABLE {table} (
		name          bytea PRIMARY KEY,
		level         double precision NOT NULL,
		at            bigint NOT NULL,
		blocked_until bigint NOT NULL,
		step          smallint NOT NULL,
		forget        bigint NOT NULL
	) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)`
	lockSchema1 = `SELECT name, level, at, blocked_until, step FROM {table}
		WHERE name = ANY ($1) ORDER BY name FOR UPDATE`
	insertSchema1 = `INSERT INTO {table} (name, level, at, blocked_until, step, forget)
		SELECT * FROM unnest($1, $2, $3, $4, $5, $6)`
	updateSchema1 = `UPDATE {table} AS bucket
		SET level = new.level, at = new.at, blocked_until = new.blocked_until, step = new.step, forget = new.forget
		FROM unnest($1, $2, $3, $4, $5, $6) AS new (name, level, at, blocked_until, step, forget)
		WHERE bucket.name = new.name`
)

// schema1Table creates a table of schema 1.
func schema1Table(t *testing.T, server *servertest.Postgres) (table string) {
	t.Helper()
	table = unique("former")
	server.Exec(t, strings.ReplaceAll(createSchema1, "{table}", table))
	return table
}

// openSchema1 opens a store that sends the statements of schema 1. It knows no
// leak but that of the charge, as its version did.
func openSchema1(t *testing.T, server *servertest.Postgres, table string) *Store {
	t.Helper()
	s := openStopped(t, Options{URL: patient(server.URL()), Table: table})
	s.prepared.Store(true) // it looks for no column
	for _, statement := range []struct {
		ours   *string
		former string
	}{
		// The former statements knew no ctid and no leak, and found a row by name.
		{&s.sql.lock, strings.NewReplacer("name, level", "name, ctid, level", "step FROM", "step, NULL::float8 FROM").Replace(lockSchema1)},
		{&s.sql.insert, insertSchema1},
		{&s.sql.update, strings.Replace(updateSchema1, "unnest($1,", "unnest((SELECT array_agg((SELECT name FROM {table} WHERE ctid = u)) FROM unnest($1) AS u),", 1)},
	} {
		*statement.ours = strings.ReplaceAll(statement.former, "{table}", table)
	}
	return s
}

func TestTheSchemaIsReadableFromTheTable(t *testing.T) {
	server := sharedServer(t)
	table := unique("commented")
	mustTake(t, openStore(t, Options{URL: patient(server.URL()), Table: table}), charge("k", 1))
	const want = "caddy-throttle buckets: schema 2, usable by schema 1 and newer"
	if got := server.Text(t, "SELECT obj_description('"+table+"'::regclass, 'pg_class')"); got != want {
		t.Errorf("comment of the table: got %q, want %q", got, want)
	}
}

func TestATableOfSchema1IsUpgradedInPlace(t *testing.T) {
	server := sharedServer(t)
	table := schema1Table(t, server)
	mustTake(t, openSchema1(t, server, table), charge("k", 5))
	file := server.Float(t, "SELECT pg_relation_filenode('"+table+"')::bigint::float8")
	s := openStore(t, Options{URL: patient(server.URL()), Table: table, OnError: failOn(t)})
	if got := levelOf(t, s, "k"); math.Abs(got-5) > 1e-3 {
		t.Errorf("level after the upgrade: got %v, want 5", got)
	}
	mustTake(t, s, charge("k", 1))
	if got := server.Float(t, "SELECT leak FROM "+table); got != lasting.Leak {
		t.Errorf("leak of the row: got %v, want %v", got, lasting.Leak)
	}
	if got := server.Float(t, "SELECT pg_relation_filenode('"+table+"')::bigint::float8"); got != file {
		t.Error("the table was written anew, want it changed in the catalog only")
	}
	if got := server.Text(t, "SELECT obj_description('"+table+"'::regclass, 'pg_class')"); !strings.Contains(got, "schema 2") {
		t.Errorf("comment after the upgrade: got %q, want schema 2", got)
	}
}

func TestAnUpgradeKeepsSomebodyElsesComment(t *testing.T) {
	server := sharedServer(t)
	table := schema1Table(t, server)
	server.Exec(t, "COMMENT ON TABLE "+table+" IS 'ask Ann'")
	mustTake(t, openStore(t, Options{URL: patient(server.URL()), Table: table, OnError: failOn(t)}), charge("k", 1))
	if got := server.Text(t, "SELECT obj_description('"+table+"'::regclass, 'pg_class')"); got != "ask Ann" {
		t.Errorf("comment after the upgrade: got %q, want it as it was", got)
	}
}

func TestManyInstancesUpgradeTheTableAtOnce(t *testing.T) {
	server := sharedServer(t)
	table := schema1Table(t, server)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			s := openStore(t, Options{URL: patient(server.URL()), Table: table, OnError: failOn(t)})
			if _, err := take(context.Background(), s, charge("k", 1)); err != nil {
				t.Errorf("taking a charge: %v", err)
			}
		})
	}
	wg.Wait()
}

// Two versions share a table during a rolling upgrade. Every decision must be the
// one that a single store would have made.
func TestTheStatementsOfSchema1WorkBesideOurs(t *testing.T) {
	server := sharedServer(t)
	table := schema1Table(t, server)
	stores := []*Store{
		openSchema1(t, server, table),
		openStore(t, Options{URL: patient(server.URL()), Table: table, OnError: failOn(t)}),
	}
	mustTake(t, stores[1], charge("first", 1)) // upgrades the table
	rng := rand.New(rand.NewPCG(1, 2))
	type bucket struct {
		state leakybucket.State
		last  *leakybucket.Settlement
	}
	buckets := make([]bucket, 5)
	now := leakybucket.Instant(1_700_000_000_000_000)
	steps := 600
	if testing.Short() {
		steps = 200
	}
	for step := range steps {
		now += leakybucket.Instant(rng.IntN(2_000_000))
		s := stores[rng.IntN(len(stores))]
		for _, s := range stores {
			s.hold(now)
		}
		i := rng.IntN(len(buckets))
		b := &buckets[i]
		if b.last != nil && rng.IntN(3) == 0 {
			b.last.Diff = rng.Float64()*4 - 2
			if err := s.Settle(context.Background(), []leakybucket.Settlement{*b.last}); err != nil {
				t.Fatalf("step %d: settling: %v", step, err)
			}
			b.state, b.last = b.last.Apply(b.state, now), nil
			continue
		}
		c := charge(fmt.Sprint("k", i), rng.Float64()*6)
		c.Limit = leakybucket.Limit{Capacity: 10, Leak: 1 + float64(i)}
		c.Block = &leakybucket.Ladder{Steps: []time.Duration{time.Second, 5 * time.Second}}
		var want leakybucket.Decision
		c.Take(&b.state, now, &want)
		got := mustTake(t, s, c)
		if got.Fits != want.Fits || got.Poured != want.Poured || got.Began != want.Began || got.BlockedUntil != want.BlockedUntil ||
			got.Step != want.Step || math.Abs(got.Level-want.Level) > 1e-6 {
			t.Fatalf("step %d, a take of %v: got %+v, want %+v", step, c.Cost, got, want)
		}
		b.last = &leakybucket.Settlement{Charge: c, Was: got}
	}
}

func TestTheStatementsOfSchema1AndOursShareABucketUnderContention(t *testing.T) {
	server := sharedServer(t)
	table := schema1Table(t, server)
	stores := []*Store{
		openSchema1(t, server, table), openSchema1(t, server, table),
		openStore(t, Options{URL: patient(server.URL()), Table: table}), openStore(t, Options{URL: patient(server.URL()), Table: table}),
	}
	var poured atomic.Int64
	var wg sync.WaitGroup
	for caller := range 16 {
		wg.Go(func() {
			for range 50 {
				d, err := take(context.Background(), stores[caller%len(stores)], charge("one", 2))
				if err != nil {
					t.Errorf("taking a charge: %v", err)
				}
				if d.Poured {
					poured.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if got, want := poured.Load(), int64(lasting.Capacity/2); got != want {
		t.Errorf("poured by both versions: got %d charges of 2, want %d", got, want)
	}
}

func TestARoleThatMayNotUpgradeIsToldWhatToRun(t *testing.T) {
	server := sharedServer(t)
	name, table := role(t, server), schema1Table(t, server)
	server.Exec(t, fmt.Sprintf("GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %s", table, name))
	s := openStore(t, Options{URL: patient(server.URLOf(name, secret, "postgres")), Table: table})
	_, err := take(context.Background(), s, charge("k", 1))
	wantError(t, err, "42501", "preparing table", `ADD COLUMN IF NOT EXISTS leak`)
	_, statements, _ := strings.Cut(err.Error(), "to run, once: ")
	server.Exec(t, strings.Split(statements, "; ")...)
	mustTake(t, s, charge("k", 1))
}

func TestANewerTableIsUsedIfItSaysSo(t *testing.T) {
	server := sharedServer(t)
	for comment, says := range map[string]string{
		"caddy-throttle buckets: schema 3, usable by schema 2 and newer": "",
		"caddy-throttle buckets: schema 9, usable by schema 1 and newer": "",
		"caddy-throttle buckets: schema 9, usable by schema 4 and newer": "has schema 9, which needs a store that knows schema 4; this one knows schema 2: upgrade it, or name another table",
		"the shop's throttle, ask Ann":                                   "",
	} {
		table := unique("newer")
		mustTake(t, openStore(t, Options{URL: patient(server.URL()), Table: table}), charge("k", 1))
		server.Exec(t, "ALTER TABLE "+table+" ADD COLUMN origin text NOT NULL DEFAULT ''", "COMMENT ON TABLE "+table+` IS '`+strings.ReplaceAll(comment, "'", "''")+`'`)
		s := openStore(t, Options{URL: patient(server.URL()), Table: table})
		switch _, err := take(context.Background(), s, charge("k", 1)); {
		case says != "":
			wantError(t, err, says)
			wantError(t, s.Ping(context.Background()), says)
		case err != nil:
			t.Errorf("take from a table of %q: got %v, want no error", comment, err)
		}
		if got := server.Text(t, "SELECT obj_description('"+table+"'::regclass, 'pg_class')"); got != comment {
			t.Errorf("comment: got %q, want it as it was, %q", got, comment)
		}
	}
}

// The role's search path puts a function of its own before the server's.
func TestAServerOlderThan14IsRefused(t *testing.T) {
	server := sharedServer(t)
	schema := unique("old")
	server.Exec(t, "CREATE SCHEMA "+schema,
		"CREATE FUNCTION "+schema+".current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT '130014' $$")
	s := openStore(t, Options{URL: patient(server.URL()) + "&search_path=" + schema + ",pg_catalog,public", Table: unique("old")})
	_, err := take(context.Background(), s, charge("k", 1))
	wantError(t, err, "has version 13.14: want 14 or newer")
}

// A change of the schema needs the table for itself. While it waits for that, all
// others wait behind it, so it must not wait for long.
func TestAnUpgradeDoesNotBlockTheFormerVersionBehindALongTransaction(t *testing.T) {
	server := sharedServer(t)
	table := schema1Table(t, server)
	former := openSchema1(t, server, table)
	mustTake(t, former, charge("k", 1))
	dump, err := pgx.Connect(context.Background(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer dump.Close(context.Background())
	if _, err := dump.Exec(context.Background(), "BEGIN; LOCK TABLE "+table+" IN ACCESS SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, Options{URL: patient(server.URL()), Table: table})
	_, err = take(context.Background(), s, charge("k", 1))
	wantError(t, err, "55P03", "a long transaction, such as a dump, is using it")
	for range 20 { // while the other tries again and again
		began := time.Now()
		_, _ = take(context.Background(), s, charge("k", 1))
		mustTake(t, former, charge("k", 1))
		if took := time.Since(began); took > 2*schemaLockPatience+2*time.Second+heart.Lost(began) {
			t.Errorf("take by the former version: got an answer after %v", took)
		}
	}
	if _, err := dump.Exec(context.Background(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the table is upgraded", func() bool {
		_, err := take(context.Background(), s, charge("k", 1))
		return err == nil
	})
}

func TestATableThatLosesAColumnWhileInUseIsUpgradedAgain(t *testing.T) {
	server := sharedServer(t)
	table := unique("restored")
	s := openStore(t, Options{URL: patient(server.URL()), Table: table, OnError: failOn(t)})
	mustTake(t, s, charge("k", 5))
	server.Exec(t, "ALTER TABLE "+table+" DROP COLUMN leak") // as a backup of schema 1 would
	if got := levelOf(t, s, "k"); math.Abs(got-5) > 1e-3 {
		t.Errorf("level after it: got %v, want 5", got)
	}
}

func TestErrorsKeepTheirCause(t *testing.T) {
	server := sharedServer(t)
	ended, end := context.WithCancelCause(context.Background())
	reason := errors.New("the client left")
	end(reason)
	if _, err := take(ended, openStore(t, Options{URL: patient(server.URL())}), charge("k", 1)); !errors.Is(err, reason) {
		t.Errorf("take within a context that has ended: got %v, want it to wrap %v", err, reason)
	}
	// The role is named as its password is.
	name := unique("s3cretrole")
	server.Exec(t, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%[1]s'", name))
	s := openStore(t, Options{URL: patient(server.URLOf(name, "wrong", "postgres"))})
	_, err := take(context.Background(), s, charge("k", 1))
	if !isCode(err, invalidPassword) {
		t.Errorf("take with a wrong password: got %v, want one of code %s", err, invalidPassword)
	}
	// No row and no key is a reason for an error, so one cannot fail a batch.
	table := unique("null")
	s = openStore(t, Options{URL: patient(server.URL()), Table: table})
	mustTake(t, s, charge("k", 1))
	server.Exec(t, "ALTER TABLE "+table+" ALTER level DROP NOT NULL, ALTER at DROP NOT NULL, ALTER leak DROP NOT NULL",
		"UPDATE "+table+" SET level = NULL, at = NULL, leak = NULL")
	if d := mustTake(t, s, charge("k", 1)); !d.Poured || d.Level != 0 {
		t.Errorf("take from a row of NULLs: got %+v, want it poured into an empty bucket", d)
	}
	mustTake(t, s, charge("\x00\xff/~:'\"\\"+strings.Repeat("é\x00", 4000), 1))
}

func TestAPartitionedTableIsRefused(t *testing.T) {
	server := sharedServer(t)
	table := unique("partitioned")
	server.Exec(t, strings.NewReplacer("UNLOGGED TABLE", "TABLE", "{table}", table, ") WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)", ") PARTITION BY HASH (name)").Replace(createSchema1))
	_, err := take(context.Background(), openStore(t, Options{URL: patient(server.URL()), Table: table}), charge("k", 1))
	wantError(t, err, "want an ordinary table")
}
