package store

import (
	"context"
	"errors"
	"iter"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

// ErrBadBucket is wrapped by errors of a call that found, under the name of a bucket,
// something that is not a bucket, or that gave a name, or so many names, which the store does not
// take. Other buckets are not affected, and the store is well.
var ErrBadBucket = errors.New("not a bucket")

// A Resetter is a store that can forget single buckets at once.
type Resetter interface {
	// Reset forgets a bucket: it is then empty and not blocked, and its next
	// block is of the first step. It is not an error if there is none.
	Reset(ctx context.Context, zone, key string, shadow bool) error
}

// A Lister is a store that can go through its buckets.
type Lister interface {
	// List returns some buckets, in no particular order, and the cursor of the
	// others. The cursor is "" for the first call, and is returned as "" when there
	// are no more. It is plain text, for this store and this listing alone: other
	// cursors are refused with an error that wraps [ErrBadCursor]. A page may be
	// empty and yet not the last.
	//
	// List changes nothing, and other calls wait for it no longer than for a take.
	// A bucket that is kept from the first call to the last is in some page, and
	// maybe in two. Those that come or go meanwhile may be missed. A key that the
	// store keeps as a digest only is not found.
	List(ctx context.Context, of Filter, cursor string) (some []Entry, next string, err error)
}

// A Filter says which buckets are listed.
type Filter struct {
	Zone   string
	Prefix string // of keys
	Shadow bool

	// Scan is about how many buckets one call looks at, at least 1. Those that do
	// not match are not returned.
	Scan int
}

// ErrBadCursor is wrapped by errors that [Lister] returns for a cursor it cannot continue.
// Start again with an empty one.
var ErrBadCursor = errors.New("the listing cannot go on from this cursor")

// ListAll returns all buckets of a listing. An error is the last pair. The loop may call the
// store.
func ListAll(ctx context.Context, l Lister, of Filter) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for cursor := ""; ; {
			some, next, err := l.List(ctx, of, cursor)
			if err != nil {
				yield(Entry{}, err)
				return
			}
			for _, kept := range some {
				if !yield(kept, nil) {
					return
				}
			}
			if cursor = next; cursor == "" {
				return
			}
		}
	}
}

// Entry is a bucket as a store keeps it.
type Entry struct {
	Key   string
	State leakybucket.State
	Now   leakybucket.Instant // when it was read, on the store's clock
}
