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
	for err := s.prepareInTime(ctx); err != nil; err = s.prepareInTime(ctx) {
		if ctx.Err() != nil {
			return
		}
		s.report(err)
		pause(ctx, connectPatience)
	}
	var page, pages uint32
	for ctx.Err() == nil {
		wait := s.forgetEvery
		if page >= pages {
			size, err := s.pages(ctx)
			if err != nil {
				s.report(err)
			}
			page, pages = 0, size
		}
		if page < pages {
			if err := s.forgetPart(ctx, page); err != nil {
				s.report(err)
			}
			page += forgetPages
			wait = s.forgetEvery * forgetPages / time.Duration(pages)
		}
		pause(ctx, min(max(wait, min(leastPause, s.forgetEvery)), s.forgetEvery, mostPause))
	}
}

func (s *Store) prepareInTime(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, mostPatience)
	defer cancel()
	return s.explain(s.prepare(ctx))
}

// forgetPart deletes the expired buckets of some pages.
func (s *Store) forgetPart(ctx context.Context, page uint32) error {
	from, to := tid(page), tid(page+forgetPages)
	for ctx.Err() == nil {
		deleted, err := s.forgetSome(ctx, from, to)
		if err != nil || deleted < forgetMost {
			return s.explain(err)
		}
	}
	return nil
}

func (s *Store) forgetSome(ctx context.Context, from, to pgtype.TID) (deleted int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, mostPatience)
	defer cancel()
	err = s.besideBatches(ctx, func() error {
		tag, err := s.pool.Exec(ctx, s.sql["forget"], pgx.QueryExecModeExec, from, to, instantParam(s.heldAt()), int64(forgetMost))
		deleted = tag.RowsAffected()
		return err
	})
	return deleted, err
}

// pages returns how many pages the table has. It is 0 if there is no table.
func (s *Store) pages(ctx context.Context) (uint32, error) {
	ctx, cancel := context.WithTimeout(ctx, mostPatience)
	defer cancel()
	var pages *int64
	err := s.besideBatches(ctx, func() error { return s.pool.QueryRow(ctx, s.sql["size"], pgx.QueryExecModeExec, s.table).Scan(&pages) })
	if err != nil || pages == nil {
		return 0, s.explain(err)
	}
	return uint32(*pages), nil
}

// tid returns the position where a page begins.
func tid(page uint32) pgtype.TID { return pgtype.TID{BlockNumber: page, Valid: true} }

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
