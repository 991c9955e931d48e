package sharedstore

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// steadily takes with a fresh key so many times a second for a while, and returns how many
// takes waited for the store in vain.
func (n *node) steadily(perSecond int, lasts time.Duration) (waited int) {
	n.Helper()
	for i := range perSecond * int(lasts/time.Second) {
		c := hourly(10, 1)
		c.Key = fmt.Sprint(i)
		began := time.Now()
		if _, d := n.take(c); d.Local && time.Since(began) > 0 {
			waited++
		}
		time.Sleep(time.Second / time.Duration(perSecond))
	}
	return waited
}

func TestBreaker(t *testing.T) {
	third := func(c *leakybucket.Charge) error {
		if crc32.ChecksumIEEE([]byte(c.Key))%3 == 0 {
			time.Sleep(40 * time.Millisecond)
			return errors.New("no route to host")
		}
		return nil
	}
	for _, test := range []struct {
		name       string
		fail       func(*remote)
		perSecond  int
		down       bool
		mostWaited int
	}{
		{"dies", func(r *remote) { r.down.Store(true) }, 100, true, 0},
		{"hangs", func(r *remote) { r.hung.Store(true) }, 500, true, inARow},
		{"hangs on a quiet site", func(r *remote) { r.hung.Store(true) }, 2, true, 5},
		{"lost a third", func(r *remote) { r.fate.Store(&third) }, 100, true, 60},
		{"is slow", func(r *remote) { r.slow.Store(int64(60 * time.Millisecond)) }, 20, true, 30},
		{"is within its timeout", func(r *remote) { r.slow.Store(int64(45 * time.Millisecond)) }, 20, false, 0},
		{"has what is no bucket", func(r *remote) {
			fate := func(*leakybucket.Charge) error { return fmt.Errorf("reading a list: %w", store.ErrBadBucket) }
			r.fate.Store(&fate)
		}, 100, false, 0},
		{"loses one in twenty", func(r *remote) {
			fate := func(c *leakybucket.Charge) error {
				if strings.HasSuffix(c.Key, "7") && crc32.ChecksumIEEE([]byte(c.Key))%2 == 0 {
					return errors.New("connection reset")
				}
				return nil
			}
			r.fate.Store(&fate)
		}, 100, false, 0},
	} {
		onNode(t, test.name, Options{}, func(t *testing.T, n *node) {
			n.steadily(test.perSecond, 10*time.Second)
			test.fail(n.remote)
			got := n.steadily(test.perSecond, 10*time.Second)
			check.That(t, got <= test.mostWaited && n.backend.Down() == test.down, "got %d takes that waited in vain and an outage %v, want at most %d and %v", got, n.backend.Down(), test.mostWaited, test.down)
			if !test.down {
				return
			}
			check.Equal(t, n.steadily(test.perSecond, 10*time.Second), 0, "takes that waited for the store in an outage")
			takes := n.remote.takes.Load()
			n.remote.fate.Store(nil)
			n.remote.slow.Store(0)
			n.recover()
			check.Equal(t, n.remote.takes.Load(), takes, "tries by takes of clients, want it tried by others")
			n.wantAdmitted(1, hourly(1, 1), 1)
			check.Equal(t, n.remote.takes.Load(), takes+1, "after the outage: takes of the store")
		})
	}
}

// TestLimiterOfAStoreThatHangs: a Limiter waits for as long as the store may take, so its deadline
// must not hide an outage.
func TestLimiterOfAStoreThatHangs(t *testing.T) {
	for _, timeout := range []time.Duration{0, DefaultTimeout / 2, DefaultTimeout, time.Second} {
		withNode(t, Options{}, func(t *testing.T, n *node) {
			l := check.Must(leakybucket.NewLimiter(n, hourly(10, 1).Limit, leakybucket.LimiterOptions{Timeout: timeout}))(t)
			n.remote.hung.Store(true)
			for i := range 2 * inARow {
				r, err := l.Take(t.Context(), fmt.Sprint(i), 1)
				check.Assume(t, r.Fits && err == nil, "with a timeout of %v: got %v, %v, want what this node decides", timeout, r, err)
			}
			check.That(t, n.backend.Down(), "with a timeout of %v: got no outage", timeout)
			n.remote.hung.Store(false)
			n.recover()
		})
	}
}

// TestLimiterOfACallerWhoLeaves: a client that chooses its deadline must not choose who decides.
func TestLimiterOfACallerWhoLeaves(t *testing.T) {
	for policy := Local; policy <= Deny; policy++ {
		onNode(t, policy.String(), Options{Zone: policies(policy)}, func(t *testing.T, n *node) {
			l := check.Must(leakybucket.NewLimiter(n, hourly(9, 1).Limit, leakybucket.LimiterOptions{}))(t)
			n.remote.hung.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), DefaultTimeout/5)
			defer cancel()
			r, err := l.Take(ctx, "someone", 1)
			check.That(t, !r.Fits && errors.Is(err, context.DeadlineExceeded), "got %+v, %v, want the error of the context", r, err)
			left := n.local.State(&leakybucket.Charge{Key: "someone"})
			check.Equal(t, left.Level, 0, "what this node's own bucket keeps of it")
		})
	}
}

