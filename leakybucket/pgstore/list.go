package pgstore

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// listedRows is how many rows are read at once.
const listedRows = 1000

// List implements [leakybucket.Lister]. It reads the index from the prefix on, a
// thousand rows at a time, and locks none. Keys whose names are digests are not found.
func (s *Store) List(ctx context.Context, zone, prefix string, shadow bool, yield func(leakybucket.Kept) bool) error {
	if err := s.prepare(ctx); err != nil {
		return s.explain(err)
	}
	start := s.name(zone, "", shadow)
	from, to := []byte(start+prefix), after(start+prefix)
	for {
		kept, err := s.listSome(ctx, from, to)
		if err != nil {
			return s.explain(err)
		}
		for _, k := range kept {
			from = append([]byte(k.Key), 0) // the next name there can be
			if key, ours := strings.CutPrefix(k.Key, start); ours && strings.HasPrefix(key, prefix) {
				if k.Key = key; !yield(k) {
					return nil
				}
			}
		}
		if len(kept) < listedRows {
			return nil
		}
	}
}

// after returns the first name behind all that begin with a prefix, which holds a
// slash.
func after(prefix string) []byte {
	end := []byte(prefix)
	for end[len(end)-1] == 0xff {
		end = end[:len(end)-1]
	}
	end[len(end)-1]++
	return end
}

func (s *Store) listSome(ctx context.Context, from, to []byte) ([]leakybucket.Kept, error) {
	rows, err := s.pool.Query(ctx, s.sql.list, from, to, instantParam(s.heldAt()), listedRows)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (k leakybucket.Kept, err error) {
		var name []byte
		var step int16
		err = row.Scan(&name, &k.State.Level, &k.State.At, &k.State.BlockedUntil, &step, &k.State.Leak, &k.Now)
		k.Key, k.State.Step = string(name), uint8(step)
		return k, err
	})
}
