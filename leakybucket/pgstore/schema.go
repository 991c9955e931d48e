package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// requiredColumns are those of the schema. Nodes of two releases share one table during an
// upgrade, so a new schema only adds columns with defaults, or has a table of another name.
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

// prepare checks the server's version and the table, and creates the table if
// needed. It does so until it has succeeded once.
func (s *Store) prepare(ctx context.Context) error {
	if s.prepared.Load() {
		return nil
	}
	return holding(ctx, s.preparing, func() error {
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
	})
}

// prepareTable looks at the table, and changes it if it lacks anything. Stores change a table
// one after the other: CREATE TABLE IF NOT EXISTS fails if two do it at once, and each looks
// again at what the last one has left.
func (s *Store) prepareTable(ctx context.Context) error {
	missing, err := s.missing(ctx, s.pool)
	if err != nil || len(missing) == 0 {
		return err
	}
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
	err = pgx.BeginTxFunc(ctx, s.pool, options, func(tx pgx.Tx) error {
		run := func(statements ...string) error {
			for _, sql := range statements {
				if _, err := tx.Exec(ctx, sql); err != nil {
					return err
				}
			}
			return nil
		}
		if err := run(
			s.begin[1], // others wait for this process, too
			"SELECT pg_advisory_xact_lock(hashtextextended('throttle "+s.table+"', 0))",
			"SET LOCAL lock_timeout = "+strconv.FormatInt(schemaLockPatience.Milliseconds(), 10),
		); err != nil {
			return err
		}
		if missing, err = s.missing(ctx, tx); err != nil {
			return err
		}
		return run(missing...)
	})
	return s.explainChange(err, s.table, missing...)
}

// missing returns the statements that make a table one that this store can use. It returns
// an error if none can.
func (s *Store) missing(ctx context.Context, from interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
},
) (missing []string, err error) {
	var version int64
	var kind, persistence string // r: an ordinary table, empty: no table; u: unlogged
	var columns []string
	if err := from.QueryRow(ctx, s.sql["inspect"], pgx.QueryExecModeExec, s.table).Scan(&version, &kind, &persistence, &columns); err != nil {
		return nil, err
	}
	if version < oldestServer {
		return nil, &advised{fmt.Errorf("PostgreSQL at %s has version %d.%d: want 14 or newer", s.address, version/10_000, version%10_000)}
	}
	switch kind {
	case "r":
	case "":
		return []string{s.sql["create"]}, nil
	default: // in a partitioned table ctid names no single row
		return nil, &advised{fmt.Errorf("%s is a view or a partitioned table: want an ordinary table; name another one", s.table)}
	}
	for _, column := range requiredColumns {
		if !slices.Contains(columns, column) {
			return nil, &advised{fmt.Errorf("table %s has no column %s: want a table that this store has created; name another one", s.table, column)}
		}
	}
	if s.wantsLogged && persistence == "u" {
		missing = append(missing, s.sql["logged"])
	}
	return missing, nil
}

// explainChange says which statements somebody with the privilege must run.
func (s *Store) explainChange(err error, table string, missing ...string) error {
	switch {
	case isCode(err, noPrivilege, invalidSchema):
		return &advised{fmt.Errorf("preparing table %s: %w: want its owner to run, once: %s; GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %s",
			table, err, strings.Join(missing, "; "), table, quoted(s.user))}
	case isCode(err, lockNotAvailable):
		return &advised{fmt.Errorf("preparing table %s: %w: a long transaction, such as a dump, is using it; trying again every %v",
			table, err, schemaRetryAfter)}
	}
	return err
}

// isCode reports whether err is an error of the server with one of these codes.
func isCode(err error, codes ...string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && slices.Contains(codes, pg.Code)
}

// advised is an error that says what would help already.
type advised struct{ error }

func (a *advised) Unwrap() error { return errors.Unwrap(a.error) }
