package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// requiredColumns are those of the schema. Nodes of two releases share one table during an
// upgrade, so a new schema only adds columns with defaults, or has a table of another name.
var requiredColumns = []string{"name", "level", "at", "blocked_until", "step", "forget", "leak"}

// oldestServer is the oldest server_version_num that is supported. Before
// PostgreSQL 14 a search by ctid, as forget.sql does, reads the whole table.
const oldestServer = 14_00_00

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
		err := s.prepareTable(ctx)
		s.prepared.Store(err == nil)
		return err
	})
}

// prepareTable looks at the table, and creates it if there is none.
func (s *Store) prepareTable(ctx context.Context) error {
	exists, err := s.inspect(ctx)
	if err != nil || exists {
		return err
	}
	if err := s.create(ctx, s.table, s.sql["create"]); err != nil {
		return err
	}
	_, err = s.inspect(ctx) // another store may have been first, with other options
	return err
}

// inspect reports whether the table exists. It returns an error if this store cannot use it.
func (s *Store) inspect(ctx context.Context) (exists bool, err error) {
	var version int64
	var kind, persistence string // r: an ordinary table, empty: no table; u: unlogged
	var columns []string
	if err := s.pool.QueryRow(ctx, s.sql["inspect"], pgx.QueryExecModeExec, s.table).Scan(&version, &kind, &persistence, &columns); err != nil {
		return false, err
	}
	if version < oldestServer {
		return false, &advised{fmt.Errorf("PostgreSQL at %s has version %d.%d: want 14 or newer", s.address, version/10_000, version%10_000)}
	}
	switch kind {
	case "r":
	case "":
		return false, nil
	default: // in a partitioned table ctid names no single row
		return false, &advised{fmt.Errorf("%s is a view or a partitioned table: want an ordinary table; name another one", s.table)}
	}
	for _, column := range requiredColumns {
		if !slices.Contains(columns, column) {
			return false, &advised{fmt.Errorf("table %s has no column %s: want a table that this store has created; name another one", s.table, column)}
		}
	}
	if s.wantsLogged && persistence == "u" {
		return false, &advised{fmt.Errorf("table %s is unlogged: want its owner to run, once: ALTER TABLE %[1]s SET LOGGED", s.table)}
	}
	return true, nil
}

// create creates a table. CREATE TABLE IF NOT EXISTS fails if two do it at once.
func (s *Store) create(ctx context.Context, table, sql string) error {
	err := s.sendAlone(ctx, func(p *pipeline) {
		p.add(s.sql["registry_lock"], table)
		p.add(sql)
	}, nil)
	if isCode(err, noPrivilege, invalidSchema) {
		return &advised{fmt.Errorf("preparing table %s: %w: want its owner to run, once: %s; GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %s",
			table, err, sql, table, quoted(s.user))}
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
