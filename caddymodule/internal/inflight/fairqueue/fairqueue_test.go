package fairqueue

import (
	"fmt"
	"net/netip"
	"strconv"
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

// slotSeconds lets two keys compete for one slot, one with requests of a second and
// one with those of a tenth, and returns for how long each of them holds it.
func slotSeconds() (long, short time.Duration) {
	q := newQueue(1)
	send := func(key string) { q.Arrive(&Request{Claim: Claim{Rank: First, Keys: [2]string{key}}}) }
	running := &Request{Claim: Claim{Rank: First, Keys: [2]string{"long"}}}
	q.Arrive(running)
	for range 3 {
		send("long")
		send("short")
	}
	for range 2000 {
		held := time.Second
		if running.Keys[0] == "short" {
			held = 100 * time.Millisecond
			short += held
		} else {
			long += held
		}
		send(running.Keys[0])
		q.Release(running, held)
		running = q.Next()
	}
	return long, short
}

func TestKeysGetEqualTimeHoweverLongTheirRequestsTake(t *testing.T) {
	long, short := slotSeconds()
	ratio := float64(long) / float64(short)
	check.That(t, ratio >= .9 && ratio <= 1.1, "got %v and %v of slot time, want the same", long, short)
}

// requestsOfANewKey returns how many requests of a new key are served before the
// next one of a key that has used the only slot for 100 seconds. Both keys always
// have requests that wait.
func requestsOfANewKey(t *testing.T) (n int) {
	q := newQueue(1)
	running := come(t, q, Served, First, "old")
	old := come(t, q, Waiting, First, "old")
	for range 100 {
		next := come(t, q, Waiting, First, "old")
		q.Release(running, time.Second)
		wantNext(t, q, old, nil)
		running, old = old, next
	}
	for ; n < 50; n++ {
		come(t, q, Waiting, First, "new")
		q.Release(running, time.Second)
		if running = q.Next(); running == old {
			break
		}
	}
	return n
}

func TestANewKeyDoesNotCatchUpWithAnOldOne(t *testing.T) {
	got := requestsOfANewKey(t)
	check.That(t, got <= 2, "got %d requests of a new key before an old one's turn, want 2 at most", got)
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

// Staff behind one address keep each other waiting, and nobody at home.
func TestANetworkOfMembersLeavesHalfToMembersOfOthers(t *testing.T) {
	office, home := netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24")
	for _, inFlight := range []int{1, 2, 5, 8} {
		q, n := newQueue(inFlight), 0
		member := func(want Outcome, network netip.Prefix) *Request {
			t.Helper()
			n++
			r := &Request{Claim: Claim{Rank: Member, Network: network, Keys: [2]string{strconv.Itoa(n)}}}
			got, _ := q.Arrive(r)
			check.Assume(t, got == want, "got %v, want %v", got, want)
			return r
		}
		var running, waiting []*Request
		for range inFlight { // nobody else is there
			running = append(running, member(Served, office))
		}
		for range 3 * inFlight {
			waiting = append(waiting, member(Waiting, office))
		}
		come(t, q, Waiting, First, "robot")
		// Those who are no members change nothing of that.
		q.Release(running[0], 0)
		wantNext(t, q, waiting[0], nil)
		running = append(running[1:], waiting[0])
		atHome := []*Request{member(Waiting, home), member(Waiting, home)}
		for i := range min(len(atHome), inFlight/2) {
			q.Release(running[i], 0)
			wantNext(t, q, atHome[i], nil)
		}
		got, half := q.members[office], (inFlight+1)/2
		check.That(t, got >= half, "in_flight %d: got %d slots left to the office, want %d at least", inFlight, got, half)
	}
}

// Of ten equal requests, one of the others is served while members wait.
func TestMembersLeaveATenthToOthersWhoWait(t *testing.T) {
	for _, inFlight := range []int{1, 2, 5} {
		q := newQueue(inFlight)
		var running []*Request
		for i := range inFlight {
			running = append(running, come(t, q, Served, Member, "m"+strconv.Itoa(i)))
		}
		served := 0
		for i := range 1000 {
			come(t, q, Waiting, Member, "member"+strconv.Itoa(i))
			if len(q.rows[First]) == 0 {
				come(t, q, Waiting, First, "first"+strconv.Itoa(i))
				come(t, q, Waiting, First, "another"+strconv.Itoa(i))
			}
			q.Release(running[0], time.Second)
			next := q.Next()
			if running = append(running[1:], next); next.Rank == First {
				served++
			}
		}
		check.That(t, served >= 98 && served <= 105, "in_flight %d: got %d of 1000 served who are no members, want a hundred", inFlight, served)
	}
}

func TestTheMeanRecoversFromRequestsThatTakeNoTime(t *testing.T) {
	m := new(Mean)
	for range 100_000 {
		m.add(0)
	}
	for range 400 {
		m.add(microsOf(time.Second))
	}
	got := m.Duration()
	check.That(t, got >= 900*time.Millisecond, "got %v after 400 requests of a second, want nearly that", got)
}
