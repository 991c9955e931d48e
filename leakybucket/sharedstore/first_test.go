package sharedstore

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A far store is reached some time after it was first asked, as behind TLS and another site.
type far struct {
	*remote
	after time.Duration
	began atomic.Pointer[time.Time]
}

func (f *far) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	now := time.Now()
	f.began.CompareAndSwap(nil, &now)
	if rest := time.Until(f.began.Load().Add(f.after)); rest > 0 {
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return f.remote.Take(ctx, charges, decisions)
}

// begin is a process that starts: nothing has been asked yet.
func begin(t *testing.T, remote leakybucket.Store, o Options) *node {
	n := &node{T: t, local: memstore.New(memstore.Options{}), witness: new(witness)}
	n.backend = NewBackend("test", remote, n.local)
	n.Store = n.backend.With(o)
	t.Cleanup(func() {
		n.backend.Close()
		time.Sleep(time.Second) // for calls that no request waits for
		synctest.Wait()
	})
	return n
}

func TestFirstConnection(t *testing.T) {
	for _, test := range []struct {
		after, waits time.Duration
		reached      bool
	}{
		{0, 0, true},
		{150 * time.Millisecond, 150 * time.Millisecond, true},
		{1500 * time.Millisecond, 1500 * time.Millisecond, true},
		{3 * time.Second, firstWait, false},
	} {
		t.Run(test.after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRemote()
				c := blocked(3)
				c.Block = nil
				_ = r.Store.Take(t.Context(), []leakybucket.Charge{hourly(3, 3)}, make([]leakybucket.Decision, 1)) // before a restart
				n := begin(t, &far{remote: r, after: test.after}, Options{})
				began := time.Now()
				n.backend.Attach(n.witness)
				_, d := n.take(c)
				took := time.Since(began)
				check.That(t, took == test.waits && d.Fits != test.reached, "got %+v after %v, want it after %v and refused by the store %v", d, took, test.waits, test.reached)
				began = time.Now()
				n.take(c)
				took = time.Since(began)
				check.That(t, took <= 0, "the next take: got it after %v, want it at once", took)
				time.Sleep(10 * time.Second)
				if test.reached {
					n.wantHeard()
				} else {
					n.wantHeard("down: not reached within 2s: ", "up after ")
				}
			})
		})
	}
}

// TestDeadAtTheStart: it is said once, and why, and nobody waits longer than two seconds after
// the start, whenever he comes. The store is back as soon as it answers within the timeout.
func TestDeadAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRemote()
		r.down.Store(true)
		n := begin(t, r, Options{Nodes: 2, Timeout: 4 * DefaultTimeout})
		n.backend.Attach(n.witness)
		time.Sleep(1500 * time.Millisecond)
		began := time.Now()
		n.wantAdmitted(10, hourly(6, 1), 3)
		check.Equal(t, time.Since(began), 500*time.Millisecond, "answers after, want them after the rest of the two seconds")
		time.Sleep(10 * time.Minute)
		n.wantHeard("down: not reached within 2s: connection refused")
		r.slow.Store(int64(3 * DefaultTimeout))
		r.down.Store(false)
		time.Sleep(10 * time.Second)
		check.That(t, !n.backend.Down(), "got the store down, want it asked again")
	})
}

// TestABadProbeIsAnAnswer: somebody else has written what the store is tried with.
func TestABadProbeIsAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, bad := newRemote(), func(c *leakybucket.Charge) error {
			if c.Zone == "@probe" {
				return store.ErrBadBucket
			}
			return nil
		}
		r.fate.Store(&bad)
		n := begin(t, r, Options{Zone: policies(Deny)})
		n.backend.Attach(n.witness)
		n.wantAdmitted(3, hourly(2, 1), 2)
		n.wantHeard()
	})
}

// TestWaiting: at most a thousand wait, none of shadow, and none whose client has left.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRemote()
		r.hung.Store(true)
		n := begin(t, r, Options{})
		atOnce := func(ctx context.Context, c leakybucket.Charge) {
			t.Helper()
			began, d := time.Now(), make([]leakybucket.Decision, 1)
			err := n.Take(ctx, []leakybucket.Charge{c}, d)
			check.That(t, err == nil && d[0].Local && time.Since(began) == 0, "got %+v, %v after %v, want a local bucket at once", d, err, time.Since(began))
		}
		shadowed := hourly(10, 1)
		shadowed.Shadow = true
		atOnce(t.Context(), shadowed)
		left, leave := context.WithCancel(t.Context())
		leave()
		atOnce(left, hourly(10, 1))
		var served atomic.Int64
		for range mostWaiting {
			go func() {
				n.take(hourly(1e6, 1))
				served.Add(1)
			}()
		}
		synctest.Wait()
		atOnce(t.Context(), hourly(10, 1))
		check.That(t, served.Load() == 0, "got %d served, want all to wait", served.Load())
		time.Sleep(firstWait)
		synctest.Wait()
		check.Equal(t, served.Load(), mostWaiting, "after two seconds: served, want all")
	})
}

// TestAlsoAwait: requests wait for something else, too, and no longer than two seconds.
func TestAlsoAwait(t *testing.T) {
	for _, test := range []struct{ closed, waits time.Duration }{{0, 0}, {time.Second, time.Second}, {time.Minute, firstWait}} {
		synctest.Test(t, func(t *testing.T) {
			n, done := begin(t, newRemote(), Options{}), make(chan struct{})
			n.backend.AlsoAwait(done)
			go func() {
				time.Sleep(test.closed)
				close(done)
			}()
			began := time.Now()
			_, d := n.take(hourly(1, 1))
			took := time.Since(began)
			check.That(t, took == test.waits && !d.Local, "closed after %v: got %+v after %v, want it of the store after %v", test.closed, d, took, test.waits)
			time.Sleep(test.closed)
		})
	}
}

// TestAReloadWaitsForNothing: another config that keeps the store.
func TestAReloadWaitsForNothing(t *testing.T) {
	withNode(t, Options{}, func(t *testing.T, n *node) {
		n.remote.hung.Store(true)
		next, began := n.backend.With(Options{Nodes: 2, Timeout: time.Second}), time.Now()
		n.backend.Attach(new(witness))
		err := next.Take(t.Context(), []leakybucket.Charge{hourly(1, 1)}, make([]leakybucket.Decision, 1))
		check.That(t, err == nil && time.Since(began) == time.Second, "got %v after %v, want the timeout alone", err, time.Since(began))
	})
}
