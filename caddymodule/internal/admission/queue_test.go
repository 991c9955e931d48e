package admission

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

func TestAQueueGoesByTheTurnAndThenByTheArrival(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		q, want := new(queue), []*waiter(nil)
		for range random.IntN(40) {
			if len(want) > 0 && random.IntN(3) == 0 {
				i := random.IntN(len(want))
				q.remove(want[i])
				if want[i].in != nil {
					t.Fatal("a waiter that left is still in the queue")
				}
				want = slices.Delete(want, i, i+1)
				continue
			}
			w := &waiter{dueAt: leakybucket.Instant(random.IntN(8))}
			q.add(w)
			want = append(want, w)
			slices.SortStableFunc(want, func(a, b *waiter) int { return cmp.Compare(a.dueAt, b.dueAt) })
		}
		if got := q.waiters; !slices.Equal(got, want) {
			t.Fatalf("got %d waiters in another order than by turn and arrival", len(got))
		}
	}
}

func TestOnlyTheFirstGoesOnAndOnlyWhenNothingIsAheadOfIt(t *testing.T) {
	q := new(queue)
	first, second := &waiter{dueAt: 1}, &waiter{dueAt: 2, due: true}
	q.add(second)
	q.add(first)
	if q.next() != nil {
		t.Error("the second goes on before the first is due")
	}
	first.due = true
	if q.next() != first {
		t.Error("the first does not go on, want it to")
	}
	q.remove(first)
	q.moving = true
	if q.next() != nil || q.empty() {
		t.Error("the second goes on while the first is moving, want it to wait")
	}
	q.moving = false
	if q.next() != second {
		t.Error("the second does not go on after the first, want it to")
	}
}
