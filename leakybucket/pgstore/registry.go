package pgstore

import (
	"context"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
)

// The signs between the prefix and the names of texts, and behind the prefix of the row of the
// last write: neighbours that no prefix has.
const (
	textSign = "<"
	lastSign = "="
)

// Texts implements [store.Registry]. It is one round trip.
func (s *Store) Texts(ctx context.Context, seen int64) (all store.Texts, err error) {
	batch := new(pgx.Batch)
	// The mark is read first: rows may be newer than it, and never older.
	batch.Queue(s.sql["registry_last"], s.lastRow()).QueryRow(func(row pgx.Row) error { return row.Scan(&all.Last) })
	batch.Queue(s.sql["registry_read"], instantParam(s.heldAt()), s.lastRow(), seen, []byte(s.prefix+textSign), []byte(s.prefix+lastSign)).Query(func(rows pgx.Rows) error {
		var name, text []byte
		var number, ends int64
		_, err := pgx.ForEachRow(rows, []any{&name, &number, &ends, &text, &all.Count}, func() error {
			if number < 0 || number >= store.MostNumber {
				number = 0
			}
			all.Texts = append(all.Texts, store.Text{Name: string(name[len(s.prefix)+len(textSign):]), Number: number, End: leakybucket.Instant(ends), Text: string(text)})
			return nil
		})
		return err
	})
	if err = s.askRegistry(ctx, batch); all.Last == seen {
		all.Texts = nil
	}
	return all, err
}

// PutTexts implements [store.Registry]. It is one round trip.
func (s *Store) PutTexts(ctx context.Context, texts []store.Text) (before, last int64, err error) {
	names, contents := make([][]byte, len(texts)), make([][]byte, len(texts))
	numbers, ends := make([]int64, len(texts)), make([]int64, len(texts))
	for i, t := range texts {
		names[i], contents[i] = []byte(s.prefix+textSign+t.Name), []byte(t.Text)
		numbers[i], ends[i] = t.Number, int64(t.End)
	}
	now := instantParam(s.heldAt())
	batch := new(pgx.Batch)
	batch.Queue(s.sql["registry_lock"], s.registry+" "+s.prefix)
	batch.Queue(s.sql["registry_forget"], now, []byte(s.prefix+textSign), []byte(s.prefix+lastSign))
	batch.Queue(s.sql["registry_write"], now, names, numbers, ends, contents, s.lastRow(), 1+rand.Int64N(store.MostNumber-1)).QueryRow(func(row pgx.Row) error { return row.Scan(&before, &last) })
	return before, last, s.askRegistry(ctx, batch)
}

func (s *Store) lastRow() []byte { return []byte(s.prefix + lastSign) }

// askRegistry sends a batch, which is one transaction. The first one creates the table, which
// is named after that of the buckets.
func (s *Store) askRegistry(ctx context.Context, batch *pgx.Batch) error {
	ctx, cancel := context.WithTimeout(ctx, mostPatience)
	defer cancel()
	return s.explain(s.besideBatches(ctx, func() error {
		err := s.pool.SendBatch(ctx, batch).Close()
		if isCode(err, undefinedTable) {
			if err = s.createRegistry(ctx); err == nil {
				err = s.pool.SendBatch(ctx, batch).Close()
			}
		}
		return err
	}))
}

// createRegistry creates the table. CREATE TABLE IF NOT EXISTS fails if two do it at once.
func (s *Store) createRegistry(ctx context.Context) error {
	batch := new(pgx.Batch)
	batch.Queue(s.sql["registry_lock"], s.registry)
	batch.Queue(s.sql["registry_create"])
	return s.explainChange(s.pool.SendBatch(ctx, batch).Close(), s.registry, s.sql["registry_create"])
}

var _ store.Registry = (*Store)(nil)
