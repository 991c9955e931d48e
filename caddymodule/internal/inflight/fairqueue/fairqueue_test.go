package fairqueue

import (
	"fmt"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// String returns a name of the outcome.
func (o Outcome) String() string {
	return [...]string{"served", "waiting", "too long", "full", "crowded"}[o]
}

// newQueue returns a queue whose row is long and whose waits are.
func newQueue(inFlight int) *Queue {
	q := &Queue{All: new(Common)}
	q.SetLimits(Limits{Share: true, Slots: inFlight, Wait: time.Hour, Queue: 1000})
	return q
}

// come lets a request arrive, and fails unless its outcome is the one wanted.
func come(t *testing.T, q *Queue, want Outcome, rank Rank, keys ...string) *Request {
	t.Helper()
	r := &Request{Claim: Claim{Rank: rank}}
	copy(r.Keys[:], keys)
	got, _ := q.Arrive(r)
	check.Assume(t, got == want, "%v with keys %q: got %v, want %v", rank, keys, got, want)
	return r
}

// wantNext checks who gets the free slots. Nil is nobody.
func wantNext(t *testing.T, q *Queue, want ...*Request) {
	t.Helper()
	for i, w := range want {
		check.Need(t, q.Next(), w, "slot %d", i)
	}
}

func TestAKeyWithHalfTheSlotsIsPassedOver(t *testing.T) {
	for _, test := range []struct{ inFlight, alone int }{
		{1, 1}, {2, 1}, {3, 2}, {4, 3}, {5, 4}, {20, 19},
	} {
		t.Run(fmt.Sprintf("in_flight=%d", test.inFlight), func(t *testing.T) {
			q := newQueue(test.inFlight)
			var running []*Request
			for range test.alone {
				running = append(running, come(t, q, Served, Member, "exports"))
			}
			more := come(t, q, Waiting, Member, "exports")
			wantNext(t, q, nil)
			q.Release(running[0], 0) // two are free, or it holds less than half: nothing waits for nobody
			wantNext(t, q, more, nil)
			running[0], more = more, come(t, q, Waiting, Member, "exports")
			for range test.inFlight - test.alone {
				come(t, q, Served, First, "another")
			}
			other := come(t, q, Waiting, First, "third")
			q.Release(running[0], 0) // the others are owed nothing
			if half := (test.inFlight + 1) / 2; test.alone > half {
				wantNext(t, q, other, nil) // although it is of a lower rank
			} else {
				wantNext(t, q, more, nil)
			}
		})
	}
}
