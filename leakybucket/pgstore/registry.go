package pgstore

import (
	"context"
	"math/rand/v2"

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
	err = s.askRegistry(ctx, func(p *pipeline) {
		// The mark is read first: rows may be newer than it, and never older.
		p.add(s.sql["registry_last"], s.lastRow())
		p.add(s.sql["registry_read"], s.now(), s.lastRow(), seen, []byte(s.prefix+textSign), []byte(s.prefix+lastSign))
	}, func(values [][]byte) error {
		if len(values) == 1 {
			all.Last = int64(word(values[0]))
			return nil
		}
		number := int64(word(values[1]))
		if number < 0 || number >= store.MostNumber {
			number = 0
		}
		all.Count = int(word(values[4]))
		all.Texts = append(all.Texts, store.Text{
			Name:   string(values[0][len(s.prefix)+len(textSign):]),
			Number: number, End: leakybucket.Instant(word(values[2])), Text: string(values[3]),
		})
		return nil
	})
	if all.Last == seen {
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
	err = s.askRegistry(ctx, func(p *pipeline) {
		now := s.now()
		p.add(s.sql["registry_lock"], s.registry+" "+s.prefix)
		p.add(s.sql["registry_forget"], now, []byte(s.prefix+textSign), []byte(s.prefix+lastSign))
		p.add(s.sql["registry_write"], now, names, numbers, ends, contents, s.lastRow(), 1+rand.Int64N(store.MostNumber-1))
	}, func(values [][]byte) error {
		if len(values) == 2 { // not the lock's row
			before, last = int64(word(values[0])), int64(word(values[1]))
		}
		return nil
	})
	return before, last, err
}

func (s *Store) lastRow() []byte { return []byte(s.prefix + lastSign) }

// askRegistry is sendAlone. The first call creates the table, which is named after that of the
// buckets.
func (s *Store) askRegistry(ctx context.Context, fill func(*pipeline), each func(values [][]byte) error) error {
	ctx, cancel := context.WithTimeout(ctx, mostPatience)
	defer cancel()
	err := s.sendAlone(ctx, fill, each)
	if isCode(err, undefinedTable) {
		if err = s.create(ctx, s.registry, s.sql["registry_create"]); err == nil {
			err = s.sendAlone(ctx, fill, each)
		}
	}
	return s.explain(err, s.registry)
}

// sendAlone is [transaction.alone] beside the batches.
func (s *Store) sendAlone(ctx context.Context, fill func(*pipeline), each func(values [][]byte) error) error {
	return holding(ctx, s.beside, func() error {
		conn, err := s.pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		return (&transaction{s, conn.Conn().PgConn(), conn.Conn().TypeMap()}).alone(ctx, fill, each)
	})
}

var _ store.Registry = (*Store)(nil)
