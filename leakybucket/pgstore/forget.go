package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Expired buckets are found by reading the table itself, a few pages at a time.
// With an index on the instant, each request would have to write to the index,
// and no update could stay within its page.
const (
	forgetPages = 64  // read by one statement: half a MiB, in less than a millisecond
	forgetMost  = 200 // rows locked and deleted by one statement
	leastPause  = 100 * time.Millisecond
	mostPause   = 10 * time.Second
)

// lookAfter connects and prepares the table. Then it searches the table for
// expired buckets until ctx ends, each time in about s.forgetEvery.
func (s *Store) lookAfter(ctx context.Context) {
	for !s.tries(ctx, s.prepare) {
		if ctx.Err() != nil {
			return
		}
		pause(ctx, connectPatience)
	}
	for ctx.Err() == nil {
		var pages *int64 // nil if there is no table
		s.tries(ctx, func(ctx context.Context) error {
			return holding(ctx, s.beside, func() error { return s.pool.QueryRow(ctx, s.sql["size"], pgx.QueryExecModeExec, s.table).Scan(&pages) })
		})
		if pages == nil || *pages == 0 {
			pause(ctx, min(s.forgetEvery, mostPause))
			continue
		}
		wait := s.forgetEvery * forgetPages / time.Duration(*pages)
		for page := int64(0); page < *pages && ctx.Err() == nil; page += forgetPages {
			s.forgetPart(ctx, uint32(page))
			pause(ctx, min(max(wait, min(leastPause, s.forgetEvery)), s.forgetEvery, mostPause))
		}
	}
}

// tries calls f within some seconds, reports its error, and returns whether there was none.
func (s *Store) tries(ctx context.Context, f func(context.Context) error) bool {
	ctx, cancel := context.WithTimeout(ctx, mostPatience)
	defer cancel()
	err := s.explain(f(ctx), s.table)
	if err != nil && s.background.Err() == nil {
		s.report(err)
	}
	return err == nil
}

// forgetPart deletes the expired buckets of some pages, a few at a time.
func (s *Store) forgetPart(ctx context.Context, page uint32) {
	for deleted := forgetMost; deleted == forgetMost; {
		deleted = 0
		s.tries(ctx, func(ctx context.Context) error {
			return s.sendAlone(ctx, func(p *pipeline) {
				p.add(s.sql["forget"], tid(page), tid(page+forgetPages), s.now(), int64(forgetMost))
			}, func([][]byte) error { deleted++; return nil })
		})
	}
}

// tid returns the position where a page begins.
func tid(page uint32) pgtype.TID { return pgtype.TID{BlockNumber: page, Valid: true} }

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
