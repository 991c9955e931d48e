package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// mostAttempts bounds how often a batch is retried that was certainly not
// executed.
const mostAttempts = 4

// errNotExecuted is in the tree of errors after which nothing of the batch was
// executed, so that it may be retried.
var errNotExecuted = errors.New("nothing was charged")

// do executes a batch in one transaction of two round trips. The first locks the
// rows and reads them and the clock. The batch is then decided in this process,
// by the functions that specify the algorithm. The second round trip writes and
// commits.
//
// If an error comes before the commit is sent, or the server says that it has
// rolled back, nothing was executed. After any other error the batch may have
// been executed, and it is never retried.
func (s *Store) do(ctx context.Context, b *batch) error {
	var err error
	for range mostAttempts {
		if err = s.attempt(ctx, b); !errors.Is(err, errNotExecuted) || ctx.Err() != nil {
			break
		}
		b.raced = b.raced || isCode(err, uniqueViolation)
		b.forgetRead()
	}
	return s.explain(err, s.table)
}

func (s *Store) attempt(ctx context.Context, b *batch) error {
	if err := s.prepare(ctx); err != nil {
		return err
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	// Release closes a connection that cannot be used again.
	defer conn.Release()
	t := &transaction{s, conn.Conn().PgConn(), conn.Conn().TypeMap()}
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
		t.end(ctx, "COMMIT")
		return nil
	}
	return t.commit(ctx, updated, made)
}

// A transaction is one batch's hold on a connection.
type transaction struct {
	store *Store
	conn  *pgconn.PgConn
	types *pgtype.Map
}

func (t *transaction) pipeline() *pipeline { return &pipeline{types: t.types} }

// makeRows inserts empty rows for buckets that have none. It does so in a
// transaction of its own: a transaction that waits for another one's new rows
// must hold no locks. The rows do not expire before the batch finds them.
func (t *transaction) makeRows(ctx context.Context, b *batch) error {
	return t.alone(ctx, func(p *pipeline) { p.add(t.store.sql["make"], namesOf(b.rows), t.store.now()) }, nil)
}

// alone sends what fill adds, as one transaction, and calls each, which may be nil, for each row.
func (t *transaction) alone(ctx context.Context, fill func(*pipeline), each func(values [][]byte) error) error {
	p := t.pipeline()
	p.add(begin)
	fill(p)
	p.add("COMMIT")
	_, err := t.send(ctx, p, each)
	if err != nil {
		t.end(ctx, "ROLLBACK")
	}
	return err
}

// lock begins the transaction, locks and reads the rows of the batch, and then
// reads the clock.
func (t *transaction) lock(ctx context.Context, b *batch) (now leakybucket.Instant, err error) {
	p := t.pipeline()
	p.add(begin)
	p.add(t.store.sql["lock"], namesOf(b.rows))
	p.add(t.store.sql["clock"], t.store.now())
	_, err = t.send(ctx, p, func(values [][]byte) error {
		if len(values) < 7 { // not a row of lock.sql
			now = leakybucket.Instant(word(values[0]))
			return nil
		}
		return b.read(values)
	})
	if err == nil && now == 0 {
		err = errors.New("reading the clock: got no answer")
	}
	return now, err
}

func (b *batch) read(values [][]byte) error {
	i, known := b.index[string(values[0])]
	if !known {
		return fmt.Errorf("reading a bucket: got %.40q, which was not asked for", values[0])
	}
	r := &b.rows[i]
	r.kept = true
	r.tid, r.state = decodeRow(values)
	return nil
}

// commit writes the rows and ends the transaction. New rows come first: the
// insert may wait for another transaction's new rows, and must not have changed
// any row by then. The update waits for nothing, since its rows are locked. So no
// two transactions wait for each other.
func (t *transaction) commit(ctx context.Context, updated, made []row) error {
	p := t.pipeline()
	if len(made) > 0 {
		p.add(t.store.sql["insert"], paramsOf(made, namesOf(made))...)
	}
	if len(updated) > 0 {
		tids := column(updated, func(r *row) pgtype.TID { return r.tid })
		p.add(t.store.sql["update"], paramsOf(updated, tids)...)
	}
	p.add("COMMIT")
	switch last, err := t.send(ctx, p, nil); {
	case err != nil && certainlyUndone(err):
		return t.failed(ctx, err)
	case err != nil:
		return err
	case last != "COMMIT":
		return fmt.Errorf("committing: got %q", last)
	}
	return nil
}

// certainlyUndone reports whether the server has certainly not committed. Either
// a statement before the commit has failed, or the server had ended the
// transaction already because the client was silent for too long.
func certainlyUndone(err error) bool {
	return isCode(err, uniqueViolation, serializationFailure, deadlockDetected, undefinedTable, undefinedColumn, idleInTransaction)
}

// failed ends a transaction of which nothing was committed, and marks the error
// if the batch may be retried.
func (t *transaction) failed(ctx context.Context, err error) error {
	t.end(ctx, "ROLLBACK")
	switch {
	case t.conn.IsClosed() && ctx.Err() == nil:
		// The session has ended, most likely because the server was restarted. Then the
		// pool's other connections are lost too.
		t.store.resetPool()
	case isCode(err, undefinedTable, undefinedColumn):
		t.store.prepared.Store(false) // look at the table again
	case !isCode(err, uniqueViolation, serializationFailure, deadlockDetected):
		return err
	}
	return errors.Join(errNotExecuted, err)
}

// end ends the transaction, so that the connection can be used again. If that
// fails, the pool closes the connection.
func (t *transaction) end(ctx context.Context, sql string) {
	if t.conn.TxStatus() != 'I' && !t.conn.IsClosed() {
		_, _ = t.conn.Exec(ctx, sql).ReadAll()
	}
}
