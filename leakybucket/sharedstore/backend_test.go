package sharedstore

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
)

func TestNothingIsCalledBeforeTheFirstObserverIsAttached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &checked{remote: remote{Store: memstore.New(memstore.Options{})}}
		b := NewBackend("test", r, memstore.New(memstore.Options{}))
		b.With(Options{})
		<-time.After(time.Minute)
		if r.started.Load() != 0 || r.checks.Load() != 0 || r.takes.Load() != 0 {
			t.Error("before: got the remote store called, want it left alone")
		}
		var first, second witness
		b.Attach(&first)
		b.Attach(&second)
		synctest.Wait()
		if got := r.started.Load(); got != 1 {
			t.Errorf("after: got it started %d times, want once", got)
		}
		_ = b.Destruct()
	})
}

// A checked store has warnings once it answers.
type checked struct {
	remote
	checks atomic.Int32
}

func (c *checked) Check(ctx context.Context) ([]string, error) {
	if c.checks.Add(1); c.hung.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if c.down.Load() {
		return nil, errors.New("connection refused")
	}
	return []string{"maxmemory-policy is allkeys-lru"}, nil
}

func TestWarningsAreToldOnceTheServersAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &checked{remote: remote{Store: memstore.New(memstore.Options{})}}
		r.down.Store(true)
		b, w := NewBackend("test", r, memstore.New(memstore.Options{})), new(witness)
		b.Attach(w)
		<-time.After(12 * time.Second)
		r.down.Store(false)
		<-time.After(time.Minute)
		if got := w.heard(); len(got) != 1 || got[0] != "warned: maxmemory-policy is allkeys-lru" || r.checks.Load() != 4 {
			t.Errorf("got %q in %d checks, want one warning in 4", got, r.checks.Load())
		}
		_ = b.Destruct()
	})
}

func TestTheRemoteStoreIsClosedWhenItsLastUserHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, closed := startNode(t, Options{}), 0
		n.backend.OnClose(func() { closed++ })
		n.backend.Hold()
		n.backend.Hold()
		_ = n.backend.Destruct()
		n.backend.Release()
		synctest.Wait()
		if n.remote.closed.Load() != 0 {
			t.Error("in use: got it closed, want it open")
		}
		n.wantAdmitted(1, hourly(1, 1), 1)
		n.backend.Release()
		synctest.Wait()
		_ = n.backend.Destruct()
		synctest.Wait()
		if n.remote.closed.Load() != 1 || closed != 1 {
			t.Errorf("out of use: got it closed %d times and %d said, want once", n.remote.closed.Load(), closed)
		}
	})
}

func TestNothingOfAStoreRunsOnWhenItIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &checked{remote: remote{Store: memstore.New(memstore.Options{})}}
		r.down.Store(true)
		b := NewBackend("test", r, memstore.New(memstore.Options{}))
		b.Attach(new(witness))
		for range failuresToOpen {
			_ = b.With(Options{}).Take(t.Context(), []leakybucket.Charge{hourly(1, 1)}, make([]leakybucket.Decision, 1))
		}
		<-time.After(12 * time.Second) // of checks and probes
		_ = b.Destruct()
		synctest.Wait() // and nothing is left that waits for time to pass
		wantEnded(t, "Backend).check", "Backend).revive", "teller).run")
	})
}

func TestAnOutageIsToldOnceAndItsEndToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		c := hourly(100, 1)
		n.remote.down.Store(true)
		n.wantAdmitted(50, c, 50)
		<-time.After(3*time.Second - time.Millisecond)
		n.remote.down.Store(false)
		<-time.After(2 * longestHold)
		n.wantAdmitted(5, c, 5)
		synctest.Wait()
		got := n.witness.heard()
		if last := len(got) - 1; last == 2 && strings.HasPrefix(got[last], "up after ") {
			got[last] = "up" // the next trial is due within a second or so
		}
		if want := []string{"asking th: connection refused", "down: connection refused", "up"}; !slices.Equal(got, want) {
			t.Errorf("got %q heard, want %q", got, want)
		}
		if n.witness.errors != failuresToOpen {
			t.Errorf("got %d errors counted, want %d", n.witness.errors, failuresToOpen)
		}
	})
}

// Requests have no time to learn that a password is wrong. Probes have.
func TestTheReasonOfAnOutageIsToldOnceItIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		n.remote.hung.Store(true)
		n.wantAdmitted(5, hourly(100, 1), 5)
		n.remote.down.Store(true)
		n.remote.hung.Store(false)
		<-time.After(10 * time.Second)
		const late = "no answer within the timeout: context deadline exceeded"
		n.wantHeard("asking th: "+late, "down: "+late, "why the s: connection refused")
	})
}

func TestAnObserverThatHangsHangsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := startNode(t, Options{})
		hanging := make(chan struct{})
		n.witness.tell = func() { <-hanging }
		c := hourly(1e6, 1)
		start := time.Now()
		for range 500 {
			n.remote.down.Store(true)
			n.wantAdmitted(5, c, 5)
			charged, was := n.take(c)
			_ = n.settle(charged, was, -1)
			if got := time.Since(start); got != 0 {
				t.Fatalf("got a request wait %v, want none to", got)
			}
			n.recover()
			start = time.Now()
		}
		n.backend.teller.mu.Lock()
		if got := len(n.backend.teller.news); got > mostNews {
			t.Errorf("got %d news kept, want at most %d", got, mostNews)
		}
		n.backend.teller.mu.Unlock()
		close(hanging)
	})
}

func TestTheObserverThatAttachedLastIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, second := startNode(t, Options{}), new(witness)
		n.backend.Attach(second)
		n.backend.teller.tell(func(o Observer) { o.Warned("one") })
		synctest.Wait()
		n.backend.Detach(second)
		n.backend.teller.tell(func(o Observer) { o.Warned("two") })
		synctest.Wait()
		n.backend.Detach(n.witness)
		n.backend.teller.tell(func(o Observer) { o.Warned("three") })
		n.wantHeard("warned: two")
		if got := second.heard(); len(got) != 1 || got[0] != "warned: one" {
			t.Errorf("the second: got %q, want one", got)
		}
	})
}

func TestThePackageKnowsNothingOfCaddy(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("go is not on the PATH")
	}
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	const ours = "github.com/caddy-throttle/caddy-throttle/"
	for _, path := range strings.Fields(string(out)) {
		switch strings.TrimPrefix(path, ours) {
		case "leakybucket", "leakybucket/memstore", "caddymodule/internal/expiring", "leakybucket/sharedstore":
		default:
			t.Errorf("got %s among what it is built of, want the library and the standard library only", path)
		}
	}
}
