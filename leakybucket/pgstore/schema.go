package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// prepare sees to it that there is a table, once. Who may not make tables can
// use one that is there.
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
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	persistence, err := s.persistence(ctx, conn.Conn())
	if err != nil {
		return err
	}
	if persistence == "" || s.logged && persistence == "u" {
		if err := s.create(ctx, conn.Conn().PgConn()); err != nil {
			return s.explainCreate(err)
		}
	}
	s.prepared.Store(true)
	return nil
}

// persistence returns p for a table that survives a crash, u for one that does
// not, and nothing if there is no table.
func (s *Store) persistence(ctx context.Context, conn *pgx.Conn) (string, error) {
	var persistence string
	err := conn.QueryRow(ctx, "SELECT relpersistence::text FROM pg_class WHERE oid = to_regclass($1::text)", s.table).Scan(&persistence)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	return persistence, err
}

// create makes the table, in one transaction that waits for others who are about
// to: CREATE TABLE IF NOT EXISTS alone fails for all but the first.
func (s *Store) create(ctx context.Context, conn *pgconn.PgConn) error {
	statements := []string{
		"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
		"SELECT pg_advisory_xact_lock(hashtextextended('throttle " + s.table + "', 0))",
		s.sql.create,
	}
	if s.logged {
		statements = append(statements, "ALTER TABLE "+s.table+" SET LOGGED") // no work if it is
	}
	statements = append(statements, "COMMIT")
	_, err := conn.Exec(ctx, strings.Join(statements, ";\n")).ReadAll()
	if err != nil && !conn.IsClosed() {
		_, _ = conn.Exec(ctx, "ROLLBACK").ReadAll()
	}
	return err
}

// explainCreate says what somebody who may must run.
func (s *Store) explainCreate(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != noPrivilege && pg.Code != invalidSchema {
		return err
	}
	advice := fmt.Sprintf("want somebody who may to run, once: %s; GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %s",
		s.sql.create, s.table, quoted(s.user))
	if s.logged {
		advice += "; or, if the table is there and unlogged: ALTER TABLE " + s.table + " SET LOGGED"
	}
	return &advised{fmt.Errorf("making the table %s: %w: %s", s.table, pg, advice)}
}

// advised is an error that needs no more advice.
type advised struct{ error }

func (a *advised) Unwrap() error { return errors.Unwrap(a.error) }

// onOneLine leaves out the comments, which PostgreSQL need not read every time.
func onOneLine(sql string) string {
	var words []string
	for line := range strings.Lines(sql) {
		code, _, _ := strings.Cut(line, "--")
		words = append(words, strings.Fields(code)...)
	}
	return strings.Join(words, " ")
}
