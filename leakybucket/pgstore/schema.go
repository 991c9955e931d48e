package pgstore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The table's comment says which version of the schema it has, and which one a
// store must know to use it. Versions of this package that run side by side during
// a rolling upgrade use one table, so a new version must only add columns with
// defaults.
const (
	schemaVersion  = 1
	schemaUsableBy = 1
)

// requiredColumns are those of the schema.
var requiredColumns = []string{"name", "level", "at", "blocked_until", "step", "forget", "leak"}

const (
	// oldestServer is the oldest server_version_num that is supported. Before
	// PostgreSQL 14 a search by ctid, as forget.sql does, reads the whole table.
	oldestServer = 14_00_00

	// schemaLockPatience is how long a change of the schema waits for its lock.
	// Meanwhile all other users of the table wait behind it.
	schemaLockPatience = 250 * time.Millisecond

	// schemaRetryAfter is the pause after a change that did not get its lock.
	schemaRetryAfter = time.Second
)

var commentFormat = regexp.MustCompile(`schema (\d+), usable by schema (\d+)`)

// schemaComment returns the comment of a table of this version.
func schemaComment() string {
	return fmt.Sprintf("caddy-throttle buckets: schema %d, usable by schema %d and newer", schemaVersion, schemaUsableBy)
}

// prepare checks the server's version and the table, and creates the table if
// needed. It does so until it has succeeded once.
func (s *Store) prepare(ctx context.Context) error {
	if s.prepared.Load() {
		return nil
	}
	select {
	case s.preparing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.preparing }()
	if s.prepared.Load() {
		return nil
	}
	if time.Now().Before(s.prepareAfter) {
		return s.prepareError
	}
	err := s.prepareTable(ctx)
	if isCode(err, lockNotAvailable) {
		s.prepareError, s.prepareAfter = err, time.Now().Add(schemaRetryAfter)
	}
	s.prepared.Store(err == nil)
	return err
}

func (s *Store) prepareTable(ctx context.Context) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	found, err := s.inspect(ctx, conn.Conn())
	if err != nil {
		return err
	}
	missing, err := s.missing(found)
	if err != nil || len(missing) == 0 {
		return err
	}
	changes, err := s.change(ctx, conn.Conn())
	if err == nil {
		return nil
	}
	if !conn.Conn().IsClosed() {
		_, _ = conn.Exec(ctx, "ROLLBACK")
	}
	if changes == nil {
		changes = missing
	}
	return s.explainChange(err, changes)
}

// A foundTable is what the server says of the table.
type foundTable struct {
	serverVersion int64
	kind          string // r: an ordinary table, empty: no table
	persistence   string // p: logged, u: unlogged
	comment       string
	columns       []string
}

func (s *Store) inspect(ctx context.Context, conn *pgx.Conn) (found foundTable, err error) {
	err = conn.QueryRow(ctx, s.sql.inspect, s.table).Scan(&found.serverVersion, &found.kind, &found.persistence, &found.comment, &found.columns)
	return found, err
}

// missing returns the statements that make a table one that this version can
// use. It returns an error if none can.
func (s *Store) missing(found foundTable) (missing []string, err error) {
	if found.serverVersion < oldestServer {
		return nil, &advised{fmt.Errorf("PostgreSQL at %s has version %d.%d: want 14 or newer",
			s.address, found.serverVersion/10_000, found.serverVersion%10_000)}
	}
	switch found.kind {
	case "r":
	case "":
		return []string{s.sql.create, s.sql.comment}, nil
	default: // in a partitioned table ctid names no single row
		return nil, &advised{fmt.Errorf("%s is a view or a partitioned table: want an ordinary table; name another one", s.table)}
	}
	for _, column := range requiredColumns {
		if !slices.Contains(found.columns, column) {
			return nil, &advised{fmt.Errorf("table %s has no column %s: want a table that this store has created; name another one", s.table, column)}
		}
	}
	if version, usableBy := found.schema(); usableBy > schemaVersion {
		return nil, &advised{fmt.Errorf("table %s has schema %d, which needs a store that knows schema %d; this one knows schema %d: upgrade it, or name another table",
			s.table, version, usableBy, schemaVersion)}
	}
	if s.wantsLogged && found.persistence == "u" {
		missing = append(missing, s.sql.logged)
	}
	return missing, nil
}

// schema returns the schema's version, and which version a store must know to
// use the table. Both are 0 if the comment does not say.
func (found foundTable) schema() (version, usableBy int) {
	match := commentFormat.FindStringSubmatch(found.comment)
	if match == nil {
		return 0, 0
	}
	version, _ = strconv.Atoi(match[1])
	usableBy, _ = strconv.Atoi(match[2])
	return version, usableBy
}

// change runs the missing statements in one transaction, and returns them, or nil
// if it does not get as far.
// Stores change a table one after the other: CREATE TABLE IF NOT EXISTS fails if
// two do it at once, and each looks again at what the last one has left.
func (s *Store) change(ctx context.Context, conn *pgx.Conn) (missing []string, err error) {
	for _, sql := range []string{
		"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
		"SELECT pg_advisory_xact_lock(hashtextextended('throttle " + s.table + "', 0))",
		"SET LOCAL lock_timeout = " + strconv.FormatInt(schemaLockPatience.Milliseconds(), 10),
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	found, err := s.inspect(ctx, conn)
	if err != nil {
		return nil, err
	}
	if missing, err = s.missing(found); err != nil {
		return nil, err
	}
	for _, sql := range append(slices.Clone(missing), "COMMIT") {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return missing, err
		}
	}
	return missing, nil
}

// explainChange says which statements somebody with the privilege must run.
func (s *Store) explainChange(err error, missing []string) error {
	switch {
	case isCode(err, noPrivilege) || isCode(err, invalidSchema):
		return &advised{fmt.Errorf("preparing table %s: %w: want its owner to run, once: %s; GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %s",
			s.table, err, strings.Join(missing, "; "), s.table, quoted(s.user))}
	case isCode(err, lockNotAvailable):
		return &advised{fmt.Errorf("preparing table %s: %w: a long transaction, such as a dump, is using it; trying again every %v",
			s.table, err, schemaRetryAfter)}
	}
	return err
}

// isCode reports whether err is an error of the server with that code.
func isCode(err error, code string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == code
}

// advised is an error that says what would help already.
type advised struct{ error }

func (a *advised) Unwrap() error { return errors.Unwrap(a.error) }
