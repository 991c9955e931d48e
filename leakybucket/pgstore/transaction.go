package pgstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// mostAttempts bounds how often a batch is begun again that certainly has not
// been executed.
const mostAttempts = 4

// errRaced is in the tree of errors after which others have made a bucket while a
// batch was about to. They may again, and then the batch makes its rows first.
var errRaced = errors.New("others have made the same bucket")

// errNotExecuted is in the tree of errors after which nothing of the batch was
// done, and it may be begun again.
var errNotExecuted = errors.New("nothing was charged")

// do does a batch: one transaction, of two round trips. The first locks the rows
// and reads them with the clock, the second writes and commits. Between the two
// the decisions are made here, by the very functions that specify them.
//
// What fails before the commit is sent was not executed, and neither was what
// the server says it has rolled back. What fails otherwise may have been, and is
// never repeated.
func (s *Store) do(ctx context.Context, b *batch) error {
	var err error
	for attempts := 0; attempts < mostAttempts; attempts++ {
		if err = s.attempt(ctx, b); !errors.Is(err, errNotExecuted) || ctx.Err() != nil {
			break
		}
		b.raced = b.raced || errors.Is(err, errRaced)
		if pgconn.Timeout(err) {
			attempts = 0 // it took its time, and whoever is left in the batch has more
		}
		b.forgetRead()
	}
	return s.explain(err)
}

func (s *Store) attempt(ctx context.Context, b *batch) error {
	if err := s.prepare(ctx); err != nil {
		return unconnected(err)
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return unconnected(err)
	}
	// A connection that is not fit for more does not go back to the pool.
	defer conn.Release()
	t := transaction{s, conn, conn.Conn().PgConn()}
	if b.raced {
		if err := t.makeRows(ctx, b); err != nil {
			return t.failed(ctx, err)
		}
	}
	now, err := t.lock(ctx, b)
	if err != nil {
		return t.failed(ctx, err)
	}
	b.judge(now)
	updated, made := b.written()
	if len(updated)+len(made) == 0 {
		// Nobody has to wait until the locks are given back.
		b.answer(nil)
		t.end(ctx, "COMMIT")
		return nil
	}
	return t.commit(ctx, updated, made)
}

// unconnected lets those wait for another attempt who have the time, if a
// connection could not be made in its own. One that is refused is refused.
func unconnected(err error) error {
	var refused *pgconn.ConnectError
	if errors.As(err, &refused) && pgconn.Timeout(err) {
		return errors.Join(errNotExecuted, err)
	}
	return err
}

// A transaction is one that is under way.
type transaction struct {
	store *Store
	pool  *pgxpool.Conn
	conn  *pgconn.PgConn
}

// makeRows makes those rows of a batch that are not there, empty, in a
// transaction of its own: who waits for others' new rows must hold no locks. They
// are kept for a while, to be found by the batch.
func (t *transaction) makeRows(ctx context.Context, b *batch) error {
	var statements pgconn.Batch
	addStatement(&statements, t.store.sql.make, [][]byte{encodeNames(b.rows), encodeInstant(t.store.heldAt())},
		[]uint32{pgtype.ByteaArrayOID, pgtype.Int8OID})
	return t.conn.ExecBatch(ctx, &statements).Close()
}

// lock begins the transaction, reads the rows of the batch and the clock, and
// holds them until the end.
func (t *transaction) lock(ctx context.Context, b *batch) (leakybucket.Instant, error) {
	var statements pgconn.Batch
	for _, sql := range t.store.begin {
		addStatement(&statements, sql, nil, nil)
	}
	addStatement(&statements, t.store.sql.lock, [][]byte{encodeNames(b.rows)}, []uint32{pgtype.ByteaArrayOID})
	addStatement(&statements, t.store.sql.clock, [][]byte{encodeInstant(t.store.heldAt())}, []uint32{pgtype.Int8OID})
	results := t.conn.ExecBatch(ctx, &statements)
	now, known := leakybucket.Instant(0), false
	var wrong error
	for results.NextResult() {
		rows := results.ResultReader()
		for rows.NextRow() && wrong == nil {
			values := rows.Values()
			if len(values) == 1 && len(values[0]) == 8 {
				now, known = leakybucket.Instant(binary.BigEndian.Uint64(values[0])), true
			} else {
				wrong = b.read(values)
			}
		}
		if _, err := rows.Close(); err != nil {
			break // Close of all has it too
		}
	}
	switch err := results.Close(); {
	case err != nil:
		return 0, err
	case wrong != nil:
		return 0, wrong
	case !known:
		return 0, errors.New("reading the clock: got no answer")
	}
	return now, nil
}

