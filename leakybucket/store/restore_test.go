package store

import (
	"context"
	"errors"
	"math"
	"strconv"
	"testing"
	"time"

	. "github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

func ladder(steps ...time.Duration) *Ladder { return &Ladder{Steps: steps} }

// blocking returns a charge to a bucket of 10 at 1/s.
func blocking(l *Ladder) Charge {
	c := enforced("a", 1)
	c.Block = l
	return c
}

func at(seconds float64) Instant { return Instant(math.Round(seconds * 1e6)) }

func TestABlockedBucketIsForgottenAfterItsBlockAndThatStepsLength(t *testing.T) {
	l := ladder(time.Minute, 10*time.Minute)
	for _, test := range []struct {
		block  *Ladder
		state  State
		forget float64 // seconds
	}{
		{l, State{Level: 5, At: at(3)}, 8},
		{l, State{BlockedUntil: at(60)}, 120},
		{l, State{BlockedUntil: at(60), Step: 1}, 660},
		{l, State{BlockedUntil: at(60), Step: 9}, 660}, // of a longer ladder
		{l, State{Level: 10, At: at(700), BlockedUntil: at(600), Step: 0}, 710},
		{l, State{Level: 10, At: at(50), BlockedUntil: at(60), Step: 0}, 120},
		{ladder(), State{Level: 10, BlockedUntil: at(10)}, 10},
		{ladder(), State{BlockedUntil: at(7)}, 7},
		{ladder(), State{Level: 10, At: at(1), BlockedUntil: at(7)}, 11},
		{nil, State{Level: 2, BlockedUntil: at(60), Step: 1}, 2},
	} {
		c := blocking(test.block)
		check.Equal(t, Expiry(&c, &test.state), at(test.forget), "%+v under %v: it forgotten at", test.state, test.block)
	}
}

// Nobody can tell a bucket that was forgotten when it may be from one that was
// not.
func TestABucketThatMayBeForgottenIsAsGoodAsNew(t *testing.T) {
	for _, l := range []*Ladder{nil, ladder(), ladder(time.Second), ladder(time.Minute, 10*time.Minute)} {
		for step := range uint8(2) {
			kept := State{Level: 10, At: at(100), BlockedUntil: at(130), Step: step}
			c := blocking(l)
			now, fresh := Expiry(&c, &kept), State{}
			for _, cost := range []float64{10, 10, 0} {
				var got, want Decision
				c.Cost = cost
				c.Take(&kept, now, &got)
				c.Take(&fresh, now, &want)
				check.That(t, got == want, "cost %v to %v when it may be forgotten: got %+v, want %+v, as a new one says", cost, l, got, want)
			}
		}
	}
}

var tenSeconds = Limit{Capacity: 10, Leak: 1}

// enforced and shadow return charges to buckets of 10 at 1/s.
func enforced(key string, cost float64) Charge {
	return Charge{Zone: "zone", Key: key, Limit: tenSeconds, Cost: cost}
}

func TestASavedStateIsRestoredWithinTheLimit(t *testing.T) {
	const second, now = Instant(1e6), Instant(1000e6)
	ladder := &Ladder{Steps: []time.Duration{time.Minute, time.Hour}}
	limit := Limit{Capacity: 10, Leak: 1}
	for _, test := range []struct {
		name  string
		of    Charge
		saved State
		want  State
	}{
		{"a level says when it was written, and leaks since", Charge{Limit: limit}, State{Level: 8, At: now - 3*second, Leak: 1}, State{Level: 8, At: now - 3*second, Leak: 1}},
		{"it leaks as it was written", Charge{Limit: limit}, State{Level: 8, At: now - 3*second, Leak: 2}, State{Level: 2, At: now, Leak: 1}},
		{"it leaks as the limit says if it does not say", Charge{Limit: limit}, State{Level: 8, At: now - 3*second}, State{Level: 5, At: now, Leak: 1}},
		{"an empty bucket is none", Charge{Limit: limit}, State{Level: 8, At: now - 9*second, Leak: 1}, State{}},
		{"a level above the capacity is lowered", Charge{Limit: limit}, State{Level: 80, At: now, Leak: 1}, State{Level: 10, At: now, Leak: 1}},
		{"a level in debt stays", Charge{Limit: limit, Debt: 5}, State{Level: 80, At: now, Leak: 1}, State{Level: 15, At: now, Leak: 1}},
		{"a state ahead of the clock has not leaked", Charge{Limit: limit}, State{Level: 8, At: now + 99*second, Leak: 1}, State{Level: 8, At: now, Leak: 1}},
		{"a block that runs goes on", Charge{Limit: limit, Block: ladder}, State{Level: 1, At: now - 5*second, Leak: 1, BlockedUntil: now + 600*second, Step: 1}, State{At: now, Leak: 1, BlockedUntil: now + 600*second, Step: 1}},
		{"a block of a shorter ladder is shortened", Charge{Limit: limit, Block: &Ladder{Steps: []time.Duration{time.Minute}}}, State{BlockedUntil: now + 600*second, Step: 7}, State{At: now, Leak: 1, BlockedUntil: now + 60*second}},
		{"a block without a ladder lasts no longer than a full bucket", Charge{Limit: limit, Block: &Ladder{}}, State{BlockedUntil: now + 600*second}, State{At: now, Leak: 1, BlockedUntil: now + 10*second}},
		{"a block that is over keeps its step", Charge{Limit: limit, Block: ladder}, State{BlockedUntil: now - second, Step: 1}, State{At: now, Leak: 1, BlockedUntil: now - second, Step: 1}},
		{"a zone that blocks nobody keeps no block", Charge{Limit: limit}, State{Level: 8, At: now, Leak: 1, BlockedUntil: now + second}, State{Level: 8, At: now, Leak: 1}},
		{"a level that is no number is none", Charge{Limit: limit, Block: ladder}, State{Level: math.NaN(), At: now, BlockedUntil: now + second}, State{}},
		{"a level without an end is none", Charge{Limit: limit}, State{Level: math.Inf(1), At: now}, State{}},
		{"a negative level is none", Charge{Limit: limit}, State{Level: -1, At: now}, State{}},
		{"a leak that is no number is none", Charge{Limit: limit}, State{Level: 1, Leak: math.NaN(), At: now}, State{}},
		{"an instant before 1970 is none", Charge{Limit: limit}, State{Level: 1, At: math.MinInt64}, State{}},
		{"the end of all time is cut", Charge{Limit: limit, Block: ladder}, State{Level: 1, At: math.MaxInt64, Leak: 1, BlockedUntil: math.MaxInt64}, State{Level: 1, At: now, Leak: 1, BlockedUntil: now + 60*second}},
	} {
		check.Equal(t, Restore(&test.of, test.saved, now), test.want, "%s", test.name)
	}
}

// pages is a Lister of pages of two buckets, which ends with an error if it has one.
type pages struct {
	n   int
	err error
}

func (p pages) List(_ context.Context, _ Filter, cursor string) (some []Entry, next string, err error) {
	at, _ := strconv.Atoi(cursor)
	if at == p.n {
		return nil, "", p.err
	}
	return []Entry{{Key: "a" + cursor}, {Key: "b" + cursor}}, strconv.Itoa(at + 1), nil
}

func TestListAllGoesThroughAllPagesUntilItIsStopped(t *testing.T) {
	broken := errors.New("broken")
	for _, test := range []struct {
		of           pages
		most, listed int
		err          error
	}{
		{pages{n: 3}, 100, 6, nil},
		{pages{n: 3}, 3, 3, nil},
		{pages{n: 0}, 100, 0, nil},
		{pages{n: 2, err: broken}, 100, 4, broken},
		{pages{n: 2, err: broken}, 4, 4, nil},
	} {
		listed := 0
		var failed error
		for _, err := range ListAll(context.Background(), test.of, Filter{}) {
			if failed = err; err == nil {
				listed++
			}
			if listed == test.most {
				break
			}
		}
		check.That(t, listed == test.listed && failed == test.err, "%+v, stopped after %d: got %d buckets and error %v, want %d and %v", test.of, test.most, listed, failed, test.listed, test.err)
	}
}
