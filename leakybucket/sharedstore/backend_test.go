package sharedstore

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A checked store has warnings once it answers, and begins work.
type checked struct {
	*remote
	checks, starts atomic.Int32
}

func (c *checked) Start() { c.starts.Add(1) }

func (c *checked) Check(context.Context) ([]string, error) {
	if c.checks.Add(1); c.down.Load() {
		return nil, errors.New("connection refused")
	}
	return []string{"maxmemory-policy is allkeys-lru"}, nil
}

func TestNothingIsCalledBeforeTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &checked{remote: newRemote()}
		n := begin(t, r, Options{})
		time.Sleep(time.Minute)
		check.That(t, r.Buckets()["@probe"] == 0 && r.checks.Load() == 0 && r.starts.Load() == 0, "before: got the remote store called, want it left alone")
		n.backend.Attach(n.witness)
		n.backend.Attach(new(witness))
		synctest.Wait()
		check.That(t, r.checks.Load() >= 1 && r.starts.Load() == 1, "got %d checks and %d starts, want a check and one start", r.checks.Load(), r.starts.Load())
		n.backend.Report(errors.New("disk full"))
		n.wantHeard() // the other one is
		n.backend.Detach(n.witness)
	})
}

func TestWarningsAreToldOnceTheServersAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &checked{remote: newRemote()}
		r.down.Store(true)
		n := begin(t, r, Options{})
		n.backend.Attach(n.witness)
		time.Sleep(12 * time.Second)
		r.down.Store(false)
		time.Sleep(time.Minute)
		const warning = "warned: maxmemory-policy is allkeys-lru"
		got := n.witness.heard()
		check.That(t, slices.Contains(got, warning) && r.checks.Load() == 4, "got %q in %d checks, want one warning in 4", got, r.checks.Load())
		next := new(witness) // of the config after a reload
		n.backend.Attach(next)
		synctest.Wait()
		check.Slices(t, next.heard(), []string{warning})
		n.backend.Detach(next)
		n.backend.Report(errors.New("disk full"))
		synctest.Wait()
		got = n.witness.heard()
		check.That(t, got[len(got)-1] == "looking a: disk full", "got %q, want the error that no call waited for", got)
	})
}

// TestDetach: a program that reads its config again makes the same log twice.
func TestDetach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, written := begin(t, newRemote(), Options{}), new(strings.Builder)
		log := slog.New(slog.NewTextHandler(written, nil))
		n.backend.Attach(Log(log))
		n.backend.Attach(Log(log))
		n.backend.Detach(Log(log))
		n.backend.Report(errors.New("disk full"))
		synctest.Wait()
		check.That(t, strings.Contains(written.String(), "disk full"), "got %q, want the log that is still attached told", written)
	})
}

func TestCallsAreTimed(t *testing.T) {
	withNode(t, Options{}, func(t *testing.T, n *node) {
		var took []time.Duration
		n.backend.OnCall(func(d time.Duration) { took = append(took, d) })
		n.remote.slow.Store(int64(30 * time.Millisecond))
		n.take(hourly(9, 1))
		n.remote.hung.Store(true)
		n.take(hourly(9, 1))
		check.Slices(t, took, []time.Duration{30 * time.Millisecond, DefaultTimeout})
	})
}

// A stubborn store heeds no context, and uses its arguments until it returns.
type stubborn struct {
	leakybucket.Store
	takes  atomic.Int64 // in nanoseconds
	seen   atomic.Pointer[string]
	panics atomic.Bool
}

func (s *stubborn) Take(ctx context.Context, charges []leakybucket.Charge, decisions []leakybucket.Decision) error {
	if s.panics.Load() {
		panic("nil map")
	}
	time.Sleep(time.Duration(s.takes.Load()))
	if charges[0].Zone != "@probe" {
		s.seen.Store(&charges[0].Key)
	}
	return s.Store.Take(ctx, charges, decisions)
}

type closing struct {
	stubborn
	closed atomic.Int32
}

func (c *closing) Close() error {
	c.closed.Add(1)
	return nil
}

