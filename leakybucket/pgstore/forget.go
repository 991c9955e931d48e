package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// What may be forgotten is found by looking through the table itself, a few
// pages at a time: an index on the instant would have to be written by every
// request, and no update could stay on its page any more.
const (
	forgetPages = 64  // half a MiB, less than a millisecond of work
	forgetMost  = 200 // rows that one statement locks and deletes
	leastPause  = 100 * time.Millisecond
	mostPause   = 10 * time.Second
)

// connectAndForget connects, until that has succeeded once, and then goes
// through the table again and again, in about the given time.
func (s *Store) connectAndForget(ctx context.Context, every time.Duration) {
	for err := s.Ping(ctx); err != nil; err = s.Ping(ctx) {
		if ctx.Err() != nil {
			return
		}
		s.report(err)
		pause(ctx, connectPatience)
	}
	var page, pages uint32
	for ctx.Err() == nil {
		wait := every
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
			wait = every * forgetPages / time.Duration(pages)
		}
		pause(ctx, min(max(wait, min(leastPause, every)), every, mostPause))
	}
}

// forgetPart forgets what it can of some pages.
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
	s.forgetting.Lock()
	defer s.forgetting.Unlock()
	var now any
	if at := s.heldAt(); at != 0 {
		now = int64(at)
	}
	tag, err := s.pool.Exec(ctx, s.sql.forget, from, to, now, int64(forgetMost))
	return tag.RowsAffected(), err
}

// pages returns how many pages the table has.
func (s *Store) pages(ctx context.Context) (uint32, error) {
	ctx, cancel := context.WithTimeout(ctx, mostPatience)
	defer cancel()
	var pages int64
	err := s.pool.QueryRow(ctx, "SELECT pg_relation_size(to_regclass($1::text)) / current_setting('block_size')::bigint", s.table).Scan(&pages)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return uint32(pages), s.explain(err)
}

// report tells the owner, but not of what came of Close.
func (s *Store) report(err error) {
	if s.onError != nil && !errors.Is(err, context.Canceled) {
		s.onError(err)
	}
}

// tid returns where a page begins.
func tid(page uint32) pgtype.TID { return pgtype.TID{BlockNumber: page, Valid: true} }

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
