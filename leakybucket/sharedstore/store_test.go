package sharedstore

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-throttle/caddy-throttle/leakybucket"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/memstore"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/store"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest"
	"github.com/caddy-throttle/caddy-throttle/leakybucket/storetest/check"
)

// A remote store that cannot list is no store that is down.
func TestAStoreThatCannotListSaysSo(t *testing.T) {
	remote := struct{ leakybucket.Store }{memstore.New(memstore.Options{})}
	b, s := NewBackend("mute", remote, memstore.New(memstore.Options{})), New(remote, Options{}, nil)
	t.Cleanup(b.Close)
	t.Cleanup(s.Close)
	_, _, err := b.With(Options{}).List(t.Context(), store.Filter{Zone: "z", Scan: 1}, "")
	check.That(t, err != nil && strings.Contains(err.Error(), "mute") && !b.Down(), "got error %v and an outage %v, want an error that names the store, and none", err, b.Down())
	_, _, err = s.List(t.Context(), store.Filter{Zone: "z", Scan: 1}, "")
	check.That(t, err != nil && strings.Contains(err.Error(), fmt.Sprintf("the store %T cannot", remote)), "without a name: got error %v, want one with the type of the store", err)
}

// TestAListingIsOfOneStore: this node's own buckets are no part of what the shared store
// keeps, and the other way round.
func TestAListingIsOfOneStore(t *testing.T) {
	remote, local := memstore.New(memstore.Options{}), memstore.New(memstore.Options{})
	b := NewBackend("remote", remote, local)
	t.Cleanup(b.Close)
	for i := range 100 {
		for about, s := range map[string]*memstore.Store{"remote": remote, "local": local} {
			c := leakybucket.Charge{Zone: "z", Key: fmt.Sprint(about, i), Limit: leakybucket.Limit{Capacity: 10, Leak: 0.001}, Cost: 1}
			_ = s.Take(t.Context(), []leakybucket.Charge{c}, make([]leakybucket.Decision, 1))
		}
	}
	s, of := b.With(Options{}), store.Filter{Zone: "z", Scan: 10}
	var cursors []string
	for _, down := range []bool{false, true} {
		b.lasts.Store(map[bool]*Outage{true: {}}[down])
		some, next, err := s.List(t.Context(), of, "")
		if err != nil || len(some) == 0 || next == "" || strings.HasPrefix(some[0].Key, "local") != down {
			t.Fatalf("down %v: got %v, cursor %q and error %v, want some of the store that answers", down, some, next, err)
		}
		_, _, err = s.List(t.Context(), of, next)
		check.That(t, err == nil, "down %v, the second page: got error %v, want none", down, err)
		cursors = append(cursors, next)
	}
	for i, down := range []bool{true, false} {
		b.lasts.Store(map[bool]*Outage{true: {}}[down])
		_, _, err := s.List(t.Context(), of, cursors[i])
		check.That(t, errors.Is(err, store.ErrBadCursor), "down %v, with a cursor of the other store: got error %v, want ErrBadCursor", down, err)
	}
}

func TestTheStoreKeepsTheContractOfTheRemoteOne(t *testing.T) {
	storetest.Run(t, func(tb testing.TB, _ storetest.Need) (leakybucket.Store, func(leakybucket.Instant)) {
		var held atomic.Int64
		b := NewBackend("remote", memstore.New(memstore.Options{Clock: func() leakybucket.Instant {
			if at := held.Load(); at != 0 {
				return leakybucket.Instant(at)
			}
			return leakybucket.Instant(time.Now().UnixMicro())
		}}), memstore.New(memstore.Options{}))
		tb.Cleanup(b.Close)
		b.Await(tb.Context())
		// Settle waits for a fifth of it, however busy the machine is.
		return b.With(Options{Timeout: time.Minute, Nodes: 3}), func(at leakybucket.Instant) { held.Store(int64(at)) }
	})
}

// A lockedBuffer may be written to and read by several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// TestAProgramWithOneStoreNeedsNoMore: a limiter over New goes on through an outage by this
// node's own buckets, and the log says so once.
func TestAProgramWithOneStoreNeedsNoMore(t *testing.T) {
	var log lockedBuffer
	for _, observer := range []Observer{Log(slog.New(slog.NewTextHandler(&log, nil))), nil} {
		synctest.Test(t, func(t *testing.T) {
			r := newRemote()
			store := New(r, Options{Timeout: -1}, observer)
			limiter := check.Must(leakybucket.NewLimiter(store, leakybucket.Limit{Capacity: 10, Leak: 0.001}, leakybucket.LimiterOptions{Timeout: -1}))(t)
			take := func(fits bool) {
				t.Helper()
				got, err := limiter.Take(t.Context(), "k", 1)
				check.Assume(t, err == nil && got.Fits == fits, "got %+v, %v, want fits %v", got, err, fits)
			}
			for range 3 {
				take(true)
			}
			was := check.Must(limiter.Take(t.Context(), "k", 1))(t)
			check.That(t, r.level(t, leakybucket.Charge{Key: "k", Limit: limiter.Limit()}) > 3.9, "got another level, want the store asked")
			r.down.Store(true)
			for range 10 {
				take(true)
			}
			for range 20 {
				take(false)
				_ = limiter.Settle(t.Context(), "k", was, 2)
			}
			synctest.Wait()
			check.That(t, strings.Count(log.String(), "\n") <= mostReasons+1, "got a line for each settlement that is lost:\n%s", &log.Buffer)
			r.down.Store(false)
			time.Sleep(10 * time.Second) // virtual
			got := r.level(t, leakybucket.Charge{Key: "k", Limit: limiter.Limit()})
			check.That(t, got >= 3.9 && got <= 4, "after the outage: got a level of %v, want what it had admitted", got)
			store.Close()
			store.Close()
			synctest.Wait()
			check.Equal(t, r.closed.Load(), 1, "times the remote store was closed")
			for _, line := range []string{"the store is down", "connection refused", "the store is up again"} {
				check.That(t, strings.Count(log.String(), line) != 0, "got no line %q:\n%s", line, log.String())
			}
		})
	}
}