// silent answers takes, and nothing else that it is asked within an hour.
type silent struct {
	*memstore.Store
	store.Registry
}

func (s silent) Reset(context.Context, string, string, bool) error {
	time.Sleep(time.Hour)
	return nil
}

func (s silent) List(context.Context, store.Filter, string) ([]store.Entry, string, error) {
	time.Sleep(time.Hour)
	return nil, "", nil
}

func (s silent) Texts(context.Context, int64) (all store.Texts, err error) {
	time.Sleep(time.Hour)
	return all, nil
}

func (s silent) PutTexts(context.Context, []store.Text) (before, last int64, err error) {
	time.Sleep(time.Hour)
	return 0, 0, nil
}

func TestInterruptible(t *testing.T) {
	t.Run("optional calls", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := begin(t, Interruptible(silent{Store: memstore.New(memstore.Options{})}), Options{Timeout: time.Second})
			n.backend.Attach(n.witness)
			n.wantAdmitted(1, hourly(9, 1), 1)
			registry, _ := n.backend.Registry()
			for name, call := range map[string]func(context.Context) error{
				"Reset":    func(ctx context.Context) error { return n.Reset(ctx, "z", "k", false) },
				"List":     func(ctx context.Context) error { _, _, err := n.List(ctx, store.Filter{}, ""); return err },
				"Texts":    func(ctx context.Context) error { _, err := registry.Texts(ctx, 0); return err },
				"PutTexts": func(ctx context.Context) error { _, _, err := registry.PutTexts(ctx, nil); return err },
			} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				began := time.Now()
				err := call(ctx)
				took := time.Since(began)
				check.That(t, err != nil && took == time.Second, "%s: got %v after %v, want an error after a second", name, err, took)
				cancel()
			}
			time.Sleep(time.Hour)
		})
	})
	synctest.Test(t, func(t *testing.T) {
		s := &stubborn{Store: memstore.New(memstore.Options{})}
		n := begin(t, Interruptible(s), Options{Zone: policies(Deny)})
		n.backend.Attach(n.witness)
		n.wantAdmitted(1, hourly(9, 1), 1)
		s.takes.Store(int64(700 * time.Millisecond))
		charges, decisions, began := []leakybucket.Charge{hourly(9, 1)}, make([]leakybucket.Decision, 1), time.Now()
		err := n.Take(t.Context(), charges, decisions)
		took := time.Since(began)
		check.That(t, err == nil && took == DefaultTimeout && !decisions[0].Fits, "got %+v, %v after %v, want it denied after the timeout", decisions, err, took)
		charges[0].Key = "mallory"
		time.Sleep(time.Second)
		check.Equal(t, *s.seen.Load(), "someone", "charged")
		check.That(t, n.Reset(t.Context(), "z", "someone", false) != nil, "of a store that resets nothing: got no error")
		s.takes.Store(0)
		s.panics.Store(true)
		n.wantAdmitted(30, hourly(9, 1), 0)
		s.panics.Store(false)
		time.Sleep(2 * leftAlone)
		n.wantAdmitted(1, hourly(9, 1), 1)
	})
	t.Run("is closed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &closing{stubborn: stubborn{Store: memstore.New(memstore.Options{})}}
			n := begin(t, Interruptible(s), Options{})
			n.backend.Attach(n.witness)
			n.wantAdmitted(1, hourly(9, 1), 1)
			n.backend.Close()
			synctest.Wait()
			check.Equal(t, s.closed.Load(), 1, "times it was closed")
		})
	})
	t.Run("never answers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &stubborn{Store: memstore.New(memstore.Options{})}
			s.takes.Store(int64(time.Hour))
			i := Interruptible(s).(*interruptible)
			n := begin(t, i, Options{})
			n.backend.Attach(n.witness)
			time.Sleep(10 * time.Minute)
			got := i.running.Load()
			check.That(t, got <= mostRunning, "got %d goroutines that hang, want at most %d", got, mostRunning)
			n.backend.Close()
			time.Sleep(2 * time.Hour)
			check.Equal(t, i.running.Load(), 0, "goroutines counted once they have returned")
		})
	})
}