// TestLimiterOfAFarStore: a Limiter without a timeout gives the store as long as the store's options do.
func TestLimiterOfAFarStore(t *testing.T) {
	withNode(t, Options{Timeout: 4 * DefaultTimeout, Nodes: 3}, func(t *testing.T, n *node) {
		l := check.Must(leakybucket.NewLimiter(n, hourly(9, 1).Limit, leakybucket.LimiterOptions{}))(t)
		n.remote.slow.Store(int64(3 * DefaultTimeout))
		for i := range 9 {
			check.That(t, l.Allow("someone"), "take %d: got it refused by a share, want it of the store", i)
		}
	})
}

// TestRecoveryOfABusyStore: a store that loses as many calls as the breaker forgives is not
// down any more.
func TestRecoveryOfABusyStore(t *testing.T) {
	withNode(t, Options{}, func(t *testing.T, n *node) {
		n.remote.hung.Store(true)
		n.admits(30, hourly(100, 1))
		check.Assume(t, n.backend.Down(), "got no outage")
		var calls atomic.Int64
		tenth := func(*leakybucket.Charge) error {
			if calls.Add(1)%probes == 0 {
				return errors.New("connection reset")
			}
			return nil
		}
		n.remote.fate.Store(&tenth)
		n.remote.hung.Store(false)
		time.Sleep(10 * time.Second)
		check.That(t, !n.backend.Down(), "got the outage going on, want it over")
	})
}

// TestHangUps: clients that leave by the thousand are no failure, nor is a caller's own
// deadline, and their charges are made.
func TestHangUps(t *testing.T) {
	withNode(t, Options{}, func(t *testing.T, n *node) {
		n.remote.slow.Store(int64(20 * time.Millisecond))
		left, leave := context.WithCancel(t.Context())
		leave()
		for i := range 3000 {
			ctx := left
			if i%2 == 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
			}
			check.OK(t, n.Take(ctx, []leakybucket.Charge{hourly(1e6, 1)}, make([]leakybucket.Decision, 1)))
		}
		check.That(t, !n.backend.Failing() && n.witness.errors == 0, "got it failing with %d errors, want it well", n.witness.errors)
		got := n.remote.level(t, hourly(1e6, 1))
		check.That(t, near(got, 1500), "got level %v, want the 1500 of those who left", got)
	})
}

func TestAnOutageIsToldOnce(t *testing.T) {
	withNode(t, Options{}, func(t *testing.T, n *node) {
		n.remote.hung.Store(true)
		n.admits(30, hourly(100, 1))
		time.Sleep(10 * time.Second)
		n.remote.hung.Store(false)
		n.remote.down.Store(true)
		time.Sleep(10 * time.Minute)
		why := n.backend.Outage().Why
		check.That(t, why.Error() == "connection refused", "got an outage by %v, want its last reason", why)
		n.recover()
		n.steadily(10, 10*time.Second)
		got := n.witness.heard()
		if len(got) != 4 || !strings.HasPrefix(got[0], "asking th: no answer within 50ms") || !strings.HasPrefix(got[1], "down: no answer") ||
			got[2] != "trying th: connection refused" || !strings.HasPrefix(got[len(got)-1], "up after 10m1") {
			t.Errorf("got %q, want one outage, its other reason, and its end", got)
		}
	})
}

// TestReasons: a reason is told once a minute, and no more than a few.
func TestReasons(t *testing.T) {
	withNode(t, Options{}, func(t *testing.T, n *node) {
		for i := range 100 {
			n.backend.notifier.failed("asking", fmt.Errorf("reason %d", i%10))
		}
		n.wantHeard("asking: reason 0", "asking: reason 1", "asking: reason 2", "asking: reason 3")
		time.Sleep(failedEvery)
		n.backend.notifier.failed("asking", errors.New("reason 9"))
		n.wantHeard("asking: reason 0", "asking: reason 1", "asking: reason 2", "asking: reason 3", "asking: reason 9")
	})
}

// TestAnOutageThatRequestsHaveEnded: they asked for leave while the store was up, and got it when it was tried.
func TestAnOutageThatRequestsHaveEnded(t *testing.T) {
	withNode(t, Options{}, func(t *testing.T, n *node) {
		n.backend.trip(errors.New("connection refused"))
		n.remote.down.Store(true)
		time.Sleep(leftAlone - time.Millisecond/2) // before the first trial
		for range trials {
			done, err := n.backend.breaker.Allow()
			check.OK(t, err)
			done(nil)
		}
		check.That(t, !n.backend.Down(), "got an outage, want none")
		fate := func(*leakybucket.Charge) error { return errors.New("wrong password") }
		n.remote.fate.Store(&fate)
		n.remote.down.Store(false)
		time.Sleep(time.Millisecond)
		n.remote.fate.Store(nil)
		time.Sleep(time.Minute)
		check.That(t, !n.backend.Down(), "after a trial that failed: got an outage, want none")
	})
}
