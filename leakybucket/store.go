package leakybucket

import (
	"context"
	"errors"
	"iter"
)

// A Store keeps buckets and decides charges on its own clock. It is safe for
// concurrent use.
type Store interface {
	// Take decides all charges and pours all or none of them, in one atomic step
	// on the store's clock. It writes one decision for each charge. The slice
	// decisions must be as long as charges.
	//
	// If one enforced charge does not fit, nothing is poured anywhere. If one shadow
	// charge does not fit, no shadow charge is poured. Several charges may name the
	// same bucket, with the same limit, debt and block. Each of them is judged with
	// the sum of their costs.
	//
	// A charge that overflows begins a block of its bucket if its Block is set
	// and none runs, whatever becomes of the others. A charge that could never
	// fit begins none.
	//
	// Limits are not validated. Under one that [Limit.Validate] refuses, such as the
	// zero Limit, the decisions mean nothing.
	//
	// It is not an error if a charge does not fit. After an error the decisions
	// are meaningless, and the charges may or may not have been poured. The store
	// never repeats a call that may have been executed.
	//
	// A store that stands in for a shared one may change charges[i].Limit, Cost and Debt
	// to this node's share. Settle the charges as Take has left them. Apart from that, it
	// keeps no reference to its arguments after it has returned, whatever became of ctx.
	Take(ctx context.Context, charges []Charge, decisions []Decision) error

	// Settle corrects charges in their order, each as [Settlement.Apply] does. It
	// need not be one atomic step. If a bucket is no longer kept, a settlement
	// that pours creates it, and one that gives back does not.
	//
	// Each charge may be settled once, and the caller sees to that. After an
	// error it is not known which were settled, and none may be settled again. It keeps no
	// reference to its arguments either.
	Settle(ctx context.Context, settlements []Settlement) error
}

// ErrBadBucket is wrapped by errors of a call that found, under the name of a bucket,
// something that is not a bucket. Other buckets are not affected, and the store is well.
var ErrBadBucket = errors.New("not a bucket")

// A Resetter is a store that can forget single buckets at once.
type Resetter interface {
	// Reset forgets a bucket: it is then empty and not blocked, and its next
	// block is of the first step. It is not an error if there is none.
	Reset(ctx context.Context, zone, key string, shadow bool) error
}

// A Counter is a store that knows how many buckets it keeps. A bucket that may
// be forgotten counts until it is.
type Counter interface {
	// Buckets returns the number of buckets of each zone, shadow ones included.
	Buckets() map[string]int
}

// An Evicter is a bounded store that drops live buckets when it is full.
type Evicter interface {
	// Evictions returns how many buckets were dropped so far that were not yet
	// empty.
	Evictions() uint64
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
	State State
	Now   Instant // when it was read, on the store's clock
}
