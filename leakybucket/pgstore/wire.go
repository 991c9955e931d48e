package pgstore

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// All values travel in PostgreSQL's binary format, so that a level comes back
// to the bit, whatever extra_float_digits or bytea_output a role is given.
// Statements have no names: those belong to a session, of which a pooler such
// as PgBouncer gives every transaction another.
var binaryFormat = []int16{pgtype.BinaryFormatCode}

// bucketOIDs are the types of what update.sql and insert.sql are given.
var bucketOIDs = []uint32{
	pgtype.ByteaArrayOID, pgtype.Float8ArrayOID, pgtype.Int8ArrayOID,
	pgtype.Int8ArrayOID, pgtype.Int2ArrayOID, pgtype.Int8ArrayOID,
}

// addStatement adds a statement whose parameters are encoded already.
func addStatement(b *pgconn.Batch, sql string, values [][]byte, oids []uint32) {
	b.ExecParams(sql, values, oids, binaryFormat, binaryFormat)
}

// appendArray begins the array of one dimension that n elements follow.
func appendArray(to []byte, element uint32, n int) []byte {
	if n == 0 {
		to = binary.BigEndian.AppendUint32(to, 0) // no dimension
		to = binary.BigEndian.AppendUint32(to, 0)
		return binary.BigEndian.AppendUint32(to, element)
	}
	to = binary.BigEndian.AppendUint32(to, 1)
	to = binary.BigEndian.AppendUint32(to, 0) // no nulls
	to = binary.BigEndian.AppendUint32(to, element)
	to = binary.BigEndian.AppendUint32(to, uint32(n))
	return binary.BigEndian.AppendUint32(to, 1) // indexes count from 1
}

func appendInt64(to []byte, v int64) []byte {
	to = binary.BigEndian.AppendUint32(to, 8)
	return binary.BigEndian.AppendUint64(to, uint64(v))
}

func encodeNames(rows []row) []byte {
	to := appendArray(nil, pgtype.ByteaOID, len(rows))
	for i := range rows {
		to = binary.BigEndian.AppendUint32(to, uint32(len(rows[i].name)))
		to = append(to, rows[i].name...)
	}
	return to
}

// encodeBuckets returns the parameters of update.sql and insert.sql.
func encodeBuckets(rows []row) [][]byte {
	level := appendArray(nil, pgtype.Float8OID, len(rows))
	at := appendArray(nil, pgtype.Int8OID, len(rows))
	blockedUntil := appendArray(nil, pgtype.Int8OID, len(rows))
	step := appendArray(nil, pgtype.Int2OID, len(rows))
	forget := appendArray(nil, pgtype.Int8OID, len(rows))
	for i := range rows {
		s := &rows[i].state
		level = appendInt64(level, int64(math.Float64bits(s.Level)))
		at = appendInt64(at, int64(s.At))
		blockedUntil = appendInt64(blockedUntil, int64(s.BlockedUntil))
		step = binary.BigEndian.AppendUint32(step, 2)
		step = binary.BigEndian.AppendUint16(step, uint16(s.Step))
		forget = appendInt64(forget, int64(rows[i].forget))
	}
	return [][]byte{encodeNames(rows), level, at, blockedUntil, step, forget}
}

// encodeInstant returns nil, which is NULL, where the server's clock counts.
func encodeInstant(at leakybucket.Instant) []byte {
	if at == 0 {
		return nil
	}
	return binary.BigEndian.AppendUint64(nil, uint64(at))
}

// decodeState reads a row of lock.sql. What no store has written counts as an
// empty bucket: who can write to the table must not be able to lock people out
// forever with a NaN, or a level from which no limit would ever drain.
func decodeState(values [][]byte) (leakybucket.State, error) {
	if len(values) != 5 || len(values[1]) != 8 || len(values[2]) != 8 || len(values[3]) != 8 || len(values[4]) != 2 {
		return leakybucket.State{}, fmt.Errorf("reading a bucket: got %d columns of other types than the table was made with", len(values))
	}
	s := leakybucket.State{
		Level:        math.Float64frombits(binary.BigEndian.Uint64(values[1])),
		At:           leakybucket.Instant(binary.BigEndian.Uint64(values[2])),
		BlockedUntil: leakybucket.Instant(binary.BigEndian.Uint64(values[3])),
	}
	const highest, latest = 4e12, leakybucket.Instant(math.MaxInt64 / 4)
	step := binary.BigEndian.Uint16(values[4])
	if !(s.Level >= 0 && s.Level <= highest) || s.At < -latest || s.At > latest || s.BlockedUntil < -latest || s.BlockedUntil > latest || step > math.MaxUint8 {
		return leakybucket.State{}, nil
	}
	s.Step = uint8(step)
	return s, nil
}
