package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// What PostgreSQL calls the errors that are told apart here.
const (
	uniqueViolation      = "23505"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	undefinedTable       = "42P01"
	undefinedColumn      = "42703"
	datatypeMismatch     = "42804"
	undefinedFunction    = "42883"
	noPrivilege          = "42501"
	invalidSchema        = "3F000"
	readOnly             = "25006"
	notSupported         = "0A000" // what a standby says of a transaction that may write
	idleInTransaction    = "25P03"
	idleSession          = "57P05"
	adminShutdown        = "57P01"
	crashShutdown        = "57P02"
	invalidAuthorization = "28000"
	invalidPassword      = "28P01"
	tooManyConnections   = "53300"
)

var errClosed = errors.New("asking PostgreSQL: the store is closed")

// explain says what happened in words that help, and what would help. It hides
// pgx's ConnectError, which carries the whole configuration, password included.
func (s *Store) explain(err error) error {
	if err == nil || errors.Is(err, errClosed) {
		return err
	}
	var known *advised
	if errors.As(err, &known) {
		return known
	}
	var refused *pgconn.ConnectError
	if errors.As(err, &refused) {
		err = refused.Unwrap()
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		if refused != nil {
			return fmt.Errorf("connecting to PostgreSQL at %s: %w", s.address, err)
		}
		return fmt.Errorf("asking PostgreSQL at %s: %w", s.address, err)
	}
	if advice := s.advice(pg); advice != "" {
		return fmt.Errorf("asking PostgreSQL at %s: %w: %s", s.address, pg, advice)
	}
	return fmt.Errorf("asking PostgreSQL at %s: %w", s.address, pg)
}

func (s *Store) advice(pg *pgconn.PgError) string {
	switch pg.Code {
	case invalidPassword, invalidAuthorization:
		return fmt.Sprintf("want the password of role %q, and a line in pg_hba.conf that lets it in", s.user)
	case noPrivilege:
		return fmt.Sprintf("want GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %s, and USAGE on its schema", s.table, quoted(s.user))
	case undefinedTable:
		return fmt.Sprintf("want the table %s; was it dropped just now?", s.table)
	case undefinedColumn, datatypeMismatch, undefinedFunction:
		return fmt.Sprintf("want the table %s as this store makes it; drop it, or name another", s.table)
	case readOnly, notSupported:
		return "want a server that can be written to, not a standby (target_session_attrs=read-write finds it among several)"
	case tooManyConnections:
		return "want a higher max_connections, or a pooler such as PgBouncer"
	}
	return ""
}

// outOfPatience is what a caller is told who left before there was an answer.
func (s *Store) outOfPatience(ctx context.Context) error {
	return fmt.Errorf("waiting for PostgreSQL at %s: %w", s.address, context.Cause(ctx))
}
