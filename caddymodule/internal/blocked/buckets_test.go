package blocked

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
)

var minutes = &leakybucket.Ladder{Steps: []time.Duration{time.Minute}}

func chargeOf(key string) *leakybucket.Charge {
	return &leakybucket.Charge{Zone: "z", Key: key, Block: minutes}
}

// begins notes a block that begins now.
func begins(l *Buckets, key string, length time.Duration) {
	l.Note(time.Now(), chargeOf(key), &leakybucket.Decision{BlockedUntil: leakybucket.Instant(length.Microseconds()), Began: true})
}

// A fakeStore says whether its buckets are blocked.
type fakeStore struct {
	blocked leakybucket.Instant
	level   float64
	err     error
	takes   atomic.Int32
}

func (s *fakeStore) Take(_ context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	s.takes.Add(1)
	if charges[0].Cost >= 0 || !charges[0].Probe {
		return errors.New("a confirmation must pour nothing and begin nothing")
	}
	decisions[0] = leakybucket.Decision{BlockedUntil: s.blocked, Level: s.level}
	return s.err
}

func (s *fakeStore) Settle(context.Context, []leakybucket.Settlement) error { return nil }

func TestTheListIsBoundedAndForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewBuckets()
		for i := range mostBuckets + 1000 {
			begins(l, fmt.Sprint(i), time.Minute)
		}
		if got := l.blocks.Len(); got != mostBuckets {
			t.Errorf("got %d blocks, want %d", got, mostBuckets)
		}
		<-time.After(time.Minute)
		const later = mostBuckets / 7 // each makes room for more than itself
		for i := range later {
			begins(l, fmt.Sprint("late", i), time.Minute)
		}
		begins(l, "late", time.Minute)
		if got := l.blocks.Len(); got != later+1 {
			t.Errorf("got %d blocks after a minute, want the %d new ones alone", got, later+1)
		}
		if _, found, fresh := l.Find(time.Now(), chargeOf("late")); !found || !fresh {
			t.Error("the new block is not found")
		}
		<-time.After(time.Minute)
		if _, found, _ := l.Find(time.Now(), chargeOf("late")); found {
			t.Error("a block was found at its end")
		}
	})
}

// A flood that fills the list must not make every further block search it.
func TestAFullListIsNotSearchedForEveryBlock(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		l := NewBuckets()
		for i := range mostBuckets {
			begins(l, fmt.Sprint(i), time.Hour)
		}
		// Each search takes milliseconds.
		for i := range 200_000 {
			begins(l, fmt.Sprint("more", i), time.Hour)
		}
	})
}

func TestABlockIsConfirmedOnceASecondHoweverManyAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, store := NewBuckets(), &fakeStore{blocked: leakybucket.Instant(time.Hour.Microseconds())}
		begins(l, "a", time.Hour)
		for range 10 {
			for range 100 {
				if _, runs := l.Believe(t.Context(), time.Now(), chargeOf("a"), store); !runs {
					t.Fatal("a block that runs is not believed")
				}
			}
			<-time.After(time.Second)
			synctest.Wait()
		}
		if got := store.takes.Load(); got < 8 || got > 9 {
			t.Errorf("got %d calls of the store in ten seconds, want one a second after the first", got)
		}
	})
}

// Retry-After follows from the level.
func TestTheLevelOfABlockedBucketIsConfirmedToo(t *testing.T) {
	for _, test := range []struct {
		name string
		err  error
		want float64 // of a level that was 60 units and leaks two in a second, after ten seconds
	}{
		{"the store tells the level", nil, 7},
		{"the store does not answer", errors.New("connection refused"), 40},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, store := NewBuckets(), &fakeStore{blocked: leakybucket.Instant(time.Hour.Microseconds()), level: 7, err: test.err}
			c := chargeOf("a")
			c.Limit = leakybucket.Limit{Capacity: 60, Leak: 2}
			l.Note(time.Now(), c, &leakybucket.Decision{BlockedUntil: store.blocked, Began: true, Level: 60})
			var b Block
			for range 10 {
				<-time.After(time.Second)
				b, _ = l.Believe(t.Context(), time.Now(), c, store)
			}
			if b.Level != test.want || !b.Seen.Equal(time.Now()) {
				t.Errorf("%s: got a level of %v, seen %v ago, want %v, seen now", test.name, b.Level, time.Since(b.Seen), test.want)
			}
		})
	}
}

func TestABlockThatWasResetIsForgottenAfterASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, store := NewBuckets(), new(fakeStore)
		begins(l, "a", time.Hour)
		<-time.After(trusted)
		if _, runs := l.Believe(t.Context(), time.Now(), chargeOf("a"), store); runs || !l.Empty() {
			t.Error("a block that the store does not know of is still believed")
		}
	})
}

func TestAStoreThatDoesNotAnswerChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, store := NewBuckets(), &fakeStore{err: errors.New("connection refused")}
		begins(l, "a", time.Minute)
		for range 30 {
			<-time.After(time.Second)
			if _, runs := l.Believe(t.Context(), time.Now(), chargeOf("a"), store); !runs {
				t.Fatal("a block is forgotten because the store is down")
			}
		}
		<-time.After(30 * time.Second)
		if _, runs := l.Believe(t.Context(), time.Now(), chargeOf("a"), store); runs {
			t.Error("a block was believed after its end")
		}
	})
}
