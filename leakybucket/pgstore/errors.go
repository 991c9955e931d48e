package pgstore

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// The codes of those errors of PostgreSQL that need an answer of their own.
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
	notSupported         = "0A000" // a standby's answer to a transaction that may write
	idleInTransaction    = "25P03"
	invalidAuthorization = "28000"
	invalidPassword      = "28P01"
	tooManyConnections   = "53300"
)

var errClosed = errors.New("asking PostgreSQL: the store is closed")

// explain adds where the error comes from, and what would help with the table. It keeps the
// cause for errors.Is and errors.As, except for pgx's ConnectError, because that
// carries the whole configuration, password included.
func (s *Store) explain(err error, table string) error {
	if err == nil || errors.Is(err, errClosed) {
		return err
	}
	if known := (*advised)(nil); errors.As(err, &known) {
		return known
	}
	doing := "asking"
	if connecting := (*pgconn.ConnectError)(nil); errors.As(err, &connecting) {
		doing, err = "connecting to", connecting.Unwrap()
	}
	advice := ""
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) {
		err, advice = pg, s.advice(pg.Code, table)
	}
	return fmt.Errorf("%s PostgreSQL at %s: %w%s", doing, s.address, err, advice)
}

// advice says how to mend an error, behind a colon.
func (s *Store) advice(code, table string) string {
	switch code {
	case invalidPassword, invalidAuthorization:
		return fmt.Sprintf(": want the password of role %q, and a line in pg_hba.conf that admits it", s.user)
	case noPrivilege:
		return fmt.Sprintf(": want GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %s, and USAGE on its schema", table, quoted(s.user))
	case undefinedTable:
		return fmt.Sprintf(": want the table %s; was it dropped just now?", table)
	case undefinedColumn, datatypeMismatch, undefinedFunction:
		return fmt.Sprintf(": want the table %s as this store creates it; name another one", table)
	case readOnly, notSupported:
		return ": want a server that can be written to, not a standby"
	case tooManyConnections:
		return ": want a higher max_connections, or a pooler such as PgBouncer"
	}
	return ""
}