func (b *batch) read(values [][]byte) error {
	state, err := decodeState(values)
	if err != nil {
		return err
	}
	i, known := b.index[string(values[0])]
	if !known {
		return fmt.Errorf("reading a bucket: got %.40q, which was not asked for", values[0])
	}
	b.rows[i].state, b.rows[i].kept = state, true
	return nil
}

// commit writes the rows and ends the transaction. New rows come first: who waits
// for others' new rows has changed none, and who changes rows waits for nobody,
// so that nobody waits in a circle. That rows are locked is in no new row's way.
func (t *transaction) commit(ctx context.Context, updated, made []row) error {
	var statements pgconn.Batch
	if len(made) > 0 {
		addStatement(&statements, t.store.sql.insert, encodeBuckets(made), bucketOIDs)
	}
	if len(updated) > 0 {
		addStatement(&statements, t.store.sql.update, encodeBuckets(updated), bucketOIDs)
	}
	addStatement(&statements, "COMMIT", nil, nil)
	results := t.conn.ExecBatch(ctx, &statements)
	last := ""
	for results.NextResult() {
		tag, err := results.ResultReader().Close()
		if err != nil {
			break
		}
		last = tag.String()
	}
	err := results.Close()
	switch {
	case err == nil && last == "COMMIT":
		return nil
	case err == nil:
		return fmt.Errorf("committing: got %q", last)
	case certainlyUndone(err):
		return t.failed(ctx, err)
	}
	return err
}

// tryWrites writes nothing in every way that is needed, and ends the
// transaction.
func (t *transaction) tryWrites(ctx context.Context) error {
	var statements pgconn.Batch
	addStatement(&statements, t.store.sql.update, encodeBuckets(nil), bucketOIDs)
	addStatement(&statements, t.store.sql.insert, encodeBuckets(nil), bucketOIDs)
	addStatement(&statements, t.store.sql.reset, [][]byte{nil}, []uint32{pgtype.ByteaOID})
	addStatement(&statements, "COMMIT", nil, nil)
	return t.conn.ExecBatch(ctx, &statements).Close()
}

// certainlyUndone knows the errors after which the server has skipped the commit:
// by one of the statements before it, since another batch has made the same
// bucket first, or the table is gone; or since it had ended the transaction
// already, when it had to wait for us too long.
func certainlyUndone(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && slices.Contains([]string{
		uniqueViolation, serializationFailure, deadlockDetected, undefinedTable, idleInTransaction,
	}, pg.Code)
}

// failed ends a transaction of which nothing was committed, and says whether it
// is of use to begin again.
func (t *transaction) failed(ctx context.Context, err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		// The connection was lost, most likely by a restart, and with it all
		// others that the pool holds.
		if t.conn.IsClosed() && ctx.Err() == nil {
			t.store.pool.Reset()
			return errors.Join(errNotExecuted, err)
		}
		return err
	}
	t.end(ctx, "ROLLBACK")
	switch pg.Code {
	case undefinedTable:
		t.store.prepared.Store(false)
		return errors.Join(errNotExecuted, err)
	case adminShutdown, crashShutdown, idleInTransaction, idleSession:
		t.store.pool.Reset()
		return errors.Join(errNotExecuted, err)
	case uniqueViolation:
		return errors.Join(errNotExecuted, errRaced, err)
	case serializationFailure, deadlockDetected:
		return errors.Join(errNotExecuted, err)
	}
	return err
}

// end makes the connection fit for the next transaction. If that fails the pool
// notices, and drops it.
func (t *transaction) end(ctx context.Context, sql string) {
	if !t.conn.IsClosed() {
		_, _ = t.conn.Exec(ctx, sql).ReadAll()
	}
}
