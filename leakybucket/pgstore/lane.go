package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/internal/coalesce"
)

const (
	// mostCharges bounds a batch, so that no call waits for a statement of
	// thousands of rows.
	mostCharges = 500

	// A batch outlives callers with little time, because leaving a statement
	// loses its connection. It is given up when no caller can wait for it any
	// longer. Then PostgreSQL hangs or the network lost a packet, and a new
	// connection is sooner.
	leastPatience = 500 * time.Millisecond
	mostPatience  = 10 * time.Second
)

// A call is a Take or a Settle that waits for its answer. It has copies of the
// caller's slices, because the caller may leave before it is done.
type call struct {
	names       []string // of the buckets, one for each charge or settlement
	charges     []leakybucket.Charge
	decisions   []leakybucket.Decision
	settlements []leakybucket.Settlement

	deadline time.Time // when the caller leaves at the latest; zero if never
	err      error     // once the call is answered
}

// call executes a call in a batch with others. It waits for the answer or the
// end of ctx.
func (s *Store) call(ctx context.Context, c *call) error {
	c.deadline, _ = ctx.Deadline()
	switch err := s.lanes.Do(ctx, struct{}{}, c, len(c.names)); {
	case errors.Is(err, coalesce.ErrClosed):
		return errClosed
	case err != nil:
		return fmt.Errorf("waiting for PostgreSQL at %s: %w", s.address, context.Cause(ctx))
	}
	return c.err
}

// sendBatch executes the calls of one batch. It does not end with the store:
// Close finishes the calls in flight.
func (s *Store) sendBatch(_ struct{}, calls []*call) {
	b := newBatch(calls)
	ctx, cancel := context.WithTimeout(context.Background(), b.patience())
	defer cancel()
	err := s.do(ctx, b)
	for _, c := range calls {
		c.err = err
	}
}

// patience returns how long any caller of the batch can still wait.
func (b *batch) patience() time.Duration {
	longest := leastPatience
	for _, c := range b.calls {
		if c.deadline.IsZero() {
			return mostPatience
		}
		longest = max(longest, time.Until(c.deadline))
	}
	return min(longest, mostPatience)
}
