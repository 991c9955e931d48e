package pgstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// All values are sent and received in PostgreSQL's binary format. A level keeps
// every bit of its float64 that way, whatever extra_float_digits a role has.
var binaryFormat = []int16{pgtype.BinaryFormatCode}

// A pipeline is a list of statements that are sent together. They have no names:
// those belong to a session, and a pooler such as PgBouncer may give each
// transaction another one.
type pipeline struct {
	pgconn.Batch
	types *pgtype.Map
	err   error // of encoding a parameter
}

// add appends a statement. Its parameters have the types that pgx knows for them.
func (p *pipeline) add(sql string, params ...any) {
	values, types := make([][]byte, len(params)), make([]uint32, len(params))
	for i, param := range params {
		if kind, known := p.types.TypeForValue(param); known { // NULL has the type that the statement wants
			types[i] = kind.OID
		}
		var err error
		if values[i], err = p.types.Encode(types[i], pgtype.BinaryFormatCode, param, nil); err != nil {
			p.err = fmt.Errorf("encoding parameter %d of %.20q: %w", i+1, sql, err)
			return
		}
	}
	p.ExecParams(sql, values, types, binaryFormat, binaryFormat)
}

// send sends the statements and reads all results. It calls each, which may be
// nil, for each row, and returns the command tag of the last statement.
func (t *transaction) send(ctx context.Context, p *pipeline, each func(values [][]byte) error) (last string, err error) {
	if p.err != nil {
		return "", p.err
	}
	results := t.conn.ExecBatch(ctx, &p.Batch)
	var wrong error
	for results.NextResult() {
		rows := results.ResultReader()
		for rows.NextRow() {
			if each != nil && wrong == nil {
				wrong = each(rows.Values())
			}
		}
		tag, err := rows.Close()
		if err != nil {
			break // results.Close returns it too
		}
		last = tag.String()
	}
	if err := results.Close(); err != nil {
		return "", err
	}
	return last, wrong
}

// column returns the parameter of a statement that has a value of each row.
func column[T any](rows []row, of func(*row) T) []T {
	values := make([]T, len(rows))
	for i := range rows {
		values[i] = of(&rows[i])
	}
	return values
}

// namesOf returns the parameter of statements that are about some rows.
func namesOf(rows []row) [][]byte {
	return column(rows, func(r *row) []byte { return []byte(r.name) })
}

// paramsOf returns the parameters of statements that write rows, which first name them.
func paramsOf(rows []row, names any) []any {
	return []any{
		names,
		column(rows, func(r *row) float64 { return r.state.Level }),
		column(rows, func(r *row) int64 { return int64(r.state.At) }),
		column(rows, func(r *row) int64 { return int64(r.state.BlockedUntil) }),
		column(rows, func(r *row) int16 { return int16(r.state.Step) }),
		column(rows, func(r *row) int64 { return int64(r.forget) }),
		column(rows, func(r *row) float64 { return r.state.Leak }),
	}
}

// now returns the parameter that stands in for the server's clock, or NULL if
// the server's own clock is to be used.
func (s *Store) now() any {
	if held := s.held.Load(); held != 0 {
		return held
	}
	return nil
}

// word returns a number of eight bytes. NULL is 0.
func word(value []byte) uint64 {
	if len(value) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(value)
}

// decodeRow reads a row of lock.sql or list.sql, whose numbers have eight bytes. A row that no store can
// have written counts as an empty bucket. So whoever can write to the table cannot lock a
// client out for ever, with a NaN or a level that no limit can drain.
func decodeRow(values [][]byte) (tid pgtype.TID, s leakybucket.State) {
	if ctid := values[1]; len(ctid) == 6 {
		tid = pgtype.TID{BlockNumber: binary.BigEndian.Uint32(ctid), OffsetNumber: binary.BigEndian.Uint16(ctid[4:]), Valid: true}
	}
	step := word(values[5])
	s = leakybucket.State{
		Level:        math.Float64frombits(word(values[2])),
		At:           leakybucket.Instant(word(values[3])),
		BlockedUntil: leakybucket.Instant(word(values[4])),
		Step:         uint8(step),
		Leak:         math.Float64frombits(word(values[6])),
	}
	const highest, latest = 4e12, leakybucket.Instant(1 << 53) // no limit allows as much
	if !(s.Level >= 0 && s.Level <= highest) || !(s.Leak >= 0 && s.Leak <= highest) ||
		s.At < -latest || s.At > latest || s.BlockedUntil < -latest || s.BlockedUntil > latest || step > math.MaxUint8 {
		return tid, leakybucket.State{}
	}
	return tid, s
}
